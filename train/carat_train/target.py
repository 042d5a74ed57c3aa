"""Train a target model: python -m carat_train target --data DIR --out DIR --seconds S."""
import contextlib
import json
import math
import os
import time

import torch

from . import batches, export
from .gemma4 import Gemma4
from .optim import Optimizer, schedule
from .qwen import Qwen
from .shapes import PRESETS, QwenShape

SHORT, LONG = 1024, 8192
LONG_EVERY = 4                                              # while the rate falls, each fourth step is of long sequences
TOKENS_PER_STEP = 65536


def device_name():
    return "cuda" if torch.cuda.is_available() else "cpu"


def compiling(saved):
    """Compile on a GPU; but not where a first try ended before it saved anything: slower is better than nothing."""
    return device_name() == "cuda" and (os.environ.get("CARAT_TRY", "1") == "1" or os.path.exists(saved))


def autocast(on=True):
    return torch.autocast(device_name(), torch.bfloat16, enabled=on and device_name() == "cuda")


def eager():
    """Compiled parts run as they were written: for a few calls in other shapes, which are not worth compiling."""
    stance = getattr(getattr(torch, "compiler", None), "set_stance", None)
    return stance("force_eager") if stance else contextlib.nullcontext()


def network(shape):
    return Qwen(shape) if isinstance(shape, QwenShape) else Gemma4(shape)


