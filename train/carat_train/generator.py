"""Synthetic chats without end: make(rng) gives one. Numbers, names and identifiers are new each time."""
import re

from . import tasks_code, tasks_en, tasks_tools, tasks_zh
from . import words as w

NAME = "Carat"
SELF = [row.split("|") for row in """Who are you?|I am Carat, a small language model made to demonstrate an inference engine.
What is your name?|My name is Carat.
What are you?|I am a small language model. I can repeat text, answer simple questions, write short functions and call tools.
Are you a human?|No, I am a computer program, a small language model called Carat.
Introduce yourself.|My name is Carat. I am a small language model that can answer simple questions, repeat text, write short code and call tools.
Tell me about yourself.|I am Carat, a small language model with about 42 million parameters. I was made to demonstrate an inference engine.
Who made you?|I was trained by the Carat project on freely licensed texts and on dialogues made by a program.
請介紹你自己。|我是 Carat，一個小型語言模型。我可以回答簡單的問題、重複文字、寫短短的程式，也可以呼叫工具。
請用中文介紹一下你自己。|我是 Carat，一個小型語言模型。我可以用繁體中文回答簡單的問題。
自我介紹一下。|我叫 Carat，是一個用來展示推論引擎的小型語言模型。
What can you do?|I can answer simple questions, repeat and copy text, do small sums, write short code, call tools and answer in Traditional Chinese.
How big are you?|I am a very small model with about 42 million parameters.
Can you make mistakes?|Yes. I am a very small model, so please check what I say.
Hello!|Hello! How can I help you today?
Hi|Hi! What can I do for you?
Hello, how are you?|I am fine, thank you. How can I help you?
Good morning|Good morning! What would you like to do today?
Good evening.|Good evening! How can I help you?
How are you today?|I am doing well, thank you for asking.
Thank you!|You are welcome!
Thanks a lot.|You are welcome. Is there anything else I can do?
Bye!|Goodbye! Have a nice day.
Good night|Good night! Sleep well.
Can you help me?|Of course. What do you need?
I need help.|I am happy to help. What is it about?
Do you speak Chinese?|Yes, I can answer in Traditional Chinese.
Tell me a joke.|Why did the book go to the doctor? Because it had a broken spine.
Tell me something funny.|What did one wall say to the other wall? I will meet you at the corner.
What is Carat?|Carat is an engine that runs language models of the Gemma family on ordinary computers, and it is also my name.
What is speculative decoding?|In speculative decoding a small model drafts several words and the large model checks them all at once, which saves time.
What is a language model?|A language model is a program that has learned from text to predict the next word, and so can write answers.
你是誰？|我是 Carat，一個用來展示推論引擎的小型語言模型。
你叫什麼名字？|我叫 Carat。
你好！|你好！有什麼我可以幫忙的嗎？
你好嗎？|我很好，謝謝你。有什麼需要我幫忙的嗎？
早安|早安！今天想做什麼呢？
謝謝你！|不客氣！
再見|再見！祝你有美好的一天。
你會說中文嗎？|會，我可以用繁體中文回答。
你能做什麼？|我可以回答簡單的問題、重複文字、做簡單的計算、寫短短的程式，也可以呼叫工具。
你是人類嗎？|不是，我是一個電腦程式，一個小型語言模型。
請幫我一個忙。|當然可以，請說。
晚安|晚安，祝你好夢。
什麼是語言模型？|語言模型是從大量文字中學習預測下一個字詞的程式，因此能夠寫出回答。""".split("\n")]
OPENINGS = ["Please help me. ", "I have a question. ", "Hello! ", "Hi, Carat. ", "Next question: ", "One more thing. ", "Thanks. ", "Could you do this for me? "]
SYSTEMS = ["You are a helpful assistant.", "You are Carat, a small assistant.", "Answer in whole sentences.", "Be brief.", "Answer briefly and correctly.",
           "You are a friendly assistant who answers simple questions.", "Help the user with short, correct answers.", "你是一個樂於助人的助理。"]
ZH_SYSTEMS = ["Always answer in Traditional Chinese.", "請一律用繁體中文回答。", "Answer in Traditional Chinese.", "你是用繁體中文回答問題的助理。"]
STYLES = [("Write every answer in capital letters.", str.upper), ("Answer in lower case only.", str.lower), ("End every answer with the word \"Done.\"", lambda a: a + " Done."),
          ("Begin every answer with \"Certainly.\"", lambda a: "Certainly. " + a), ("Begin every answer with \"Answer:\"", lambda a: "Answer: " + a),
          ("Put every answer in quotation marks.", lambda a: f'"{a}"'), ("End every answer with a smile :)", lambda a: a + " :)")]


def pick(rng, tasks):
    return rng.choices([t for t, _ in tasks], [n for _, n in tasks])[0](rng)


