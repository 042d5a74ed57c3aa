#!/usr/bin/env python3
"""Requests of the kinds that vLLM's server tests, and the tests of OpenAI's and Anthropic's Python clients, send, against a running
server: what they expect of an answer, in our own words and values.

    replay.py URL [-v]

A line for each check that fails, then the counts. A check that cannot hold here stands with its reason in `ELSEWHERE` and counts for
itself. Exit code 1 if another one fails."""
import json, re, sys, urllib.error, urllib.request

URL = sys.argv[1].rstrip('/')
VERBOSE = '-v' in sys.argv
CHECKS = []
ELSEWHERE = {
    'completion, logprobs 21': 'more alternatives are given than the 20 where vLLM ends',
    'chat, top_logprobs 21': 'more alternatives are given than the 20 where vLLM ends',
    'completion, prompt_logprobs': 'refused by name: log probabilities of a prompt come with echo',
    'completion, beam search': 'refused by name: beams are not built',
    'chat, prompt_logprobs': 'refused by name: log probabilities of a prompt come with echo on /v1/completions',
    'chat, a role of its own': 'a template that knows the role alone renders it; the demo template does not',
    'chat, message.reasoning': "thoughts are reasoning_content, as llama.cpp's and older vLLM's",
    'openai sdk, chat with all fields': 'audio, moderation and web_search_options are refused by name',
    'openai sdk, responses with all fields': 'background, conversation, prompt templates and moderation are refused by name',
    'anthropic sdk, all fields': 'container is refused by name',
    'sagemaker, /invocations': 'the path of another service',
}


def check(name):
    def add(f):
        CHECKS.append((name, f))
        return f
    return add


class Answer:
    def __init__(self, status, headers, text):
        self.status, self.headers, self.text = status, headers, text
        try:
            self.json = json.loads(text)
        except ValueError:
            self.json = None

    def events(self):
        return [json.loads(line[6:]) for line in self.text.splitlines() if line.startswith('data: {')]


def send(path, body=None, method=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, data, {'Content-Type': 'application/json', 'Authorization': 'Bearer test',
                                                        'anthropic-version': '2023-06-01'}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=300) as r:
            return Answer(r.status, r.headers, r.read().decode())
    except urllib.error.HTTPError as e:
        return Answer(e.code, e.headers, e.read().decode())


def ok(path, **body):
    a = send(path, {'model': MODEL, **body})
    assert a.status == 200, f'{a.status} {a.text[:300]}'
    return a


def bad(path, **body):
    limit = {'max_tokens': 5} if path.endswith('/completions') else {}  # an answer that should not come ends soon
    a = send(path, {'model': MODEL, **limit, **body})
    assert a.status in (400, 404, 422), f'{a.status} {a.text[:300]}'
    assert a.json['error']['message'], a.text
    return a


def completion(**body): return ok('/v1/completions', **{'prompt': 'Hello, my name is', 'max_tokens': 5, 'temperature': 0, **body})
def chat(**body): return ok('/v1/chat/completions', **{'messages': HELLO, 'max_completion_tokens': 10, 'temperature': 0, **body})
def messages(**body): return ok('/v1/messages', **{'messages': [HELLO[-1]], 'max_tokens': 10, 'temperature': 0, **body})
def responses(**body): return ok('/v1/responses', **{'input': 'What is 1+1?', 'max_output_tokens': 10, 'temperature': 0, **body})


MODEL = send('/v1/models').json['data'][0]['id']
HELLO = [{'role': 'system', 'content': 'You are a helpful assistant.'}, {'role': 'user', 'content': 'What is 1+1?'}]
WEATHER = {'type': 'object', '$defs': {'Options': {'type': 'object', 'additionalProperties': False, 'properties': {
    'unit': {'type': 'string', 'enum': ['celsius', 'fahrenheit'], 'default': 'celsius'},
    'include_forecast': {'type': 'boolean', 'default': False},
    'language': {'type': 'string', 'enum': ['zh-CN', 'en-US', 'ja-JP']}}}},
    'properties': {'city': {'type': 'string', 'description': "The city, e.g. 'Vienna'", 'default': 'Vienna'},
                   'country': {'type': 'string'}, 'unit': {'type': 'string', 'enum': ['celsius', 'fahrenheit']},
                   'options': {'$ref': '#/$defs/Options', 'description': 'Optional'}},
    'required': ['country', 'unit']}
FORECAST = {'type': 'object', 'properties': {'country': {'type': 'string'}, 'days': {'type': 'integer'},
                                             'unit': {'type': 'string', 'enum': ['celsius', 'fahrenheit']}},
            'required': ['country', 'days', 'unit']}
EMPLOYEE = {'type': 'object', 'properties': {
    'name': {'type': 'string', 'maxLength': 12}, 'age': {'type': 'integer', 'minimum': 0, 'maximum': 150},
    'skills': {'type': 'array', 'items': {'type': 'string', 'maxLength': 10}, 'minItems': 3, 'maxItems': 4},
    'work_history': {'type': 'array', 'maxItems': 1, 'items': {'type': 'object', 'properties': {
        'company': {'type': 'string', 'maxLength': 10}, 'duration': {'type': 'number', 'minimum': 0.0, 'maximum': 100.0}},
        'required': ['company']}}},
    'required': ['name', 'age', 'skills']}
