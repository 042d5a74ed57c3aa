"""The whole way in a minute on a CPU, with tiny models: every command that README.md names runs once.

Generate, encode, train a target, export, pack; then everything of plan.py, killed once and gone on with. Needs PyTorch
(1.13 or newer) and numpy; without PyTorch it says so and does nothing.
"""
import glob
import json
import os
import random
import subprocess
import sys
import tarfile
import tempfile
import time

DRAFTER = dict(length=64, rows=4, lr=1e-2, seed=5)
SMALL = {
    "own": dict(rows=6, new=24), "own_tokens": 100, "moe_preset": "smoke-moe", "qwen_preset": "smoke-qwen", "target": dict(steps=8, short=64, long=128, tokens=256),
    "assistant": dict(DRAFTER, steps=16, shape=dict(d=32, ff=64), save_every=0.0, share_every=0.5), "nextn": dict(DRAFTER, steps=8),
    "dflash": dict(DRAFTER, steps=16, blocks=6, shape=dict(ff=32, heads=2, hd=16)),
    "acceptance": dict(counts={"tasks": 4}, new=24)}


def say(t0, text):
    print(f"{time.time() - t0:6.1f} s  {text}", flush=True)


def byte_tokenizer():
    """A tokenizer.json of named entries, bytes and one merge. Enough to try the machinery."""
    from . import from_gguf
    from . import tokenizer as t
    tokens = t.NAMED + [f"<unused{i}>" for i in range(32 - len(t.NAMED))] + t.BYTES + [t.SPACE, t.SPACE * 2]
    return from_gguf.tokenizer_state({"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": [f"{t.SPACE} {t.SPACE}"]})


def write_data(folder, state, chats=60):
    import numpy as np
    from . import bpe, corpus, encode
    tok = bpe.Tokenizer(state)
    for group, base in (("tasks", 1), ("dialogue", 5)):
        for split, seed in (("train", base), ("heldout", base + 1)):
            ids = encode.encode_spans(tok, corpus.synthetic(seed, chats if split == "train" else 12))
            np.save(os.path.join(folder, f"{group}.smoke.{split}.npy"), ids)
    with open(os.path.join(folder, "report.json"), "w") as f:
        f.write("{}")


def falls(path, t0):
    """The mean held-out loss falls; says from what to what."""
    rows = [json.loads(x) for x in open(path)]
    means = []
    for r in rows:
        if r.get("event") == "heldout":
            values = [v for k, v in r.items() if k not in ("event", "step", "tokens", "t")]
            means.append(sum(values) / len(values))
    say(t0, f"{path.split('/')[-2]}: held-out loss {means[0]:.3f} to {means[-1]:.3f}")
    assert means[-1] < means[0], f"the loss does not fall: {path}"


def target(at, state, t0):
    """A trained tiny target as AT/target, its data as AT/data."""
    import torch
    from . import bpe, evaluate, export, pieces, prompts, sample, shapes
    from . import target as trainer
    data, run, hf = f"{at}/data", f"{at}/target-run", f"{at}/target"
    os.makedirs(data)
    with open(f"{at}/tokenizer.json", "w", encoding="utf-8") as f:
        json.dump(state, f)
    write_data(data, state)
    say(t0, "data")
    trainer.train(data, run, "smoke", steps=20, short=64, long=128, tokens=256)
    falls(f"{run}/log.jsonl", t0)
    export.export(torch.load(f"{run}/target.pt", map_location="cpu"), f"{at}/tokenizer.json", shapes.PRESETS["smoke"], hf)
    pieces.pack(f"{hf}/model.safetensors", f"{at}/piece")
    pieces.unpack(f"{at}/piece", f"{at}/back")
    with open(f"{hf}/model.safetensors", "rb") as a, open(f"{at}/back", "rb") as b:
        assert a.read() == b.read(), "packing lost something"
    model, tok = export.load(hf).place(512, "cpu"), bpe.Tokenizer(state)
    nats = evaluate.perplexities(model, data, 64, 4)["tasks"]["nats"]
    ids = sample.prompt_ids(tok, prompts.rendered()[0])[:60]
    whole = model.logits(model.trace(torch.tensor([ids]))[0])[0, -1].argmax().item()
    assert sample.continue_ids(model, ids, 1, set())[0] == whole, "cached and whole passes differ"
    say(t0, f"exported and read back: {nats} nats per byte")


