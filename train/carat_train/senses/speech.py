"""Speech by espeak-ng's library in many voices: make(rng, voice) -> (int16 at 16 kHz, [(task, question, answer)])."""
import ctypes
import glob
import os

import numpy as np

from .. import words as w
from . import texts
from .shapes import RATE

SECONDS = 4.0
GROUPS = ["transcribe", "digits"]
ACCENTS = ["en-us", "en-us", "en", "en-gb-x-rp", "en-gb-scotland"]
VARIANTS = ["", "m1", "m2", "m3", "m4", "m6", "m7", "f1", "f2", "f3", "f4", "Alex", "Alicia", "Andrea", "Andy", "Annie", "belinda", "benjamin", "Denis", "ed", "Gene", "grandpa",
            "Hugo", "linda", "Lee", "max", "michel", "Mike", "norbert", "paul", "rob", "robert", "shelby", "steph", "travis", "victor", "zac", "Jacky", "john", "caleb"]
HELD = ["m5", "f5", "m8", "david", "Michael", "adam"]       # voices for held-out speech alone
ASK = ["Transcribe.", "Transcribe.", "What is said?", "Write down what you hear.", "What do you hear?", "Transcribe the sound.",
       "Transcribe the following speech segment in {l} into {l} text.\n\nFollow these specific instructions for formatting the answer:\n* Only output the transcription, with no "
       "newlines.\n* When transcribing numbers, write the digits, i.e. write 1.7 and not one point seven, and write 3 instead of three."]
SPEECH_NAME = [("English", "English"), ("its original language", "that language's")]
CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
RATE_KEY, PITCH, RANGE = 1, 3, 4


def library(folder=""):
    """folder: where libespeak-ng.so.1, what it needs and espeak-ng-data lie; "": what is installed."""
    if folder:
        for name in ("libpcaudio.so.0", "libsonic.so.0"):
            ctypes.CDLL(os.path.join(folder, name), ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(os.path.join(folder, "libespeak-ng.so.1") if folder else "libespeak-ng.so.1")


class Voice:
    """espeak-ng in this process; one at a time."""

    def __init__(self, folder="", held=False):
        self.lib, self.parts = library(folder), []
        self.rate = self.lib.espeak_Initialize(2, 0, folder.encode() if folder else None, 0)     # 2: synchronous, to the callback
        if self.rate <= 0:
            raise RuntimeError("espeak-ng does not start")
        self.callback = CALLBACK(self.take)
        self.lib.espeak_SetSynthCallback(self.callback)
        self.variants = HELD if held else VARIANTS

    def take(self, samples, count, _):
        if samples and count > 0:
            self.parts.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0

    def say(self, rng, text):
        """int16 at 16 kHz."""
        variant = rng.choice(self.variants)
        name = rng.choice(ACCENTS) + ("+" + variant if variant else "")
        if self.lib.espeak_SetVoiceByName(name.encode()) != 0:
            raise RuntimeError(f"no voice {name}")
        for key, value in ((RATE_KEY, rng.randint(125, 230)), (PITCH, rng.randint(30, 70)), (RANGE, rng.randint(25, 75))):
            self.lib.espeak_SetParameter(key, value, 0)
        self.parts = []
        data = text.encode() + b"\0"
        self.lib.espeak_Synth(data, ctypes.c_size_t(len(data)), 0, 1, 0, 1, None, None)
        x = np.concatenate(self.parts) if self.parts else np.zeros(0, np.int16)
        return resampled(trimmed(x), self.rate)


def trimmed(x, level=40):
    loud = np.flatnonzero(np.abs(x.astype(np.int32)) > level)
    return x[loud[0]:loud[-1] + 1] if len(loud) else x


def resampled(x, rate):
    """To 16 kHz through the spectrum, which holds nothing above 8 kHz afterwards."""
    n = int(len(x) * RATE / rate)
    if n < 2:
        return np.zeros(RATE // 4, np.int16)
    spectrum = np.fft.rfft(x.astype(np.float64))[:n // 2 + 1]
    y = np.fft.irfft(spectrum, n) * (n / len(x))
    return np.clip(np.round(y), -32768, 32767).astype(np.int16)


def words_said(rng):
    """(task, what is said, how it is written)"""
    x = rng.random()
    if x < 0.28:
        digits = [str(rng.randrange(10)) for _ in range(rng.randint(1, 6))]
        return "digits", " ".join(digits), " ".join(digits)
    if x < 0.62:
        words = [texts.word(rng, 0.15) for _ in range(rng.choice([1, 1, 1, 2, 2, 3, 4]))]
        return "transcribe", ", ".join(words) if rng.random() < 0.3 else " ".join(words), " ".join(words)
    if x < 0.68:
        name = rng.choice(texts.NAMES)
        return "transcribe", name, name
    text = texts.sentence(rng)
    return "transcribe", text, text


def room(rng, x):
    """Silence around it, other loudness, noise: int16 of at most SECONDS."""
    most = int(SECONDS * RATE)
    before = rng.randint(0, max(0, min(RATE // 3, most - len(x))))
    after = rng.randint(0, max(0, min(RATE // 3, most - len(x) - before)))
    y = np.pad(x.astype(np.float64), (before, after))[:most]
    y *= rng.uniform(0.25, 0.95) * 32767 / max(1.0, np.abs(y).max())
    if rng.random() < 0.5:
        y += np.random.default_rng(rng.getrandbits(32)).normal(0, 10 ** rng.uniform(0.5, 2.6), len(y))
    return np.clip(np.round(y), -32768, 32767).astype(np.int16)


def make(rng, voice):
    while True:
        task, said, written = words_said(rng)
        x = voice.say(rng, said)
        if RATE // 10 < len(x) < SECONDS * RATE:
            break
    spoken, language = rng.choice(SPEECH_NAME)
    ask = rng.choice(ASK).replace("in {l} into {l}", f"in {spoken} into {language}")
    return room(rng, x), [(task, ask, written)]
