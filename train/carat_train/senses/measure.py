"""What a server with the model answers to held-out pictures and sounds, by its chat API: right answers by task."""
import base64
import io
import json
import os
import random
import urllib.error
import urllib.request
import wave

from . import data, pictures, speech, texts
from .shapes import RATE

ALL = "pictures,sounds"


def url_of(image):
    from PIL import Image
    out = io.BytesIO()
    Image.fromarray(image).save(out, "PNG")
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()}}


def wav_of(sound):
    out = io.BytesIO()
    with wave.open(out, "wb") as f:
        f.setparams((1, 2, RATE, 0, "NONE", ""))
        f.writeframes(sound.tobytes())
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(out.getvalue()).decode(), "format": "wav"}}


def ask(url, part, question, extra):
    body = dict(messages=[{"role": "user", "content": [part, {"type": "text", "text": question}]}], temperature=0, max_tokens=64, **extra)
    request = urllib.request.Request(url.rstrip("/") + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json", "Authorization": "Bearer test-key"})
    try:
        with urllib.request.urlopen(request, timeout=120) as f:
            return (json.load(f)["choices"][0]["message"]["content"] or "").strip()
    except urllib.error.HTTPError as e:
        raise RuntimeError(e.read().decode()) from e


def distance(a, b):
    """Edits from one list to the other."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


def questions(carried, held, each, sounds, seed=4711):
    """(task, part, question, answer) of pictures and speech that training never saw. held: in its faces and voices (0) or in new ones (1)."""
    rng = random.Random(seed + held)
    data.words_of(carried)
    fonts, voice = texts.Fonts(os.path.join(carried, "fonts"), bool(held)), None
    for size in pictures.SIZES:
        for _ in range(each):
            image, turns = pictures.make(rng, fonts, size)
            for task, question, answer in turns:
                yield task, url_of(image), question, answer
    espeak = os.path.join(carried, "espeak")
    for _ in range(sounds):
        voice = voice or speech.Voice(espeak if os.path.isdir(espeak) else "", bool(held))
        sound, turns = speech.make(rng, voice)
        for task, question, answer in turns:
            yield task, wav_of(sound), question, answer


def measure(url, carried, held=0, each=4, sounds=48, least=0.0, show=0, image_tokens=0):
    """Prints a line by task: asked, right, errors of signs (read) or words (transcribe). False if fewer than `least` of all are right."""
    rows = {}
    for task, part, question, answer in questions(carried, held, each, sounds):
        got = ask(url, part, question, {"image_tokens": image_tokens} if image_tokens and "image_url" in part else {})
        row = rows.setdefault(task, [0, 0, 0, 0])
        cut = str.split if task in ("transcribe", "digits") else list
        row[0], row[1] = row[0] + 1, row[1] + (got == answer)
        row[2], row[3] = row[2] + distance(cut(got), cut(answer)), row[3] + len(cut(answer))
        if got != answer and show:
            show -= 1
            print(f"  {task}: {question[:40]!r} {answer!r} <- {got!r}")
    for task, (asked, right, wrong, units) in sorted(rows.items()):
        print(f"{task:12} {asked:4} asked {right:4} right {100 * right / asked:5.1f} %  error rate {100 * wrong / units:5.1f} %")
    asked, right = sum(r[0] for r in rows.values()), sum(r[1] for r in rows.values())
    print(f"{'all':12} {asked:4} asked {right:4} right {100 * right / asked:5.1f} %")
    return right >= least * asked
