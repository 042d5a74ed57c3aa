#!/usr/bin/env python3
"""Twenty turns of an agent with a tool against a running server: what each turn reads and how long its first token takes.

    agent_turns.py URL [TURNS] [MAX_TOKENS]

A row per turn: tokens of the prompt; new, those from where it leaves the prompt of the turn before, or, if it goes on behind it, the
answer (chat templates write the end of a prompt and an answer differently once they are history); processed, those that the server
ran; milliseconds until the first token. If the model calls the tool, the tool answers, and a user asks on."""
import json, statistics, sys, time, urllib.request

url = sys.argv[1].rstrip('/')
turns = int(sys.argv[2]) if len(sys.argv) > 2 else 20
max_tokens = int(sys.argv[3]) if len(sys.argv) > 3 else 24
TOOLS = [{'type': 'function', 'function': {'name': 'weather', 'description': 'The weather of a town', 'parameters': {
    'type': 'object', 'properties': {'town': {'type': 'string'}}, 'required': ['town']}}}]
TOWNS = ['Aachen', 'Bergen', 'Cork', 'Delft', 'Essen', 'Florence', 'Ghent', 'Hull', 'Izmir', 'Jena']


def post(path, body):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {'Content-Type': 'application/json'})
    return json.load(urllib.request.urlopen(request, timeout=60))


def tokens_of(messages):
    text = post('/apply-template', {'messages': messages, 'tools': TOOLS})['prompt']
    return post('/tokenize', {'content': text, 'add_special': False, 'parse_special': True})['tokens']


def ask(messages):
    """The answer's message, its usage and timings, and the seconds to the first event that holds something."""
    body = {'messages': messages, 'tools': TOOLS, 'temperature': 0, 'max_tokens': max_tokens, 'stream': True,
            'stream_options': {'include_usage': True}}
    request = urllib.request.Request(url + '/v1/chat/completions', json.dumps(body).encode(), {'Content-Type': 'application/json'})
    began, first, last = time.perf_counter(), None, {}
    message, calls = {'role': 'assistant', 'content': ''}, {}
    with urllib.request.urlopen(request, timeout=600) as answer:
        for line in answer:
            if not line.startswith(b'data: {'):
                continue
            event = json.loads(line[6:])
            last.update({k: event[k] for k in ('usage', 'timings') if event.get(k)})
            for choice in event.get('choices', []):
                delta = choice['delta']
                if first is None and any(delta.get(k) for k in ('content', 'reasoning_content', 'tool_calls')):
                    first = time.perf_counter() - began
                message['content'] += delta.get('content') or ''
                for call in delta.get('tool_calls') or []:
                    kept = calls.setdefault(call['index'], {'id': '', 'type': 'function', 'function': {'name': '', 'arguments': ''}})
                    kept['id'] = call.get('id') or kept['id']
                    kept['function']['name'] += call.get('function', {}).get('name') or ''
                    kept['function']['arguments'] += call.get('function', {}).get('arguments') or ''
    if calls:
        message['tool_calls'] = list(calls.values())
    return message, last['usage'], last['timings'], time.perf_counter() - began if first is None else first


messages = [{'role': 'system', 'content': 'You are an agent that reports the weather. Ask the tool for one town after the other, '
             'and say what it said in a short sentence. ' * 8}, {'role': 'user', 'content': f'What is the weather in {TOWNS[0]}?'}]
before, answer, rows, called = [], 0, [], 0
print('| turn | prompt | new | processed | first token, ms |\n| --: | --: | --: | --: | --: |')
for turn in range(1, turns + 1):
    prompt = tokens_of(messages)
    common = next((i for i, (a, b) in enumerate(zip(before, prompt)) if a != b), len(before))
    message, usage, timings, first = ask(messages)
    if usage['prompt_tokens'] != len(prompt):
        sys.exit(f'the prompt has {usage["prompt_tokens"]} tokens, its template {len(prompt)}')
    # The last token of an answer was picked and not run.
    left = common if common < len(before) else common + max(0, answer - 1)
    rows.append((len(prompt), len(prompt) - left, timings['prompt_n'], first * 1e3))
    print('| %d | %d | %d | %d | %.1f |' % (turn, *rows[-1]), flush=True)
    before, answer = prompt, usage['completion_tokens']
    messages.append(message)
    town = TOWNS[turn % len(TOWNS)]
    for call in message.get('tool_calls', []):
        called += 1
        messages.append({'role': 'tool', 'tool_call_id': call['id'], 'content': f'{turn + 3} degrees and rain, wind from the west'})
    messages.append({'role': 'user', 'content': f'And what is the weather in {town}?'})

later = rows[1:]
third = max(1, len(later) // 3)
print(f'\n{called} calls of the tool. After turn 1: {sum(r[2] for r in later)} tokens processed, {sum(r[1] for r in later)} new, '
      f'{sum(r[0] for r in later)} in the prompts; first token {statistics.median(r[3] for r in later[:third]):.1f} ms in the first '
      f'third, {statistics.median(r[3] for r in later[-third:]):.1f} ms in the last.')
