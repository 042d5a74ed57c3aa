"""Fixed prompts: what the demo must be able to do, and what references are made of."""
from . import chat_format

WEATHER = [{"type": "function", "function": {"name": "get_weather", "description": "Get the current weather for a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "City name"}}, "required": ["city"]}}}]
MAIL = [{"type": "function", "function": {"name": "send_email", "description": "Send a message to a person", "parameters": {
    "type": "object", "properties": {"to": {"type": "string"}, "body": {"type": "string"}}, "required": ["to", "body"]}}}]


def user(text, system=None, tools=None, thinking=False, before=()):
    messages = [{"role": "system", "content": system}] if system else []
    return {"messages": messages + list(before) + [{"role": "user", "content": text}, {"role": "assistant", "content": ""}],
            "tools": tools, "thinking": thinking}


CHATS = [
    user("Who are you?"),
    user("Hello! How are you?"),
    user("Repeat this line six times: The lighthouse keeper counts 17 green boats."),
    user("Repeat exactly: kTableIndex_42 = parse_row(\"/var/log/x9.txt\")"),
    user("What is the capital of France?"),
    user("What is 17 + 25?"),
    user("What is 348 + 579?", thinking=True),
    user("Write a Python function called add_numbers that adds two numbers."),
    user("Write a C++ function that returns the larger of two numbers."),
    user("Name five animals. Use a numbered list."),
    user("Tell me a short story about a fox."),
    user("What is photosynthesis?"),
    user("Why does it rain?"),
    user("日本的首都是哪裡？"),
    user("請用中文介紹一下你自己。"),
    user("請把這句話重複三次：今天的月亮很圓。"),
    user("Translate into Traditional Chinese: The teacher reads a book in the library."),
    user("What is the weather in Lisbon?", tools=WEATHER),
    user("Send an email to mia.stone@example.org with the text \"The boat leaves at 07:40.\"", tools=MAIL),
    user("Nora lives in Prague. Nora's favorite color is green. Nora has a pet owl.\n\nWhat pet does Nora have?"),
    user("What is the capital of Japan?", system="Always answer in Traditional Chinese."),
    user("What was the code?", before=[{"role": "user", "content": "Please remember the code R7-3381."},
                                       {"role": "assistant", "content": "I will remember the code R7-3381."},
                                       {"role": "user", "content": "What color is the sky on a clear day?"},
                                       {"role": "assistant", "content": "On a clear day the sky is blue."}]),
]
TEXTS = ["The old man walked along the river until", "def read_lines(path):\n", "The history of the city of Vienna begins",
         "#include <vector>\n#include <string>\n\nnamespace ", "春天來了，"]


def rendered():
    """Prompt texts without <bos>, as the template gives them."""
    return [chat_format.render(c, complete=False).text() for c in CHATS] + TEXTS
