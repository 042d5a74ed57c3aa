"""Held-out perplexity by distribution, sample answers, and references made by transformers' own Gemma 4 classes."""
import json
import math
import os
import time

import torch
import torch.nn.functional as F

from . import batches, export, prompts, sample
from . import tokenizer as tok_module

DOCUMENTS, DOCUMENT_TOKENS = 6, 1500


def exact():
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")


@torch.no_grad()
def losses(model, ids):
    """Nats of each predicted token of ids [B, T + 1], float32."""
    z, _, _ = model.trace(ids[:, :-1])
    return F.cross_entropy(model.logits(z).flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(ids.shape[0], -1)


@torch.no_grad()
def perplexities(model, data, length=1024, windows=32):
    """By distribution: nats per token over all tokens, and over those the model has to write."""
    device, out = model.norm.weight.device, {}
    model.place(length, device)
    for g, (ids, weight) in batches.held_out(data, length, windows).items():
        each = torch.cat([losses(model, i.to(device)) for i in ids.split(max(1, 4096 // length))]).cpu()
        own = (each * weight).sum() / weight.sum()
        out[g] = dict(nats=round(each.mean().item(), 5), perplexity=round(math.exp(each.mean()), 4), own_nats=round(own.item(), 5),
                      own_perplexity=round(math.exp(own), 4), tokens=each.numel())
    return out


@torch.no_grad()
def documents(model, tok, data):
    """Held-out documents one by one, as text with the loss the framework finds: another engine can check itself on them."""
    device, out = model.norm.weight.device, {}
    for g, flat in batches.load(data, "heldout").items():
        ids = torch.from_numpy((flat & 0x7FFF).astype("int64"))
        at = (ids == 2).nonzero().flatten().tolist() + [len(ids)]
        rows = []
        for a, b in zip(at, at[1:]):
            if len(rows) == DOCUMENTS or b - a < 60:
                continue
            doc = ids[a:min(b, a + DOCUMENT_TOKENS)]
            text = tok.decode(doc[1:].tolist(), skip_special_tokens=False)
            if [2] + tok.encode(text, add_special_tokens=False).ids != doc.tolist():
                continue                                    # cut inside a character: the text alone would not give these tokens
            each = losses(model.place(len(doc), device), doc[None].to(device))
            rows.append(dict(text=text, tokens=len(doc), nats=round(each.sum().item(), 4)))
        out[g] = rows
    return out


def samples(model, tok, new=160):
    device, ends, out = model.norm.weight.device, sample.end_tokens(tok), []
    model.place(4096, device)
    for text in prompts.rendered():
        ids = sample.prompt_ids(tok, text)
        row = dict(prompt=text)
        for name, t in (("greedy", 0.0), ("temperature 0.7", 0.7)):
            got = sample.continue_ids(model, ids, new, ends, t)
            row[name] = tok.decode(got, skip_special_tokens=False)
        out.append(row)
    return out


@torch.no_grad()
def references(folder, tok, new=64, count=20):
    """Greedy ids and logits by transformers in float32; and how far our own network is from them."""
    import transformers
    device = "cuda" if torch.cuda.is_available() else "cpu"
    ref = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").to(device).eval()
    own, rows, worst = export.load(folder, device).place(4096, device), [], 0.0
    for i, text in enumerate(prompts.rendered()[-count:]):
        ids = torch.tensor([sample.prompt_ids(tok, text)], device=device)
        logits = ref(input_ids=ids).logits[0].float()
        mine = own.logits(own.trace(ids)[0])[0]
        worst = max(worst, (logits - mine).abs().max().item())
        got = ref.generate(input_ids=ids, max_new_tokens=new, do_sample=False, eos_token_id=sorted(sample.end_tokens(tok)), pad_token_id=0)[0]
        top = logits[-1].topk(10)
        row = dict(text=text, prompt=ids[0].tolist(), greedy=got[ids.shape[1]:].tolist(),
                   top=[[k, round(v, 5)] for k, v in zip(top.indices.tolist(), top.values.tolist())])
        own_greedy = sample.continue_ids(own, row["prompt"], new, sample.end_tokens(tok))
        row["same_as_own"] = own_greedy == row["greedy"]
        rows.append(row)
    return dict(transformers=transformers.__version__, model_class=type(ref).__name__, largest_logit_difference=worst, prompts=rows)


def run(folder, data, out, parts=("perplexity", "perplexity_8k", "samples", "documents", "references")):
    """Each part by itself: one that fails says so and leaves the others."""
    exact()
    tok = tok_module.from_file(os.path.join(folder, "tokenizer.json"))
    model = export.load(folder, "cuda" if torch.cuda.is_available() else "cpu")
    work = {"perplexity": lambda: perplexities(model, data), "perplexity_8k": lambda: perplexities(model, data, 8191, 2), "samples": lambda: samples(model, tok), "documents": lambda: documents(model, tok, data),
            "references": lambda: references(folder, tok)}
    for name in parts:
        t0 = time.time()
        try:
            result = work[name]()
        except Exception as e:                              # noqa: BLE001: the next part may still work
            result = {"error": f"{type(e).__name__}: {e}"}
        with open(os.path.join(out, name + ".json"), "w", encoding="utf-8") as f:
            json.dump(result, f, ensure_ascii=False, indent=1)
        print(f"{name}: {time.time() - t0:.1f} s", result if name.startswith("perplexity") or "error" in result else "", flush=True)
