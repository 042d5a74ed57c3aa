#!/bin/sh
# Runs every command that README.md and docs/operations.md show, on the demo models. Usage: scripts/doc-commands.sh [CARAT]
# A command is an indented or fenced line that begins with the program's name; ./start and ./check have tests of their own.
set -eu
cd "$(dirname "$0")/.."
carat=$(realpath "${1:-build/release/apps/carat}")
exec python3 - "$carat" README.md docs/operations.md <<'EOF'
import json, os, re, shlex, signal, subprocess, sys, tempfile, time, urllib.request

carat, pages = sys.argv[1], sys.argv[2:]
work = tempfile.mkdtemp()
demo = os.path.abspath("models/carat-demo/carat-demo-q5_k_m.gguf")
assistant = os.path.abspath("models/carat-demo-mtp/carat-demo-mtp-q8_0.gguf")
directory = os.path.abspath("tests/data/goldens/gemma4_dense")
names = {"FILE.gguf": demo, "MODEL.gguf": demo, "MODEL": demo, "DRAFTER.gguf": assistant, "HFDIR": directory,
         "OUT.gguf": os.path.join(work, "out.gguf"), "OUTDIR": os.path.join(work, "out"), "DIR": work}


def commands(page):
    """Lines of code blocks that call the program, with their line numbers."""
    fenced = False
    for number, line in enumerate(open(page, encoding="utf-8"), 1):
        if line.startswith("```"):
            fenced = not fenced
            continue
        if not (fenced or line.startswith("    ")):
            continue
        text = re.sub(r"\s+#.*", "", line.strip())
        if re.match(r"(build/release/apps/)?carat ", text):
            yield number, text


def served(arguments):
    """Starts a server, waits until it answers, ends it."""
    server = subprocess.Popen(arguments + ["--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    log = ""
    try:
        for line in server.stdout:
            log += line
            port = re.search(r"http://127\.0\.0\.1:(\d+)", line)
            if port:
                with urllib.request.urlopen(f"http://127.0.0.1:{port[1]}/health", timeout=30) as answer:
                    return answer.status == 200, log
        return False, log
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)


def run(text):
    words = [names.get(word, word) for word in shlex.split(text)]
    words[0] = carat
    if any(re.fullmatch(r"[A-Z][A-Z_./:-]+", word) for word in words):
        return None, "names something that is not here"
    if "-hf" in words or words[1] in ("pull", "serve") and "--models-dir" in words:
        return None, "needs a network or a folder"
    if words[1] == "serve":
        return served(words)
    done = subprocess.run(words, input="Hello\n", capture_output=True, text=True, timeout=300, cwd=work)
    return done.returncode == 0, done.stdout + done.stderr


failed = seen = 0
for page in pages:
    for number, text in commands(page):
        good, output = run(text)
        seen += good is not None
        print(f"{'ok  ' if good else 'left' if good is None else 'FAIL'}  {page}:{number}: {text}" +
              (f"   ({output})" if good is None else ""))
        if good is False:
            failed += 1
            print(output[-2000:])
print(f"{seen - failed} passed, {failed} failed")
sys.exit(1 if failed or not seen else 0)
EOF
