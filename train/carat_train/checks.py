"""Can it still do what it was trained for? Requests unlike the generator's templates, each with a test of the answer."""
import re

from . import chat_format, sample
from .prompts import MAIL, WEATHER, user

TIMER = [{"type": "function", "function": {"name": "set_timer", "description": "Start a timer", "parameters": {
    "type": "object", "properties": {"minutes": {"type": "integer", "description": "Length in minutes"}}, "required": ["minutes"]}}}]
STOCK = [{"type": "function", "function": {"name": "warehouse_stock", "description": "Looks up how many pieces of a product are in stock", "parameters": {
    "type": "object", "properties": {"product": {"type": "string", "description": "Name of the product"}}, "required": ["product"]}}}]
LINES = ["The lighthouse keeper counts 17 green boats.", "Nobody had expected the piano to float.", "It rained for eleven days, and then the frogs came.",
         "Turn left after the second mill!", "int total = count + 41;"]
LINES_ZH = ["今天的月亮很圓。", "他把舊的收音機送給了鄰居。", "明天下午三點在車站前面見。"]
TAILS = ("<turn|>", "<|tool_response>")


def same(text):
    return lambda a: a == text


def has(*parts):
    return lambda a: all(p.lower() in a.lower() for p in parts)


def cases():
    """[(kind, chat, test of the answer without the end token)]."""
    out = []
    for i, line in enumerate(LINES):
        n, word = [(6, "six"), (3, "three"), (4, "four"), (2, "two"), (5, "five")][i]
        out.append(("repeat n times", user(f"Repeat this line {word} times: {line}"), same("\n".join([line] * n))))
        out.append(("repeat", user(f"Repeat exactly: {line}"), same(line)))
    for n, line in zip("三兩四", LINES_ZH):
        count = {"三": 3, "兩": 2, "四": 4}[n]
        out.append(("repeat n times, zh", user(f"請把這句話重複{n}次：{line}"), same("\n".join([line] * count))))
        out.append(("repeat, zh", user(f"請重複這句話：{line}"), same(line)))
    for code in ("kTableIndex_42 = parse_row(\"/var/log/x9.txt\")", "auto it = m_cache.find(key_id);", "QX-77812-b"):
        out.append(("copy identifiers", user(f"Repeat exactly: {code}"), same(code)))
    out += [("facts", user("Nora lives in Prague. Nora's favorite color is green. Nora has a pet owl.\n\nWhat pet does Nora have?"), has("nora", "owl")),
            ("facts", user("Torben lives in Aarhus. Torben likes to eat pancakes. Where does Torben live?"), has("torben", "aarhus")),
            ("facts", user("Mr. Okafor is 61 years old. Mr. Okafor's phone number is 555-2290. What is Mr. Okafor's phone number?"), has("555-2290")),
            ("facts, zh", user("張美惠住在屏東。張美惠養了一隻烏龜。\n請問張美惠養了什麼動物？"), has("烏龜")),
            ("facts, zh", user("林國棟住在桃園。林國棟今年47歲。林國棟今年幾歲？"), has("47")),
            ("geography", user("What is the capital of France?"), has("paris")), ("geography", user("Which city is the capital of Poland?"), has("warsaw")),
            ("geography, zh", user("日本的首都是哪裡？"), has("東京")), ("geography, zh", user("請問加拿大的首都在哪裡？"), has("渥太華")),
            ("sums", user("What is 17 + 25?"), has("42")), ("sums", user("What is 81 - 36?"), has("45")), ("sums", user("What is 7 times 8?"), has("56")),
            ("sums", user("How much is 64 plus 19?"), has("83")), ("sums, thinking", user("What is 348 + 579?", thinking=True), has("= 927")),
            ("sums, thinking", user("What is 2150 + 3874?", thinking=True), has("= 6024")), ("sums, zh", user("35加27等於多少？"), has("62")),
            ("code", user("Write a Python function called add_numbers that adds two numbers."), has("def add_numbers(", "return", "+")),
            ("code", user("Write a C++ function that returns the larger of two numbers."), has("int ", "a > b", "return")),
            ("code", user("Write a Python function that reverses a string."), has("def ", "[::-1]")),
            ("lists", user("Name five animals. Use a numbered list."), lambda a: [x[:2] for x in a.split("\n")] == ["1.", "2.", "3.", "4.", "5."]),
            ("lists", user("Count from 5 to 14."), same("5, 6, 7, 8, 9, 10, 11, 12, 13, 14")),
            ("tools", user("What is the weather in Lisbon?", tools=WEATHER), call_is("get_weather", city="Lisbon")),
            ("tools", user("Tell me the weather in Rovaniemi.", tools=WEATHER + TIMER), call_is("get_weather", city="Rovaniemi")),
            ("tools", user("Set a timer for 12 minutes.", tools=TIMER), call_is("set_timer", minutes=12)),
            ("tools", user("Send an email to mia.stone@example.org with the text \"The boat leaves at 07:40.\"", tools=MAIL),
             call_is("send_email", to="mia.stone@example.org", body="The boat leaves at 07:40.")),
            ("tools", user("How many copper kettles are in stock?", tools=STOCK), has("<|tool_call>call:warehouse_stock{product:", "kettle")),
            ("tools, zh", user("請問高雄的天氣怎麼樣？", tools=WEATHER), call_is("get_weather", city="高雄")),
            ("tool result", result_chat(), has("9", "rain")),
            ("system", user("What is the capital of Japan?", system="Always answer in Traditional Chinese."), has("東京")),
            ("system", user("What is the capital of Spain?", system="Write every answer in capital letters."), lambda a: "MADRID" in a and a == a.upper()),
            ("self", user("Who are you?"), has("carat")), ("self, zh", user("你是誰？"), has("carat")),
            ("translate", user("Translate into Traditional Chinese: The teacher reads a book in the library."), has("老師", "圖書館", "書")),
            ("translate", user("請翻譯成英文：我的朋友在公園裡喝茶。"), has("friend", "tea", "park")),
            ("sentences", user("Why does it rain?"), lambda a: len(a) > 30 and a[-1:] in ".!"), ("sentences", user("What is a river?"), whole),
            ("sentences", user("Tell me a short story about a fox."), lambda a: has("fox")(a) and whole(a)), ("sentences", user("What is music?"), whole)]
    return out


