#!/usr/bin/env python3
"""`-hf`, pull, list and rm against a server that speaks as Hugging Face's does, and breaks as networks do.
Usage: tests/hub/check.py CARAT   (from the repository's root)"""
import hashlib, http.server, json, os, re, signal, subprocess, sys, tempfile, threading, time, urllib.error, urllib.request
from pathlib import Path

CARAT = os.path.abspath(sys.argv[1])
MODEL = next(Path("models/carat-demo").glob("*.gguf")).read_bytes()
COMMIT = "0123456789abcdef0123456789abcdef01234567"
TMP = Path(tempfile.mkdtemp(prefix="carat-hub-"))


class Hub:
    """What the server has, how it misbehaves, and what it was asked."""

    def __init__(self):
        self.files = {"m-Q4_K_M.gguf": MODEL, "m-Q8_0-00001-of-00002.gguf": b"G" * 70000, "m-Q8_0-00002-of-00002.gguf": b"H" * 50000,
                      "mmproj-F16.gguf": b"p" * 100, "README.md": b"hello", "config.json": b"{}"}
        self.sizes, self.sums, self.extra, self.trouble, self.log, self.tokens, self.cdn_tokens = {}, {}, [], {}, [], [], []
        self.others = {}  # further repositories: name -> files
        self.sending = self.most = self.sent = 0  # connections at once, bytes of files

    def once(self, what, default=None):
        left = self.trouble.get(what)
        if isinstance(left, list):
            return left.pop(0) if left else default
        return default if left is None else left

    def pause(self):
        """As long as "slow" says; after "hold" bytes until the trouble is over, however slow this machine is."""
        time.sleep(self.trouble.get("slow", 0))
        while self.sent >= self.trouble.get("hold", 1 << 60):
            time.sleep(0.02)


