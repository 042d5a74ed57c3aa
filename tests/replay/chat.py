"""/v1/chat/completions, as vLLM's tests ask."""
import json, re

from kit import *  # noqa: F403


@check('chat, no logprobs')
def _(): assert chat(logprobs=False).json['choices'][0]['logprobs'] is None


@check('chat, top_logprobs 0 and 5')
def _():
    for n in (0, 5):
        assert len(chat(logprobs=True, top_logprobs=n).json['choices'][0]['logprobs']['content'][0]['top_logprobs']) == n


@check('chat, top_logprobs 21')
def _():
    bad('/v1/chat/completions', messages=HELLO, logprobs=True, top_logprobs=21, stream=True)
    bad('/v1/chat/completions', messages=HELLO, logprobs=True, top_logprobs=30)
    chat()


@check('chat, prompt_logprobs -1')
def _(): bad('/v1/chat/completions', messages=HELLO, prompt_logprobs=-1)


@check('chat, prompt_logprobs')
def _(): assert len(chat(prompt_logprobs=1).json['prompt_logprobs']) > 0


@check('chat, several turns')
def _():
    talk, first = list(HELLO), chat(logprobs=True, top_logprobs=5).json
    u = first['usage']
    assert u['total_tokens'] == u['prompt_tokens'] + u['completion_tokens'] and len(first['choices']) == 1
    talk += [{'role': 'assistant', 'content': first['choices'][0]['message']['content'] or 'Two.'}, {'role': 'user', 'content': 'As JSON?'}]
    assert chat(messages=talk).json['choices'][0]['message']['role'] == 'assistant'


@check('chat, stream says what the whole answer says')
def _():
    whole = chat().json['choices'][0]
    content, thought, _, ends = joined(chat(stream=True).events())
    assert content == (whole['message']['content'] or '') and thought == whole['message'].get('reasoning_content', '')
    assert ends == [whole['finish_reason']]


@check('chat, stream_options')
def _():
    assert all(e.get('usage') is None for e in chat(stream=True, stream_options={'include_usage': False}).events())
    events = chat(stream=True, stream_options={'include_usage': True, 'continuous_usage_stats': False}).events()
    assert all(e.get('usage') is None for e in events[:-1]) and events[-1]['choices'] == [] and events[-1]['usage']['completion_tokens'] > 0
    last = 0
    for e in chat(stream=True, min_tokens=10, stream_options={'include_usage': True, 'continuous_usage_stats': True}).events():
        u = e['usage']
        assert u['completion_tokens'] >= last and u['total_tokens'] == u['prompt_tokens'] + u['completion_tokens']
        last = u['completion_tokens']
    assert last == 10
    for options in ({'include_usage': None}, {'include_usage': True}):
        bad('/v1/chat/completions', messages=HELLO, stream_options=options)


@check('chat, a choice')
def _():
    for _ in range(2):
        text = chat(structured_outputs={'choice': LANGUAGES}, temperature=0.7, enable_thinking=False).json['choices'][0]['message']['content']
        assert text in LANGUAGES, text


@check('chat, a choice with logprobs')
def _():
    c = chat(structured_outputs={'choice': LANGUAGES}, logprobs=True, top_logprobs=5).json['choices'][0]['logprobs']['content'][0]
    assert all(t['logprob'] >= -9999 for t in c['top_logprobs']), c


@check('chat, a schema')
def _():
    for kind in ({'structured_outputs': {'json': EMPLOYEE}}, {'response_format': {'type': 'json_schema', 'json_schema': {
            'name': 'employee', 'schema': EMPLOYEE}}}, {'guided_json': EMPLOYEE}):
        c = chat(max_completion_tokens=600, enable_thinking=False, **kind).json['choices'][0]
        fits_employee(c['message']['content'])


@check('chat, a schema while it thinks')
def _():
    c = chat(max_completion_tokens=600, thinking_token_budget=20, enable_thinking=True, structured_outputs={'json': EMPLOYEE}).json['choices'][0]
    fits_employee(c['message']['content'])


@check('chat, a regex')
def _():
    text = chat(structured_outputs={'regex': IP}, max_completion_tokens=20, enable_thinking=False).json['choices'][0]['message']['content']
    assert re.fullmatch(IP, text), text


@check('chat, a regex of another type')
def _(): bad('/v1/chat/completions', messages=HELLO, structured_outputs={'regex': {'1': 'Python'}})


@check('chat, two constraints at once')
def _(): bad('/v1/chat/completions', messages=HELLO, structured_outputs={'regex': 'a', 'choice': ['a']})


@check('chat, json_object')
def _():
    c = chat(response_format={'type': 'json_object'}, max_completion_tokens=300, enable_thinking=False, temperature=0).json['choices'][0]
    if c['finish_reason'] == 'stop':
        json.loads(c['message']['content'])


@check('chat, response_format text')
def _(): assert chat(response_format={'type': 'text'}).json['choices'][0]['message']['content'] is not None


@check('chat, json_schema without a schema')
def _(): bad('/v1/chat/completions', messages=HELLO, response_format={'type': 'json_schema'})


@check('chat, unknown fields')
def _(): chat(messages=[{'role': 'user', 'content': 'What is 1+1?', 'extra_field': '0'}], extra=1)


@check('chat, content in parts')
def _():
    parts = [{'type': 'text', 'text': 'What is 1+1?'}]
    assert chat(messages=[{'role': 'user', 'content': parts}]).json['choices'][0]['message'] == \
        chat(messages=[{'role': 'user', 'content': 'What is 1+1?'}]).json['choices'][0]['message']


@check('chat, system in parts')
def _(): chat(messages=[{'role': 'system', 'content': [{'type': 'text', 'text': 'Be brief.'}]}, HELLO[1]])


@check('chat, a role of its own')
def _(): chat(messages=[{'role': 'my-custom-role', 'content': 'What is 1+1?'}])


@check('chat, seed beyond 64 bits')
def _():
    for seed in (-2**63 - 1, 2**64):
        bad('/v1/chat/completions', messages=HELLO, seed=seed)


@check('chat, n 3')
def _():
    c = chat(n=3, temperature=1.2, max_completion_tokens=20, enable_thinking=False).json['choices']
    assert [x['index'] for x in c] == [0, 1, 2] and len({x['message']['content'] for x in c}) > 1


@check('chat, n 2 streamed')
def _():
    by = {}
    for e in chat(n=2, temperature=0.7, max_completion_tokens=15, stream=True, enable_thinking=False).events():
        for c in e['choices']:
            by[c['index']] = by.get(c['index'], '') + (c['delta'].get('content') or '')
    assert by[0] and by[1]
