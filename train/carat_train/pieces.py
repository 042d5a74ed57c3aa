"""Carry a bf16 .safetensors file in pieces of at most 16 MB, about a third smaller, bit for bit.

Each bf16 is split into its exponent (Huffman-coded, about 2.6 bits) and sign and mantissa (stored as they are). Tensors in f32,
few and small, are stored as they are.
"""
import glob
import json
import math
import os
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from . import safetensors_file

PIECE = 16_000_000


def pack_plane(data):
    """Huffman only: exponents have no repeats worth searching for."""
    z = zlib.compressobj(9, zlib.DEFLATED, 15, 9, zlib.Z_HUFFMAN_ONLY)
    return z.compress(data) + z.flush()


def pack(source, target):
    every = safetensors_file.read(source)
    assert {kind for kind, _ in every.values()} <= {"BF16", "F32"}, "only bf16 and f32 tensors"
    tensors, wide = ({k: v for k, v in every.items() if v[0] == kind} for kind in ("BF16", "F32"))
    bits = np.concatenate([a.ravel() for _, a in tensors.values()])
    exponent, rest = ((bits >> 7) & 0xFF).astype(np.uint8), ((bits & 0x7F) | (bits >> 8 & 0x80)).astype(np.uint8)
    chunks = [exponent[i:i + (4 << 20)].tobytes() for i in range(0, len(exponent), 4 << 20)]
    with ThreadPoolExecutor() as pool:                      # zlib lets go of the interpreter
        planes = list(pool.map(pack_plane, chunks))
    meta = json.dumps(dict(shapes={k: list(a.shape) for k, (_, a) in tensors.items()}, planes=[len(p) for p in planes],
                           wide={k: list(a.shape) for k, (_, a) in wide.items()})).encode()
    blob = len(meta).to_bytes(8, "little") + meta + b"".join(a.tobytes() for _, a in wide.values()) + b"".join(planes) + rest.tobytes()
    names = [f"{target}.{i // PIECE:02d}" for i in range(0, len(blob), PIECE)]
    for i, name in enumerate(names):
        with open(name + ".tmp", "wb") as f:
            f.write(blob[i * PIECE:(i + 1) * PIECE])
    for name in names:
        os.replace(name + ".tmp", name)
    for old in set(glob.glob(target + ".[0-9][0-9]")) - set(names):
        os.remove(old)
    return len(bits) * 2, len(blob)


def unpack(source, target):
    """source: the common start of the pieces' names."""
    parts = sorted(glob.glob(source + ".[0-9][0-9]"))
    if not parts:
        raise FileNotFoundError(f"no pieces {source}.00, ...")
    blob = b"".join(open(p, "rb").read() for p in parts)
    n = int.from_bytes(blob[:8], "little")
    meta, at, planes, tensors = json.loads(blob[8:8 + n]), 8 + n, [], {}
    for name, shape in meta.get("wide", {}).items():
        tensors[name] = "F32", np.frombuffer(blob[at:at + 4 * math.prod(shape)], np.float32).reshape(shape)
        at += 4 * math.prod(shape)
    for size in meta["planes"]:
        planes.append(zlib.decompress(blob[at:at + size]))
        at += size
    exponent = np.frombuffer(b"".join(planes), np.uint8).astype(np.uint16)
    rest = np.frombuffer(blob[at:], np.uint8).astype(np.uint16)
    bits, at = (rest & 0x80) << 8 | exponent << 7 | (rest & 0x7F), 0
    for name, shape in meta["shapes"].items():
        tensors[name] = "BF16", bits[at:at + math.prod(shape)].reshape(shape)
        at += math.prod(shape)
    safetensors_file.write(target + ".tmp", tensors)
    os.replace(target + ".tmp", target)
