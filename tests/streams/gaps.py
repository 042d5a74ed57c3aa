#!/usr/bin/env python3
"""The longest silence of streams, per API: while a prompt of some 15,000 tokens is read, and while the arguments of a call are written.
Comments, pings and empty lines count as words: clients give up after nothing has come for a while. Exit code 1 from --most seconds on.

    gaps.py URL [--tokens N] [--most SECONDS]"""
import argparse, http.client, json, random, sys, time, urllib.parse

args = argparse.ArgumentParser()
args.add_argument('url')
args.add_argument('--tokens', type=int, default=15000)
args.add_argument('--most', type=float, default=5)
args = args.parse_args()
host = urllib.parse.urlparse(args.url).netloc
WORDS = 'the a river bridge old man walked along until he came to an empty house and sun went down behind hill'.split()
LONG = {'type': 'object', 'properties': {'text': {'type': 'string', 'minLength': 1500, 'maxLength': 1600}}, 'required': ['text']}


def post(path, body):
    c = http.client.HTTPConnection(host, timeout=600)
    c.request('POST', path, json.dumps(body), {'Content-Type': 'application/json'})
    return c.getresponse()


def prompt(seed):
    """No two begin in the same way, so that nothing of one is found in the cache for the next."""
    random.seed(seed)
    text = ' '.join(random.choice(WORDS) for _ in range(args.tokens))
    count = json.load(post('/tokenize', {'content': text}))['count']
    words = text.split(' ')
    return ' '.join(words[:len(words) * args.tokens // count])


def silences(path, body, begun):
    """Seconds: the longest before `begun` is in what has come, the longest behind it, and all until then."""
    last = start = time.monotonic()
    before = after = first = 0
    r = post(path, {'model': 'carat', 'stream': True, 'temperature': 0, **body})
    seen = b''
    while True:
        now = time.monotonic()
        if first:
            after = max(after, now - last)
        else:
            before = max(before, now - last)
        last = now
        piece = r.read1(65536)
        if not piece:
            break
        seen += piece
        if not first and begun in seen:
            first = time.monotonic()
            before = max(before, first - last)
            last = first
    if r.status != 200 or not first:
        sys.exit(f'{path}: {r.status} {seen[:500]}')
    return before, after, first - start


def chat(text): return {'messages': [{'role': 'user', 'content': text}]}


READS = [('/v1/chat/completions', lambda t: {**chat(t), 'max_tokens': 8}, b'"content":"'),
         ('/v1/completions', lambda t: {'prompt': t, 'max_tokens': 8}, b'"text":"'),
         ('/v1/responses', lambda t: {'input': t, 'max_output_tokens': 8}, b'.delta'),
         ('/v1/messages', lambda t: {**chat(t), 'max_tokens': 8}, b'content_block_delta'),
         ('/api/chat', lambda t: {**chat(t), 'options': {'num_predict': 8}}, b'"done":true'),
         ('/api/generate', lambda t: {'prompt': t, 'options': {'num_predict': 8}}, b'"done":true'),
         ('/completion', lambda t: {'prompt': t, 'n_predict': 8}, b'"content":"')]
TOOL = {'name': 'write', 'description': 'Write a text', 'parameters': LONG}
WRITES = [('/v1/chat/completions', {**chat('Write a text.'), 'max_tokens': 700, 'tools': [{'type': 'function', 'function': TOOL}],
                                    'tool_choice': 'required'}, b'"arguments"'),
          ('/v1/responses', {'input': 'Write a text.', 'max_output_tokens': 700, 'tools': [{'type': 'function', **TOOL}],
                             'tool_choice': 'required'}, b'function_call_arguments.delta'),
          ('/v1/messages', {**chat('Write a text.'), 'max_tokens': 700, 'tools': [{'name': 'write', 'input_schema': LONG}],
                            'tool_choice': {'type': 'any'}}, b'input_json_delta')]
worst = 0
print('| stream | longest silence, s | of, s |\n| --- | --: | --: |')
for i, (path, body, begun) in enumerate(READS):
    before, after, whole = silences(path, body(prompt(i)), begun)
    worst = max(worst, before, after)
    print(f'| `{path}`, {args.tokens} tokens read | {before:.1f} | {whole:.1f} |', flush=True)
for path, body, begun in WRITES:
    before, after, _ = silences(path, body, begun)
    worst = max(worst, before, after)
    print(f'| `{path}`, arguments of a call written | {max(before, after):.1f} | |', flush=True)
print(f'\nThe longest: {worst:.1f} s')
sys.exit(worst >= args.most)
