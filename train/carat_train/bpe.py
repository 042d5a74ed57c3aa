"""The tokenizer in plain Python, for machines without the tokenizers package: slow, same ids.

No merge of this vocabulary crosses a newline or joins a letter to a following space, so text is cut there first.
"""
import json
import re

from .tokenizer import SPACE


class Tokenizer:
    def __init__(self, state):
        self.vocab = state["model"]["vocab"]
        self.names = {t["content"]: t["id"] for t in state["added_tokens"]}
        merges = [m if isinstance(m, list) else m.split(" ") for m in state["model"]["merges"]]
        self.rank = {tuple(m): i for i, m in enumerate(merges)}
        self.piece = {i: p for p, i in self.vocab.items()}
        self.piece.update({i: p for p, i in self.names.items()})
        self.special = re.compile("(" + "|".join(re.escape(n) for n in sorted(self.names, key=len, reverse=True)) + ")")
        self.cut = re.compile(f"\n+|(?:{SPACE})*[^{SPACE}\n]+|{SPACE}+")
        self.cache = {}

    @classmethod
    def from_file(cls, path):
        with open(path, encoding="utf-8") as f:
            return cls(json.load(f))

    def token_to_id(self, name):
        return self.names.get(name, self.vocab.get(name))

    def encode(self, text, add_special_tokens=False):
        ids = []
        for part in self.special.split(text):
            if part in self.names:
                ids.append(self.names[part])
            else:
                for word in self.cut.findall(part.replace(" ", SPACE)):
                    ids += self.word(word)
        return Encoding(ids)

    def encode_batch_fast(self, texts, add_special_tokens=False):
        return [self.encode(t) for t in texts]

    def word(self, word):
        if word not in self.cache:
            parts = list(word)
            while len(parts) > 1:
                best = min(range(len(parts) - 1), key=lambda i: self.rank.get((parts[i], parts[i + 1]), 1 << 30))
                if (parts[best], parts[best + 1]) not in self.rank:
                    break
                parts[best:best + 2] = [parts[best] + parts[best + 1]]
            ids = []
            for p in parts:
                ids += [self.vocab[p]] if p in self.vocab else [self.vocab[f"<0x{b:02X}>"] for b in p.encode()]
            self.cache[word] = ids
        return self.cache[word]

    def decode(self, ids, skip_special_tokens=False):
        out = b""
        for i in ids:
            p = self.piece[i]
            if i in self.names.values():
                out += b"" if skip_special_tokens else p.encode()
            elif re.fullmatch("<0x[0-9A-F]{2}>", p):
                out += bytes([int(p[3:5], 16)])
            else:
                out += p.replace(SPACE, " ").encode()
        return out.decode("utf-8", "replace")


class Encoding:
    def __init__(self, ids):
        self.ids = ids
