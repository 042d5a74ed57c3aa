"""Chats with tools: declarations, a request, the right call (or none), results, and the answer built from them."""
import json

from . import facts as f
from . import tasks_zh as zh
from . import words as w

UNITS = ["celsius", "fahrenheit"]
MONEY = "USD EUR GBP JPY TWD CAD AUD CHF".split()
SKY = ["sunny", "cloudy", "rainy", "windy", "snowy", "foggy", "clear"]
SKY_ZH = ["晴天", "多雲", "下雨", "起風", "下雪", "有霧", "晴朗"]


def param(kind, description="", **more):
    return dict(more, type=kind, **({"description": description} if description else {}))


def tool(name, description, properties, required):
    return {"type": "function", "function": {"name": name, "description": description,
                                             "parameters": {"type": "object", "properties": properties, "required": required}}}


def call_id(rng):
    return "call_" + w.invented(rng)


class Use:
    """One tool family: declare(rng) gives the declaration, ask(rng) -> (question, arguments, result, answer), both
    languages where it makes sense."""

    def __init__(self, make, ask, ask_zh=None):
        self.make, self.ask, self.ask_zh = make, ask, ask_zh


def weather(rng):
    name = rng.choice(["get_weather", "weather", "get_current_weather", "weather_lookup"])
    props = {"city": param("string", rng.choice(["City name", "The city", "Name of the city", ""]))}
    if rng.random() < 0.4:
        props["unit"] = param("string", enum=UNITS)
    if rng.random() < 0.3:
        props["days"] = param("integer", "Number of days")
    return tool(name, rng.choice(["Get the current weather for a city", "Weather for a city", "Returns the weather in a city."]), props, ["city"])


def weather_result(rng, city):
    t, i = rng.randint(-15, 40), rng.randrange(len(SKY))
    if rng.random() < 0.5:
        return json.dumps({"temperature": t, "condition": SKY[i]}), t, i
    return f"{t}C, {SKY[i]}", t, i


def ask_weather(rng, t):
    props = t["function"]["parameters"]["properties"]
    city = w.city(rng)
    args, extra = {"city": city}, ""
    if "unit" in props and rng.random() < 0.6:
        args["unit"] = rng.choice(UNITS)
        extra = f" in {args['unit'].capitalize()}"
    if "days" in props and rng.random() < 0.6:
        args["days"] = rng.randint(2, 10)
        extra += f" for the next {args['days']} days"
    q = rng.choice(["What is the weather in {}{}?", "How is the weather in {}{}?", "Tell me the weather in {}{}.", "Please check the weather in {}{}.",
                    "I am going to {}. What is the weather there{}?", "Weather in {}{}?", "What's the weather like in {}{}?"]).format(city, extra)
    result, deg, i = weather_result(rng, city)
    return q, args, result, f"The weather in {city} is {SKY[i]} with a temperature of {deg} degrees."


def ask_weather_zh(rng, t):
    city = rng.choice(zh.CITIES + [c[4] for c in f.COUNTRIES])
    q = rng.choice(["{}現在的天氣如何？", "請問{}的天氣怎麼樣？", "幫我查一下{}的天氣。", "{}今天天氣好嗎？"]).format(city)
    result, deg, i = weather_result(rng, city)
    return q, {"city": city}, result, f"{city}的天氣是{SKY_ZH[i]}，氣溫{deg}度。"


def calculator(rng):
    return tool(rng.choice(["calculator", "calculate", "evaluate"]), rng.choice(["Evaluate an arithmetic expression", "Calculates a mathematical expression."]),
                {"expression": param("string", "The expression, such as 2*(3+4)")}, ["expression"])


def ask_calculator(rng, t):
    a, b, op = rng.randint(2, 9999), rng.randint(2, 9999), rng.choice("+-*")
    r = {"+": a + b, "-": a - b, "*": a * b}[op]
    q = rng.choice([f"What is {a} {op} {b}?", f"Calculate {a} {op} {b}.", f"How much is {a} {op} {b}?", f"Please compute {a} {op} {b}."])
    return q, {"expression": f"{a}{op}{b}"}, str(r), f"{a} {op} {b} = {r}."


