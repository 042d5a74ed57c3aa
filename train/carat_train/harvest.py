"""Code and technical prose from permissively licensed packages that are installed on the training machine.

Python packages by the licence in their metadata, the Python standard library (PSF licence), CUDA's C++ core libraries
(Apache 2.0 with LLVM exceptions). Held out by package. python -m carat_train.harvest prints what would be taken.
"""
import ast
import hashlib
import importlib.metadata as metadata
import os
import re
import sysconfig

CODE = (".py", ".pyi", ".h", ".hpp", ".c", ".cc", ".cpp", ".cuh", ".cu", ".cmake", ".ts", ".js", ".sh")
PROSE = (".rst", ".md")
ALLOWED = re.compile(r"\b(MIT|BSD|Apache|PSF|Python Software Foundation|ISC|Unlicense|Zlib|HPND|0BSD|BSL-1\.0|Boost Software)", re.I)
REFUSED = re.compile(r"\b(L?A?GPL|GNU|MPL|Mozilla|NVIDIA|Proprietary|CC[- ]BY|EPL|CDDL)", re.I)
CCCL = ["/usr/local/cuda/include/cccl", "/usr/local/cuda/targets/x86_64-linux/include/cccl"]
PACKAGE_LIMIT = 14_000_000                                  # bytes of one package, so that none dominates
HELD_OUT_SHARE = 24                                         # one package in so many


def licence(dist):
    m = dist.metadata
    said = [m.get("License-Expression") or ""] + [c for c in m.get_all("Classifier") or [] if c.startswith("License")]
    said = " ; ".join(x for x in said if x) or (m.get("License") or "")[:200]
    return said


def packages():
    """(name, licence, files) of every installed package that may be used."""
    for dist in sorted(metadata.distributions(), key=lambda d: (d.metadata["Name"] or "").lower()):
        name, said = (dist.metadata["Name"] or "").lower(), licence(dist)
        if not ALLOWED.search(said) or REFUSED.search(said) or name.startswith(("nvidia", "cuda")):
            continue
        files = [str(dist.locate_file(f)) for f in dist.files or [] if str(f).endswith(CODE + PROSE) and ".dist-info" not in str(f)]
        yield name, said, files
    stdlib = sysconfig.get_paths()["stdlib"]
    tops = sorted(e for e in os.listdir(stdlib) if e not in ("site-packages", "dist-packages", "__pycache__"))
    for top in tops:
        where = os.path.join(stdlib, top)
        files = [where] if top.endswith(".py") else [os.path.join(d, f) for d, _, fs in os.walk(where) for f in fs if f.endswith(CODE)]
        yield "python/" + top, "PSF", files
    for root in CCCL:
        if os.path.isdir(root):
            yield "cccl", "Apache-2.0 WITH LLVM-exception", [os.path.join(d, f) for d, _, fs in os.walk(root) for f in fs]
            break


def held_out(name):
    return hashlib.sha1(name.encode()).digest()[0] % HELD_OUT_SHARE == 0


def listing():
    """[(package, held out, path)], each file once, packages bounded; and [(package, licence, bytes)]."""
    out, table, seen = [], [], set()
    for name, said, files in packages():
        size = 0
        for path in sorted(files, key=lambda p: hashlib.sha1(p.encode()).digest()):
            real = os.path.realpath(path)
            if size > PACKAGE_LIMIT or real in seen or not os.path.isfile(real) or not 400 < os.path.getsize(real) < 150_000:
                continue
            seen.add(real)
            size += os.path.getsize(real)
            out.append((name, held_out(name), real))
        if size:
            table.append((name, said, size))
    return out, table


def usable(text):
    lines = text.splitlines()
    if len(lines) < 8 or max(map(len, lines)) > 600 or sum(map(len, lines)) / len(lines) > 110:
        return False
    return sum(c.isdigit() for c in text) < 0.25 * len(text) and sum(ord(c) < 128 for c in text) > 0.97 * len(text)


def prose_of(text):
    """Longer docstrings of a Python file, as one piece of technical prose each."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            doc = ast.get_docstring(node)
            if doc and len(doc) > 900:
                title = getattr(node, "name", "")
                yield (title + "\n\n" if title else "") + doc


def documents(files):
    """(group, split, spans) of some files of the listing; a text seen before in this call is left out."""
    seen = set()
    for _, held, path in files:
        try:
            with open(path, encoding="utf-8") as f:
                text = f.read()
        except (OSError, UnicodeDecodeError):
            continue
        key, split = hash(text), "heldout" if held else "train"
        if key in seen or not usable(text):
            continue
        seen.add(key)
        group = "docs" if path.endswith(PROSE) else "code"
        yield group, split, [(text.strip() + "\n", True), ("<eos>", True)]
        if path.endswith(".py"):
            for doc in prose_of(text):
                if hash(doc[-400:]) not in seen:
                    seen.add(hash(doc[-400:]))
                    yield "docs", split, [(doc, True), ("<eos>", True)]


def main():
    files, table = listing()
    for name, said, size in sorted(table, key=lambda r: -r[2]):
        print(f"{size / 1e6:8.2f} MB  {'held out' if held_out(name) else '        '}  {name}: {said[:70]}")
    print(f"{len(files):,} files, {sum(r[2] for r in table) / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
