#!/usr/bin/env python3
"""The picture of a record's table of prompts by depth: scripts/long_prompts.py docs/lab/RECORD.md writes
docs/lab/RECORD.svg. The table's header begins with "| depth |"; its cells are seconds."""
import math
import pathlib
import re
import sys

COLOURS = ["#1b5e9b", "#c0562b", "#3c8d40", "#8a8a8a", "#7a4fa3"]
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 900, 460, 70, 50, 640, 410


def read(path):
    lines = path.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("| depth |"))
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in lines[at:]
             if line.startswith("|")]
    end = next((i for i, row in enumerate(cells[2:]) if not re.match(r"^[\d,]+$", row[0])), len(cells) - 2)
    rows = cells[2:2 + end]
    names = cells[0][1:]
    series = {name: [] for name in names}
    for row in rows:
        for name, cell in zip(names, row[1:]):
            if cell:
                series[name].append((int(row[0].replace(",", "")), float(cell)))
    return series


def draw(series):
    points = [p for s in series.values() for p in s]
    low, high = (math.log2(f(x for x, _ in points)) for f in (min, max))
    steps = math.ceil(max(y for _, y in points) * 4)  # of a quarter of a second
    most = steps / 4
    x = lambda v: LEFT + (math.log2(v) - low) / (high - low) * (RIGHT - LEFT)
    y = lambda v: BOTTOM - v / most * (BOTTOM - TOP)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
           'font-size="12">', f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
           f'<text x="{LEFT}" y="28" font-size="15">Seconds for the next 2,048 tokens of a prompt, by what '
           'stands before them</text>']
    for i in range(steps + 1):
        v = i / 4
        out.append(f'<path d="M{LEFT} {y(v):.1f}h{RIGHT - LEFT}" stroke="#ddd"/><text x="{LEFT - 8}" '
                   f'y="{y(v) + 4:.1f}" text-anchor="end">{v:.2f}</text>')
    for power in range(math.ceil(low), math.floor(high) + 1, 2):
        name = f"{2 ** (power - 10)}K" if power < 20 else f"{2 ** (power - 20)}M"
        out.append(f'<text x="{x(2 ** power):.1f}" y="{BOTTOM + 20}" text-anchor="middle">{name}</text>')
    for i, (name, line) in enumerate(series.items()):
        colour = COLOURS[i % len(COLOURS)]
        path = "L".join(f"{x(a):.1f} {y(b):.1f}" for a, b in line)
        out.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += [f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="3.5" fill="{colour}"/>' for a, b in line]
        out.append(f'<path d="M{RIGHT + 25} {80 + 24 * i}h22" stroke="{colour}" stroke-width="2"/>'
                   f'<text x="{RIGHT + 54}" y="{84 + 24 * i}">{name}</text>')
    return "\n".join(out + ["</svg>", ""])


def main():
    path = pathlib.Path(sys.argv[1])
    path.with_suffix(".svg").write_text(draw(read(path)))


if __name__ == "__main__":
    main()
