"""The whole way in a minute on a CPU: generate, encode, train a tiny model, export, read back, measure, pack, sample.

Needs PyTorch (1.13 or newer) and a tokenizer.json; without PyTorch it says so and does nothing.
"""
import json
import os
import random
import tempfile
import time


def say(t0, text):
    print(f"{time.time() - t0:6.1f} s  {text}", flush=True)


def byte_tokenizer():
    """A tokenizer.json without merges: named entries and bytes. Enough to try the machinery."""
    from . import tokenizer as t
    named = t.NAMED + [f"<unused{i}>" for i in range(32 - len(t.NAMED))]
    vocab = {n: i for i, n in enumerate(named + t.BYTES)}
    added = [{"id": i, "content": n, "special": True} for n, i in vocab.items() if i < 32]
    return {"added_tokens": added, "pre_tokenizer": t.NO_SPLIT, "model": {"type": "BPE", "vocab": vocab, "merges": []}}


def write_data(folder, state, chats=150):
    import numpy as np
    from . import bpe, corpus, encode
    tok = bpe.Tokenizer(state)
    for split, seed in (("train", 1), ("heldout", 2)):
        ids = encode.encode_spans(tok, corpus.synthetic(seed, chats if split == "train" else 12))
        np.save(os.path.join(folder, f"tasks.smoke.{split}.npy"), ids)
    with open(os.path.join(folder, "report.json"), "w") as f:
        f.write("{}")


def run(seconds):
    try:
        import torch
    except ImportError:
        print("skipped: PyTorch is not installed here")
        return
    from . import bpe, evaluate, export, pieces, prompts, sample, shapes, target
    torch.set_num_threads(1)
    random.seed(1)
    t0 = time.time()
    with tempfile.TemporaryDirectory() as at:
        state, data, out, hf = byte_tokenizer(), f"{at}/data", f"{at}/out", f"{at}/hf"
        os.makedirs(data)
        with open(f"{at}/tokenizer.json", "w", encoding="utf-8") as f:
            json.dump(state, f)
        write_data(data, state)
        say(t0, "data")
        steps = max(12, int(seconds / 3))
        target.train(data, out, "smoke", steps=steps, short=64, long=128, tokens=256)
        rows = [json.loads(x) for x in open(f"{out}/log.jsonl")]
        losses = [r["tasks"] for r in rows if r.get("event") == "heldout"]
        say(t0, f"{steps} steps, held-out loss {losses[0]} to {losses[-1]}")
        assert losses[-1] < losses[0], "the loss does not fall"
        export.export(torch.load(f"{out}/target.pt", map_location="cpu"), f"{at}/tokenizer.json", shapes.PRESETS["smoke"], hf)
        pieces.pack(f"{hf}/model.safetensors", f"{at}/piece")
        pieces.unpack(f"{at}/piece", f"{at}/back")
        with open(f"{hf}/model.safetensors", "rb") as a, open(f"{at}/back", "rb") as b:
            assert a.read() == b.read(), "packing lost something"
        model, tok = export.load(hf).place(512, "cpu"), bpe.Tokenizer(state)
        nats = evaluate.perplexities(model, data, 64, 4)["tasks"]["nats"]
        ids = sample.prompt_ids(tok, prompts.rendered()[0])[:60]
        whole = model.logits(model.trace(torch.tensor([ids]))[0])[0, -1].argmax().item()
        assert sample.continue_ids(model, ids, 1, set())[0] == whole, "cached and whole passes differ"
        say(t0, f"exported and read back: {nats} nats per byte; all well")
