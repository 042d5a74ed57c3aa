"""Drafters to Hugging Face directories, in the form of the published ones, and back."""
import json
import os

import numpy as np
import torch

from . import export_qwen, safetensors_file
from .assistant import Assistant
from .dflash import DFlash
from .export import config as target_config
from .export import dump_json
from .nextn import Nextn
from .shapes import MASK_TOKEN

DFLASH_WINDOW = 2048                                        # longer than any training window, so training saw it all


def assistant_config(m):
    s = m.s
    text = dict(target_config(s), hidden_size=m.d, intermediate_size=m.ff, num_hidden_layers=len(m.kinds), layer_types=m.kinds,
                num_kv_shared_layers=len(m.kinds), final_logit_softcapping=None, enable_moe_block=False)
    for k in ("architectures", "num_experts", "top_k_experts", "moe_intermediate_size"):
        text.pop(k, None)
    return dict(architectures=["Gemma4AssistantForCausalLM"], model_type="gemma4_assistant", dtype="bfloat16", backbone_hidden_size=s.d,
                use_ordered_embeddings=False, num_centroids=2048, centroid_intermediate_top_k=32, tie_word_embeddings=True, text_config=text)


def dflash_config(m):
    s, n = m.s, len(m.layers)
    return dict(architectures=["DFlashDraftModel"], model_type="qwen3", dtype="bfloat16", vocab_size=s.vocab, hidden_size=s.d,
                intermediate_size=m.ff, num_hidden_layers=n, num_attention_heads=m.heads, num_key_value_heads=m.kv, head_dim=m.hd,
                hidden_act="silu", rms_norm_eps=1e-6, rope_theta=m.theta, rope_scaling=None, attention_bias=False, attention_dropout=0.0,
                max_position_embeddings=s.context, use_sliding_window=True, sliding_window=DFLASH_WINDOW, max_window_layers=n,
                layer_types=["sliding_attention"] * (n - 1) + ["full_attention"], block_size=m.size, num_target_layers=s.layers,
                dflash_config=dict(target_layer_ids=m.taps, mask_token_id=MASK_TOKEN), final_logit_softcapping=s.cap, tie_word_embeddings=True)


def export(model, out):
    """The target's tokenizer and templates are not copied: a drafter uses its target's."""
    os.makedirs(out, exist_ok=True)
    if isinstance(model, Nextn):
        return export_qwen.export_head(model, out)
    mtp = isinstance(model, Assistant)
    own = ("pre_projection", "post_projection")
    tensors = {}
    for k, v in model.state_dict().items():
        name = "model." + k if mtp and not k.startswith(own) else k
        tensors[name] = "BF16", safetensors_file.bf16(v.detach().float().cpu().numpy())
    safetensors_file.write(os.path.join(out, "model.safetensors"), tensors)
    dump_json(os.path.join(out, "config.json"), assistant_config(model) if mtp else dflash_config(model))


def load(folder, s):
    """The drafter of an exported directory, float32; s: the target's shape."""
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        c = json.load(f)
    if export_qwen.is_qwen(c):
        return export_qwen.load_head(folder, s)
    if c["model_type"] == "gemma4_assistant":
        model = Assistant(s, c["text_config"]["hidden_size"], c["text_config"]["intermediate_size"])
    else:
        model = DFlash(s, c["intermediate_size"], c["num_attention_heads"], c["head_dim"], c["num_key_value_heads"], c["num_hidden_layers"],
                       c["block_size"], c["dflash_config"]["target_layer_ids"])
    tensors = safetensors_file.read(os.path.join(folder, "model.safetensors"))
    model.load_state_dict({k.removeprefix("model."): torch.from_numpy(np.array(safetensors_file.float32(*v))) for k, v in tensors.items()})
    return model.eval()
