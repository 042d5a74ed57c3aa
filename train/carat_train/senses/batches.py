"""Steps of one fixed size: pictures, sounds and text, packed into a row. Media lie on the device, tokens on the host."""
import glob
import os
import random
import threading
import time

import numpy as np
import torch

from ..encode import GIVEN
from ..tokenizer import BOS
from . import data, ears, eyes, marks
from .packed import Packed
from .shapes import RATE

BUDGETS = (70, 140, 280)
LOW = 0.15                                                   # weight of text that the model is given
# Of a task's answers: lines have many tokens, all of them news, other answers one or two; what is learnt slowly weighs more.
WEIGHT = np.array([0.0] + [{"read": 1.0, "count": 4.0, "side": 5.0, "chart": 4.0, "value": 3.0}.get(t, 2.0) for t in data.TASKS], np.float32)


class Sizes:
    """What a step holds. pictures: {budget: how many}, in groups of one size."""

    def __init__(self, pictures, group, sounds, tokens, targets, seconds=data.speech.SECONDS, longest=1024):
        self.pictures, self.group, self.sounds, self.tokens, self.targets = pictures, group, sounds, tokens, targets
        self.samples, self.longest = int(seconds * RATE), longest
        self.patches = max(9 * b * n for b, n in pictures.items())
        self.rows = self.patches // 9
        self.per_sound = ears.tokens_of(self.samples)


FULL = Sizes({70: 144, 140: 72, 280: 40}, 8, 16, 20480, 6144)
TINY = Sizes({70: 4, 140: 2}, 2, 4, 1536, 768)


class Pool:
    """Blocks as they come; the oldest go when there are too many."""

    def __init__(self, folder, device, most=(700, 700)):
        self.folder, self.device, self.most = folder, device, dict(zip(("picture", "sound"), most))
        self.blocks, self.seen = {"picture": [], "sound": []}, 0
        self.going, self.training, self.hold = True, False, threading.Lock()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def watch(self):
        while self.going:
            found = [p for p in glob.glob(os.path.join(self.folder, "*.*.*.npz")) if not p.endswith(".tmp.npz")]
            for path in found[:4] if self.training else found:
                self.add(path)
            time.sleep(0.2 if self.training else 0.02)         # reading holds up the thread that starts kernels

    def add(self, path):
        kind, b = os.path.basename(path).split(".")[0], data.read(path)
        os.remove(path)
        if kind == "sound":
            b["media"] = padded(b["media"], b["lengths"])
        with self.hold:
            for k in ("media", "marks"):
                if k in b:
                    b[k] = torch.from_numpy(b[k]).to(self.device)
        kept = self.blocks[kind] + [b]
        self.blocks[kind] = kept[-self.most[kind]:]
        self.seen += len(b["lengths"])

    def wait(self, blocks, limit=60):
        t0 = time.time()
        while min(len(v) for v in list(self.blocks.values())) < blocks and time.time() - t0 < limit:
            time.sleep(0.1)


def padded(flat, lengths, samples=int(data.speech.SECONDS * RATE)):
    out, at = np.zeros((len(lengths), samples), np.int16), 0
    for i, n in enumerate(lengths):
        out[i, :n] = flat[at:at + n][:samples]
        at += n
    return out


