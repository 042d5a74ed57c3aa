"""Trained weights to a directory in Hugging Face form, and back into our network."""
import json
import os
import shutil

import numpy as np
import torch

from . import export_qwen, safetensors_file
from . import tokenizer as tok_module
from .gemma4 import Gemma4
from .layers import fold
from .shapes import ROTATED, THETA, QwenShape, Shape

TEMPLATE = os.path.join(os.path.dirname(__file__), "templates", "gemma4.jinja")


def scalars(layers):
    """The layer_scalars a shipped model gets: away from 1, so that an engine that forgets them is found out."""
    return [round(0.6 + 0.8 * ((7 * i + 3) % layers) / (layers - 1), 4) for i in range(layers)]


def config(s: Shape):
    rope = {k: {"rope_type": "default" if ROTATED[k] == 1.0 else "proportional", "rope_theta": THETA[k],
                **({} if ROTATED[k] == 1.0 else {"partial_rotary_factor": ROTATED[k]})} for k in THETA}
    out = dict(
        architectures=["Gemma4ForCausalLM"], model_type="gemma4_text", dtype="bfloat16", vocab_size=s.vocab, hidden_size=s.d,
        intermediate_size=s.ff, num_hidden_layers=s.layers, num_attention_heads=s.heads, num_key_value_heads=s.kv, head_dim=s.hd,
        global_head_dim=s.ghd, num_global_key_value_heads=s.gkv, attention_k_eq_v=True, layer_types=s.types(),
        sliding_window=s.window, rope_parameters=rope, rms_norm_eps=1e-6, final_logit_softcapping=s.cap,
        hidden_activation="gelu_pytorch_tanh", attention_bias=False, attention_dropout=0.0, hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=0, num_kv_shared_layers=0, use_double_wide_mlp=False, tie_word_embeddings=True,
        max_position_embeddings=s.context, pad_token_id=0, eos_token_id=[1, 16], bos_token_id=2, initializer_range=0.02, use_cache=True,
        enable_moe_block=bool(s.experts))
    if s.experts:
        out.update(num_experts=s.experts, top_k_experts=s.top_k, moe_intermediate_size=s.expert_ff)
    return out


def shape_from(c):
    """The shape that a config.json describes."""
    every = c["layer_types"].index("full_attention") + 1
    return Shape(vocab=c["vocab_size"], d=c["hidden_size"], layers=c["num_hidden_layers"], ff=c["intermediate_size"], heads=c["num_attention_heads"],
                 hd=c["head_dim"], kv=c["num_key_value_heads"], ghd=c["global_head_dim"], gkv=c["num_global_key_value_heads"],
                 window=c["sliding_window"], every=every, cap=c["final_logit_softcapping"], context=c["max_position_embeddings"],
                 experts=c.get("num_experts") or 0, top_k=c.get("top_k_experts") or 0, expert_ff=c.get("moe_intermediate_size") or 0)


def dump_json(path, value):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, ensure_ascii=False, indent=1)
        f.write("\n")


def export(weights, tokenizer_json, shape, out):
    """weights: a state dict; folds layer scalars in, rounds to bf16, writes model.safetensors and what belongs beside it."""
    os.makedirs(out, exist_ok=True)
    if isinstance(shape, QwenShape):
        export_qwen.export(weights, shape, out)
        return beside(tokenizer_json, shape, out)
    model = Gemma4(shape)
    model.load_state_dict({k: v.float() for k, v in weights.items()})
    fold(model.layers, scalars(shape.layers))
    tensors = {"model." + k: ("BF16", safetensors_file.bf16(v.float().numpy())) for k, v in model.state_dict().items()}
    safetensors_file.write(os.path.join(out, "model.safetensors"), tensors)
    dump_json(os.path.join(out, "config.json"), config(shape))
    beside(tokenizer_json, shape, out)


def beside(tokenizer_json, shape, out):
    """Tokenizer and generation files."""
    with open(tokenizer_json, encoding="utf-8") as f:
        state = json.load(f)
    ids = {t["content"]: t["id"] for t in state["added_tokens"]}
    with open(TEMPLATE, encoding="utf-8") as f:
        template = f.read()
    for name, value in tok_module.files(state, ids, template, shape.context).items():
        dump_json(os.path.join(out, name), value)


def load(folder, device="cpu"):
    """Our network with the weights of an exported directory, float32."""
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        c = json.load(f)
    if export_qwen.is_qwen(c):
        return export_qwen.load(folder, device)
    shape = shape_from(c)
    tensors = safetensors_file.read(os.path.join(folder, "model.safetensors"))
    model = Gemma4(shape)
    state = {k[len("model."):]: torch.from_numpy(np.array(safetensors_file.float32(*v))) for k, v in tensors.items()}
    model.load_state_dict(state)
    return model.to(device).eval()


def blend(base, other, share, out):
    """Weights between two exported directories: (1 - share) * base + share * other; the other files are the base's."""
    os.makedirs(out, exist_ok=True)
    for name in os.listdir(base):
        if name.endswith(".json"):
            shutil.copy(os.path.join(base, name), out)
    a, b = (safetensors_file.read(os.path.join(d, "model.safetensors")) for d in (base, other))
    mixed = {k: (1 - share) * safetensors_file.float32(*a[k]) + share * safetensors_file.float32(*b[k]) for k in a}
    safetensors_file.write(os.path.join(out, "model.safetensors"), {k: ("BF16", safetensors_file.bf16(v)) for k, v in mixed.items()})
