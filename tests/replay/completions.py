"""/v1/completions, as vLLM's tests ask."""
import json, re

from kit import *  # noqa: F403


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
