"""Shapes of a model with eyes and ears. Vocabulary, towers and text as small as the task allows, structure as published."""
from dataclasses import dataclass, field

from ..shapes import GLOBAL, SLIDING

# Entries of the tokenizer that the plain demos leave unused, by their published texts.
MEDIA = {"<|image>": 17, "<image|>": 18, "<|image|>": 19, "<|audio>": 20, "<audio|>": 21, "<|audio|>": 22, "<|video|>": 23}
RENAMED = {f"<unused{i}>": name for i, name in enumerate(MEDIA)}
RATE = 16000


@dataclass(frozen=True)
class EyesShape:
    d: int = 192
    layers: int = 5
    heads: int = 3
    ff: int = 512
    patch: int = 16
    pool: int = 3
    table: int = 420        # columns (and rows) with a learned position: pictures of up to 62 to 1 at 280 rows
    limit: float = 24.0     # of every product's input and output


@dataclass(frozen=True)
class EarsShape:
    d: int = 160
    layers: int = 4
    heads: int = 4
    channels: tuple = (128, 32)
    out: int = 256          # rows between the tower and the text's width
    limit: float = 24.0


@dataclass(frozen=True)
class SensesShape:
    """The text model's; the towers' inside."""
    vocab: int = 16384
    d: int = 256
    layers: int = 12
    ff: int = 768
    heads: int = 4
    hd: int = 64            # head size, sliding
    kv: int = 1
    ghd: int = 128          # head size, global
    gkv: int = 1
    window: int = 512
    every: int = 6
    shared: int = 6         # last layers, which read the keys and values of the last ones before them
    p: int = 16             # width of the per-layer embeddings
    double_ff: bool = False  # of the sharing layers (E2B)
    kinds: tuple = ()       # another pattern than each `every`-th global
    cap: float = 30.0
    context: int = 8192
    experts = 0
    image_id: int = MEDIA["<|image|>"]
    audio_id: int = MEDIA["<|audio|>"]
    eyes: EyesShape = field(default_factory=EyesShape)
    ears: EarsShape = field(default_factory=EarsShape)

    def types(self):
        return list(self.kinds) or [GLOBAL if (i + 1) % self.every == 0 else SLIDING for i in range(self.layers)]

    def head(self, kind):
        return (self.ghd, self.gkv) if kind == GLOBAL else (self.hd, self.kv)

    def width(self, layer):
        return self.ff * (2 if self.double_ff and layer >= self.layers - self.shared else 1)

    def donors(self):
        """Layer type -> the layer whose keys and values the sharing ones read."""
        own = self.types()[:self.layers - self.shared]
        return {k: max(i for i, t in enumerate(own) if t == k) for k in set(own)}


PRESETS = {
    "carat-demo-e": SensesShape(),
    "smoke-e": SensesShape(vocab=290, d=64, layers=6, ff=96, heads=2, hd=32, ghd=64, window=48, every=3, shared=3, p=16, context=1024,
                           eyes=EyesShape(d=64, layers=2, heads=2, ff=96, table=160), ears=EarsShape(d=64, layers=2, heads=2, channels=(16, 8), out=32)),
}