LANGUAGES = ['Python', 'Java', 'JavaScript', 'C++', 'C#', 'PHP', 'TypeScript', 'Ruby', 'Swift', 'Kotlin']
IP = r'((25[0-5]|(2[0-4]|1\d|[1-9]|)\d)\.){3}(25[0-5]|(2[0-4]|1\d|[1-9]|)\d)'


def tools(*named):
    return [{'type': 'function', 'function': {'name': n, 'description': n, 'parameters': p}} for n, p in named]


def flat(*named): return [{'type': 'function', 'name': n, 'description': n, 'parameters': p} for n, p in named]
def taken(*named): return [{'name': n, 'description': n, 'input_schema': p} for n, p in named]


TWO = (('get_current_weather', WEATHER), ('get_forecast', FORECAST))
ASK = [{'role': 'user', 'content': 'What is the weather in Berlin now, and in the next 5 days, in fahrenheit?'}]


def fits_weather(args):
    a = json.loads(args) if isinstance(args, str) else args
    assert isinstance(a['country'], str) and a['unit'] in ('celsius', 'fahrenheit'), a
    assert 'options' not in a or isinstance(a['options'], dict), a


def fits(name, args):
    if name == 'get_current_weather':
        return fits_weather(args)
    a = json.loads(args) if isinstance(args, str) else args
    assert name == 'get_forecast' and isinstance(a['days'], int) and a['unit'] in ('celsius', 'fahrenheit'), a


def fits_employee(text):
    e = json.loads(text) if isinstance(text, str) else text
    assert isinstance(e['name'], str) and 0 <= e['age'] <= 150 and 3 <= len(e['skills']) <= 4, e


def joined(events):
    """Of a chat stream: content, thoughts, calls, finish reasons."""
    content, thought, calls, ends = '', '', {}, []
    for e in events:
        for c in e['choices']:
            d = c['delta']
            content += d.get('content') or ''
            thought += d.get('reasoning_content') or ''
            for t in d.get('tool_calls') or []:
                call = calls.setdefault(t['index'], ['', '', ''])
                call[0] += t.get('id') or ''
                call[1] += t['function'].get('name') or ''
                call[2] += t['function'].get('arguments') or ''
            if c['finish_reason']:
                ends.append(c['finish_reason'])
    return content, thought, list(calls.values()), ends


# ---- /v1/completions, as vLLM's tests ask
@check('completion, one')
def _():
    c = completion().json
    assert c['id'] and len(c['choices']) == 1 and c['choices'][0]['finish_reason'] == 'length'
    u = c['usage']
    assert u['completion_tokens'] == 5 and u['total_tokens'] == u['prompt_tokens'] + 5 and 'cached_tokens' in u['prompt_tokens_details']


@check('completion, token ids')
def _(): assert len(completion(prompt=[5, 6, 7, 8, 9]).json['choices'][0]['text']) >= 1


@check('completion, truncation_side')
def _():
    for side, part in (('right', slice(0, 4)), ('left', slice(4, 8))):
        ids = list(range(300, 308))
        c = completion(prompt=ids, max_tokens=1, return_token_ids=True, truncate_prompt_tokens=4, truncation_side=side).json
        assert c['choices'][0]['prompt_token_ids'] == ids[part], c


@check('completion, no logprobs')
def _(): assert completion(logprobs=None).json['choices'][0]['logprobs'] is None


@check('completion, logprobs 0')
def _():
    l = completion(logprobs=0).json['choices'][0]['logprobs']
    assert len(l['token_logprobs']) == 5 and len(l['top_logprobs'][0]) == 1, l


@check('completion, logprobs 5')
def _():
    l = completion(logprobs=5).json['choices'][0]['logprobs']
    assert all(5 <= len(t) <= 6 for t in l['top_logprobs']), l


@check('completion, logprobs 21')
def _():
    bad('/v1/completions', prompt='x', max_tokens=5, logprobs=21)
    bad('/v1/completions', prompt='x', max_tokens=5, logprobs=30, stream=True)
    completion()


@check('completion, prompt_logprobs -1')
def _(): bad('/v1/completions', prompt=['a', 'b'], prompt_logprobs=-1)


@check('completion, prompt_logprobs')
def _(): assert len(completion(prompt=['A robot may not', 'My name is'], prompt_logprobs=1).json['choices'][1]['prompt_logprobs']) > 0


@check('completion, stream says what the whole answer says')
def _():
    whole = completion(ignore_eos=True).json['choices'][0]['text']
    events = completion(ignore_eos=True, stream=True).events()
    assert ''.join(e['choices'][0]['text'] for e in events) == whole
    assert [e['choices'][0]['finish_reason'] for e in events if e['choices'][0]['finish_reason']] == ['length']


@check('completion, the last chunk has text')
def _(): assert completion(ignore_eos=True, stream=True).events()[-1]['choices'][0]['finish_reason'] == 'length'


@check('completion, n 3')
def _():
    c = completion(prompt='What is an LLM?', n=3, max_tokens=50, temperature=1, seed=42, logprobs=0).json['choices']
    assert [x['index'] for x in c] == [0, 1, 2] and len({x['text'] for x in c}) == 3
    assert all(x['finish_reason'] for x in c)