class Plan:
    """One step on the host: which media, and the arrays of the row."""

    def __init__(self, sizes):
        self.z, self.at, self.segments = sizes, 0, [0]
        n = sizes.tokens
        self.ids, self.own = np.zeros(n, np.int64), np.zeros(n, np.float32)       # own: weight of predicting this token
        self.source, self.group = np.full(n, -1, np.int64), np.zeros(n, np.int8)  # group: 0 picture, 1 sound, 2 text
        self.tasks = np.zeros(n, np.uint8)

    def room(self):
        return self.z.tokens - self.at

    def add(self, tokens, group, tasks=None, first=0, rows=0):
        """A chat or a piece of text; rows first, first + 1, ... stand at its PLACE. False: it does not fit."""
        if rows:
            place = int(np.flatnonzero((tokens & (GIVEN - 1)) == data.PLACE)[0])
            tokens = np.concatenate([tokens[:place], np.full(rows, data.PLACE | GIVEN, np.uint16), tokens[place + 1:]])
            tasks = np.concatenate([tasks[:place], np.zeros(rows, np.uint8), tasks[place + 1:]])
        n = len(tokens)
        if n > self.room() or n > self.z.longest:
            return False
        span = slice(self.at, self.at + n)
        given = (tokens & GIVEN) != 0
        self.ids[span] = tokens & (GIVEN - 1)
        self.own[span] = np.where(given, LOW if group == 2 else 0.0, 1.0)
        if group == 0:
            self.own[span] *= WEIGHT[tasks]
        self.own[self.at] = 0
        self.group[span] = group
        if rows:
            self.source[self.at + place:self.at + place + rows] = np.arange(first, first + rows)
        if tasks is not None:
            self.tasks[span] = tasks
        self.at += n
        self.segments.append(self.at)
        return True

    def close(self, shares):
        """Tensors for the device. shares: of the loss, by group."""
        z = self.z
        starts = list(self.segments)
        while starts[-1] < z.tokens:                                              # what is left is sequences nobody looks at
            starts.append(min(z.tokens, starts[-1] + z.longest))
        starts = np.array(starts + [z.tokens] * (z.tokens // 24 + 2 - len(starts)), np.int32)
        pos = np.arange(z.tokens) - np.repeat(starts[:-1], np.diff(starts))
        where = np.flatnonzero(self.own)[:z.targets]
        weight = self.own[where]
        for g, share in enumerate(shares):
            mine = self.group[where] == g
            if mine.any():
                weight[mine] *= share / weight[mine].sum()
        at, w = np.arange(z.targets), np.zeros(z.targets, np.float32)          # unused targets lie apart: their gradients are summed up
        at[:len(where)], w[:len(where)] = where - 1, weight
        wanted = np.zeros(z.targets, np.int64)
        wanted[:len(where)] = self.ids[where]
        group = np.full(z.targets, 3, np.int64)
        group[:len(where)] = self.group[where]
        return dict(ids=self.ids, pos=pos, source=self.source, starts=starts, at=at, weight=w, wanted=wanted, group=group), where


class Batches:
    def __init__(self, pool, text, sizes, device, seed=1, shares=(0.75, 0.12, 0.13), kernel="plain"):
        self.pool, self.text, self.z, self.device, self.shares, self.kernel = pool, text, sizes, device, shares, kernel
        self.rng, self.filters, self.noise = random.Random(seed), ears.mel_filters(device), False

    def pick(self, kind, count):
        """(block, places in it)"""
        b = self.rng.choice(self.pool.blocks[kind])
        return b, [self.rng.randrange(len(b["lengths"])) for _ in range(count)]

    def step(self, budget, falling=False):
        z = self.z
        seen = [self.pick("picture", z.group) for _ in range(z.pictures[budget] // z.group)]
        heard = [self.pick("sound", z.sounds // 4) for _ in range(4 if self.pool.blocks["sound"] else 0)]
        plan, media = self.plan(seen, heard, budget)
        while plan.room() > 64 and self.text:
            if not plan.add(self.text.window(self.rng, falling, min(512, plan.room())), 2):
                break
        return self.tensors(plan, *media)[0]

    def plan(self, seen, heard, budget):
        """seen, heard: [(block, places in it)]; budget: rows of a picture at most."""
        z, plan, shown, rows, clips = self.z, Plan(self.z), [], 0, 0
        for b, index in seen:
            height, width, each = eyes.size_of(*b["media"].shape[1:3], budget)
            for k, i in enumerate(index):
                s = slice(b["starts"][i], b["starts"][i + 1])
                plan.add(b["tokens"][s], 0, b["tasks"][s], rows + k * each, each)
            shown.append((b["media"], index, height, width, b.get("marks")))
            rows += len(index) * each
        for b, index in heard:
            for k, i in enumerate(index):
                s = slice(b["starts"][i], b["starts"][i + 1])
                first = z.rows + (clips + k) * z.per_sound
                plan.add(b["tokens"][s], 1, b["tasks"][s], first, ears.tokens_of(int(b["lengths"][i])))
            clips += len(index)
        return plan, (shown, heard)

    def tensors(self, plan, shown, heard):
        """What the network takes, on the device, and which places of the row are predicted."""
        arrays, where = plan.close(self.shares)
        out = {k: self.upload(v) for k, v in arrays.items()}
        out["packed"] = Packed(out.pop("starts"), self.z.longest, self.kernel)
        out.update(self.look(shown))
        out.update(self.listen(heard))
        return out, where

    def upload(self, array):
        t = torch.from_numpy(array)
        return t.pin_memory().to(self.device, non_blocking=True) if self.device == "cuda" else t

    def look(self, media):
        """pixels, at and the packing of a step's pictures; marks and cells of their patches."""
        z, longest = self.z, 9 * max(BUDGETS)
        pixels, at, mark, cell, starts = [torch.zeros(0, 768, device=self.device)], [torch.zeros(0, 2, dtype=torch.int64, device=self.device)], [], [], [0]
        for block, index, height, width, drawn in media:
            index = torch.tensor(index, device=self.device)
            shown = block[index]
            p, a = eyes.patches(eyes.resize(noisy(shown) if self.noise else shown, height, width))
            pixels.append(p), at.append(a)
            each = len(p) // len(index)
            if drawn is not None:
                for to, what in zip((mark, cell), marks.of_patches(drawn[index], a[:each], height, width)):
                    to.append(what)
            else:
                mark.append(at[0].new_full((len(p),), -1)), cell.append(mark[-1])
            starts += [starts[-1] + each * (k + 1) for k in range(len(index))]
        rest = z.patches - starts[-1]
        pixels.append(pixels[0].new_zeros(rest, 768)), at.append(at[0].new_zeros(rest, 2))
        mark.append(at[0].new_full((rest,), -1)), cell.append(mark[-1])
        while starts[-1] < z.patches:
            starts.append(min(z.patches, starts[-1] + longest))
        starts += [z.patches] * (max(z.pictures.values()) + 30 - len(starts))
        return dict(pixels=torch.cat(pixels), patch_at=torch.cat(at), marks=torch.cat(mark), cells=torch.cat(cell),
                    pictures=Packed(torch.tensor(starts, dtype=torch.int32, device=self.device), longest, self.kernel))

    def listen(self, heard):
        x, n = torch.zeros(self.z.sounds, self.z.samples, device=self.device), []
        for b, index in heard:
            x[len(n):len(n) + len(index)] = b["media"][torch.tensor(index, device=self.device)].float() / 32768
            n += [ears.frames_of(int(b["lengths"][i])) for i in index]
        n += [4] * (self.z.sounds - len(n))
        return dict(mel=ears.log_mel(x, self.filters), frames=torch.tensor(n, device=self.device))


def noisy(pictures):
    """A fourth of them, as pictures.worn has it."""
    n = len(pictures)
    much = torch.rand(n, 1, 1, 1, device=pictures.device) * 7 + 2
    much = much * (torch.rand(n, 1, 1, 1, device=pictures.device) < 0.25)
    return (pictures.float() + much * torch.randn(*pictures.shape[:3], 1, device=pictures.device)).clamp(0, 255).floor().byte()


class Text:
    """Windows of token files by group: while the rate holds, then while it falls."""
    MIX = {"tasks": (0.5, 0.62), "dialogue": (0.25, 0.28), "fiction": (0.15, 0.06), "encyclopedia": (0.10, 0.04)}

    def __init__(self, folder):
        parts = {}
        for path in sorted(glob.glob(os.path.join(folder, "*.npy"))):
            parts.setdefault(os.path.basename(path).split(".")[0], []).append(np.load(path))
        self.flat = {g: np.concatenate(v) for g, v in parts.items()}
        self.opens = {g: np.flatnonzero((v & ~np.uint16(GIVEN)) == BOS) for g, v in self.flat.items()}
        self.names = [g for g in self.MIX if g in self.flat]

    def window(self, rng, falling, length):
        g = rng.choices(self.names, [self.MIX[g][falling] for g in self.names])[0]
        flat, opens = self.flat[g], self.opens[g]
        at = opens[rng.randrange(len(opens))] if g != "fiction" or rng.random() < 0.5 else rng.randrange(len(flat))
        return flat[at:at + length]
