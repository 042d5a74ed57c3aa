"""The instruments as a user calls them, on the small model that ships: check.py CARAT"""
import csv, http.server, io, json, math, os, re, subprocess, sys, tempfile, threading

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
rc, out, err = call("plan", "e2b", "-c", "8K", env={"CARAT_CONFIG": tmp.name + "/none.ini"})
check("a CARAT_CONFIG that is not there is an error", rc == 2 and "none.ini" in err, err)
text = os.path.join(tmp.name, "text.txt")
with open(text, "w") as f:
    f.write(open("docs/operations.md").read()[:12000])

bench = ["bench", "-m", model, "-p", "32", "-n", "8", "-r", "3"]
rows = records(*bench, "-ctk", "q8_0", "--cache-type-v-swa", "TBQ4_0", "--records", tmp.name + "/records")
check("bench writes records", [r["settings"]["test"] for r in rows] == ["pp32", "tg8"])
tg = rows[1]
check("they say what and where", all(k in tg for k in ("machine", "model", "settings", "figures", "state", "busy", "carat")))
check("the model's hash is the file's", tg["model"]["hash"] == subprocess.run(
    ["sha256sum", model], capture_output=True, text=True).stdout.split()[0])
check("bench takes the cache flags of run", "tbq4" in tg["settings"]["kv"] and tg["settings"]["kv_k"] == "q8_0", tg["settings"])
spread = tg["figures"]["tok_s"]
check("median, p10 and range", spread["min"] <= spread["p10"] <= spread["median"] <= spread["max"] and spread["n"] == 3)
check("no share of the ceiling above 1", all(0 < r["figures"]["ceiling_share"] <= 1 for r in rows),
      [r["figures"]["ceiling_share"] for r in rows])
if "energy_sources" not in tg:
    check("no energy, no figure", not any("energy" in k or "_w" in k for k in tg["figures"]))
kept = os.listdir(tmp.name + "/records")
check("--records keeps them", len(kept) == 1 and json.load(open(f"{tmp.name}/records/{kept[0]}"))[1]["settings"] == tg["settings"])
cold = records(*bench, "--cold")[0]
check("--cold: it is said, with the time of opening", cold["settings"]["cold"] and cold["figures"]["open_s"] > 0 and not rows[0]["settings"]["cold"])
check("when the repetitions ran", rows[1]["figures"]["until"] - rows[1]["figures"]["from"] >= rows[1]["figures"]["wall_s"] * 0.9)
rc, out, _ = call(*bench, "--csv")
line = list(csv.DictReader(io.StringIO(out)))[1]
check("--csv has the columns", float(line["decode_tps"]) > 0 and line["kv_k"] == "f16" and line["prefill_ms"] == "")

spec = ["bench", "-m", model, "--spec", "suffix", "--prompts", "share/prompts.json", "--only", "code", "-n", "16", "-r", "1"]
rows = records(*spec, "--draft-depths", "2", "--records", tmp.name + "/spec")
deep = rows[2]
check("bench --spec: one row has prefill, decode and acceptance", all(
    k in deep["figures"] for k in ("prefill_tps", "decode_tps", "al", "first_tok_ms", "kv_mib")) and deep["settings"]["dm"] == 2)
for shape in ("tiny", "tiny-assistant"):
    assert call("forge", shape, f"{tmp.name}/{shape}.gguf", "--type", "q8_0")[0] == 0
rc, out, err = call("bench", "-m", tmp.name + "/tiny.gguf", "-md", tmp.name + "/tiny-assistant.gguf", "--spec", "mtp", "--draft-depths", "4",
                    "--prompts", "share/prompts.json", "--only", "random", "-n", "16", "-r", "2")
check("bench --spec: a drafter of another body is told", rc == 0 and "was this drafter made for this model" in out, out + err)
rows = records("eval", "acceptance", "-m", tmp.name + "/tiny.gguf", "-md", tmp.name + "/tiny-assistant.gguf", "--prompts", "share/prompts.json",
               "--only", "random", "--depths", "2", "-n", "4", "--records", tmp.name + "/records")
