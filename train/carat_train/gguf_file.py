"""Read .gguf files with numpy alone: metadata, and tensors as float32. Layouts: docs/formats.md."""
import struct

import numpy as np

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


class Reader:
    def __init__(self, blob):
        self.blob, self.at = blob, 0

    def take(self, code, count=1):
        size = struct.calcsize("<" + code) * count
        out = struct.unpack_from(f"<{count}{code}", self.blob, self.at)
        self.at += size
        return out

    def number(self, code):
        return self.take(code)[0]

    def string(self):
        n = self.number("Q")
        self.at += n
        return bytes(self.blob[self.at - n:self.at]).decode("utf-8")

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind != ARRAY:
            return self.number(SCALARS[kind])
        kind, count = self.number("I"), self.number("Q")
        return [self.string() for _ in range(count)] if kind == STRING else list(self.take(SCALARS[kind], count))


def halves(raw):
    return np.ascontiguousarray(raw).view(np.float16).astype(np.float32)


def read_bf16(raw):
    return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def read_q8_0(raw):
    b = raw.reshape(-1, 34)
    return halves(b[:, :2]) * b[:, 2:].view(np.int8).astype(np.float32)


def read_q5_0(raw):
    b = raw.reshape(-1, 22)                                 # scale, 32 fifth bits, 32 x 4 bits: columns i and i + 16 share a byte
    high = np.unpackbits(np.ascontiguousarray(b[:, 2:6]), axis=1, bitorder="little")
    q = np.concatenate((b[:, 6:] & 15, b[:, 6:] >> 4), 1) | high << 4
    return halves(b[:, :2]) * (q.astype(np.float32) - 16)


def k_scales(s):
    """Eight scales and eight minima of six bits from 12 bytes, [n, 8] each."""
    low, high = s[:, :4], s[:, 4:8]
    rest = s[:, 8:]
    scale = np.concatenate((low & 63, (rest & 15) | (low >> 6 << 4)), 1)
    least = np.concatenate((high & 63, (rest >> 4) | (high >> 6 << 4)), 1)
    return scale.astype(np.float32), least.astype(np.float32)


def read_q45_k(raw, five):
    b = raw.reshape(-1, 176 if five else 144)
    scale, least = k_scales(b[:, 4:16])
    q = b[:, -128:].reshape(-1, 4, 32)
    q = np.stack((q & 15, q >> 4), 2).reshape(-1, 8, 32)                    # 32 columns of each half in turn
    if five:
        q = q + ((b[:, 16:48][:, None] >> np.arange(8, dtype=np.uint8)[None, :, None] & 1) << 4)
    d, m = halves(b[:, :2]), halves(b[:, 2:4])
    return (d * scale)[..., None] * q - (m * least)[..., None]


def read_q6_k(raw):
    b = raw.reshape(-1, 210)
    low, high = b[:, :128].reshape(-1, 2, 64), b[:, 128:192].reshape(-1, 2, 32)
    q = np.stack([(low[..., :32] & 15) | (high & 3) << 4, (low[..., 32:] & 15) | (high >> 2 & 3) << 4,
                  (low[..., :32] >> 4) | (high >> 4 & 3) << 4, (low[..., 32:] >> 4) | (high >> 6) << 4], 2)
    scale = halves(b[:, 208:]) * b[:, 192:208].view(np.int8).astype(np.float32)
    return scale[..., None] * (q.reshape(-1, 16, 16).astype(np.float32) - 32)


# type id: (name, columns of a block, bytes of a block, decoder)
TYPES = {0: ("f32", 1, 4, lambda r: r.view(np.float32)), 1: ("f16", 1, 2, halves), 30: ("bf16", 1, 2, read_bf16),
         6: ("q5_0", 32, 22, read_q5_0), 8: ("q8_0", 32, 34, read_q8_0), 12: ("q4_k", 256, 144, lambda r: read_q45_k(r, False)),
         13: ("q5_k", 256, 176, lambda r: read_q45_k(r, True)), 14: ("q6_k", 256, 210, read_q6_k)}


def read(path):
    """(metadata, {name: float32 array, outermost dimension first})."""
    blob = np.fromfile(path, np.uint8)
    r = Reader(blob)
    if bytes(r.take("B", 4)) != b"GGUF" or r.number("I") not in (2, 3):
        raise ValueError(f"{path} is no GGUF file of version 2 or 3")
    tensors, keys = r.take("Q", 2)
    meta, infos, out = {}, [], {}
    for _ in range(keys):
        key = r.string()
        meta[key] = r.value(r.number("I"))
    for _ in range(tensors):
        name, dims = r.string(), r.number("I")
        infos.append((name, r.take("Q", dims)[::-1], *r.take("I"), *r.take("Q")))
    align = meta.get("general.alignment", 32)
    base = -(-r.at // align) * align
    for name, shape, kind, offset in infos:
        if kind not in TYPES:
            raise ValueError(f"{path}: {name} is of the type {kind}; make a bf16 file of it first: carat convert --type bf16")
        _, columns, size, decode = TYPES[kind]
        count = int(np.prod(shape))
        raw = blob[base + offset:base + offset + count // columns * size]
        out[name] = decode(raw).reshape(shape)
    return meta, out
