"""Documents and dialogues from corpus files: JSON lines, xz-compressed, {"text"} or {"messages"} with source and split."""
import glob
import json
import lzma
import os
import random
import re
import shutil

from . import chat_format, generator

GROUPS = ["code", "docs", "fiction", "encyclopedia", "dialogue", "tasks", "zh", "zh_dialogue"]
SKIP = ("novels-eltec", "stories-picture-books-other", "dialogue-xquad")          # languages the demo does not speak
THIN = {"dialogue-self-dialogue": (5, 2), "dialogue-p3-tasks": (5, 3), "zh-tang-song-poetry": (4, 1),
        "fiction-classic-books-02": (5, 4)}   # k of n records are used


def group_of(source):
    if source.startswith("dialogue-zh"):
        return "zh_dialogue"
    for start, group in (("zh-", "zh"), ("dialogue-", "dialogue"), ("fiction-", "fiction"), ("stories-", "fiction"),
                         ("encyclopedia-", "encyclopedia"), ("textbooks-", "encyclopedia"), ("news-", "encyclopedia"), ("code-", "code")):
        if source.startswith(start):
            return group
    raise ValueError(f"no group for the source {source}")


def read(path):
    with lzma.open(path, "rt", encoding="utf-8") as f:
        for line in f:
            yield json.loads(line)


def as_chat(record, rng):
    """A corpus dialogue as a chat: whole-sentence answers, some sums thought through, some system prompts."""
    messages, source, thinking = [dict(m) for m in record["messages"]], record["source"], False
    if source == "dialogue-open-trivia":
        answer = messages[-1]["content"].rstrip(".")
        messages[-1]["content"] = answer + "." if len(answer.split()) > 4 else f"The answer is {answer}."
    if source in ("dialogue-gsm8k", "dialogue-svamp") and rng.random() < 0.4:
        m = re.match(r"(?s)(.*)\n(The answer is .*)\Z", messages[-1]["content"])
        if m:
            messages[-1].update(reasoning=m[1], content=m[2])
            thinking = True
    if messages[0]["role"] != "system" and rng.random() < 0.15:
        zh = source.startswith("dialogue-zh")
        messages.insert(0, {"role": "system", "content": rng.choice(generator.ZH_SYSTEMS if zh else generator.SYSTEMS[:-1])})
    return {"messages": messages, "thinking": thinking}


def spans(record, rng):
    """Spans of one record for the encoder: every document is written by the model, only the answers of a chat are."""
    if "text" in record:
        return [(record["text"], True), ("<eos>", True)]
    return chat_format.render(as_chat(record, rng))


def documents(path, seed):
    """(group, split, spans) of every record that is used, dialogues shuffled; passages with a hidden fact go to tasks."""
    rng, out = random.Random(seed), []
    for record in read(path):
        source, held = record["source"], record["split"] == "heldout"
        if source.startswith(SKIP):
            continue
        group = group_of(source)
        out.append((group, "heldout" if held else "train", spans(record, rng)))
        if "poetry" in source:
            continue
        if group in ("fiction", "encyclopedia", "zh") and "\n\n" in record["text"] and rng.random() < 0.35:
            parts = record["text"].split("\n\n")
            n, at = min(len(parts), rng.choice([1, 2, 3, 4, 6, 10, 20, 40])), rng.randrange(len(parts))
            chat = generator.needle(rng, "\n\n".join(parts[at:at + n]))
            out.append(("tasks", "heldout" if held else "train", chat_format.render(chat)))
        for _ in range(3 if group == "zh" else 1):
            chat = None if held or "text" not in record else generator.from_text(rng, group, record["text"])
            if chat and rng.random() < 0.7:
                out.append(("zh_dialogue" if group == "zh" else "dialogue", "train", chat_format.render(chat)))
    if out and out[0][0].endswith("dialogue"):
        rng.shuffle(out)
    return out


def synthetic(seed, count):
    rng = random.Random(seed)
    return [chat_format.render(generator.make(rng)) for _ in range(count)]


def thin(folder, out, every=1):
    """Copy the corpus files that are used, large casual sources thinned, so that what travels is small.

    every: keep one record in so many, for runs on a CPU.
    """
    os.makedirs(out, exist_ok=True)
    for path in sorted(glob.glob(os.path.join(folder, "*.jsonl.xz"))):
        name = os.path.basename(path)
        n, k = THIN.get(name.split(".")[0], (1, 1))
        if name.startswith(SKIP):
            continue
        if n == k and every == 1:
            shutil.copy(path, os.path.join(out, name))
            continue
        with lzma.open(path, "rt", encoding="utf-8") as lines, lzma.open(os.path.join(out, name), "wt", encoding="utf-8") as kept:
            kept.writelines(line for i, line in enumerate(lines, 1) if i % n < k and i // n % every == 0)
