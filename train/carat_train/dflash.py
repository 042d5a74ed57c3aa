"""The block-diffusion drafter (DFlash): five layers, blocks of 16, context taken from tapped layers of the target.

Slot 0 of a block holds the newest token, the others <mask>; slot i predicts the token i places on. The first layers are
causal inside the block, the last one sees all of it.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

from .layers import Attention, Mlp, Norm, linear, rope_table, rotate
from .shapes import MASK_TOKEN, Shape
from .soft_loss import probabilities, soft_loss


class BlockMask:
    """Blocks of `size` rows behind `length` context rows; anchors [A] are refilled in place each step."""

    def __init__(self, length, anchors, size, causal, kernel):
        self.kernel, self.length, self.total, self.device = kernel, length, len(anchors) * size, anchors.device

        def rule(b, h, q, k):
            noise = k - length
            inside = (noise >= 0) & (noise // size == q // size)
            return (k < anchors[q // size]) | ((inside & (noise <= q)) if causal else inside)
        self.rule = rule
        self.refresh()

    def refresh(self):
        rows, cols = self.total, self.length + self.total
        if self.kernel == "flex":
            from torch.nn.attention.flex_attention import create_block_mask
            self.block = create_block_mask(self.rule, None, None, rows, cols, device=self.device.type)
        else:
            i, j = torch.arange(rows, device=self.device)[:, None], torch.arange(cols, device=self.device)[None]
            self.dense = self.rule(0, 0, i, j)


def attend_block(q, k, v, m):
    """q [B, T, H, D] over all rows of k and v that the mask shows; scale in q."""
    b, t, h, _ = q.shape
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    if m.kernel == "flex":
        from torch.nn.attention.flex_attention import flex_attention
        o = flex_attention(q, k, v, block_mask=m.block, scale=1.0, enable_gqa=True)
    else:
        k, v = (x.repeat_interleave(h // x.shape[1], 1) for x in (k, v))
        scores = (q @ k.transpose(-1, -2)).float().masked_fill(~m.dense, float("-inf"))
        o = torch.softmax(scores, -1).to(v.dtype) @ v
    return o.transpose(1, 2).reshape(b, t, -1)


class DFlashLayer(nn.Module):
    def __init__(self, d, ff, heads, hd, kv):
        super().__init__()
        self.self_attn, self.mlp = Attention(d, heads, hd, kv), Mlp(d, ff, F.silu)
        self.input_layernorm, self.post_attention_layernorm = Norm(d), Norm(d)

    def forward(self, x, ctx, rope_x, rope_c, mask):
        at, (b, n, _) = self.self_attn, x.shape
        u = self.input_layernorm(x)
        q = rotate(at.q_norm(at.q_proj(u).view(b, n, at.heads, at.hd)), *rope_x) * at.hd ** -0.5
        k = torch.cat((at.k_proj(ctx), at.k_proj(u)), 1).unflatten(-1, (at.kv, at.hd))
        k = rotate(at.k_norm(k), torch.cat((rope_c[0], rope_x[0])), torch.cat((rope_c[1], rope_x[1])))
        v = torch.cat((at.v_proj(ctx), at.v_proj(u)), 1).unflatten(-1, (at.kv, at.hd))
        x = x + at.o_proj(attend_block(q, k, v, mask))
        return x + self.mlp(self.post_attention_layernorm(x))


class DFlash(nn.Module):
    def __init__(self, s: Shape, ff=384, heads=4, hd=128, kv=1, layers=5, size=16, taps=4, gamma=7.0):
        super().__init__()
        self.s, self.size, self.ff, self.heads, self.hd, self.kv = s, size, ff, heads, hd, kv
        self.half, self.theta = False, 1e6
        if isinstance(taps, int):
            taps = sorted({round(1 + i * (s.layers - 4) / (taps - 1)) for i in range(taps)})
        self.taps = taps
        self.fc, self.hidden_norm, self.norm = linear(len(taps) * s.d, s.d), Norm(s.d), Norm(s.d)
        self.layers = nn.ModuleList(DFlashLayer(s.d, ff, heads, hd, kv) for _ in range(layers))
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.normal_(m.weight, std=m.in_features ** -0.5)
        for l in self.layers:
            nn.init.zeros_(l.self_attn.o_proj.weight), nn.init.zeros_(l.mlp.down_proj.weight)
        self.register_buffer("decay", torch.exp(-torch.arange(size - 1) / gamma), persistent=False)

    def place(self, length, device, kernel="plain", blocks=64):
        self.length = length
        self.anchors = torch.arange(1, blocks + 1, device=device)
        self.table = rope_table(length + self.size, self.hd, self.theta, 1.0, device)
        self.mask = [BlockMask(length, self.anchors, self.size, c, kernel) for c in (True, False)]
        return self

    def aim(self, anchors):
        self.anchors.copy_(anchors)
        for m in self.mask:
            m.refresh()

    def slots(self):
        """Positions [A, size]."""
        return self.anchors[:, None] + torch.arange(self.size, device=self.anchors.device)

    def draft(self, target, ids, seen):
        """Last hidden of slots 1..size-1: [B, A, size - 1, d]; context: tapped hiddens of positions before the anchor."""
        b, pos = ids.shape[0], self.slots().flatten()
        ctx = self.hidden_norm(self.fc(torch.cat(seen, -1)))
        noise = torch.full((b, len(self.anchors), self.size), MASK_TOKEN, device=ids.device)
        noise[:, :, 0] = ids[:, self.anchors]
        x = target.embed(noise.flatten(1))
        rope_x, rope_c = tuple(t[pos] for t in self.table), tuple(t[:self.length] for t in self.table)
        for i, layer in enumerate(self.layers):
            x = layer(x, ctx, rope_x, rope_c, self.mask[i == len(self.layers) - 1])
        return self.norm(x).unflatten(1, (len(self.anchors), self.size))[:, :, 1:]

    def look(self, target, ids):
        """What the target makes of ids [B, T + 1], for loss(): tapped layers, its distribution for every slot."""
        z, _, seen = target.trace(ids[:, :-1], self.taps)
        at = self.slots()[:, :-1]                                  # the target's rows that predict the slots
        p = probabilities(z[:, at.flatten()], target.embed_tokens.weight, self.s.cap)
        return seen, p.unflatten(1, at.shape), at

    def loss(self, target, ids, weight, seen):
        """ids [B, T + 1], weight [B, T] of the predicted tokens. Slot i of the block at anchor a predicts token a + i."""
        taps, p, at = seen
        y = self.draft(target, ids[:, :-1], taps)
        return soft_loss(y, target.embed_tokens.weight, self.s.cap, p, self.decay * weight[:, at], self.half)

    @torch.no_grad()
    def accepted(self, target, ids, first):
        """[rounds, size - 1]: were the first 1..size-1 slots right? ids [B, T], the target's own from `first` on."""
        t = ids.shape[1]
        self.place(t, ids.device, "plain", t - self.size + 1 - first)
        self.aim(torch.arange(first, t - self.size + 1, device=ids.device))
        _, _, seen = target.trace(ids, self.taps)
        q = target.logits(self.draft(target, ids, seen)).argmax(-1)
        return (q == ids[:, self.slots()[:, 1:]]).long().cumprod(-1).bool().flatten(0, 1)