def ask_calculator_zh(rng, t):
    a, b = rng.randint(2, 9999), rng.randint(2, 9999)
    op, word, r = rng.choice([("+", "加", a + b), ("-", "減", a - b), ("*", "乘以", a * b)])
    return f"{a}{word}{b}等於多少？", {"expression": f"{a}{op}{b}"}, str(r), f"{a}{word}{b}等於{r}。"


def search(rng):
    return tool(rng.choice(["search", "web_search", "search_web", "lookup"]), rng.choice(["Search the web", "Finds pages about a topic"]),
                {"query": param("string", "Search terms")}, ["query"])


def ask_search(rng, t):
    topic = rng.choice([f"{rng.choice(w.ADJECTIVES)} {rng.choice(w.OBJECTS)}s", f"{rng.choice(w.FOODS)} recipes", f"hotels in {w.city(rng)}",
                        f"history of {w.city(rng)}", w.first(rng) + " company", w.line(rng).rstrip(".!?"), f"{rng.choice(w.ANIMALS)} food"])
    found = w.line(rng)
    q = rng.choice(["Search for {}.", "Find information about {}.", "Look up {} on the web.", "Please search the web for {}."]).format(topic)
    return q, {"query": topic}, found, f"I found this: {found}"


def send_email(rng):
    return tool(rng.choice(["send_email", "send_message", "mail"]), "Send a message to a person",
                {"to": param("string", "Address of the receiver"), "subject": param("string"), "body": param("string", "Text of the message")}, ["to", "subject", "body"])


def ask_send_email(rng, t):
    to, body, subject = w.email(rng), w.line(rng), rng.choice(w.OBJECTS + w.PLACES).capitalize()
    q = rng.choice([f"Send an email to {to} with the subject \"{subject}\" and the text \"{body}\"",
                    f"Please write to {to}. Subject: {subject}. Text: {body}"])
    return q, {"to": to, "subject": subject, "body": body}, rng.choice(["ok", "sent", '{"status": "sent"}']), f"I sent the message \"{subject}\" to {to}."


def timer(rng):
    return tool(rng.choice(["set_timer", "start_timer", "set_alarm"]), "Start a timer", {"minutes": param("integer", "Length in minutes"), "label": param("string")}, ["minutes"])


def ask_timer(rng, t):
    n, label = rng.randint(1, 90), rng.choice(w.FOODS)
    args = {"minutes": n}
    q = rng.choice([f"Set a timer for {n} minutes", f"Start a timer of {n} minutes", f"Wake me in {n} minutes"])
    if rng.random() < 0.5:
        args["label"] = label
        q += f" for the {label}"
    return q + ".", args, "ok", f"The timer for {n} minutes is running."


def ask_timer_zh(rng, t):
    n = rng.randint(1, 90)
    return rng.choice([f"請設定{n}分鐘的計時器。", f"{n}分鐘後提醒我。", f"幫我計時{n}分鐘。"]), {"minutes": n}, "ok", f"已經設定{n}分鐘的計時器。"


def convert(rng):
    return tool(rng.choice(["convert_currency", "exchange", "currency_converter"]), "Convert an amount of money",
                {"amount": param("number", "Amount to convert"), "from": param("string", "Source currency"), "to": param("string", "Target currency")}, ["amount", "from", "to"])


def ask_convert(rng, t):
    n, (a, b) = rng.choice([rng.randint(1, 5000), rng.randint(1, 500) + 0.5]), rng.sample(MONEY, 2)
    r = round(n * rng.uniform(0.1, 30), 2)
    return rng.choice([f"Convert {n} {a} to {b}.", f"How much is {n} {a} in {b}?", f"What are {n} {a} worth in {b}?"]), {"amount": n, "from": a, "to": b}, str(r), f"{n} {a} are {r} {b}."


def read_file(rng):
    return tool(rng.choice(["read_file", "open_file", "cat"]), "Read a text file", {"path": param("string", "Path of the file")}, ["path"])


