"""Pictures made by a seed, each with questions and answers: shapes, colours, counts, places, bar charts. Pillow draws.

make(rng, fonts, size) -> (uint8 [H, W, 3], [(task, question, answer)]); text to read comes from texts.py.
"""
import math

import numpy as np
from PIL import Image, ImageFilter

from . import texts
from .marks import Board

SIZES = [(64, 448), (96, 384), (128, 320), (192, 256), (240, 320), (256, 256), (320, 320), (320, 240), (288, 384), (384, 288), (200, 400), (176, 176)]
LINES, WIDE = SIZES[:3], SIZES[3:]                          # for a line of text; for everything else
COLOURS = {"red": (214, 40, 40), "orange": (245, 130, 32), "yellow": (250, 214, 40), "green": (46, 150, 60), "blue": (38, 84, 200), "purple": (128, 52, 168),
           "pink": (246, 140, 190), "brown": (122, 74, 40), "black": (24, 24, 24), "white": (248, 248, 248), "gray": (138, 138, 138)}
SHAPES = ["circle", "square", "triangle", "star", "diamond", "hexagon", "cross", "ring"]
ORDER = sorted(COLOURS)
ROWS, COLUMNS = ["top", "middle", "bottom"], ["left", "center", "right"]
GROUPS = ["read", "colour", "shape", "count", "where", "side", "describe", "chart", "value"]


def tinted(rng, name):
    return tuple(int(min(255, max(0, c + rng.gauss(0, 9)))) for c in COLOURS[name])


def far(a, b):
    return sum(abs(x - y) for x, y in zip(a, b)) > 190


def polygon(n, turn=0.0, inner=1.0):
    """Corners of a regular polygon or star around 0, radius 1."""
    steps = n if inner == 1.0 else 2 * n
    return [((1 if i % 2 == 0 or inner == 1.0 else inner) * math.sin(2 * math.pi * i / steps + turn),
             -(1 if i % 2 == 0 or inner == 1.0 else inner) * math.cos(2 * math.pi * i / steps + turn)) for i in range(steps)]


CORNERS = {"square": polygon(4, math.pi / 4), "triangle": polygon(3), "star": polygon(5, 0, 0.42), "diamond": [(0, -1), (0.66, 0), (0, 1), (-0.66, 0)],
           "hexagon": polygon(6, math.pi / 6),
           "cross": [(-.33, -1), (.33, -1), (.33, -.33), (1, -.33), (1, .33), (.33, .33), (.33, 1), (-.33, 1), (-.33, .33), (-1, .33), (-1, -.33), (-.33, -.33)]}


def mark_of(name, kind):
    return 1 + 9 * ORDER.index(name) + (SHAPES.index(kind) if kind else len(SHAPES))


def draw_shape(board, kind, x, y, r, fill, ground, name):
    for draw, ink, hole in ((board.draw, fill, ground), (board.pen, mark_of(name, kind), None)):
        if kind in ("circle", "ring"):
            draw.ellipse((x - r, y - r, x + r, y + r), fill=ink)
            if kind == "ring" and hole:
                draw.ellipse((x - .55 * r, y - .55 * r, x + .55 * r, y + .55 * r), fill=hole)
        else:
            draw.polygon([(x + r * a, y + r * b) for a, b in CORNERS[kind]], fill=ink)


def ground_of(rng, used):
    """A background that nothing on it vanishes in."""
    for _ in range(20):
        ground = tinted(rng, "white") if rng.random() < 0.5 else tuple(rng.randint(0, 255) for _ in range(3))
        if all(far(ground, c) for c in used):
            return ground
    return (250, 250, 250) if all(far((250, 250, 250), c) for c in used) else (90, 120, 130)


def canvas(size, ground):
    return Board(2 * size[1], 2 * size[0], ground)          # twice as large: what is drawn gets soft edges


def blurred(rng, image):
    return image.filter(ImageFilter.GaussianBlur(rng.uniform(0.3, 0.9))) if rng.random() < 0.15 else image


def worn(rng, image):
    """What happens to pictures: blur and noise."""
    x = np.asarray(blurred(rng, image))
    if rng.random() < 0.25:
        noise = np.random.default_rng(rng.getrandbits(32)).normal(0, rng.uniform(2, 9), x.shape[:2] + (1,))
        x = np.clip(x + noise, 0, 255).astype(np.uint8)
    return x


