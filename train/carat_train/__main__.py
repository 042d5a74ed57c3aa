"""python -m carat_train COMMAND; --help names them, README.md says how they go together."""
import argparse
import json
import os
import sys


def main():
    p = argparse.ArgumentParser(prog="carat_train", description=__doc__)
    sub = p.add_subparsers(dest="command", required=True)

    def command(name, help, *flags, **defaults):
        c = sub.add_parser(name, help=help)
        for f in flags:
            c.add_argument("--" + f, required=True)
        for f, v in defaults.items():
            c.add_argument("--" + f.replace("_", "-"), default=v, type=type(v))
        return c
    command("thin", "copy the corpus files that are used (--every N: one record in N)", "text", "out", every=1)
    command("pool", "real sentences and names for the generator", "text", "out")
    command("tokenizer", "train the tokenizer", "text", "out", vocab=16384, alphabet=3200, installed=1)
    command("data", "gather and encode the training text (--installed N: each N-th installed file, 0: none)", "text", "tokenizer", "out", parts=64, installed=1, workers=0)
    command("target", "train a target model", "data", "out", preset="carat-demo", seconds=1500.0, steps=0, lr=6e-3,
            other_lr=2e-3, hold=0.6, mix="base", start="", save_every=150.0)
    command("from-gguf", "a .gguf of the family to a Hugging Face directory, weights dequantized", "model", "out")
    command("continue", "the target's own continuations, into the data folder", "target", "data", tokens=6_000_000, rows=512, new=96, part=0,
            seconds=1e9)
    for kind, width in (("assistant", 128), ("dflash", 0)):
        command(kind, f"train the {kind} of a target; call it again to go on after a --box of seconds", "target", "data", "out", minutes=6.0,
                steps=0, box=1e9, length=1024, rows=32, lr=4e-3, other_lr=2e-3, start="", reuse=1, threads=0, half=0, width=width, ff=512 if width else 384)
    command("acceptance", "drafts a target would take (--drafter HF)", "target", "drafter", "data", "out")
    command("heldout-prompts", "held-out prompts as text, for carat eval acceptance (--each: of a group; of chats, which end, three times as many)", "target", "data", "out", each=8)
    command("abliterate", "a target with a direction (--rank: several) removed from its weights; --search JSON --pick N: as that search's front has it",
            "target", "data", "out", rank=1, search="", pick=0)
    command("abliterate-search", "directions and strengths that cost least, as search.json and a picture (--drafter HF)", "target", "drafter", "data",
            "out", trials=120, seconds=1e9)
    command("plan", "all that is left to train, in order of value, on --gpus 0,1,2 (default: all)", "out", text="", gpus="", carat="", scale=1.0,
            stage="", gguf="../models/carat-demo/carat-demo-q5_k_m.gguf")
    command("senses", "train a model that sees and hears (--carry: fonts/, espeak/, text/; --ship: weights in pieces, each quarter)", "carry", "tokenizer", "out",
            preset="carat-demo-e", seconds=400.0, workers=0, lr=5e-3, other_lr=2e-3, ship="", small=0, start="", deadline=1e9, hold=0.45, sounds=3, graph=1)
    command("senses-from-gguf", "its shipped files back to a directory to go on from (--text, --projector: .gguf; --tokenizer: carat-demo's)", "text", "projector", "tokenizer", "out",
            preset="carat-demo-e")
    command("senses-files", "what belongs beside the unpacked weights of such a model", "tokenizer", "out", preset="carat-demo-e")
    command("senses-measure", "right answers of a server (--url) to held-out pictures and sounds (--held 1: in faces and voices never trained on)", "url", "carry",
            held=0, each=4, sounds=48, least=0.0, show=0, image_tokens=0)
    command("export", "weights to a Hugging Face directory", "weights", "tokenizer", "out", preset="carat-demo")
    command("blend", "weights between two exported directories", "base", "other", "out", share=0.5)
    command("eval", "perplexities, samples, references", "model", "data", "out", parts="perplexity,perplexity_8k,samples,documents,references")
    command("pack", "bf16 safetensors to small pieces", "source", "out")
    command("unpack", "pieces back to safetensors", "source", "out")
    command("smoke", "the whole way in a minute on a CPU (--carat PROGRAM: its files are read by it too)", carat="")
    a = p.parse_args()
    run(a)


