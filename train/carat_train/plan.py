"""All that is left to train, in order of value, in one machine: python -m carat_train plan --text CORPUS --out DIR --box 540.

Call it again until it says that all is done: a stage that is finished is passed over, a drafter that was cut off goes on.
What is finished lies in OUT/ship in pieces of at most 16 MB. A stage that fails says so and the others are still done.
"""
import json
import os
import shutil
import subprocess
import time
import traceback

from . import pieces

SECONDS = 1680.0                                            # 28 minutes in all; what each stage gets is in stages()


class Plan:
    def __init__(self, text, out, gguf, carat, scale, small):
        self.text, self.out, self.gguf, self.carat, self.scale, self.small = text, out, gguf, carat, scale, small
        os.makedirs(self.at("ship"), exist_ok=True)
        self.failed = set()

    def at(self, *names):
        return os.path.join(self.out, *names)

    def say(self, **row):
        with open(self.at("plan.jsonl"), "a") as f:
            f.write(json.dumps(dict(row, time=round(time.time(), 1))) + "\n")
        print(json.dumps(row), flush=True)

    # --- the steps; each returns true when it is finished
    def base(self):
        from . import encode, from_gguf
        print(from_gguf.export_hf(self.gguf, self.at("target")))
        encode.build(self.text, self.at("target", "tokenizer.json"), self.at("data"), **self.small.get("data", dict(parts=48)))
        return True

    def own(self, target, tokens):
        """Own continuations, in a data folder of this target that shares the texts of the common one."""
        from . import continuations
        data = self.at("data-" + target)
        os.makedirs(data, exist_ok=True)
        for name in os.listdir(self.at("data")):
            if not name.startswith("own.") and not os.path.exists(os.path.join(data, name)):
                os.symlink(os.path.abspath(self.at("data", name)), os.path.join(data, name))
        size = self.small.get("own", dict(rows=512, new=128))
        continuations.run(self.at(target), data, self.small.get("own_tokens", tokens), size["rows"], size["new"], 90 * self.scale, 0)
        return True

    def drafter(self, kind, target, name, seconds, box, **options):
        from . import drafting
        over = drafting.train(kind, self.at(target), self.at("data-" + target), self.at(name), seconds * self.scale / 60, box=box,
                              **{**options, **self.small.get(kind, {})})
        if over:
            self.ship(name, os.path.join(name, "hf"))
        return over

    def acceptance(self, target, name, *drafters):
        from . import acceptance
        acceptance.measure(self.at(target), {d: self.at(d, "hf") for d in drafters}, self.at("data"), self.at("ship", name + ".json"),
                           **self.small.get("acceptance", {}))
        return True

    def abliterate(self):
        from . import abliterate
        abliterate.run(self.at("target"), self.at("data"), self.at("abl"))
        return True

    def moe(self, seconds):
        from . import export, shapes, target
        import torch
        preset = self.small.get("moe_preset", "carat-demo-moe")
        target.train(self.at("data"), self.at("moe-run"), preset, seconds * self.scale, **self.small.get("target", {}))
        export.export(torch.load(self.at("moe-run", "target.pt"), map_location="cpu"), self.at("target", "tokenizer.json"), shapes.PRESETS[preset],
                      self.at("moe-hf"))
        shutil.copy(self.at("moe-run", "log.jsonl"), self.at("ship", "moe.log.jsonl"))
        self.ship("moe", "moe-hf")
        return self.quantized("moe-hf", "moe")

    def quantized(self, source, out, kind="q4_k_m"):
        """What ships is quantized, and drafters learn on that; without the program they learn on bf16."""
        from . import from_gguf
        if self.carat:
            path = self.at(out + ".gguf")
            subprocess.run([self.carat, "convert", self.at(source), path, "--type", kind], check=True)
            from_gguf.export_hf(path, self.at(out))
        else:
            shutil.copytree(self.at(source), self.at(out), dirs_exist_ok=True)
        return True

    def ship(self, name, folder):
        pieces.pack(self.at(folder, "model.safetensors"), self.at("ship", name + ".safetensors"))
        shutil.copy(self.at(folder, "config.json"), self.at("ship", name + ".config.json"))
        for extra in ("log.jsonl", "result.json"):
            if os.path.exists(self.at(name, extra)):
                shutil.copy(self.at(name, extra), self.at("ship", f"{name}.{extra}"))

    def stages(self):
        """(name, seconds it takes at most, the work given what is left of the box)."""
        small = dict(d=128, ff=512)
        return [
            ("base", 90, lambda b: self.base()),
            ("target-own", 100, lambda b: self.own("target", 6_000_000)),
            ("mtp", 230, lambda b: self.drafter("assistant", "target", "mtp", 190, b, shape=small)),
            ("mtp-acceptance", 30, lambda b: self.acceptance("target", "mtp-acceptance", "mtp")),
            ("dflash", 290, lambda b: self.drafter("dflash", "target", "dflash", 240, b)),
            ("dflash-acceptance", 30, lambda b: self.acceptance("target", "dflash-acceptance", "dflash")),
            ("abl", 15, lambda b: self.abliterate()),
            ("abl-own", 60, lambda b: self.own("abl", 2_500_000)),
            ("abl-mtp", 110, lambda b: self.drafter("assistant", "abl", "abl-mtp", 70, b, start=self.at("mtp", "hf"), lr=2e-3)),
            ("abl-acceptance", 30, lambda b: self.acceptance("abl", "abl-acceptance", "mtp", "abl-mtp")),
            ("moe-target", 430, lambda b: self.moe(340)),
            ("moe-own", 60, lambda b: self.own("moe", 2_500_000)),
            ("moe-mtp", 110, lambda b: self.drafter("assistant", "moe", "moe-mtp", 70, b, shape=small)),
            ("moe-dflash", 130, lambda b: self.drafter("dflash", "moe", "moe-dflash", 80, b)),
            ("moe-acceptance", 30, lambda b: self.acceptance("moe", "moe-acceptance", "moe-mtp", "moe-dflash")),
        ]

    def run(self, box):
        """True when every stage is finished or has failed."""
        t0 = time.time()
        for name, most, work in self.stages():
            done, left = self.at(name + ".done"), box - (time.time() - t0)
            if os.path.exists(done):
                continue
            resumable = name.endswith(("mtp", "dflash"))
            if left < (40 * self.scale if resumable else most * self.scale):
                self.say(stage=name, waits_for_seconds=most, left=round(left))
                return False
            began = time.time()
            try:
                over = work(left - 25 * self.scale)
            except Exception as e:                          # noqa: BLE001: the other stages do not need this one
                traceback.print_exc()
                self.say(stage=name, failed=f"{type(e).__name__}: {e}")
                self.failed.add(name)
                continue
            self.say(stage=name, finished=over, seconds=round(time.time() - began, 1))
            if not over:
                return False
            open(done, "w").close()
        return True


def run(text, out, gguf, box, carat="", scale=1.0, small=None):
    plan = Plan(text, out, gguf, carat, scale, small or {})
    over = plan.run(box)
    print(("all is done" if over else "to be continued") + (f"; failed: {', '.join(sorted(plan.failed))}" if plan.failed else ""), flush=True)
    return over
