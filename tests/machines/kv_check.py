"""A subscriber that holds a server's KV events to vLLM's contract (docs/operations.md, "Several machines").

As a program: kv_check.py ENDPOINT [SECONDS] prints how many batches came, what the server is believed to hold, and the first
violation of each kind; exit code 1 if there is one, or if nothing came."""
import sys
import time

import msgpack
import zmq

FIELDS = {
    "BlockStored": ["block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys",
                    "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window"],
    "BlockRemoved": ["block_hashes", "medium", "group_idx"],
    "AllBlocksCleared": [],
}


def event(e):
    """Both encodings: a map with its tag, or an array that begins with it."""
    if isinstance(e, dict):
        fields = dict(e)
        return fields.pop("type"), fields
    return e[0], dict(zip(FIELDS[e[0]], e[1:]))


class Check:
    def __init__(self):
        self.have, self.seq, self.faults, self.batches = {}, None, {}, 0

    def fault(self, kind, what):
        self.faults.setdefault(kind, what)

    def frames(self, f):
        self.batches += 1
        if len(f) != 3:
            return self.fault("frames", f"{len(f)} frames, not topic, sequence, payload")
        if not f[0].startswith(b"kv@") or f[0].count(b"@") != 2:
            self.fault("topic", f[0])
        if len(f[1]) != 8:
            self.fault("sequence", f[1])
        n = int.from_bytes(f[1], "big")
        if self.seq is not None and n != self.seq + 1:
            self.fault("gap", f"{self.seq} then {n}")
        self.seq = n
        self.batch(msgpack.unpackb(f[2], strict_map_key=False))

    def batch(self, b):
        if not isinstance(b, list) or len(b) not in (2, 3):
            return self.fault("batch", "no array of 2 or 3")
        if not isinstance(b[0], float):
            self.fault("ts", b[0])
        for e in b[1]:
            kind, fields = event(e)
            if kind == "AllBlocksCleared":
                self.have.clear()
            elif kind == "BlockRemoved":
                self.removed(fields["block_hashes"])
            else:
                self.stored(fields)

    def removed(self, hashes):
        for h in hashes:
            if self.have.pop(h, None) is None:
                self.fault("removed unknown", h)

    def stored(self, e):
        hashes, size, parent = e["block_hashes"], e["block_size"], e["parent_block_hash"]
        if any(not isinstance(h, (int, bytes)) or h == 0 for h in hashes):
            self.fault("hash", hashes[:1])
        if len(e["token_ids"]) != len(hashes) * size:
            self.fault("tokens", f"{len(e['token_ids'])} tokens, {len(hashes)} blocks of {size}")
        if parent == 0:
            self.fault("parent", "0 where nil is meant")
        if parent is not None and parent not in self.have:
            return self.fault("orphan", parent)
        before = self.have[parent] if parent is not None else ()
        for i, h in enumerate(hashes):
            before = before + tuple(e["token_ids"][i * size:(i + 1) * size])
            self.have[h] = before

    def known(self, tokens):
        """How many tokens of a prompt a router takes for known: whole blocks from the beginning on."""
        tokens = tuple(tokens)
        return max((len(t) for t in self.have.values() if tokens[:len(t)] == t), default=0)


def subscribe(endpoint):
    socket = zmq.Context.instance().socket(zmq.SUB)
    socket.setsockopt(zmq.SUBSCRIBE, b"kv@")
    socket.connect(endpoint)
    return socket


def take(check, socket, quiet):
    """What comes, until nothing has for `quiet` milliseconds."""
    while socket.poll(quiet):
        check.frames(socket.recv_multipart())


def replayed(endpoint, first):
    """The batches from `first` on, as the server's replay socket gives them."""
    socket = zmq.Context.instance().socket(zmq.DEALER)
    socket.connect(endpoint)
    socket.send_multipart([b"", first.to_bytes(8, "big")])
    out = []
    while socket.poll(5000):
        _, number, payload = socket.recv_multipart()
        if number == (-1).to_bytes(8, "big", signed=True):
            socket.close(0)
            return out
        out.append((int.from_bytes(number, "big"), payload))
    raise RuntimeError("the replay has no end")


if __name__ == "__main__":
    check, sub, end = Check(), subscribe(sys.argv[1]), time.time() + float(sys.argv[2] if len(sys.argv) > 2 else 5)
    while time.time() < end:
        take(check, sub, 100)
    print(check.batches, "batches,", len(check.have), "blocks held;", check.faults or "no fault")
    sys.exit(bool(check.faults) or check.batches == 0)
