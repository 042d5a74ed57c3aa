"""Train a drafter on a target: python -m carat_train assistant|dflash --target HF --data DIR --out DIR --minutes M.

The run stops when --box seconds are over and goes on where it was when called again, until --minutes are spent.
"""
import json
import os
import time

import torch

from . import batches, export, export_drafter
from .assistant import Assistant
from .dflash import DFlash
from .nextn import Nextn
from .optim import Optimizer, schedule
from .target import Log, compiling, device_name, eager, sync

KINDS = {"assistant": Assistant, "dflash": DFlash, "nextn": Nextn}
OWN_FROM = 2 / 3                                            # of the run: from here on the target's own continuations
HOLD = 0.6
PLACED = ("rope", "mask", "anchors", "table", "length")       # what place() sets
FEW = 16                                                    # stored looks at the target before any is drawn again


class Drafting:
    def __init__(self, kind, target, data, out, shape=None, start="", length=1024, rows=32, lr=4e-3, other_lr=2e-3, blocks=64,
                 half=None, seed=7, hold=HOLD, reuse=1):
        torch.manual_seed(seed)
        torch.set_float32_matmul_precision("high")
        self.kind, self.device, self.length, self.rows, self.blocks, self.hold = kind, device_name(), length, rows, blocks, hold
        self.state = os.path.join(out, "state.pt")
        self.compiled = compiling(self.state)
        half = self.device == "cuda" if half is None else half
        self.half, self.reuse, self.store = half, reuse, []
        self.target = export.load(target, self.device).requires_grad_(False)
        if half:
            self.target.bfloat16()                          # loses nothing: the export is bf16
        self.model = export_drafter.load(start, self.target.s) if start else KINDS[kind](self.target.s, **(shape or {}))
        self.model.to(self.device).half = half
        self.replaced = getattr(self.model, "compiled", ())          # what compile() replaces of it
        self.place()
        self.tokens = batches.Tokens(data, self.device, "draft", seed=seed, low=0.0)
        self.log = Log(out)
        if kind != "dflash" and not start and not os.path.exists(self.state):
            self.adopt()
        self.opt = Optimizer(self.model, lr, other_lr)
        self.done, self.spent, self.seen = 0, 0.0, 0
        self.held = {g: v for g, v in batches.held_out(data, min(length, 256), 4).items() if v[1].sum() > 64}
        self.look, self.loss = self.plain_look, self.plain_loss
        if self.compiled:
            self.compile()
        if os.path.exists(self.state):
            self.resume()

    def adopt(self, windows=64):
        """The assistant's start, from as many windows of text; those that fit in memory at once."""
        rows, ids = max(1, min(self.rows, windows)), self.tokens.batch(windows, self.length)[0][:, :-1]
        with torch.no_grad(), self.autocast():
            z = torch.cat([self.target.trace(some)[0].float() for some in ids.split(rows)])
        torch.set_float32_matmul_precision("highest")       # it solves and inverts
        self.model.adopt(self.target, ids, z)
        torch.set_float32_matmul_precision("high")

    def place(self):
        gpu = self.device == "cuda"
        self.target.place(self.length, self.device, "flash" if gpu else "plain")
        if self.kind == "dflash":
            self.model.place(self.length, self.device, "flex" if self.compiled else "plain", self.blocks)
        else:
            self.model.place(self.length, self.device, "flash" if gpu else "plain")

    def aim(self, length):
        """New blocks for this step (DFlash): the whole block and its last prediction lie inside the window."""
        if self.kind == "dflash":
            at = torch.randperm(length - self.model.size - 1, device=self.device)[:self.blocks] + 1
            self.model.aim(at.sort().values)

    def autocast(self):
        return torch.autocast(self.device, torch.bfloat16, enabled=self.half)

    def compile(self):
        """The look at the target and the loss are graphs of their own. The assistant's chain is not one graph, which takes
        minutes to compile: its step is, and serves all depths."""
        torch._dynamo.config.recompile_limit = 32
        if hasattr(self.target, "compile_parts"):
            self.target.compile_parts()
        else:
            self.look = torch.compile(self.plain_look, dynamic=False)
        if self.kind == "dflash":
            self.loss = torch.compile(self.plain_loss, dynamic=False)
        for name in self.replaced:
            setattr(self.model, name, torch.compile(getattr(self.model, name), dynamic=False))

    def plain_look(self, ids):
        return self.model.look(self.target, ids)

    def plain_loss(self, ids, weight, seen):
        return self.model.loss(self.target, ids, weight, seen)

    def example(self, x):
        """A loss to step on. reuse > 1 (slow machines): so many steps from each look at the target, the others drawn again."""
        if self.reuse == 1:
            ids, weight = self.tokens.batch(self.rows, self.length, falling=x >= OWN_FROM)
            self.aim(self.length)
            with torch.no_grad():
                seen = self.look(ids)
            return self.loss(ids, weight, seen)
        if self.done % self.reuse == 0 or len(self.store) < FEW:
            ids, weight = self.tokens.batch(self.rows, self.length, falling=x >= OWN_FROM)
            self.aim(self.length)
            with torch.no_grad():
                self.store.append((ids, weight, self.look(ids)))
            ids, weight, seen = self.store[-1]
        else:
            ids, weight, seen = self.store[int(torch.randint(len(self.store), ()))]
        return self.loss(ids, weight, seen)

    def step(self, x):
        with self.autocast():
            value = self.example(x)
        value.backward()
        self.opt.step(schedule(x, warm=0.03, hold=self.hold))
        self.done, self.seen = self.done + 1, self.seen + self.rows * self.length
        return value.detach()

    @torch.no_grad()
    def held_out(self):
        """Held-out loss by group, not compiled; for DFlash at fixed blocks."""
        out, both = {}, (self.target, self.model)
        kept = [{k: m.__dict__[k] for k in PLACED + self.replaced if k in m.__dict__} for m in both]
        for k in self.replaced:
            self.model.__dict__.pop(k, None)
        for g, (ids, weight) in self.held.items():
            ids, weight = ids.to(self.device), weight.to(self.device)
            length = weight.shape[1]
            blocks = min(self.blocks, length // 8)
            self.target.place(length, self.device)
            if self.kind == "dflash":
                self.model.place(length, self.device, "plain", blocks)
                self.model.aim(torch.linspace(1, length - self.model.size - 1, blocks, device=self.device).long())
            else:
                self.model.place(length, self.device)
            with self.autocast(), eager():
                out[g] = round(self.plain_loss(ids, weight, self.plain_look(ids)).item(), 4)
        for m, state in zip(both, kept):                    # the same objects, or the compiled step would be compiled again
            m.__dict__.update(state)
        return out

    def save(self):
        torch.save(dict(model=self.model.state_dict(), muon=[m for _, m, _ in self.opt.muon.groups], adam=self.opt.adam.state_dict(),
                        rng=self.tokens.rng.get_state(), done=self.done, spent=self.spent, seen=self.seen), self.state + ".tmp")
        os.replace(self.state + ".tmp", self.state)

    def resume(self):
        s = torch.load(self.state, map_location=self.device)
        self.model.load_state_dict(s["model"])
        for (_, m, _), old in zip(self.opt.muon.groups, s["muon"]):
            m.copy_(old)
        self.opt.adam.load_state_dict(s["adam"])
        self.tokens.rng.set_state(s["rng"].cpu())
        self.done, self.spent, self.seen = s["done"], s["spent"], s["seen"]
        self.log.say(event="resumed", step=self.done)

    def run(self, seconds, steps=0, box=1e9, say_every=20, eval_every=0.125, save_every=60.0, share=None, share_every=150.0):
        """Until the box or the run is over; true: the run is over. The schedule goes by time spent, or by steps if given."""
        began, before, saved, shared, sums, t0 = time.time(), self.spent, time.time(), time.time(), [], None
        mark = int((self.done / steps if steps else self.spent / seconds) / eval_every)
        if self.done == 0:
            self.log.say(event="heldout", step=0, tokens=0, **self.held_out())
        while True:
            x = self.done / steps if steps else self.spent / seconds
            if x >= 1 or time.time() - began > box:
                break
            sums.append(self.step(x))
            if len(sums) == say_every:
                self.log.say(step=self.done, tokens=self.seen, loss=round(sum(v.item() for v in sums) / say_every, 4), x=round(x, 4))
                sums = []
            if t0 is None:                                  # the first step of a call compiles: not counted
                sync()
                t0 = time.time()
            self.spent = before + time.time() - t0
            if int(x / eval_every) > mark:
                mark = int(x / eval_every)
                self.log.say(event="heldout", step=self.done, tokens=self.seen, **self.held_out())
            if time.time() - saved > save_every:
                self.save()
                saved = time.time()
            if share and time.time() - shared > share_every:
                share(self.model)
                shared = time.time()
        self.save()
        if x >= 1:
            self.log.say(event="heldout", step=self.done, tokens=self.seen, **self.held_out())
        return x >= 1


def train(kind, target, data, out, minutes, steps=0, box=1e9, threads=0, save_every=60.0, share=None, share_every=150.0, **options):
    """Returns true when the whole run is done; then OUT/hf holds the drafter. share(model): called in the middle, now and then."""
    if os.path.exists(os.path.join(out, "hf", "config.json")):
        return True
    if threads:
        torch.set_num_threads(threads)
    d = Drafting(kind, target, data, out, **options)
    over = d.run(minutes * 60, steps, box, save_every=save_every, share=share, share_every=share_every)
    if over:
        export_drafter.export(d.model, os.path.join(out, "hf"))
        with open(os.path.join(out, "result.json"), "w") as f:
            json.dump(dict(kind=kind, steps=d.done, tokens=d.seen, seconds=round(d.spent, 1)), f)
    return over
