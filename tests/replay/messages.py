"""/v1/messages, tokens and what is asked of a server itself."""
import json, re

from kit import *  # noqa: F403


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
