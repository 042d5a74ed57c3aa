#!/usr/bin/env python3
"""What each pair of cache formats costs on the demo models: the tables of docs/lab/2026-11-22-kv-evidence.md.

    scripts/kv_evidence.py OUT [--parts kld,protect,needle,acceptance] [--models carat-demo,carat-demo-moe] [--wrap nice]

Every cell is one `carat eval` command. Its result is kept in OUT, so a run that was ended goes on where it was.
"""
import argparse
import json
import pathlib
import shlex
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
FORMATS = ["f16", "fp8", "q8_0", "kv4", "tq4", "tq3", "tq3_0"]
PAIRS = [f"{k}/{v}" for k in FORMATS for v in FORMATS]
ENGLISH = ["code", "dialogue", "docs", "encyclopedia", "fiction", "tasks"]
DEPTHS = {"1K": (1280, 1024, 5), "8K": (8192, 7168, 1)}  # tokens of a window, first scored position, windows
DRAFTERS = {"mtp": 8, "dflash": 15}  # and how long their drafts are
MIXED = [f"{f}/{f}" for f in FORMATS] + ["q8_0/kv4", "q8_0/tq3", "kv4/tq3", "tq3/q8_0"]
# Tasks by length of the prompt, with so many questions each.
NEEDLES = {1024: ["single", "multikey", "tracking"], 7936: ["single", "tracking"]}
QUESTIONS = 4
# Sliding layers apart from global ones: the steps of --kv-policy auto, and each kind alone.
KINDS = ["q8_0/q8_0/q8_0/q8_0", "q8_0/kv4/q8_0/q8_0", "kv4/kv4/q8_0/q8_0", "kv4/tq3/q8_0/q8_0",
         "tq3/tq3/q8_0/q8_0", "tq3/tq3/kv4/kv4", "f16/f16/kv4/kv4", "f16/f16/tq3/tq3"]
# What protecting first and recent positions buys: global layers at these, sliding ones at q8_0.
PROTECTED = ["kv4/kv4", "kv4/tq3", "tq4/tq4", "tq3/tq3"]
PROTECTIONS = {"nothing": "", "first 4": "+sinks=4", "last 128": "+recent=128",
               "first 4, last 128": "+sinks=4+recent=128"}
NEEDLE_CACHES = ["f32", *MIXED, "tq3/tq3/q8_0/q8_0", "tq3/tq3/q8_0/q8_0+sinks=4+recent=128"]


def carat(args, *command):
    line = [*shlex.split(args.wrap), args.carat, *map(str, command)]
    return subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True).stdout


class Kept:
    """Results by cell, one JSON object a line."""

    def __init__(self, path):
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.cells = {r["cell"]: r["result"] for r in map(json.loads, lines)}

    def get(self, cell, measure):
        if cell not in self.cells:
            self.cells[cell] = measure()
            with self.path.open("a") as f:
                f.write(json.dumps({"cell": cell, "result": self.cells[cell]}) + "\n")
        return self.cells[cell]


def grid(title, value):
    print(f"\n{title}\n\n| K \\ V | " + " | ".join(FORMATS) + " |\n| --- |" + " --: |" * len(FORMATS))
    for k in FORMATS:
        print(f"| {k} | " + " | ".join(value(f"{k}/{v}") for v in FORMATS) + " |")


def float_weights(args, model):
    out = args.out / f"{model}-f16.gguf"
    if not out.exists():
        carat(args, "convert", shipped(model), out, "--type", "f16")
    return out


def shipped(model):
    return next((ROOT / "models" / model).glob("*.gguf"))


def held_out(args, depth):
    """Held-out documents of all English groups in turn, one behind another."""
    groups = json.loads((ROOT / "models/carat-demo/heldout.json").read_text())
    documents = [groups[g][i]["tokens"] for i in range(5) for g in ENGLISH]
    window, _, windows = DEPTHS[depth]
    tokens = sum(documents, [])[: window * windows]
    path = args.out / f"tokens-{depth}.json"
    path.write_text(json.dumps(tokens))
    return path


def measured(args, model, depth, caches):
    """The results of `carat eval kld` with these caches."""
    kept = Kept(args.out / f"kld-{model}-{depth}.jsonl")
    window, first, _ = DEPTHS[depth]
    command = ["eval", "kld", "-m", float_weights(args, model), "-t", args.threads, "-b", 256]
    reference = args.out / f"reference-{model}-{depth}.bin"  # of f32 caches

    def measure(pair):
        if not reference.exists():
            text = ["--tokens", held_out(args, depth), "-c", window, "--from", first]
            carat(args, *command, *text, "--save-reference", reference)
        return json.loads(carat(args, *command, "--reference", reference, "--caches", pair, "--json"))["all"]

    return {p: kept.get(p, lambda: measure(p)) for p in caches}


