#!/usr/bin/env python3
"""A crowd before a server: STREAMS that run and IDLE that wait for their turn, and what they cost.

Usage: ulimit -n 40000; tests/soak/crowd.py CARAT MODEL.gguf [IDLE [STREAMS]]   (10000 and 64)
Prints a table: resident memory, threads, descriptors and processor time of the server, time between the pieces of a
stream; then how long /health, /live and /metrics take beside the crowd. Reading 10,000 sockets costs time of its own:
what this client used is said, too.
"""
import json, os, selectors, socket, subprocess, sys, threading, time

carat, model = sys.argv[1:3]
idle = int(sys.argv[3]) if len(sys.argv) > 3 else 10000
busy = int(sys.argv[4]) if len(sys.argv) > 4 else 64
port = 18700 + os.getpid() % 1000


def start():
    p = subprocess.Popen([carat, "serve", "-m", model, "-np", str(busy), "-c", "8192", "--kv-tokens", str(8448 * busy), "-t", "2",
                          "--max-queue", "20000", "--max-connections", "20000", "--no-prefix-cache", "--port", str(port),
                          "--log-level", "warn"])
    for _ in range(600):
        try:
            if get("/ready").startswith(b"HTTP/1.1 200"):
                return p
        except OSError:
            pass
        time.sleep(0.1)
    sys.exit("the server does not come up")


def get(path):
    with socket.create_connection(("127.0.0.1", port), 60) as s:
        s.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        out = b""
        while piece := s.recv(65536):
            out += piece
        return out


def ask(tokens):
    body = json.dumps({"prompt": "Once upon a time", "max_tokens": tokens, "ignore_eos": True, "stream": True})
    s = socket.create_connection(("127.0.0.1", port), 60)
    s.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
              f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
    return s


class Reader(threading.Thread):
    """Reads all streams; notes the time between the pieces of those that run."""

    def __init__(self):
        super().__init__(daemon=True)
        self.select, self.lock, self.last, self.gaps, self.heads = selectors.DefaultSelector(), threading.Lock(), {}, [], 0
        self.start()

    def add(self, s):
        self.select.register(s, selectors.EVENT_READ, [s, False])

    def run(self):
        while True:
            for key, _ in self.select.select(0.2):
                s, seen = key.data
                try:
                    data = s.recv(65536)
                except OSError:
                    data = b""
                if not data:
                    try:
                        self.select.unregister(s)
                    except (KeyError, ValueError):
                        pass
                    continue
                if not seen:
                    key.data[1] = True
                    self.heads += 1
                now = time.monotonic()
                if b'"text"' in data:
                    if s in self.last:
                        self.gaps.append(now - self.last[s])
                    self.last[s] = now

    def take(self):
        gaps, self.gaps, self.last = sorted(self.gaps), [], {}
        if not gaps:
            return "-"
        ms = lambda q: f"{1e3 * gaps[min(len(gaps) - 1, int(q * len(gaps)))]:,.0f}"
        return f"{ms(0.5)}, {ms(0.99)}, {ms(1)}"


def status(pid):
    text = open(f"/proc/{pid}/status").read()
    value = lambda name: int(text.split(name + ":")[1].split()[0])
    return value("VmRSS") // 1024, value("Threads"), len(os.listdir(f"/proc/{pid}/fd"))


def seconds(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Since:
    """Processor time of the server and of this client, in cores, since it was made."""

    def __init__(self, pid):
        self.pid, self.at = pid, (time.monotonic(), seconds(pid), sum(os.times()[:2]))

    def __str__(self):
        t, server, client = self.at
        wall = time.monotonic() - t
        return f"{(seconds(self.pid) - server) / wall:.2f}, {(sum(os.times()[:2]) - client) / wall:.2f}"


def row(name, pid, cores, gaps="", most=None):
    rss, threads, fds = status(pid)
    print(f"| {name} | {rss} MiB | {most if most else threads} | {fds:,} | {cores} | {gaps} |", flush=True)


def asked(path, times=20):
    took = []
    for _ in range(times):
        t = time.monotonic()
        if not get(path).startswith(b"HTTP/1.1 200"):
            return f"{path} FAILED"
        took.append(1e3 * (time.monotonic() - t))
    took.sort()
    return f"{path} {took[times // 2]:.1f} ms, at most {took[-1]:.1f}"


p = start()
try:
    print(f"load {os.getloadavg()[0]:.1f}")
    print("| state | resident | threads | descriptors | cores: server, client | ms between pieces, median, p99, largest |")
    print("| --- | --: | --: | --: | --- | --- |")
    used = Since(p.pid)
    time.sleep(5)
    row("at rest", p.pid, used)
    reader = Reader()
    streams = [ask(8000) for _ in range(busy)]
    for s in streams:
        reader.add(s)
    time.sleep(8)
    reader.take()
    used = Since(p.pid)
    time.sleep(20)
    row(f"{busy} busy", p.pid, used, reader.take())
    alone = [asked("/health"), asked("/metrics")]
    most, going = [0], [True]

    def watch():
        while going[0]:
            most[0] = max(most[0], status(p.pid)[1])
            time.sleep(0.02)

    w = threading.Thread(target=watch)
    w.start()
    began, crowd, used = time.monotonic(), [], Since(p.pid)
    reader.heads = 0
    for _ in range(idle):
        s = ask(100)
        crowd.append(s)
        reader.add(s)
    opened = time.monotonic() - began
    slow = [asked("/health", 5)]
    while reader.heads < idle and time.monotonic() - began < 120:
        time.sleep(0.1)
    took = time.monotonic() - began
    going[0] = False
    w.join()
    row(f"{idle:,} idle streams just opened, in {opened:.1f} s, all {reader.heads:,} heads after {took:.1f} s (threads: the most)",
        p.pid, used, "", most[0])
    time.sleep(5)
    reader.take()
    used = Since(p.pid)
    time.sleep(20)
    row(f"{busy} busy beside them, 25 s later", p.pid, used, reader.take())
    beside = [asked("/health"), asked("/live"), asked("/metrics")]
    lines = get("/metrics").decode().splitlines()
    held = [line.rsplit(" ", 1)[1] for k in ("running", "waiting") for line in lines if line.startswith(f"vllm:num_requests_{k}{{")]
    for s in crowd:
        s.close()
    time.sleep(5)
    reader.take()
    used = Since(p.pid)
    time.sleep(15)
    row("the idle ones gone for 20 s", p.pid, used, reader.take())
    for s in streams:
        s.close()
    time.sleep(20)
    row("all gone for 20 s", p.pid, "")
    print(f"alone: {'; '.join(alone)}\nas they come: {slow[0]}\nbeside the crowd of {held[0]} running, {held[1]} waiting: "
          f"{'; '.join(beside)}; load {os.getloadavg()[0]:.1f}")
finally:
    p.terminate()
    print("exit", p.wait())
