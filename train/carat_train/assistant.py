"""The MTP drafter in Gemma 4's assistant shape: four layers of queries over the target's keys and values.

At every step of a round the position is the same: that of the newest token n, which is not in the cache. A sliding layer
sees the keys with n - k < window, as an ordinary query at n would; its own key being absent, that is window - 1 of them.
(transformers, given all keys, shows it window + 1; see the README.)
"""
import torch
import torch.nn as nn

from .gemma4 import ropes
from .layers import Causal, Layer, Norm, capped, linear, tune_norms
from .shapes import GLOBAL, SLIDING, Shape


def soft_loss(z, head, cap, teacher, weight):
    """Cross entropy to the target's own distribution (its logits), averaged with weight [B, T]."""
    q, p = capped(z, head, cap), torch.softmax(teacher.float(), -1)
    return ((torch.logsumexp(q, -1) - (p * q).sum(-1)) * weight).sum() / weight.sum()


class Assistant(nn.Module):
    def __init__(self, s: Shape, d=128, ff=512, depth=4):
        super().__init__()
        self.s, self.depth, self.kinds = s, depth, [SLIDING, SLIDING, SLIDING, GLOBAL]
        self.embed_tokens = nn.Embedding(s.vocab, d)
        self.layers = nn.ModuleList(Layer(d, ff, s.heads, *s.head(k), query_only=True) for k in self.kinds)
        self.norm = Norm(d)
        self.pre_projection, self.post_projection = linear(2 * s.d, d), linear(d, s.d)
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.normal_(m.weight, std=m.in_features ** -0.5)
        nn.init.normal_(self.embed_tokens.weight, std=d ** -0.5)
        tune_norms(self.layers, 8 ** -0.5)

    def place(self, length, device, kernel="plain"):
        """Row i drafts after token n = i + 1: keys 0..i with n - k < window, so a causal window that is one shorter."""
        self.rope = ropes(self.s, length, device, start=1)
        self.mask = {k: Causal(kernel, self.s.window - 1 if k == SLIDING else 0) for k in (SLIDING, GLOBAL)}
        return self

    def step(self, e, h, kv):
        """e: the target's scaled embedding of the newest token; h: the hidden that produced it -> last hidden, next h."""
        x = self.pre_projection(torch.cat((e, h.to(e.dtype)), -1)).to(e.dtype)
        for kind, layer in zip(self.kinds, self.layers):
            cos, sin = (r[:x.shape[1]] for r in self.rope[kind])
            x, _ = layer(x, cos, sin, self.mask[kind], kv[kind])
        z = self.norm(x)
        return z, self.post_projection(z)

    def loss(self, target, ids, z, kv, teacher):
        """ids [B, T + depth + 1]; z and teacher over the first T. Chained: each step feeds its own hidden to the next."""
        t, h, total = z.shape[1], z, 0.0
        for j in range(self.depth):
            y, h = self.step(target.embed(ids[:, 1 + j:1 + j + t]), h, kv)
            rows = t - 1 - j                                       # the teacher's row of the predicted token must exist
            weight = torch.ones(ids.shape[0], rows, device=ids.device)
            total = total + soft_loss(y[:, :rows], self.embed_tokens.weight, None, teacher[:, 1 + j:], weight)
        return total / self.depth

    @torch.no_grad()
    def accepted(self, target, ids, first):
        """Share of rounds whose first 1..depth drafts are the target's tokens; ids [B, T], the target's from `first` on."""
        t = ids.shape[1]
        z, kv, _ = target.trace(ids)
        rows = torch.arange(first - 1, t - 1 - self.depth, device=ids.device)
        ok, out, h = torch.ones(ids.shape[0], len(rows), dtype=torch.bool, device=ids.device), [], z
        for j in range(self.depth):
            y, h = self.step(target.embed(torch.roll(ids, -1 - j, 1)), h, kv)
            ok &= capped(y[:, rows], self.embed_tokens.weight).argmax(-1) == ids[:, rows + 2 + j]
            out.append(ok.float().mean().item())
        return out
