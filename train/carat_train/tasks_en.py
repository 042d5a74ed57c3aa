"""Tasks in English: each returns (question, answer) or (question, answer, reasoning)."""
import json

from . import facts as f
from . import words as w

COUNT = ["two", "three", "four", "five", "six", "seven", "eight"]


def repeat_line(rng):
    text, n = rng.choice([w.line, w.line, w.line, w.identifier, w.thing])(rng), rng.randint(2, 8)
    word = COUNT[n - 2] if rng.random() < 0.6 else str(n)
    ask = rng.choice([f"Repeat this line {word} times: {text}", f"Repeat this line {word} times:\n{text}",
                      f"Write the following sentence {word} times, one per line:\n\n{text}",
                      f"Please say this {word} times: {text}", f"Print \"{text}\" {word} times."])
    return ask, "\n".join([text] * n)


def repeat_once(rng):
    text = rng.choice([w.line, w.identifier, w.code, w.path, w.email])(rng)
    if rng.random() < 0.2:
        text = f"{w.identifier(rng)} = {w.identifier(rng)}({rng.choice([w.identifier(rng), w.code(rng), repr(w.path(rng)), str(rng.randint(0, 99))])})"
    elif rng.random() < 0.2:
        text = " ".join(w.invented(rng) for _ in range(rng.randint(2, 8)))
    ask = rng.choice(["Repeat exactly: {}", "Repeat after me: {}", "Say exactly this: {}", "Copy this text without changes:\n{}",
                      "Echo the following line.\n{}", "Repeat the line below.\n\n{}"])
    return ask.format(text), text


def copy_list(rng):
    items = [rng.choice([w.identifier, w.code, w.path, w.thing, w.line, w.line])(rng) for _ in range(rng.randint(3, 9))]
    kind = rng.randrange(5)
    listing = "\n".join(items)
    if kind == 0:
        return f"Copy this list exactly:\n{listing}", listing
    if kind == 1:
        return f"Number these lines:\n{listing}", "\n".join(f"{i}. {x}" for i, x in enumerate(items, 1))
    if kind == 2:
        return f"Turn these lines into a bulleted list:\n{listing}", "\n".join(f"- {x}" for x in items)
    if kind == 3:
        i = rng.randrange(len(items))
        order = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth"][i]
        return f"{listing}\n\nWhich line is the {order} one?", f"The {order} line is {items[i]}"
    return f"Write these lines in reverse order:\n{listing}", "\n".join(reversed(items))


def restate(rng):
    facts = {}
    who = w.name(rng)
    facts["Where does {} live?"] = (f"{who} lives in {{}}.", w.city(rng))
    facts["What is {}'s favorite color?"] = (f"{who}'s favorite color is {{}}.", rng.choice(w.COLORS))
    facts["What does {} like to eat?"] = (f"{who} likes to eat {{}}.", w.noun(rng, w.FOODS))
    facts["How old is {}?"] = (f"{who} is {{}} years old.", str(rng.randint(5, 95)))
    facts["What pet does {} have?"] = (f"{who} has a pet {{}}.", w.noun(rng, w.ANIMALS))
    facts["What is {}'s phone number?"] = (f"{who}'s phone number is {{}}.", f"{rng.randint(100, 999)}-{rng.randint(1000, 9999)}")
    facts["What is {}'s email address?"] = (f"{who}'s email address is {{}}.", w.email(rng))
    facts["When was {} born?"] = (f"{who} was born in {{}}.", str(rng.randint(1930, 2015)))
    keys = rng.sample(sorted(facts), rng.randint(2, len(facts)))
    text = " ".join(facts[k][0].format(facts[k][1]) for k in keys)
    key = rng.choice(keys)
    question = key.format(who)
    ask = rng.choice([f"{text}\n\n{question}", f"{text} {question}", f"Read this: {text}\nNow answer: {question}"])
    return ask, facts[key][0].format(facts[key][1])


