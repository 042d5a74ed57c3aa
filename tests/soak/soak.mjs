// A server under people: node soak.mjs CARAT MODEL SECONDS. Streams that must equal their solo runs, cancels, slow
// readers, garbage, one SIGTERM half-way, idle streams by the thousand; memory watched. No packages.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
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
  rss() {
    return Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${this.process.pid}/status`, "utf8"))[1]) / 1024;
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

async function get(path) {
  const r = await fetch(`http://127.0.0.1:${server.port}${path}`);
  return { status: r.status, text: await r.text() };
}
const metric = (text, name) => Number(new RegExp(`^${name}\\{[^}]*\\} (\\S+)`, "m").exec(text)[1]);

const words = ["Once upon a time", "def add(a, b):", "The sea is", "1, 2, 3, 4,", "Repeat: red green blue\n", "你好", "A list of animals:\n- cat\n- "];
const bodies = Array.from({ length: 28 }, (_, i) => ({
  prompt: words[i % words.length].repeat(1 + (i % 4) * 3), max_tokens: 4 + ((i * 37) % 120), seed: i,
  temperature: i % 3 === 0 ? 0 : 0.9, ...(i % 5 === 0 && { ignore_eos: true }), ...(i % 7 === 0 && { stop: ["the", "\n\n"] }),
  ...(i % 9 === 4 && { guided_regex: "[a-z ]{40,90}" }),
}));
const solo = [];
const counts = { whole: 0, wrong: 0, cancelled: 0, slow: 0, garbage: 0, refused: 0, cutBySigterm: 0, lost: 0 };
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
  const r = await fetch(`http://127.0.0.1:${server.port}/v1/completions`, { method: "POST", body: text });
  await r.text();
  assert.ok([400, 413].includes(r.status), `${r.status} for ${text.slice(0, 40)}`);
}
// Bytes that are no HTTP, or a body that never comes.
function raw(bytes) {
  return new Promise((resolve) => {
    const s = net.connect(server.port, "127.0.0.1", () => s.write(bytes));
    s.on("close", resolve);
    s.on("error", () => {});
    s.resume();
    setTimeout(() => s.destroy(), 300 + below(1000));
  });
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
  counts.garbage++;
  if (dice < 0.97) return post(garbage[below(garbage.length)]);
  return raw(["\x16\x03\x01nonsense\r\n\r\n", "POST /v1/completions HTTP/1.1\r\nContent-Length: 5000\r\n\r\n{", "GET / HTTP/9.9\r\n\r\n"][below(3)]);
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

const memory = [];
await server.start();
for (const b of bodies) solo.push(await stream(b));
const began = Date.now(), half = began + (seconds * 1000) / 2;
const watch = setInterval(() => {
  try {
    memory.push([Math.round((Date.now() - began) / 1000), Math.round(server.rss())]);
  } catch { /* between two servers */ }
}, 1000);

// First half, ended by SIGTERM while everybody is at it.
const first = crowd(half + 60_000);
await sleep(seconds * 500);
const firstRss = memory.at(-1)[1];
ending = true;
const asked = Date.now();
server.process.kill("SIGTERM");
const code = await server.ended, drained = (Date.now() - asked) / 1000;
await first;
assert.equal(code, 0, server.log);
assert.ok(drained < kGrace + 5, `${drained} s to end`);

// Second half on a new server.
ending = false;
memory.length = 0;
await server.start();
await crowd(Date.now() + seconds * 500);
const usage = await settled();
const idle = await idleStreams();
await settled();
await sleep(1500);
clearInterval(watch);
const rest = server.rss();
const fourth = memory[Math.floor(memory.length / 4)]?.[1], crowdEnd = memory[Math.min(memory.length - 1, Math.floor(seconds / 2))]?.[1];
server.process.kill("SIGTERM");
assert.equal(await server.ended, 0, server.log);
counts.wrong = wrong.length;
console.log(JSON.stringify({ seconds, streams: kStreams, ...counts, sigterm_exit: code, drained_s: drained, kv_usage_at_rest: usage,
  rss_mb: { end_of_first_half: firstRss, second_at_quarter: fourth, second_at_end: crowdEnd, at_rest: Math.round(rest) }, idle }, null, 1));
if (wrong.length) console.log(JSON.stringify(wrong.slice(0, 3)));
assert.equal(wrong.length, 0);
assert.ok(counts.whole > 100, "too little was done");
assert.ok(idle.held >= kIdle, `only ${idle.held} streams were held`);
process.exit(0);
