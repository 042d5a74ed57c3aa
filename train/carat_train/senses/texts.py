"""Text for pictures and speech by a seed, and lines of it drawn in many fonts."""
import glob
import os
import random

from PIL import ImageFont

from .. import words as w
from .marks import Board

SHORT = sorted(set(w.ANIMALS + w.FOODS + w.OBJECTS + w.PLACES + w.COLORS + w.ADJECTIVES + w.VERBS + w.PARTS + w.ACTIONS
                   + [x.lower() for x in w.DAYS + w.MONTHS] + """time year people way day man woman child world life hand part place week
case point number water room mother area money story fact month lot right study business issue side kind head house service friend father power hour game line end member law
car city community name president team minute idea body back parent face others level office door health person art war history party morning reason research girl guy moment
air teacher force education foot boy age policy music market sense nation plan college interest death experience effect use class control field development role effort rate
heart drug show leader light voice wife police mind price report decision son view relationship town road arm difference thank building action model season society tax
director position player record paper space ground form event official matter center couple site project activity star table need court oil situation cost industry figure
street image phone data picture practice piece land product doctor wall patient worker news test movie north south east west love open stop go exit enter push pull sale
free hello welcome please coffee shop menu today tomorrow never always every little big great first last long good own other high different small large next early young
important public bad same able river stone cloud rain snow wind fire tree leaf flower grass field hill sea lake ship boat train plane wheel glass silver gold iron""".split()))
NAMES = w.FIRST + w.CITIES
SENTENCES = ["The {adj} {animal} is in the {place}.", "{name} {verb} the {colour} {object}.", "I like {food} and {food2}.", "We go to the {place} on {day}.", "The {object} is {colour}.",
             "Where is the {adj} {object}?", "{name} has a {colour} {object}.", "Please open the {object}.", "My {object} is in the {place}.", "The {animal} eats {food}.",
             "They {verb} a {adj} {object}.", "It is {adj} in {month}.", "{name} and {name2} are in {city}.", "The train to {city} is {adj}.", "A {animal} and a {animal2} live here.",
             "Do you want some {food}?", "The {colour} {animal} is {adj}.", "I {verb} the {object} on {day}.", "Bring the {object} to the {place}.", "This {food} is {adj}."]


def sentence(rng):
    return rng.choice(SENTENCES).format(
        adj=rng.choice(w.ADJECTIVES), animal=rng.choice(w.ANIMALS), animal2=rng.choice(w.ANIMALS), place=rng.choice(w.PLACES), name=rng.choice(w.FIRST),
        name2=rng.choice(w.FIRST), verb=rng.choice(w.VERBS), colour=rng.choice(w.COLORS), object=rng.choice(w.OBJECTS), food=rng.choice(w.FOODS),
        food2=rng.choice(w.FOODS), day=rng.choice(w.DAYS), month=rng.choice(w.MONTHS), city=rng.choice(w.CITIES))


def word(rng, share):
    """A common word, or so often one of the pool's (pool.py) where that is there."""
    return w.pooled(rng, "words", share) or rng.choice(SHORT)


def number(rng):
    kind = rng.randrange(7)
    if kind == 0:
        return str(rng.randint(0, 99))
    if kind == 1:
        return str(rng.randint(100, 99999))
    if kind == 2:
        return f"${rng.randint(1, 999)}.{rng.randint(0, 99):02d}"
    if kind == 3:
        return f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"
    if kind == 4:
        return f"{rng.randint(1, 28)} {rng.choice(w.MONTHS)} {rng.randint(1950, 2030)}"
    if kind == 5:
        return f"{rng.randint(200, 999)}-{rng.randint(1000, 9999)}"
    return f"{rng.randint(1, 100)}%"


def line(rng, room):
    """A line of at most `room` signs, whole words where any fit."""
    for _ in range(12):
        text = any_line(rng)
        while len(text) > room and " " in text:
            text = text[:text.rindex(" ")]
        if len(text) <= room:
            return text
    return text[:max(3, room)]


