#!/usr/bin/env python3
"""Models that call a tool: scripted.py DEMO.gguf OUTDIR writes OUTDIR/AGENT.gguf for every agent below.

No small model calls the tools of real agents reliably, so these say a text by heart. Their layers are zeros: the next token depends on
the last one alone. Their vocabulary is the demo model's with the script's own tokens behind it, and their template ends a prompt with
a token that begins the call, where tools are declared and none has answered, or else the last words. Standard library only."""
import random, re, struct, sys

SAYS = 'The tool has run.'
DO = 'echo carat ran this > made.txt'
Q = '<|"|>'
CALLS = {
    'claude-code': f'Bash{{command:{Q}{DO}{Q},description:{Q}write a file{Q}}}',
    'codex': f'exec_command{{cmd:{Q}{DO}{Q}}}',
    'opencode': f'bash{{command:{Q}{DO}{Q},description:{Q}write a file{Q}}}',
    'qwen-code': f'run_shell_command{{command:{Q}{DO}{Q},is_background:false}}',
    'pi': f'bash{{command:{Q}{DO}{Q}}}',
    'continue': f'Bash{{command:{Q}{DO}{Q}}}',
    'cline': f'run_commands{{commands:[{Q}{DO}{Q}]}}',
}
TAIL = """
{%- if add_generation_prompt -%}
    {%- set said = namespace(tool=false) -%}
    {%- for message in messages -%}{%- if message['role'] == 'tool' -%}{%- set said.tool = true -%}{%- endif -%}{%- endfor -%}
    {{- '<|script_call|>' if tools and not said.tool else '<|script_text|>' -}}
{%- endif -%}"""
WIDTH = 256
U32, F32, BOOL, STRING, ARRAY, I32 = 4, 6, 7, 8, 9, 5
CODES = {0: 'B', 1: 'b', 2: 'H', 3: 'h', 4: 'I', 5: 'i', 6: 'f', 7: '?', 10: 'Q', 11: 'q', 12: 'd'}
CONTROL, USER_DEFINED, NORMAL = 3, 4, 1


def read_keys(path):
    """name -> (type, value), an array's type a pair."""
    data, at = open(path, 'rb').read(), 4

    def take(code):
        nonlocal at
        at += struct.calcsize('<' + code)
        return struct.unpack_from('<' + code, data, at - struct.calcsize('<' + code))[0]

    def value(kind):
        nonlocal at
        if kind != STRING:
            return take(CODES[kind])
        size = take('Q')
        at += size
        return data[at - size:at]

    take('I'), take('Q')
    keys = {}
    for _ in range(take('Q')):
        name, kind = value(STRING).decode(), take('I')
        if kind == ARRAY:
            kind = (ARRAY, take('I'))
            keys[name] = (kind, [value(kind[1]) for _ in range(take('Q'))])
        else:
            keys[name] = (kind, value(kind))
    return keys


def write(path, keys, tensors):
    """tensors: name -> (dimensions, type, bytes)."""
    text = lambda s: struct.pack('<Q', len(s)) + s
    value = lambda kind, v: text(v) if kind == STRING else struct.pack('<' + CODES[kind], v)
    out = [struct.pack('<4sIQQ', b'GGUF', 3, len(tensors), len(keys))]
    for name, (kind, v) in keys.items():
        out.append(text(name.encode()))
        if isinstance(kind, tuple):
            out.append(struct.pack('<IIQ', ARRAY, kind[1], len(v)) + b''.join(value(kind[1], x) for x in v))
        else:
            out.append(struct.pack('<I', kind) + value(kind, v))
    offset = 0
    padded = lambda data: data + b'\0' * (-len(data) % 32)
    for name, (dims, kind, data) in tensors.items():
        out.append(text(name.encode()) + struct.pack(f'<I{len(dims)}QIQ', len(dims), *dims, kind, offset))
        offset += len(padded(data))
    head = padded(b''.join(out))
    with open(path, 'wb') as f:
        f.write(head)
        for _, _, data in tensors.values():
            f.write(padded(data))


