"""The target's own continuations: prompts of many lengths at once, with cached keys and values.

What a drafter must guess is what the target writes, not what people wrote; its last third of training is on such text.
"""
import json
import os
import time

import numpy as np
import torch

from . import batches, qwen_cache
from .encode import GIVEN
from .layers import rms, rotate
from .qwen import Qwen
from .tokenizer import BOS

CHATS = ("dialogue", "tasks", "zh_dialogue")
SHARES = {"code": 0.16, "docs": 0.02, "fiction": 0.08, "encyclopedia": 0.08, "dialogue": 0.28, "tasks": 0.26, "zh": 0.05, "zh_dialogue": 0.07}


class Cache:
    """Keys and values [B, S, heads, hd] per layer; row b holds positions 0..length[b] - 1 of its own sequence."""

    def __init__(self, model, prompts, new):
        device = model.norm.weight.device
        self.model, self.length = model, torch.tensor([len(p) for p in prompts], device=device)
        ids = torch.zeros(len(prompts), int(self.length.max()), dtype=torch.long)
        for row, p in zip(ids, prompts):
            row[:len(p)] = torch.tensor(p)
        past = [None] * len(model.layers)
        z = model.trace(ids.to(device), past=past)[0]
        self.hidden = z[torch.arange(len(prompts), device=device), self.length - 1]
        self.pairs = [tuple(torch.cat((x, x.new_zeros(x.shape[0], new, *x.shape[2:])), 1) for x in pair) for pair in past]

    def step(self, ids):
        """The next token of every row, ids [B]; the hidden behind it is in self.hidden."""
        m, pos, rows = self.model, self.length, torch.arange(len(ids), device=ids.device)
        x = m.embed(ids[:, None])
        keys = torch.arange(self.pairs[0][0].shape[1], device=ids.device)[None]
        for kind, layer, (k_all, v_all) in zip(m.kinds, m.layers, self.pairs):
            at, window = layer.self_attn, m.mask[kind].window
            cos, sin = (r[pos][:, None] for r in m.rope[kind])
            u = layer.input_layernorm(x)
            q = rotate(at.q_norm(at.q_proj(u).view(len(ids), 1, at.heads, at.hd)), cos, sin)[:, 0]
            raw = at.k_proj(u).view(len(ids), 1, at.kv, at.hd)
            v = rms(raw if at.v_proj is None else at.v_proj(u).view(len(ids), 1, at.kv, at.hd))
            k_all[rows, pos] = rotate(at.k_norm(raw), cos, sin)[:, 0].to(k_all.dtype)
            v_all[rows, pos] = v[:, 0].to(v_all.dtype)
            seen = (keys <= pos[:, None]) & ((pos[:, None] - keys < window) if window else True)
            q = q.view(len(ids), at.kv, -1, at.hd)
            scores = (q @ k_all.permute(0, 2, 3, 1).to(q.dtype)).float().masked_fill(~seen[:, None, None], float("-inf"))
            o = torch.softmax(scores, -1).to(q.dtype) @ v_all.transpose(1, 2).to(q.dtype)
            x = x + layer.post_attention_layernorm(at.o_proj(o.flatten(1)[:, None]))
            x = (x + layer.feed_forward(x)) * layer.layer_scalar.to(x.dtype)
        self.hidden, self.length = m.norm(x)[:, 0], pos + 1


@torch.no_grad()
def extend(model, prompts, new, ends, temperature, seed=1):
    """What the target writes after each prompt: lists of ids, the end token included. temperature: one per prompt."""
    device = model.norm.weight.device
    model.place(max(map(len, prompts)) + new + 1, device)
    rng = torch.Generator(device=device).manual_seed(seed)
    heat = torch.tensor(temperature, device=device)[:, None]
    kind = qwen_cache.Cache if isinstance(model, Qwen) else Cache
    cache, out, stop = kind(model, prompts, new), [], torch.tensor(sorted(ends), device=device)
    live = torch.ones(len(prompts), dtype=torch.bool, device=device)
    for i in range(new):
        logits = model.logits(cache.hidden).float()
        noise = -torch.log(-torch.log(torch.rand(logits.shape, device=device, generator=rng).clamp(1e-7, 1 - 1e-7)))
        ids = (logits + heat * noise).argmax(-1)            # the Gumbel trick: at temperature 0 the best token
        out.append(torch.where(live, ids, torch.full_like(ids, -1)))
        live &= ~torch.isin(ids, stop)
        if i % 16 == 15 and not live.any():
            break
        cache.step(ids)
    return [[t for t in row if t >= 0] for row in torch.stack(out, 1).tolist()]


