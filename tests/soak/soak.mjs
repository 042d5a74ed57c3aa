// A server under people: node soak.mjs CARAT MODEL SECONDS. Streams that must equal their solo runs, cancels, slow
// readers, garbage, connections broken off, idle streams by the thousand. A first server gets half of the time, at most
// two minutes, and ends by SIGTERM while all are at it; a second one the rest: its memory, descriptors and threads are
// watched, and after it nothing may be left open. No packages.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import http from "node:http";
import net from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { serverPort } from "../server_port.mjs";

const [carat, model, secondsText] = process.argv.slice(2);
const seconds = Number(secondsText ?? 120), kStreams = 64, kIdle = 1000, kGrace = 8;
let seed = 1;
const random = () => ((seed = (seed * 1103515245 + 12345) & 0x7fffffff) / 0x7fffffff);
const below = (n) => Math.floor(random() * n);

class Server {
  async start() {
    this.process = spawn(carat, ["serve", "-m", model, "--port", "0", "-c", "1024", "-np", "8", "--spec", "auto",
      "--max-queue", "2000", "--max-connections", "1200", "--grace", String(kGrace), "--timeout", "5", "--max-body", "100000"]);
    this.log = "";
    this.ended = new Promise((resolve) => this.process.on("exit", (code, signal) => resolve(signal ?? code)));
    this.process.stderr.on("data", (d) => (this.log = (this.log + d).slice(-4000)));
    this.port = await serverPort(this.process, this.ended, () => this.log);
  }
  status(name) {
    return Number(new RegExp(`^${name}:\\s+(\\d+)`, "m").exec(readFileSync(`/proc/${this.process.pid}/status`, "utf8"))[1]);
  }
  rss() {
    return this.status("VmRSS") / 1024;
  }
  descriptors() {
    return readdirSync(`/proc/${this.process.pid}/fd`).length;
  }
}
const server = new Server();

// The events' data of a streamed request. onData(text so far, response) may cancel by returning false.
function stream(body, onData = () => true) {
  return new Promise((resolve, reject) => {
    const request = http.request({ port: server.port, host: "127.0.0.1", path: "/v1/completions", method: "POST", agent: false });
    request.on("error", reject);
    request.on("response", (response) => {
      if (response.statusCode !== 200) {
        response.resume();
        return resolve({ status: response.statusCode });
      }
      let held = "", text = "", finish = null, error = null, done = false, stopped = false;
      response.setEncoding("utf8");
      response.on("data", (piece) => {
        held += piece;
        for (let end; (end = held.indexOf("\n\n")) >= 0; held = held.slice(end + 2)) {
          if (held[0] === ":") continue;  // a comment: the server is still at it
          const data = held.slice(6, end);
          if (data === "[DONE]") done = true;
          else {
            const event = JSON.parse(data);
            if (event.error) error = event.error.message;
            text += event.choices?.[0]?.text ?? "";
            finish = event.choices?.[0]?.finish_reason ?? finish;
          }
        }
        if (!stopped && onData(text, response) === false) {
          stopped = true;
          request.destroy();
          resolve({ cancelled: true, text });
        }
      });
      response.on("end", () => resolve({ status: 200, text, finish, error, done }));
      response.on("error", (e) => (stopped ? 0 : reject(e)));
    });
    request.end(JSON.stringify({ ...body, stream: true }));
  });
}

// Over connections that are kept from request to request.
const kept = new http.Agent({ keepAlive: true, timeout: 10_000 });
function ask(path, body) {
  return new Promise((resolve, reject) => {
    const request = http.request({ port: server.port, host: "127.0.0.1", path, method: body === undefined ? "GET" : "POST", agent: kept });
    request.on("error", reject);
    request.on("response", (response) => {
      let text = "";
      response.on("data", (d) => (text += d));
      response.on("end", () => resolve({ status: response.statusCode, text }));
      response.on("error", reject);
    });
    request.end(body);
  });
}
const get = (path) => ask(path);
const metric = (text, name) => Number(new RegExp(`^${name}\\{[^}]*\\} (\\S+)`, "m").exec(text)[1]);