def summary_of_order(rng):
    items = [(rng.randint(1, 12), rng.choice(w.FOODS), rng.randint(1, 20)) for _ in range(rng.randint(1, 3))]
    text = w.join(f"{n} {x} at {p} dollars each" for n, x, p in items)
    total = sum(n * p for n, _, p in items)
    steps = " ".join(f"{n} x {p} = {n * p}." for n, _, p in items)
    if len(items) > 1:
        steps += " " + " + ".join(str(n * p) for n, _, p in items) + f" = {total}."
    return f"I buy {text}. How much do I pay?", f"You pay {total} dollars.", steps


def arithmetic(rng):
    kind = rng.randrange(6)
    a, b = rng.randint(0, 99), rng.randint(0, 99)
    if kind in (0, 1):
        form = rng.choice(["What is {} + {}?", "{} + {} = ?", "Add {} and {}.", "How much is {} plus {}?", "Calculate {} + {}."])
        q, expression, r = form.format(a, b), f"{a} + {b}", a + b
    elif kind in (2, 3):
        a, b = max(a, b), min(a, b)
        form = rng.choice(["What is {} - {}?", "{} - {} = ?", "How much is {} minus {}?", "Calculate {} - {}."])
        q, expression, r = form.format(a, b), f"{a} - {b}", a - b
    elif kind == 4:
        a, b = rng.randint(0, 12), rng.randint(0, 12)
        form = rng.choice(["What is {} times {}?", "What is {} x {}?", "Multiply {} by {}.", "How much is {} * {}?"])
        q, expression, r = form.format(a, b), f"{a} x {b}", a * b
    else:
        b, r = rng.randint(1, 12), rng.randint(0, 12)
        a = b * r
        q, expression = rng.choice(["What is {} divided by {}?", "What is {} / {}?"]).format(a, b), f"{a} / {b}"
    return q, rng.choice([f"{expression} = {r}.", f"{expression} = {r}", f"The answer is {r}.", f"{expression} is {r}."]), f"{expression} = {r}"


def big_sum(rng):
    """Column addition, written out in the thought."""
    n = rng.randint(2, 4)
    a, b = rng.randint(10 ** (n - 1), 10 ** n - 1), rng.randint(1, 10 ** rng.randint(n - 1, n) - 1)
    steps, carry, x, y, place = [], 0, a, b, ["ones", "tens", "hundreds", "thousands"]
    for p in place:
        if not x and not y and not carry:
            break
        s = x % 10 + y % 10 + carry
        steps.append(f"{p}: {x % 10} + {y % 10}" + (f" + {carry}" if carry else "") + f" = {s}")
        x, y, carry = x // 10, y // 10, s // 10
    return f"What is {a} + {b}?", f"{a} + {b} = {a + b}.", "; ".join(steps) + f". So {a + b}."


def compare(rng):
    a, b = rng.sample(range(1, 1000), 2)
    if rng.random() < 0.5:
        return f"Which number is larger, {a} or {b}?", f"{max(a, b)} is larger than {min(a, b)}."
    return f"Which is smaller: {a} or {b}?", f"{min(a, b)} is smaller than {max(a, b)}."


def sequence(rng):
    kind = rng.randrange(6)
    if kind == 0:
        a = rng.randint(1, 50)
        b = a + rng.randint(4, 25)
        return f"Count from {a} to {b}.", ", ".join(map(str, range(a, b + 1)))
    if kind == 1:
        a = rng.randint(10, 60)
        b = a - rng.randint(4, 10)
        return f"Count down from {a} to {b}.", ", ".join(map(str, range(a, b - 1, -1)))
    if kind == 2:
        n, k = rng.randint(2, 12), rng.randint(3, 10)
        return f"List the first {k} multiples of {n}.", ", ".join(str(n * i) for i in range(1, k + 1))
    if kind == 3:
        k = rng.randint(3, 20)
        return f"Write the first {k} even numbers.", ", ".join(str(2 * i) for i in range(1, k + 1))
    if kind == 4:
        a, s = rng.randint(1, 30), rng.randint(2, 9)
        seq = [a + s * i for i in range(5)]
        return f"What comes next: {', '.join(map(str, seq[:4]))}, ...?", f"The next number is {seq[4]}."
    n = rng.randint(2, 12)
    return f"Write the {n} times table.", "\n".join(f"{n} x {i} = {n * i}" for i in range(1, 11))


