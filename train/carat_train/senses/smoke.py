"""The model that sees and hears at tiny scale: blocks by a seed, a few steps, exported, and the same logits from carat."""
import json
import os
import random
import subprocess
import types
import wave
from dataclasses import replace

import numpy as np
import torch

from . import batches, data, ears, export, eyes, from_gguf, speech, texts, train
from .packed import Packed
from .shapes import MEDIA, PRESETS, RATE

FACES = "/usr/share/fonts/truetype/dejavu"


class Hum:
    """Stands in for a voice where espeak-ng is not installed."""

    def say(self, rng, text):
        t = np.arange(RATE // 8 * max(1, len(text) // 4)) / RATE
        return (8000 * np.sin(2 * np.pi * rng.uniform(150, 900) * t)).astype(np.int16)


def voice():
    try:
        return speech.Voice()
    except (OSError, RuntimeError):
        return Hum()


def run(at, tokenizer, carat=""):
    """at: a folder. Returns the mean losses of the first and the last steps."""
    rng, speller, folder = random.Random(3), data.Speller(tokenizer), f"{at}/senses"
    os.makedirs(folder)
    blocks = {"picture": [data.block(rng, speller, "picture", texts.Fonts(FACES), size=(96, 96), count=2, marked=True)],
              "sound": [data.block(rng, speller, "sound", voice=voice(), count=4)]}
    spoken = blocks["sound"][0]
    spoken["media"], spoken["lengths"] = batches.padded(spoken["media"], spoken["lengths"], RATE), np.minimum(spoken["lengths"], RATE)
    for b in blocks.values():
        b[0].update((k, torch.from_numpy(b[0][k])) for k in ("media", "marks") if k in b[0])
    sizes = batches.Sizes({16: 2}, 2, 4, 1024, 512, seconds=1.0)
    drawn = batches.Batches(types.SimpleNamespace(blocks=blocks), None, sizes, "cpu")
    with open(tokenizer, encoding="utf-8") as f:
        shape = replace(PRESETS["smoke-e"], vocab=len(json.load(f)["model"]["vocab"]))
    trainer = train.Trainer(shape, 5e-3, 3e-3, None, False)
    losses = [trainer.steps.step(drawn.step(16), 1.0, 0.5)[:2].mean().item() for _ in range(6)]
    assert losses[-1] < losses[0], f"the loss does not fall: {losses}"
    export.export(trainer.model.state_dict(), tokenizer, shape, folder)
    if carat:
        same_logits(folder, blocks, carat, tokenizer)
    return losses[0], losses[-1]


def same_logits(folder, blocks, carat, tokenizer):
    """Training code and program agree on a picture and a sound."""
    from PIL import Image
    model = export.load(folder)
    height, width, rows = eyes.size_of(96, 96, 70)
    shown = eyes.resize(blocks["picture"][0]["media"][:1], height, width).mul(255).round().byte()    # at the tower's size: no resizing to differ in
    Image.fromarray(shown[0].numpy()).save(f"{folder}/a.png")
    sound = blocks["sound"][0]["media"][0, :RATE // 2]
    with wave.open(f"{folder}/b.wav", "wb") as f:
        f.setparams((1, 2, RATE, 0, "NONE", ""))
        f.writeframes(sound.numpy().tobytes())
    heard = ears.tokens_of(len(sound))
    ids = [2, 15, MEDIA["<|image>"]] + [MEDIA["<|image|>"]] * rows + [MEDIA["<image|>"], 60, MEDIA["<|audio>"]] + [MEDIA["<|audio|>"]] * heard + [MEDIA["<audio|>"], 70, 16]
    with open(f"{folder}/ids.json", "w") as f:
        json.dump(ids, f)
    logits_of = lambda model, out: subprocess.run(                                # noqa: E731
        [carat, "eval", "logits", "-m", model, "--tokens", f"{folder}/ids.json", "--image", f"{folder}/a.png", "--audio", f"{folder}/b.wav", "--image-tokens", "70",
         "--device", "cpu", "--out", out], check=True)
    logits_of(folder, f"{folder}/o.npy")
    with torch.no_grad():
        ids = torch.tensor(ids)
        there = (ids == model.s.image_id) | (ids == model.s.audio_id)
        whole = lambda n: Packed(torch.tensor([0, n]), n)                         # noqa: E731
        pixels, at = eyes.patches(eyes.resize(shown, height, width))
        mel = ears.log_mel(sound[None].float() / 32768, ears.mel_filters())
        soft = torch.cat((model.see(pixels, at, whole(len(at))), model.hear(mel, torch.tensor([mel.shape[1]]))[:heard]))
        z = model.language_model(ids, torch.arange(len(ids)), whole(len(ids)), soft, torch.where(there, there.long().cumsum(0) - 1, torch.full_like(ids, -1)))
        mine = model.logits(z).numpy()
    worst = np.abs(np.load(f"{folder}/o.npy") - mine).max() / mine.std()
    assert worst < 1e-3, f"logits differ by {worst} of their spread"
    for extra in ([f"{folder}/text.gguf", "--type", "q8_0"], [f"{folder}/mmproj.gguf", "--mmproj", "--type", "q8_0"]):
        subprocess.run([carat, "convert", folder, *extra], check=True, stdout=subprocess.DEVNULL)
    logits_of(f"{folder}/text.gguf", f"{folder}/q.npy")                           # its towers in q8_0 lie beside it
    rough = np.abs(np.load(f"{folder}/q.npy") - mine).max() / mine.std()
    assert rough < 0.5, f"logits of the quantized files differ by {rough} of their spread"
    from_gguf.export_hf(f"{folder}/text.gguf", f"{folder}/mmproj.gguf", tokenizer, f"{folder}/back", model.s)
    back = export.load(f"{folder}/back").state_dict()
    for name, x in model.state_dict().items():
        assert (x - back[name]).abs().max() <= 0.01 * x.abs().max(), f"{name} is another when it comes back"
