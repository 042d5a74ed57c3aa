"""Several servers as their operators run them: behind HAProxy and nginx with the files of deploy/, restarted under load, with a
router that listens to KV events, with one socket that outlives a process. run.py CARAT MODEL [PART...]; exit code 1 if a bound is missed.

Needs Debian's haproxy, nginx-light, prometheus (promtool), python3-zmq and python3-msgpack."""
import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.parse

CARAT, MODEL = sys.argv[1], sys.argv[2]
WORK = tempfile.mkdtemp(prefix="carat-machines-")
started, misses = [], []


def say(what, right, found):
    print(("ok    " if right else "MISS  ") + what + ": " + found, flush=True)
    if not right:
        misses.append(what)


def free_ports(n):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def request(port, method, path, body=None, timeout=120):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    c.request(method, path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json"})
    r = c.getresponse()
    return r.status, r.read().decode()


def chat(port, messages, tokens, stream=False, **more):
    body = {"messages": messages, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": stream, **more}
    return request(port, "POST", "/v1/chat/completions", body)


class Server:
    def __init__(self, port, *flags):
        self.port, self.flags = port, flags
        self.start()

    def start(self, **how):
        log = open(f"{WORK}/{self.port}.log", "a")
        self.process = subprocess.Popen([CARAT, "serve", "-m", MODEL, "-t", "1", "--port", str(self.port), "-c", "2048", *self.flags],
                                        stdout=log, stderr=log, **how)
        started.append(self.process)
        for _ in range(600):
            try:
                if request(self.port, "GET", "/ready")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        sys.exit(f"the server does not start: see {log.name}")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(60) != 0:
            say("a server's exit code", False, str(self.process.returncode))

    def restart(self):
        self.stop()
        self.start()


def balancer(name, port, command, text, change):
    """A file of deploy/ with other ports and paths."""
    for old, new in change:
        if old not in text:
            sys.exit(f"deploy/{name} has no {old}")
        text = text.replace(old, new)
    path = f"{WORK}/{name}-{port}"
    open(path, "w").write(text)
    p = subprocess.Popen(command + [path], stdout=open(path + ".log", "w"), stderr=subprocess.STDOUT)
    started.append(p)


def haproxy(port, servers, drop="", top="global"):
    text = open("deploy/haproxy.cfg").read().replace("\nglobal", "\n" + top, 1)
    balancer("haproxy.cfg", port, ["haproxy", "-db", "-f"], re.sub(drop, "", text, flags=re.M) if drop else text,
             [("127.0.0.1:8000", f"127.0.0.1:{port}"), ("127.0.0.1:8080", f"127.0.0.1:{servers[0]}"),
              ("127.0.0.1:8081", f"127.0.0.1:{servers[1]}")])
    wait_open(port)


# What a user writes who knows nginx and not Carat: retries as they are by default, which send no POST again.
NGINX_DEFAULTS = """pid /run/carat-nginx.pid; error_log /var/log/nginx/carat.log warn; events {} http { access_log off;
upstream carat { server 127.0.0.1:8080; server 127.0.0.1:8081; }
server { listen 127.0.0.1:8001; location / { proxy_pass http://carat; proxy_set_header Host localhost; } } }"""


def nginx(port, servers, text=None):
    work = f"{WORK}/nginx-{port}"
    os.makedirs(work, exist_ok=True)
    text = text or open("deploy/nginx.conf").read()
    temporary = "".join(f"{kind}_temp_path {work}/{kind}; " for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    balancer("nginx.conf", port, ["nginx", "-p", work, "-g", "daemon off;", "-c"], text,
             [("127.0.0.1:8001", f"127.0.0.1:{port}"), ("127.0.0.1:8080", f"127.0.0.1:{servers[0]}"),
              ("127.0.0.1:8081", f"127.0.0.1:{servers[1]}"), ("/run/carat-nginx.pid", f"{work}/pid"),
              ("/var/log/nginx/carat.log", f"{work}/log"), ("access_log off;", "access_log off; " + temporary)])
    wait_open(port)


def wait_open(port):
    for _ in range(200):
        try:
            if request(port, "GET", "/ready")[0] == 200:
                return
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(0.05)
    sys.exit(f"nothing answers through port {port}: see {WORK}")


def sessions(port, tag, count=8, turns=4):
    """The share of prompt tokens that need not be read: conversations that take turns."""
    order = random.Random(7)
    topics = ["rivers", "bees", "trains", "clocks", "bread", "stars", "chess", "soil"]
    history = [[{"role": "system", "content": f"[{tag}-{s}] You tell short tales about {topics[s % 8]}. "
                 + "Keep every tale calm and plain. " * 25}] for s in range(count)]
    asked = found = 0
    for s in [s for _ in range(turns) for s in order.sample(range(count), count)]:
        history[s].append({"role": "user", "content": "Tell the next part, please."})
        status, text = chat(port, history[s], 16)
        answer = json.loads(text)
        if status != 200:
            sys.exit(f"{status}: {text}")
        asked += answer["usage"]["prompt_tokens"]
        found += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        history[s].append({"role": "assistant", "content": answer["choices"][0]["message"]["content"] or ""})
    return found / asked


class Load:
    """Clients that ask until they are told to stop; what fails is written down."""

    def __init__(self, port, clients):
        self.port, self.on, self.answered, self.failed = port, True, 0, []
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.ask, args=(i,)) for i in range(clients)]
        for t in self.threads:
            t.start()

    def ask(self, i):
        n = 0
        while self.on:
            n += 1
            stream = n % 2 == 0
            try:
                status, text = chat(self.port, [{"role": "user", "content": f"client {i} asks number {n}"}], 12, stream)
                whole = status == 200 and '"error"' not in text and (not stream or text.rstrip().endswith("[DONE]"))
                wrong = None if whole else f"{status} {text[-200:]}"
            except (OSError, http.client.HTTPException) as e:
                wrong = repr(e)
            with self.lock:
                if wrong:
                    self.failed.append(wrong)
                else:
                    self.answered += 1

    def end(self):
        self.on = False
        for t in self.threads:
            t.join()
        return f"{self.answered} answered, {len(self.failed)} failed {self.failed[:3]}"


def told(admin, server, state):
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(admin)
        s.sendall(f"set server servers/{server} state {state}\n".encode())
        answer = s.recv(4096).strip()
    if answer:
        sys.exit(f"HAProxy's admin socket: {answer}")


def restart_under(loads, restart, pause=2):
    """restart(i): of the first server, then of the second, `pause` seconds later: the balancers see that the other one is back."""
    for i in range(2):
        time.sleep(pause)
        restart(i)
    time.sleep(2)
    for load in loads.values():
        load.on = False
    for name, load in loads.items():
        found = load.end()
        say(f"both servers restarted in turn behind {name}", not load.failed and load.answered > 5, found)


def behind_balancers():
    a, b, hashed, plain, through_nginx, defaults, asked = free_ports(7)
    flags = ("-np", "4", "--grace", "20", "--drain-delay", "3")
    servers = [Server(a, *flags), Server(b, *flags)]
    alone = sessions(a, "alone")
    haproxy(hashed, (a, b))
    together = sessions(hashed, "together")
    say("prompt tokens that were known behind HAProxy", together >= 0.70 and together >= alone - 0.02,
        f"{together:.3f}, with one server {alone:.3f}")
    haproxy(plain, (a, b), r"retry-on .*|option redispatch|retries 3|balance hash.*|hash-.*")
    nginx(through_nginx, (a, b))
    nginx(defaults, (a, b), NGINX_DEFAULTS)
    restart_under({"HAProxy": Load(hashed, 2), "HAProxy without retries, in turn": Load(plain, 2), "nginx": Load(through_nginx, 2)},
                  lambda i: servers[i].restart())
    # A server that refused a connection counts as failed for 10 s (fail_timeout): no other one may end meanwhile.
    restart_under({"nginx with its defaults": Load(defaults, 2)}, lambda i: servers[i].restart(), 11)

    # HAProxy is told first, by hand or by a script; neither checks nor retries nor a delay of the server's help.
    admin = f"{WORK}/admin"
    haproxy(asked, (a, b), r"retry-on .*|option redispatch|retries 3|balance hash.*|hash-.*|option httpchk.*|http-check .*| check$",
            f"global\n  stats socket {admin} level admin")

    def ask_first(i):
        told(admin, "ab"[i], "drain")
        time.sleep(1)
        servers[i].restart()
        told(admin, "ab"[i], "ready")

    for s in servers:
        s.flags = ("-np", "4", "--grace", "20")
        s.restart()
    restart_under({"HAProxy told by its admin socket": Load(asked, 4)}, ask_first)
    # What is at rest is told, however soon after the signal something comes.
    servers[0].flags = ("-np", "1", "--grace", "20")
    servers[0].restart()
    wrong = []
    for wait in (0.005, 0.05):
        c = socket.create_connection(("127.0.0.1", a), timeout=20)
        c.sendall(b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
        c.recv(4096)
        servers[0].process.send_signal(signal.SIGTERM)
        time.sleep(wait)
        body = b'{"prompt": "x", "max_tokens": 1}'
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        answer = c.recv(4096).split(b"\r\n")[0]
        # Either is an answer: on a busy machine the request may come before the signal is seen.
        if answer not in (b"HTTP/1.1 503 Service Unavailable", b"HTTP/1.1 200 OK"):
            wrong.append((wait, answer))
        c.close()
        servers[0].process.wait(60)
        servers[0].start()
    say("a request on a kept connection just after SIGTERM", not wrong, f"answered {wrong or 'always'}")
    for s in servers:
        s.stop()


def kv_events():
    import kv_check  # python3-zmq, python3-msgpack: of this part alone
    for form in ("map", "array"):
        port, events, replay = free_ports(3)
        server = Server(port, "-np", "2", "--kv-events", f"tcp://127.0.0.1:{events}", "--kv-events-replay", f"tcp://127.0.0.1:{replay}",
                        "--kv-events-format", form, "--prefix-cache-mib", "24")
        check, sub = kv_check.Check(), kv_check.subscribe(f"tcp://127.0.0.1:{events}")
        time.sleep(0.3)
        asked = []
        for s in range(20 if form == "map" else 4):
            messages = [{"role": "user", "content": f"[{s}] " + "A long beginning, which is worth some pages. " * 20}]
            chat(port, messages, 4)
            asked.append(messages)
            kv_check.take(check, sub, 5)
        kv_check.take(check, sub, 500)
        say(f"KV events as {form}: the contract", not check.faults and check.batches > 0,
            f"{check.batches} batches, {len(check.have)} blocks held, {check.faults or 'no fault'}")
        told = kept = 0
        wrong = []
        for messages in reversed(asked):  # the newest are there, the oldest are not
            tokens = json.loads(request(port, "POST", "/v1/chat/completions/render", {"messages": messages})[1])["token_ids"]
            believed = check.known(tokens[:-1])  # the last one is always read
            usage = json.loads(chat(port, messages, 1)[1])["usage"]
            if usage["prompt_tokens"] != len(tokens):
                wrong.append(("render", len(tokens), usage))
            # At least the last token is read, and what was read for this request is found by the next.
            found = usage["prompt_tokens_details"]["cached_tokens"] // 64 * 64
            if believed != found:
                wrong.append((believed, found, len(tokens)))
            told, kept = told + believed, kept + found
            kv_check.take(check, sub, 200)
        say(f"KV events as {form}: what a router believes is what is found", not wrong and told > 0 and not check.faults,
            f"{told} tokens told, {kept} found {wrong[:3] or ''}")
        if form == "map":
            say("KV events: an older part was forgotten", told < sum(1 for _ in asked) * 192, f"{told}")
        batches = kv_check.replayed(f"tcp://127.0.0.1:{replay}", 0)
        say(f"KV events as {form}: the replay", [n for n, _ in batches] == list(range(check.seq + 1)), f"{len(batches)} batches")
        again = kv_check.Check()
        for _, payload in batches:
            again.batch(kv_check.msgpack.unpackb(payload, strict_map_key=False))
        say(f"KV events as {form}: replayed, they say the same", again.have == check.have and not again.faults, f"{len(again.have)} blocks")
        server.stop()


def metrics():
    port, = free_ports(1)
    server = Server(port, "-np", "2", "--api-key", "secret", "--metrics-no-key")
    for when in ("before the first request", "after one"):
        status, text = request(port, "GET", "/metrics")
        p = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True)
        # promtool says that colons are for recording rules and that counters end with _total; vLLM's names are vLLM's.
        lint = [l for l in (p.stdout + p.stderr).splitlines()
                if l and "metric names should not contain ':'" not in l and "should not be a non-base unit" not in l
                and 'non-histogram and non-summary metrics should not have' not in l and "should have a unit" not in l]
        lint = [l for l in lint if "vllm:" not in l and "carat:" not in l or "parse" in l or "error" in l.lower()]
        series = len([l for l in text.splitlines() if l and not l.startswith("#")])
        say(f"promtool takes /metrics {when}", status == 200 and not lint and p.returncode in (0, 3), f"{series} series {lint[:3] or ''}")
        c = http.client.HTTPConnection("127.0.0.1", port)
        c.request("POST", "/v1/completions", '{"prompt": "x", "max_tokens": 3}', {"Authorization": "Bearer secret"})
        c.getresponse().read()
    server.stop()


def dashboard():
    """Every query of deploy/grafana.json against a Prometheus that scrapes a server."""
    port, prometheus = free_ports(2)
    server = Server(port, "-np", "2", "--spec", "ngram-mod")
    os.makedirs(f"{WORK}/prometheus", exist_ok=True)
    with open(f"{WORK}/prometheus/config.yml", "w") as f:
        f.write("global: {scrape_interval: 200ms}\nscrape_configs:\n- job_name: carat\n  static_configs:\n  "
                f"- targets: ['127.0.0.1:{port}']\n")
    started.append(subprocess.Popen(["prometheus", f"--config.file={WORK}/prometheus/config.yml", "--storage.tsdb.path=" + f"{WORK}/prometheus/data",
                                     f"--web.listen-address=127.0.0.1:{prometheus}"], stdout=open(f"{WORK}/prometheus/log", "w"),
                                    stderr=subprocess.STDOUT))
    wait_open_prometheus(prometheus)
    for _ in range(200):  # it looks for what to scrape every five seconds
        if '"1"]' in request(prometheus, "GET", "/api/v1/query?query=up")[1]:
            break
        time.sleep(0.1)
    for i in range(3):
        chat(port, [{"role": "user", "content": "Say after me: one two three one two three."}], 24)
        time.sleep(0.7)
    queries = [t["expr"] for p in json.load(open("deploy/grafana.json"))["panels"] for t in p["targets"]]
    empty, wrong = [], []
    for q in queries:
        q = q.replace("$model", ".*").replace("$__rate_interval", "5s")
        status, text = request(prometheus, "GET", "/api/v1/query?query=" + urllib.parse.quote(q))
        answer = json.loads(text)
        if status != 200 or answer["status"] != "success":
            wrong.append(text)
        elif not answer["data"]["result"] and "_per_pos_" not in q:  # no draft may have been right
            empty.append(q)
    say("Grafana's queries against a Prometheus", not wrong and not empty, f"{len(queries)} queries {wrong[:2] or ''} {empty or ''}")
    server.stop()


def wait_open_prometheus(port):
    for _ in range(300):
        try:
            if request(port, "GET", "/-/ready")[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.05)
    sys.exit(f"Prometheus does not start: see {WORK}")


def handed_over():
    port, = free_ports(1)
    listener = socket.create_server(("127.0.0.1", port), backlog=100)
    listener.set_inheritable(True)

    def start():
        # As systemd does it: the socket is descriptor 3, and two variables say so.
        script = 'export LISTEN_FDS=1 LISTEN_PID=$$; exec "$0" "$@"'
        log = open(f"{WORK}/handed.log", "a")
        p = subprocess.Popen(["sh", "-c", script, CARAT, "serve", "-m", MODEL, "-t", "1", "-c", "512", "--port", "1"],
                             stdout=log, stderr=log, close_fds=False, preexec_fn=lambda: os.dup2(listener.fileno(), 3))
        started.append(p)
        return p

    first = start()
    wait_open(port)
    load = Load(port, 2)
    time.sleep(1)
    first.send_signal(signal.SIGTERM)
    first.wait(60)
    start()
    wait_open(port)
    time.sleep(1)
    found = load.end()
    say("a socket that outlives its server: restarted under load", not load.failed and load.answered > 2, found)


PARTS = {"balancers": behind_balancers, "kv": kv_events, "metrics": metrics, "dashboard": dashboard, "socket": handed_over}


def run(parts):
    for part in parts:
        began = time.time()
        try:
            PARTS[part]()
        except BaseException as e:  # sys.exit, too: it would end this thread alone
            traceback.print_exc()
            say(part, False, repr(e))
        print(f"      {part}: {time.time() - began:.1f} s", flush=True)


try:
    wanted = sys.argv[3:] or list(PARTS)
    # The first one waits most of its time.
    threads = [threading.Thread(target=run, args=(p,)) for p in ([p for p in wanted if p == "balancers"],
                                                                 [p for p in wanted if p != "balancers"])]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
finally:
    for p in started:
        if p.poll() is None:
            p.kill()
            p.wait()
if misses:
    sys.exit(f"ERROR: {len(misses)} missed; logs in {WORK}")
shutil.rmtree(WORK)