@check('completion, n 3 streamed')
def _():
    texts, ends = {}, 0
    for e in completion(prompt='What is an LLM?', n=3, max_tokens=50, temperature=1, seed=42, stream=True).events():
        for c in e['choices']:
            texts[c['index']] = texts.get(c['index'], '') + c['text']
            ends += c['finish_reason'] is not None
    whole = completion(prompt='What is an LLM?', n=3, max_tokens=50, temperature=1, seed=42).json['choices']
    assert ends == 3 and [texts[i] for i in range(3)] == [c['text'] for c in whole]


@check('completion, stream_options')
def _():
    for options in ({'include_usage': False}, {'include_usage': False, 'continuous_usage_stats': True}, {}):
        assert all(e.get('usage') is None for e in completion(ignore_eos=True, stream=True, stream_options=options).events()), options
    events = completion(ignore_eos=True, stream=True, stream_options={'include_usage': True}).events()
    assert all(e.get('usage') is None for e in events[:-1]) and events[-1]['choices'] == []
    u = events[-1]['usage']
    assert u['total_tokens'] == u['prompt_tokens'] + u['completion_tokens'] and u['completion_tokens'] == 5
    events = completion(ignore_eos=True, stream=True, stream_options={'include_usage': True, 'continuous_usage_stats': True}).events()
    assert all(e['usage']['prompt_tokens'] > 0 for e in events)


@check('completion, stream_options without stream')
def _():
    for options in ({'include_usage': True}, {'include_usage': None}, {'continuous_usage_stats': True}, {'continuous_usage_stats': None}):
        bad('/v1/completions', prompt='x', max_tokens=5, stream_options=options)


@check('completion, two prompts')
def _():
    for prompts in (['Hello, my name is'] * 2, [[5, 6, 7, 8]] * 2):
        c = completion(prompt=prompts).json['choices']
        assert len(c) == 2 and c[0]['text'] == c[1]['text']
        texts = ['', '']
        for e in completion(prompt=prompts, stream=True).events():
            texts[e['choices'][0]['index']] += e['choices'][0]['text']
        assert texts[0] == texts[1] == c[0]['text']


@check('completion, beam search')
def _(): assert len(completion(n=2, use_beam_search=True).json['choices']) == 2


@check('completion, echo with logprobs')
def _():
    for n in (1, 0):
        for prompt in ('Hello, my name is', [5, 6, 7, 8, 9]):
            c = completion(prompt=prompt, echo=True, logprobs=n).json['choices'][0]
            assert not isinstance(prompt, str) or c['text'].startswith(prompt), c['text']
            l = c['logprobs']
            assert l['token_logprobs'][0] is None and l['top_logprobs'][0] is None and len(l['tokens']) > 5
            assert all(max(n, 1) <= len(t) <= n + 1 for t in l['top_logprobs'][1:]), l['top_logprobs']


@check('completion, echo without an answer')
def _():
    c = completion(echo=True, max_tokens=0).json['choices'][0]
    assert c['text'] == 'Hello, my name is' and c['finish_reason'] == 'length', c


@check('completion, a schema that is none')
def _():
    bad('/v1/completions', prompt='x', structured_outputs={'json': {'type': 'object', 'properties': {'a': {'type': 'string'}, 'foo': 'bar'}}})


@check('completion, a regex that is none')
def _(): bad('/v1/completions', prompt='x', structured_outputs={'regex': '[.*'}, stop=['\n'])


@check('completion, a grammar that is none')
def _(): bad('/v1/completions', prompt='x', structured_outputs={'grammar': 'root ::= select_statementinvalid\nselect ::= "a"'})


@check('completion, structured_outputs of four kinds')
def _():
    assert completion(structured_outputs={'choice': LANGUAGES}, max_tokens=20).json['choices'][0]['text'] in LANGUAGES
    assert re.fullmatch(IP, completion(structured_outputs={'regex': IP}, max_tokens=20).json['choices'][0]['text'])
    fits_employee(completion(structured_outputs={'json': EMPLOYEE}, max_tokens=400).json['choices'][0]['text'])
    sql = 'root ::= "SELECT " column " from " table\ncolumn ::= "col_1" | "col_2"\ntable ::= "table_1" | "table_2"'
    text = completion(structured_outputs={'grammar': sql}, max_tokens=40).json['choices'][0]['text']
    assert re.fullmatch(r'SELECT col_[12] from table_[12]', text), text


@check('completion, token ids told')
def _():
    c = completion(return_token_ids=True, logprobs=1, return_tokens_as_token_ids=True).json['choices'][0]
    assert [f'token_id:{t}' for t in c['token_ids']] == c['logprobs']['tokens'] and len(c['prompt_token_ids']) > 3
    c = completion(return_token_ids=False).json['choices'][0]
    assert c.get('token_ids') is None and c.get('prompt_token_ids') is None


@check('completion, prompts that are none')
def _():
    for prompt in ([], '', [[]], None, {'a': 1}, [1.5], [-1], [10**9]):
        a = send('/v1/completions', {'model': MODEL, 'prompt': prompt, 'max_tokens': 1})
        assert a.status == 400 or (prompt == '' and a.status == 200), (prompt, a.status, a.text[:200])