def sync():
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Trainer:
    def __init__(self, preset, short=SHORT, long=LONG, tokens=TOKENS_PER_STEP, lr=6e-3, other_lr=2e-3, seed=7, start="",
                 hold=0.6, compiled=True):
        torch.manual_seed(seed)
        torch.set_float32_matmul_precision("high")
        self.device, self.short, self.long, self.tokens = device_name(), short, long, tokens
        self.hold = hold
        self.model = (export.load(start) if start else network(PRESETS[preset])).to(self.device)
        self.model.place(max(short, long), self.device, "flash" if self.device == "cuda" else "plain")
        self.loss = self.model.loss
        if self.device == "cuda" and compiled:
            if hasattr(self.model, "compile_parts"):
                torch._dynamo.config.recompile_limit = 32
                self.model.compile_parts()
            else:
                self.loss = torch.compile(self.model.loss, dynamic=False)
        self.opt = Optimizer(self.model, lr, other_lr)

    def rows(self, length):
        return max(1, self.tokens // length)

    def step(self, ids, weight):
        with autocast():
            value = self.loss(ids, weight)
        value.backward()
        return value.detach()

    def warm_up(self):
        """Compile both lengths and time them; the weights stay as they are. Seconds per step by length."""
        took = {}
        for length in sorted({self.short, self.long}):
            ids = torch.randint(0, self.model.s.vocab, (self.rows(length), length + 1), device=self.device)
            weight = torch.ones(self.rows(length), length, device=self.device)
            for i in range(10):
                if i == 2:
                    sync()
                    t0 = time.time()
                self.step(ids, weight)
                for p in self.opt.params:
                    p.grad = None
            sync()
            took[length] = (time.time() - t0) / 8
        return took

    def length_of(self, step, total):
        return self.long if step >= self.hold * total and step % LONG_EVERY == 0 else self.short


class Log:
    """Progress as JSON lines, weights at intervals, results at the end; all written so that a reader sees whole files."""

    def __init__(self, out):
        self.out, self.t0 = out, time.time()
        os.makedirs(out, exist_ok=True)
        self.file = open(os.path.join(out, "log.jsonl"), "a", buffering=1)

    def say(self, **row):
        self.file.write(json.dumps(dict(row, t=round(time.time() - self.t0, 1))) + "\n")

    def save(self, model, name="target.pt"):
        path = os.path.join(self.out, name)
        torch.save({k: v.detach().to("cpu", torch.bfloat16 if v.ndim > 1 else torch.float32) for k, v in model.state_dict().items()}, path + ".tmp")
        os.replace(path + ".tmp", path)


def steps_for(seconds, took, hold, overhead=0.006):
    """Steps that fit: all short while the rate holds, then one long in LONG_EVERY."""
    short, long = took[min(took)] + overhead, took[max(took)] + overhead
    share = (1 - hold) / LONG_EVERY
    return int(seconds / (short * (1 - share) + long * share))


@torch.no_grad()
def quick_eval(model, held, rows=8):
    """Held-out loss by group, nats per token, in the training precision."""
    model.eval()
    out = {}
    for g, (ids, weight) in held.items():
        ids, weight = ids[:rows].to(model.norm.weight.device), weight[:rows].to(model.norm.weight.device)
        with autocast(), eager():
            out[g] = round(model.loss(ids, weight).item(), 4)
    model.train()
    return out


def train(data, out, preset="carat-demo", seconds=1500.0, steps=0, save_every=150.0, mix="base", share=None, **options):
    """options: see Trainer. share: called when weights were saved on the way. start: an exported directory to go on from, with fresh momentum and a new schedule."""
    log = Log(out)
    trainer = Trainer(preset, compiled=compiling(os.path.join(out, "target.pt")), **options)
    trainer.model.train()
    took = trainer.warm_up()
    log.say(event="compiled", seconds_per_step={str(k): round(v, 4) for k, v in took.items()})
    while not os.path.exists(os.path.join(data, "report.json")):
        time.sleep(0.2)
    tokens = batches.Tokens(data, trainer.device, mix)
    held = batches.held_out(data, trainer.short, 16)
    log.say(event="data", sizes=tokens.sizes)
    total = steps or steps_for(seconds, took, trainer.hold)
    done = run(trainer, tokens, held, log, total, seconds, save_every, share)
    log.save(trainer.model)
    with open(os.path.join(out, "result.json"), "w") as f:
        json.dump(dict(done, preset=preset, planned_steps=total, step_seconds={str(k): v for k, v in took.items()}, sizes=tokens.sizes), f)
    log.say(event="done", **done)


def run(trainer, tokens, held, log, total, seconds, save_every, share=None):
    """The steps. The schedule goes by steps; if the machine turns out slower than timed, the rest is shortened once seen."""
    t0, saved, seen, sums, done = time.time(), time.time(), 0, None, 0
    good = {k: v.detach().clone() for k, v in trainer.model.state_dict().items()}
    marks = {int(total * i / 12) for i in range(1, 13)}
    while done < total:
        x = done / total
        length = trainer.length_of(done, total)
        ids, weight = tokens.batch(trainer.rows(length), length, falling=x >= trainer.hold)
        value = trainer.step(ids, weight)
        trainer.opt.step(schedule(x, hold=trainer.hold))
        seen, done = seen + ids.shape[0] * length, done + 1
        sums = value if sums is None else sums + value
        if done % 50 == 0:
            mean = sums.item() / 50
            log.say(step=done, of=total, tokens=seen, loss=round(mean, 4))
            if not math.isfinite(mean):
                good = recover(trainer, good, log)
            elif time.time() - saved > save_every:
                log.save(trainer.model)
                if share:
                    share()
                good, saved = {k: v.detach().clone() for k, v in trainer.model.state_dict().items()}, time.time()
            sums, fits = None, project(total, done, time.time() - t0, seconds)
            if fits < total:
                log.say(event="late", steps_before=total, steps_now=fits)
                total = fits
        if done in marks or done == total:
            log.say(event="heldout", step=done, tokens=seen, **quick_eval(trainer.model, held))
    sync()
    return dict(steps=done, tokens=seen, seconds=round(time.time() - t0, 1))


def recover(trainer, good, log):
    """After a diverged step: the last good weights, fresh momentum, half the rate."""
    trainer.model.load_state_dict(good)
    trainer.opt = Optimizer(trainer.model, trainer.opt.lr / 2, trainer.opt.other_lr / 2)
    log.say(event="diverged", new_rate=trainer.opt.lr)
    return good


def project(total, done, elapsed, seconds):
    """Steps that would fit at the pace so far, if that is clearly less than planned."""
    fits = int(done * seconds / elapsed) if elapsed else total
    return fits if done > 400 and fits < 0.97 * total else total