def documents(flat):
    """The documents of a token stream, as (ids, given flags)."""
    ids, given = flat & (GIVEN - 1), (flat & GIVEN) != 0
    at = np.flatnonzero(ids == BOS).tolist() + [len(ids)]
    return [(ids[a:b], given[a:b]) for a, b in zip(at, at[1:]) if b - a > 8]


def prompt_of(group, ids, given, rng, longest):
    """A chat up to its last answer, or the opening or a middle piece of a text."""
    if group in CHATS:
        turns = np.flatnonzero(given[:-1] & ~given[1:]) + 1
        # The last piece the model writes, unless that is only the newline after a turn.
        return ids[:turns[-1]].tolist() if len(turns) and turns[-1] <= longest else None
    n = int(rng.integers(24, 64))
    at = int(rng.integers(1, max(2, len(ids) - n)))
    return [BOS] + ids[at:at + n].tolist()


def prompts_of(data, split, counts, longest=200, seed=5):
    """[(group, prompt ids)]."""
    rng, out, groups = np.random.default_rng(seed), [], batches.load(data, split)
    for g in sorted(counts):
        docs, found = documents(groups[g]) if g in groups else [], []
        for i in rng.permutation(len(docs)):
            p = prompt_of(g, *docs[i], rng, longest) if len(found) < counts[g] else None
            if p:
                found.append(p)
        out += [(g, p) for p in found]
    return out


def prompts_file(folder, data, out, counts, seed=77):
    """Held-out prompts as text, {group: [{"text": ...}]}, for `carat eval acceptance --prompts`."""
    from . import bpe
    tok, found = bpe.Tokenizer.from_file(os.path.join(folder, "tokenizer.json")), {}
    for again in range(4):                                  # small groups: another piece of the same documents
        for g, ids in prompts_of(data, "heldout", {g: 2 * n for g, n in counts.items()}, seed=seed + again):
            row, rows = {"text": tok.decode(ids[1:])}, found.setdefault(g, [])
            if tok.encode(row["text"]).ids == ids[1:] and row not in rows and len(rows) < counts[g]:     # not cut inside a character
                rows.append(row)
    with open(out, "w", encoding="utf-8") as f:
        json.dump(found, f, ensure_ascii=False, indent=1)
        f.write("\n")
    return {g: len(rows) for g, rows in found.items()}


def make(model, data, ends, tokens, rows=48, new=96, seconds=1e9, part=0):
    """Write DATA/own.<part>.train.npy: about so many new tokens, half of them greedy, half at temperature 1."""
    t0, made, docs = time.time(), 0, []
    count = int(tokens / new * 1.6) + rows
    todo = prompts_of(data, "train", {g: int(s * count) + 1 for g, s in SHARES.items()}, seed=500 + part)
    np.random.default_rng(part).shuffle(todo)
    for at in range(0, len(todo) - rows + 1, rows):
        some = sorted((p for _, p in todo[at:at + rows]), key=len)
        heat = [float(i % 2) for i in range(len(some))]
        for p, c in zip(some, extend(model, some, new, ends, heat, seed=1000 * part + at)):
            docs += [np.array(p, np.uint16) | GIVEN, np.array(c, np.uint16)]
            made += len(c)
        print(f"own continuations: {made} tokens, {time.time() - t0:.0f} s", flush=True)
        if made >= tokens or time.time() - t0 > seconds:
            break
    path = os.path.join(data, f"own.{part:02d}.train.npy")
    np.save(path + ".tmp.npy", np.concatenate(docs))
    os.replace(path + ".tmp.npy", path)
    return made


def run(target, data, tokens, rows, new, seconds, part):
    from . import export, sample, target as target_module
    from . import tokenizer as tok_module
    device = target_module.device_name()
    model, tok = export.load(target, device).bfloat16(), tok_module.from_file(os.path.join(target, "tokenizer.json"))
    with torch.autocast(device, torch.bfloat16):
        made = make(model, data, sample.end_tokens(tok), tokens, rows, new, seconds, part)
    print(f"{made} tokens", flush=True)