@check('completion, a prompt that is too long')
def _():
    a = bad('/v1/completions', prompt=[5] * 100000, max_tokens=1)
    assert 'context' in a.text


@check('completion, sampling out of range')
def _():
    for field, value in (('temperature', -1), ('top_p', 2), ('top_p', -0.1), ('n', 0), ('max_tokens', -5), ('presence_penalty', 'x'),
                         ('stop', 5), ('min_p', 2), ('repetition_penalty', -1), ('min_tokens', 10), ('logit_bias', {'a': 1}),
                         ('logit_bias', {'99999999': 1}), ('allowed_token_ids', []), ('stop_token_ids', ['a']), ('bad_words', [1]),
                         ('truncate_prompt_tokens', -2)):
        bad('/v1/completions', prompt='x', **{'max_tokens': 5, field: value})


@check('completion, a body that is no object')
def _():
    for body in ([], 'x', 5, None):
        a = send('/v1/completions', body, method='POST')
        assert a.status in (400, 422), (body, a.status)


# ---- /v1/chat/completions, as vLLM's tests ask
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


@check('chat, n 2 with a seed')
def _():
    a, b = (chat(n=2, seed=42, temperature=0.8).json['choices'] for _ in range(2))
    assert a == b and len(a) == 2


@check('chat, echo')
def _():
    c = chat(echo=True).json['choices'][0]['message']['content']
    assert c is not None


@check('chat, logit_bias out of range')
def _():
    for bias in ({'99999999': 1}, {'-1': 1}, {'x': 1}):
        bad('/v1/chat/completions', messages=HELLO, logit_bias=bias)


@check('chat, stop_token_ids')
def _():
    ids = chat(return_token_ids=True, enable_thinking=False).json['choices'][0]['token_ids']
    c = chat(stop_token_ids=[ids[1]], enable_thinking=False, return_token_ids=True).json['choices'][0]
    assert c['finish_reason'] == 'stop' and c['stop_reason'] == ids[1], c
    for wrong in ([99999999], [-1], ['x'], 5):
        bad('/v1/chat/completions', messages=HELLO, stop_token_ids=wrong)


@check('chat, token ids in and out')
def _():
    a = chat(return_token_ids=True).json
    prompt = (a.get('prompt_token_ids') or a['choices'][0]['prompt_token_ids'])
    rendered = ok('/v1/chat/completions/render', messages=HELLO).json
    assert (rendered[0] if isinstance(rendered, list) else rendered)['token_ids'] == prompt
    text = ok('/detokenize', tokens=a['choices'][0]['token_ids']).json
    assert text


@check('chat, tokens counted as they are read')
def _():
    assert ok('/tokenize', messages=HELLO).json['count'] == chat().json['usage']['prompt_tokens']


for choice_name, tool_choice in (('auto', 'auto'), ('required', 'required'),
                                 ('named', {'type': 'function', 'function': {'name': 'get_current_weather'}})):
    for thinks in (False, True):
        for stream in (False, True):
            def call(tool_choice=tool_choice, thinks=thinks, stream=stream):
                a = chat(messages=ASK, tools=tools(*TWO), tool_choice=tool_choice, stream=stream, max_completion_tokens=600,
                         thinking_token_budget=30, chat_template_kwargs={'enable_thinking': thinks})
                if stream:
                    content, thought, calls, ends = joined(a.events())
                    calls, end = [(c[1], c[2]) for c in calls], ends[-1]
                else:
                    c = a.json['choices'][0]
                    thought, end = c['message'].get('reasoning_content', ''), c['finish_reason']
                    calls = [(t['function']['name'], t['function']['arguments']) for t in c['message'].get('tool_calls', [])]
                assert tool_choice == 'auto' or calls, a.text[:500]
                if end == 'tool_calls':
                    for name, args in calls:
                        if tool_choice != 'auto':
                            fits(name, args)
                        json.loads(args)
                if isinstance(tool_choice, dict):
                    assert {c[0] for c in calls} <= {'get_current_weather'}
            CHECKS.append((f'chat, tools {choice_name}, {"thinking" if thinks else "not thinking"}{", streamed" if stream else ""}', call))


@check('chat, tools not parallel')
def _():
    c = chat(messages=ASK, tools=tools(*TWO), tool_choice='required', parallel_tool_calls=False, max_completion_tokens=600,
             enable_thinking=False).json['choices'][0]
    assert len(c['message']['tool_calls']) == 1


@check('chat, tools none')
def _():
    a = chat(messages=ASK, tools=tools(*TWO), tool_choice='none', max_completion_tokens=60)
    assert not a.json['choices'][0]['message'].get('tool_calls')


@check('chat, a tool without parameters, and its result')
def _():
    clock = tools(('get_current_time', {'type': 'object', 'properties': {}, 'required': []}))
    m = chat(messages=HELLO, tools=clock, tool_choice='required', enable_thinking=False, max_completion_tokens=100).json['choices'][0]['message']
    for arguments in ('{}', ''):
        m['tool_calls'][0]['function']['arguments'] = arguments
        chat(messages=HELLO + [m, {'role': 'tool', 'tool_call_id': m['tool_calls'][0]['id'], 'content': '12:30'}])
        chat(messages=HELLO + [m, {'role': 'tool', 'tool_call_id': m['tool_calls'][0]['id'], 'content': [{'type': 'text', 'text': '12:30'}]}])


