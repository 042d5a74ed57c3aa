"""carat promote as a user calls it, and a server killed while versions change: promote.py CARAT [KILLS]"""
import http.client, json, os, random, signal, socket, subprocess, sys, tempfile, threading, time

carat = os.path.abspath(sys.argv[1])
kills = int(sys.argv[2]) if len(sys.argv) > 2 else 3
tmp = tempfile.TemporaryDirectory()
state_dir = os.path.join(tmp.name, "versions")
failed = []


def check(name, right, what=""):
    print(("ok    " if right else "FAILED ") + name, "" if right else what)
    if not right:
        failed.append(name)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


port = free_port()
files = []
for seed in ("1", "2"):
    files.append(os.path.join(tmp.name, f"{seed}.gguf"))
    subprocess.run([carat, "forge", "tiny", files[-1], "--type", "q8_0", "--seed", seed], check=True, capture_output=True)


def promote(*args):
    r = subprocess.run([carat, "promote", *args, "--dir", state_dir], capture_output=True, text=True)
    return r.returncode, r.stdout, r.stderr


class Server:
    def __init__(self, socket_kept=None):
        command = [carat, "serve", "-m", files[0], "-c", "512", "-t", "1", "--parallel", "2", "-a", "m", "--promotions", state_dir, "--log-level",
                   "error"]
        if socket_kept:  # as systemd hands over the socket of carat@.socket, which outlives the process
            hand = ("import os, sys; os.dup2(int(sys.argv[1]), 3); os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid())); "
                    "os.execv(sys.argv[2], sys.argv[2:])")
            self.p = subprocess.Popen([sys.executable, "-c", hand, str(socket_kept.fileno()), *command], stdout=subprocess.DEVNULL,
                                      pass_fds=[socket_kept.fileno()])
        else:
            self.p = subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.DEVNULL)
        while not ready():
            assert self.p.poll() is None, "the server ended"
            time.sleep(0.01)

    def kill(self):
        self.p.send_signal(signal.SIGKILL)
        self.p.wait()


def request(method, path, body=None):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    c.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
    r = c.getresponse()
    return r.status, r.getheader("Carat-Version"), r.read()


def ready():
    try:
        return request("GET", "/ready")[0] == 200
    except OSError:
        return False


# What a client of the two files gets: tokens, and the version that says it was.
def ask():
    status, version, body = request("POST", "/v1/completions", {"prompt": "Once", "max_tokens": 12, "temperature": 0})
    assert status == 200, body
    return version, json.loads(body)["choices"][0]["text"]


server = Server()
version, answer = ask()
check("a server with --promotions says its version", version == "1")
rc, out, err = promote("status")
check("status", rc == 0 and "serving    version 1" in out and "fallback   none" in out, out + err)

gate = os.path.join(tmp.name, "gate.json")
with open(gate, "w") as f:
    json.dump({"max_tokens": 4, "cases": [{"name": "is the first file", "loops": True, "prompt": "Once", "checks": []}]}, f)
bad = os.path.join(tmp.name, "bad.json")
with open(bad, "w") as f:
    json.dump({"max_tokens": 4, "cases": [{"name": "nothing says this", "loops": True, "prompt": "Once",
                                          "checks": [{"contains": "no model says this"}]}]}, f)
rc, out, err = promote("-m", files[1], "-c", "512", "-t", "1", "--gates", bad)
check("a candidate that fails its gates is not promoted", rc == 1 and "not promoted" in err and ask() == ("1", answer), err)
rc, out, err = promote("-m", tmp.name + "/none.gguf", "--gates", "none")
check("a candidate that cannot be opened", rc == 1 and "cannot open" in err and ask() == ("1", answer), err)
rc, out, err = promote("-m", files[1], "--port", "1", "--gates", "none")
check("flags of the server belong to no version", rc == 1 and "--port" in err, err)
rc, out, err = promote("-m", files[1], "-c", "512", "-t", "1", "--gates", "none", "--rollback-on", "none")
new = ask()
check("a candidate is promoted", rc == 0 and new[1] != answer, err)
rc, out, err = promote("rollback")
check("and the one before comes back", rc == 0 and ask() == ("1", answer), out + err)
rc, out, err = promote("history")
check("history", rc == 0 and "promoted" in out and "rolled back" in out and "withdrawn" in out, out)

