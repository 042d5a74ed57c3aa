#!/usr/bin/env python3
"""Requests of the kinds that vLLM's server tests, and the tests of OpenAI's and Anthropic's Python clients, send, against a running
server: what they expect of an answer, in our own words and values.

    replay.py URL [-v]

A line for each check that fails, then the counts. A check that cannot hold here stands with its reason in `ELSEWHERE` and counts for
itself. Exit code 1 if another one fails."""
import sys

import kit
import completions, chat, chat_more, responses, messages  # noqa: F401, E401: each adds its checks

VERBOSE = '-v' in sys.argv
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

passed, failed, known = 0, [], []
for name, run in kit.CHECKS:
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
print(f'{len(kit.CHECKS)} checks on {kit.MODEL}: {passed} pass, {len(known)} fail for a reason, {len(failed)} fail')
for name, why in known:
    print(f'  {name}: {why}')
sys.exit(bool(failed))
