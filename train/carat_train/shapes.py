"""Shapes of the models. One dataclass; a preset per model of the family."""
from dataclasses import dataclass

SLIDING, GLOBAL = "sliding_attention", "full_attention"
MASK_TOKEN = 4
THETA = {SLIDING: 1e4, GLOBAL: 1e6}        # rotary base by layer type
ROTATED = {SLIDING: 1.0, GLOBAL: 0.25}     # share of the rotary pairs that turn


@dataclass(frozen=True)
class Shape:
    vocab: int = 16384
    d: int = 512
    layers: int = 12
    ff: int = 1280
    heads: int = 4          # query heads, both layer types
    hd: int = 128           # head size, sliding
    kv: int = 2             # KV heads, sliding
    ghd: int = 256          # head size, global
    gkv: int = 1            # KV heads, global; K and V share one projection there
    window: int = 256       # keys a sliding layer sees, itself included
    every: int = 6          # each sixth layer is global
    cap: float = 30.0
    context: int = 8192
    experts: int = 0        # 0: dense
    top_k: int = 0
    expert_ff: int = 0

    def types(self):
        return [GLOBAL if (i + 1) % self.every == 0 else SLIDING for i in range(self.layers)]

    def head(self, kind):
        """(head size, KV heads) of a layer type."""
        return (self.ghd, self.gkv) if kind == GLOBAL else (self.hd, self.kv)


@dataclass(frozen=True)
class QwenShape:
    vocab: int = 16384
    d: int = 512
    layers: int = 8
    ff: int = 1024
    heads: int = 4          # query heads of the attention layers
    hd: int = 128           # their size
    kv: int = 2             # KV heads
    k_heads: int = 2        # key heads of the delta rule
    v_heads: int = 4        # its value heads
    dhd: int = 128          # size of both
    taps: int = 4           # of its convolution
    every: int = 4          # each fourth layer attends
    rotated: float = 0.25   # share of an attention head that turns
    theta: float = 1e6
    context: int = 8192
    tied: bool = True      # the table is the head, too
    cap = None              # no soft cap on logits
    experts = 0

    @property
    def pairs(self):
        return int(self.rotated * self.hd) // 2

    def types(self):
        return ["full_attention" if (i + 1) % self.every == 0 else "linear_attention" for i in range(self.layers)]


PRESETS = {
    "carat-demo": Shape(),
    "carat-demo-qwen": QwenShape(),
    "smoke-qwen": QwenShape(vocab=290, d=64, layers=4, ff=128, heads=2, hd=32, kv=1, k_heads=1, v_heads=2, dhd=32, context=512),
    "carat-demo-moe": Shape(d=256, layers=6, ff=384, experts=16, top_k=4, expert_ff=128),
    "smoke": Shape(vocab=290, d=64, layers=6, ff=128, heads=2, hd=32, kv=1, ghd=64, window=48, context=512),
    "smoke-moe": Shape(vocab=290, d=64, layers=6, ff=64, heads=2, hd=32, kv=1, ghd=64, window=48, context=512,
                       experts=8, top_k=2, expert_ff=32),
}