def run(a):
    if a.command == "thin":
        from . import corpus
        corpus.thin(a.text, a.out, a.every)
    elif a.command == "pool":
        from . import pool
        pool.save(pool.gather(a.text), a.out)
    elif a.command == "tokenizer":
        from . import encode, tokenizer
        tokenizer.train(encode.tokenizer_sample(a.text, with_installed=bool(a.installed)), a.vocab, a.alphabet).save(a.out)
    elif a.command == "data":
        from . import encode
        report = encode.build(a.text, a.tokenizer, a.out, a.parts, a.installed, a.workers or None)
        print(json.dumps({k: v for k, v in report.items() if k != "packages"}), flush=True)
    elif a.command == "target":
        from . import target
        target.train(a.data, a.out, a.preset, a.seconds, a.steps, a.save_every, a.mix, lr=a.lr, other_lr=a.other_lr, hold=a.hold, start=a.start)
    elif a.command == "senses":
        from .senses import train
        print(train.train(a.carry, a.tokenizer, a.out, a.preset, a.seconds, a.workers, a.lr, a.other_lr, bool(a.small), a.ship, a.start, a.deadline, a.hold, a.sounds, a.graph))
    elif a.command == "senses-from-gguf":
        from .senses import from_gguf as senses_from
        from .senses.shapes import PRESETS
        print(senses_from.export_hf(a.text, a.projector, a.tokenizer, a.out, PRESETS[a.preset]))
    elif a.command == "senses-files":
        from .senses import export, shapes
        export.beside(a.tokenizer, shapes.PRESETS[a.preset], a.out)
    elif a.command == "senses-measure":
        from .senses import measure
        sys.exit(not measure.measure(a.url, a.carry, a.held, a.each, a.sounds, a.least, a.show, a.image_tokens))
    elif a.command == "from-gguf":
        from . import from_gguf
        print(from_gguf.export_hf(a.model, a.out))
    elif a.command == "continue":
        from . import continuations
        continuations.run(a.target, a.data, a.tokens, a.rows, a.new, a.seconds, a.part)
    elif a.command in ("assistant", "dflash"):
        from . import drafting
        shape = dict(d=a.width, ff=a.ff) if a.command == "assistant" else dict(ff=a.ff)
        over = drafting.train(a.command, a.target, a.data, a.out, a.minutes, a.steps, a.box, a.threads, shape=shape, start=a.start,
                              length=a.length, rows=a.rows, lr=a.lr, other_lr=a.other_lr, reuse=a.reuse, half=True if a.half else None)
        print("done" if over else "to be continued", flush=True)
    elif a.command == "acceptance":
        from . import acceptance
        table = acceptance.measure(a.target, {"drafter": a.drafter}, a.data, a.out)
        print("\n".join(acceptance.lines(table)))
    elif a.command == "heldout-prompts":
        from . import acceptance, continuations
        print(continuations.prompts_file(a.target, a.data, a.out, {g: a.each * (3 if g in continuations.CHATS else 1) for g in acceptance.COUNTS}))
    elif a.command == "abliterate":
        from . import abliterate
        abliterate.run(a.target, a.data, a.out, a.rank, a.search, a.pick)
    elif a.command == "abliterate-search":
        from . import abliterate_search
        abliterate_search.run(a.target, a.data, a.out, a.drafter, a.trials, a.seconds)
    elif a.command == "plan":
        from . import plan
        if a.stage:
            plan.run_stage(a.out, a.stage)
        if not a.text:
            raise SystemExit("plan: --text CORPUS is needed")
        sys.exit(not plan.run(a.text, a.out, a.gguf, a.gpus, a.carat, a.scale))
    elif a.command == "export":
        import torch
        from . import export, shapes
        export.export(torch.load(a.weights, map_location="cpu"), a.tokenizer, shapes.PRESETS[a.preset], a.out)
    elif a.command == "blend":
        from . import export
        export.blend(a.base, a.other, a.share, a.out)
    elif a.command == "eval":
        from . import evaluate
        os.makedirs(a.out, exist_ok=True)
        evaluate.run(a.model, a.data, a.out, a.parts.split(","))
    elif a.command == "pack":
        from . import pieces
        print("%d bytes of bf16 in %d bytes" % pieces.pack(a.source, a.out), flush=True)
    elif a.command == "unpack":
        from . import pieces
        pieces.unpack(a.source, a.out)
    else:
        from . import smoke
        smoke.run(a.carat)


if __name__ == "__main__":
    main()
