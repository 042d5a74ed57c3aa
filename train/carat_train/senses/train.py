"""Train the model that sees and hears: python -m carat_train senses --carry DIR --tokenizer FILE --out DIR --seconds S."""
import json
import math
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import torch

from ..optim import schedule
from ..target import Log, autocast, device_name, eager, sync
from . import data, export
from .batches import BUDGETS, FULL, TINY, Batches, Pool, Text, padded
from .marks import Marker
from .network import Senses
from .shapes import PRESETS
from .steps import Steps

COLUMNS = ("pictures", "sounds", "text", "norm", "marks", "marked")     # of a step's losses


class Trainer:
    """Network, optimizer and the step; compiled part by part where that works."""

    def __init__(self, shape, lr, other_lr, log, compiled, start=""):
        torch.manual_seed(7)
        torch.set_float32_matmul_precision("high")
        self.device, self.log = device_name(), log
        self.model = (export.load(start).train() if start else Senses(shape)).to(self.device).place(1024, self.device)
        self.marker = Marker(self.model.s.eyes.d).to(self.device)
        self.steps = Steps(self, lr, other_lr)
        self.head = self.head_loss
        if compiled:
            torch._dynamo.config.recompile_limit = 64
            self.compile()

    def compile(self):
        m = self.model
        for block in [*m.language_model.layers, *m.vision_tower.encoder["layers"], *m.audio_tower.layers, m.audio_tower.subsample_conv_projection]:
            block.forward = torch.compile(block.forward, dynamic=False)
        self.head, self.marker.forward = torch.compile(self.head_loss, dynamic=False), torch.compile(self.marker.forward, dynamic=False)

    def head_loss(self, z, wanted):
        """Loss of each target, and whether the best token is the wanted one."""
        logits = self.model.logits(z)
        return torch.nn.functional.cross_entropy(logits, wanted, reduction="none"), logits.detach().argmax(-1) == wanted

    def look(self, b):
        m = self.model
        with autocast():
            seen = m.vision_tower.blocks(b["pixels"], b["patch_at"], b["pictures"])
            marked = self.marker(seen, b["marks"], b["cells"])
            soft = torch.cat((m.embed_vision(m.vision_tower.pooled(seen)), m.hear(b["mel"], b["frames"])))
            z = m.language_model(b["ids"], b["pos"], b["packed"], soft, b["source"])
            return (*self.head(z[b["at"]], b["wanted"]), *marked)


