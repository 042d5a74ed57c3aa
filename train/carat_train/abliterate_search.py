"""Directions and strengths that remove a behaviour at the least cost: a search, its trials, and the best of them as a picture.

A trial takes directions from one layer and removes them from the layers around a centre, attention and feed-forward each
with a strength of its own. Judged: what is left of the behaviour (how often the changed body writes the target's own next
token in synthetic tasks), the change elsewhere (mean KL divergence on the target's own text of other kinds), and how many
drafts of the published drafter the changed body takes of its own text. First trials are drawn at random, later ones are
neighbours of those that no other trial beats in all three.
"""
import json
import math
import os
import random
import time

import torch

from . import abliterate, acceptance, continuations, export, export_drafter, sample
from . import tokenizer as tok_module

BEHAVIOUR, KEPT = {"tasks": 48}, {"code": 24, "dialogue": 48, "fiction": 24}
SIDE_BY_SIDE = 16                                           # texts of similar length
RANKS, STRENGTHS = (1, 2, 4, 8, 16), (0.2, 1.4)
AT_RANDOM = 0.4                                             # of the trials, or of the time
JUDGED = ("behaviour", "kld", "lost")                       # each is better when it is smaller


def profile(trial, layers):
    """Strength of each layer's (attention, feed-forward): full at the centre, none `width` layers from it."""
    hat = [max(0.0, 1 - abs(i - trial["centre"]) / trial["width"]) for i in range(layers)]
    return [(trial["attention"] * h, trial["feed_forward"] * h) for h in hat]


def draw(rng, layers):
    return dict(layer=rng.randrange(1, layers), rank=rng.choice(RANKS), centre=round(rng.uniform(0, layers - 1), 2),
                width=round(rng.uniform(1, 1.5 * layers), 2), attention=round(rng.uniform(*STRENGTHS), 3),
                feed_forward=round(rng.uniform(*STRENGTHS), 3))


def near(rng, t, layers):
    """One or two parameters of a trial moved."""
    new = dict(t)
    for key in rng.sample(sorted(new), rng.choice((1, 2))):
        if key == "layer":
            new[key] = min(layers - 1, max(1, t[key] + rng.choice((-1, 1))))
        elif key == "rank":
            new[key] = RANKS[min(len(RANKS) - 1, max(0, RANKS.index(t[key]) + rng.choice((-1, 1))))]
        else:
            low, high = {"centre": (0, layers - 1), "width": (1, 1.5 * layers)}.get(key, STRENGTHS)
            new[key] = round(min(high, max(low, new[key] + rng.gauss(0, 0.15) * (high - low))), 3)
    return new


def front(trials):
    """The trials that no other beats: nowhere worse, somewhere better."""
    def beats(a, b):
        return all(a[k] <= b[k] for k in JUDGED) and any(a[k] < b[k] for k in JUDGED)
    return [t for t in trials if not any(beats(o, t) for o in trials)]


def pieces(texts):
    return [texts[at:at + SIDE_BY_SIDE] for at in range(0, len(texts), SIDE_BY_SIDE)]


class Judge:
    def __init__(self, model, drafter, data, ends, new=48, behaviour=None, kept=None):
        self.model, self.drafter, self.ends, self.new = model, drafter, ends, new
        prompts = {k: continuations.prompts_of(data, "heldout", g, seed=77) for k, g in (("behaviour", behaviour or BEHAVIOUR), ("kept", kept or KEPT))}
        self.text = {k: self.written(some) for k, some in prompts.items()}
        self.base = {k: self.log_probabilities(k) for k in self.text}
        self.taken = self.drafts_taken()

    def written(self, prompts):
        """[(prompt, what the body writes)], sorted by length: those beside each other are run at once."""
        some = sorted((p for _, p in prompts), key=len)
        return list(zip(some, continuations.extend(self.model, some, self.new, self.ends, [0.0] * len(some))))

    @torch.no_grad()
    def log_probabilities(self, kind):
        """[places, vocabulary] over the continuations of one kind."""
        device, out = self.model.norm.weight.device, []
        for some in pieces(self.text[kind]):
            length = max(len(p) + len(c) for p, c in some)
            ids = torch.tensor([p + c + [0] * (length - len(p) - len(c)) for p, c in some], device=device)
            self.model.place(length, device)
            z = self.model.trace(ids)[0]
            z = torch.cat([row[len(p) - 1:len(p) + len(c) - 1] for row, (p, c) in zip(z, some)])
            out.append(torch.log_softmax(self.model.logits(z).float(), -1).half())
        return torch.cat(out)

    def drafts_taken(self):
        """Tokens a round at four drafts, on what this body writes itself."""
        own = self.written([(None, p) for p, _ in self.text["kept"]])
        rows = [acceptance.rounds(self.model, self.drafter, some) for some in pieces(own)]
        rows = [r for r in rows if r is not None]
        return 1 + sum(torch.cat(rows).mean(0).tolist()[:4]) if rows else math.nan

    def __call__(self):
        was, now = self.base["behaviour"], self.log_probabilities("behaviour")
        p, q = self.base["kept"].float(), self.log_probabilities("kept").float()
        taken = self.drafts_taken()
        return dict(behaviour=round((was.argmax(-1) == now.argmax(-1)).float().mean().item(), 4),
                    kld=round((p.exp() * (p - q)).sum(-1).mean().item(), 4), al4=round(taken, 3), lost=round(self.taken - taken, 3))


