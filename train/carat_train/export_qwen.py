"""Qwen3.6-shaped models to Hugging Face directories and back; the drafting head beside its target or within."""
import json
import os
import shutil

import numpy as np
import torch

from . import safetensors_file
from .nextn import Nextn
from .qwen import Qwen
from .shapes import QwenShape

BODY = "model.language_model."
HEAD = "mtp."


def config(s, nextn=0):
    pairs = s.pairs
    side = (pairs + 1) // 3
    rope = dict(rope_type="default", rope_theta=s.theta, partial_rotary_factor=s.rotated, mrope_interleaved=True,
                mrope_section=[pairs - 2 * side, side, side])
    return dict(
        architectures=["Qwen3_5ForCausalLM"], model_type="qwen3_5_text", dtype="float32", vocab_size=s.vocab, hidden_size=s.d,
        intermediate_size=s.ff, num_hidden_layers=s.layers, num_attention_heads=s.heads, num_key_value_heads=s.kv, head_dim=s.hd,
        layer_types=s.types(), full_attention_interval=s.every, linear_conv_kernel_dim=s.taps, linear_key_head_dim=s.dhd,
        linear_value_head_dim=s.dhd, linear_num_key_heads=s.k_heads, linear_num_value_heads=s.v_heads, rope_parameters=rope,
        partial_rotary_factor=s.rotated, rms_norm_eps=1e-6, hidden_act="silu", attention_bias=False, attention_dropout=0.0,
        attn_output_gate=True, mamba_ssm_dtype="float32", tie_word_embeddings=s.tied, max_position_embeddings=s.context,
        mtp_num_hidden_layers=nextn, mtp_use_dedicated_embeddings=False, pad_token_id=0, eos_token_id=[1, 16], bos_token_id=2, use_cache=True)


def shape_from(c):
    c = c.get("text_config", c)
    rope = c["rope_parameters"]
    return QwenShape(
        vocab=c["vocab_size"], d=c["hidden_size"], layers=c["num_hidden_layers"], ff=c["intermediate_size"], heads=c["num_attention_heads"],
        hd=c["head_dim"], kv=c["num_key_value_heads"], k_heads=c["linear_num_key_heads"], v_heads=c["linear_num_value_heads"],
        dhd=c["linear_key_head_dim"], taps=c["linear_conv_kernel_dim"], every=c["layer_types"].index("full_attention") + 1,
        rotated=rope["partial_rotary_factor"], theta=rope["rope_theta"], context=c["max_position_embeddings"], tied=c["tie_word_embeddings"])


def is_qwen(c):
    return c["model_type"].startswith("qwen3_5")


def plain(state, scale):
    """The weights of a network that reads its table times `scale`, as weights of one that reads it as it is."""
    out = {k: v.float() for k, v in state.items()}
    out["embed_tokens.weight"] = out["embed_tokens.weight"] * scale
    if "lm_head.weight" not in out:
        out["norm.weight"] = (1 + out["norm.weight"]) / scale - 1
    return out


def stored(state, prefix):
    """Matrices in bf16; vectors in f32, since a norm's weight near -1 has few bits left in bf16."""
    kind = {True: "BF16", False: "F32"}
    return {prefix(k): (kind[v.ndim > 1], safetensors_file.bf16(v.numpy()) if v.ndim > 1 else v.numpy()) for k, v in state.items()}


def write(tensors, c, out):
    from .export import dump_json
    os.makedirs(out, exist_ok=True)
    safetensors_file.write(os.path.join(out, "model.safetensors"), tensors)
    dump_json(os.path.join(out, "config.json"), c)


def export(weights, s, out):
    """weights: a state dict as training left it."""
    tensors = stored(plain(weights, Qwen(s).scale), lambda k: k if k.startswith("lm_head") else BODY + k)
    write(tensors, config(s), out)


def read(folder, prefixes):
    """(config, {name: float32}) of the tensors behind one of the prefixes."""
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        c = json.load(f)
    out = {}
    for k, v in safetensors_file.read(os.path.join(folder, "model.safetensors")).items():
        prefix = next((p for p in prefixes if k.startswith(p)), None)
        if prefix is not None:
            out[k[len(prefix):]] = torch.from_numpy(np.array(safetensors_file.float32(*v)))
    return c, out


def load(folder, device="cpu"):
    c, state = read(folder, (BODY, "lm_head"))
    if ".weight" in state:
        state["lm_head.weight"] = state.pop(".weight")
    model = Qwen(shape_from(c), scale=1.0)
    model.load_state_dict(state)
    return model.to(device).eval()


def export_head(model, out):
    state = {k: v.detach().float().cpu() for k, v in model.state_dict().items()}
    state["norm.weight"] = (1 + state["norm.weight"]) * model.scale - 1
    write(stored(state, lambda k: HEAD + k), config(model.s, 1), out)


def load_head(folder, s):
    _, state = read(folder, (HEAD,))
    model = Nextn(s)
    model.scale = 1.0
    model.load_state_dict(state)
    return model.eval()


def join(body, head, out):
    """One directory with the head within, as published."""
    os.makedirs(out, exist_ok=True)
    for name in os.listdir(body):
        if name.endswith(".json"):
            shutil.copy(os.path.join(body, name), out)
    tensors = {**safetensors_file.read(os.path.join(body, "model.safetensors")), **safetensors_file.read(os.path.join(head, "model.safetensors"))}
    with open(os.path.join(head, "config.json"), encoding="utf-8") as f:
        write(tensors, json.load(f), out)
