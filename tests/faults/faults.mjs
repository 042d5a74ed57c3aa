// What fails beneath a server, and what then happens: node faults.mjs CARAT MODEL. A line a fault, with the outcome seen.
// No packages.
import assert from "node:assert/strict";
import { execFileSync, spawn, spawnSync } from "node:child_process";
import { copyFileSync, mkdtempSync, openSync, readdirSync, rmSync, statSync, truncateSync, writeSync } from "node:fs";
import http from "node:http";
import net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { serverPort } from "../server_port.mjs";

const [carat, model] = process.argv.slice(2);
const scratch = mkdtempSync(join(tmpdir(), "carat-faults-"));
const say = (fault, outcome) => console.log(`${fault}: ${outcome}`);
const quoted = (args) => args.map((a) => `'${a}'`).join(" ");

// A server under a limit of the shell's ulimit ("" for none).
class Server {
  static start(limit, ...flags) {
    return Server.of(model, limit, ...flags);
  }
  static async of(file, limit, ...flags) {
    const s = new Server();
    s.process = spawn("sh", ["-c", `${limit ? `ulimit ${limit}; ` : ""}exec ${quoted([carat, "serve", "-m", file, "--port", "0",
      "-c", "2048", "-np", "2", "-t", "2", ...flags])}`]);
    s.log = "";
    s.process.stderr.on("data", (d) => (s.log += d));
    s.ended = new Promise((resolve) => s.process.on("exit", (code, signal) => resolve(signal ?? code)));
    s.port = await serverPort(s.process, s.ended, () => s.log);
    return s;
  }
  // Status and body; status 0: the connection ended without an answer.
  ask(path, body) {
    return new Promise((resolve) => {
      const r = http.request({ port: this.port, host: "127.0.0.1", path, method: body === undefined ? "GET" : "POST", agent: false });
      r.on("error", () => resolve({ status: 0 }));
      r.on("response", (response) => {
        let text = "";
        response.on("data", (d) => (text += d));
        response.on("end", () => resolve({ status: response.statusCode, text }));
        response.on("error", () => resolve({ status: 0 }));
      });
      r.end(typeof body === "object" ? JSON.stringify(body) : body);
    });
  }
  async well() {
    const r = await this.ask("/v1/completions", { prompt: "Hello", max_tokens: 3 });
    assert.equal(r.status, 200, `${r.text}\n${this.log}`);
  }
  async metric(name) {
    return Number(new RegExp(`^${name}\\{[^}]*\\} (\\S+)`, "m").exec((await this.ask("/metrics")).text)[1]);
  }
  async until(what, seconds = 3) {
    for (const end = Date.now() + seconds * 1000; Date.now() < end; await sleep(20)) if (await what()) return true;
    return false;
  }
  idle() {
    return this.until(async () => (await this.metric("vllm:num_requests_running")) === 0);
  }
  sockets() {
    return readdirSync(`/proc/${this.process.pid}/fd`).length;
  }
  async end() {
    this.process.kill("SIGTERM");
    assert.equal(await this.ended, 0, this.log);
  }
}
const post = (path, body) => `POST ${path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`;
const connect = (port) => new Promise((resolve) => {
  const s = net.connect(port, "127.0.0.1", () => resolve(s));
  s.on("error", () => {});
});

async function fullDisk() {
  const texts = join(scratch, "texts"), slots = join(scratch, "slots");
  execFileSync("mkdir", [texts, slots]);
  const s = await Server.start("-f 64", "--prefix-cache-mib", "64", "--prefix-cache-dir", texts, "--slot-save-path", slots);
  await s.ask("/v1/completions", { prompt: "one two three ".repeat(40), max_tokens: 4 });
  const saved = await s.ask("/slots/0?action=save", { filename: "a.kv" });
  assert.equal(saved.status, 500, saved.text);
  assert.match(saved.text, /cannot write .*free some space/);
  say("full disk, a slot is saved", `500, ${JSON.parse(saved.text).error.message.replace(/'.*?'/, "FILE")}`);
  assert.ok(await s.until(() => /the prefix cache could not save a text/.test(s.log)), s.log);
  await s.well();
  await s.end();
  assert.deepEqual([...readdirSync(texts), ...readdirSync(slots)], []);
  say("full disk, texts are kept on disk", "a warning in the log; answers go on; no file and no half of one is left");
  const out = join(scratch, "out.gguf");
  const r = spawnSync("sh", ["-c", `ulimit -f 64; exec ${quoted([carat, "convert", model, out, "--type", "q8_0"])}`], { encoding: "utf8" });
  assert.equal(r.status, 1);
  assert.match(r.stderr, /error: cannot write/);
  assert.deepEqual(readdirSync(scratch).filter((n) => n.startsWith("out")), []);
  say("full disk, convert", "one error and a hint, exit code 1, no file is left");
}

