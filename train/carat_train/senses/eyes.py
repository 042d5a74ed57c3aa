"""Gemma 4's vision tower over packed patches: those of several pictures one after the other, nine to a row of the text.

The patches of a row stand together (see patches()), so that pooling is a mean over nine neighbours.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

from ..layers import Norm, gelu, linear, rms
from .packed import Packed


class Limited(nn.Module):
    """A product whose input and output are clamped, as the E models' are."""

    def __init__(self, a, b, limit):
        super().__init__()
        self.linear = linear(a, b)
        for name, value in (("input_min", -limit), ("input_max", limit), ("output_min", -limit), ("output_max", limit)):
            self.register_buffer(name, torch.tensor(float(value)))

    def forward(self, x):
        y = self.linear(torch.clamp(x, self.input_min.to(x.dtype), self.input_max.to(x.dtype)))
        return torch.clamp(y, self.output_min.to(y.dtype), self.output_max.to(y.dtype))


def turned(x, angle):
    """x [P, H, hd]: the first half of a head turns by the column, the second by the row; angle [P, 2, hd/4]."""
    p, h, hd = x.shape
    a, b = x.float().view(p, h, 2, 2, hd // 4).unbind(3)
    c, s = angle.cos()[:, None], angle.sin()[:, None]
    return torch.stack((a * c - b * s, b * c + a * s), 3).view(p, h, hd).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.heads, self.hd = s.heads, s.d // s.heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (Limited(s.d, s.d, s.limit) for _ in range(4))
        self.q_norm, self.k_norm = Norm(self.hd), Norm(self.hd)

    def forward(self, x, angle, packed):
        q, k, v = (m(x).view(-1, self.heads, self.hd) for m in (self.q_proj, self.k_proj, self.v_proj))
        q, k = turned(self.q_norm(q), angle), turned(self.k_norm(k), angle)
        return self.o_proj(packed.both_ways(q, k, rms(v)).flatten(1))


class Mlp(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.gate_proj, self.up_proj = Limited(s.d, s.ff, s.limit), Limited(s.d, s.ff, s.limit)
        self.down_proj = Limited(s.ff, s.d, s.limit)

    def forward(self, x):
        return self.down_proj(gelu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.self_attn, self.mlp = Attention(s), Mlp(s)
        for n in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            setattr(self, n + "_layernorm", Norm(s.d))

    def forward(self, x, angle, packed):
        x = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x), angle, packed))
        return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))


class PatchEmbedder(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.input_proj = linear(3 * s.patch * s.patch, s.d)
        self.position_embedding_table = nn.Parameter(torch.zeros(2, s.table, s.d))

    def forward(self, pixels, at):
        x = self.input_proj(2 * (pixels - 0.5))
        for axis in (0, 1):
            x = x + F.embedding(at[:, axis], self.position_embedding_table[axis]).to(x.dtype)
        return x


class Eyes(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s, self.patch_embedder = s, PatchEmbedder(s)
        self.encoder = nn.ModuleDict({"layers": nn.ModuleList(Block(s) for _ in range(s.layers))})
        for block in self.encoder["layers"]:
            for norm in (block.self_attn.q_norm, block.self_attn.k_norm):
                nn.init.constant_(norm.weight, (s.d // s.heads) ** -0.25)
            for norm in (block.post_attention_layernorm, block.post_feedforward_layernorm):
                nn.init.constant_(norm.weight, (2 * s.layers) ** -0.5)

    def blocks(self, pixels, at, packed):
        """pixels [P, 3 * patch^2] in 0..1, at [P, 2] column and row -> [P, d], as they leave the last block."""
        s = self.s
        quarter = s.d // s.heads // 4
        freq = 100.0 ** (-torch.arange(quarter, device=at.device, dtype=torch.float32) / quarter)
        angle = at.float()[:, :, None] * freq
        x = self.patch_embedder(pixels, at)
        for block in self.encoder["layers"]:
            x = block(x, angle, packed)
        return x

    def pooled(self, x):
        """[P, d] -> [P / pool^2, d], normed."""
        s = self.s
        return rms(x.float().view(-1, s.pool * s.pool, s.d).mean(1) * s.d ** 0.5)

    def forward(self, pixels, at, packed):
        return self.pooled(self.blocks(pixels, at, packed))


def size_of(height, width, budget, patch=16, pool=3):
    """(height, width) that the tower sees and the rows it makes of a picture: the reference's rule."""
    side = patch * pool
    factor = (budget * side * side / (height * width)) ** 0.5
    h, w = int(factor * height // side), int(factor * width // side)
    if h == 0:
        h, w = 1, min(max(width // height, 1), budget)
    if w == 0:
        w, h = 1, min(max(height // width, 1), budget)
    return h * side, w * side, h * w


def patches(pictures, patch=16, pool=3):
    """[n, H, W, 3] in 0..1 -> pixels [n * H/16 * W/16, 768] (row, column, channel) and at [..., 2], rows of nine together."""
    n, height, width, _ = pictures.shape
    side = patch * pool
    x = pictures.view(n, height // side, pool, patch, width // side, pool, patch, 3)
    pixels = x.permute(0, 1, 4, 2, 5, 3, 6, 7).reshape(-1, 3 * patch * patch)
    row = torch.arange(height // patch, device=x.device).view(height // side, 1, pool, 1)
    column = torch.arange(width // patch, device=x.device).view(1, width // side, 1, pool)
    shape = (height // side, width // side, pool, pool)
    at = torch.stack((column.expand(shape), row.expand(shape)), -1).reshape(-1, 2)
    return pixels, at.repeat(n, 1)


def resize(pictures, height, width):
    """uint8 [n, H, W, 3] -> [n, height, width, 3] in 0..1: bicubic, antialiased, rounded to bytes as the reference does."""
    if tuple(pictures.shape[1:3]) == (height, width):
        return pictures.float() / 255
    x = pictures.permute(0, 3, 1, 2).float()
    x = F.interpolate(x, (height, width), mode="bicubic", antialias=True, align_corners=False)
    return (x.clamp(0, 255).round() / 255).permute(0, 2, 3, 1)
