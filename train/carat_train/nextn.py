"""Qwen3.6's own drafting head ("nextn"): one attention layer over pairs of a token and the hidden state before it.

Row i of step 0 takes token i + 1 and the target's hidden of position i, and predicts token i + 2; its keys stay. Each later step
takes the next token and the head's own hidden; it sees the pairs 0..i of step 0 and what its own chain added behind them.
"""
import torch
import torch.nn as nn

from .layers import Causal, linear
from .qwen import Layer, Norm, attend, rope_table
from .soft_loss import probabilities, soft_loss


class Nextn(nn.Module):
    soft_loss = staticmethod(soft_loss)                     # replaced by a compiled one
    compiled = ("soft_loss",)

    def __init__(self, s, depth=4):
        super().__init__()
        self.s, self.depth, self.half, self.scale = s, depth, False, s.d ** -0.5
        self.fc = linear(2 * s.d, s.d)
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden = Norm(s.d), Norm(s.d)
        self.layers = nn.ModuleList([Layer(s, True)])
        self.norm = Norm(s.d)
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.normal_(m.weight, std=m.in_features ** -0.5)

    @torch.no_grad()
    def adopt(self, target, ids, z):
        """Start as the target's last attention layer, which reads the token and the hidden before it alike."""
        last = max(i for i, l in enumerate(target.layers) if l.full)
        self.layers[0].load_state_dict(target.layers[last].state_dict())
        eye = torch.eye(self.s.d, device=z.device)
        self.fc.weight.copy_(torch.cat((eye, eye), 1) * 0.5 ** 0.5)

    def place(self, length, device, kernel="plain"):
        self.rope, self.mask = rope_table(length + self.depth, self.s.pairs, self.s.theta, device), Causal(kernel, 0)
        return self

    def attend(self, q, past):
        """q [B, T, H, D]; past: keys and values of each step up to this one. The first's causally, the others' own rows."""
        at = self.layers[0].self_attn
        (q, k0, v0), scale = at.heads_first(q, *past[0]), at.hd ** -0.5
        if len(past) == 1:
            return attend(q, k0, v0, self.mask).transpose(1, 2)
        own = [at.heads_first(q.transpose(1, 2), *pair)[1:] for pair in past[1:]]
        scores = (q @ k0.transpose(-1, -2)).float().masked_fill(~self.mask.visible(q.shape[2], q.shape[2], q.device), float("-inf"))
        few = [(q * k).float().sum(-1, keepdim=True) for k, _ in own]
        p = torch.softmax(torch.cat((scores, *few), -1) * scale, -1).to(v0.dtype)
        o = p[..., :q.shape[2]] @ v0
        for i, (_, v) in enumerate(own):
            o = o + p[..., q.shape[2] + i:q.shape[2] + i + 1] * v
        return o.transpose(1, 2)

    def step(self, e, h, past):
        """e: the target's embedding of the newest token; h: the hidden before it. past grows. -> hidden, for the head and the next step."""
        l, j, t = self.layers[0], len(past), e.shape[1]
        x = self.fc(torch.cat((self.pre_fc_norm_embedding(e), self.pre_fc_norm_hidden(h.to(e.dtype))), -1)).to(e.dtype)
        cos, sin = (r[j:j + t] for r in self.rope)
        q, k, v, gate = l.self_attn.project(l.input_layernorm(x), cos, sin)
        past.append((k, v))
        o = self.attend(q, past).flatten(2) * torch.sigmoid(gate)
        return self.norm(l.feed(x + l.self_attn.o_proj(o))) * self.scale

    def chain(self, target, ids, z):
        """The hiddens of each step, ids [B, T] and the target's hiddens z of them; the last rows of a step have no token to read."""
        h, past, out = z, [], []
        for j in range(self.depth):
            h = self.step(target.embed(torch.roll(ids, -1 - j, 1)), h, past)
            out.append(h)
        return out

    def look(self, target, ids):
        z, _, _ = target.trace(ids[:, :-1])
        return z, probabilities(z, target.head, None)

    def loss(self, target, ids, weight, seen):
        """ids [B, T + 1], weight [B, T] of the predicted tokens: the mean over the chain."""
        z, p = seen
        t, total = z.shape[1], 0.0
        for j, y in enumerate(self.chain(target, ids[:, :-1], z)):
            rows = t - 1 - j
            total = total + self.soft_loss(y[:, :rows], target.head, None, p[:, 1 + j:], weight[:, 1 + j:], self.half)
        return total / self.depth

    @torch.no_grad()
    def accepted(self, target, ids, first):
        """[rounds, depth], as Assistant.accepted."""
        t = ids.shape[1]
        z, _, _ = target.trace(ids)
        rows = torch.arange(first - 1, t - 1 - self.depth, device=ids.device)
        ok, out = torch.ones(ids.shape[0], len(rows), dtype=torch.bool, device=ids.device), []
        for j, y in enumerate(self.chain(target, ids, z)):
            ok = ok & (target.logits(y[:, rows]).argmax(-1) == ids[:, rows + 2 + j])
            out.append(ok.flatten())
        return torch.stack(out, -1)
