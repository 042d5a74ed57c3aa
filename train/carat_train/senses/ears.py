"""Gemma 4's tower for sound, over a batch of clips of one length; the log-mel features before it.

Everything but the two convolutions is causal, and those see zeros behind a clip, so padding at the end changes nothing.
"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from ..layers import Norm, linear, rms
from .eyes import Limited
from .shapes import RATE

HOP, FRAME, POINTS, BINS = 160, 320, 512, 128
WINDOW, TAPS, CAP = 12, 5, 50.0


def mel_filters(device="cpu"):
    """[257, 128]: triangles at equal distances of HTK's scale, not normalized."""
    top = 2595 * math.log10(1 + RATE / 2 / 700)
    corner = 700 * (10 ** (torch.linspace(0, top, BINS + 2, dtype=torch.float64) / 2595) - 1)
    hz = torch.linspace(0, RATE / 2, POINTS // 2 + 1, dtype=torch.float64)[:, None]
    rise = (hz - corner[:-2]) / (corner[1:-1] - corner[:-2])
    fall = (corner[2:] - hz) / (corner[2:] - corner[1:-1])
    return torch.minimum(rise, fall).clamp(min=0).float().to(device)


def frames_of(samples):
    return (samples - 1) // HOP


def tokens_of(samples):
    return (frames_of(samples) + 3) // 4


def log_mel(sound, filters):
    """[A, n] in -1..1 -> [A, frames_of(n), 128]."""
    x = F.pad(sound, (HOP, FRAME)).unfold(1, FRAME, HOP)[:, :frames_of(sound.shape[1])]
    x = torch.fft.rfft(x * torch.hann_window(FRAME, device=sound.device), n=POINTS).abs()
    return torch.log(x @ filters + 0.001)


class Scale(nn.Module):
    """LayerNorm over channels with a weight alone."""

    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x):
        return F.layer_norm(x.float(), (x.shape[-1],), self.weight.float(), None, 1e-6).to(x.dtype)


class Halving(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(a, b, 3, 2, 1, bias=False), Scale(b)

    def forward(self, x):
        """[A, channels, frames, bins]"""
        return F.relu(self.norm(self.conv(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)


class Subsample(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.layer0, self.layer1 = Halving(1, s.channels[0]), Halving(*s.channels)
        self.input_proj_linear = linear(BINS // 4 * s.channels[1], s.d)

    def forward(self, x, valid):
        """x [A, frames, 128], valid: frames of each -> [A, frames / 4, d]"""
        x = x[:, None]
        for layer in (self.layer0, self.layer1):
            there = torch.arange(x.shape[2], device=x.device) < valid[:, None]
            x = layer(x * there[:, None, :, None].to(x.dtype))
            valid = (valid + 1) // 2
        return self.input_proj_linear(x.permute(0, 2, 3, 1).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.ffw_layer_1, self.ffw_layer_2 = Limited(s.d, 4 * s.d, s.limit), Limited(4 * s.d, s.d, s.limit)
        self.pre_layer_norm, self.post_layer_norm = Norm(s.d), Norm(s.d)

    def forward(self, x):
        return self.post_layer_norm(self.ffw_layer_2(F.silu(self.ffw_layer_1(self.pre_layer_norm(x)))))


class LightConv(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.linear_start, self.linear_end = Limited(s.d, 2 * s.d, s.limit), Limited(s.d, s.d, s.limit)
        self.depthwise_conv1d = nn.Conv1d(s.d, s.d, TAPS, groups=s.d, bias=False)
        self.pre_layer_norm, self.conv_norm = Norm(s.d), Norm(s.d)

    def forward(self, x):
        x = F.glu(self.linear_start(self.pre_layer_norm(x)), -1).transpose(1, 2)
        x = self.depthwise_conv1d(F.pad(x, (TAPS - 1, 0))).transpose(1, 2)
        return self.linear_end(F.silu(self.conv_norm(x)))


class Attention(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.heads, self.hd = s.heads, s.d // s.heads
        self.q_proj, self.k_proj, self.v_proj, self.post = (Limited(s.d, s.d, s.limit) for _ in range(4))
        self.relative_k_proj = linear(s.d, s.d)
        self.per_dim_scale = nn.Parameter(torch.zeros(self.hd))

    def forward(self, x):
        a, t, d = x.shape
        q, k, v = (m(x).float().view(a, t, self.heads, self.hd) for m in (self.q_proj, self.k_proj, self.v_proj))
        q = q * (self.hd ** -0.5 / math.log(2) * F.softplus(self.per_dim_scale))
        k = k * (math.log1p(math.e) / math.log(2))
        half = d // 2
        step = torch.exp(-math.log(1e4) / (half - 1) * torch.arange(half, device=x.device, dtype=torch.float32))
        angle = torch.arange(WINDOW, device=x.device, dtype=torch.float32)[:, None] * step
        far = self.relative_k_proj(torch.cat((angle.sin(), angle.cos()), -1)).float().view(WINDOW, self.heads, self.hd)
        gap = torch.arange(t, device=x.device)[:, None] - torch.arange(t, device=x.device)[None]
        seen = (gap >= 0) & (gap < WINDOW)
        by_gap = torch.einsum("aqhd,ghd->ahqg", q, far)
        scores = torch.einsum("aqhd,akhd->ahqk", q, k) + by_gap.gather(3, gap.clamp(0, WINDOW - 1).expand(a, self.heads, t, t))
        scores = (CAP * torch.tanh(scores / CAP)).masked_fill(~seen, -1e9)
        y = torch.einsum("ahqk,akhd->aqhd", torch.softmax(scores, -1), v)
        return self.post(y.reshape(a, t, d).to(x.dtype))


class Conformer(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.feed_forward1, self.self_attn, self.lconv1d, self.feed_forward2 = FeedForward(s), Attention(s), LightConv(s), FeedForward(s)
        self.norm_pre_attn, self.norm_post_attn, self.norm_out = Norm(s.d), Norm(s.d), Norm(s.d)

    def forward(self, x):
        x = x + 0.5 * self.feed_forward1(x)
        x = x + self.norm_post_attn(self.self_attn(self.norm_pre_attn(x)))
        x = x + self.lconv1d(x)
        x = x + 0.5 * self.feed_forward2(x)
        return self.norm_out(x)


class Ears(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.subsample_conv_projection = Subsample(s)
        self.layers = nn.ModuleList(Conformer(s) for _ in range(s.layers))
        self.output_proj = nn.Linear(s.d, s.out)

    def forward(self, mel, valid):
        """mel [A, frames, 128], valid: frames of each clip -> [A, frames / 4, out], normed"""
        x = self.subsample_conv_projection(mel, valid)
        for layer in self.layers:
            x = layer(x)
        return rms(self.output_proj(x))
