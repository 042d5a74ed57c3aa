"""Blocks of pictures and speech with their chats, made by processes for as long as the training runs; text tokens.

A block is an .npz file: `media` (pictures of one size, or int16 sounds one after the other) and `lengths` of the sounds,
`tokens` (uint16, GIVEN marks what the model need not write, PLACE stands for the rows of the medium), `tasks` (uint8 per
token: 1 + its place in TASKS where the model writes), `starts` of the chats in both.
"""
import json
import os
import random
import re
import time

import numpy as np

from .. import corpus, generator, pool
from .. import tokenizer as tok_module
from ..chat_format import EMPTY_THOUGHT, render
from ..encode import GIVEN, encode_spans
from ..tokenizer import BOS
from . import pictures, speech, texts
from .shapes import MEDIA

TASKS = pictures.GROUPS + speech.GROUPS
PLACE = MEDIA["<|image|>"]                                   # for sounds, too: a block has one kind of media
PICTURES, SOUNDS = 64, 96                                    # of a block
MARKS = {"picture": ("<|image>", "<image|>"), "sound": ("<|audio>", "<audio|>")}
ABOUT = [row.split("|") for row in """Can you see pictures?|Yes. I can read short lines and tell shapes, colors, counts and places in simple pictures.
Can you hear?|Yes. I can write down short English sentences and digits that are spoken clearly.
What can you do?|I can look at simple pictures, listen to short speech, and answer easy questions.
Can you look at a picture?|Yes, please send me a picture.
Can you transcribe speech?|Yes, short and clear English speech.
What kinds of pictures do you know?|Lines of text, colored shapes and bar charts.""".split("\n")]


class Speller:
    """Chats as token arrays."""

    def __init__(self, tokenizer):
        self.tok = tok_module.from_file(tokenizer)

    def ids(self, text):
        return self.tok.encode(text, add_special_tokens=False).ids

    def chat(self, rng, kind, turns):
        """(tokens, tasks) of a chat whose first turn has the medium before the question, or behind it."""
        out, tasks = [BOS | GIVEN], [0]

        def add(ids, task=0):
            out.extend(i if task else i | GIVEN for i in ids)
            tasks.extend([task] * len(ids))
        if rng.random() < 0.05:
            add(self.ids("<|turn>system\n" + rng.choice(generator.SYSTEMS[:-1]) + "<turn|>\n"))
        for i, (task, question, answer) in enumerate(turns):
            medium = [MEDIA[MARKS[kind][0]], PLACE, MEDIA[MARKS[kind][1]]]
            if i:
                add(self.ids("<|turn>user\n" + question + "<turn|>\n"))
            elif rng.random() < 0.85:
                add(self.ids("<|turn>user\n") + medium + self.ids(question + "<turn|>\n"))
            else:
                add(self.ids("<|turn>user\n" + question) + medium + self.ids("<turn|>\n"))
            add(self.ids("<|turn>model\n"))
            add(self.ids(answer + "<turn|>"), 1 + TASKS.index(task))
            add(self.ids("\n"))
        return out, tasks


def block(rng, speller, kind, fonts=None, voice=None, size=None, count=0, marked=False):
    """The arrays of one block. marked: what is where in its pictures, too (marks.py)."""
    media, chats, marks = [], [], []
    for _ in range(count or (PICTURES if kind == "picture" else SOUNDS)):
        if marked:
            medium, turns, mark = pictures.marked(rng, fonts, size)
            marks.append(mark)
        else:
            medium, turns = pictures.make(rng, fonts, size) if kind == "picture" else speech.make(rng, voice)
        media.append(medium)
        chats.append(speller.chat(rng, kind, turns))
    return dict(**({"marks": np.stack(marks)} if marked else {}), media=np.stack(media) if kind == "picture" else np.concatenate(media), lengths=np.array([len(m) for m in media], np.int32),
                tokens=np.concatenate([np.array(t, np.uint16) for t, _ in chats]), tasks=np.concatenate([np.array(t, np.uint8) for _, t in chats]),
                starts=np.cumsum([0] + [len(t) for t, _ in chats]).astype(np.int64))


