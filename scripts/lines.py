#!/usr/bin/env python3
"""The picture of a record's table: scripts/lines.py docs/lab/RECORD.md COLUMN TITLE [--relative] writes docs/lab/RECORD.svg.
The table's header begins with "| COLUMN |", a line of the picture is a column; --relative: times a line's first value."""
import argparse
import math
import pathlib
import re

COLOURS = ["#1b5e9b", "#c0562b", "#3c8d40", "#8a8a8a", "#7a4fa3", "#b8860b"]
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 900, 460, 70, 50, 640, 410


NUMBER = r"\**([\d,]*\d(\.\d+)?)"  # at a cell's beginning; ** around it: bold


def number(cell):
    return float(re.match(NUMBER, cell)[1].replace(",", ""))


def read(path, column):
    """{column: [(x, y)]} of the first table with that header."""
    lines = path.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(f"| {column} |"))
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in lines[at:]]
    series = {name: [] for name in rows[0][1:]}
    for row in rows[2:]:
        if not re.match(r"^[\d,]+$", row[0]):
            break
        for name, cell in zip(rows[0][1:], row[1:]):
            if re.match(NUMBER, cell):
                series[name].append((number(row[0]), number(cell)))
    return {name: line for name, line in series.items() if line}


def step_of(most):
    """1, 2 or 5 times a power of ten: at most ten of them."""
    power = 10 ** math.floor(math.log10(most / 10))
    return next(s * power for s in (1, 2, 5, 10) if most / (s * power) <= 10)


def short(n):
    return f"{n >> 20}M" if n >= 1 << 20 else f"{n >> 10}K" if n >= 1 << 12 else str(n)


def draw(series, title):
    points = [p for s in series.values() for p in s]
    low, high = (math.log2(f(x for x, _ in points)) for f in (min, max))
    step = step_of(max(y for _, y in points))
    most = step * math.ceil(max(y for _, y in points) / step)
    x = lambda v: LEFT + (math.log2(v) - low) / (high - low) * (RIGHT - LEFT)
    y = lambda v: BOTTOM - v / most * (BOTTOM - TOP)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
           'font-size="12">', f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
           f'<text x="{LEFT}" y="28" font-size="15">{title}</text>']
    for i in range(round(most / step) + 1):
        out.append(f'<path d="M{LEFT} {y(i * step):.1f}h{RIGHT - LEFT}" stroke="#ddd"/><text x="{LEFT - 8}" '
                   f'y="{y(i * step) + 4:.1f}" text-anchor="end">{i * step:g}</text>')
    for power in range(math.ceil(low), math.floor(high) + 1, 1 if high - low <= 10 else 2):
        out.append(f'<text x="{x(2 ** power):.1f}" y="{BOTTOM + 20}" text-anchor="middle">{short(2 ** power)}</text>')
    for i, (name, line) in enumerate(series.items()):
        colour = COLOURS[i % len(COLOURS)]
        path = "L".join(f"{x(a):.1f} {y(b):.1f}" for a, b in line)
        out.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += [f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="3" fill="{colour}"/>' for a, b in line]
        out.append(f'<path d="M{RIGHT + 25} {80 + 24 * i}h22" stroke="{colour}" stroke-width="2"/>'
                   f'<text x="{RIGHT + 54}" y="{84 + 24 * i}">{name}</text>')
    return "\n".join(out + ["</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("record", type=pathlib.Path)
    parser.add_argument("column")
    parser.add_argument("title")
    parser.add_argument("--relative", action="store_true")
    a = parser.parse_args()
    series = read(a.record, a.column)
    if a.relative:
        series = {name: [(x, y / line[0][1]) for x, y in line] for name, line in series.items()}
    a.record.with_suffix(".svg").write_text(draw(series, a.title))


if __name__ == "__main__":
    main()
