"""The whole network of the E shape: text with per-layer embeddings and shared keys and values, eyes, ears."""
import torch
import torch.nn as nn
import torch.nn.functional as F

from ..gemma4 import in_half
from ..layers import Layer, Norm, capped, gelu, linear, rope_table, tune_norms
from ..shapes import GLOBAL, ROTATED, SLIDING, THETA
from .ears import Ears
from .eyes import Eyes
from .packed import Causal


class LayerE(Layer):
    """A layer that reads its part of the per-layer embeddings behind the feed-forward."""

    def __init__(self, s, index, kind):
        super().__init__(s.d, s.width(index), s.heads, *s.head(kind), query_only=index >= s.layers - s.shared)
        self.per_layer_input_gate, self.per_layer_projection = linear(s.d, s.p), linear(s.p, s.d)
        self.post_per_layer_input_norm = Norm(s.d)

    def forward(self, x, cos, sin, mask, given=None, ple=None):
        a, kv = self.self_attn(self.input_layernorm(x), cos, sin, mask, given)
        x = x + self.post_attention_layernorm(a)
        x = x + self.feed_forward(x)
        y = self.per_layer_projection(gelu(self.per_layer_input_gate(x)) * ple)
        return (x + self.post_per_layer_input_norm(y)) * self.layer_scalar.to(x.dtype), kv


class Text(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s, self.kinds, self.donor = s, s.types(), s.donors()
        self.embed_tokens = nn.Embedding(s.vocab, s.d)
        self.embed_tokens_per_layer = nn.Embedding(s.vocab, s.layers * s.p)
        self.per_layer_model_projection = linear(s.d, s.layers * s.p)
        self.per_layer_projection_norm = Norm(s.p)
        self.layers = nn.ModuleList(LayerE(s, i, k) for i, k in enumerate(self.kinds))
        self.norm = Norm(s.d)

    def place(self, length, device):
        self.rope = {k: rope_table(length, self.s.head(k)[0], THETA[k], ROTATED[k], device) for k in (SLIDING, GLOBAL)}

    def per_layer(self, ids, x):
        """What each layer gets beside the stream, [1, N, layers, p]."""
        s = self.s
        table = F.embedding(ids, self.embed_tokens_per_layer.weight) * s.p ** 0.5
        ahead = self.per_layer_projection_norm((self.per_layer_model_projection(x) * s.d ** -0.5).view(*x.shape[:2], s.layers, s.p))
        return (ahead + table.view(ahead.shape).to(ahead.dtype)) * 2 ** -0.5

    def forward(self, ids, pos, packed, soft, source):
        """ids, pos [N]; source [N]: the row of `soft` [M, d] at that place, -1 at text. Returns [N, d], normed."""
        own = source < 0
        x = self.embed_tokens(ids) * self.s.d ** 0.5
        x = (x.to(torch.bfloat16) if in_half(x) else x)
        if soft is not None:
            apart = torch.arange(len(ids), device=ids.device) % len(soft)         # any row, not one for all: gradients are summed up by row
            x = torch.where(own[:, None], x, soft[torch.where(own, apart, source)].to(x.dtype))
        x, kv = x[None], {}
        ple = self.per_layer(torch.where(own, ids, torch.zeros_like(ids))[None], x)
        for i, (kind, layer) in enumerate(zip(self.kinds, self.layers)):
            cos, sin = (r[pos] for r in self.rope[kind])
            mask = Causal(packed, self.s.window if kind == SLIDING else 0)
            x, pair = layer(x, cos, sin, mask, kv[kind] if i >= self.s.layers - self.s.shared else None, ple[:, :, i])
            if self.donor.get(kind) == i:
                kv[kind] = pair
        return self.norm(x)[0]


class Projection(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.embedding_projection = linear(a, b)

    def forward(self, x):
        return self.embedding_projection(x)


class Senses(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s, self.language_model = s, Text(s)
        self.vision_tower, self.audio_tower = Eyes(s.eyes), Ears(s.ears)
        self.embed_vision, self.embed_audio = Projection(s.eyes.d, s.d), Projection(s.ears.out, s.d)
        self.reset()

    def reset(self):
        """As Gemma4.reset; tables of positions start at zero, what the ears add at the size of the text's branches."""
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.normal_(m.weight, std=m.in_features ** -0.5)
        text = self.language_model
        nn.init.normal_(text.embed_tokens.weight, std=self.s.d ** -0.5)
        nn.init.normal_(text.embed_tokens_per_layer.weight, std=self.s.p ** -0.5)
        tune_norms(text.layers, (2 * self.s.layers) ** -0.5)
        for layer in text.layers:
            nn.init.constant_(layer.post_per_layer_input_norm.weight, (2 * self.s.layers) ** -0.5)
        nn.init.zeros_(self.audio_tower.output_proj.bias)

    def place(self, length, device):
        self.language_model.place(length, device)
        return self

    def see(self, pixels, at, packed):
        return self.embed_vision(self.vision_tower(pixels, at, packed))

    def hear(self, mel, valid):
        """[A * frames / 4, d]: the rows of all clips, with those behind a clip's end."""
        return self.embed_audio(self.audio_tower(mel, valid)).flatten(0, 1)

    def logits(self, z):
        return capped(z, self.language_model.embed_tokens.weight, self.s.cap)