def any_line(rng):
    x = rng.random()
    if x < 0.40:
        n = rng.choice([1, 1, 1, 2, 2, 3, 4])
        text = " ".join(word(rng, 0.5) if rng.random() < 0.9 else w.invented(rng) for _ in range(n))
        text = rng.choice([str, str, str.title, str.capitalize, str.upper])(text)
    elif x < 0.58:
        text = number(rng)
    elif x < 0.72:
        text = w.code(rng)
    elif x < 0.80:
        text = rng.choice(NAMES) + (" " + rng.choice(w.LAST) if rng.random() < 0.5 else "")
    else:
        text = w.pooled(rng, "lines", 0.3) or sentence(rng)
    return text


class Fonts:
    """Faces of a folder. Kept for held-out pictures: those of FOLDER/held, or else each twelfth family (by the start of its name)."""

    def __init__(self, folder, held=False):
        paths, self.faces = sorted(glob.glob(os.path.join(folder, "*.[to]tf"))), {}
        apart = sorted(glob.glob(os.path.join(folder, "held", "*.[to]tf")))
        if apart:
            self.paths = apart if held else paths
            return
        family = lambda p: os.path.basename(p)[:5].lower()                     # noqa: E731
        families = sorted({family(p) for p in paths})
        random.Random(5).shuffle(families)
        self.paths = [p for p in paths if (families.index(family(p)) % 12 == 0) == held] or paths

    def get(self, path, size):
        if (path, size) not in self.faces:
            if len(self.faces) > 3000:
                self.faces.clear()
            self.faces[path, size] = ImageFont.truetype(path, size)
        return self.faces[path, size]


def face(rng, fonts, size):
    return fonts.get(rng.choice(fonts.paths), max(9, int(size)))


def contrast(rng):
    """(text, ground): dark on light mostly, the other way, or coloured."""
    while True:
        x = rng.random()
        a = tuple(rng.randint(0, 60) for _ in range(3)) if x < 0.6 else tuple(rng.randint(0, 255) for _ in range(3))
        b = tuple(rng.randint(225, 255) for _ in range(3)) if x < 0.6 else tuple(rng.randint(0, 255) for _ in range(3))
        if x > 0.9:
            a, b = b, a
        if abs(sum(a) * 1.0 - sum(b)) > 270:
            return a, b


def page(rng, fonts, size):
    """One to three lines, at the size of the picture itself."""
    height, width = size
    count = 1 if height < 130 or rng.random() < 0.72 else rng.choice([2, 2, 3])
    ink, ground = contrast(rng)
    board = Board(width, height, ground)
    path = rng.choice(fonts.paths)
    high = height / (count * rng.uniform(1.3, 2.0)) if height < 130 else height / rng.uniform(3.5, 11)
    lines = [line(rng, max(4, int(width * 0.93 / (0.52 * high)))) for _ in range(count)]
    font = fonts.get(path, max(11, int(high)))
    widest = max(font.getlength(t) for t in lines)
    if widest > 0.95 * width:
        font = fonts.get(path, max(9, int(font.size * 0.95 * width / widest)))
    step = font.size * rng.uniform(1.15, 1.5)
    widest = max(font.getlength(t) for t in lines)
    x = rng.uniform(0.02 * width, max(0.02 * width, 0.98 * width - widest))
    y = rng.uniform(font.size * .6, max(font.size * .6, height - font.size * .6 - (count - 1) * step))
    for i, text in enumerate(lines):
        board.text((x, y + i * step), text, font, ink, "lm")
    if rng.random() < 0.2:
        board.rotate(rng.uniform(-2.5, 2.5), ground)
    ask = ["Read the line.", "What does it say?", "Read this.", "What is written here?", "Read the text."] if count == 1 else ["Read the text.", "Read the lines.", "What does it say?", "What is written here?"]
    return board, [("read", rng.choice(ask), "\n".join(lines))]