def ask_read_file(rng, t):
    p, text = w.path(rng), w.line(rng)
    return rng.choice([f"What is in the file {p}?", f"Read {p}.", f"Show me the content of {p}."]), {"path": p}, text, f"The file {p} contains: {text}"


def run_command(rng):
    return tool(rng.choice(["run_command", "bash", "shell", "execute"]), "Run a shell command", {"command": param("string", "The command line")}, ["command"])


def ask_run_command(rng, t):
    p = w.path(rng)
    d = p.rsplit("/", 1)[0]
    q, c = rng.choice([(f"List the files in {d}.", f"ls {d}"), (f"Count the lines of {p}.", f"wc -l {p}"), (f"Delete {p}.", f"rm {p}"),
                       (f"Show the first lines of {p}.", f"head {p}"), (f"Make the directory {d}.", f"mkdir -p {d}"), (f"Search for \"error\" in {p}.", f"grep error {p}")])
    out = rng.choice(["ok", w.line(rng), str(rng.randint(1, 900))])
    return q, {"command": c}, out, f"I ran `{c}`. The output was: {out}"


def book(rng):
    return tool(rng.choice(["book_table", "reserve_table", "make_reservation"]), "Book a table in a restaurant",
                {"restaurant": param("string"), "people": param("integer", "Number of guests"), "time": param("string", "Time as HH:MM")}, ["restaurant", "people", "time"])


def ask_book(rng, t):
    place, n, at = w.first(rng), rng.randint(1, 12), w.clock(rng)
    q = rng.choice([f"Book a table for {n} people at {place} at {at}.", f"I need a table at {place} for {n} at {at}.", f"Reserve a table for {n} at the restaurant {place}, {at}."])
    number = w.code(rng)
    return q, {"restaurant": place, "people": n, "time": at}, json.dumps({"confirmed": True, "number": number}), f"Your table for {n} at {place} at {at} is booked. The number is {number}."


def play(rng):
    return tool(rng.choice(["play_music", "play_song"]), "Play a song", {"title": param("string"), "artist": param("string")}, ["title"])


def ask_play(rng, t):
    title, artist = f"The {rng.choice(w.ADJECTIVES).capitalize()} {rng.choice(w.OBJECTS).capitalize()}", w.name(rng)
    args, by = {"title": title}, ""
    if rng.random() < 0.6:
        args["artist"], by = artist, f" by {artist}"
    return rng.choice([f"Play {title}{by}.", f"I want to hear {title}{by}."]), args, "playing", f"Now playing {title}{by}."


def light(rng):
    return tool(rng.choice(["set_light", "switch_light", "control_light"]), "Switch a light",
                {"room": param("string", "Room"), "on": param("boolean", "true to switch on"), "brightness": param("integer", "0 to 100")}, ["room", "on"])


def ask_light(rng, t):
    room, on = w.noun(rng, w.PLACES), rng.random() < 0.6
    args = {"room": room, "on": on}
    q = rng.choice([f"Switch {'on' if on else 'off'} the light in the {room}", f"Turn the light in the {room} {'on' if on else 'off'}"])
    if on and rng.random() < 0.4:
        args["brightness"] = rng.randint(1, 100)
        q += f" at {args['brightness']} percent"
    return q + ".", args, "done", f"The light in the {room} is {'on' if on else 'off'}."


def lookup(rng):
    """An invented tool: its names have never been seen, so they must be copied from the declaration."""
    noun, key = rng.choice(w.PARTS + w.OBJECTS), rng.choice(["id", "name", "code", "key", "number"])
    name = rng.choice([f"get_{noun}", f"find_{noun}", f"{noun}_info", f"{w.invented(rng)}_{noun}", f"fetch{noun.capitalize()}"])
    return tool(name, rng.choice([f"Get information about {w.article(noun)}", f"Looks up {w.article(noun)} by its {key}"]), {key: param("string", f"The {key} of the {noun}")}, [key])


def ask_lookup(rng, t):
    fn = t["function"]
    key = fn["parameters"]["required"][0]
    noun = fn["parameters"]["properties"][key]["description"].split()[-1]
    value, result = w.code(rng), w.line(rng)
    q = rng.choice([f"Look up the {noun} with the {key} {value}.", f"What do we know about the {noun} {value}?", f"Find the {noun} whose {key} is {value}.",
                    f"Tell me about {noun} {value}."])
    return q, {key: value}, result, f"About the {noun} {value}: {result}"


