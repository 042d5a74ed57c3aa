"""A .gguf of the family back to a Hugging Face directory, weights dequantized to bf16: what drafters are trained on.

An MTP assistant comes back, too, without the tokenizer: it uses its target's.
"""
import json
import os
import re
from dataclasses import replace
from types import SimpleNamespace

from . import export, gguf_file, safetensors_file
from . import tokenizer as tok_module
from .shapes import GLOBAL, Shape

LAYER = {
    "attn_norm.weight": "input_layernorm.weight", "attn_q.weight": "self_attn.q_proj.weight", "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight", "attn_output.weight": "self_attn.o_proj.weight", "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight", "post_attention_norm.weight": "post_attention_layernorm.weight",
    "ffn_norm.weight": "pre_feedforward_layernorm.weight", "ffn_gate.weight": "mlp.gate_proj.weight", "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight", "post_ffw_norm.weight": "post_feedforward_layernorm.weight",
    "layer_output_scale.weight": "layer_scalar", "ffn_gate_inp.weight": "router.proj.weight", "ffn_gate_inp.scale": "router.scale",
    "ffn_down_exps.scale": "router.per_expert_scale", "ffn_gate_up_exps.weight": "experts.gate_up_proj",
    "ffn_down_exps.weight": "experts.down_proj", "pre_ffw_norm_2.weight": "pre_feedforward_layernorm_2.weight",
    "post_ffw_norm_1.weight": "post_feedforward_layernorm_1.weight", "post_ffw_norm_2.weight": "post_feedforward_layernorm_2.weight"}
OTHER = {"token_embd.weight": "embed_tokens.weight", "output_norm.weight": "norm.weight",
         "nextn.pre_projection.weight": "pre_projection.weight", "nextn.post_projection.weight": "post_projection.weight"}
NAMED_TOKENS = 32                                           # the first entries: special, in the published order
BOS, EOS, TURN_END, CALL_END = "<bos>", "<eos>", "<turn|>", "<|tool_response>"


def shape_of(meta, vocab):
    of = meta["general.architecture"] + "."
    get = lambda k, *d: meta.get(of + k, *d) if d else meta[of + k]       # noqa: E731
    kv, sliding = get("attention.head_count_kv"), get("attention.sliding_window_pattern")
    first = sliding.index(False)
    kv = kv if isinstance(kv, list) else [kv] * len(sliding)
    return Shape(vocab=vocab, d=get("embedding_length"), layers=get("block_count"), ff=get("feed_forward_length"),
                 heads=get("attention.head_count"), hd=get("attention.key_length_swa"), kv=kv[0], ghd=get("attention.key_length"), gkv=kv[first],
                 window=get("attention.sliding_window"), every=first + 1, cap=get("final_logit_softcapping"), context=get("context_length"),
                 experts=get("expert_count", 0), top_k=get("expert_used_count", 0), expert_ff=get("expert_feed_forward_length", 0))


def hf_name(name):
    if name in OTHER:
        return OTHER[name]
    m = re.fullmatch(r"blk\.(\d+)\.(.+)", name)
    return f"layers.{m[1]}.{LAYER[m[2]]}"


def tokenizer_state(meta):
    """tokenizer.json as tokenizer.finish leaves it."""
    tokens, space = meta["tokenizer.ggml.tokens"], tok_module.SPACE
    added = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
             for i, t in enumerate(tokens[:NAMED_TOKENS])]
    model = {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None,
             "fuse_unk": True, "byte_fallback": True, "ignore_merges": False, "vocab": {t: i for i, t in enumerate(tokens)},
             "merges": [m.split(" ") for m in meta["tokenizer.ggml.merges"]]}
    decoder = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": space}, "content": " "},
                                                {"type": "ByteFallback"}, {"type": "Fuse"}]}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": space}, "pre_tokenizer": tok_module.NO_SPLIT,
            "post_processor": None, "decoder": decoder, "model": model}


def assistant_config(meta, shape):
    """As export_drafter writes it; an assistant's own width and its target's have keys of their own."""
    from . import export_drafter
    target = replace(shape, d=meta["gemma4-assistant.embedding_length_out"])
    return export_drafter.assistant_config(SimpleNamespace(s=target, d=shape.d, ff=shape.ff, kinds=shape.types()))


def export_hf(path, out):
    meta, weights = gguf_file.read(path)
    assistant = meta.get("general.architecture") == "gemma4-assistant"
    if not assistant and meta.get("general.architecture") != "gemma4":
        raise ValueError(f"{path} is no Gemma 4 target and no assistant of one")
    os.makedirs(out, exist_ok=True)
    shape = shape_of(meta, len(weights["token_embd.weight"]))
    pattern = meta[f"{meta['general.architecture']}.attention.sliding_window_pattern"]
    assert [k == GLOBAL for k in shape.types()] == [not s for s in pattern], "another pattern of layers"
    tensors = {k if k.startswith(("pre_projection", "post_projection")) else "model." + k: ("BF16", safetensors_file.bf16(v))
               for k, v in ((hf_name(k), v) for k, v in weights.items() if k != "rope_freqs.weight")}
    safetensors_file.write(os.path.join(out, "model.safetensors"), tensors)
    export.dump_json(os.path.join(out, "config.json"), assistant_config(meta, shape) if assistant else export.config(shape))
    if not assistant:
        state = tokenizer_state(meta)
        ids = {t["content"]: t["id"] for t in state["added_tokens"]}
        for name, value in tok_module.files(state, ids, meta["tokenizer.chat_template"], shape.context).items():
            export.dump_json(os.path.join(out, name), value)
    return json.dumps({"parameters": sum(v.size for v in weights.values()), "tensors": len(tensors)})
