"""Trained weights to a directory in Hugging Face form, towers inside, and back."""
import json
import os

import numpy as np
import torch

from .. import safetensors_file
from ..export import TEMPLATE, dump_json, scalars
from ..layers import fold
from ..shapes import GLOBAL, ROTATED, THETA
from ..tokenizer import files
from .network import Senses
from .shapes import MEDIA, RENAMED, EarsShape, EyesShape, SensesShape


def text_config(s):
    rope = {k: {"rope_type": "default" if ROTATED[k] == 1.0 else "proportional", "rope_theta": THETA[k],
                **({} if ROTATED[k] == 1.0 else {"partial_rotary_factor": ROTATED[k]})} for k in THETA}
    return dict(
        model_type="gemma4_text", vocab_size=s.vocab, vocab_size_per_layer_input=s.vocab, hidden_size=s.d, intermediate_size=s.ff,
        num_hidden_layers=s.layers, num_attention_heads=s.heads, num_key_value_heads=s.kv, head_dim=s.hd, global_head_dim=s.ghd,
        num_global_key_value_heads=s.gkv, attention_k_eq_v=False, layer_types=s.types(), sliding_window=s.window, rope_parameters=rope,
        rms_norm_eps=1e-6, final_logit_softcapping=s.cap, hidden_activation="gelu_pytorch_tanh", attention_bias=False, attention_dropout=0.0,
        hidden_size_per_layer_input=s.p, num_kv_shared_layers=s.shared, use_double_wide_mlp=s.double_ff, tie_word_embeddings=True,
        max_position_embeddings=s.context, pad_token_id=0, eos_token_id=1, bos_token_id=2, initializer_range=0.02, use_cache=True,
        enable_moe_block=False, use_bidirectional_attention=None)


def config(s):
    e, a = s.eyes, s.ears
    vision = dict(
        model_type="gemma4_vision", hidden_size=e.d, intermediate_size=e.ff, num_hidden_layers=e.layers, num_attention_heads=e.heads,
        num_key_value_heads=e.heads, head_dim=e.d // e.heads, patch_size=e.patch, pooling_kernel_size=e.pool, position_embedding_size=e.table,
        hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6, standardize=False, use_clipped_linears=True, attention_bias=False,
        attention_dropout=0.0, max_position_embeddings=131072, rope_parameters={"rope_theta": 100.0, "rope_type": "axial"})
    audio = dict(
        model_type="gemma4_audio", hidden_size=a.d, num_hidden_layers=a.layers, num_attention_heads=a.heads, output_proj_dims=a.out,
        subsampling_conv_channels=list(a.channels), attention_chunk_size=12, attention_context_left=13, attention_context_right=0,
        attention_logit_cap=50.0, attention_invalid_logits_value=-1e9, conv_kernel_size=5, residual_weight=0.5, gradient_clipping=1e10,
        hidden_act="silu", rms_norm_eps=1e-6, use_clipped_linears=True)
    return dict(
        architectures=["Gemma4ForConditionalGeneration"], model_type="gemma4", dtype="bfloat16", text_config=text_config(s), vision_config=vision,
        audio_config=audio, image_token_id=MEDIA["<|image|>"], audio_token_id=MEDIA["<|audio|>"], video_token_id=MEDIA["<|video|>"],
        boi_token_id=MEDIA["<|image>"], eoi_token_id=MEDIA["<image|>"], boa_token_id=MEDIA["<|audio>"], eoa_token_index=MEDIA["<audio|>"],
        vision_soft_tokens_per_image=280, eos_token_id=[1, 16], tie_word_embeddings=True)