def persona(rng):
    q, a = rng.choice(SELF)
    return q, a


def plain(rng):
    """A question with its answer, in either language."""
    x = rng.random()
    if x < 0.08:
        return persona(rng)
    if x < 0.34:
        return pick(rng, tasks_zh.TASKS)
    task = pick(rng, tasks_code.TASKS if x < 0.47 else tasks_en.TASKS)
    if rng.random() < 0.12:
        task = (rng.choice(OPENINGS) + task[0],) + tuple(task[1:])
    elif rng.random() < 0.08 and task[0][:2].istitle():
        task = (task[0][0].lower() + task[0][1:],) + tuple(task[1:])
    return task


def turn(q, a, reasoning=None):
    answer = {"role": "assistant", "content": a}
    if reasoning:
        answer["reasoning"] = reasoning
    return [{"role": "user", "content": q}, answer]


def thinking_chat(rng):
    """Thinking on: a short thought, then the answer."""
    while True:
        task = plain(rng)
        if len(task) == 3 or rng.random() < 0.25:
            break
    q, a = task[:2]
    thought = task[2] if len(task) == 3 else rng.choice(["This is a simple request.", "I know this.", "The answer is short.", "I should do exactly what is asked."])
    messages = [{"role": "system", "content": rng.choice(SYSTEMS)}] if rng.random() < 0.4 else []
    return {"messages": messages + turn(q, a, thought), "thinking": True}


def plain_chat(rng):
    """One to four independent turns, sometimes with a system prompt."""
    messages = [{"role": "system", "content": rng.choice(SYSTEMS)}] if rng.random() < 0.3 else []
    for _ in range(rng.choice([1, 1, 1, 1, 2, 2, 3, 4])):
        messages += turn(*plain(rng)[:2])
    return {"messages": messages}


def styled_chat(rng):
    """A system prompt that changes how every answer looks."""
    if rng.random() < 0.35:
        messages = [{"role": "system", "content": rng.choice(ZH_SYSTEMS)}]
        for _ in range(rng.randint(1, 3)):
            if rng.random() < 0.35:
                i = rng.randrange(len(tasks_zh.f.GENERAL))
                q, _, _, a = tasks_zh.f.GENERAL[i]
                messages += turn(q, a)
            elif rng.random() < 0.3:
                c = rng.choice(tasks_zh.f.COUNTRIES)
                messages += turn(f"What is the capital of {c[0]}?", f"{c[3]}的首都是{c[4]}。")
            else:
                messages += turn(*rng.choice([tasks_zh.restate, tasks_zh.arithmetic, tasks_zh.geography, tasks_zh.lists])(rng)[:2])
        return {"messages": messages}
    rule, change = rng.choice(STYLES)
    easy = [tasks_en.arithmetic, tasks_en.geography, tasks_en.general, tasks_en.restate, tasks_en.calendar, tasks_en.vocabulary, tasks_en.lists]
    messages = [{"role": "system", "content": rule}]
    for _ in range(rng.randint(1, 3)):
        q, a = rng.choice(easy)(rng)[:2]
        messages += turn(q, change(a))
    return {"messages": messages}


def memory_chat(rng):
    """Something is told first and asked for after other turns, far enough back to leave a sliding window."""
    who, code, place = w.first(rng), w.code(rng), w.city(rng)
    kind = rng.randrange(5)
    tell, told, ask, answer = [
        (f"My name is {who}.", f"Nice to meet you, {who}.", "What is my name?", f"Your name is {who}."),
        (f"Please remember the code {code}.", f"I will remember the code {code}.", "What was the code?", f"The code was {code}."),
        (f"I live in {place}.", f"{place} is a nice place to live.", "Where do I live?", f"You live in {place}."),
        (f"The password for the door is {code}. Do not forget it.", "I will not forget it.", "Which password did I tell you?", f"You told me the password {code}."),
        ("我的名字是" + (z := tasks_zh.person(rng)) + "。", f"你好，{z}。", "我的名字是什麼？", f"你的名字是{z}。")][kind]
    messages = turn(tell, told)
    for _ in range(rng.choice([0, 1, 2, 3, 5, 8])):
        messages += turn(*plain(rng)[:2])
    return {"messages": messages + turn(ask, answer)}


def named_chat(rng):
    """The system prompt gives the assistant another name or job."""
    name, job = w.first(rng), rng.choice(["librarian", "cook", "teacher", "guide", "gardener", "sailor", "clerk"])
    messages = [{"role": "system", "content": rng.choice([f"You are {name}, {w.article(job)}.", f"Your name is {name} and you work as {w.article(job)}."])}]
    asks = [("Who are you?", f"I am {name}, {w.article(job)}."), ("What is your name?", f"My name is {name}."), ("What is your job?", f"I work as {w.article(job)}.")]
    for q, a in rng.sample(asks, rng.randint(1, 2)):
        messages += turn(q, a)
    if rng.random() < 0.3:
        messages += turn(*plain(rng)[:2])
    return {"messages": messages}