def sorting(rng):
    if rng.random() < 0.5:
        items = rng.sample(range(1, 100), rng.randint(3, 7))
        down = rng.random() < 0.3
        order = "from largest to smallest" if down else "from smallest to largest"
        return f"Sort these numbers {order}: {', '.join(map(str, items))}", ", ".join(map(str, sorted(items, reverse=down)))
    items = rng.sample(w.FOODS + w.ANIMALS + w.OBJECTS, rng.randint(3, 6))
    return f"Put these words in alphabetical order: {', '.join(items)}", ", ".join(sorted(items))


def numbers_in_words(rng):
    n = rng.randint(0, 999)
    if rng.random() < 0.5:
        return f"Write the number {n} in words.", f"{w.spelled(n)}".capitalize() + "."
    return f"Write \"{w.spelled(n)}\" in digits.", f"{n}"


def letters(rng):
    word = rng.choice(w.OBJECTS + w.ANIMALS + w.FOODS + [w.invented(rng)])
    kind = rng.randrange(4)
    if kind == 0:
        return f"Spell the word \"{word}\".", "-".join(word.upper())
    if kind == 1:
        return f"How many letters are in the word \"{word}\"?", f"The word \"{word}\" has {len(word)} letters.", f"{'-'.join(word)}: {len(word)}"
    if kind == 2:
        return f"What is the first letter of \"{word}\"?", f"The first letter of \"{word}\" is {word[0]}."
    return f"Write \"{word}\" in capital letters.", word.upper()


def calendar(rng):
    kind, i = rng.randrange(5), rng.randrange(7)
    if kind == 0:
        return f"Which day comes after {w.DAYS[i]}?", f"{w.DAYS[(i + 1) % 7]} comes after {w.DAYS[i]}."
    if kind == 1:
        return f"Which day comes before {w.DAYS[i]}?", f"{w.DAYS[i - 1]} comes before {w.DAYS[i]}."
    m = rng.randrange(12)
    if kind == 2:
        return f"Which month follows {w.MONTHS[m]}?", f"{w.MONTHS[(m + 1) % 12]} follows {w.MONTHS[m]}."
    if kind == 3:
        return f"How many days does {w.MONTHS[m]} have?", f"{w.MONTHS[m]} has {w.MONTH_DAYS[m]} days" + (", or 29 in a leap year." if m == 1 else ".")
    m, d, y = w.date(rng)
    return f"Write the date {w.MONTHS[m]} {d}, {y} in the form YYYY-MM-DD.", f"{y}-{m + 1:02d}-{d:02d}"


def geography(rng):
    c, capital, continent, _, _, language, money = rng.choice(f.COUNTRIES)
    kind, upper = rng.randrange(6), c[0].upper() + c[1:]
    if kind in (0, 1):
        q = rng.choice(["What is the capital of {}?", "Which city is the capital of {}?", "Tell me the capital of {}.", "Capital of {}?"])
        return q.format(c), f"The capital of {c} is {capital}."
    if kind == 2:
        return f"Which country has {capital} as its capital?", f"{capital} is the capital of {c}."
    if kind == 3:
        return f"On which continent is {c}?", f"{upper} is in {continent}."
    if kind == 4:
        return f"Which language is spoken in {c}?", f"In {c} people speak {language}."
    return f"What is the currency of {c}?", f"The currency of {c} is the {money}."