server.kill()

# Killed at random moments while versions change and clients ask: each answer is one of the two, whole, and says the right version;
# behind each start one of them serves. What a client sees otherwise is counted by what it was.
answers = {False: answer, True: new[1]}  # by whether the version came from the second file
CLIENTS = 2


def version_is_second(version):
    with open(state_dir + "/state.json") as f:
        for v in json.load(f)["versions"]:
            if str(v["id"]) == version:
                return files[1] in " ".join(v["flags"])
    return None


class Kills:
    """So many kills of a server that binds its port itself, or whose socket is kept open for it."""

    def __init__(self, kept):
        self.kept, self.ended, self.lock = kept, threading.Event(), threading.Lock()
        self.wrong, self.served, self.longest, self.texts = [], 0, 0.0, set()
        self.seen = {"refused": 0, "loading": 0, "broken": 0}

    def client(self):
        while not self.ended.is_set():
            began = time.monotonic()
            try:
                version, text = ask()
            except ConnectionRefusedError:
                self.note("refused")
            except AssertionError as e:
                self.note("loading")
                if b"loading" not in e.args[0]:
                    self.wrong.append(e.args[0])
            except (OSError, http.client.HTTPException):
                self.note("broken")
            else:
                second = version_is_second(version)
                with self.lock:
                    self.served += 1
                    self.texts.add(text)
                    self.longest = max(self.longest, time.monotonic() - began)
                if text not in answers.values() or (second is not None and text != answers[second]):
                    self.wrong.append((version, text))

    def note(self, what):
        with self.lock:
            self.seen[what] += 1
        time.sleep(0.005)

    def changes(self):
        while not self.ended.is_set():
            rc, _, _ = promote("-m", random.choice(files), "-c", "512", "-t", "1", "--gates", "none", "--rollback-on", "none")
            if rc != 0:  # the server was killed meanwhile: the candidate is one still
                promote(random.choice(("accept", "cancel")))
            time.sleep(0.4 * random.random())
            promote("rollback")
            time.sleep(0.2 * random.random())

    def run(self):
        server = Server(self.kept)
        threads = [threading.Thread(target=self.client) for _ in range(CLIENTS)] + [threading.Thread(target=self.changes)]
        for t in threads:
            t.start()
        for _ in range(kills):
            time.sleep(random.uniform(0.1, 1.5))
            server.kill()
            state = json.load(open(state_dir + "/state.json"))
            if state["serving"] == 0 or not any(v["id"] == state["serving"] for v in state["versions"]):
                self.wrong.append(state)
            server = Server(self.kept)
            self.texts.add(ask()[1])
        self.ended.set()
        for t in threads:
            t.join()
        server.kill()
        if not self.texts <= set(answers.values()):
            self.wrong.append(self.texts)
        return f"{kills} kills: {self.served} answers, {self.seen}, {len(self.texts)} of two versions answered, the longest wait {self.longest:.1f} s"


random.seed(3)
own = Kills(None)
what = own.run()
check("the port is the server's: " + what, not own.wrong, own.wrong[:3])
with socket.socket() as kept:
    kept.bind(("127.0.0.1", 0))
    kept.listen(128)
    port = kept.getsockname()[1]
    held = Kills(kept)
    what = held.run()
    check("the socket is kept open: " + what, not held.wrong, held.wrong[:3])
    check("none is refused, none is told to come again", held.seen["refused"] == held.seen["loading"] == 0)
    check("only what ran when the process was killed breaks", held.seen["broken"] <= kills * CLIENTS)
print("promote:", "FAILED " + ", ".join(failed) if failed else "all right")
sys.exit(1 if failed else 0)
