"""Makes the reference of tests/data/dflash with the training code's network (train/carat_train/dflash.py): a small DFlash
drafter with random weights on the golden model gemma4_dense, and what it computes for given features.

    cd train && /usr/bin/python3 ../tests/data/dflash/make.py

Weights are rounded to bf16 first, so the checkpoint loses nothing; everything is float32. Two masks: as trained (sliding
layers causal inside the block, the global one both ways, no window in reach), and with the window of the config.
"""
import json
import os
import sys

import numpy as np
import torch

sys.path.insert(0, os.getcwd())
from carat_train import safetensors_file as st  # noqa: E402
from carat_train.dflash import DFlash  # noqa: E402
from carat_train.layers import capped  # noqa: E402
from carat_train.shapes import Shape  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
TARGET = os.path.join(HERE, "..", "goldens", "gemma4_dense")
BLOCK, TAPS, WINDOW, CONTEXT, MASK = 8, [1, 3, 5], 12, 40, 4


class Target:
    """The golden model's table, scale and soft-cap."""

    def __init__(self):
        tensors = st.read(os.path.join(TARGET, "model.safetensors"))
        name = next(n for n in tensors if n.endswith("embed_tokens.weight") and "per_layer" not in n)
        self.table = torch.from_numpy(np.array(st.float32(*tensors[name])))
        with open(os.path.join(TARGET, "config.json")) as f:
            c = json.load(f)
        self.cap = c.get("text_config", c)["final_logit_softcapping"]

    def embed(self, ids):
        return self.table[ids] * self.table.shape[1] ** 0.5

    def logits(self, z):
        return capped(z, self.table, self.cap)


class Windowed:
    """A BlockMask of one block at the end of the context; sliding layers see what is less than `window` positions back."""

    def __init__(self, causal, window):
        q = CONTEXT + torch.arange(BLOCK)[:, None]
        k = torch.arange(CONTEXT + BLOCK)[None]
        self.kernel = "plain"
        self.dense = ((k < CONTEXT) | (k <= q) if causal else torch.ones(BLOCK, CONTEXT + BLOCK, dtype=torch.bool))
        if window:
            self.dense = self.dense & (q - k < window)


def main():
    torch.manual_seed(611)
    torch.set_num_threads(1)
    target = Target()
    d = target.table.shape[1]
    shape = Shape(vocab=target.table.shape[0], d=d, layers=7, cap=target.cap)
    net = DFlash(shape, ff=96, heads=4, hd=16, kv=2, layers=3, size=BLOCK, taps=len(TAPS))
    with torch.no_grad():
        for name, p in net.named_parameters():
            if "norm" in name:
                p.copy_(1 + 0.2 * torch.randn_like(p))
            else:
                p.copy_(torch.randn_like(p) * p.shape[1] ** -0.5)
            p.copy_(torch.from_numpy(st.float32("BF16", st.bf16(p.numpy()))))
    out, features = {}, torch.randn(CONTEXT, len(TAPS) * d) * 2
    anchor = 77
    net.place(CONTEXT, "cpu", blocks=1)
    net.aim(torch.tensor([CONTEXT]))
    ids = torch.zeros(1, CONTEXT + BLOCK, dtype=torch.long)
    ids[0, CONTEXT] = anchor
    seen = [features[None, :, i * d:(i + 1) * d] for i in range(len(TAPS))]
    with torch.no_grad():
        out["logits.trained"] = target.logits(net.draft(target, ids, seen))[0, 0]
        net.mask = [Windowed(True, WINDOW), Windowed(False, 0)]
        out["logits.window"] = target.logits(net.draft(target, ids, seen))[0, 0]
        net.mask = [Windowed(False, WINDOW), Windowed(False, 0)]
        out["logits.both_ways"] = target.logits(net.draft(target, ids, seen))[0, 0]
        net.mask = [Windowed(True, WINDOW), Windowed(True, 0)]
        out["logits.causal"] = target.logits(net.draft(target, ids, seen))[0, 0]
    out["features"] = features
    st.write(os.path.join(HERE, "goldens.safetensors"), {k: ("F32", v.numpy()) for k, v in out.items()})
    st.write(os.path.join(HERE, "model.safetensors"),
             {k: ("BF16", st.bf16(v.numpy())) for k, v in net.state_dict().items()})
    config = dict(
        architectures=["DFlashDraftModel"], model_type="qwen3", dtype="bfloat16", vocab_size=shape.vocab, hidden_size=d,
        intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-6,
        rope_theta=1000000, layer_types=["sliding_attention", "sliding_attention", "full_attention"], sliding_window=WINDOW,
        max_position_embeddings=4096, block_size=BLOCK, num_target_layers=7, tie_word_embeddings=False, hidden_act="silu",
        attention_bias=False, dflash_config=dict(target_layer_ids=TAPS, mask_token_id=MASK))
    with open(os.path.join(HERE, "config.json"), "w") as f:
        json.dump(config, f, indent=1)
        f.write("\n")
    for k, v in out.items():
        print(k, tuple(v.shape), float(v.abs().max()))
    print(float((out["logits.trained"] - out["logits.window"]).abs().max()),
          float((out["logits.causal"] - out["logits.window"]).abs().max()),
          float((out["logits.both_ways"] - out["logits.window"]).abs().max()))


main()