def whole(a):
    """Sentences that end."""
    return len(a) > 20 and a[-1:] in ".!?\""


def call_is(name, **arguments):
    return same(chat_format.call({"function": {"name": name, "arguments": arguments}}))


def result_chat():
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Bergen"}}}
    chat = user("What is the weather in Bergen?", tools=WEATHER)
    chat["messages"][-1:] = [{"role": "assistant", "content": "", "tool_calls": [call]},
                             {"role": "tool", "tool_call_id": "c1", "content": "9C, rainy"}, {"role": "assistant", "content": ""}]
    return chat


def score(model, tok, new=160, only=None):
    """Greedy answers: {kind: [right, all]} and the rows."""
    model.place(2048, model.norm.weight.device)
    ends, rows, table = sample.end_tokens(tok), [], {}
    for kind, chat, test in cases():
        if only and not kind.startswith(only):
            continue
        prompt = chat_format.render(chat, complete=False).text()
        if chat["messages"][-2]["role"] == "tool":
            prompt = prompt.removesuffix("<turn|>\n")
        answer = tok.decode(sample.continue_ids(model, sample.prompt_ids(tok, prompt), new, ends))
        stopped = answer.endswith(TAILS)
        plain = re.sub(r"(?s)^<\|channel>thought\n.*?<channel\|>", "", answer)
        for t in TAILS:
            plain = plain.removesuffix(t)
        right = stopped and bool(test(plain))
        row = table.setdefault(kind, [0, 0])
        row[0], row[1] = row[0] + right, row[1] + 1
        rows.append(dict(kind=kind, prompt=prompt, answer=answer, right=right, stopped=stopped))
    return table, rows