def start_workers(out, carry, tokenizer, count, text_parts, sounds):
    """Processes that make blocks; text first, for it is needed whole. Returns (blocks' folder, processes)."""
    blocks, tokens = os.path.join(out, "blocks"), os.path.join(out, "text")
    for d in (blocks, tokens):
        os.makedirs(d, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    procs = [context.Process(target=data.work, args=(blocks, 100 + i, carry, tokenizer, 200, sounds), daemon=True) for i in range(max(1, count))]
    corpus = os.path.join(carry, "text")
    jobs = [os.path.join(corpus, n) for n in sorted(os.listdir(corpus)) if n.endswith(".xz")] if os.path.isdir(corpus) else []
    jobs += [(5000 + i, 6000 if count > 2 else 60) for i in range(text_parts)]
    with ProcessPoolExecutor(max(1, count), context) as pool:
        for _ in pool.map(data.text, [(j, tokens, tokenizer, os.path.join(corpus, "pool.json")) for j in jobs]):
            pass
    for p in procs:
        p.start()
    return blocks, tokens


def budget_of(step, x):
    """Rows of a picture: few at first, when a step should hold many pictures; the larger ones most of the rest."""
    order = [70, 140, 70, 280] if x < 0.5 else [280, 140, 280, 70]
    return order[step % 4]


def marks_of(x):
    """Weight of the marks' loss: the eyes first learn what is where, then what is asked."""
    return 0.6 if x < 0.5 else 0.6 - (x - 0.5)


@torch.no_grad()
def accuracy(trainer, batches, folder, budget):
    """{"held.read": share of answers that are right from their first to their last token, ...} of the held-out blocks."""
    z, right, count = batches.z, {}, {}
    trainer.model.eval()
    for name in sorted(os.listdir(folder)):
        side, kind = name.split(".")[:2]
        b = data.read(os.path.join(folder, name))
        if kind == "sound":
            b["media"] = padded(b["media"], b["lengths"], z.samples)
        b["media"] = torch.from_numpy(b["media"]).to(trainer.device)
        most = z.pictures[budget] if kind == "picture" else z.sounds
        for at in range(0, len(b["lengths"]), most):
            pick = [(b, list(range(at, min(at + most, len(b["lengths"])))))]
            plan, media = batches.plan(pick if kind == "picture" else [], pick if kind == "sound" else [], budget)
            tensors, where = batches.tensors(plan, *media)
            with eager():
                good = trainer.look(tensors)[1]
            good = good.cpu().numpy()[:len(where)]
            tasks, last = plan.tasks[where], -9
            answers = []
            for ok, task, i in zip(good, tasks, where):
                if i != last + 1:
                    answers.append([task, True])
                answers[-1][1] &= bool(ok)
                last = i
            for task, ok in answers:
                key = f"{side}.{data.TASKS[task - 1]}"
                right[key], count[key] = right.get(key, 0) + ok, count.get(key, 0) + 1
    trainer.model.train()
    return {k: [right[k], count[k]] for k in sorted(count)}


def first_step(trainer, make):
    """Compile by a step whose gradients are thrown away."""
    t0 = time.time()
    each, _, marked, _ = trainer.look(make())
    ((each * 0).sum() + 0 * marked).backward()
    for p in trainer.steps.params:
        p.grad = None
    sync()
    trainer.log.say(event="compiled", took=round(time.time() - t0, 1))


def built(shape, lr, other_lr, log, batches, start, graph):
    """A trainer that runs here: compiled and recorded if that works, else as it is."""
    on_gpu = device_name() == "cuda"
    for compiled in ([True, False] if on_gpu else [False]):
        try:
            trainer = Trainer(shape, lr, other_lr, log, compiled, start)
            budgets = list(batches.z.pictures)
            first_step(trainer, lambda: batches.step(budgets[0]))
            first_step(trainer, lambda: batches.step(budgets[-1]))
            break
        except Exception as e:                               # slower is better than nothing
            log.say(event="not compiled" if compiled else "failed", why=repr(e)[:2000])
            if not compiled:
                raise
    if on_gpu and graph:
        t0 = time.time()
        trainer.steps.record(lambda: batches.step(budgets[0]), batches.pool.hold)
        log.say(event="recorded", took=round(time.time() - t0, 1))
    return trainer


def memory():
    return {"gigabytes": round(torch.cuda.max_memory_allocated() / 1e9, 1)} if torch.cuda.is_available() else {}


def run(trainer, batches, seconds, log, save, small, hold):
    """Steps until the time is over; the rate goes by the clock."""
    t0, done, sums, marks = time.time(), 0, None, [0.25, 0.6]
    good = {k: v.detach().clone() for k, v in trainer.model.state_dict().items()}
    batches.noise = True
    while True:
        x = (time.time() - t0) / seconds
        if x >= 1:
            break
        budget = [70, 140][done % 2] if small else budget_of(done, x)
        losses = trainer.steps.step(batches.step(budget, x > 0.5), schedule(x, hold=hold), marks_of(x))
        done, sums = done + 1, losses if sums is None else sums + losses
        if done % 50 == 0:
            ahead = time.time()
            sync()
            ahead = time.time() - ahead                      # nothing: the thread that starts kernels is what it waits for
            mean = (sums / 50).tolist()
            log.say(step=done, x=round(x, 3), media=batches.pool.seen, ahead=round(ahead, 3), **memory(), **{g: round(v, 4) for g, v in zip(COLUMNS, mean)})
            sums = None
            if not all(math.isfinite(v) for v in mean):
                trainer.model.load_state_dict(good)
                trainer.steps.forget()
                trainer.steps.lr, trainer.steps.other_lr = trainer.steps.lr / 2, trainer.steps.other_lr / 2
                log.say(event="diverged", new_rate=trainer.steps.lr)
            elif marks and x > marks[0]:
                marks.pop(0)
                good = {k: v.detach().clone() for k, v in trainer.model.state_dict().items()}
                log.say(event="heldout", step=done, **save(False))
    sync()
    log.say(event="trained", steps=done, seconds=round(time.time() - t0, 1), media=batches.pool.seen)


def train(carry, tokenizer, out, preset="carat-demo-e", seconds=400.0, workers=0, lr=5e-3, other_lr=2e-3, small=False, ship="", start="", deadline=1e9, hold=0.45,
          sounds=3, graph=1):
    """carry: fonts/, espeak/ and text/. ship: where weights in pieces and the log go, at quarters and at the end.
    start: an exported directory to go on from. deadline: seconds from now after which no step is made.
    sounds: each so many blocks one is of speech. graph: 1, where there is a GPU its steps are recorded."""
    sys.setswitchinterval(0.0005)
    log = Log(out)
    os.makedirs(ship or out, exist_ok=True)
    sizes, count = (TINY if small else FULL), workers or max(1, (os.cpu_count() or 2) - 2)
    blocks, tokens = start_workers(out, carry, tokenizer, count, 2 if small else max(4, count), sounds)
    log.say(event="text")
    held = os.path.join(out, "heldout")
    os.makedirs(held, exist_ok=True)
    data.held_out(held, 777, carry, tokenizer, *((2, 6) if small else (24, 192)))
    pool = Pool(blocks, device_name())
    pool.wait(2 if small else 24)
    log.say(event="data", media=pool.seen)
    batches = Batches(pool, Text(tokens), sizes, device_name(), kernel="flash" if device_name() == "cuda" else "plain")
    with open(tokenizer, encoding="utf-8") as f:
        shape = replace(PRESETS[preset], vocab=len(json.load(f)["model"]["vocab"]))
    trainer = built(shape, lr, other_lr, log, batches, start, graph)
    pool.training, seconds = True, min(seconds, deadline - (time.time() - log.t0))

    def save(last=True):
        batches.noise = False
        budgets = [b for b in BUDGETS if b in sizes.pictures]
        result = {str(b): accuracy(trainer, batches, held, b) for b in (budgets if last else budgets[-1:])}
        export.export({k: v.detach().cpu() for k, v in trainer.model.state_dict().items()}, tokenizer, shape, os.path.join(out, "hf"))
        if ship:
            from ..pieces import pack
            pack(os.path.join(out, "hf", "model.safetensors"), os.path.join(ship, "senses.safetensors"))
            with open(os.path.join(ship, "log.jsonl"), "w") as f:
                f.write(open(os.path.join(out, "log.jsonl")).read())
        batches.noise = True
        return result
    run(trainer, batches, seconds, log, save, small, hold)
    open(os.path.join(blocks, "stop"), "w").close()
    pool.going = False
    result = save()
    log.say(event="done", **result)
    for folder in filter(None, (out, ship)):
        data.write_json(os.path.join(folder, "accuracy.json"), result)
    if ship:
        with open(os.path.join(ship, "log.jsonl"), "w") as f:
            f.write(open(os.path.join(out, "log.jsonl")).read())
    return json.dumps(result)