def plural(n, kind):
    return f"There {'is' if n == 1 else 'are'} {'no' if n == 0 else n} {kind}{'' if n == 1 else 'es' if kind == 'cross' else 's'}."


def many(kind):
    return kind + ("es" if kind == "cross" else "s")


def place_name(row, column):
    """Of a cell of a three by three grid."""
    if row == column == 1:
        return "in the center"
    return f"at the {ROWS[row]} {COLUMNS[column]}" if row != 1 and column != 1 else f"at the {ROWS[row]}" if column == 1 else f"on the {COLUMNS[column]}"


def cells(rng, size, n, grid=3):
    """n cells of a grid with a point and a radius in each: [(row, column, x, y, r)]."""
    height, width = size
    h, w = 2 * height / grid, 2 * width / grid
    out = []
    for i in rng.sample(range(grid * grid), n):
        row, column = divmod(i, grid)
        r = min(h, w) * rng.uniform(0.26, 0.44)
        slack_x, slack_y = w / 2 - r, h / 2 - r
        out.append((row, column, (column + .5) * w + rng.uniform(-.7, .7) * slack_x, (row + .5) * h + rng.uniform(-.7, .7) * slack_y, r))
    return out


def scene(rng, size):
    """A few different shapes, each of one colour: questions on colour, shape, place and sides."""
    n = rng.choice([1, 1, 2, 2, 3, 3, 4])
    kinds, names = rng.sample(SHAPES, n), rng.sample(sorted(COLOURS), n)
    fills = [tinted(rng, c) for c in names]
    ground = ground_of(rng, fills)
    board = canvas(size, ground)
    spots = cells(rng, size, n)
    for kind, name, fill, (_, _, x, y, r) in zip(kinds, names, fills, spots):
        draw_shape(board, kind, x, y, r, fill, ground, name)
    turns = []
    for kind, name, (row, column, _, _, _) in zip(kinds, names, spots):
        colour = rng.choice(["color", "colour"])
        turns.append(rng.choice([                            # one of the two: either answers the other
            ("colour", rng.choice([f"What {colour} is the {kind}?", f"Which {colour} does the {kind} have?", f"Tell me the {colour} of the {kind}."]), f"The {kind} is {name}."),
            ("shape", rng.choice([f"What shape is {name}?", f"Which shape is {name}?", f"What is the {name} shape?"]), f"The {kind} is {name}.")]))
        turns.append(("where", rng.choice([f"Where is the {kind}?", f"Where in the picture is the {kind}?", f"In which part of the picture is the {kind}?"]), f"The {kind} is {place_name(row, column)}."))
    turns = rng.sample(turns, min(len(turns), rng.choice([1, 2, 3, 4])))
    if n > 1 and rng.random() < 0.5:
        a, b = rng.sample(range(n), 2)
        if spots[a][1] != spots[b][1]:
            left = spots[a][1] < spots[b][1]
            asked = rng.choice([True, False])
            turns.insert(0, ("side", f"Is the {kinds[a]} to the {'left' if asked else 'right'} of the {kinds[b]}?",
                             f"{'Yes' if left == asked else 'No'}, the {kinds[a]} is to the {'left' if left else 'right'} of the {kinds[b]}."))
    order = sorted(range(n), key=lambda i: (spots[i][0], spots[i][1]))
    listed = [("an " if names[i][0] == "o" else "a ") + f"{names[i]} {kinds[i]}" for i in order]
    text = listed[0] if n == 1 else ", ".join(listed[:-1]) + " and " + listed[-1]
    if rng.random() < 0.3:
        whole = ("describe", rng.choice(["What is in the picture?", "Describe the picture.", "What do you see?"]), text[0].upper() + text[1:] + ".")
        turns = [whole] if rng.random() < 0.5 else turns + [whole]
    return board, turns