hub = Hub()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", headers=()):
        self.send_response(status)
        for k, v in headers:
            self.send_header(k, v)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        asked = self.headers.get("Range")
        hub.log.append((self.path, asked))
        cdn = self.path.startswith("/cdn/")
        (hub.cdn_tokens if cdn else hub.tokens).append(self.headers.get("Authorization"))
        status = hub.once("status")
        if status:
            return self.answer(status, b"no", [("Retry-After", "1")] if status == 429 else [])
        m = re.match(r"/api/models/([^/]+/[^/]+)/revision/main", self.path)
        if m and (m[1] == "demo/m" or m[1] in hub.others):
            siblings = []
            for name, data in hub.others.get(m[1], hub.files).items():
                s = {"rfilename": name, "size": hub.sizes.get(name, len(data)), "blobId": hashlib.sha1(data).hexdigest()}
                if name.endswith(".gguf"):
                    s["lfs"] = {"sha256": hub.sums.get(name, hashlib.sha256(data).hexdigest()), "size": s["size"], "pointerSize": 134}
                siblings.append(s)
            return self.answer(200, json.dumps({"sha": COMMIT, "siblings": siblings + hub.extra}).encode())
        m = re.match(r"/(?:([^/]+/[^/]+)/resolve/%s|cdn)/(.*)$" % COMMIT, self.path)
        files = dict(hub.files, **{k: v for other in hub.others.values() for k, v in other.items()})
        if not m or m[2] not in files:
            return self.answer(404, b"Entry not found")
        if not cdn:  # large files come from another host
            return self.answer(302, b"", [("Location", f"http://localhost:{self.server.server_port}/cdn/{m[2]}")])
        data = files[m[2]]
        part = re.match(r"bytes=(\d+)-(\d*)", asked) if asked and not hub.trouble.get("no_ranges") else None
        start, end = (int(part[1]), int(part[2] or len(data) - 1) + 1) if part else (0, len(data))
        if start >= len(data):
            return self.answer(416)
        body = data[start:end]
        self.send_response(206 if part else 200)
        if part:
            self.send_header("Content-Range", f"bytes {start}-{start + len(body) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        cut = hub.once("cut")
        stop = len(body) if cut is None else cut
        mine = hub
        mine.sending += 1
        mine.most = max(mine.most, mine.sending)
        try:
            for at in range(0, min(stop, len(body)), 1 << 16):
                piece = body[at : min(at + (1 << 16), stop)]
                self.wfile.write(piece)
                mine.sent += len(piece)
                mine.pause()
        finally:
            mine.sending -= 1
        if stop < len(body):
            self.close_connection = True
            self.connection.close()

    def handle(self):
        try:
            super().handle()
        except (ConnectionError, ValueError, OSError):
            pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True


server = Server(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
URL = f"http://127.0.0.1:{server.server_port}"
count = failures = 0


def check(ok, what, more=""):
    global count, failures
    count += 1
    if not ok:
        failures += 1
        print(f"FAIL  {what}\n{more}")


def fresh(**trouble):
    """A new server state and an empty cache."""
    global hub
    hub = Hub()
    hub.trouble = trouble
    fresh.home = Path(tempfile.mkdtemp(dir=TMP))


def carat(*args, endpoint=URL, part="", **more):
    """part: bytes from which on a file comes over several connections."""
    env = dict(os.environ, HF_ENDPOINT=endpoint, HF_HOME=str(fresh.home), CARAT_FETCH_PAUSE="0.05", HF_TOKEN="hf_secret", CARAT_FETCH_PART=part)
    for name in ("HF_HUB_CACHE", "http_proxy", "HTTP_PROXY"):
        env.pop(name, None)
    return subprocess.run([CARAT, *args], env=env, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL, **more)


def folder():
    return fresh.home / "hub" / "models--demo--m"


def whole(name="m-Q4_K_M.gguf"):
    data = hub.files[name]
    link = folder() / "snapshots" / COMMIT / name
    return (link.is_symlink() and link.read_bytes() == data and os.readlink(link) == f"../../blobs/{hashlib.sha256(data).hexdigest()}"
            and (folder() / "refs" / "main").read_text() == COMMIT and not list((folder() / "blobs").glob("*.incomplete")))


def loads():
    return [r for p, r in hub.log if p.startswith("/cdn/")]


# As it should go: the hub's layout, no token for the other host, nothing twice, the model answers.
fresh()
r = carat("pull", "demo/m:q4_k_m")
check(r.returncode == 0 and whole(), "pull", r.stderr)
check(r.stdout.strip() == str(folder() / "snapshots" / COMMIT / "m-Q4_K_M.gguf"), "pull prints the path", r.stdout)
check(set(hub.tokens) == {"Bearer hf_secret"} and hub.cdn_tokens == [None], "the token goes to the first host alone", str(hub.cdn_tokens))
r = carat("run", "-hf", "demo/m:Q4_K_M", "-p", "Repeat: apple", "--temp", "0", "-n", "20")
check(r.returncode == 0 and "apple" in r.stdout, "run -hf answers", r.stdout + r.stderr)
check(len(loads()) == 1, "what is there is not loaded again")
n = len(hub.log)
r = carat("run", "-hf", "demo/m:Q4_K_M", "--offline", "-p", "Repeat: apple", "--temp", "0", "-n", "20")
check(r.returncode == 0 and "apple" in r.stdout and len(hub.log) == n, "--offline sends no request", r.stderr)
r = carat("run", "-hf", "demo/m:Q4_K_M", "-p", "Repeat: apple", "-n", "20", endpoint="http://127.0.0.1:9")
check(r.returncode == 0 and "what is in the cache is used" in r.stderr, "no network: the cache", r.stderr)
r = carat("pull", "demo/m")
check(r.returncode == 0 and "Q4_K_M (the usual one" in r.stderr, "without a quantization: says which and why", r.stderr)
r = carat("list")
check("demo/m" in r.stdout and "m-Q4_K_M.gguf" in r.stdout, "list", r.stdout)
r = carat("pull", "demo/m:Q8_0")
check(r.returncode == 0 and whole("m-Q8_0-00001-of-00002.gguf") and whole("m-Q8_0-00002-of-00002.gguf"), "split files", r.stderr)
r = carat("rm", "demo/m:Q8_0")
check(r.returncode == 0 and whole() and not (folder() / "snapshots" / COMMIT / "m-Q8_0-00001-of-00002.gguf").exists(), "rm of one quantization", r.stderr)
r = carat("rm", "demo/m")
check(r.returncode == 0 and not folder().exists() and "No models" in carat("list").stdout, "rm", r.stderr)

# Breaks.
third = len(MODEL) // 3
fresh(cut=[third, third, 100000])
r = carat("pull", "demo/m:Q4_K_M")
check(r.returncode == 0 and whole() and loads() == [None, f"bytes={third}-", f"bytes={2 * third}-", f"bytes={2 * third + 100000}-"],
      "goes on where a connection broke, three times", str(loads()) + r.stderr)
fresh(cut=[third], no_ranges=True)
r = carat("pull", "demo/m:Q4_K_M")
check(r.returncode == 0 and whole() and len(loads()) == 2, "a server without ranges: from the start", r.stderr)
fresh(cut=0)
r = carat("pull", "demo/m:Q4_K_M")
check(r.returncode == 1 and "hint: run the same again" in r.stderr and len(loads()) == 6, "nothing ever comes: six tries", str(loads()) + r.stderr)
fresh(hold=2 << 20)
env = dict(os.environ, HF_ENDPOINT=URL, HF_HOME=str(fresh.home))
p = subprocess.Popen([CARAT, "pull", "demo/m:Q4_K_M"], env=env, stderr=subprocess.DEVNULL)
part = folder() / "blobs" / (hashlib.sha256(MODEL).hexdigest() + ".incomplete")
while not (part.exists() and part.stat().st_size > 1 << 20):
    time.sleep(0.02)
r = carat("pull", "demo/m:Q4_K_M")
check(r.returncode == 1 and "another program loads" in r.stderr, "two at once: the second says so", r.stderr)
p.send_signal(signal.SIGINT)
p.wait()
kept = part.stat().st_size
hub.trouble = {}
r = carat("pull", "demo/m:Q4_K_M")
check(r.returncode == 0 and whole() and loads()[-1] == f"bytes={kept}-", "Ctrl-C loses nothing", str(loads()) + r.stderr)

# Several connections.
MIB = str(1 << 20)


def parts():
    return sorted((int(a), int(b) + 1) for a, b in (re.match(r"bytes=(\d+)-(\d+)", r).groups() for r in loads()))


fresh(slow=0.001)
r = carat("pull", "demo/m:Q4_K_M", part=MIB)
got = parts()
check(r.returncode == 0 and whole() and not list((folder() / "blobs").glob("*.parts*")), "in parts", r.stderr)
check(hub.most >= 2, f"over several connections at once, {hub.most}")
check(got[0][0] == 0 and got[-1][1] == len(MODEL) and all(a[1] == b[0] for a, b in zip(got, got[1:])), "every byte once", str(got))
fresh()
r = carat("pull", "demo/m:Q4_K_M", "--connections", "1", part=MIB)
check(r.returncode == 0 and whole() and loads() == [None], "--connections 1", r.stderr)
fresh(cut=[100000, None, 5, 70000, None, 200000])
r = carat("pull", "demo/m:Q4_K_M", part=MIB)
check(r.returncode == 0 and whole() and hub.sent == len(MODEL), f"parts go on where their connections broke, {hub.sent - len(MODEL)} bytes twice", r.stderr)
fresh(no_ranges=True)
r = carat("pull", "demo/m:Q4_K_M", part=MIB)
check(r.returncode == 0 and whole() and loads()[-1] is None, "a server without parts: over one connection", r.stderr)
fresh(status=[None, None, 429])
r = carat("pull", "demo/m:Q4_K_M", part=MIB)
check(r.returncode == 0 and whole(), "429 for one of the connections", r.stderr)
fresh(hold=6 << 20)
p = subprocess.Popen([CARAT, "pull", "demo/m:Q4_K_M"], env=dict(env, HF_HOME=str(fresh.home), CARAT_FETCH_PART=MIB), stderr=subprocess.DEVNULL)
while hub.sent < 5 << 20:
    time.sleep(0.02)
r = carat("pull", "demo/m:Q4_K_M", part=MIB)
check(r.returncode == 1 and "another program loads" in r.stderr, "two at once, in parts: the second says so", r.stderr)
p.send_signal(signal.SIGINT)
p.wait()
r = carat("list")
check("broken off" in r.stdout, "list tells of parts", r.stdout)
time.sleep(0.1)
hub.trouble, hub.log = {}, []
r = carat("pull", "demo/m:Q4_K_M", part=MIB)
again = sum(b - a for a, b in parts())
check(r.returncode == 0 and whole() and "are here already" in r.stderr and again <= len(MODEL) - (4 << 20), f"Ctrl-C loses no part, {again} bytes left", r.stderr)
fresh()
hub.sizes["m-Q4_K_M.gguf"] = len(MODEL) - 1000
r = carat("pull", "demo/m:Q4_K_M", part=MIB)
check(r.returncode == 1 and "its repository says" in r.stderr and not (folder() / "snapshots").exists(), "parts of a file with another size", r.stderr)

# What comes beside a model.
fresh()
hub.files["mmproj-BF16.gguf"] = b"q" * 100
r = carat("pull", "demo/m:Q4_K_M", "--mmproj", "auto")
check(r.returncode == 0 and whole() and whole("mmproj-F16.gguf") and "mmproj-F16.gguf comes with it" in r.stderr and r.stdout.strip().endswith("m-Q4_K_M.gguf"), "--mmproj auto", r.stderr)
check(not (folder() / "snapshots" / COMMIT / "mmproj-BF16.gguf").exists(), "one of them is enough")
r = carat("pull", "demo/m:Q4_K_M", "--mmproj", "mmproj-BF16.gguf")
check(r.returncode == 0 and whole("mmproj-BF16.gguf"), "--mmproj FILE", r.stderr)
r = carat("pull", "demo/m:Q4_K_M", "--mmproj", "none.gguf")
check(r.returncode == 1 and "no file 'none.gguf'" in r.stderr, "--mmproj of a file that is not there", r.stderr)
r = carat("bench", "-m", "x.gguf", "--mmproj", "p.gguf")
check(r.returncode == 1 and "reads text alone" in r.stderr, "--mmproj without -hf: says so", r.stderr)
fresh()
hub.others = {"quantizer/gemma-4-E2B-it-GGUF": {"g-Q4_K_M.gguf": MODEL},
              "google/gemma-4-E2B-it-assistant": {"a-Q8_0.gguf": next(Path("models/carat-demo-mtp").glob("*.gguf")).read_bytes()}}
r = carat("run", "-hf", "quantizer/gemma-4-E2B-it-GGUF", "-hfd", "auto", "--spec", "mtp", "-p", "Repeat: apple", "--temp", "0", "-n", "20", "--timings")
check(r.returncode == 0 and "apple" in r.stdout and "the drafter is google/gemma-4-E2B-it-assistant" in r.stderr and "mtp" in r.stderr, "-hfd auto", r.stderr)
r = carat("run", "-hf", "demo/m", "-hfd", "auto", "-p", "x")
check(r.returncode == 1 and "no published drafter of demo/m" in r.stderr, "-hfd auto of an unknown model", r.stderr)

# What servers say.
for status, hint in ((401, "HF_TOKEN"), (403, "terms"), (404, "check the name")):
    fresh(status=status)
    r = carat("pull", "demo/m:Q4_K_M")
    check(r.returncode == 1 and hint in r.stderr and len(hub.log) == 1, f"{status}: one try and a hint", r.stderr)
fresh(status=[429, None, None, 429])
began = time.time()
r = carat("pull", "demo/m:Q4_K_M")
check(r.returncode == 0 and whole() and time.time() - began > 2, "429: waits as Retry-After says", r.stderr)
fresh(status=[500, 503, None, 502])
r = carat("pull", "demo/m:Q4_K_M")
check(r.returncode == 0 and whole(), "500, 503, 502: tries again", r.stderr)

# Lies.
for size, say in ((len(MODEL) + 1000, "no more than"), (len(MODEL) - 1000, "longer than")):
    fresh()
    hub.sizes["m-Q4_K_M.gguf"] = size
    r = carat("pull", "demo/m:Q4_K_M")
    check(r.returncode == 1 and say in r.stderr and not (folder() / "snapshots").exists(), f"a size that is wrong by {size - len(MODEL)}", r.stderr)
fresh()
hub.sizes["m-Q4_K_M.gguf"] = 10**16
r = carat("pull", "demo/m:Q4_K_M")
check(r.returncode == 1 and "has room for" in r.stderr and not loads(), "no room on the disk: nothing is loaded", r.stderr)
fresh()
hub.sums["m-Q4_K_M.gguf"] = "0" * 64
r = carat("pull", "demo/m:Q4_K_M")
check(r.returncode == 1 and "SHA-256" in r.stderr and not list((folder() / "blobs").iterdir()), "other bytes: removed", r.stderr)
fresh()
hub.extra = [{"rfilename": "../../evil.gguf", "size": 5, "blobId": "00", "lfs": {"sha256": "00", "size": 5}},
             {"rfilename": "x-Q2_K.gguf", "size": 5, "lfs": {"sha256": "../../../evil", "size": 5}}]
r = carat("pull", "demo/m:Q2_K")
check(r.returncode == 1 and "it has Q8_0" in r.stderr, "paths that lead out are no files; an unknown quantization lists those there are", r.stderr)

# By request: Ollama's /api/pull into a folder of models.
class Served:
    def __init__(self, *flags):
        self.dir = Path(tempfile.mkdtemp(dir=TMP))
        env = dict(os.environ, HF_ENDPOINT=URL, HF_HOME=str(fresh.home), CARAT_FETCH_PAUSE="0.05")
        self.p = subprocess.Popen([CARAT, "serve", "--models-dir", str(self.dir), "--port", "0", "-c", "256", *flags], env=env,
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        while not (at := re.search(r"http://[\d.]+:\d+", self.p.stdout.readline())):
            assert self.p.poll() is None
        self.url = at[0]

    def post(self, path, **body):
        try:
            with urllib.request.urlopen(self.url + path, json.dumps(body).encode(), timeout=120) as r:
                return r.status, r.read().decode()
        except urllib.error.HTTPError as e:
            return e.code, e.read().decode()

    def end(self):
        self.p.terminate()
        self.p.wait()


fresh()
server = Served()
status, said = server.post("/api/pull", model="hf.co/demo/m:Q4_K_M")
check(status == 403 and "--allow-pull" in said and not hub.log, "a pull by request names the flag that allows it", said)
server.end()
server = Served("--allow-pull")
status, said = server.post("/api/pull", model="hf.co/demo/m:Q4_K_M")
lines = [json.loads(line) for line in said.splitlines()]
check(status == 200 and lines[-1] == {"status": "success"} and whole(), "with it the model comes", said[-300:])
check(any(line.get("total") == len(MODEL) == line.get("completed") for line in lines), "progress is told", said[:300])
ask = {"messages": [{"role": "user", "content": "Repeat: apple"}], "stream": False, "options": {"temperature": 0, "num_predict": 20}}
for name in ("hf.co/demo/m:Q4_K_M", "demo/m:Q4_K_M"):
    status, said = server.post("/api/chat", model=name, **ask)
    check(status == 200 and "apple" in said, f"{name} answers", said)
sent = hub.sent
status, said = server.post("/api/pull", model="hf.co/demo/m:Q4_K_M", stream=False)
check(status == 200 and json.loads(said) == {"status": "success"} and hub.sent == sent, "what is here is not loaded again", said)
for name, hint in (("gemma3", "hf.co/OWNER/REPO"), ("hf.co/demo/none", "404"), ("hf.co/demo/m:Q2_K", "it has"), ("hf.co/../../etc", "OWNER")):
    status, said = server.post("/api/pull", model=name)
    check(status == 200 and hint in json.loads(said.splitlines()[-1]).get("error", ""), f"pull {name}: an error with a hint", said)
    status, said = server.post("/api/pull", model=name, stream=False)
    check(status == 502 and hint in said, f"pull {name}, not streamed", said)
server.end()

# Hints.
fresh()
r = carat("run", "-m", "demo/m", "-p", "x")
check(r.returncode == 1 and "-hf demo/m" in r.stderr, "-m OWNER/REPO names -hf", r.stderr)
r = carat("run", "-m", "https://example.com/m.gguf", "-p", "x")
check(r.returncode == 1 and "-hf" in r.stderr, "-m https:// names -hf", r.stderr)
r = carat("pull", "nonsense")
check(r.returncode == 1 and "OWNER/REPO" in r.stderr, "a name without an owner", r.stderr)

subprocess.run(["rm", "-rf", str(TMP)])
print(f"{count} checks, {failures} failed")
sys.exit(1 if failures else 0)
