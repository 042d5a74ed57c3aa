#!/usr/bin/env python3
"""check.py CARAT [GOLDEN...]: quantizes checkpoints with Carat and compares every byte with the published producers'
arithmetic, replayed here (docs/formats.md section 11); decodes the result with reader.py and compares the values
with those that Carat loads."""

import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

from reader import E4M3, E2M1, bf16, decode, f16, f32, read_directory

ROUND = {"BF16": bf16, "F16": f16, "F32": f32}
EPSILON = {"BF16": 2.0**-7, "F16": 2.0**-10, "F32": 2.0**-23}
MAGNITUDES = sorted(range(127), key=lambda b: E4M3[b])  # bytes of E4M3 are in order


def to_e4m3(x):
    """Nearest E4M3, ties to the even byte, by search over the table: no bits are shifted."""
    a, low, high = abs(x), 0, 126
    while low < high:
        mid = (low + high) // 2
        if E4M3[mid] < a:
            low = mid + 1
        else:
            high = mid
    if low and (E4M3[low] - a > a - E4M3[low - 1] or (E4M3[low] - a == a - E4M3[low - 1] and low % 2)):
        low -= 1
    return low | (128 if struct.pack("<f", x)[3] & 128 else 0)


def to_e2m1(x):
    a = abs(x)
    best = min(range(8), key=lambda c: (abs(E2M1[c] - a), c % 2))
    return best | (8 if struct.pack("<f", x)[3] & 128 else 0)


def clamp(x, a, b):
    return max(a, min(b, x))


def quantize(kind, x, rows, cols, dtype, exact, amax_fused, group=32):
    """The bytes of a module's tensors."""
    d = ROUND[dtype]
    quotient = (lambda a, b: f32(a / b)) if exact else (lambda a, b: d(f32(a / b)))
    store = lambda values: b"".join(
        struct.pack("<f", v)[2:] if dtype == "BF16" else struct.pack("<e" if dtype == "F16" else "<f", v) for v in values
    )
    if kind in ("fp8_dynamic", "fp8_block"):
        h, w = (1, cols) if kind == "fp8_dynamic" else (128, 128)
        scales, codes = [], bytearray(rows * cols)
        for r0 in range(0, rows, h):
            for c0 in range(0, cols, w):
                at = [r * cols + c for r in range(r0, min(rows, r0 + h)) for c in range(c0, min(cols, c0 + w))]
                s = d(f32(max(abs(x[i]) for i in at) / 448)) or EPSILON[dtype]
                scales.append(s)
                for i in at:
                    codes[i] = to_e4m3(clamp(quotient(x[i], s), -448.0, 448.0))
        return {"weight": bytes(codes), "weight_scale": store(scales)}
    if kind == "w4a16":
        scales, codes = [], []
        for i in range(0, rows * cols, group):
            part = x[i : i + group]
            s = d(f32(max(abs(v) for v in part) / 7.5)) or EPSILON[dtype]
            scales.append(s)
            codes += [round(clamp(quotient(v, s), -8.0, 7.0)) + 8 for v in part]
        packed = bytes(codes[i] | codes[i + 1] << 4 for i in range(0, len(codes), 2))
        return {"weight_packed": packed, "weight_scale": store(scales), "weight_shape": struct.pack("<2q", rows, cols)}
    g = f32(2688 / amax_fused) if exact else d(f32(d(f32(1 / amax_fused)) * 2688))
    scales, codes = bytearray(), []
    for i in range(0, rows * cols, 16):
        part = x[i : i + 16]
        local = quotient(max(abs(v) for v in part), 6)
        b = to_e4m3(min(f32(g * local), 448.0)) or 0x20
        scales.append(b)
        s = f32(E4M3[b] / g)
        codes += [to_e2m1(clamp(f32(v / s), -6.0, 6.0)) for v in part]
    packed = bytes(codes[i] | codes[i + 1] << 4 for i in range(0, len(codes), 2))
    return {"weight_packed": packed, "weight_scale": bytes(scales), "weight_global_scale": struct.pack("<f", g)}


def write_checkpoint(path, tensors, config):
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


def sources(tensors):
    """(module, x, rows, cols, dtype) of every linear layer, experts one by one."""
    for name, t in tensors.items():
        x = None
        if len(t.shape) == 2 and name.endswith("_proj.weight") and "router" not in name:
            yield name[:-7], t.values(), *t.shape, t.dtype
        elif len(t.shape) == 3 and ".experts." in name:
            e, rows, cols = t.shape
            x, base = t.values(), name.rsplit(".", 1)[0]
            for i in range(e):
                one = x[i * rows * cols : (i + 1) * rows * cols]
                if name.endswith("gate_up_proj"):
                    half = rows // 2
                    yield f"{base}.{i}.gate_proj", one[: half * cols], half, cols, t.dtype
                    yield f"{base}.{i}.up_proj", one[half * cols :], half, cols, t.dtype
                else:
                    yield f"{base}.{i}.down_proj", one, rows, cols, t.dtype


def fused(module):
    base, last = module.rsplit(".", 1)
    return base + (".qkv" if last in ("q_proj", "k_proj", "v_proj") else ".gate_up" if last in ("gate_proj", "up_proj") else "." + last)


