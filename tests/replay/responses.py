"""/v1/responses, and all that the official clients can send at once."""
import json, re

from kit import *  # noqa: F403


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