def shopping(rng):
    return tool(rng.choice(["add_items", "add_to_list", "order"]), "Add items to a shopping list",
                {"items": param("array", "The items", items={"type": "string"}), "list": param("string", "Name of the list")}, ["items"])


def ask_shopping(rng, t):
    items = [w.noun(rng, w.FOODS) for _ in range(rng.randint(1, 4))]
    args, on = {"items": items}, ""
    if rng.random() < 0.4:
        args["list"] = rng.choice(w.PLACES)
        on = f" to the list \"{args['list']}\""
    return rng.choice([f"Add {w.join(items)}{on}.", f"Please put {w.join(items)} on my shopping list." if not on else f"Put {w.join(items)} on the list \"{args['list']}\"."]), \
        args, "ok", f"I added {w.join(items)}{on}."


FAMILIES = [Use(shopping, ask_shopping), Use(weather, ask_weather, ask_weather_zh), Use(calculator, ask_calculator, ask_calculator_zh), Use(search, ask_search),
            Use(send_email, ask_send_email), Use(timer, ask_timer, ask_timer_zh), Use(convert, ask_convert), Use(read_file, ask_read_file),
            Use(run_command, ask_run_command), Use(book, ask_book), Use(play, ask_play), Use(light, ask_light), Use(lookup, ask_lookup), Use(lookup, ask_lookup)]
SYSTEMS = ["", "", "You are a helpful assistant.", "Use the tools when they help.", "You can call functions. Answer in one sentence.", "You are Carat."]


def make(rng, plain):
    """plain(rng) -> (question, answer) for requests that need no tool."""
    uses = rng.sample(FAMILIES, min(len(FAMILIES), rng.choice([1, 1, 1, 2, 2, 3, 4])))
    tools = [u.make(rng) for u in uses]
    if len({t["function"]["name"] for t in tools}) < len(tools):
        uses, tools = uses[:1], tools[:1]
    thinking, messages = rng.random() < 0.2, []
    system = rng.choice(SYSTEMS)
    if system:
        messages.append({"role": "system", "content": system})
    if rng.random() < 0.2:
        q, a = plain(rng)[:2]
        messages += [{"role": "user", "content": q}, {"role": "assistant", "content": a}]
    if rng.random() < 0.12:                                # nothing to call: just answer
        q, a = plain(rng)[:2]
        messages += [{"role": "user", "content": q}, {"role": "assistant", "content": a}]
        if thinking:
            messages[-1]["reasoning"] = "No tool is needed for this."
        return {"messages": messages, "tools": tools, "thinking": thinking}
    i = rng.randrange(len(uses))
    asks = [uses[i].ask(rng, tools[i])]
    if uses[i].ask_zh and rng.random() < 0.35:
        asks = [uses[i].ask_zh(rng, tools[i])]
    elif rng.random() < 0.08:
        asks.append(uses[i].ask(rng, tools[i]))           # two calls in one turn
    question = asks[0][0] if len(asks) == 1 else f"{asks[0][0]} And also: {asks[1][0]}"
    messages.append({"role": "user", "content": question})
    name = tools[i]["function"]["name"]
    calls = [{"id": call_id(rng), "type": "function", "function": {"name": name, "arguments": a[1]}} for a in asks]
    said = {"role": "assistant", "content": "", "tool_calls": calls}
    if thinking:
        said["reasoning"] = rng.choice([f"I should call {name}.", f"The tool {name} can answer this.", f"I need {name} for this."])
    messages.append(said)
    if rng.random() < 0.5:
        messages += [{"role": "tool", "tool_call_id": c["id"], "content": a[2]} for c, a in zip(calls, asks)]
        messages.append({"role": "assistant", "content": " ".join(a[3] for a in asks)})
        if thinking:
            messages[-1]["reasoning"] = "I have the result and can answer."
    return {"messages": messages, "tools": tools, "thinking": thinking}