@check('chat, a named tool with a schema')
def _():
    c = chat(messages=ASK, tools=tools(('dummy', EMPLOYEE)), tool_choice={'type': 'function', 'function': {'name': 'dummy'}},
             max_completion_tokens=800, enable_thinking=False).json['choices'][0]
    assert not c['message']['content']
    fits_employee(c['message']['tool_calls'][0]['function']['arguments'])


@check('chat, tool_choice without its tool')
def _():
    named = {'type': 'function', 'function': {'name': 'dummy'}}
    bad('/v1/chat/completions', messages=ASK, tool_choice=named)
    bad('/v1/chat/completions', messages=ASK, tools=tools(('other', EMPLOYEE)), tool_choice=named)
    bad('/v1/chat/completions', messages=ASK, tools=tools(('other', EMPLOYEE)), tool_choice={})
    bad('/v1/chat/completions', messages=ASK, tools=tools(('other', EMPLOYEE)), tool_choice='sometimes')


@check('chat, tool_choice null')
def _(): chat(messages=ASK, tools=tools(*TWO), tool_choice=None)


@check('chat, required with one token')
def _():
    for tool_choice in ('required', {'type': 'function', 'function': {'name': 'get_current_weather'}}):
        c = chat(messages=ASK, tools=tools(*TWO), tool_choice=tool_choice, max_completion_tokens=1).json['choices'][0]
        assert c['finish_reason'] == 'length' and not c['message'].get('tool_calls') and c['message']['content'] == '', c


@check('chat, required with few tokens looks not finished')
def _():
    for n in range(1, 24):
        c = chat(messages=ASK, tools=tools(*TWO), tool_choice='required', max_completion_tokens=n, enable_thinking=False).json['choices'][0]
        if c['finish_reason'] == 'length':
            for t in c['message'].get('tool_calls') or []:
                try:
                    json.loads(t['function']['arguments'])
                except ValueError:
                    continue
                raise AssertionError(f'{n} tokens: {t}')


@check('chat, tools that are none')
def _():
    for wrong in ({}, [{}], [{'type': 'function'}], [{'type': 'function', 'function': {}}], 'x',
                  [{'type': 'function', 'function': {'name': 'a', 'parameters': 5}}]):
        bad('/v1/chat/completions', messages=ASK, tools=wrong, tool_choice='required')


@check('chat, a thinking budget')
def _():
    a = chat(max_completion_tokens=100, thinking_token_budget=5, enable_thinking=True).json
    assert a['usage']['completion_tokens_details']['reasoning_tokens'] <= 5 + 2, a['usage']
    bad('/v1/chat/completions', messages=HELLO, thinking_token_budget=-5)


@check('chat, no thought where none is wanted')
def _():
    for stream in (False, True):
        a = chat(stream=stream, chat_template_kwargs={'enable_thinking': False}, max_completion_tokens=16)
        assert 'reasoning_content' not in a.text


@check('chat, message.reasoning')
def _(): assert chat(max_completion_tokens=60, thinking_token_budget=5, enable_thinking=True).json['choices'][0]['message']['reasoning']


@check('chat, reasoning_effort')
def _():
    for effort in ('none', 'minimal', 'low', 'medium', 'high'):
        chat(reasoning_effort=effort)
    bad('/v1/chat/completions', messages=HELLO, reasoning_effort='enormous')


@check('chat, include_reasoning false')
def _(): assert 'reasoning_content' not in chat(include_reasoning=False, enable_thinking=True).text


@check('chat, messages that are none')
def _():
    for wrong in ([], None, 'x', [5], [{'role': 'user'}, {}], [{'content': 'x'}], [{'role': 'user', 'content': 5}]):
        a = send('/v1/chat/completions', {'model': MODEL, 'messages': wrong, 'max_tokens': 2})
        assert a.status == 400, (wrong, a.status, a.text[:200])


@check('chat, bodies that are none')
def _():
    for body in ([], 'x', 5):
        assert send('/v1/chat/completions', body).status in (400, 422)


@check('chat, system_fingerprint and created')
def _():
    c = chat().json
    assert isinstance(c['created'], int) and c['object'] == 'chat.completion' and c['model']


@check('chat, a model that is not there')
def _():
    a = send('/v1/chat/completions', {'model': 'missing/model', 'messages': HELLO, 'max_tokens': 2})
    assert a.status in (200, 404)


@check('chat, continue_final_message')
def _():
    talk = HELLO + [{'role': 'assistant', 'content': 'The answer is'}]
    chat(messages=talk, continue_final_message=True, add_generation_prompt=False)
    bad('/v1/chat/completions', messages=talk, continue_final_message=True, add_generation_prompt=True)


@check('sagemaker, /invocations')
def _(): ok('/invocations', messages=HELLO, max_completion_tokens=5)


