"""The Qwen3.6 text network: gated DeltaNet layers, each fourth one gated attention. Parameter names are the published ones.

Norms are zero-centred, x (1 + w), but for the one behind the delta rule. In training the table is read times sqrt(d), so
that one rate suits it as input and as head; export_qwen.plain makes plain weights of that.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

from . import delta
from .gemma4 import in_half
from .layers import Causal, Mlp, linear, rms
from .shapes import QwenShape


class Norm(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(n))

    def forward(self, x):
        return rms(x, 1 + self.weight.float())


def rope_table(length, pairs, theta, device="cpu"):
    angle = torch.arange(length, device=device, dtype=torch.float32)[:, None] * theta ** (-torch.arange(pairs, device=device).float() / pairs)
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    """x [B, T, H, D]: of the first 2 * pairs elements, i turns with i + pairs; cos, sin [T, pairs]."""
    n = cos.shape[-1]
    a, b, rest = x.float().split((n, n, x.shape[-1] - 2 * n), -1)
    c, s = cos[:, None], sin[:, None]
    return torch.cat((a * c - b * s, b * c + a * s, rest), -1).to(x.dtype)


def attend(q, k, v, mask):
    """q [B, H, T, D], k and v [B, H, S, D]; the last query is at the last key's position."""
    if mask.kernel == "flash" and q.shape[2] == k.shape[2]:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    scores = (q @ k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5
    scores = scores.masked_fill(~mask.visible(q.shape[2], k.shape[2], q.device), float("-inf"))
    return torch.softmax(scores, -1).to(v.dtype) @ v


class Attention(nn.Module):
    """Softmax attention whose result is gated; q_proj holds, per head, the rows of the query and then those of the gate."""

    def __init__(self, s):
        super().__init__()
        self.heads, self.hd, self.kv = s.heads, s.hd, s.kv
        self.q_proj, self.o_proj = linear(s.d, 2 * s.heads * s.hd), linear(s.heads * s.hd, s.d)
        self.k_proj, self.v_proj = linear(s.d, s.kv * s.hd), linear(s.d, s.kv * s.hd)
        self.q_norm, self.k_norm = Norm(s.hd), Norm(s.hd)

    def project(self, x, cos, sin):
        """x [B, T, d] -> q [B, T, H, D], keys and values [B, T, K, D], gate [B, T, H * D]."""
        b, t, _ = x.shape
        q, gate = self.q_proj(x).view(b, t, self.heads, 2 * self.hd).chunk(2, -1)
        k = self.k_proj(x).view(b, t, self.kv, self.hd)
        v = self.v_proj(x).view(b, t, self.kv, self.hd)
        return rotate(self.q_norm(q), cos, sin), rotate(self.k_norm(k), cos, sin), v, gate.flatten(2)

    def forward(self, x, cos, sin, mask, past=None):
        q, k, v, gate = self.project(x, cos, sin)
        if past is not None:
            k, v = torch.cat((past[0], k), 1), torch.cat((past[1], v), 1)
        o = attend(*self.heads_first(q, k, v), mask)
        return self.o_proj(o.transpose(1, 2).flatten(2) * torch.sigmoid(gate)), (k, v)

    def heads_first(self, q, k, v):
        return (q.transpose(1, 2), *(x.repeat_interleave(self.heads // self.kv, 2).transpose(1, 2) for x in (k, v)))


class DeltaNet(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.k_heads, self.v_heads, self.hd = s.k_heads, s.v_heads, s.dhd
        self.keys, self.values = s.k_heads * s.dhd, s.v_heads * s.dhd
        self.in_proj_qkv = linear(s.d, 2 * self.keys + self.values)
        self.in_proj_z = linear(s.d, self.values)
        self.in_proj_b, self.in_proj_a = linear(s.d, s.v_heads), linear(s.d, s.v_heads)
        self.conv1d = nn.Module()
        self.conv1d.weight = nn.Parameter(torch.zeros(2 * self.keys + self.values, 1, s.taps))
        self.A_log, self.dt_bias = nn.Parameter(torch.zeros(s.v_heads)), nn.Parameter(torch.zeros(s.v_heads))
        self.norm = nn.Module()
        self.norm.weight = nn.Parameter(torch.ones(s.dhd))
        self.out_proj = linear(self.values, s.d)

    def convolve(self, u, before):
        """u [B, T, channels] behind `before`, the taps - 1 rows in front of it; silu of the causal convolution."""
        w = self.conv1d.weight[:, 0].to(u.dtype)
        u = torch.cat((before, u), 1)
        t = u.shape[1] - w.shape[1] + 1
        return F.silu(sum(u[:, i:i + t] * w[:, i] for i in range(w.shape[1])))

    def unit(self, x):
        x = x.float()
        return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)

    def before(self, x, past):
        """What the delta rule takes (q, k, v in the precision of products); the gate z; the rows of u that the next convolution needs."""
        b, t, _ = x.shape
        u = self.in_proj_qkv(x)
        past = u.new_zeros(b, self.conv1d.weight.shape[-1] - 1, u.shape[-1]) if past is None else past.to(u.dtype)
        q, k, v = self.convolve(u, past).split((self.keys, self.keys, self.values), -1)
        q, k = (self.unit(y.reshape(b, t, self.k_heads, self.hd)).repeat_interleave(self.v_heads // self.k_heads, 2) for y in (q, k))
        beta = torch.sigmoid(self.in_proj_b(x).float())
        g = -self.A_log.float().exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias.float())
        z = self.in_proj_z(x).view(b, t, self.v_heads, self.hd)
        return ((q * self.hd ** -0.5).to(u.dtype), k.to(u.dtype), v.reshape(b, t, self.v_heads, self.hd), g, beta, z,
                torch.cat((past, u), 1))

    def after(self, o, z):
        y = rms(o, self.norm.weight).to(z.dtype) * F.silu(z)
        return self.out_proj(y.flatten(2))


class Layer(nn.Module):
    def __init__(self, s, full):
        super().__init__()
        self.full = full
        self.input_layernorm, self.post_attention_layernorm = Norm(s.d), Norm(s.d)
        if full:
            self.self_attn = Attention(s)
        else:
            self.linear_attn = DeltaNet(s)
        self.mlp = Mlp(s.d, s.ff, F.silu)

    def feed(self, x):
        return x + self.mlp(self.post_attention_layernorm(x))

    def attend(self, x, cos, sin, mask, past=None):
        a, kv = self.self_attn(self.input_layernorm(x), cos, sin, mask, past)
        return self.feed(x + a), kv

    def before(self, x, past=None):
        return self.linear_attn.before(self.input_layernorm(x), past)

    def after(self, x, o, z):
        return self.feed(x + self.linear_attn.after(o, z))


PARTS = ("attend", "before", "after")                       # of a layer: compiled each by itself, the delta rule is not


class Qwen(nn.Module):
    def __init__(self, s: QwenShape, scale=None):
        super().__init__()
        self.s, self.scale = s, s.d ** 0.5 if scale is None else scale
        self.kinds = s.types()
        self.embed_tokens = nn.Embedding(s.vocab, s.d)
        self.layers = nn.ModuleList(Layer(s, k == "full_attention") for k in self.kinds)
        self.norm = Norm(s.d)
        if not s.tied:
            self.lm_head = linear(s.d, s.vocab)
        self.reset()

    @property
    def head(self):
        return self.embed_tokens.weight if self.s.tied else self.lm_head.weight

    def reset(self):
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.normal_(m.weight, std=m.in_features ** -0.5)
        nn.init.normal_(self.embed_tokens.weight, std=self.s.d ** -0.5)
        for l in self.layers:
            branches = [l.mlp.down_proj, l.self_attn.o_proj if l.full else l.linear_attn.out_proj]
            for m in branches:
                m.weight.data.mul_((2 * len(self.layers)) ** -0.5)
            if not l.full:
                a = l.linear_attn
                nn.init.normal_(a.conv1d.weight, std=0.1)
                a.conv1d.weight.data[..., -1] += 1
                nn.init.zeros_(a.in_proj_a.weight)
                n = a.A_log.numel()                         # steps of 1/4 to 1/512 nats a token, as memory of few to many
                rate = torch.logspace(-2, -9, n, base=2.0)
                a.A_log.data.zero_()
                a.dt_bias.data.copy_(torch.log(torch.expm1(rate)))

    def bfloat16(self):
        """Matrices only: norms near -1 and decays need their bits."""
        for p in self.parameters():
            if p.ndim > 1:
                p.data = p.data.bfloat16()
        return self

    def place(self, length, device, kernel="plain"):
        self.rope = rope_table(length, self.s.pairs, self.s.theta, device)
        self.mask = Causal(kernel, 0)
        return self

    def compile_parts(self):
        """One graph for all layers of a kind; the loop over chunks stays outside, so that any length is quick to compile."""
        for l in self.layers:
            for name in PARTS:
                setattr(l, name, torch.compile(getattr(l, name), dynamic=False))
        self.head_loss = torch.compile(self.head_loss, dynamic=False)
        for name in ("first", "second", "third"):
            if not hasattr(getattr(delta, name), "_torchdynamo_orig_callable"):
                setattr(delta, name, torch.compile(getattr(delta, name), dynamic=False))
        return self

    def embed(self, ids):
        x = self.embed_tokens(ids) * self.scale
        return x.to(torch.bfloat16) if in_half(x) else x

    def rule(self, *tensors):
        """Outside of autocast: what comes in half precision is multiplied in it; decays, the inverse and the state are float32
        (TF32 products on a GPU)."""
        with torch.autocast("cuda" if tensors[0].is_cuda else "cpu", enabled=False):
            return delta.chunked(*tensors)

    def trace(self, ids, taps=(), past=None):
        """Final hidden (after the last norm), nothing, residual stream after each tap layer; past as in Gemma4.trace."""
        x, seen = self.embed(ids), []
        start = next((p[0].shape[1] for l, p in zip(self.layers, past or []) if l.full and p is not None), 0)
        cos, sin = (r[start:start + ids.shape[1]] for r in self.rope)
        for i, l in enumerate(self.layers):
            old = past[i] if past else None
            if l.full:
                x, new = l.attend(x, cos, sin, self.mask, old)
            else:
                *rule, z, u = l.before(x, old and old[0])
                o, state = self.rule(*rule, old and old[1])
                x, new = l.after(x, o, z), (u[:, 1 - self.s.taps:], state)
            if past is not None:
                past[i] = new
            if i in taps:
                seen.append(x)
        return self.norm(x), None, seen

    def logits(self, z):
        return F.linear(z, self.head).float()

    def head_loss(self, x, ids, weight):
        each = F.cross_entropy(self.logits(x).flatten(0, 1), ids.flatten(), reduction="none")
        return (each * weight.flatten()).sum() / weight.sum()

    def loss(self, ids, weight):
        """Weighted mean next-token loss: ids [B, T+1], weight [B, T] of the predicted tokens."""
        return self.head_loss(self.trace(ids[:, :-1])[0], ids[:, 1:], weight)