def planned(at, carat):
    """python -m carat_train plan, as a user calls it, on two processes of the CPU."""
    code = "import json, sys; from carat_train import plan; sys.exit(not plan.run(**json.loads(sys.argv[1])))"
    settings = dict(text=at, out=at, gguf="", gpus="cpu,cpu2", carat=carat or "no-such-program", scale=0.0, small=SMALL)
    return subprocess.Popen([sys.executable, "-c", code, json.dumps(settings)], env=dict(os.environ, OMP_NUM_THREADS="1"))


def drafters(at, carat, t0):
    """plan.py at tiny scale, killed in the middle of a drafter and started again."""
    from . import pieces
    open(f"{at}/base.done", "w").close()
    first = planned(at, carat)
    while first.poll() is None and not os.path.exists(f"{at}/mtp/state.pt"):
        time.sleep(0.01)
    first.kill()
    first.wait()
    assert not os.path.exists(f"{at}/mtp.done"), "killed too late"
    say(t0, "a plan killed in the middle of a drafter")
    if planned(at, carat).wait():
        for name in glob.glob(f"{at}/*.log"):
            print(name, open(name).read()[-2000:])
        raise AssertionError("a stage failed")
    with open(f"{at}/plan.jsonl") as f:
        quantized = [r for r in map(json.loads, f) if "model" in r]
    assert ("quantized" if carat else "not_quantized") in quantized[-1], quantized
    for name in ("mtp", "dflash", "abl-mtp", "moe-mtp", "moe-dflash", "qwen-run", "qwen-mtp"):
        falls(f"{at}/{name}/log.jsonl", t0)
    assert any(json.loads(x).get("event") == "resumed" for x in open(f"{at}/mtp/log.jsonl")), "the cut-off run did not go on"
    for name in ("mtp", "dflash", "moe", "abl-mtp", "qwen"):
        assert os.path.getsize(f"{at}/ship/{name}.safetensors.00") <= 16_000_000
    with tarfile.open(f"{at}/ship/small.tar") as tar:
        missing = {"plan.jsonl", "mtp-acceptance.json", "mtp/log.jsonl", "dflash/hf/config.json", "abl/direction.npy"} - set(tar.getnames())
    assert not missing, f"not in small.tar: {missing}"
    pieces.unpack(f"{at}/ship/mtp.safetensors", f"{at}/back-mtp")
    with open(f"{at}/mtp/hf/model.safetensors", "rb") as a, open(f"{at}/back-mtp", "rb") as b:
        assert a.read() == b.read(), "what is shipped is not the last state"
    say(t0, "plan: all stages done")


def searched(at, t0):
    """Directions and strengths tried, a body made of one; removing sixteen directions changes more than removing one."""
    from . import abliterate, abliterate_search, safetensors_file
    r = abliterate_search.run(f"{at}/target", f"{at}/data", f"{at}/search", f"{at}/mtp/hf", 5, counts=({"tasks": 3}, {"dialogue": 3}), new=16)
    assert len(r["trials"]) == 5 and r["front"] and os.path.getsize(f"{at}/search/search.svg") > 1000, r
    plain = {t["rank"]: t["kld"] for t in r["plain"]}
    assert plain[1] > 0 and plain[16] > plain[1], f"removing more does not change more: {plain}"
    abliterate.run(f"{at}/target", f"{at}/data", f"{at}/found", search=f"{at}/search/search.json")
    a, b = (safetensors_file.read(f"{at}/{n}/model.safetensors") for n in ("target", "found"))
    changed = {k for k in a if (a[k][1] != b[k][1]).any()}
    assert changed and all(k.endswith(("o_proj.weight", "down_proj.weight")) for k in changed), changed
    say(t0, f"search: {len(r['front'])} of 5 trials are beaten by none; all of 1 and 16 directions: KL {plain[1]} and {plain[16]}")