async function noMemory() {
  const codes = new Set();
  // With too little for its libraries, no code of ours runs: the least with which the program says its version.
  const starts = (mb) => spawnSync("sh", ["-c", `ulimit -v ${mb * 1024}; exec ${quoted([carat, "--version"])}`]).status === 0;
  let least = Math.ceil(statSync(carat).size / 2 ** 20);
  while (least < 200 && !starts(least)) least += 4;
  for (const mb of [least + 4, least + 20, least + 60, 200, 300, 500]) {
    const r = spawnSync("sh", ["-c", `ulimit -v ${mb * 1024}; exec ${quoted([carat, "serve", "-m", model, "--port", "0", "-t", "2", "-c", "65536",
      "-np", "16"])}`], { encoding: "utf8", timeout: 20000 });
    codes.add(r.status);
    assert.match(r.stderr, /^error: .+/m, `${mb} MB: ${r.stderr}`);
  }
  assert.deepEqual([...codes], [1]);
  say("too little memory to load (from the least address space in which it starts, to 500 MB)", "one error and a hint, exit code 1");

  const s = await Server.start("");
  await s.well();
  const long = await s.ask("/v1/completions", { prompt: "word ".repeat(4000) });
  assert.equal(long.status, 400);
  say("a prompt longer than the context", `400, ${JSON.parse(long.text).error.code}`);
  const size = Number(/VmSize:\s+(\d+)/.exec(execFileSync("cat", [`/proc/${s.process.pid}/status`], { encoding: "utf8" }))[1]) * 1024;
  const limit = (bytes) => execFileSync("prlimit", ["--pid", String(s.process.pid), `--as=${bytes}:`]);
  limit(size + (20 << 20));
  const big = JSON.stringify({ prompt: "x".repeat(30 << 20) });
  const all = await Promise.all([s.ask("/v1/completions", big), s.ask("/v1/completions", big), s.ask("/v1/completions", big),
    ...Array.from({ length: 40 }, () => s.ask("/v1/completions", { prompt: "Hi", max_tokens: 2 }))]);
  const count = {};
  for (const r of all) count[r.status] = (count[r.status] ?? 0) + 1;
  limit("unlimited");
  await s.well();
  for (const status of Object.keys(count)) assert.ok(["0", "200", "500", "503"].includes(status), `${status}: ${s.log}`);
  say("no memory for 40 connections and bodies of 30 MB beside them", `statuses ${JSON.stringify(count)} (0: hung up); well again after`);
  await s.end();
}

async function closedSockets() {
  const s = await Server.start("", "--timeout", "5");
  await s.well();
  const before = s.sockets();
  const endless = JSON.stringify({ prompt: "x", max_tokens: 2000, ignore_eos: true, stream: true });
  for (const [how, close] of [["closed", (c) => c.destroy()], ["reset", (c) => c.resetAndDestroy()]]) {
    const streams = await Promise.all(Array.from({ length: 6 }, async () => {
      const c = await connect(s.port);
      c.write(post("/v1/completions", endless));
      return c;
    }));
    await Promise.all(streams.slice(0, 2).map((c) => new Promise((resolve) => c.once("data", resolve))));
    for (const c of streams) close(c);
    const began = Date.now();
    assert.ok(await s.idle(), "they still run");
    say(`sockets ${how} in the middle of streams, running and waiting`, `slots free after ${Date.now() - began < 500 ? "less than half a second" : Date.now() - began + " ms"}`);
    for (const part of ["POST /v1/comp", "POST /v1/completions HTTP/1.1\r\nContent-Length: 5000\r\n\r\n{\"prompt\": \"", post("/v1/completions", "{}").slice(0, -1)]) {
      const c = await connect(s.port);
      c.write(part);
      await sleep(20);
      close(c);
    }
    await s.well();
  }
  assert.ok(await s.until(() => s.sockets() <= before), `${s.sockets()} files are open, ${before} before`);
  say("sockets closed and reset in the middle of request lines, headers and bodies", "nothing stays open, answers go on");
  await s.end();
}