def check(carat, source, kind, rounding, work, shard=0):
    out = work / f"{source.name}-{kind}-{rounding}"
    subprocess.run([carat, "convert", source, out, "--type", kind, "--rounding", rounding], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    got, before = read_directory(out), read_directory(source)
    modules, most = list(sources(before)), {}
    for module, x, *_ in modules:
        most[fused(module)] = max(most.get(fused(module), 0), max(abs(v) for v in x))
    count, seen = 0, set()
    unit = {"nvfp4": 16, "w4a16": 32}.get(kind, 1)
    for module, x, rows, cols, dtype in modules:
        if cols % unit:
            continue
        for part, raw in quantize(kind, x, rows, cols, dtype, rounding == "exact", most[fused(module)]).items():
            name = f"{module}.{part}"
            assert got[name].data == raw, f"{source.name} {kind} {rounding}: {name} is not what the rules give"
            seen.add(name)
            count += len(raw)
    for name, t in got.items():  # the rest is the source's
        assert name in seen or (t.data == before[name].data and t.shape == before[name].shape), name
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    assert config["quant_method"] == "compressed-tensors" and "lm_head" in config["ignore"]
    return out, got, modules, count


def check_values(carat, out, got, modules, unit):
    """What reader.py decodes is what Carat loads, bit for bit."""
    for module, x, rows, cols, _ in modules[::23]:
        if cols % unit:
            continue
        shown = json.loads(subprocess.run([carat, "inspect", out, "--tensor", module + ".weight", "--json"], check=True, capture_output=True).stdout)
        assert shown["shape"] == [rows, cols]
        values, expected = [f32(v) for v in shown["values"]], decode(got, module)
        if "nvfp4" in out.name and cols % 64:  # the factor is applied last: one rounding in another place
            assert all(abs(a - b) <= abs(b) * 2.0**-22 for a, b in zip(values, expected)), f"{out.name}: {module}"
        else:
            assert values == expected, f"{out.name}: {module}"


def check_artefacts(carat, golden, work):
    """One table of several quantizations: nearer with more bits, and the page and records are written."""
    tokens, page = work / "tokens.json", work / "page.html"
    tokens.write_text(json.dumps([2] + [(7 * i) % 250 for i in range(63)]))
    models = [work / f"{golden.name}-{kind}-ct" for kind in ("fp8_dynamic", "nvfp4")]
    run = [carat, "eval", "artefacts", *models, "--against", golden, "--tokens", tokens, "-c", "64", "-n", "4", "--html", page]
    records = json.loads(subprocess.run([*run, "--json"], check=True, capture_output=True).stdout)
    assert [r["figures"].get("kld") is None for r in records] == [True, False, False]
    fp8, nvfp4 = (r["figures"] for r in records[1:])
    assert 0 < fp8["kld"] < nvfp4["kld"] and fp8["kld_summary"]["positions"] == 64
    assert all(r["figures"]["decode_tps"] > 0 and r["figures"]["ppl"] > 1 for r in records)
    assert nvfp4["bytes"] < fp8["bytes"] < records[0]["figures"]["bytes"]
    assert page.read_text().count("<tr>") == 4


def gaussian(path, dtype, rows, cols, seed):
    rng = random.Random(seed)
    x = [ROUND[dtype](f32(rng.gauss(0, 0.02))) for _ in range(rows * cols)]
    x[3 * cols : 4 * cols] = [0.0] * cols  # a row of zeros has the scale epsilon
    pack = lambda v: struct.pack("<f", v)[2:] if dtype == "BF16" else struct.pack("<e" if dtype == "F16" else "<f", v)
    write_checkpoint(path, {"model.layers.0.mlp.up_proj.weight": (dtype, [rows, cols], b"".join(map(pack, x)))}, {})


def main():
    carat, goldens = pathlib.Path(sys.argv[1]).resolve(), [pathlib.Path(p) for p in sys.argv[2:]]
    # The values of the rule: amax 1.0 -> scale, 0.67578125 -> a tie of the rounded quotient, 0.75 likewise.
    q = quantize("fp8_dynamic", [1.0, 0.67578125, 0.75], 1, 3, "BF16", False, 1)
    assert struct.unpack("<f", b"\0\0" + q["weight_scale"])[0] == 0.002227783203125 and q["weight"] == b"\x7e\x7a\x7a"
    with tempfile.TemporaryDirectory() as tmp:
        work, total = pathlib.Path(tmp), 0
        gaussian(work / "gauss", "BF16", 200, 1024, 37)
        codes = {}
        for rounding in ("ct", "exact"):
            _, got, _, n = check(carat, work / "gauss", "fp8_dynamic", rounding, work)
            codes[rounding] = got["model.layers.0.mlp.up_proj.weight"].data
            total += n
        differ = sum(a != b for a, b in zip(codes["ct"], codes["exact"]))
        print(f"bf16 and f32 quotients: {differ} of {len(codes['ct'])} codes differ ({100 * differ / len(codes['ct']):.2f} %)")
        assert 0.026 < differ / len(codes["ct"]) < 0.032
        for dtype in ("F16", "F32", "BF16"):
            source = work / f"small-{dtype}"
            gaussian(source, dtype, 140, 192, 38)
            for kind in ("fp8_dynamic", "fp8_block", "nvfp4", "w4a16"):
                for rounding in ("ct", "exact") if dtype == "BF16" else ("ct",):
                    out, got, modules, n = check(carat, source, kind, rounding, work)
                    check_values(carat, out, got, modules, {"nvfp4": 16, "w4a16": 32}.get(kind, 1))
                    total += n
        for golden in goldens:
            for kind in ("fp8_dynamic", "fp8_block", "nvfp4", "w4a16"):
                out, got, modules, n = check(carat, golden, kind, "ct", work)
                check_values(carat, out, got, modules, {"nvfp4": 16, "w4a16": 32}.get(kind, 1))
                total += n
        for golden in goldens[:1]:
            check_artefacts(carat, golden, work)
    print(f"{total} bytes are those of the rules")


if __name__ == "__main__":
    main()
