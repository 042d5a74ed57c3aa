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
from .soft_loss import probabilities, soft_loss


class Assistant(nn.Module):
    soft_loss = staticmethod(soft_loss)                     # replaced, as step is, by a compiled one
    compiled = ("step", "soft_loss")

    def __init__(self, s: Shape, d=128, ff=512, depth=4):
        super().__init__()
        self.s, self.d, self.ff, self.depth, self.kinds = s, d, ff, depth, [SLIDING, SLIDING, SLIDING, GLOBAL]
        self.half = False
        self.embed_tokens = nn.Embedding(s.vocab, d)
        self.layers = nn.ModuleList(Layer(d, ff, s.heads, *s.head(k), query_only=True) for k in self.kinds)
        self.norm = Norm(d)
        self.pre_projection, self.post_projection = linear(2 * s.d, d), linear(d, s.d)
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.normal_(m.weight, std=m.in_features ** -0.5)
        nn.init.normal_(self.embed_tokens.weight, std=d ** -0.5)
        tune_norms(self.layers, 8 ** -0.5)

    @torch.no_grad()
    def adopt(self, target, ids, z):
        """Start near the target, from its final hiddens z [B, T, D] of some text, without a step of training.

        The head is the target's, cut down to the d directions that carry most of its logits; the two projections are the
        best linear guess (ridge regression) of the next hidden from this hidden and the next token, in those directions.
        """
        flat = z.flatten(0, 1).float()
        value, vector = torch.linalg.eigh(flat.t() @ flat / len(flat))
        value = value.clamp_min(1e-4 * value[-1])
        root, inverse = (vector * value ** 0.5) @ vector.t(), (vector * value ** -0.5) @ vector.t()
        head = target.embed_tokens.weight.float() @ root
        best = torch.linalg.eigh(head.t() @ head)[1][:, -self.embed_tokens.embedding_dim:]
        self.embed_tokens.weight.copy_(head @ best)        # logits of the target = this @ (best^T inverse z), nearly
        self.post_projection.weight.copy_(root @ best)
        x = torch.cat((target.embed(ids[:, 1:]).float(), z[:, :-1].float()), -1).flatten(0, 1)
        y = z[:, 1:].float().flatten(0, 1) @ (inverse @ best)
        gram = x.t() @ x
        gram.diagonal().add_(0.02 * gram.diagonal().mean())
        guess = torch.linalg.solve(gram, x.t() @ y)
        self.pre_projection.weight.copy_(guess.t())
        nn.init.constant_(self.norm.weight, (x @ guess).pow(2).mean().sqrt().item())
        tune_norms(self.layers, 0.1)

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

    def look(self, target, ids):
        """What the target makes of ids [B, T + 1], for loss()."""
        z, kv, _ = target.trace(ids[:, :-1])
        return z, kv, probabilities(z, target.embed_tokens.weight, self.s.cap)

    def loss(self, target, ids, weight, seen):
        """ids [B, T + 1], weight [B, T] of the predicted tokens: the mean over the chain, each step fed its own hidden.

        Row i of the first step follows token i + 1 and predicts token i + 2; each later step sees one token more.
        """
        z, kv, p = seen
        t, h, total = z.shape[1], z, 0.0
        for j in range(self.depth):
            fed = torch.roll(ids[:, :-1], -1 - j, 1)
            y, h = self.step(target.embed(fed), h, kv)
            rows = t - 1 - j                                       # the target's row of the predicted token must exist
            total = total + self.soft_loss(y[:, :rows], self.embed_tokens.weight, None, p[:, 1 + j:], weight[:, 1 + j:], self.half)
        return total / self.depth

    @torch.no_grad()
    def accepted(self, target, ids, first):
        """[rounds, depth]: were the first 1..depth drafts right? ids [B, T], the target's own from `first` on."""
        t = ids.shape[1]
        z, kv, _ = target.trace(ids)
        rows = torch.arange(first - 1, t - 1 - self.depth, device=ids.device)
        ok, out, h = torch.ones(ids.shape[0], len(rows), dtype=torch.bool, device=ids.device), [], z
        for j in range(self.depth):
            y, h = self.step(target.embed(torch.roll(ids, -1 - j, 1)), h, kv)
            ok = ok & (capped(y[:, rows], self.embed_tokens.weight).argmax(-1) == ids[:, rows + 2 + j])
            out.append(ok.flatten())
        return torch.stack(out, -1)