def vocabulary(rng):
    kind = rng.randrange(6)
    if kind == 0:
        a, b = rng.sample(rng.choice(f.OPPOSITES), 2)
        return rng.choice([f"What is the opposite of \"{a}\"?", f"What is the opposite of {a}?"]), f"The opposite of \"{a}\" is \"{b}\"."
    if kind == 1:
        a, b = rng.choice(f.PLURALS)
        return f"What is the plural of \"{a}\"?", f"The plural of \"{a}\" is \"{b}\"."
    if kind == 2:
        a, b = rng.choice(f.PAST)
        return f"What is the past tense of \"{a}\"?", f"The past tense of \"{a}\" is \"{b}\"."
    if kind == 3:
        a, symbol, _ = rng.choice(f.ELEMENTS)
        if rng.random() < 0.5:
            return f"What is the chemical symbol of {a}?", f"The chemical symbol of {a} is {symbol}."
        return f"Which element has the symbol {symbol}?", f"{symbol} is the symbol of {a}."
    if kind == 4:
        a, b, n = rng.choice(f.UNITS)
        k = rng.randint(1, 12)
        one = a[:-1] if a != "feet" else "foot"
        return f"How many {b} are in {k} {a if k > 1 else one}?", f"There are {k * n} {b} in {k} {a if k > 1 else one}.", f"1 {one} = {n} {b}; {k} x {n} = {k * n}"
    i = rng.randrange(7)
    return f"Which planet comes after {f.PLANETS[i][0]}, seen from the Sun?", f"{f.PLANETS[i + 1][0]} comes after {f.PLANETS[i][0]}."


def general(rng):
    q, a, _, _ = rng.choice(f.GENERAL)
    return q, a


def lists(rng):
    pool, kind = rng.choice([(w.ANIMALS, "animals"), (w.FOODS, "foods"), (w.COLORS, "colors"), (w.CITIES, "cities"), (w.MONTHS, "months"),
                             (w.DAYS, "days of the week"), ([c[0] for c in f.COUNTRIES], "countries"), (w.OBJECTS, "things you find at home")])
    n = rng.randint(2, min(10, len(pool)))
    items = pool[:n] if pool in (w.MONTHS, w.DAYS) else rng.sample(pool, n)
    word = w.ONES[n]
    form = rng.randrange(3)
    ask = rng.choice([f"Name {word} {kind}.", f"List {word} {kind}.", f"Give me {word} {kind}.", f"Tell me {n} {kind}."])
    if form == 0:
        return ask, f"Here are {word} {kind}: {w.join(items)}."
    if form == 1:
        return ask + " Use a numbered list.", "\n".join(f"{i}. {x}" for i, x in enumerate(items, 1))
    return ask + " Use bullet points.", "\n".join(f"- {x}" for x in items)


def make_json(rng):
    pairs = {"name": w.name(rng), "age": rng.randint(5, 90), "city": rng.choice(w.CITIES), "email": w.email(rng), "id": w.code(rng),
             "active": rng.random() < 0.5, "color": rng.choice(w.COLORS)}
    keys = rng.sample(sorted(pairs), rng.randint(2, 5))
    chosen = {k: pairs[k] for k in keys}
    text = ", ".join(f"{k} {json.dumps(v) if isinstance(v, bool) else v}" for k, v in chosen.items())
    style = dict(indent=2) if rng.random() < 0.5 else {}
    answer = json.dumps(chosen, **style)
    ask = rng.choice(["Write this as JSON: {}", "Make a JSON object with these fields: {}", "Convert to JSON: {}"])
    return ask.format(text), answer if rng.random() < 0.5 else f"```json\n{answer}\n```"


def read_json(rng):
    record = {"name": w.name(rng), "city": rng.choice(w.CITIES), "id": w.code(rng), "count": rng.randint(1, 500), "path": w.path(rng)}
    key = rng.choice(sorted(record))
    return f"{json.dumps(record)}\n\nWhat is the value of \"{key}\"?", f"The value of \"{key}\" is {json.dumps(record[key])}."


def extract(rng):
    address, who, when = w.email(rng), w.name(rng), f"{rng.choice(w.DAYS)} at {w.clock(rng)}"
    number = w.code(rng)
    text = rng.choice([f"Hello, this is {who}. Please send ticket {number} to {address} before {when}.",
                       f"{who} wrote: the meeting is on {when}, my address is {address}, and the room code is {number}.",
                       f"Order {number} for {who} ({address}) will arrive on {when}."])
    what, answer = rng.choice([("email address", address), ("name of the person", who), ("day and time", when), ("code or number", number)])
    return f"Find the {what} in this text:\n{text}", f"The {what} is {answer}" + ("" if what == "email address" else ".")