# ---- /v1/responses
@check('responses, one')
def _():
    r = responses(max_output_tokens=50).json
    assert r['id'].startswith('resp_') and r['status'] in ('completed', 'incomplete') and r['object'] == 'response' and r['output']


@check('responses, instructions and a list of messages')
def _():
    responses(instructions='Be brief.')
    responses(input=[{'role': 'developer', 'content': 'Be brief.'}, {'role': 'user', 'content': [{'type': 'input_text', 'text': 'Hi'}]}])


for choice_name in ('auto', 'required'):
    def use(tool_choice=choice_name):
        r = responses(input=ASK, tools=flat(*TWO), tool_choice=tool_choice, max_output_tokens=600, reasoning={'effort': 'none'}).json
        calls = [o for o in r['output'] if o['type'] == 'function_call']
        assert tool_choice == 'auto' or calls, r['output']
        for c in calls:
            if c['status'] == 'completed':
                json.loads(c['arguments'])
    CHECKS.append((f'responses, tools {choice_name}', use))


@check('responses, required with ten tokens')
def _():
    r = responses(input=ASK, tools=flat(*TWO), tool_choice='required', max_output_tokens=10, reasoning={'effort': 'none'}).json
    assert r['status'] == 'incomplete' and r['incomplete_details']['reason'] == 'max_output_tokens'
    for o in r['output']:
        assert o['type'] != 'function_call' or o['status'] == 'incomplete', o


@check('responses, a named tool and its result')
def _():
    place = {'type': 'object', 'properties': {'latitude': {'type': 'number'}, 'longitude': {'type': 'number'}},
             'required': ['latitude', 'longitude'], 'additionalProperties': False}
    tool = [{**flat(('get_weather', place))[0], 'strict': True}]
    talk = [{'role': 'user', 'content': "What's the weather like in Paris?"}]
    r = responses(input=talk, tools=tool, tool_choice={'type': 'function', 'name': 'get_weather'}, max_output_tokens=200,
                  reasoning={'effort': 'none'}).json
    call = [o for o in r['output'] if o['type'] == 'function_call'][0]
    if call['status'] == 'completed':
        args = json.loads(call['arguments'])
        assert {type(v) for v in args.values()} <= {int, float} and set(args) == {'latitude', 'longitude'}
    responses(input=talk + [call, {'type': 'function_call_output', 'call_id': call['call_id'], 'output': '20 degrees'}])


@check('responses, events in pairs')
def _():
    pairs = {'response.completed': 'response.created', 'response.incomplete': 'response.created',
             'response.output_item.done': 'response.output_item.added', 'response.output_text.done': 'response.output_text.delta',
             'response.content_part.done': 'response.content_part.added', 'response.reasoning_text.done': 'response.reasoning_text.delta',
             'response.function_call_arguments.done': 'response.function_call_arguments.delta'}
    for more in ({}, {'tools': flat(*TWO), 'tool_choice': 'required', 'reasoning': {'effort': 'none'}}, {'reasoning': {'effort': 'high'}}):
        open_, numbers = [], []
        for e in responses(input=ASK, stream=True, max_output_tokens=200, **more).events():
            kind = e['type']
            numbers.append(e['sequence_number'])
            if kind == 'response.created' or kind.endswith('added'):
                open_.append(kind)
            elif kind.endswith('delta'):
                if open_[-1] != kind:
                    open_.append(kind)
            elif kind in pairs:
                assert open_.pop() == pairs[kind], kind
        assert not open_ and numbers == list(range(len(numbers))), open_


@check('responses, a stream of arguments is the item')
def _():
    added, text, done = None, '', None
    for e in responses(input=ASK, tools=flat(*TWO), tool_choice='required', stream=True, max_output_tokens=400,
                       reasoning={'effort': 'none'}).events():
        if e['type'] == 'response.output_item.added' and e['item']['type'] == 'function_call' and not added:
            added = e['item']
        elif e['type'] == 'response.function_call_arguments.delta' and added and not done:
            text += e['delta']
        elif e['type'] == 'response.output_item.done' and e['item']['type'] == 'function_call' and not done:
            done = e['item']
    assert added['name'] == done['name'] and text == done['arguments']


@check('responses, a schema')
def _():
    r = responses(text={'format': {'type': 'json_schema', 'name': 'e', 'schema': EMPLOYEE, 'strict': False}}, max_output_tokens=600,
                  reasoning={'effort': 'none'}).json
    fits_employee(r['output'][0]['content'][0]['text'])


@check('responses, logprobs')
def _():
    r = responses(include=['message.output_text.logprobs'], top_logprobs=5, reasoning={'effort': 'none'}).json
    assert len(r['output'][0]['content'][0]['logprobs'][0]['top_logprobs']) == 5


@check('responses, tokens counted')
def _():
    n = ok('/v1/responses/input_tokens', input='What is 1+1?').json['input_tokens']
    assert n == responses().json['usage']['input_tokens']


@check('responses, fields out of range')
def _():
    for field, value in (('max_output_tokens', 0), ('temperature', -1), ('input', 5), ('tools', 5), ('truncation', 'x'),
                         ('reasoning', {'effort': 'x'}), ('previous_response_id', 'resp_x'), ('background', True)):
        bad('/v1/responses', **{'input': 'x', field: value})


