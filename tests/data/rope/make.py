#!/usr/bin/env python3
"""Writes scaling.json: frequencies and factors of scaled rotary positions, computed from the formulas of the
papers as transformers applies them (arXiv 2306.15595, 2309.00071), for src/model/rope_test.cc to compare with."""
import json
import math
import pathlib


def yarn(dim, base, pairs, factor, trained, fast=32.0, slow=1.0):
    def dimension(turns):
        return dim * math.log(trained / (2 * math.pi * turns)) / (2 * math.log(base))

    low, high = max(math.floor(dimension(fast)), 0), min(math.ceil(dimension(slow)), dim - 1)
    out = []
    for i in range(pairs):
        whole = 1 / base ** (2 * i / dim)
        ramp = min(1.0, max(0.0, (i - low) / (high - low if high != low else 0.001)))
        out.append(whole / factor * ramp + whole * (1 - ramp))
    return out


def linear(dim, base, pairs, factor):
    return [1 / base ** (2 * i / dim) / factor for i in range(pairs)]


def case(name, dim, base, pairs, kind, factor, trained=0, **betas):
    if kind == "linear":
        values, magnitude = linear(dim, base, pairs, factor), 1.0
    else:
        values, magnitude = yarn(dim, base, pairs, factor, trained, **betas), 0.1 * math.log(factor) + 1
    return {"name": name, "dim": dim, "base": base, "pairs": pairs, "type": kind, "factor": factor,
            "trained": trained, "fast": betas.get("fast", 32.0), "slow": betas.get("slow", 1.0),
            "magnitude": magnitude, "frequencies": values}


CASES = [
    case("Qwen3.6, 1M", 64, 1e7, 32, "yarn", 4.0, 262144),
    case("whole head", 64, 150000.0, 32, "yarn", 32.0, 4096),
    case("other betas", 128, 1e6, 64, "yarn", 4.0, 32768, fast=16.0, slow=2.0),
    case("Gemma 4, 1M", 512, 1e6, 64, "yarn", 4.0, 262144),
    case("Gemma 4 from 4K", 512, 1e6, 64, "yarn", 8.0, 4096),
    case("linear", 512, 1e6, 64, "linear", 4.0),
]
lines = ",\n".join(" " + json.dumps(c) for c in CASES)
pathlib.Path(__file__).with_name("scaling.json").write_text(f"[\n{lines}\n]\n")
