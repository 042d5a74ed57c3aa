"""Turn Markdown documentation into training text: python -m carat_train.markdown DIR... --name NAME --out FILE.jsonl.xz

DIR is a checkout (or an unpacked archive) of a documentation repository whose licence allows the use. Front matter,
images, link targets, HTML and directives go; headings, paragraphs, lists and code blocks stay.
"""
import argparse
import hashlib
import json
import lzma
import os
import re

FRONT = re.compile(r"\A---\n.*?\n---\n", re.S)
COMMENT = re.compile(r"<!--.*?-->", re.S)
IMAGE = re.compile(r"!\[[^\]]*\]\([^)]*\)")
LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")
REFERENCE = re.compile(r"\[([^\]]+)\]\[[^\]]*\]")
TAG = re.compile(r"</?[a-zA-Z][^>\n]*>")
DIRECTIVE = re.compile(r"^\s*(:::|> \[!|\[!|:label:|:width:|:begin_tab|:end_tab|\[\]:|:eqlabel:|#@).*$", re.M)
HAN = re.compile(r"[\u4e00-\u9fff]")
HAN_SPACE = re.compile(r"(?<=[\u3000-\u9fff\uff00-\uffef]) +(?=[\u3000-\u9fff\uff00-\uffef])")


def clean(text):
    text = COMMENT.sub("", FRONT.sub("", text.replace("\r\n", "\n").lstrip("\ufeff")))
    parts = re.split(r"(^```.*?^```[^\n]*$)", text, flags=re.S | re.M)
    for i in range(0, len(parts), 2):                       # odd parts are code blocks, kept as they are
        p = DIRECTIVE.sub("", IMAGE.sub("", parts[i]))
        p = TAG.sub("", REFERENCE.sub(r"\1", LINK.sub(r"\1", p)))
        p = HAN_SPACE.sub("", p).replace("\\_", "_").replace("\\*", "*")
        parts[i] = re.sub(r"^\|.*\|\s*$", "", p, flags=re.M)   # tables become noise without their layout
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \t]+$", "", "".join(parts), flags=re.M)).strip()


def chinese_share(text):
    return len(HAN.findall(text)) / max(1, len(text))


def pieces(text, limit=6000):
    """Cut at paragraph ends, so that no document is much longer than `limit` characters."""
    out, size = [], 0
    for p in text.split("\n\n"):
        if out and size + len(p) > limit:
            yield "\n\n".join(out)
            out, size = [], 0
        out.append(p)
        size += len(p) + 2
    if out:
        yield "\n\n".join(out)


def documents(folders, min_chinese, limit):
    seen, total = set(), 0
    for folder in folders:
        paths = [os.path.join(d, f) for d, _, fs in os.walk(folder) for f in fs if f.endswith((".md", ".rst"))]
        for path in sorted(paths):
            text = clean(open(path, encoding="utf-8", errors="ignore").read())
            for i, piece in enumerate(pieces(text)):
                fresh = [p for p in piece.split("\n\n") if len(p) < 40 or hash(p) not in seen]
                seen.update(hash(p) for p in fresh)
                piece = "\n\n".join(fresh)
                if len(piece) < 300 or chinese_share(piece) < min_chinese or total > limit:
                    continue
                total += len(piece.encode())
                held = hashlib.sha1(path.encode()).digest()[0] < 4                # whole files, about 1.5 %
                yield {"text": piece, "split": "heldout" if held else "train"}


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("folders", nargs="+")
    p.add_argument("--name", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--min-chinese", type=float, default=0.0, help="least share of Han characters in a document")
    p.add_argument("--limit", type=int, default=10**9, help="bytes of text to keep")
    a = p.parse_args()
    count = size = 0
    with lzma.open(a.out, "wt", encoding="utf-8", preset=9 | lzma.PRESET_EXTREME) as out:
        for d in documents(a.folders, a.min_chinese, a.limit):
            count, size = count + 1, size + len(d["text"].encode())
            out.write(json.dumps(dict(d, source=a.name), ensure_ascii=False) + "\n")
    print(f"{a.name}: {count:,} documents, {size / 1e6:.1f} MB of text, {os.path.getsize(a.out) / 1e6:.2f} MB compressed")


if __name__ == "__main__":
    main()
