"""A 16k tokenizer of Gemma's kind: BPE over pieces, spaces as U+2581, byte fallback as ordinary entries.

Special tokens have the published texts, low ids and the published order of roles. Run through commands.py.
"""
import json

SPACE = "\u2581"
NAMED = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>",
         "<|tool_response>", "<tool_response|>", '<|"|>', "<|think|>", "<|channel>", "<channel|>", "<|turn>", "<turn|>"]
BYTES = [f"<0x{i:02X}>" for i in range(256)]
PAD, EOS, BOS = 0, 1, 2
# Merges are learnt inside these pieces only: newline runs, tab runs, space runs, words with the space before them, single
# digits, other signs in runs. Afterwards no split is needed, as in Gemma: no merge crosses the end of such a piece,
# except among spaces.
SPLIT = r"\n+|\t+|\u2581{2,}(?=\u2581)|\u2581?\p{L}+|\p{N}|\u2581?[^\u2581\s\p{L}\p{N}]+|\u2581+|\s+"
NO_SPLIT = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}


def from_file(path):
    """By the tokenizers package, or in plain Python where that is missing (same ids)."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        from .bpe import Tokenizer
    return Tokenizer.from_file(path)


def train(texts, vocab, alphabet):
    """texts: iterable of strings -> tokenizers.Tokenizer."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    tok = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tok.normalizer = normalizers.Replace(" ", SPACE)
    tok.pre_tokenizer = pre_tokenizers.Split(Regex(SPLIT.replace(r"\u2581", SPACE)), "isolated")
    tok.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    unused = [f"<unused{i}>" for i in range(32 - len(NAMED))]
    tok.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=vocab, special_tokens=NAMED + unused + BYTES,
                                                       limit_alphabet=alphabet, show_progress=False))
    return finish(json.loads(tok.to_str()))


def finish(state):
    """Only named tokens are matched as literal text (byte pieces are ordinary entries), and nothing is split."""
    from tokenizers import Tokenizer
    keep = [t for t in state["added_tokens"] if t["content"] in NAMED or t["content"].startswith("<unused")]
    state["added_tokens"] = [dict(t, special=True) for t in keep]
    state["pre_tokenizer"] = NO_SPLIT
    return Tokenizer.from_str(json.dumps(state))


def files(state, ids, template, context):
    """The files beside the weights, name -> JSON value; state: the parsed tokenizer.json, ids: of the named tokens."""
    special = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>"}
    return {
        "tokenizer.json": state,
        "tokenizer_config.json": dict(special, tokenizer_class="PreTrainedTokenizerFast", add_bos_token=True,
                                      clean_up_tokenization_spaces=False, model_max_length=context, chat_template=template),
        "generation_config.json": {"bos_token_id": BOS, "pad_token_id": PAD, "eos_token_id": [EOS, ids["<turn|>"], ids["<|tool_response>"]],
                                   "do_sample": True, "temperature": 1.0, "top_k": 64, "top_p": 0.95},
    }
