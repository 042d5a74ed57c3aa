"""Word pools of the dialogue generator, and things made from them at random."""
import string

POOL = {}                                                   # real sentences, names and words; see pool.py


def pooled(rng, key, share):
    """Something of the pool, or None: so often, and always None without a pool."""
    items = POOL.get(key)
    return rng.choice(items) if items and rng.random() < share else None

FIRST = """Alice Ben Carla David Emma Farid Grace Hana Ivan Julia Kenji Lena Marco Nadia Oscar Priya Quentin Rosa Samuel
Tara Umar Vera Wendy Xavier Yuki Zoe Anton Bella Chen Dora Elias Fiona Georg Helen Ingrid Jonas Karin Liam Mei Noah Olga
Paul Rita Stefan Theo Ursula Victor Willa Adam Sofia Hugo Ines""".split()
LAST = """Abbott Becker Costa Dunn Evans Fischer Garcia Hughes Ito Jensen Keller Lopez Murphy Novak Olsen Park Quinn Rossi
Silva Tanaka Usman Varga Weber Young Zimmer Lin Wang Chen Hill Stone""".split()
CITIES = """Paris London Tokyo Berlin Madrid Rome Oslo Vienna Dublin Lisbon Prague Warsaw Athens Cairo Nairobi Lima Boston
Chicago Denver Seattle Toronto Sydney Melbourne Mumbai Delhi Seoul Taipei Kaohsiung Tainan Osaka Kyoto Hamburg Munich Lyon
Naples Geneva Zurich Helsinki Stockholm Copenhagen Brussels Amsterdam Istanbul Bangkok Hanoi Singapore Jakarta Manila""".split()
OBJECTS = """key book lamp chair phone letter ticket umbrella camera bottle guitar basket ladder mirror blanket candle map
clock kettle notebook helmet wallet drum coat bicycle pencil box scarf hammer bucket picture pillow spoon""".split()
ANIMALS = """cat dog horse cow sheep goat pig duck rabbit fox bear wolf lion tiger frog mouse owl eagle deer whale""".split()
FOODS = """bread rice soup apple pear cheese salad pasta cake tea coffee milk honey potato carrot onion egg fish orange
banana grape lemon tomato noodles butter yogurt""".split()
COLORS = "red blue green yellow black white brown purple orange pink gray silver golden".split()
PLACES = """kitchen garden office library station attic cellar school garage hall museum market harbor castle forest
hotel bakery theater hospital park""".split()
ADJECTIVES = """old new small large heavy light quiet bright dark warm cold empty full broken clean strange simple soft
narrow wide gentle brave happy tired""".split()
VERBS = "opened found carried painted cleaned lost bought sold repaired moved borrowed hid dropped wrapped counted".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = """January February March April May June July August September October November December""".split()
MONTH_DAYS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
ONES = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
eighteen nineteen""".split()
TENS = ". . twenty thirty forty fifty sixty seventy eighty ninety".split()
PARTS = """user item order file cache node list tree count index value name path total buffer token state frame page row
score price event config data queue task image result error input output""".split()
ACTIONS = """get set load save parse read write find update remove create build check count merge sort filter reset open
close send fetch compute print apply""".split()
SYLLABLES = """ba be bo da di do fa fe fi ga go ka ke ki ko la le li lo ma me mi mo na ne ni no pa pe po ra re ri ro sa se
si so ta te ti to va ve vi zo za zu tho shi chi""".split()


def spelled(n):
    """0..999 in words."""
    if n < 20:
        return ONES[n]
    if n < 100:
        return TENS[n // 10] + ("-" + ONES[n % 10] if n % 10 else "")
    return ONES[n // 100] + " hundred" + (" and " + spelled(n % 100) if n % 100 else "")


def invented(rng, low=2, high=4):
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(low, high)))


def first(rng):
    return pooled(rng, "names", 0.45) or (invented(rng, 2, 3).capitalize() if rng.random() < 0.2 else rng.choice(FIRST))


def name(rng):
    last = pooled(rng, "names", 0.4) or rng.choice(LAST)
    return first(rng) + (" " + last if rng.random() < 0.4 else "")


def city(rng):
    return pooled(rng, "names", 0.25) or (invented(rng, 2, 4).capitalize() if rng.random() < 0.15 else rng.choice(CITIES))


def noun(rng, items):
    return pooled(rng, "words", 0.35) or rng.choice(items)


def snake(rng):
    return "_".join([rng.choice(ACTIONS)] + rng.sample(PARTS, rng.randint(1, 2)))


def camel(rng):
    return "".join(w.capitalize() for w in rng.sample(PARTS, rng.randint(1, 2)))


def identifier(rng):
    kind = rng.randrange(5)
    if kind == 0:
        return snake(rng)
    if kind == 1:
        return camel(rng) + rng.choice(["", "Manager", "Reader", "Id", "Map", "Error"])
    if kind == 2:
        return rng.choice(ACTIONS) + camel(rng)
    if kind == 3:
        return invented(rng) + "_" + rng.choice(PARTS) + rng.choice(["", str(rng.randint(1, 99))])
    return "k" + camel(rng)


def code(rng, letters=None):
    """Something like K7-4821 or q9x2tm: only copying can get it right."""
    kind = rng.randrange(4)
    if kind == 0:
        return f"{rng.choice(string.ascii_uppercase)}{rng.randint(1, 9)}-{rng.randint(1000, 9999)}"
    if kind == 1:
        return "".join(rng.choice(string.ascii_lowercase + string.digits) for _ in range(rng.randint(5, 9)))
    if kind == 2:
        return str(rng.randint(10**3, 10**7))
    return invented(rng).upper() + str(rng.randint(10, 99))


def email(rng):
    return f"{first(rng).lower()}.{rng.choice(LAST).lower()}@{invented(rng)}.{rng.choice(['com', 'org', 'net', 'io'])}"


def path(rng):
    parts = [rng.choice(["/home/" + rng.choice(FIRST).lower(), "/var/log", "src", "/etc", "data", "docs", "/tmp"])]
    parts += rng.sample(PARTS, rng.randint(0, 2))
    return "/".join(parts) + "/" + rng.choice(PARTS) + rng.choice([".txt", ".py", ".cc", ".json", ".md", ".csv", ".log"])


def date(rng):
    m = rng.randrange(12)
    return m, rng.randint(1, MONTH_DAYS[m]), rng.randint(1950, 2026)


def clock(rng):
    return f"{rng.randint(0, 23):02d}:{rng.choice([0, 5, 10, 15, 20, 30, 45]):02d}"


def thing(rng):
    return f"{rng.choice(ADJECTIVES)} {rng.choice(COLORS)} {noun(rng, OBJECTS)}"


def line(rng):
    """A sentence of a book, or a short one nobody has seen before."""
    real = pooled(rng, "lines", 0.6)
    if real:
        return real
    kind = rng.randrange(6)
    if kind == 5:
        return " ".join(pooled(rng, "words", 1.0) or rng.choice(OBJECTS) for _ in range(rng.randint(2, 9))).capitalize() + rng.choice([".", "!", "?", ""])
    if kind == 0:
        return f"{name(rng)} {rng.choice(VERBS)} the {thing(rng)} in the {noun(rng, PLACES)}."
    if kind == 1:
        return f"The {noun(rng, ANIMALS)} from {city(rng)} likes {noun(rng, FOODS)} and {noun(rng, FOODS)}."
    if kind == 2:
        return f"On {rng.choice(DAYS)} at {clock(rng)} the {rng.choice(OBJECTS)} was {rng.choice(ADJECTIVES)}."
    if kind == 3:
        return f"{first(rng)} has {rng.randint(2, 999)} {rng.choice(COLORS)} {noun(rng, OBJECTS)}s."
    return f"I keep {rng.randint(2, 90)} {rng.choice(FOODS)}s and one {rng.choice(OBJECTS)} near the {rng.choice(PLACES)}."


def join(items, word="and"):
    items = list(items)
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + f" {word} " + items[-1]


def article(noun):
    return ("an " if noun[0] in "aeiou" else "a ") + noun
