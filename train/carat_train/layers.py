"""The parts of a Gemma 4 layer. Parameter names are those of the published checkpoints."""
import torch
import torch.nn as nn
import torch.nn.functional as F


def rms(x, w=None, eps=1e-6):
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)
    return (y if w is None else y * w.float()).to(x.dtype)


class Norm(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x):
        return rms(x, self.weight)


def linear(a, b):
    return nn.Linear(a, b, bias=False)


def gelu(x):
    return F.gelu(x, approximate="tanh")


def rope_table(length, hd, theta, rotated=1.0, device="cpu", start=0):
    """cos, sin [length, hd/2]; the first `rotated` share of the pairs turns (p-RoPE), exponent over the whole head."""
    pair = torch.arange(hd // 2, device=device, dtype=torch.float32)
    freq = torch.where(pair < rotated * hd / 2, theta ** (-2 * pair / hd), torch.zeros_like(pair))
    angle = torch.arange(start, start + length, device=device, dtype=torch.float32)[:, None] * freq
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    """x [B, T, H, hd]; element i turns with element i + hd/2."""
    a, b = x.float().chunk(2, -1)
    c, s = cos[:, None], sin[:, None]
    return torch.cat((a * c - b * s, b * c + a * s), -1).to(x.dtype)


def capped(z, head, cap=None):
    """Logits in float32; under autocast the product itself is bf16, the soft cap is not."""
    y = F.linear(z, head).float()
    return y if cap is None else cap * torch.tanh(y / cap)


class Causal:
    """How one layer type attends. kernel: "flash" (CUDA, half precision) or "plain" (anywhere); window 0 = unbounded."""

    def __init__(self, kernel, window):
        self.kernel, self.window = kernel, window

    def visible(self, rows, cols, device):
        """[rows, cols]; row 0 is the query at position cols - rows."""
        q = torch.arange(cols - rows, cols, device=device)[:, None]
        k = torch.arange(cols, device=device)[None]
        return (k <= q) & (q - k < self.window) if self.window else k <= q


def attend(q, k, v, m):
    """q [B, T, H, D], k and v [B, S, K, D] -> [B, T, H*D]; scale 1, contiguous query groups per KV head."""
    b, t, h, _ = q.shape
    if hasattr(m, "attend"):  # several sequences in one row
        return m.attend(q, k, v)
    if m.kernel == "flash":   # PyTorch's flash kernel takes a window; scaled_dot_product_attention does not offer it
        left = m.window - 1 if m.window else None
        o = torch.ops.aten._flash_attention_forward(q, k, v, None, None, t, k.shape[1], 0.0, True, False,
                                                    scale=1.0, window_size_left=left, window_size_right=0)[0]
        return o.reshape(b, t, -1)
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    k, v = (x.repeat_interleave(h // x.shape[1], 1) for x in (k, v))
    scores = (q @ k.transpose(-1, -2)).float()
    scores = scores.masked_fill(~m.visible(t, k.shape[2], q.device), float("-inf"))
    return (torch.softmax(scores, -1).to(v.dtype) @ v).transpose(1, 2).reshape(b, t, -1)


class Attention(nn.Module):
    def __init__(self, d, heads, hd, kv, k_is_v=False, query_only=False):
        super().__init__()
        self.heads, self.hd, self.kv = heads, hd, kv
        self.q_proj, self.o_proj, self.q_norm = linear(d, heads * hd), linear(heads * hd, d), Norm(hd)
        if not query_only:
            self.k_proj, self.k_norm = linear(d, kv * hd), Norm(hd)
            self.v_proj = None if k_is_v else linear(d, kv * hd)

    def forward(self, x, cos, sin, mask, given=None, past=None):
        """given: keys and values to read instead of own ones; past: own earlier ones, put in front."""
        b, t, _ = x.shape
        q = rotate(self.q_norm(self.q_proj(x).view(b, t, self.heads, self.hd)), cos, sin)
        if given is None:
            raw = self.k_proj(x).view(b, t, self.kv, self.hd)
            v = rms(raw if self.v_proj is None else self.v_proj(x).view(b, t, self.kv, self.hd))
            given = rotate(self.k_norm(raw), cos, sin), v
            if past is not None:
                given = tuple(torch.cat(pair, 1) for pair in zip(past, given))
        return self.o_proj(attend(q, *given, mask)), given


class Mlp(nn.Module):
    def __init__(self, d, ff, act=gelu):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj, self.act = linear(d, ff), linear(d, ff), linear(ff, d), act

    def forward(self, x):
        return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """A Gemma 4 layer; with query_only it reads keys and values that the caller gives (the assistant)."""

    def __init__(self, d, ff, heads, hd, kv, k_is_v=False, query_only=False, moe=None):
        super().__init__()
        self.self_attn = Attention(d, heads, hd, kv, k_is_v, query_only)
        self.mlp = Mlp(d, ff)
        for n in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            setattr(self, n + "_layernorm", Norm(d))
        self.moe = moe is not None
        if moe:
            self.router, self.experts = moe
            for n in ("pre_feedforward_layernorm_2", "post_feedforward_layernorm_1", "post_feedforward_layernorm_2"):
                setattr(self, n, Norm(d))
        self.layer_scalar = nn.Parameter(torch.ones(1), requires_grad=False)

    def feed_forward(self, h):
        f = self.mlp(self.pre_feedforward_layernorm(h))
        if self.moe:
            weight, index = self.router(h)
            routed = self.experts(self.pre_feedforward_layernorm_2(h), weight, index)
            f = self.post_feedforward_layernorm_1(f) + self.post_feedforward_layernorm_2(routed)
        return self.post_feedforward_layernorm(f)

    def forward(self, x, cos, sin, mask, given=None, past=None):
        a, kv = self.self_attn(self.input_layernorm(x), cos, sin, mask, given, past)
        x = x + self.post_attention_layernorm(a)
        x = x + self.feed_forward(x)
        return x * self.layer_scalar.to(x.dtype), kv


def tune_norms(layers, value):
    """Attention has no 1/sqrt(hd), so q_norm * k_norm must carry it; branches enter the residual stream at `value`."""
    for l in layers:
        for n in ("q_norm", "k_norm"):
            if hasattr(l.self_attn, n):
                nn.init.constant_(getattr(l.self_attn, n).weight, l.self_attn.hd ** -0.25)
        for n in ("post_attention_layernorm", "post_feedforward_layernorm"):
            nn.init.constant_(getattr(l, n).weight, value)


@torch.no_grad()
def fold(layers, scalars):
    """Give layer_scalar new values without changing the function: every reader of the residual stream normalizes it,
    so only what the branches add must follow its scale. Do it before a drafter is trained on the stream."""
    now = 1.0                                                       # new scale of the stream over the old one
    for layer, value in zip(layers, scalars):
        layer.post_attention_layernorm.weight.mul_(now)
        layer.post_feedforward_layernorm.weight.mul_(now)
        now *= value / layer.layer_scalar.item()
        layer.layer_scalar.fill_(value)