@check('responses, an answer that was kept, and gone on with')
def _():
    a = send('/v1/responses/resp_none')
    assert a.status == 404


# ---- what the official clients can send, all at once
@check('openai sdk, chat with all fields')
def _():
    chat(messages=[{'role': 'developer', 'content': 'string', 'name': 'name'}, HELLO[1]], audio={'format': 'wav', 'voice': 'alloy'},
         modalities=['text'], moderation={'model': 'm'}, web_search_options={'search_context_size': 'low'})


@check('openai sdk, chat with all fields that a server of text can have')
def _():
    c = chat(messages=[{'role': 'developer', 'content': 'string', 'name': 'name'}, HELLO[1]], frequency_penalty=-2, presence_penalty=-2,
             logprobs=True, top_logprobs=0, metadata={'foo': 'string'}, modalities=['text'], n=1, parallel_tool_calls=True,
             prediction={'content': 'string', 'type': 'content'}, prompt_cache_key='key', prompt_cache_retention='in_memory',
             reasoning_effort='none', response_format={'type': 'text'}, safety_identifier='id', seed=-9007199254740991,
             service_tier='auto', stop='\n', store=True, stream=False, temperature=1, tool_choice='none',
             tools=tools(('name', {'foo': 'bar'})), top_p=1, user='user-1234', verbosity='low', logit_bias={'5': 0})
    m = c.json['choices'][0]['message']
    assert m['role'] == 'assistant' and 'content' in m


@check('openai sdk, functions')
def _():
    f = [{'name': 'name', 'description': 'd', 'parameters': EMPLOYEE}]
    chat(functions=f, function_call='none')
    m = chat(functions=f, function_call={'name': 'name'}, max_completion_tokens=600, enable_thinking=False).json['choices'][0]['message']
    fits_employee((m.get('function_call') or m['tool_calls'][0]['function'])['arguments'])


@check('openai sdk, completions with all fields')
def _():
    completion(best_of=1, echo=True, frequency_penalty=-2, presence_penalty=-2, logit_bias={'5': 0}, logprobs=0, n=1, seed=0, stop='\n',
               stream=False, temperature=1, top_p=1, user='user-1234')


@check('openai sdk, responses with all fields')
def _():
    responses(background=True, conversation='string', prompt={'id': 'id'}, moderation={'model': 'm'}, max_tool_calls=0)


@check('openai sdk, responses with all fields that a server of text can have')
def _():
    responses(instructions='instructions', include=[], metadata={'foo': 'string'}, parallel_tool_calls=True, prompt_cache_key='key',
              prompt_cache_retention='in_memory', reasoning={'effort': 'none', 'summary': 'auto'}, safety_identifier='id',
              service_tier='auto', store=True, temperature=1, text={'format': {'type': 'text'}, 'verbosity': 'low'}, tool_choice='none',
              tools=[{'type': 'function', 'name': 'name', 'parameters': {'foo': 'bar'}, 'strict': False, 'description': 'd'}],
              top_logprobs=0, top_p=1, truncation='auto', user='user-1234', stream_options=None)


@check('openai sdk, models')
def _():
    assert send('/v1/models/' + MODEL).json['id'] == MODEL
    assert send('/v1/models/none-such').status == 404
    assert send('/v1/models').json['object'] == 'list'


@check('openai sdk, embeddings refused clearly')
def _(): bad('/v1/embeddings', input='x')


# ---- /v1/messages
@check('anthropic, one')
def _():
    m = messages(thinking={'type': 'disabled'}).json
    assert m['type'] == 'message' and m['role'] == 'assistant' and m['content'][0]['type'] == 'text' and m['stop_reason'] in ('max_tokens', 'end_turn')
    assert m['usage']['output_tokens'] > 0


@check('anthropic sdk, all fields')
def _(): messages(container='container')


@check('anthropic sdk, all fields that a server of text can have')
def _():
    ephemeral = {'type': 'ephemeral', 'ttl': '5m'}
    m = messages(cache_control=ephemeral, metadata={'user_id': 'u'}, service_tier='auto', stop_sequences=['string'],
                 system=[{'type': 'text', 'text': "Today's date is 2024-06-01.", 'cache_control': ephemeral}], temperature=1,
                 thinking={'type': 'disabled'}, tool_choice={'type': 'auto', 'disable_parallel_tool_use': True},
                 tools=[{'name': 'name', 'type': 'custom', 'description': 'd', 'cache_control': ephemeral, 'input_schema': {
                     'type': 'object', 'properties': {'location': {'type': 'string'}, 'unit': {'type': 'string'}}, 'required': ['location']}}],
                 top_k=5, top_p=0.7).json
    assert m['content'], m


@check('anthropic, a schema')
def _():
    for wish in ({'output_config': {'format': {'type': 'json_schema', 'schema': EMPLOYEE}}},
                 {'output_format': {'type': 'json_schema', 'schema': EMPLOYEE}}):
        m = messages(max_tokens=600, thinking={'type': 'disabled'}, **wish).json
        fits_employee(m['content'][0]['text'])


