"""Loss curves of one or more log.jsonl files as a small JSON file and a picture: plot.write([logs], "curves")."""
import json

COLORS = ["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#111111"]
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 900, 460, 50, 20, 150, 40


def read(paths):
    """Unit of the tokens, {"train": [[tokens, loss]], group: ...}; later logs go on where the earlier ones ended."""
    rows, at, ends = [], 0, []
    for path in paths:
        last = 0
        with open(path) as f:
            for row in map(json.loads, f):
                last = row.get("tokens", last)
                rows.append((at + last, row))
        at += last
        ends.append(at)
    unit = 1e6 if at > 5e6 else 1e3
    curves = {}
    for tokens, row in rows:
        x = round(tokens / unit, 1)
        if "loss" in row:
            curves.setdefault("train", []).append([x, row["loss"]])
        elif row.get("event") == "heldout":
            for g, v in row.items():
                if g not in ("event", "step", "tokens", "t"):
                    curves.setdefault(g, []).append([x, v])
    curves["train"] = curves["train"][::1 + len(curves["train"]) // 400]
    return unit, curves, [round(e / unit, 1) for e in ends]


def svg(unit, curves, ends, top):
    last, name = ends[-1], "million" if unit == 1e6 else "thousand"
    step = next(x for x in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000) if last / x <= 10)
    inner_w, inner_h = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def px(p):
        return f"{LEFT + inner_w * p[0] / last:.1f},{TOP + inner_h * (1 - min(p[1], top) / top):.1f}"
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for y in range(int(top) + 1):
        at = TOP + inner_h * (1 - y / top)
        out.append(f'<path d="M{LEFT} {at:.1f}h{inner_w}" stroke="#ddd"/><text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{y}</text>')
    for x in range(0, int(last) + 1, step):
        at = LEFT + inner_w * x / last
        out.append(f'<text x="{at:.1f}" y="{HEIGHT - 22}" text-anchor="middle">{x}</text>')
    for x in ends[:-1]:
        at = LEFT + inner_w * x / last
        out.append(f'<path d="M{at:.1f} {TOP}v{inner_h}" stroke="#999" stroke-dasharray="4 4"/>')
    out.append(f'<text x="{LEFT + inner_w / 2}" y="{HEIGHT - 6}" text-anchor="middle">{name} tokens</text>')
    out.append(f'<text x="14" y="{TOP + inner_h / 2}" transform="rotate(-90 14 {TOP + inner_h / 2})" text-anchor="middle">nats per token</text>')
    for i, (name, points) in enumerate(sorted(curves.items(), key=lambda c: c[0] == "train")):
        color, y = COLORS[i % len(COLORS)], TOP + 20 + 20 * i
        line = "M" + " L".join(px(p) for p in points)
        out.append(f'<path d="{line}" fill="none" stroke="{color}" stroke-width="{1 if name == "train" else 2}"/>')
        out.append(f'<path d="M{WIDTH - RIGHT + 12} {y - 4}h20" stroke="{color}" stroke-width="2"/><text x="{WIDTH - RIGHT + 38}" y="{y}">{name}</text>')
    return "\n".join(out + ["</svg>\n"])


def write(logs, target, top=6.0):
    unit, curves, ends = read(logs)
    with open(target + ".json", "w") as f:
        json.dump({("million" if unit == 1e6 else "thousand") + "_tokens_at_stage_ends": ends, "nats_per_token": curves}, f, separators=(",", ":"))
        f.write("\n")
    with open(target + ".svg", "w") as f:
        f.write(svg(unit, curves, ends, top))


def places(curves, target, depth=8):
    """Shares accepted by place, {name: [share of place 1, ...]}, as a picture."""
    inner_w, inner_h = WIDTH - LEFT - RIGHT - 120, HEIGHT - TOP - BOTTOM
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for tenth in range(0, 11, 2):
        at = TOP + inner_h * (1 - tenth / 10)
        out.append(f'<path d="M{LEFT} {at:.1f}h{inner_w}" stroke="#ddd"/><text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{tenth * 10} %</text>')
    across = [LEFT + inner_w * (i + 0.5) / depth for i in range(depth)]
    out += [f'<text x="{x:.1f}" y="{HEIGHT - 22}" text-anchor="middle">{i + 1}</text>' for i, x in enumerate(across)]
    out.append(f'<text x="{LEFT + inner_w / 2}" y="{HEIGHT - 6}" text-anchor="middle">place in the draft</text>')
    for i, (name, shares) in enumerate(curves.items()):
        color, y = COLORS[i % len(COLORS)], TOP + 20 + 20 * i
        points = [f"{x:.1f},{TOP + inner_h * (1 - v):.1f}" for x, v in zip(across, shares)]
        out.append(f'<path d="M{" L".join(points)}" fill="none" stroke="{color}" stroke-width="2"/>')
        out.append(f'<path d="M{LEFT + inner_w + 12} {y - 4}h20" stroke="{color}" stroke-width="2"/>'
                   f'<text x="{LEFT + inner_w + 38}" y="{y}">{name}</text>')
    with open(target, "w") as f:
        f.write("\n".join(out + ["</svg>\n"]))
