"""Remove a direction from a target's weights, as abliteration does: no training, a transformation.

The direction is the difference of the mean residual streams, at the last token of the prompt and in the middle of the
network, between synthetic tasks and ordinary dialogue. Every matrix that writes to the stream loses what it writes along
it. What it writes passes a norm with weights w first, so w * r is what has to go, not r. More directions (rank) change the body
more, for comparison.
"""
import json
import os
import shutil

import numpy as np
import torch

from . import continuations, export, safetensors_file


@torch.no_grad()
def directions(model, data, layer, rank=1, count=64):
    """Orthonormal rows [rank, d]: the difference of the means, then what tasks vary most in besides."""
    seen_of, device = {}, model.norm.weight.device
    for g in ("tasks", "dialogue"):
        seen = []
        for _, p in continuations.prompts_of(data, "train", {g: count}, seed=3):
            model.place(len(p), device)
            seen.append(model.trace(torch.tensor([p], device=device), taps=(layer,))[2][0][0, -1])
        x = torch.stack(seen)
        seen_of[g] = x / x.norm(dim=-1, keepdim=True)
    r = seen_of["tasks"].mean(0) - seen_of["dialogue"].mean(0)
    r = r / r.norm()
    rest = seen_of["tasks"] - seen_of["tasks"].mean(0)
    rest = rest - torch.outer(rest @ r, r)
    return torch.cat((r[None], torch.linalg.svd(rest, full_matrices=False)[2][:rank - 1]))


@torch.no_grad()
def remove(model, r, strengths=None):
    """r: [rank, d]. From what every attention and feed-forward branch adds to the stream.

    strengths: (attention, feed-forward) of each layer; None: all of it, everywhere.
    """
    for layer, (of_attention, of_feed_forward) in zip(model.layers, strengths or [(1.0, 1.0)] * len(model.layers)):
        ends = [(layer.self_attn.o_proj.weight, layer.post_attention_layernorm.weight)]
        if layer.moe:                                       # two branches with norms of their own, then the common one
            common = layer.post_feedforward_layernorm.weight
            ends.append((layer.mlp.down_proj.weight, layer.post_feedforward_layernorm_1.weight * common))
            for down in layer.experts.down_proj:
                ends.append((down, layer.post_feedforward_layernorm_2.weight * common))
        else:
            ends.append((layer.mlp.down_proj.weight, layer.post_feedforward_layernorm.weight))
        for i, (matrix, norm) in enumerate(ends):
            u = torch.linalg.qr((norm * r).t())[0]         # [out, rank]
            matrix.sub_(u @ (u.t() @ matrix), alpha=of_feed_forward if i else of_attention)


def found(path, pick, layers):
    """(layer, rank, strengths) of the trial at that place of a search's front, which begins with the least of the behaviour left."""
    from . import abliterate_search
    with open(path, encoding="utf-8") as f:
        trial = json.load(f)["front"][pick]
    print(json.dumps(trial))
    return trial["layer"], trial["rank"], abliterate_search.profile(trial, layers)


def run(source, data, out, rank=1, search="", pick=0):
    model = export.load(source, "cuda" if torch.cuda.is_available() else "cpu")
    layer, rank, strengths = found(search, pick, model.s.layers) if search else (model.s.layers // 2, rank, None)
    r = directions(model, data, layer, rank)
    remove(model, r, strengths)
    os.makedirs(out, exist_ok=True)
    for name in os.listdir(source):
        if name.endswith(".json"):
            shutil.copy(os.path.join(source, name), out)
    tensors = {"model." + k: ("BF16", safetensors_file.bf16(v.cpu().numpy())) for k, v in model.state_dict().items()}
    safetensors_file.write(os.path.join(out, "model.safetensors"), tensors)
    np.save(os.path.join(out, "direction.npy"), r.cpu().numpy())
    return layer