@check('anthropic, tools any, named, none')
def _():
    for tool_choice in ({'type': 'any'}, {'type': 'tool', 'name': 'get_current_weather'}):
        m = messages(messages=ASK, tools=taken(*TWO), tool_choice=tool_choice, max_tokens=600, thinking={'type': 'disabled'}).json
        for b in m['content']:
            if b['type'] == 'tool_use':
                fits(b['name'], b['input'])
        assert m['stop_reason'] == 'max_tokens' or any(b['type'] == 'tool_use' for b in m['content']), m
    m = messages(messages=ASK, tools=taken(*TWO), tool_choice={'type': 'none'}).json
    assert all(b['type'] != 'tool_use' for b in m['content'])


@check('anthropic, a result of a tool')
def _():
    talk = ASK + [{'role': 'assistant', 'content': [{'type': 'tool_use', 'id': 'toolu_1', 'name': 'get_forecast', 'input': {'days': 5}}]},
                  {'role': 'user', 'content': [{'type': 'tool_result', 'tool_use_id': 'toolu_1', 'content': [{'type': 'text', 'text': 'Rain'}]}]}]
    messages(messages=talk, tools=taken(*TWO))
    messages(messages=talk[:2] + [{'role': 'user', 'content': [{'type': 'tool_result', 'tool_use_id': 'toolu_1', 'content': 'No', 'is_error': True}]}])


@check('anthropic, events')
def _():
    for more in ({'thinking': {'type': 'enabled', 'budget_tokens': 1024}}, {'thinking': {'type': 'disabled'}},
                 {'tools': taken(*TWO), 'tool_choice': {'type': 'any'}, 'messages': ASK, 'thinking': {'type': 'disabled'}}):
        events = messages(stream=True, max_tokens=100, **more).events()
        kinds = [e['type'] for e in events if e['type'] != 'ping']
        assert kinds[0] == 'message_start' and kinds[-2:] == ['message_delta', 'message_stop'], kinds
        index, open_ = 0, False
        for e in events:
            if e['type'] == 'content_block_start':
                assert not open_ and e['index'] == index
                open_ = True
            elif e['type'] == 'content_block_delta':
                assert open_ and e['index'] == index
            elif e['type'] == 'content_block_stop':
                open_, index = False, index + 1
        assert not open_


@check('anthropic, tokens counted')
def _():
    n = ok('/v1/messages/count_tokens', messages=[HELLO[1]], thinking={'type': 'disabled'}).json['input_tokens']
    u = messages(thinking={'type': 'disabled'}).json['usage']
    assert n == u['input_tokens'] + u.get('cache_read_input_tokens', 0), (n, u)


@check('anthropic, stop sequences')
def _():
    text = messages(max_tokens=40, thinking={'type': 'disabled'}).json['content'][0]['text']
    word = text.split()[0]
    m = messages(max_tokens=40, thinking={'type': 'disabled'}, stop_sequences=[word]).json
    assert m['stop_reason'] == 'stop_sequence' and m['stop_sequence'] == word, m


@check('anthropic, fields out of range')
def _():
    for field, value in (('max_tokens', 0), ('max_tokens', -1), ('temperature', -1), ('messages', []), ('messages', 5), ('tools', 5),
                         ('tool_choice', {'type': 'x'}), ('thinking', 5), ('stop_sequences', 'x'), ('system', 5)):
        bad('/v1/messages', **{'messages': [HELLO[1]], 'max_tokens': 5, field: value})


@check('anthropic, a system message inside')
def _(): messages(messages=[HELLO[1], {'role': 'system', 'content': 'Be brief.'}, {'role': 'user', 'content': 'Now?'}])


@check('anthropic, max_tokens left out')
def _(): bad('/v1/messages', messages=[HELLO[1]])


# ---- tokens
@check('tokenize and back')
def _():
    for text in ('Hello, world! 🚀', 'Grüße', ' a  b\n'):
        t = ok('/tokenize', prompt=text, add_special_tokens=False).json
        assert t['count'] == len(t['tokens']) and t['max_model_len'] > 0
        back = ok('/detokenize', tokens=t['tokens']).json
        assert back.get('prompt', back.get('content')) == text, back


@check('tokenize, strings of tokens')
def _():
    t = ok('/tokenize', prompt='Hello there', return_token_strs=True).json
    assert len(t['token_strs']) == t['count']


@check('version, health, metrics')
def _():
    assert send('/version').json['version'] and send('/health').status == 200
    assert 'vllm:num_requests_running' in send('/metrics').text


passed, failed, known = 0, [], []
for name, run in CHECKS:
    try:
        run()
        result = None
    except (AssertionError, KeyError, IndexError, TypeError, ValueError, AttributeError) as e:
        result = f'{type(e).__name__}: {e}'
    if result is None:
        passed += 1
    elif name in ELSEWHERE:
        known.append((name, ELSEWHERE[name]))
    else:
        failed.append(name)
    if result and (VERBOSE or name not in ELSEWHERE):
        print(f'FAIL {name}: {result[:600]}', flush=True)
print(f'{len(CHECKS)} checks on {MODEL}: {passed} pass, {len(known)} fail for a reason, {len(failed)} fail')
for name, why in known:
    print(f'  {name}: {why}')
sys.exit(bool(failed))
