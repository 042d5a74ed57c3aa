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

BEHAVIOUR, KEPT = {"tasks": 32}, {"code": 12, "dialogue": 24, "fiction": 12}
RANKS, STRENGTHS = (1, 2, 4, 8, 16), (0.2, 1.4)
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
        if key in ("layer", "rank"):
            new[key] = draw(rng, layers)[key]
        else:
            low, high = {"centre": (0, layers - 1), "width": (1, 1.5 * layers)}.get(key, STRENGTHS)
            new[key] = round(min(high, max(low, new[key] + rng.gauss(0, 0.15) * (high - low))), 3)
    return new


def front(trials):
    """The trials that no other beats: nowhere worse, somewhere better."""
    def beats(a, b):
        return all(a[k] <= b[k] for k in JUDGED) and any(a[k] < b[k] for k in JUDGED)
    return [t for t in trials if not any(beats(o, t) for o in trials)]


class Judge:
    def __init__(self, model, drafter, data, ends, new=48, behaviour=None, kept=None):
        self.model, self.drafter, self.ends, self.new = model, drafter, ends, new
        prompts = {k: continuations.prompts_of(data, "heldout", g, seed=77) for k, g in (("behaviour", behaviour or BEHAVIOUR), ("kept", kept or KEPT))}
        self.text = {k: [(p, c) for (_, p), c in zip(some, continuations.extend(model, [p for _, p in some], new, ends, [0.0] * len(some)))]
                     for k, some in prompts.items()}
        self.base = {k: self.log_probabilities(k) for k in self.text}
        self.taken = self.drafts_taken()

    @torch.no_grad()
    def log_probabilities(self, kind):
        """[places, vocabulary] over the continuations of one kind."""
        device, out = self.model.norm.weight.device, []
        for p, c in self.text[kind]:
            self.model.place(len(p) + len(c), device)
            z = self.model.trace(torch.tensor([p + c], device=device))[0][0, len(p) - 1:-1]
            out.append(torch.log_softmax(self.model.logits(z).float(), -1).half())
        return torch.cat(out)

    def drafts_taken(self):
        """Tokens a round at four drafts, on what this body writes itself."""
        prompts = [p for p, _ in self.text["kept"]]
        own = continuations.extend(self.model, prompts, self.new, self.ends, [0.0] * len(prompts))
        rows = [acceptance.rounds(self.model, self.drafter, p + c, len(p)) for p, c in zip(prompts, own)]
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
    trials, w, h, left, top, right, bottom = record["trials"], 760, 440, 60, 20, 20, 46
    far = max(0.01, sorted(t["kld"] for t in trials)[int(0.95 * (len(trials) - 1))])

    def at(t):
        return left + (w - left - right) * min(t["kld"], far) / far, top + (h - top - bottom) * (1 - t["behaviour"])

    def colour(t):
        x = max(0.0, min(1.0, t["lost"] / max(0.01, record["base"]["al4"] - 1)))
        return f"rgb({int(40 + 190 * x)},{int(140 - 90 * x)},{int(200 - 150 * x)})"
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" font-family="sans-serif" font-size="12">',
           f'<rect width="{w}" height="{h}" fill="white"/>']
    for i in range(6):
        y, x = top + (h - top - bottom) * i / 5, left + (w - left - right) * i / 5
        out.append(f'<path d="M{left} {y:.0f}h{w - left - right}" stroke="#ddd"/><text x="{left - 6}" y="{y + 4:.0f}" text-anchor="end">{100 - 20 * i} %</text>')
        out.append(f'<text x="{x:.0f}" y="{h - 28}" text-anchor="middle">{far * i / 5:.2g}</text>')
    out.append(f'<text x="{w / 2}" y="{h - 8}" text-anchor="middle">mean KL divergence on other text, nats (red: fewer drafts taken)</text>')
    out.append(f'<text x="14" y="{h / 2}" transform="rotate(-90 14 {h / 2})" text-anchor="middle">tasks written as before</text>')
    best = {id(t) for t in front(trials)}
    for t in trials:
        (x, y), edge = at(t), ' stroke="black" stroke-width="1.5"' if id(t) in best else ""
        out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour(t)}"{edge}/>')
    for t in record["plain"]:
        x, y = at(t)
        out.append(f'<path d="M{x - 6:.1f} {y:.1f}h12M{x:.1f} {y - 6:.1f}v12" stroke="black" stroke-width="2"/>'
                   f'<text x="{x + 8:.1f}" y="{y - 6:.1f}">{t["rank"]} everywhere</text>')
    return "\n".join(out + ["</svg>\n"])


def run(source, data, out, drafter, trials=120, seconds=1e9, seed=1, counts=None, new=48):
    """OUT/search.json, OUT/search.svg. counts: prompts of (behaviour, kept), for tests."""
    began, rng, device = time.time(), random.Random(seed), "cuda" if torch.cuda.is_available() else "cpu"
    model = export.load(source, device)
    ends = sample.end_tokens(tok_module.from_file(os.path.join(source, "tokenizer.json")))
    judge = Judge(model, export_drafter.load(drafter, model.s).to(device), data, ends, new, *(counts or (None, None)))
    whole, layers, found, basis = {k: v.clone() for k, v in model.state_dict().items()}, model.s.layers, [], {}

    def tried(trial, strengths):
        model.load_state_dict(whole)
        if trial["layer"] not in basis:
            basis[trial["layer"]] = abliterate.directions(model, data, trial["layer"], max(RANKS))
        abliterate.remove(model, basis[trial["layer"]][:trial["rank"]], strengths)
        return dict(trial, **judge())
    record = dict(base=dict(al4=round(judge.taken, 3), layers=layers),
                  plain=[tried(dict(layer=layers // 2, rank=r), None) for r in RANKS])
    while len(found) < trials and time.time() - began < seconds:
        best = front(found)
        trial = draw(rng, layers)
        if best and len(found) >= trials * 0.4:
            chosen = rng.choice(best)
            trial = near(rng, {k: chosen[k] for k in trial}, layers)
        found.append(tried(trial, profile(trial, layers)))
    record.update(trials=found, front=sorted(front(found), key=lambda t: t["behaviour"]), seconds=round(time.time() - began, 1))
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(out, "search.json"), "w") as f:
        json.dump(record, f, indent=1)
    with open(os.path.join(out, "search.svg"), "w") as f:
        f.write(picture(record))
    return record
