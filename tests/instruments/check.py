"""The instruments as a user calls them, on the small model that ships: check.py CARAT"""
import csv, io, json, math, os, subprocess, sys, tempfile

carat = os.path.abspath(sys.argv[1])
model = "models/carat-demo/carat-demo-q5_k_m.gguf"
failed = []


def call(*args, env=None):
    r = subprocess.run([carat, *args], capture_output=True, text=True, env={**os.environ, **(env or {})})
    return r.returncode, r.stdout, r.stderr


def records(*args):
    rc, out, err = call(*args, "--json")
    assert rc == 0, err
    return json.loads(out)


def check(name, right, what=""):
    print(("ok    " if right else "FAILED ") + name, "" if right else what)
    if not right:
        failed.append(name)


def refuses(name, word, *args):
    rc, _, err = call(*args)
    check(name, rc != 0 and word in err, err)


tmp = tempfile.TemporaryDirectory()
text = os.path.join(tmp.name, "text.txt")
with open(text, "w") as f:
    f.write(open("docs/operations.md").read()[:12000])

bench = ["bench", "-m", model, "-p", "32", "-n", "8", "-r", "3"]
rows = records(*bench, "-ctk", "q8_0", "--cache-type-v-swa", "tq4", "--records", tmp.name + "/records")
check("bench writes records", [r["settings"]["test"] for r in rows] == ["pp32", "tg8"])
tg = rows[1]
check("they say what and where", all(k in tg for k in ("machine", "model", "settings", "figures", "state", "busy", "carat")))
check("the model's hash is the file's", tg["model"]["hash"] == subprocess.run(
    ["sha256sum", model], capture_output=True, text=True).stdout.split()[0])
check("bench takes the cache flags of run", "tq4" in tg["settings"]["kv"] and tg["settings"]["kv_k"] == "q8_0", tg["settings"])
spread = tg["figures"]["tok_s"]
check("median, p10 and range", spread["min"] <= spread["p10"] <= spread["median"] <= spread["max"] and spread["n"] == 3)
check("no share of the ceiling above 1", all(0 < r["figures"]["ceiling_share"] <= 1 for r in rows),
      [r["figures"]["ceiling_share"] for r in rows])
if "energy_sources" not in tg:
    check("no energy, no figure", not any("energy" in k or "_w" in k for k in tg["figures"]))
kept = os.listdir(tmp.name + "/records")
check("--records keeps them", len(kept) == 1 and json.load(open(f"{tmp.name}/records/{kept[0]}"))[1]["settings"] == tg["settings"])
rc, out, _ = call(*bench, "--csv")
line = list(csv.DictReader(io.StringIO(out)))[1]
check("--csv has the columns", float(line["decode_tps"]) > 0 and line["kv_k"] == "f16" and line["prefill_ms"] == "")

spec = ["bench", "-m", model, "--spec", "suffix", "--prompts", "share/prompts.json", "--only", "code", "-n", "16", "-r", "1"]
rows = records(*spec, "--draft-depths", "2")
deep = rows[2]
check("bench --spec: one row has prefill, decode and acceptance", all(
    k in deep["figures"] for k in ("prefill_tps", "decode_tps", "al", "first_tok_ms")) and deep["settings"]["dm"] == 2)
refuses("unknown kind of prompts", "nonsense", *spec[:-4], "--only", "nonsense", "-n", "8", "-r", "1")
refuses("--prompts without --spec", "no effect", *bench, "--prompts", "share/prompts.json")
refuses("--draft-max in eval acceptance", "no effect", "eval", "acceptance", "-m", model, "--spec", "suffix", "--prompts",
        "share/prompts.json", "--draft-max", "4")

ppl = ["eval", "ppl", "-m", model, "-f", text, "-c", "256", "-b", "256", "-ub", "256", "--ppl-stride", "64", "--chunks", "4"]
strided = records(*ppl, "--caches", "f32,q8_0,tq3")
check("eval ppl: several caches in one run", [r["settings"]["kv_k"] for r in strided] == ["f32", "q8_0", "tq3"])
f = strided[0]["figures"]
check("strided windows score a stride each", f["tokens"] == 4 * 64 and len(f["cumulative_ppl"]) == 4)
check("the last cumulative value is the result", math.isclose(f["cumulative_ppl"][-1], f["ppl"], rel_tol=1e-9))
chat = records(*ppl, "--chat")[0]["figures"]["ppl"]
check("--chat changes the text", not math.isclose(chat, f["ppl"], rel_tol=1e-3), (chat, f["ppl"]))
refuses("--chat-template without --chat", "no effect", *ppl, "--chat-template", text)

kld = ["eval", "kld", "-m", model, "-f", text, "-c", "128", "--chunks", "2"]
rows = records(*kld, "--caches", "f16,q8_0,tq3")
over = [r["figures"]["kld_over_floor"] for r in rows]
check("kld: f16 caches are the floor", over[0] == 0 and rows[0]["figures"]["kld_floor"] > 0)
check("kld: q8_0 costs a fraction of it, 3 bits much more", abs(over[1]) < rows[0]["figures"]["kld_floor"] / 2 and over[2] > 10 * abs(over[1]), over)
refuses("--from beyond the window", "beyond", *kld, "--from", "4000")

ini = os.path.join(tmp.name, "carat.ini")
open(ini, "w").write(f"model = {model}\nrepetitions = 2\n")
rc, out, err = call("bench", "-p", "8", "-n", "4", "--json", env={"CARAT_CONFIG": ini})
check("CARAT_CONFIG is read", rc == 0 and json.loads(out)[0]["figures"]["tok_s"]["n"] == 2, err)
refuses("a slot directory that is not there", "irectory", "serve", "-m", model, "--slot-save-path", "/nowhere/at/all")
rc, out, err = call("inspect", model, "--plan", "--device", "cpu")
check("inspect --plan --device", rc == 0 and "weights" in out, err)

busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
spin = [busy] + [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() - 1)]
rc, _, err = call(*bench, "--require-idle")
for p in spin:
    p.kill()
    p.wait()
check("a busy machine is refused and named", rc == 1 and "busy" in err and "python3" in err, err)
print("instruments:", "FAILED " + ", ".join(failed) if failed else "all right")
sys.exit(1 if failed else 0)
