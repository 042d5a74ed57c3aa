"""Read and write .safetensors with numpy alone; bf16 travels as uint16."""
import json

import numpy as np

TYPES = {"BF16": np.uint16, "F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32, "I16": np.int16, "U8": np.uint8}


def write(path, tensors):
    """tensors: name -> (dtype name, array)."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (kind, a) in tensors.items():
        header[name] = {"dtype": kind, "shape": list(a.shape), "data_offsets": [at, at + a.nbytes]}
        at += a.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for kind, a in tensors.values():
            f.write(np.ascontiguousarray(a, dtype=TYPES[kind]).tobytes())


def read(path):
    with open(path, "rb") as f:
        blob = f.read()
    n = int.from_bytes(blob[:8], "little")
    out = {}
    for name, e in json.loads(blob[8:8 + n]).items():
        if name != "__metadata__":
            lo, hi = e["data_offsets"]
            out[name] = e["dtype"], np.frombuffer(blob[8 + n + lo:8 + n + hi], TYPES[e["dtype"]]).reshape(e["shape"])
    return out


def bf16(x):
    """A float32 array rounded to bf16 (nearest, ties to even), as uint16."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).reshape(np.shape(x))


def float32(kind, a):
    return (a.astype(np.uint32).reshape(-1) << 16).view(np.float32).reshape(a.shape) if kind == "BF16" else a.astype(np.float32)
