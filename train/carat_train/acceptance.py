"""How many drafts a target would take, with every position of its own held-out continuations as the start of a round.

AL at k drafts is 1 + the sum over i <= k of the share of rounds whose first i drafts are all right.
"""
import json
import os

import torch

from . import continuations, export, export_drafter, sample
from . import tokenizer as tok_module
from .dflash import DFlash

COUNTS = {"code": 24, "fiction": 16, "encyclopedia": 12, "dialogue": 24, "tasks": 24, "zh": 12, "zh_dialogue": 12}
LENGTHS = (1, 2, 4, 8, 15)


def rounds(target, model, texts):
    """[rounds, drafts] of texts [(prompt, continuation)] side by side, or None if all are too short."""
    reach, device = model.size if isinstance(model, DFlash) else model.depth + 1, target.norm.weight.device
    texts = [(p, c) for p, c in texts if len(c) > reach]
    if not texts:
        return None
    first, length = min(len(p) for p, _ in texts), max(len(p) + len(c) for p, c in texts)
    ids = torch.tensor([p + c + [0] * (length - len(p) - len(c)) for p, c in texts], device=device)
    target.place(length, device)
    if not isinstance(model, DFlash):
        model.place(length, device)
    taken = model.accepted(target, ids, first).float().cpu().unflatten(0, (len(texts), -1))
    return torch.cat([row[len(p) - first:len(p) + len(c) - reach + 1 - first] for row, (p, c) in zip(taken, texts)])


def summary(rows):
    share = torch.cat(rows).mean(0).tolist()
    return dict(rounds=sum(map(len, rows)), share=[round(x, 4) for x in share],
                al={k: round(1 + sum(share[:k]), 3) for k in LENGTHS if k <= len(share)})


def measure(target_folder, drafters, data, out="", counts=None, new=64, heats=(0.0, 1.0)):
    """drafters: {name: folder}. {name: {heat: {group: summary}}}; the same continuations for all."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    target = export.load(target_folder, device)
    ends = sample.end_tokens(tok_module.from_file(os.path.join(target_folder, "tokenizer.json")))
    models = {n: export_drafter.load(f, target.s).to(device) for n, f in drafters.items()}
    todo = continuations.prompts_of(data, "heldout", counts or COUNTS, seed=77)
    found = {}
    for heat in heats:
        some = [c for at in range(0, len(todo), 64)
                for c in continuations.extend(target, [p for _, p in todo[at:at + 64]], new, ends, [heat] * len(todo[at:at + 64]), seed=9 + at)]
        for (group, p), c in zip(todo, some):
            for name, model in models.items():
                got = rounds(target, model, [(p, c)])
                if got is not None:
                    found.setdefault(name, {}).setdefault(str(heat), {}).setdefault(group, []).append(got)
    table = {n: {h: {g: summary(r) for g, r in sorted(groups.items())} for h, groups in by.items()} for n, by in found.items()}
    if out:
        with open(out, "w") as f:
            json.dump(table, f, indent=1)
    return table


def lines(table):
    """The table as Markdown rows."""
    for name, by in table.items():
        for heat, groups in by.items():
            for g, r in groups.items():
                first = " ".join(f"{x:.2f}" for x in r["share"][:4])
                yield f"| {name} | {heat} | {g} | {r['rounds']} | {first} | " + " | ".join(f"{a:.2f}" for a in r["al"].values()) + " |"