check("eval acceptance: -md alone is enough, as in bench and serve", rows[0]["settings"]["draft"] == "mtp", rows)
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
refuses("a flag of caches beside --caches", "excludes", *kld, "--caches", "tq3", "--kv-recent", "128")
over = [r["figures"]["kld_over_floor"] for r in rows]
check("kld: f16 caches are the floor", over[0] == 0 and rows[0]["figures"]["kld_floor"] > 0)
check("kld: q8_0 costs a fraction of it, 3 bits much more", abs(over[1]) < rows[0]["figures"]["kld_floor"] / 2 and over[2] > 10 * abs(over[1]), over)
refuses("-f beside --reference", "no effect", *kld, "--reference", text)
refuses("--from beyond the window", "beyond", *kld, "--from", "4000")

ini = os.path.join(tmp.name, "carat.ini")
open(ini, "w").write(f"model = {model}\nrepetitions = 2\n")
rc, out, err = call("bench", "-p", "8", "-n", "4", "--json", env={"CARAT_CONFIG": ini})
check("CARAT_CONFIG is read", rc == 0 and json.loads(out)[0]["figures"]["tok_s"]["n"] == 2, err)
slow = subprocess.Popen([carat, "serve", "-m", model, "-c", "1024", "--kv-tokens", "100", "--port", "0"], stdout=subprocess.DEVNULL,
                        stderr=subprocess.PIPE, text=True)
said = ""
while "--kv-tokens" not in said and (line := slow.stderr.readline()):
    said += line
slow.terminate()
slow.wait()
check("--kv-tokens below one context is told", "less than one context: caches hold 1024 tokens" in said, said)
refuses("a slot directory that is not there", "irectory", "serve", "-m", model, "--slot-save-path", "/nowhere/at/all")
rc, out, err = call("inspect", model, "--plan", "--device", "cpu")
check("inspect --plan --device", rc == 0 and "weights" in out, err)

busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
spin = [busy] + [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() - 1)]
rc, _, err = call(*bench, "--require-idle")
for p in spin:
    p.kill()
    p.wait()
check("a busy machine is refused and named", rc == 1 and re.search(r"other processes take [\d.]+ of \d+ processors: \S+ \(\d+\)", err), err)

# Gates: the model that ships passes; planted faults fail.


class Planted(http.server.BaseHTTPRequestHandler):
    """A server whose every answer is the one that was planted."""
    answer, message, timings = "All is well.", {}, {}

    def send(self, body):
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.send({"data": [{"id": "planted"}]})

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send({"choices": [{"message": {"role": "assistant", "content": self.answer, **self.message}, "finish_reason": "stop"}],
                   "usage": {"completion_tokens": 20}, "timings": {"predicted_n": 20, "predicted_ms": 100, **self.timings}})

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Planted)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}"
suite = os.path.join(tmp.name, "suite.json")


def gate(case, answer="All is well.", message={}, timings={}, flags=()):
    Planted.answer, Planted.message, Planted.timings = answer, message, timings
    with open(suite, "w") as f:
        json.dump({"name": "planted", "cases": [{"name": "one", "prompt": "?", **case}]}, f)
    rc, out, err = call("gate", suite, "--url", url, *flags)
    return rc, out + err


def fails(name, words, *args, **kwargs):
    rc, out = gate(*args, **kwargs)
    check(f"gate fails: {name}", rc == 1 and words in out, out)


def passes(name, *args, **kwargs):
    rc, out = gate(*args, **kwargs)
    check(f"gate passes: {name}", rc == 0, out)


six = {"loops": True, "checks": [{"lines": {"line": "優化測試", "times": 6}}]}
passes("plain words", {})
passes("Traditional Chinese", {"checks": [{"contains": "標記正常"}]}, "標記正常,沒有亂碼。")
passes("French, which has no mojibake", {}, "Été à Nîmes, où l'âme s'élève — « très » naïve.")
passes("six lines", six, "優化測試\n" * 6)
passes("a tool call", {"checks": [{"tool_call": {"name": "f", "arguments": {"a": 1}}}]}, "",
       {"tool_calls": [{"function": {"name": "f", "arguments": '{"a": 1, "b": 2}'}}]})
