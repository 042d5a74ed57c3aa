"""The Gemma 4 text network: dense (31B shape) or mixture of experts (26B-A4B shape)."""
import torch
import torch.nn as nn
import torch.nn.functional as F

from .experts import Experts, Router
from .layers import Causal, Layer, Norm, capped, rope_table, tune_norms
from .shapes import GLOBAL, ROTATED, SLIDING, THETA, Shape


def ropes(s, length, device, start=0):
    return {k: rope_table(length, s.head(k)[0], THETA[k], ROTATED[k], device, start) for k in (SLIDING, GLOBAL)}


def in_half(x):
    """Does autocast make bf16 of products with x?"""
    return torch.is_autocast_enabled() if x.is_cuda else torch.is_autocast_cpu_enabled()


class Gemma4(nn.Module):
    def __init__(self, s: Shape):
        super().__init__()
        self.s, self.kinds = s, s.types()
        self.embed_tokens = nn.Embedding(s.vocab, s.d)
        self.layers = nn.ModuleList(self.make_layer(k) for k in self.kinds)
        self.norm = Norm(s.d)
        self.donor = {k: max(i for i, t in enumerate(self.kinds) if t == k) for k in set(self.kinds)}
        self.reset()

    def make_layer(self, kind):
        s = self.s
        moe = (Router(s.d, s.experts, s.top_k), Experts(s.d, s.expert_ff, s.experts)) if s.experts else None
        return Layer(s.d, s.ff, s.heads, *s.head(kind), k_is_v=kind == GLOBAL, moe=moe)

    def reset(self):
        """Start so that hidden states and logits have spread 1: the class defaults lose far more than a run can regain."""
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.normal_(m.weight, std=m.in_features ** -0.5)
        nn.init.normal_(self.embed_tokens.weight, std=self.s.d ** -0.5)
        tune_norms(self.layers, (2 * self.s.layers) ** -0.5)

    def place(self, length, device, kernel="plain"):
        """Rotary tables for sequences up to this length, and how to attend."""
        self.rope = ropes(self.s, length, device)
        self.mask = {k: Causal(kernel, self.s.window if k == SLIDING else 0) for k in (SLIDING, GLOBAL)}
        return self

    def embed(self, ids):
        x = self.embed_tokens(ids) * self.s.d ** 0.5
        return x.to(torch.bfloat16) if in_half(x) else x

    def trace(self, ids, taps=(), past=None):
        """Final hidden (after the last norm), keys and values by donor type, residual stream after each tap layer.

        past: None, or a list with a pair of keys and values per layer (or None), extended in place by this call.
        """
        x, kv, seen = self.embed(ids), {}, []
        start = past[0][0].shape[1] if past and past[0] is not None else 0
        for i, (kind, layer) in enumerate(zip(self.kinds, self.layers)):
            cos, sin = (r[start:start + ids.shape[1]] for r in self.rope[kind])
            x, pair = layer(x, cos, sin, self.mask[kind], None, past[i] if past else None)
            if past is not None:
                past[i] = pair
            if i == self.donor[kind]:
                kv[kind] = pair
            if i in taps:
                seen.append(x)
        return self.norm(x), kv, seen

    def logits(self, z):
        return capped(z, self.embed_tokens.weight, self.s.cap)

    def loss(self, ids, weight):
        """Weighted mean next-token loss: ids [B, T+1], weight [B, T] of the predicted tokens."""
        z, _, _ = self.trace(ids[:, :-1])
        each = F.cross_entropy(self.logits(z).flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        loss = (each * weight.flatten()).sum() / weight.sum()
        if self.s.experts and self.training:
            loss = loss + 0.01 * sum(l.router.balance for l in self.layers) / len(self.layers)
        return loss