const words = ["Once upon a time", "def add(a, b):", "The sea is", "1, 2, 3, 4,", "Repeat: red green blue\n", "你好", "A list of animals:\n- cat\n- "];
const bodies = Array.from({ length: 28 }, (_, i) => ({
  prompt: words[i % words.length].repeat(1 + (i % 4) * 3), max_tokens: 4 + ((i * 37) % 120), seed: i,
  temperature: i % 3 === 0 ? 0 : 0.9, ...(i % 5 === 0 && { ignore_eos: true }), ...(i % 7 === 0 && { stop: ["the", "\n\n"] }),
  ...(i % 9 === 4 && { guided_regex: "[a-z ]{40,90}" }),
}));
const solo = [];
const counts = { whole: 0, wrong: 0, cancelled: 0, slow: 0, garbage: 0, broken: 0, refused: 0, cutBySigterm: 0, lost: 0 };
const wrong = [];
let ending = false;

function compare(i, r) {
  if (r.status === 429 || r.status === 503) return counts.refused++;
  const cut = r.error !== null || !r.done;
  if (cut && ending) {
    if (!solo[i].text.startsWith(r.text)) wrong.push({ i, got: r.text, want: solo[i].text });
    return counts.cutBySigterm++;
  }
  counts.whole++;
  if (r.text !== solo[i].text || r.finish !== solo[i].finish || cut) wrong.push({ i, ...r, want: solo[i].text });
}

const garbage = [
  "", "{", "[]", "null", '{"prompt": 5}', '{"prompt": "x", "temperature": "hot"}', "\u0000\u0001\u0002", "[".repeat(5000),
  '{"prompt": "' + "x".repeat(90_000), '{"prompt": "x", "guided_regex": "(a+)+("}', '{"prompt": [1,2,99999999]}',
];
async function post(text) {
  const r = await ask("/v1/completions", text);
  assert.ok([400, 413].includes(r.status), `${r.status} for ${text.slice(0, 40)}`);
}
// Bytes that are no HTTP, or a request of which the rest never comes; the client hangs up or resets after a while.
function raw(bytes, ms = 300 + below(1000)) {
  return new Promise((resolve) => {
    const s = net.connect(server.port, "127.0.0.1", () => s.write(bytes));
    s.on("close", resolve);
    s.on("error", () => {});
    s.resume();
    setTimeout(() => (below(2) ? s.resetAndDestroy() : s.destroy()), ms);
  });
}
const noHttp = ["\x16\x03\x01nonsense\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n",
  "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
  "GET /health HTTP/1.1\r\nHost: localhost\r\n" + "a:b\r\n".repeat(3000)];
// A request cut anywhere, its head and an answer under way among the places.
function brokenOff() {
  const body = JSON.stringify({ ...bodies[below(bodies.length)], stream: below(2) === 0 });
  const all = `POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`;
  return raw(below(3) ? all.slice(0, below(all.length)) : all, below(400));
}

async function act() {
  const i = below(bodies.length), dice = random();
  if (dice < 0.62) return compare(i, await stream(bodies[i]));
  if (dice < 0.8) {
    const after = below(60);
    const r = await stream(bodies[i], (text) => text.length <= after);
    return r.cancelled ? counts.cancelled++ : compare(i, r);
  }
  if (dice < 0.88) {
    counts.slow++;
    const r = await stream(bodies[i], (_, response) => {
      response.pause();
      setTimeout(() => response.resume(), 20 + below(150));
    });
    return compare(i, r);
  }
  if (dice < 0.92) return counts.broken++, brokenOff();
  counts.garbage++;
  return dice < 0.97 ? post(garbage[below(garbage.length)]) : raw(noHttp[below(noHttp.length)]);
}

async function crowd(until) {
  const failures = [];
  const worker = async () => {
    while (Date.now() < until && !ending) {
      try {
        await act();
      } catch (e) {
        if (ending) counts.lost++;
        else failures.push(String(e.stack));
      }
    }
  };
  await Promise.all(Array.from({ length: kStreams }, worker));
  assert.deepEqual(failures.slice(0, 3), []);
}

async function settled() {
  for (let i = 0; i < 200; i++) {
    const { text } = await get("/metrics");
    if (metric(text, "vllm:num_requests_running") + metric(text, "vllm:num_requests_waiting") === 0)
      return metric(text, "vllm:kv_cache_usage_perc");
    await sleep(50);
  }
  throw new Error("requests are stuck");
}

