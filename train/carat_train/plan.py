"""All that is left to train, in order of value, on as many GPUs as there are: python -m carat_train plan --text CORPUS --out DIR.

Every stage is a process of its own, on one GPU; a free GPU takes the first stage whose needs are done. A stage that fails or
takes twice its time is tried once more; then what needs it is left out and said so. Started again, the plan goes on where it
was. What is finished, and drafters in the middle, lie in DIR/ship in pieces of at most 16 MB; the small things in one tar.
"""
import ctypes
import glob
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import traceback

from . import pieces

SMALL = ("plan.json", "plan.jsonl", "*.log", "*/log.jsonl", "*/result.json", "*/config.json", "*/*/config.json", "*-acceptance.json",
         "*-eval/perplexity.json", "abl/direction.npy", "data/report.json")            # what small.tar holds of DIR
TAIL = 400_000                                              # bytes of a log that are kept in it
SHIP_EVERY = 150.0                                          # seconds between looks at a model in training
OVERRUN = 2.0


class Plan:
    def __init__(self, out, text="", gguf="", carat="", scale=1.0, small=None):
        self.out, self.text, self.gguf, self.carat, self.scale, self.small = out, text, gguf, carat, scale, small or {}
        os.makedirs(self.at("ship"), exist_ok=True)

    def at(self, *names):
        return os.path.join(self.out, *names)

    def say(self, **row):
        with open(self.at("plan.jsonl"), "a") as f:
            f.write(json.dumps(dict(row, time=round(time.time(), 1))) + "\n")
        print(json.dumps(row), flush=True)

    # --- the work of the stages
    def base(self):
        from . import encode, from_gguf
        print(from_gguf.export_hf(self.gguf, self.at("target")))
        encode.build(self.text, self.at("target", "tokenizer.json"), self.at("data"), parts=96, workers=os.cpu_count())

    def own(self, target, tokens):
        """Own continuations, in a data folder of this target that shares the texts of the common one."""
        from . import continuations
        data = self.at("data-" + target)
        os.makedirs(data, exist_ok=True)
        for name in os.listdir(self.at("data")):
            if not name.startswith("own.") and not os.path.exists(os.path.join(data, name)):
                os.symlink(os.path.abspath(self.at("data", name)), os.path.join(data, name))
        size = self.small.get("own", dict(rows=2048, new=128))
        continuations.run(self.at(target), data, self.small.get("own_tokens", tokens), size["rows"], size["new"], 120 * self.scale, 0)

    def drafter(self, kind, target, name, seconds, **options):
        from . import drafting, export_drafter

        def share(model):
            export_drafter.export(model, self.at(name, "now"))
            self.ship(name, os.path.join(name, "now"))
        drafting.train(kind, self.at(target), self.at("data-" + target), self.at(name), seconds * self.scale / 60, share=share,
                       **{"share_every": SHIP_EVERY, **options, **self.small.get(kind, {})})
        self.ship(name, os.path.join(name, "hf"))

    def acceptance(self, target, name, *drafters):
        from . import acceptance
        acceptance.measure(self.at(target), {d: self.at(d, "hf") for d in drafters}, self.at("data"), self.at(name + ".json"),
                           **self.small.get("acceptance", {}))

    def abliterate(self):
        from . import abliterate
        abliterate.run(self.at("target"), self.at("data"), self.at("abl"))

    def trained(self, name, preset, out, seconds, **options):
        """Another member from nothing: DIR/OUT, a Hugging Face directory."""
        from . import export, shapes, target
        import torch
        run, preset = self.at(name + "-run"), self.small.get(name + "_preset", preset)

        def share():
            export.export(torch.load(os.path.join(run, "target.pt"), map_location="cpu"), self.at("target", "tokenizer.json"),
                          shapes.PRESETS[preset], self.at(out))
            self.ship(name, out)
        target.train(self.at("data"), run, preset, seconds * self.scale, save_every=SHIP_EVERY, share=share,
                     **{**options, **self.small.get("target", {})})
        share()

    def moe(self, seconds):
        self.trained("moe", "carat-demo-moe", "moe-hf", seconds)
        self.quantized("moe-hf", "moe")

    def qwen_head(self, seconds):
        """The drafting head of carat-demo-qwen; DIR/qwen-hf is the whole model."""
        from . import export_qwen
        self.drafter("nextn", "qwen", "qwen-mtp", seconds)
        export_qwen.join(self.at("qwen"), self.at("qwen-mtp", "hf"), self.at("qwen-hf"))
        self.ship("qwen", "qwen-hf")

    def judged(self, target, name, *drafters):
        """Acceptance, and the target's own losses by distribution."""
        from . import evaluate
        self.acceptance(target, name, *drafters)
        os.makedirs(self.at(target + "-eval"), exist_ok=True)
        evaluate.run(self.at(target), self.at("data"), self.at(target + "-eval"), ("perplexity", "documents"))

    def quantized(self, source, out, kind="q4_k_m"):
        """What ships is quantized, and drafters learn on that; where the program does not run they learn on bf16."""
        from . import from_gguf
        try:
            if not self.carat:
                raise ValueError("no --carat")
            program, path, plain = os.path.abspath(self.carat), self.at(out + ".gguf"), self.at(out + "-bf16.gguf")
            libraries = os.path.join(os.path.dirname(program), "..", "lib")
            env = dict(os.environ, LD_LIBRARY_PATH=libraries) if os.path.isdir(libraries) else None
            for a, b, to in ((self.at(source), path, kind), (path, plain, "bf16")):
                done = subprocess.run([program, "convert", a, b, "--type", to], env=env, capture_output=True, text=True, timeout=120,
                                      errors="replace")
                if done.returncode:
                    raise ValueError((done.stderr or done.stdout).strip()[-600:])
            from_gguf.export_hf(plain, self.at(out))
            self.say(model=out, quantized=kind)
        except Exception as e:                              # noqa: BLE001: whatever it is, bf16 serves
            self.say(model=out, not_quantized="drafters learn on bf16", because=f"{type(e).__name__}: {e}")
            shutil.copytree(self.at(source), self.at(out), dirs_exist_ok=True)

    def ship(self, name, folder):
        pieces.pack(self.at(folder, "model.safetensors"), self.at("ship", name + ".safetensors"))

    def stages(self):
        """name: (needs, seconds it should take with start and compiling, work), in order of value."""
        small = dict(d=128, ff=512)
        return {
            "base": ((), 120, self.base),
            "target-own": (("base",), 90, lambda: self.own("target", 6_000_000)),
            "mtp": (("target-own",), 660, lambda: self.drafter("assistant", "target", "mtp", 540, shape=small)),
            "mtp-acceptance": (("mtp",), 60, lambda: self.acceptance("target", "mtp-acceptance", "mtp")),
            "dflash": (("target-own",), 760, lambda: self.drafter("dflash", "target", "dflash", 640)),
            "dflash-acceptance": (("dflash",), 60, lambda: self.acceptance("target", "dflash-acceptance", "dflash")),
            "moe-target": (("base",), 640, lambda: self.moe(480)),
            "qwen-target": (("base",), 520, lambda: self.trained("qwen", "carat-demo-qwen", "qwen", 360, short=2048, long=2048, tokens=32768, lr=5e-3)),
            "qwen-own": (("qwen-target",), 60, lambda: self.own("qwen", 2_500_000)),
            "qwen-mtp": (("qwen-own",), 260, lambda: self.qwen_head(150)),
            "qwen-acceptance": (("qwen-mtp",), 80, lambda: self.judged("qwen", "qwen-acceptance", "qwen-mtp")),
            "abl": (("base",), 60, self.abliterate),
            "abl-own": (("abl",), 60, lambda: self.own("abl", 2_500_000)),
            "moe-own": (("moe-target",), 60, lambda: self.own("moe", 2_500_000)),
            "moe-mtp": (("moe-own",), 380, lambda: self.drafter("assistant", "moe", "moe-mtp", 280, shape=small)),
            "moe-mtp-acceptance": (("moe-mtp",), 60, lambda: self.acceptance("moe", "moe-mtp-acceptance", "moe-mtp")),
            "moe-dflash": (("moe-own",), 430, lambda: self.drafter("dflash", "moe", "moe-dflash", 330)),
            "moe-dflash-acceptance": (("moe-dflash",), 60, lambda: self.acceptance("moe", "moe-dflash-acceptance", "moe-dflash")),
            "abl-mtp": (("mtp", "abl-own"), 280, lambda: self.drafter("assistant", "abl", "abl-mtp", 180, start=self.at("mtp", "hf"), lr=2e-3)),
            "abl-acceptance": (("abl-mtp",), 60, lambda: self.acceptance("abl", "abl-acceptance", "mtp", "abl-mtp")),
        }

    # --- a stage in its process
    def is_done(self, name):
        return os.path.exists(self.at(name + ".done"))

    def work(self, name):
        self.stages()[name][2]()
        open(self.at(name + ".done"), "w").close()

    def command(self, name):
        return [sys.executable, "-m", "carat_train", "plan", "--out", self.out, "--stage", name]

    def start(self, name, lane, attempt=1):
        env = dict(os.environ, CUDA_VISIBLE_DEVICES="" if lane.startswith("cpu") else lane, CARAT_TRY=str(attempt),
                   TORCHINDUCTOR_CACHE_DIR=os.path.abspath(self.at("inductor")))
        with open(self.at(name + ".log"), "ab") as log:
            return subprocess.Popen(self.command(name), stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env, start_new_session=True)

    # --- the scheduler
    def run(self, lanes, tick=0.05, refresh=60.0):
        """True when every stage is finished. lanes: GPU numbers, or "cpu", "cpu2", ..."""
        stages, tries, failed, running, shipped = self.stages(), {}, set(), {}, time.time()
        while True:
            for lane, (name, process, began) in list(running.items()):
                late = time.time() - began > OVERRUN * stages[name][1] * max(1.0, self.scale)
                if process.poll() is None and not late:
                    continue
                stop(process)
                del running[lane]
                row = dict(stage=name, gpu=lane, seconds=round(time.time() - began, 1))
                if self.is_done(name):
                    self.say(finished=True, **row)
                else:
                    tries[name] = tries.get(name, 0) + 1
                    self.say(failed="too slow" if late else f"exit {process.returncode}", tries=tries[name], log=name + ".log", **row)
                    if tries[name] == 2:
                        failed.add(name)
                self.refresh()
            for name, (needs, _, _) in stages.items():
                lost = [n for n in needs if n in failed]
                if lost and name not in failed and not self.is_done(name):
                    failed.add(name)
                    self.say(stage=name, skipped=f"needs {lost[0]}, which failed")
            for lane in lanes:
                name = None if lane in running else self.ready(stages, failed, {r[0] for r in running.values()})
                if name:
                    running[lane] = name, self.start(name, lane, tries.get(name, 0) + 1), time.time()
                    self.say(stage=name, gpu=lane, started=True)
            if not running:
                self.refresh()
                return not failed
            if time.time() - shipped > refresh:
                self.refresh()
                shipped = time.time()
            time.sleep(tick)

    def ready(self, stages, failed, busy):
        for name, (needs, _, _) in stages.items():
            if name not in failed and name not in busy and not self.is_done(name) and all(n not in busy and self.is_done(n) for n in needs):
                return name

    def refresh(self):
        """small.tar and MANIFEST anew; a reader never sees half of one."""
        with tarfile.open(self.at("small.tar.tmp"), "w") as tar:
            for path in sorted({p for pattern in SMALL for p in glob.glob(self.at(pattern))}):
                with open(path, "rb") as f:
                    data = f.read()
                data = data if len(data) < TAIL else data[-TAIL:]
                entry = tarfile.TarInfo(os.path.relpath(path, self.out))
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
        os.replace(self.at("small.tar.tmp"), self.at("ship", "small.tar"))
        names = sorted(n for n in os.listdir(self.at("ship")) if n != "MANIFEST" and not n.endswith(".tmp"))
        with open(self.at("manifest.tmp"), "w") as f:
            f.writelines(f"{os.path.getsize(self.at('ship', n))} {n}\n" for n in names)
        os.replace(self.at("manifest.tmp"), self.at("ship", "MANIFEST"))


def stop(process):
    """The stage and all it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def die_with_parent():
    """A plan that is killed takes its stages along, so that none runs twice when it is started again."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def run_stage(out, name):
    die_with_parent()
    with open(os.path.join(out, "plan.json")) as f:
        plan = Plan(out, **json.load(f))
    try:
        plan.work(name)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)                                         # whatever threads and pools are left
    sys.stdout.flush()
    os._exit(0)


def lanes_of(gpus):
    if gpus:
        return gpus.split(",")
    import torch
    return [str(i) for i in range(torch.cuda.device_count())] or ["cpu"]


def run(text, out, gguf, gpus="", carat="", scale=1.0, small=None):
    settings = dict(text=text, gguf=gguf, carat=carat, scale=scale, small=small or {})
    plan = Plan(out, **settings)
    with open(plan.at("plan.json"), "w") as f:
        json.dump(settings, f)
    over = plan.run(lanes_of(gpus))
    print("all is done" if over else "some stages failed: see plan.jsonl", flush=True)
    return over
