"""Our spans say what the published template renders. Needs Jinja2; run: python -m unittest discover train/tests"""
import functools
import json
import os
import random
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from carat_train import chat_format

try:
    import jinja2
except ImportError:
    jinja2 = None


@functools.lru_cache
def template():
    env = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    env.globals["raise_exception"] = lambda text: (_ for _ in ()).throw(ValueError(text))
    path = os.path.join(os.path.dirname(chat_format.__file__), "templates", "gemma4.jinja")
    with open(path, encoding="utf-8") as f:
        return env.from_string(f.read())


def prompt_and_answer(chat):
    """What the template makes of everything before the last message, and what is left for the model."""
    prompt = template().render(messages=chat["messages"][:-1], tools=chat.get("tools"), bos_token="",
                               enable_thinking=chat.get("thinking", False), add_generation_prompt=True)
    full = chat_format.render(chat).text()
    return prompt, full


@unittest.skipIf(jinja2 is None, "Jinja2 is not installed")
class ChatFormat(unittest.TestCase):
    def test_generated_chats_start_with_the_rendered_prompt(self):
        from carat_train import generator
        rng, kinds = random.Random(5), set()
        for _ in range(400):
            chat = generator.make(rng)
            prompt, full = prompt_and_answer(chat)
            self.assertTrue(full.startswith(prompt), json.dumps(chat, ensure_ascii=False) + "\n" + prompt + "\n" + full)
            last = chat["messages"][-1]
            self.assertTrue(full.endswith("<|tool_response>" if last.get("tool_calls") else "<turn|>\n"))
            kinds.add((bool(chat.get("tools")), bool(chat.get("thinking")), bool(last.get("tool_calls"))))
        self.assertGreaterEqual(len(kinds), 5)             # plain, thinking, calls, answers after calls, both

    def test_history_is_what_the_template_renders(self):
        chat = {"messages": [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "Hi"},
                             {"role": "assistant", "content": "Hello.", "reasoning": "A greeting."},
                             {"role": "user", "content": "Bye "}, {"role": "assistant", "content": "Goodbye."}]}
        prompt, full = prompt_and_answer(chat)
        self.assertEqual(full, prompt + "Goodbye.<turn|>\n")
        self.assertNotIn("greeting", full)


if __name__ == "__main__":
    unittest.main()
