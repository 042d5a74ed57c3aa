"""Reads quantized safetensors directories in plain Python, from the formats' descriptions alone (docs/formats.md
section 10): nothing here knows how Carat stores a weight. Python's standard library suffices."""

import json
import math
import pathlib
import struct

SIZES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I8": 1, "U8": 1, "F8_E4M3": 1}


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def bf16(x):
    """Nearest bfloat16, ties to even."""
    u = struct.unpack("<I", struct.pack("<f", x))[0]
    return struct.unpack("<f", struct.pack("<I", (u + 0x7FFF + (u >> 16 & 1)) & 0xFFFF0000))[0]


def f16(x):
    return struct.unpack("<e", struct.pack("<e", x))[0]


def e4m3(b):
    e, m = b >> 3 & 15, b & 7
    v = m / 512 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7)
    return math.nan if b & 127 == 127 else -v if b & 128 else v


E4M3 = [e4m3(b) for b in range(256)]
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]


class Tensor:
    def __init__(self, dtype, shape, data):
        self.dtype, self.shape, self.data = dtype, shape, data

    def values(self):
        n = len(self.data) // SIZES[self.dtype]
        if self.dtype == "BF16":
            return [struct.unpack("<f", b"\0\0" + self.data[2 * i : 2 * i + 2])[0] for i in range(n)]
        if self.dtype == "F8_E4M3":
            return [E4M3[b] for b in self.data]
        code = {"F64": "d", "I64": "q", "F32": "f", "I32": "i", "F16": "e", "I8": "b", "U8": "B"}[self.dtype]
        return list(struct.unpack(f"<{n}{code}", self.data))


def read_file(path):
    raw = pathlib.Path(path).read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + n])
    data, out, end = raw[8 + n :], {}, 0
    entries = [(v["data_offsets"], k, v) for k, v in header.items() if k != "__metadata__"]
    for (begin, stop), name, v in sorted(entries, key=lambda e: e[0]):
        assert begin == end, f"{name} begins at {begin}, the tensor before ends at {end}"
        assert stop - begin == math.prod(v["shape"]) * SIZES[v["dtype"]], name
        assert begin % SIZES[v["dtype"]] == 0, f"{name} is not aligned"
        out[name], end = Tensor(v["dtype"], v["shape"], data[begin:stop]), stop
    assert end == len(data)
    return out


def read_directory(path):
    path = pathlib.Path(path)
    index = path / "model.safetensors.index.json"
    if not index.exists():
        return read_file(path / "model.safetensors")
    index = json.loads(index.read_text())
    tensors = {}
    for file in sorted(set(index["weight_map"].values())):
        for name, t in read_file(path / file).items():
            assert index["weight_map"][name] == file
            tensors[name] = t
    assert set(tensors) == set(index["weight_map"])
    assert sum(len(t.data) for t in tensors.values()) == index["metadata"]["total_size"]
    return tensors


def decode(tensors, module):
    """The float32 values of a quantized module, row by row."""
    part = lambda name: tensors.get(f"{module}.{name}")
    weight, packed, scale = part("weight"), part("weight_packed"), part("weight_scale")
    s = scale.values()
    if weight is not None:  # FP8: a scale a row, or one for each 128 x 128
        rows, cols = weight.shape
        q, across = weight.values(), scale.shape[1]
        block = across > 1 or scale.shape[0] != rows
        at = lambda r, c: s[r // 128 * across + c // 128] if block else s[r]
        return [f32(q[r * cols + c] * at(r, c)) for r in range(rows) for c in range(cols)]
    if packed.dtype == "U8":  # NVFP4
        codes = [b >> k & 15 for b in packed.data for k in (0, 4)]
        g = part("weight_global_scale").values()[0]
        return [f32(E2M1[q] * f32(s[i // 16] / g)) for i, q in enumerate(codes)]
    rows, cols = part("weight_shape").values()
    group = cols // scale.shape[1]
    words = [w & 0xFFFFFFFF for w in packed.values()]
    return [f32(((words[i // 8] >> 4 * (i % 8) & 15) - 8) * s[i // group]) for i in range(rows * cols)]
