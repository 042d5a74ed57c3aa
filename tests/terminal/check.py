#!/usr/bin/env python3
"""`carat run` in a terminal (a pty): what is typed, pasted, taken from the history and interrupted, against a server that keeps
what it was asked. Usage: tests/terminal/check.py CARAT"""
import base64, http.server, json, os, pty, select, signal, subprocess, sys, threading, time

CARAT = os.path.abspath(sys.argv[1])
asked = []


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        body = b'{"object": "list", "data": [{"id": "mock", "object": "model"}]}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked.append(request["messages"][-1]["content"])
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for choice in ({"index": 0, "delta": {"content": "ok"}, "finish_reason": None}, {"index": 0, "delta": {}, "finish_reason": "stop"}):
            self.wfile.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
        self.wfile.write(b"data: [DONE]\n\n")


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
URL = f"http://127.0.0.1:{server.server_port}"


class Terminal:
    def __init__(self, **locale):
        asked.clear()
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            for name in ("LC_ALL", "LC_CTYPE", "LANG"):
                os.environ.pop(name, None)
            os.environ.update(TERM="xterm-256color", **locale)
            os.execv(CARAT, [CARAT, "--log-level", "warn", "run", "--url", URL])
        self.screen = b""
        self.wait(lambda: b"> " in self.screen)

    def wait(self, done, seconds=100):
        end = time.time() + seconds
        while not done():
            if time.time() > end:
                raise SystemExit(f"nothing came in {seconds} s; asked {asked}, screen {self.screen[-400:]!r}")
            if select.select([self.fd], [], [], 0.05)[0]:
                try:
                    self.screen += os.read(self.fd, 65536)
                except OSError:
                    return

    def type(self, keys):
        """Keys, and what they show: the program reads them one by one."""
        before = len(self.screen)
        os.write(self.fd, keys)
        self.wait(lambda: len(self.screen) > before)

    def say(self, keys):
        """Keys that send a message; waits for the next prompt."""
        n, at = len(asked) + 1, len(self.screen)
        os.write(self.fd, keys)
        self.wait(lambda: len(asked) >= n and self.screen.rfind(b"> ") > self.screen.find(b"ok", at) > at)

    def end(self):
        os.write(self.fd, b"\x04")
        self.wait(lambda: os.waitpid(self.pid, os.WNOHANG)[0] != 0)
        os.close(self.fd)


def check(what, got, want):
    if got != want:
        raise SystemExit(f"{what}: {got!r}, expected {want!r}")
    print(what)


TEXT = "Gr\u00fc\u00dfe \u65e5\u672c\u8a9e \U0001F44D e\u0301a end"
for name, locale in (("C.UTF-8", {"LANG": "C.UTF-8"}), ("POSIX", {"LC_ALL": "POSIX"}), ("no locale", {})):
    t = Terminal(**locale)
    t.say(TEXT.encode() + b"\r")
    check(f"typed text, {name}", asked, [TEXT])
    t.end()

t = Terminal(LANG="C.UTF-8")
t.type(b"half")
t.type(b"\x03")
t.say(b"next\r")
check("Ctrl-C empties the line", asked, ["next"])
t.type("\x1b[200~p1 \u00e9\rp2\n\np3\r\x1b[201~".encode())
t.say(b"!\r")
check("pasted lines are one message", asked[1:], ["p1 \u00e9\np2\n\np3!"])
t.say(b"\x1b[A\r")
check("arrow up brings the message before", asked[2:], ["p1 \u00e9\np2\n\np3!"])
t.say(b"\x1b[A\x1b[A\r")
check("twice: the one before that", asked[3:], ["next"])
t.type(b"one\\\r")
t.say(b"two\r")
check("a backslash continues the line", asked[4:], ["one\ntwo"])
t.type("\u00e4b\u00f6\x7f\x7f".encode())  # backspace takes characters, not bytes
t.say(b"c\r")
check("backspace", asked[5:], ["\u00e4c"])
os.write(t.fd, f"/image {__file__}\r".encode())
t.wait(lambda: b"shown with the next message" in t.screen)
t.say(b"what is it?\r")
data = "data:application/octet-stream;base64," + base64.b64encode(open(__file__, "rb").read()).decode()
check("/image", asked[6:], [[{"type": "image_url", "image_url": {"url": data}}, {"type": "text", "text": "what is it?"}]])
os.write(t.fd, b"/image nowhere.png\r")
t.wait(lambda: b"nowhere.png" in t.screen.split(b"/image nowhere.png")[-1])
t.say(b"and now?\r")
check("a picture that is not there", asked[7:], ["and now?"])
os.write(t.fd, f"/audio {__file__}\r".encode())
t.wait(lambda: b"played with the next message" in t.screen)
t.say(b"who speaks?\r")
data = base64.b64encode(open(__file__, "rb").read()).decode()
check("/audio", asked[8:], [[{"type": "input_audio", "input_audio": {"data": data, "format": "mp3"}}, {"type": "text", "text": "who speaks?"}]])
check("pasting is marked while a line is edited alone", t.screen.count(b"\x1b[?2004h") - t.screen.count(b"\x1b[?2004l"), 1)
t.end()

with open("/dev/full", "w") as full:
    for args in (["run", "--url", URL, "-p", "hi"], ["--version"], ["convert", "--help"]):
        p = subprocess.run([CARAT, "--log-level", "error", *args], stdout=full, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=60)
        check(f"full output, {args[0]}", (p.returncode, b"could not be written" in p.stderr), (1, True))
server.shutdown()