// Streams that have begun and wait for a slot, while a few keep all slots.
async function idleStreams() {
  const before = server.rss(), endings = [];
  const busy = Array.from({ length: 8 }, () => {
    let stop = false;
    endings.push(() => (stop = true));
    return stream({ prompt: "x", ignore_eos: true, logit_bias: {}, max_tokens: 100000 }, () => !stop);
  });
  await sleep(300);
  const i = 1;
  const idle = Array.from({ length: kIdle }, () => stream({ ...bodies[i], max_tokens: 2, echo: true }));
  const results = Promise.all(idle);
  let held = 0;
  for (let n = 0; n < 100 && held < kIdle; n++) {
    await sleep(100);
    held = metric((await get("/metrics")).text, "vllm:num_requests_waiting");
  }
  await sleep(2000);
  const began = performance.now();
  assert.equal((await get("/health")).status, 200);
  const health = performance.now() - began, during = server.rss();
  // Streams of a full context end by themselves; what is left is told to.
  for (const end of endings) end();
  const all = await results;
  await Promise.all(busy);
  const want = (await stream({ ...bodies[i], max_tokens: 2, echo: true })).text;
  assert.ok(all.every((r) => r.status === 200 && r.done && r.text === want), "an idle stream ended wrongly");
  return { held, health_ms: Math.round(health), rss_before: Math.round(before), rss_during: Math.round(during) };
}

await server.start();
for (const b of bodies) solo.push(await stream(b));
const first = Math.min(seconds / 2, 120);

// The first server, ended by SIGTERM while everybody is at it.
const everybody = crowd(Date.now() + first * 1000 + 60_000);
await sleep(first * 1000);
ending = true;
const asked = Date.now();
server.process.kill("SIGTERM");
const code = await server.ended, drained = (Date.now() - asked) / 1000;
await everybody;
assert.equal(code, 0, server.log);
assert.ok(drained < kGrace + 5, `${drained} s to end`);

// The second.
ending = false;
await server.start();
await sleep(500);
const atStart = server.descriptors(), samples = [], began = Date.now();
const sample = () => samples.push({ s: Math.round((Date.now() - began) / 1000), rss: Math.round(server.rss()),
  descriptors: server.descriptors(), threads: server.status("Threads"), health: null });
const watch = setInterval(async () => {
  sample();
  const mine = samples.at(-1), asks = performance.now();
  await get("/health");
  mine.health = Math.round(performance.now() - asks);
}, 1000 * Math.min(10, Math.max(1, (seconds - first) / 10)));
await crowd(Date.now() + (seconds - first) * 1000);
clearInterval(watch);
const usage = await settled();
const idle = await idleStreams();
await settled();
kept.destroy();
for (let i = 0; i < 100 && server.descriptors() > atStart; ++i) await sleep(100);
sample();
const rest = samples.pop();
server.process.kill("SIGTERM");
assert.equal(await server.ended, 0, server.log);
counts.wrong = wrong.length;
// Warmed up after a tenth of the time.
const warm = samples.slice(Math.floor(samples.length / 10));
const of = (name) => ({ first: warm[0]?.[name], last: warm.at(-1)?.[name], most: Math.max(...warm.map((w) => w[name])), at_rest: rest[name] });
if (seconds >= 600) for (const w of samples) console.log(`${w.s} s: ${w.rss} MiB, ${w.descriptors} descriptors, ${w.threads} threads, /health ${w.health} ms`);
console.log(JSON.stringify({ seconds, streams: kStreams, ...counts, sigterm_exit: code, drained_s: drained, kv_usage_at_rest: usage,
  rss_mb: of("rss"), descriptors: { at_start: atStart, ...of("descriptors") }, threads: of("threads"), health_ms: of("health"), idle }, null, 1));
if (wrong.length) console.log(JSON.stringify(wrong.slice(0, 3)));
assert.equal(wrong.length, 0);
assert.ok(counts.whole > 100, "too little was done");
assert.ok(rest.descriptors <= atStart, `${rest.descriptors} descriptors are open, ${atStart} at the start`);
assert.ok(idle.held >= kIdle, `only ${idle.held} streams were held`);
process.exit(0);