async function signals() {
  const s = await Server.start("");
  const stream = await connect(s.port);
  stream.write(post("/v1/completions", JSON.stringify({ prompt: "x", max_tokens: 100000, ignore_eos: true, stream: true })));
  await new Promise((resolve) => stream.once("data", resolve));
  s.process.kill("SIGTERM");
  assert.ok(await s.until(async () => (await s.ask("/ready")).status === 503));
  assert.equal((await s.ask("/v1/completions", { prompt: "x" })).status, 503);
  s.process.kill("SIGTERM");
  assert.equal(await s.ended, "SIGTERM");
  say("SIGTERM while a stream runs, and another", "new requests get 503; the second ends it at once");
  const loading = spawn(carat, ["serve", "-m", model, "--port", "0"]);
  await new Promise((resolve) => loading.stderr.once("data", resolve));
  loading.kill("SIGTERM");
  const code = await new Promise((resolve) => loading.on("exit", (c, signal) => resolve(signal ?? c)));
  assert.equal(code, 0);
  say("SIGTERM while the model loads, or just after", "exit code 0");
}

// The file of the model is written to, or cut, while it is served.
async function changedModel() {
  const changes = {
    "written to": (file) => writeSync(openSync(file, "r+"), Buffer.alloc(4096, 0x5a), 0, 4096, statSync(file).size >> 1),
    cut: (file) => truncateSync(file, 1 << 20),
  };
  for (const [how, change] of Object.entries(changes)) {
    const file = join(scratch, "served.gguf");
    copyFileSync(model, file);
    const s = await Server.of(file, "");
    await s.well();
    const body = { prompt: "x", max_tokens: 2000, ignore_eos: true, stream: true };
    const stream = s.ask("/v1/completions", body);
    await s.until(async () => (await s.metric("vllm:num_requests_running")) === 1);
    change(file);
    assert.ok(await s.until(async () => (await s.ask("/health")).status === 503), s.log);
    for (const [path, json] of [["/health"], ["/live"], ["/v1/completions", { prompt: "x", max_tokens: 1 }]]) {
      const r = await s.ask(path, json);
      assert.equal(r.status, 503, r.text);
      assert.equal(JSON.parse(r.text).error.code, "model_file_changed");
    }
    assert.match((await stream).text, /while it was in use, so nothing computed since counts/);
    s.process.kill("SIGTERM");
    assert.equal(await s.ended, 0, s.log);
    say(`the model's file is ${how} while it is served`, "streams end with an error, requests and /health get 503 model_file_changed; SIGTERM: exit code 0");
    rmSync(file);
  }
}

// What serves as a model or a directory and is none.
function oddFiles() {
  const pipe = join(scratch, "pipe.gguf");
  execFileSync("mkfifo", [pipe]);
  const none = join(scratch, "none");
  for (const [what, code, ...args] of [["a pipe as the model", 1, "-m", pipe], ["a slot directory that is not there", 2, "-m", model, "--slot-save-path", none]]) {
    const r = spawnSync(carat, ["serve", "--port", "0", ...args], { encoding: "utf8", timeout: 20000 });
    assert.equal(r.status, code, `${what}: ${r.stderr}`);
    assert.match(r.stderr, /^error: .+\nhint: .+/m);
    say(what, `one error and a hint at the start, exit code ${code}`);
  }
}

try {
  for (const fault of [fullDisk, noMemory, closedSockets, signals, changedModel, oddFiles]) await fault();
} finally {
  rmSync(scratch, { recursive: true });
}