def rewrite(rng):
    text = w.line(rng)
    kind = rng.randrange(3)
    if kind == 0:
        return f"Write this in upper case: {text}", text.upper()
    if kind == 1:
        return f"Write this in lower case: {text}", text.lower()
    old, new = rng.sample(w.COLORS, 2)
    s = f"{w.name(rng)} {rng.choice(w.VERBS)} the {old} {rng.choice(w.OBJECTS)} in the {rng.choice(w.PLACES)}."
    return f"Replace \"{old}\" with \"{new}\": {s}", s.replace(old, new)


def sentence_with(rng):
    noun, place = rng.choice(w.OBJECTS), rng.choice(w.PLACES)
    who = rng.choice(w.FIRST)
    a = rng.choice([f"{who} {rng.choice(w.VERBS)} the {rng.choice(w.ADJECTIVES)} {noun} in the {place}.",
                    f"There is {w.article(rng.choice(w.COLORS))} {noun} in the {place}.",
                    f"{who} was looking for the {noun} all day and found it at last in the {place}."])
    return rng.choice([f"Write a sentence with the words \"{noun}\" and \"{place}\".", f"Use {noun} and {place} in one sentence."]), a


def quoted_word(rng):
    """The first or last word or the number of words of a sentence."""
    text = w.line(rng).rstrip(".!?")
    parts, kind = text.split(), rng.randrange(3)
    if kind == 0:
        return f"What is the first word of this sentence? {text}", f"The first word is \"{parts[0]}\"."
    if kind == 1:
        return f"What is the last word of this sentence? {text}", f"The last word is \"{parts[-1]}\"."
    return f"Put this text in quotation marks: {text}", f'"{text}"'


def story(rng):
    """A short tale; without a pool there is none to tell."""
    text = w.pooled(rng, "stories", 1.0)
    if not text:
        return sentence_with(rng)
    title, _, body = text.partition("\n\n")
    animals = [a for a in w.ANIMALS + ["king", "princess", "boy", "girl", "farmer", "bird", "monkey", "elephant"] if f" {a} " in body[:500].lower() or a in title.lower()]
    if animals and rng.random() < 0.7:
        ask = rng.choice(["Tell me a story about {}.", "Tell me a short story about {}.", "Write a short story about {}."]).format(w.article(rng.choice(animals)))
    else:
        ask = rng.choice(["Tell me a story.", "Tell me a short story.", f"Tell me the story \"{title}\".", "Please tell me a bedtime story."])
    return ask, body[:1800].rsplit(".", 1)[0] + "." if "." in body[:1800] else body[:300]


def yes_no(rng):
    kind = rng.randrange(3)
    if kind == 0:
        a, b = rng.sample(range(1, 100), 2)
        return f"Is {a} greater than {b}?", f"Yes, {a} is greater than {b}." if a > b else f"No, {a} is less than {b}."
    if kind == 1:
        n = rng.randint(1, 200)
        return f"Is {n} an even number?", f"Yes, {n} is even." if n % 2 == 0 else f"No, {n} is odd."
    c, d = rng.sample(f.COUNTRIES, 2)
    city = rng.choice([c, d])[1]
    return f"Is {city} the capital of {c[0]}?", f"Yes, {city} is the capital of {c[0]}." if city == c[1] else f"No, the capital of {c[0]} is {c[1]}."


TASKS = [(repeat_line, 5), (repeat_once, 5), (copy_list, 4), (restate, 5), (summary_of_order, 2), (arithmetic, 6), (big_sum, 2),
         (compare, 1), (sequence, 3), (sorting, 2), (numbers_in_words, 1), (letters, 2), (calendar, 2), (geography, 4), (vocabulary, 3),
         (general, 4), (lists, 3), (make_json, 2), (read_json, 2), (extract, 3), (rewrite, 2), (sentence_with, 2), (yes_no, 2), (quoted_word, 2), (story, 3)]