def save(path, arrays):
    np.savez(path + ".tmp.npz", **arrays)
    os.replace(path + ".tmp.npz", path)


def read(path):
    with np.load(path) as f:
        return {k: f[k] for k in f.files}


def words_of(carried):
    path = os.path.join(carried, "text", "pool.json")
    if os.path.exists(path):
        pool.use(path)


def work(out, seed, carried, tokenizer, most=200, sounds=3):
    """Blocks without end into OUT, while fewer than `most` wait there; ends when OUT/stop is there. carried: fonts/ and espeak/; each `sounds`-th is of speech."""
    os.nice(2)
    words_of(carried)
    rng, speller = random.Random(seed), Speller(tokenizer)
    fonts, voice = texts.Fonts(os.path.join(carried, "fonts")), speech.Voice(os.path.join(carried, "espeak"))
    made = 0
    while not os.path.exists(os.path.join(out, "stop")):
        if sum(n.endswith(".npz") for n in os.listdir(out)) >= most:
            time.sleep(0.1)
            continue
        kind = "sound" if (made + seed) % sounds == 0 else "picture"
        size = rng.choice(pictures.LINES if rng.random() < 0.3 else pictures.WIDE)
        save(os.path.join(out, f"{kind}.{seed}.{made}.npz"), block(rng, speller, kind, fonts, voice, size, marked=kind == "picture"))
        made += 1


def held_out(out, seed, carried, tokenizer, each=24, sounds=192):
    """Pictures and speech never trained on, and such in faces and voices never trained on: {name: path}."""
    words_of(carried)
    speller, paths = Speller(tokenizer), {}
    for name, held in (("held", False), ("new", True)):
        rng = random.Random(seed + held)
        fonts, voice = texts.Fonts(os.path.join(carried, "fonts"), held), speech.Voice(os.path.join(carried, "espeak"), held)
        for i, size in enumerate(pictures.SIZES):
            paths[f"{name}.picture.{i}"] = block(rng, speller, "picture", fonts, size=size, count=each)
        paths[f"{name}.sound"] = block(rng, speller, "sound", voice=voice, count=sounds)
    for name, arrays in paths.items():
        save(os.path.join(out, name + ".npz"), arrays)


def plain(spans):
    """Spans of a text or chat as the E models have them (no empty thought), or nothing where it is not English."""
    if any(re.search("[\u3000-\u9fff]", t) for t, _ in spans):
        return None
    return [(t.replace("42 million", "25 million"), own) for t, own in spans if t != EMPTY_THOUGHT]


def chats(seed, count):
    rng = random.Random(seed)
    kinds = 7 * [generator.plain_chat] + [generator.memory_chat, generator.named_chat, generator.thinking_chat]
    for _ in range(count):
        if rng.random() < 0.02:
            yield render({"messages": generator.turn(*rng.choice(ABOUT))})
        else:
            yield render(rng.choice(kinds)(rng))


def text(job):
    """A file of the corpus, or synthetic chats by seed, as OUT/GROUP.NAME.npy."""
    source, out, tokenizer, words = job
    if os.path.exists(words):
        pool.use(words)
    tok, by_group = tok_module.from_file(tokenizer), {}
    if isinstance(source, str):
        name = os.path.basename(source).split(".")[0]
        docs = [(group, spans) for group, split, spans in corpus.documents(source, name) if split == "train"]
    else:
        name, docs = str(source[0]), [("tasks", spans) for spans in chats(*source)]
    for group, spans in docs:
        spans = plain(spans)
        if spans:
            by_group.setdefault(group, []).append(spans)
    for group, items in by_group.items():
        np.save(os.path.join(out, f"{group}.{name}.npy"), encode_spans(tok, items))
    return {g: len(v) for g, v in by_group.items()}


def write_json(path, value):
    with open(path, "w") as f:
        json.dump(value, f)
