"""The shipped files of a model that sees and hears back to a directory that training goes on from (--start)."""
import json
import os
import re

import numpy as np
import torch

from .. import from_gguf, gguf_file
from . import export
from .shapes import PRESETS

TEXT = dict(from_gguf.LAYER, **{"inp_gate.weight": "per_layer_input_gate.weight", "proj.weight": "per_layer_projection.weight",
                                "post_norm.weight": "post_per_layer_input_norm.weight"})
BESIDE = {"token_embd.weight": "embed_tokens.weight", "per_layer_token_embd.weight": "embed_tokens_per_layer.weight", "output_norm.weight": "norm.weight",
          "per_layer_model_proj.weight": "per_layer_model_projection.weight", "per_layer_proj_norm.weight": "per_layer_projection_norm.weight"}
EYES = {"ln1": "input_layernorm", "attn_post_norm": "post_attention_layernorm", "ln2": "pre_feedforward_layernorm", "ffn_post_norm": "post_feedforward_layernorm",
        "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj", "attn_out": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
EARS = {"ffn_norm": "feed_forward1.pre_layer_norm", "ffn_post_norm": "feed_forward1.post_layer_norm", "ffn_norm_1": "feed_forward2.pre_layer_norm",
        "ffn_post_norm_1": "feed_forward2.post_layer_norm", "attn_pre_norm": "norm_pre_attn", "attn_post_norm": "norm_post_attn",
        "attn_k_rel": "self_attn.relative_k_proj", "per_dim_scale": "self_attn.per_dim_scale", "conv_norm": "lconv1d.pre_layer_norm",
        "norm_conv": "lconv1d.conv_norm", "conv_dw": "lconv1d.depthwise_conv1d", "ln2": "norm_out", "ffn_up": "feed_forward1.ffw_layer_1",
        "ffn_down": "feed_forward1.ffw_layer_2", "ffn_up_1": "feed_forward2.ffw_layer_1", "ffn_down_1": "feed_forward2.ffw_layer_2",
        "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_out": "self_attn.post",
        "conv_pw1": "lconv1d.linear_start", "conv_pw2": "lconv1d.linear_end"}
TOWERS = {"v.patch_embd.weight": "vision_tower.patch_embedder.input_proj.weight", "v.position_embd.weight": "vision_tower.patch_embedder.position_embedding_table",
          "mm.input_projection.weight": "embed_vision.embedding_projection.weight", "mm.a.input_projection.weight": "embed_audio.embedding_projection.weight",
          "a.input_projection.weight": "audio_tower.subsample_conv_projection.input_proj_linear.weight",
          "a.pre_encode.out.weight": "audio_tower.output_proj.weight", "a.pre_encode.out.bias": "audio_tower.output_proj.bias"}


def text_name(name):
    if name in BESIDE:
        return "language_model." + BESIDE[name]
    m = re.fullmatch(r"blk\.(\d+)\.(.+)", name)
    return f"language_model.layers.{m[1]}.{TEXT[m[2]]}"


def tower_name(name):
    if name in TOWERS:
        return TOWERS[name]
    m = re.fullmatch(r"a\.conv1d\.(\d)\.(norm\.)?weight", name)
    if m:
        return f"audio_tower.subsample_conv_projection.layer{m[1]}.{'norm' if m[2] else 'conv'}.weight"
    m = re.fullmatch(r"([va])\.blk\.(\d+)\.(\w+)\.(\w+)", name)
    inner, part = (EYES if m[1] == "v" else EARS)[m[3]], "." + m[4]
    limited = inner.split(".")[-1] in ("q_proj", "k_proj", "v_proj", "o_proj", "post", "gate_proj", "up_proj", "down_proj", "ffw_layer_1", "ffw_layer_2",
                                       "linear_start", "linear_end")
    if limited and m[4] == "weight":
        part = ".linear.weight"
    if m[3] == "per_dim_scale":
        part = ""
    return ("vision_tower.encoder.layers." if m[1] == "v" else "audio_tower.layers.") + f"{m[2]}.{inner}{part}"


def adapted(name, x):
    """A file's tensor in the trainer's form."""
    if name == "v.patch_embd.weight":
        return x.transpose(0, 2, 3, 1).reshape(len(x), -1)                     # [d, channel, row, column] -> [d, row, column, channel]
    if name.endswith("per_dim_scale.weight"):
        return np.log(np.expm1(x.astype(np.float64))).astype(np.float32)       # softplus is in the file
    if name.endswith("conv_dw.weight"):
        return x[:, None]
    return x


def export_hf(text, projector, tokenizer, out, shape=PRESETS["carat-demo-e"]):
    """tokenizer: that of the plain demo, whose entries RENAMED renames."""
    meta, weights = gguf_file.read(text)
    state = {text_name(k): v for k, v in weights.items() if k != "rope_freqs.weight"}
    state.update((tower_name(k), adapted(k, v)) for k, v in gguf_file.read(projector)[1].items())
    assert shape.vocab == len(meta["tokenizer.ggml.tokens"])
    os.makedirs(out, exist_ok=True)
    model = export.Senses(shape)
    own = model.state_dict()
    got = {k: torch.from_numpy(np.array(v)).reshape(own[k].shape) for k, v in state.items() if k in own}
    assert sorted(got) == sorted(own), sorted(set(own) ^ set(got))[:5]
    tensors = {"model." + k: ("BF16", export.safetensors_file.bf16(v.numpy())) for k, v in got.items()}
    export.safetensors_file.write(os.path.join(out, "model.safetensors"), tensors)
    export.beside(tokenizer, shape, out)
    return json.dumps({"tensors": len(tensors), "unused": sorted(set(state) - set(own))[:4]})