def kld(args, model, depth, pairs):
    cells = measured(args, model, depth, pairs)
    n = next(iter(cells.values()))["positions"]
    print(f"\n### {model}, depth {depth}: {n} positions")
    if set(PAIRS) <= set(cells):
        grid("Mean KL divergence, nats:", lambda p: f"{cells[p]['mean']:.5f}")
        grid("Same most probable token, %:", lambda p: f"{100 * cells[p]['same_top']:.1f}")
        grid("99.9 % quantile, nats:", lambda p: f"{cells[p]['p999']:.3f}")
    else:
        print("\n| K/V/sliding K/sliding V | mean | 99.9 % | same top |\n| --- | --: | --: | --: |")
        for p, c in cells.items():
            print(f"| {p} | {c['mean']:.5f} | {c['p999']:.3f} | {100 * c['same_top']:.1f} % |")


def protect(args, model, depth):
    cells = {p: {name: f"{p}/q8_0/q8_0{flags}" for name, flags in PROTECTIONS.items()} for p in PROTECTED}
    results = measured(args, model, depth, [c for row in cells.values() for c in row.values()])
    print(f"\n### {model}, depth {depth}: mean KL divergence in nats (same top token, %)\n")
    print("| global K/V, sliding q8_0 | " + " | ".join(PROTECTIONS) + " |")
    print("| --- |" + " --: |" * len(PROTECTIONS))
    for p, row in cells.items():
        texts = [f"{results[c]['mean']:.5f} ({100 * results[c]['same_top']:.1f})" for c in row.values()]
        print(f"| {p} | " + " | ".join(texts) + " |")


def needle(args, model, length):
    kept = Kept(args.out / f"needle-{model}-{length}.jsonl")
    tasks = NEEDLES[length]

    def measure(pair):
        return json.loads(
            carat(args, "eval", "needle", "-m", float_weights(args, model), "-t", args.threads, "--caches",
                  pair, "--lengths", length, "--tasks", ",".join(tasks), "--samples", QUESTIONS, "--json"))

    print(f"\n### {model}, {length} tokens: right of {QUESTIONS} each\n")
    print("| cache | " + " | ".join(tasks) + " |\n| --- |" + " --: |" * len(tasks))
    for p in NEEDLE_CACHES:
        cell = kept.get(p, lambda: measure(p))
        print(f"| {p} | " + " | ".join(str(cell[t]) for t in tasks) + " |")


def acceptance(args, model, kind):
    kept = Kept(args.out / f"acceptance-{model}-{kind}.jsonl")
    drafter = f"{model}-{kind}"

    def measure(pair):
        return json.loads(
            carat(args, "eval", "acceptance", "-m", shipped(model), "-md", shipped(drafter), "--spec", kind,
                  "-t", args.threads, "--prompts", ROOT / "models/heldout-prompts.json", "-n", 64, "--ends",
                  "--depths", DRAFTERS[kind], "--cache", pair, "--json"))

    rows = {f: kept.get(f, lambda: measure(f)) for f in ["f32", *FORMATS, "kv4/tq3"]}
    print(f"\n### {drafter}: tokens a step, drafts of {DRAFTERS[kind]}\n")
    sets = [r["prompts"] for r in rows["f32"]]
    print("| cache | " + " | ".join(sets) + " | all | places 1 to 4 |")
    print("| --- |" + " --: |" * (len(sets) + 1) + " --- |")
    for name, result in rows.items():
        lengths = [f"{r['tokens_per_step'][str(DRAFTERS[kind])]:.2f}" for r in result]
        print(f"| {name} | " + " | ".join(lengths) + " | " + overall(result) + " |")


def overall(result):
    """Tokens a step over all kinds of text, and the share of drafts that were right up to each place."""
    stats = [r["at_deepest"] for r in result]
    steps = [s["drafts"] + s["plain_steps"] for s in stats]
    drafts = [s["drafts"] for s in stats]
    mean = sum(s["accepted_length"] * n for s, n in zip(stats, steps)) / sum(steps)
    places = [sum(s["accepted_per_pos"][i] * n for s, n in zip(stats, drafts)) / sum(drafts) for i in range(4)]
    return f"{mean:.2f} | " + " ".join(f"{p:.2f}" for p in places)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--carat", default=str(ROOT / "build/release/apps/carat"))
    parser.add_argument("--parts", default="kld,protect,needle,acceptance")
    parser.add_argument("--models", default="carat-demo,carat-demo-moe")
    parser.add_argument("--threads", default=2, type=int)
    parser.add_argument("--wrap", default="", help="a command before each command")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    parts = args.parts.split(",")
    for model in args.models.split(","):
        for depth in DEPTHS:
            if "kld" in parts:
                kld(args, model, depth, PAIRS)
                kld(args, model, depth, KINDS)
            if "protect" in parts:
                protect(args, model, depth)
            (args.out / f"reference-{model}-{depth}.bin").unlink(missing_ok=True)
        if "needle" in parts:
            for length in NEEDLES:
                needle(args, model, length)
        if "acceptance" in parts:
            for kind in DRAFTERS:
                acceptance(args, model, kind)


if __name__ == "__main__":
    main()