def shape_from(c):
    t, v, a = c["text_config"], c["vision_config"], c["audio_config"]
    per = t.get("per_layer_config") or {}
    ghd = t.get("global_head_dim") or next(iter(per.values()), {}).get("head_dim", t["head_dim"])
    kv = t["num_key_value_heads"]
    return SensesShape(
        vocab=t["vocab_size"], d=t["hidden_size"], layers=t["num_hidden_layers"], ff=t["intermediate_size"], heads=t["num_attention_heads"],
        hd=t["head_dim"], kv=kv, ghd=ghd, gkv=t.get("num_global_key_value_heads") or kv, window=t["sliding_window"],
        shared=t["num_kv_shared_layers"], p=t["hidden_size_per_layer_input"], double_ff=t["use_double_wide_mlp"], kinds=tuple(t["layer_types"]),
        cap=t["final_logit_softcapping"], context=t["max_position_embeddings"], image_id=c["image_token_id"], audio_id=c["audio_token_id"],
        eyes=EyesShape(d=v["hidden_size"], layers=v["num_hidden_layers"], heads=v["num_attention_heads"], ff=v["intermediate_size"],
                       patch=v["patch_size"], pool=v["pooling_kernel_size"], table=v["position_embedding_size"]),
        ears=EarsShape(d=a["hidden_size"], layers=a["num_hidden_layers"], heads=a["num_attention_heads"],
                       channels=tuple(a["subsampling_conv_channels"]), out=a["output_proj_dims"]))


@torch.no_grad()
def folded(model):
    """layer_scalars away from 1, as layers.fold: the per-layer branch follows the stream's scale, too."""
    layers, values = model.language_model.layers, scalars(model.s.layers)
    now = 1.0
    for layer, value in zip(layers, values):
        layer.post_per_layer_input_norm.weight.mul_(now)
        now *= value / layer.layer_scalar.item()
    fold(layers, values)
    return model


def tokenizer_state(path):
    """tokenizer.json of the plain demos, with the published texts of the marks of media in entries they leave unused."""
    with open(path, encoding="utf-8") as f:
        state = json.load(f)
    for t in state["added_tokens"]:
        t["content"] = RENAMED.get(t["content"], t["content"])
    vocab = state["model"]["vocab"]
    for old, new in RENAMED.items():
        if old in vocab:
            vocab[new] = vocab.pop(old)
    state["model"]["vocab"] = dict(sorted(vocab.items(), key=lambda kv: kv[1]))
    return state


def template():
    """The published template of E2B and E4B: that of the larger ones without an empty thought before the answer."""
    with open(TEMPLATE, encoding="utf-8") as f:
        text = f.read()
    start = text.index("        {%- if not enable_thinking -%}")
    end = text.index("{%- endif -%}\n", start) + len("{%- endif -%}\n")
    assert "<|channel>thought" in text[start:end]
    return text[:start] + text[end:]


def export(weights, tokenizer_json, shape, out):
    os.makedirs(out, exist_ok=True)
    model = Senses(shape)
    model.load_state_dict({k: v.float() for k, v in weights.items()})
    state = folded(model).state_dict()
    tensors = {"model." + k: ("BF16", safetensors_file.bf16(v.float().numpy())) for k, v in state.items()}
    safetensors_file.write(os.path.join(out, "model.safetensors"), tensors)
    beside(tokenizer_json, shape, out)


def beside(tokenizer_json, shape, out):
    """What belongs beside model.safetensors."""
    dump_json(os.path.join(out, "config.json"), config(shape))
    tokens = tokenizer_state(tokenizer_json)
    ids = {t["content"]: t["id"] for t in tokens["added_tokens"]}
    for name, value in files(tokens, ids, template(), shape.context).items():
        dump_json(os.path.join(out, name), value)


def load(folder, device="cpu"):
    """Our network with a directory's weights, float32. What sharing layers keep unused is passed over."""
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        shape = shape_from(json.load(f))
    model = Senses(shape)
    wanted = model.state_dict()
    tensors = safetensors_file.read(os.path.join(folder, "model.safetensors"))
    state = {k[len("model."):]: torch.from_numpy(np.array(safetensors_file.float32(*v))) for k, v in tensors.items()}
    model.load_state_dict({k: v for k, v in state.items() if k in wanted})
    return model.place(shape.context, device).to(device).eval()
