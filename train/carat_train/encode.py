"""Text to token files: DIR/<group>.<part>.<split>.npy, uint16, the high bit marks tokens the model need not produce.

One process per core; each takes a part of the sources, reads it, and encodes it with the shipped tokenizer.
"""
import glob
import json
import os
import random
import shutil
import time
from concurrent.futures import ProcessPoolExecutor, as_completed

import numpy as np

from . import corpus, harvest, pool
from . import tokenizer as tok_module
from .tokenizer import BOS

GIVEN = 0x8000                                              # flag in the token files; ids are below 2^14
SYNTHETIC_PARTS, SYNTHETIC_CHATS, HELD_OUT_CHATS = 64, 8000, 2500
HARVEST_PARTS = 48


def encode_spans(tok, docs):
    """docs: list of span lists -> one array, each document opened by <bos>."""
    flat = [(text, own) for spans in docs for text, own in spans]
    encoded, out, at = tok.encode_batch_fast([t for t, _ in flat], add_special_tokens=False), [], 0
    for spans in docs:
        out.append(np.array([BOS | GIVEN], dtype=np.uint16))
        for _, own in spans:
            ids = np.array(encoded[at].ids, dtype=np.uint16)
            out.append(ids if own else ids | GIVEN)
            at += 1
    return np.concatenate(out) if out else np.zeros(0, np.uint16)


def run_part(job):
    """One part: gather its documents, encode, write one file per group and split. Returns what was written."""
    kind, name, what, tokenizer, out = job
    tok = tok_module.from_file(tokenizer)
    pool.use(os.path.join(out, "pool.json"))
    if kind == "corpus":
        docs = corpus.documents(what, seed=name)
    elif kind == "harvest":
        docs = list(harvest.documents(what))
    else:
        seed, count, split = what
        docs = [("tasks", split, s) for s in corpus.synthetic(seed, count)]
    by_key, report = {}, {}
    for group, split, spans in docs:
        by_key.setdefault((group, split), []).append(spans)
    for (group, split), items in by_key.items():
        ids = np.concatenate([encode_spans(tok, items[i:i + 512]) for i in range(0, len(items), 512)])
        np.save(os.path.join(out, f"{group}.{name}.{split}.npy"), ids)
        size = sum(len(t.encode()) for spans in items for t, _ in spans)
        report[f"{group}.{split}"] = [len(items), size, len(ids)]
    return report


def jobs(text, tokenizer, out, harvested, parts):
    todo = [("corpus", os.path.basename(p).split(".")[0], p) for p in sorted(glob.glob(os.path.join(text, "*.jsonl.xz")))]
    todo = [j for j in todo if not j[1].startswith(corpus.SKIP)]
    todo.sort(key=lambda j: -os.path.getsize(j[2]))
    step = max(1, -(-len(harvested) // HARVEST_PARTS))
    todo += [("harvest", f"installed-{i // step:02d}", harvested[i:i + step]) for i in range(0, len(harvested), step)]
    todo += [("synthetic", f"synthetic-{i:02d}", (1000 + i, SYNTHETIC_CHATS, "train")) for i in range(parts)]
    todo += [("synthetic", "synthetic-held", (999_999, min(HELD_OUT_CHATS, 40 * parts), "heldout"))]
    return [j + (tokenizer, out) for j in todo]


def build(text, tokenizer, out, parts=SYNTHETIC_PARTS, installed=1, workers=None):
    """Encode everything; writes report.json when all is there. A pool.json beside the corpus files is used as it is."""
    t0, total = time.time(), {}
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.makedirs(out, exist_ok=True)
    ready = os.path.join(text, "pool.json")
    if os.path.exists(ready):
        shutil.copy(ready, os.path.join(out, "pool.json"))
    else:
        pool.save(pool.gather(text), os.path.join(out, "pool.json"))
    files, table = harvest.listing() if installed else ([], [])
    random.Random(11).shuffle(files)
    files = [f for i, f in enumerate(files) if f[1] or i % installed == 0]           # held-out files stay all
    with ProcessPoolExecutor(workers or max(1, (os.cpu_count() or 2) - 1)) as processes:
        for done in as_completed([processes.submit(run_part, j) for j in jobs(text, tokenizer, out, files, parts)]):
            for key, row in done.result().items():
                total[key] = [a + b for a, b in zip(total.get(key, [0, 0, 0]), row)]
    report = dict(seconds=round(time.time() - t0, 1), documents_bytes_tokens=total, packages=table)
    with open(os.path.join(out, "report.json"), "w") as f:
        json.dump(report, f)
    return report


def tokenizer_sample(text, seed=2, per_group=5_000_000, with_installed=True):
    """Texts to train the tokenizer on: about as much of every group, Chinese three times as much."""
    rng, pools = random.Random(seed), {}
    parts = [corpus.documents(p, seed=os.path.basename(p).split(".")[0]) for p in sorted(glob.glob(os.path.join(text, "*.jsonl.xz")))]
    if with_installed:
        files, _ = harvest.listing()
        rng.shuffle(files)
        parts.append(list(harvest.documents(files[:4000])))
    parts.append([("tasks", "train", s) for s in corpus.synthetic(77, 12000)])
    for docs in parts:
        for group, split, spans in docs:
            if split == "train":
                pools.setdefault(group, []).append([t for t, _ in spans if not t.startswith("<|")])
    for group, docs in sorted(pools.items()):
        size, limit = 0, per_group * (2 if group.startswith("zh") else 1)
        for pieces in rng.sample(docs, len(docs)):
            if size > limit:
                break
            size += sum(map(len, pieces))
            yield from pieces
