"""/v1/chat/completions, the rest."""
import json, re

from kit import *  # noqa: F403


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