class Script:
    """A vocabulary that grows by what is said, and what follows each token."""

    def __init__(self, keys):
        self.tokens, self.types = list(keys['tokenizer.ggml.tokens'][1]), list(keys['tokenizer.ggml.token_type'][1])
        self.control = {t for t, kind in zip(self.tokens, self.types) if kind != NORMAL}
        self.end = keys['tokenizer.ggml.eos_token_id'][1]
        self.next = {}  # token -> token

    def add(self, piece, kind):
        self.tokens.append(piece.encode())
        self.types.append(kind)
        return len(self.tokens) - 1

    def says(self, trigger, text):
        last = self.add(trigger, USER_DEFINED)
        for part in re.split(r'(<\|?\w+\|?>|<\|"\|>)', text):
            known = part.encode() in self.control
            for piece in [part] if known else re.findall('.{1,5}', part):
                at = self.tokens.index(piece.encode()) if known else 0
                if not known or at in self.next.values():  # a tag twice: another token of the same text
                    at = self.add(piece.replace(' ', '\u2581'), self.types[at] if known else NORMAL)
                self.next[last] = last = at
        self.next[last] = self.end


def model(keys, script):
    rng = random.Random(7)
    code = lambda: [rng.choice((1, -1)) for _ in range(WIDTH)]
    half = lambda row, scale: struct.pack(f'<{WIDTH}e', *(scale * x for x in row))
    vocab = len(script.tokens)
    rest, zeros = half(code(), 1), half([0] * WIDTH, 1)
    table, head, ends = [rest] * vocab, [zeros] * vocab, [0] * WIDTH
    for token, following in script.next.items():
        row = code()
        table[token] = half(row, 1)
        if following == script.end:
            ends = [a + b for a, b in zip(ends, row)]
        else:
            head[following] = half(row, 0.1)
    head[script.end] = half(ends, 0.1)
    ones = lambda n: struct.pack(f'<{n}f', *[1.0] * n)
    norm = lambda n: ([n], 0, ones(n))
    none = lambda columns, rows: ([columns, rows], 1, bytes(2 * columns * rows))
    tensors = {'token_embd.weight': ([WIDTH, vocab], 1, b''.join(table)), 'output.weight': ([WIDTH, vocab], 1, b''.join(head)),
               'output_norm.weight': norm(WIDTH), 'rope_freqs.weight': norm(32)}
    for i in range(2):  # a sliding and a global layer
        heads, size = 4, 64
        layer = {'attn_norm': norm(WIDTH), 'attn_q': none(WIDTH, heads * size), 'attn_k': none(WIDTH, size), 'attn_q_norm': norm(size),
                 'attn_k_norm': norm(size), 'attn_output': none(heads * size, WIDTH), 'post_attention_norm': norm(WIDTH),
                 'ffn_norm': norm(WIDTH), 'ffn_gate': none(WIDTH, 256), 'ffn_up': none(WIDTH, 256), 'ffn_down': none(256, WIDTH),
                 'post_ffw_norm': norm(WIDTH), 'layer_output_scale': norm(1)}
        if i == 0:
            layer['attn_v'] = none(WIDTH, size)
        tensors.update({f'blk.{i}.{name}.weight': t for name, t in layer.items()})
    own = {k: v for k, v in keys.items() if k.startswith('tokenizer.')}
    own['tokenizer.ggml.tokens'] = ((ARRAY, STRING), script.tokens)
    own['tokenizer.ggml.token_type'] = ((ARRAY, I32), script.types)
    own['tokenizer.chat_template'] = (STRING, keys['tokenizer.chat_template'][1] + TAIL.encode())
    arch = {'block_count': 2, 'context_length': 131072, 'embedding_length': WIDTH, 'embedding_length_per_layer_input': 0,
            'feed_forward_length': 256, 'attention.head_count': 4, 'attention.head_count_kv': 1, 'attention.key_length': 64,
            'attention.key_length_swa': 64, 'attention.value_length': 64, 'attention.value_length_swa': 64,
            'attention.sliding_window': 64, 'attention.shared_kv_layers': 0, 'rope.dimension_count': 64, 'rope.dimension_count_swa': 64}
    own.update({f'gemma4.{k}': (U32, v) for k, v in arch.items()})
    own.update({f'gemma4.{k}': (F32, v) for k, v in {'attention.layer_norm_rms_epsilon': 1e-6, 'rope.freq_base': 1e6,
                                                      'rope.freq_base_swa': 1e4, 'final_logit_softcapping': 30.0}.items()})
    own['gemma4.attention.sliding_window_pattern'] = ((ARRAY, BOOL), [True, False])
    own['general.architecture'], own['general.name'] = (STRING, b'gemma4'), (STRING, b'scripted')
    return own, tensors


keys = read_keys(sys.argv[1])
for agent, call in CALLS.items():
    script = Script(keys)
    script.says('<|script_call|>', f'<|tool_call>call:{call}<tool_call|>')
    script.says('<|script_text|>', SAYS)
    write(f'{sys.argv[2]}/{agent}.gguf', *model(keys, script))