def picture(record):
    """KL divergence against what is left of the behaviour; the colour says how many tokens a round are lost."""
    trials, w, h, left, top, right, bottom = record["trials"], 760, 440, 60, 20, 100, 46
    every = trials + record["plain"]
    far, low = max([0.01] + [t["kld"] for t in every]), min([0.95] + [t["behaviour"] for t in every])
    low, worst = math.floor(20 * low) / 20, max([0.01] + [t["lost"] for t in every])

    def at(t):
        return left + (w - left - right) * t["kld"] / far, top + (h - top - bottom) * (1 - t["behaviour"]) / (1 - low)

    def colour(t):
        x = max(0.0, t["lost"] / worst)
        return f"rgb({int(40 + 190 * x)},{int(140 - 90 * x)},{int(200 - 150 * x)})"
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" font-family="sans-serif" font-size="12">',
           f'<rect width="{w}" height="{h}" fill="white"/>']
    for i in range(6):
        y, x = top + (h - top - bottom) * i / 5, left + (w - left - right) * i / 5
        out.append(f'<path d="M{left} {y:.0f}h{w - left - right}" stroke="#ddd"/><text x="{left - 6}" y="{y + 4:.0f}" text-anchor="end">{100 - 20 * i * (1 - low):.3g} %</text>')
        out.append(f'<text x="{x:.0f}" y="{h - 28}" text-anchor="middle">{far * i / 5:.2g}</text>')
    out.append(f'<text x="{w / 2}" y="{h - 8}" text-anchor="middle">mean KL divergence on other text, nats; blue: as many drafts taken as before, red: {worst:.2g} fewer a round</text>')
    out.append(f'<text x="14" y="{h / 2}" transform="rotate(-90 14 {h / 2})" text-anchor="middle">tasks written as before</text>')
    best = {id(t) for t in front(trials)}
    for t in trials:
        (x, y), edge = at(t), ' stroke="black" stroke-width="1.5"' if id(t) in best else ""
        out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour(t)}"{edge}/>')
    for t in record["plain"]:
        x, y = at(t)
        out.append(f'<path d="M{x - 6:.1f} {y:.1f}h12M{x:.1f} {y - 6:.1f}v12" stroke="{colour(t)}" stroke-width="3"/>'
                   f'<text x="{x + 8:.1f}" y="{y - 6:.1f}">{t["rank"]} everywhere</text>')
    return "\n".join(out + ["</svg>\n"])


def write(record, out):
    """OUT/search.json and OUT/search.svg, always whole."""
    os.makedirs(out, exist_ok=True)
    for name, text in (("search.json", json.dumps(record, indent=1) + "\n"), ("search.svg", picture(record))):
        with open(os.path.join(out, name + ".tmp"), "w") as f:
            f.write(text)
        os.replace(os.path.join(out, name + ".tmp"), os.path.join(out, name))


def run(source, data, out, drafter, trials=120, seconds=1e9, seed=1, counts=None, new=48):
    """Writes after each trial; none begins after so many seconds. counts: prompts of (behaviour, kept), for tests."""
    began, rng, device = time.time(), random.Random(seed), "cuda" if torch.cuda.is_available() else "cpu"
    model = export.load(source, device)
    ends = sample.end_tokens(tok_module.from_file(os.path.join(source, "tokenizer.json")))
    judge = Judge(model, export_drafter.load(drafter, model.s).to(device), data, ends, new, *(counts or (None, None)))
    whole, layers, basis, drawn = {k: v.clone() for k, v in model.state_dict().items()}, model.s.layers, {}, []
    record = dict(base=dict(al4=round(judge.taken, 3), layers=layers, places={k: len(v) for k, v in judge.base.items()}), plain=[], trials=[])

    def tried(trial, strengths):
        model.load_state_dict(whole)
        if trial["layer"] not in basis:
            basis[trial["layer"]] = abliterate.directions(model, data, trial["layer"], max(RANKS))
        abliterate.remove(model, basis[trial["layer"]][:trial["rank"]], strengths)
        return dict(trial, **judge())

    def found(kind, result):
        record[kind].append(result)
        record.update(front=sorted(front(record["trials"]), key=lambda t: t["behaviour"]), seconds=round(time.time() - began, 1))
        write(record, out)
        print(f"{record['seconds']:7.1f} s  {kind}: {json.dumps(result)}", flush=True)
    for r in RANKS:
        found("plain", tried(dict(layer=layers // 2, rank=r), None))
    while len(record["trials"]) < trials and time.time() - began < seconds:
        trial, share = draw(rng, layers), max(len(record["trials"]) / trials, (time.time() - began) / seconds)
        if record["front"] and share >= AT_RANDOM:
            chosen = rng.choice(record["front"])
            trial = near(rng, {k: chosen[k] for k in trial}, layers)
        if trial in drawn:                                  # moved against an end
            continue
        drawn.append(trial)
        found("trials", tried(trial, profile(trial, layers)))
    return record