passes("JSON in a fence", {"checks": [{"json": ["a"]}]}, '```json\n{"a": 1}\n```')
fails("mojibake", "Latin-1", {}, "標記正常".encode().decode("latin-1"))
fails("Windows mojibake", "Latin-1", {}, "It’s “fine”".encode().decode("cp1252", "replace").replace("\ufffd", ""))
fails("replacement characters", "replacement", {}, "good\ufffd\ufffd")
fails("a loop", "times", {}, "So it goes on. " * 12)
fails("a leaked token", "<unused", {}, "well <unused12> then")
fails("an empty answer", "empty", {}, "  ")
fails("five lines of six", "5 of", six, "優化測試\n" * 5)
fails("broken JSON", "no JSON", {"checks": ["json"]}, '{"a": ')
fails("another tool", "was called", {"checks": [{"tool_call": {"name": "f"}}]}, "", {"tool_calls": [{"function": {"name": "g", "arguments": "{}"}}]})
fails("a needle that is lost", "not found", {"needle": {"tokens": 200, "fact": "It is 7.", "question": "?", "answer": "7316"}})
fails("a broken drafter", "of drafts", {}, timings={"draft_n": 100, "draft_n_accepted": 2}, flags=("--min-acceptance", "0.3"))
passes("a good drafter", {}, timings={"draft_n": 100, "draft_n_accepted": 60}, flags=("--min-acceptance", "0.3"))
passes("its record", {}, flags=("--records", tmp.name + "/gates"))
saved = f"{tmp.name}/gates/{os.listdir(tmp.name + '/gates')[0]}"
passes("as fast as the record", {}, flags=("--baseline", saved))
fails("a slow build", "% of the", {}, timings={"predicted_ms": 200}, flags=("--baseline", saved))
junit = os.path.join(tmp.name, "gates.xml")
gate({}, "<mask> & more", flags=("--junit", junit))
check("JUnit names the fault", 'failures="1"' in open(junit).read() and "&lt;mask&gt;" in open(junit).read())
server.shutdown()

rc, out, err = call("gate", "demo", "-m", model, "-md", "models/carat-demo-mtp/carat-demo-mtp-q8_0.gguf", "-ctk", "q8_0", "--records", tmp.name + "/records")
check("carat-demo passes its suite, served with flags", rc == 0, out + err)

# Sweeps, plans, the report.
rc, out, err = call("bench", "-m", model, "-p", "16", "-n", "4", "-r", "1", "--sweep", "threads=1,2", "--sweep-rounds", "2",
                    "--records", tmp.name + "/records")
check("--sweep tables its values", rc == 0 and "threads=2" in out and out.count("tg4") == 2, out + err)
rows = records("plan", "31b", "-c", "8K,128K", "--memory", "24G", "--records", tmp.name + "/records")
sizes = {(r["settings"]["ctx"], r["settings"]["kv_k"], r["settings"]["kv_v"]): r["figures"] for r in rows}
check("plan: a saving at 128K", 0.7 < sizes[131072, "tq3", "tq3"]["kv_saving"] < 0.85, sizes)
check("plan: sliding layers do not grow sixteenfold",
      sizes[131072, "f16", "f16"]["kv_mib"] < 12 * sizes[8192, "f16", "f16"]["kv_mib"])
page = os.path.join(tmp.name, "report.html")
rc, out, err = call("report", tmp.name + "/records", tmp.name + "/spec", "--out", page, "--markdown", page + ".md")
html = open(page).read() if rc == 0 else ""
check("report: tables, charts, records", rc == 0 and html.count("<svg") >= 2 and "Gates" in html and "Memory of caches" in html and "Tokens a step by depth" in html and '<td class="n">' in html
      and html.count('<details id="r') > 10 and "One page" not in err, err)
check("report: needs nothing else", "http://" not in html.replace("http://127", "") and "src=" not in html)
check("report: every link has its record", set(re.findall(r'href="#(r\d+)"', html)) <= set(re.findall(r'id="(r\d+)"', html)))

print("instruments:", "FAILED " + ", ".join(failed) if failed else "all right")
sys.exit(1 if failed else 0)
