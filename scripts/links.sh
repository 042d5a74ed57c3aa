#!/bin/sh
# Every relative link and anchor in the repository's Markdown leads somewhere.
set -eu
cd "$(dirname "$0")/.."
git ls-files -co --exclude-standard '*.md' | python3 -c '
import os, re, sys
def slug(title):
    title = re.sub(r"[`*_]|\[([^\]]*)\]\([^)]*\)", lambda m: m.group(1) or "", title)
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")
bad = 0
for path in filter(None, (line.strip() for line in sys.stdin)):
    if not os.path.isfile(path):
        continue
    text = re.sub(r"(?ms)^```.*?^```", "", open(path, encoding="utf-8").read())
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = os.path.normpath(os.path.join(os.path.dirname(path), name)) if name else path
        if not os.path.exists(file):
            print(f"{path}: {target}: no such file"); bad = 1
        elif anchor and file.endswith(".md"):
            titles = [slug(t) for t in re.findall(r"(?m)^#+ (.*)$", open(file, encoding="utf-8").read())]
            if anchor not in titles:
                print(f"{path}: {target}: no such heading"); bad = 1
sys.exit(bad)'