def read_by_carat(at, carat, t0):
    """What was written is a model to the program, and comes back from it as it was."""
    import numpy as np
    from . import from_gguf, gguf_file, safetensors_file
    for name in ("target", "mtp/hf", "moe-hf", "abl", "qwen-hf"):
        subprocess.run([carat, "inspect", f"{at}/{name}"], check=True, stdout=subprocess.DEVNULL)
    for kind in ("bf16", "q8_0"):
        subprocess.run([carat, "convert", f"{at}/target", f"{at}/target-{kind}.gguf", "--type", kind], check=True, stdout=subprocess.DEVNULL)
        from_gguf.export_hf(f"{at}/target-{kind}.gguf", f"{at}/back-{kind}")
    a, b, c = (safetensors_file.read(f"{at}/{n}/model.safetensors") for n in ("target", "back-bf16", "back-q8_0"))
    assert a.keys() == b.keys() and all((a[k][1] == b[k][1]).all() for k in a), "a bf16 file does not come back as it was"
    worst = max(np.abs(safetensors_file.float32(*a[k]) - safetensors_file.float32(*c[k])).max() / np.abs(safetensors_file.float32(*a[k])).max() for k in a)
    assert worst < 0.01, f"q8_0 is off by {worst}"
    same_logits(f"{at}/qwen-hf", at, carat)
    subprocess.run([carat, "convert", f"{at}/mtp/hf", f"{at}/mtp-bf16.gguf", "--type", "bf16"], check=True, stdout=subprocess.DEVNULL)
    from_gguf.export_hf(f"{at}/mtp-bf16.gguf", f"{at}/back-mtp-hf")
    a, b = (safetensors_file.read(f"{at}/{n}/model.safetensors") for n in ("mtp/hf", "back-mtp-hf"))
    assert a.keys() == b.keys() and all((a[k][1] == b[k][1]).all() for k in a), "an assistant does not come back as it was"
    with open(f"{at}/mtp/hf/config.json") as f, open(f"{at}/back-mtp-hf/config.json") as g:
        assert json.load(f) == json.load(g), "an assistant's configuration does not come back"
    _, weights = gguf_file.read(f"{at}/target-q8_0.gguf")
    say(t0, f"carat reads what was written ({len(weights)} tensors), and its files come back")


def same_logits(folder, at, carat):
    """The training code and the program agree on a model of Qwen's shape, and the program drafts with its head."""
    import numpy as np
    import torch
    from . import export
    ids = [2] + [random.randrange(32, 288) for _ in range(150)]
    with open(f"{at}/ids.json", "w") as f:
        json.dump(ids, f)
    subprocess.run([carat, "eval", "logits", "-m", folder, "--tokens", f"{at}/ids.json", "--out", f"{at}/logits.npy"], check=True)
    model = export.load(folder).place(256, "cpu")
    with torch.no_grad():
        mine = model.logits(model.trace(torch.tensor([ids]))[0])[0].numpy()
    worst = np.abs(np.load(f"{at}/logits.npy") - mine).max() / mine.std()
    assert worst < 1e-3, f"logits differ by {worst} of their spread"
    with open(f"{at}/prompts.json", "w") as f:
        json.dump({"tasks": [{"text": "one two one two one"}]}, f)
    subprocess.run([carat, "eval", "acceptance", "-m", folder, "--spec", "mtp", "--prompts", f"{at}/prompts.json", "-n", "16", "--depths", "4"],
                   check=True, stdout=subprocess.DEVNULL)


def senses(at, carat, t0):
    """The model that sees and hears; needs Pillow as well."""
    try:
        import PIL                                           # noqa: F401
    except ImportError:
        return say(t0, "pictures and sounds: left out, Pillow is not installed here")
    from .senses import smoke
    first, last = smoke.run(at, f"{at}/tokenizer.json", carat)
    say(t0, f"pictures and sounds: loss {first:.3f} to {last:.3f}" + (", carat's logits are the same" if carat else ""))


def run(carat=""):
    try:
        import torch
    except ImportError:
        print("skipped: PyTorch is not installed here")
        return
    torch.set_num_threads(1)
    random.seed(1)
    t0 = time.time()
    with tempfile.TemporaryDirectory() as at:
        target(at, byte_tokenizer(), t0)
        senses(at, carat and os.path.abspath(carat), t0)
        drafters(at, carat and os.path.abspath(carat), t0)
        searched(at, t0)
        if carat:
            read_by_carat(at, carat, t0)
    say(t0, "all well")