def crowd(rng, size):
    """Several shapes of two or three kinds: how many?"""
    kinds = rng.sample(SHAPES, rng.choice([1, 2, 2, 3]))
    counts = [rng.randint(1, 7 if len(kinds) == 1 else 5) for _ in kinds]
    while sum(counts) > 12:
        counts = [rng.randint(1, 4) for _ in kinds]
    same = rng.random() < 0.3
    name = rng.choice(sorted(COLOURS))
    names = [name if same else rng.choice(sorted(COLOURS)) for _ in range(sum(counts))]
    fills = [tinted(rng, c) for c in names]
    ground = ground_of(rng, fills)
    board = canvas(size, ground)
    what = [k for k, c in zip(kinds, counts) for _ in range(c)]
    for kind, name, fill, (_, _, x, y, r) in zip(what, names, fills, cells(rng, size, len(what), 4)):
        draw_shape(board, kind, x, y, r, fill, ground, name)
    turns = [("count", rng.choice([f"How many {many(k)} are there?", f"How many {many(k)} do you see?", f"Count the {many(k)}."]), plural(c, k)) for k, c in zip(kinds, counts)]
    other = rng.choice([k for k in SHAPES if k not in kinds])
    if rng.random() < 0.15:
        turns.append(("count", f"How many {many(other)} are there?", plural(0, other)))
    if rng.random() < 0.3:
        turns.append(("count", rng.choice(["How many shapes are there?", "How many shapes do you see in all?"]), plural(len(what), "shape")))
    return board, rng.sample(turns, min(len(turns), rng.choice([1, 2, 3])))


def chart(rng, size, fonts):
    """Bars with names below and sometimes numbers above."""
    height, width = 2 * size[0], 2 * size[1]
    n = rng.randint(2, 5)
    labels = [chr(65 + i) for i in range(n)] if rng.random() < 0.6 else rng.sample([w for w in texts.SHORT if len(w) < 6], n)
    top = rng.choice([10, 20, 50, 100])
    values = rng.sample(range(1, 11), n)                     # tenths of the scale: no two bars alike
    numbers = [max(1, v * top // 10) for v in values]
    names = rng.sample(sorted(COLOURS), n) if rng.random() < 0.6 else [rng.choice(sorted(COLOURS))] * n
    fills = [tinted(rng, c) for c in names]
    ground = ground_of(rng, fills + [(0, 0, 0)])
    board = canvas(size, ground)
    numbered = rng.random() < 0.5
    font = texts.face(rng, fonts, min(height // 9, int(width / n / 3.2)))
    base, step = height * 0.84, width * 0.9 / n
    for i in range(n):
        left, x = width * .05 + (i + .2) * step, width * .05 + (i + .5) * step
        high = base - values[i] / 10 * height * 0.66
        board.draw.rectangle((left, high, left + .6 * step, base), fill=fills[i])
        board.pen.rectangle((left, high, left + .6 * step, base), fill=mark_of(names[i], ""))
        board.text((x, base + height * .08), labels[i], font, (0, 0, 0), "mm")
        if numbered:
            board.text((x, high - height * .06), str(numbers[i]), font, (0, 0, 0), "mm")
    board.draw.line((width * .04, base, width * .96, base), fill=(0, 0, 0), width=3)
    big, small = max(range(n), key=values.__getitem__), min(range(n), key=values.__getitem__)
    one = rng.randrange(n)
    turns = [("chart", rng.choice(["Which bar is tallest?", "Which bar is the tallest?", "Which bar is highest?"]), f"Bar {labels[big]} is the tallest."),
             ("chart", rng.choice(["Which bar is shortest?", "Which bar is the shortest?", "Which bar is lowest?"]), f"Bar {labels[small]} is the shortest."),
             ("count", rng.choice(["How many bars are there?", "How many bars does the chart have?"]), plural(n, "bar"))]
    if numbered:
        turns += 2 * [("value", rng.choice([f"What is the value of {labels[one]}?", f"What number is above bar {labels[one]}?", f"How much is {labels[one]}?"]), f"The value of {labels[one]} is {numbers[one]}.")]
    if len(set(names)) == n:
        turns.append(("colour", f"What color is bar {labels[one]}?", f"Bar {labels[one]} is {names[one]}."))
    return board, rng.sample(turns, min(len(turns), rng.choice([1, 2, 3, 4])))


def drawn(rng, fonts, size):
    """One picture of this size: (its board, its turns)."""
    if size in LINES or rng.random() < 0.38:
        return texts.page(rng, fonts, size)
    x = rng.random()
    return scene(rng, size) if x < 0.44 else crowd(rng, size) if x < 0.71 else chart(rng, size, fonts)


def make(rng, fonts, size):
    """One picture of this size with its turns."""
    board, turns = drawn(rng, fonts, size)
    return worn(rng, board.sized(*size)), turns


def marked(rng, fonts, size):
    """As make, without noise (the trainer adds it), with the marks."""
    board, turns = drawn(rng, fonts, size)
    image, marks = board.quick(*size)
    return np.asarray(blurred(rng, image)), turns, np.asarray(marks)
