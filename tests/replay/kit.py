"""What the replayed checks share: how they are sent and named, and the schemas that they ask for."""
import json, re, sys, urllib.error, urllib.request

URL = sys.argv[1].rstrip('/')
CHECKS = []


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
