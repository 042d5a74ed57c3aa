"""Real sentences, names and words from the corpus, for the generator: copying must not be learnt from templates alone."""
import glob
import json
import os
import random
import re
from collections import Counter

from . import corpus

EN, ZH = {"fiction", "encyclopedia"}, {"zh"}
SENTENCE = re.compile(r"[A-Z][^.!?\n]{24,150}[.!?]")
SENTENCE_ZH = re.compile(r"[\u4e00-\u9fff][\u4e00-\u9fff，、：「」0-9A-Za-z ]{8,50}[。！？]")
NAME = re.compile(r"(?<=[a-z,] )[A-Z][a-z]{2,9}\b")
WORD = re.compile(r"(?<= )[a-z]{4,9}\b")
NOT_NAMES = set("""The And But That This They There Then What When Where Which With From Have Will Would Could Should Not You
Your His Her Its Our Who How Why Yes For Was Were Are Has Had Did Does One Two Three All Any Some Many Most Other""".split())


def gather(folder, limit=60_000, seed=9):
    """{"lines", "lines_zh", "names", "words", "stories"} from the training side of the corpus files."""
    rng, lines, zh, names, words, stories = random.Random(seed), [], [], Counter(), Counter(), []
    for path in sorted(glob.glob(os.path.join(folder, "*.jsonl.xz"))):
        source = os.path.basename(path).split(".")[0]
        group = "" if source.startswith(corpus.SKIP) else corpus.group_of(source)
        if group not in EN | ZH or "poetry" in source:
            continue
        for record in corpus.read(path):
            if record["split"] == "heldout":
                continue
            text = record["text"]
            if group in ZH:
                zh += SENTENCE_ZH.findall(text)[:12]
                continue
            found = SENTENCE.findall(text)
            lines += rng.sample(found, min(len(found), 12))
            names.update(set(NAME.findall(text)) - NOT_NAMES)
            words.update(set(WORD.findall(text)))
            if source.startswith(("stories-", "fiction-gitenberg")) and 300 < len(text) < 3000:
                stories.append(text)
    return {"lines": rng.sample(lines, min(len(lines), limit)), "lines_zh": rng.sample(zh, min(len(zh), limit)),
            "names": [n for n, c in names.most_common(4000) if c > 2], "words": [x for x, c in words.most_common(6000)], "stories": stories}


def save(pool, path):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(pool, f, ensure_ascii=False)


def use(path):
    """Let the generator draw from a saved pool."""
    from . import words
    with open(path, encoding="utf-8") as f:
        words.POOL.update(json.load(f))
