"""All training tokens on the device; batches are windows drawn by weighted group, without the host."""
import glob
import os

import numpy as np
import torch

from .encode import GIVEN
from .tokenizer import BOS

LOW = 0.15                                                  # weight of tokens the model need not produce (user turns, results)
# Share of windows by group: while the rate holds, then while it falls. "chat" is the short second stage.
MIXES = {
    "base": {"code": (0.25, 0.15), "docs": (0.06, 0.03), "fiction": (0.14, 0.09), "encyclopedia": (0.16, 0.12), "dialogue": (0.11, 0.19),
             "tasks": (0.15, 0.29), "zh": (0.10, 0.08), "zh_dialogue": (0.03, 0.05)},
    "chat": {"code": (0.09, 0.08), "docs": (0.02, 0.02), "fiction": (0.09, 0.08), "encyclopedia": (0.11, 0.10), "dialogue": (0.17, 0.18),
             "tasks": (0.40, 0.42), "zh": (0.08, 0.08), "zh_dialogue": (0.04, 0.04)},
    # Drafters: what people ask for; then mostly the target's own continuations.
    "draft": {"code": (0.18, 0.10), "docs": (0.03, 0.0), "fiction": (0.10, 0.0), "encyclopedia": (0.11, 0.0), "dialogue": (0.22, 0.12),
              "tasks": (0.24, 0.14), "zh": (0.06, 0.02), "zh_dialogue": (0.06, 0.02), "own": (0.0, 0.6)}}
AT_START = {"own": 1.0, "dialogue": 0.8, "tasks": 0.8, "zh_dialogue": 0.8, "zh": 0.3, "docs": 0.3}     # share of windows opened by a document's <bos>


def load(folder, split):
    """{group: array} of all parts found now."""
    groups = {}
    for f in sorted(glob.glob(os.path.join(folder, f"*.{split}.npy"))):
        groups.setdefault(os.path.basename(f).split(".")[0], []).append(np.load(f))
    return {g: np.concatenate(parts) for g, parts in groups.items()}


class Tokens:
    def __init__(self, folder, device, mix="base", seed=3, split="train", low=LOW):
        self.given = low
        groups = {g: v for g, v in load(folder, split).items() if g in MIXES[mix]}
        self.names, self.device = sorted(groups), device
        sizes = [len(groups[g]) for g in self.names]
        flat = np.concatenate([groups[g] for g in self.names])
        starts = [np.flatnonzero((groups[g] & ~np.uint16(GIVEN)) == BOS) for g in self.names]
        low = np.cumsum([0] + sizes)
        self.data = torch.from_numpy(flat.astype(np.int32)).to(device)
        self.low = torch.tensor(low[:-1], device=device)
        self.high = torch.tensor(low[1:], device=device)
        self.starts = torch.from_numpy(np.concatenate([s + b for s, b in zip(starts, low)])).to(device)
        count = [len(s) for s in starts]
        self.start_low = torch.tensor(np.cumsum([0] + count)[:-1], device=device)
        self.start_count = torch.tensor(count, device=device)
        self.at_start = torch.tensor([AT_START.get(g, 0.0) for g in self.names], device=device)
        share = torch.tensor([MIXES[mix][g] for g in self.names], dtype=torch.float32, device=device)
        share[:, 1] = torch.where(share[:, 1].sum() > 0, share[:, 1], share[:, 0])
        self.mix = share / share.sum(0)
        self.rng = torch.Generator(device=device).manual_seed(seed)
        self.sizes = dict(zip(self.names, sizes))

    def random(self, n):
        return torch.rand(n, device=self.device, generator=self.rng, dtype=torch.float64)

    def batch(self, rows, length, falling=False):
        """ids [rows, length + 1] and the weight [rows, length] of the predicted tokens."""
        g = torch.multinomial(self.mix[:, int(falling)], rows, replacement=True, generator=self.rng)
        low, high = self.low[g], self.high[g] - length - 1
        anywhere = low + (self.random(rows) * (high - low)).long()
        at = self.starts[self.start_low[g] + (self.random(rows) * self.start_count[g]).long()]
        at = torch.where(self.random(rows) < self.at_start[g], torch.minimum(at, high), anywhere)
        raw = self.data[at[:, None] + torch.arange(length + 1, device=self.device)]
        given = (raw[:, 1:] & GIVEN) != 0
        return (raw & (GIVEN - 1)).long(), torch.where(given, self.given, 1.0)


def held_out(folder, length, windows):
    """{group: (ids [n, length + 1], weight [n, length])} on the host: the first windows of each held-out stream.

    The weight is 1 for what the model writes and 0 for what it is given, so dialogues are judged by the answers alone.
    """
    out = {}
    for g, flat in load(folder, "heldout").items():
        n = min(windows, (len(flat) - 1) // length)
        if n:
            raw = torch.from_numpy(np.stack([flat[i * length:i * length + length + 1] for i in range(n)]).astype(np.int32))
            out[g] = (raw & (GIVEN - 1)).long(), ((raw[:, 1:] & GIVEN) == 0).float()
    return out