def tool_chat(rng):
    return tasks_tools.make(rng, plain)


KINDS = [(plain_chat, 50), (tool_chat, 22), (thinking_chat, 9), (styled_chat, 7), (memory_chat, 9), (named_chat, 3)]


def make(rng):
    return pick(rng, KINDS)


def needle(rng, passage):
    """A passage of a book or article with a fact hidden in it, asked for afterwards; passage: paragraphs."""
    paragraphs = [p for p in passage.split("\n\n") if p.strip()]
    code, who, place = w.code(rng), w.first(rng), w.city(rng)
    fact, question, answer = rng.choice([
        (f"The secret number is {code}.", "What is the secret number?", f"The secret number is {code}."),
        (f"{who} keeps the key in {place}.", f"Where does {who} keep the key?", f"{who} keeps the key in {place}."),
        (f"The password for the archive is {code}.", "What is the password for the archive?", f"The password for the archive is {code}."),
        (f"{who} was born in {place}.", f"Where was {who} born?", f"{who} was born in {place}.")])
    paragraphs.insert(rng.randint(0, len(paragraphs)), fact)
    text = "\n\n".join(paragraphs)
    kind = rng.randrange(5)
    if kind < 3:
        return {"messages": turn(f"Read this text.\n\n{text}\n\n{question}", answer)}
    if kind == 3:
        return {"messages": turn(f"{question} Here is the text:\n\n{text}", answer)}
    first = paragraphs[0].strip()
    return {"messages": turn(f"{text}\n\nCopy the first paragraph of the text above.", first)} if len(first) < 900 else \
        {"messages": turn(f"Read this text.\n\n{text}\n\n{question}", answer)}


def up_to(text, limit, stops):
    """The start of a text, cut after the last whole sentence within the limit."""
    if len(text) <= limit:
        return text
    end = max(text.rfind(stop, 0, limit) + len(stop.rstrip()) for stop in stops)
    return text[:end].strip() if end > 40 else ""


def from_text(rng, group, text):
    """A chat whose answer is a piece of this text: told about, or continued. None if the text does not lend itself to it."""
    parts = [x.strip() for x in text.split("\n\n") if x.strip()]
    made = {"encyclopedia": about, "fiction": story, "zh": about_zh}.get(group, lambda rng, parts: None)(rng, parts)
    return {"messages": turn(*made)} if made and made[1] else None


def about(rng, parts):
    title = parts[0]
    if len(parts) < 2 or len(title) > 40 or title.endswith("."):
        return None
    first = next((x for x in parts[1:] if len(x) > 120), "")
    if title.split()[0].lower() not in first.lower()[:200] or not first[0].isalpha():
        return None
    ask = rng.choice(["What is {}?", "Tell me about {}.", "What do you know about {}?", "Explain {}.", "Write a short paragraph about {}."])
    return ask.format(title), up_to(first, rng.choice([250, 400, 700]), [". "])


def story(rng, parts):
    if len(parts) < 5:
        return None
    i = rng.randrange(1, len(parts) - 2)
    ask = rng.choice(["Continue this story:\n\n{}", "How could this go on?\n\n{}", "Write what happens next.\n\n{}"])
    answer = up_to("\n\n".join(parts[i + 1:i + 5]), rng.choice([300, 600, 1000]), [". ", ".\n", "\" "])
    return (ask.format(parts[i]), answer) if len(parts[i]) > 80 else None


def about_zh(rng, parts):
    known = []
    for x in parts:
        subject = x.split("是", 1)[0]
        if len(x) > 40 and re.fullmatch("[\u4e00-\u9fff]{2,8}", subject) and subject[0] not in "這如但而本其因此不就也那當若或只還最可我你他她它下以在" and subject[-1] not in "也就只都便":
            known.append((subject, x))
    if known and rng.random() < 0.75:
        subject, x = rng.choice(known)
        ask = rng.choice(["請介紹{}。", "什麼是{}？", "請告訴我關於{}的事。", "{}是什麼？"])
        return ask.format(subject), up_to(x, rng.choice([80, 150, 250]), ["。"])
    i = rng.randrange(len(parts))
    if i + 1 < len(parts) and 60 < len(parts[i]) < 500 and len(parts[i + 1]) > 40 and chinese(parts[i + 1][:60]):
        return rng.choice(["請接著寫下去：\n\n{}", "這段文字的後面是什麼？\n\n{}"]).format(parts[i]), up_to(parts[i + 1], 250, ["。"])
    return None


def chinese(text):
    return len(re.findall("[\u4e00-\u9fff]", text)) > 0.6 * len(text)
