// Pictures of every view, to be looked at: node shots.mjs FOLDER [ONLY]. In three languages, light and dark, on a desktop and on a
// telephone; of web/dist, beside a server of this script's own that answers the same each time.
import { readFileSync } from "node:fs";
import { mkdir } from "node:fs/promises";
import http from "node:http";
import { chromium } from "playwright-core";
import { circle, png, wav } from "./pictures.mjs";
import { words } from "./shots_words.mjs";

const [folder = "/tmp/page/shots", only = ""] = process.argv.slice(2);
const types = { js: "text/javascript", css: "text/css", html: "text/html", svg: "image/svg+xml", png: "image/png", webmanifest: "application/manifest+json", txt: "text/plain" };
const languageOf = (r) => Object.keys(words).find((l) => (r.headers["accept-language"] ?? "").startsWith(l)) ?? "en";
const models = [["carat-demo", "loaded", 19_300_000, "Q5_K", 4096], ["gemma-4-26b-a4b-it", "loaded", 17_040_000_000, "Q5_K", 131_072],
  ["qwen3.6-27b", "loading", 18_900_000_000, "Q4_K", 262_144], ["gemma-4-e4b-it", "unloaded", 4_970_000_000, "Q8_0", 131_072], ["a-model-with-a-rather-long-name-of-its-publisher-00001", "failed", 733_000_000, "F16", 8192]]
  .map(([id, value, size, quantization_level, n_ctx_train]) => ({ id, meta: { size, quantization_level, n_ctx_train }, status: { value },
    ...(value === "loaded" ? { max_model_len: n_ctx_train } : {}), architecture: { input_modalities: ["text", "image", "audio"] } }));
const params = { temperature: 0.7, top_p: 0.95, top_k: 64, min_p: 0, repeat_penalty: 1, max_tokens: -1 };
const props = { build_info: "carat 0.9", default_generation_settings: { n_ctx: 32_768, params }, kv_cache: { k: "q8_0", v: "q8_0" }, modalities: { vision: true, audio: true } };
const speculation = { accepted_length: 2.31, draft_ms: 41.2, verify_ms: 702.5, sample_ms: 12.4,
  accepted_per_pos: [0.83, 0.61, 0.44, 0.29], accepted_per_pos_given_previous: [0.83, 0.73, 0.72, 0.66] };
const timings = { prompt_n: 38, prompt_ms: 92.4, cache_n: 211, predicted_n: 187, predicted_ms: 1804, predicted_per_second: 103.6, energy_j: 128, energy_j_per_token: 0.68, speculation };

// Tokens of a text, and the steps they came in: drafted, some rejected, and plain.
const tokensOf = (text) => text.match(/\s*[\p{L}\p{N}_]{1,5}|\s*[^\p{L}\p{N}\s]|\s+/gu) ?? [];
function stepsOf(text) {
  const left = tokensOf(text), steps = [], drafters = ["mtp", "suffix", null, "mtp", "grammar", "mtp"];
  for (let i = 0; left.length; i++) {
    const drafter = drafters[i % drafters.length], accepted = drafter ? Math.min(left.length - 1, i % 4) : 0;
    const step = { tokens: left.splice(0, accepted + 1) };
    steps.push(drafter ? { ...step, drafter, drafted: 4, accepted, rejected: [" the", " rows"].slice(0, Math.min(2, 4 - accepted)) } : step);
  }
  return steps;
}

const chunk = (delta, more = {}) => `data: ${JSON.stringify({ choices: [{ index: 0, delta, finish_reason: null }], ...more })}\n\n`;
async function answer(request, reply) {
  let text = "";
  for await (const part of request) text += part;
  const asked = JSON.parse(text), say = words[languageOf(request)];
  const last = asked.messages.filter((m) => m.role === "user").at(-1).content;
  const kind = JSON.stringify(last);
  reply.writeHead(200, { "Content-Type": "text/event-stream" });
  let content = kind.includes("weather") ? "" : asked.speculation === false ? say.other : say.answer;
  if (kind.includes("image_url")) content = say.seen;
  if (!kind.includes("image_url")) reply.write(chunk({ reasoning_content: say.thought }));
  if (kind.includes("weather")) reply.write(chunk({ tool_calls: [{ index: 0, id: "call_1", function: { name: "weather", arguments: '{"city": "Taipei", "days": 3}' } }] }));
  const list = tokensOf(content);
  const logprobs = { content: list.map((token, i) => ({ token, logprob: -0.1 - (i % 7) / 9, top_logprobs: [{ token, logprob: -0.1 }, { token: " two", logprob: -2.4 }, { token: " a", logprob: -3.1 }] })) };
  if (asked.logprobs) reply.write(`data: ${JSON.stringify({ choices: [{ index: 0, delta: { content }, finish_reason: null, logprobs }] })}\n\n`);
  else for (const token of list) reply.write(chunk({ content: token }));
  const without = { ...timings, predicted_per_second: 45.1, speculation: undefined };
  const finish_reason = kind.includes("weather") ? "tool_calls" : kind.includes("length") ? "length" : "stop";
  reply.write(`data: ${JSON.stringify({ choices: [], steps: stepsOf(content) })}\n\n`);
  reply.write(`data: ${JSON.stringify({ choices: [{ index: 0, delta: {}, finish_reason }], timings: asked.speculation === false ? without : timings, usage: { prompt_tokens: 249, completion_tokens: 187 } })}\n\n`);
  reply.end("data: [DONE]\n\n");
}

let scrapes = 0;
const metrics = () => {
  const n = ++scrapes;
  return `vllm:generation_tokens_total ${4000 + n * 96 + (n % 5) * 30}\nvllm:prompt_tokens_total ${9000 + n * 210}\nvllm:num_requests_running 2\nvllm:num_requests_waiting 1
vllm:kv_cache_usage_perc 0.34\nvllm:prefix_cache_hits_total 846\nvllm:prefix_cache_queries_total 1000\nvllm:spec_decode_num_drafts_total ${100 + n}
carat:spec_plain_steps_total 20\nvllm:spec_decode_num_accepted_tokens_total ${190 + n}\ncarat:energy_joules_total ${n * 71}
` + [0.83, 0.61, 0.44, 0.29].map((v, i) => `vllm:spec_decode_num_accepted_tokens_per_pos_total{position="${i}"} ${v * 100}\ncarat:spec_num_tried_tokens_per_pos_total{position="${i}"} ${100 - i * 16}\n`).join("");
};

const server = http.createServer(async (request, reply) => {
  const path = new URL(request.url, "http://x").pathname, json = (v) => reply.writeHead(200, { "Content-Type": "application/json" }).end(JSON.stringify(v));
  if (path === "/v1/chat/completions") return answer(request, reply);
  if (path === "/v1/models") return json({ data: models });
  if (path === "/props") return json(props);
  if (path === "/metrics") return reply.end(metrics());
  if (path === "/tokenize") return json({ tokens: Array.from({ length: 57 }, (_, i) => i) });
  if (path === "/apply-template") return json({ prompt: `<bos><|turn>user\n${words[languageOf(request)].question}<turn|>\n<|turn>model\n` });
  const name = path === "/" ? "index.html" : path.slice(1);
  try {
    const text = readFileSync(new URL(`../../web/dist/${name}`, import.meta.url));
    reply.writeHead(200, { "Content-Type": types[name.split(".").at(-1)] ?? "text/plain" }).end(text);
  } catch {
    reply.writeHead(404).end();
  }
});
await new Promise((r) => server.listen(0, "127.0.0.1", r));
const url = `http://127.0.0.1:${server.address().port}`;

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"] });
const settle = (page) => page.waitForTimeout(250);
const icon = (page, path) => page.locator(`header button:has(path[d^="${path}"])`);  // whatever the language
const icons = { settings: "M4 7h9", live: "M3 12h4", search: "M11 4a7", menu: "M3 6h18", help: "M9 9a3" };
async function ask(page, text) {
  await page.fill("#message", text);
  await page.press("#message", "Enter");
  await page.waitForSelector("article.assistant:last-of-type:not(.growing) .actions");
}
const top = (page) => page.evaluate(() => (document.querySelector(".scroll").scrollTop = 0));
const record = (kind, settings, figures) => ({ schema: "carat.record", version: 1, kind, time: "2026-11-20T08:00:00Z", carat: "0.9 (4c6117d)", model: { name: "gemma-4-26b-a4b-it" }, settings, figures });
const records = [record("gate", { suite: "promotion", case: "marker-zh" }, { passed: true, faults: [], decode_tps: 103.6 }),
  record("gate", { suite: "promotion", case: "facts-restated" }, { passed: true, faults: [], decode_tps: 99.1 }),
  record("gate", { suite: "promotion", case: "loops" }, { passed: false, faults: ["it repeats a line 6 times"], decode_tps: 97.5 }),
  ...[4096, 32_768, 131_072].flatMap((ctx) => ["code", "prose", "chat"].map((prompts, i) => record("regime", { ctx, prompts, config: ["mtp 4", "suffix 8", "mtp 2, q8_0 caches"][(i + ctx) % 3] },
    { decode_tps: 121.3 - ctx / 4000 - i * 9, plain_tps: 52.1 - ctx / 9000 })))];

// Each view begins on a page of its own with one chat.
const views = {
  async empty() {},
  async conversation(page, say) {
    await ask(page, say.question);
    await page.click("details.thinking summary");
    await settle(page);
    await top(page);
  },
  async end(page, say) {
    await ask(page, say.question);
    await ask(page, `${say.next} (length)`);
    await page.click('article.assistant button:has(path[d^="M20 11a8"]) >> nth=-1');
    await page.waitForSelector(".branches");
    await page.fill("#message", say.next);
    await page.waitForSelector(".meter");
    await page.waitForTimeout(600);
  },
  async settings(page) { await icon(page, icons.settings).click(); },
  async settings_end(page) {
    await icon(page, icons.settings).click();
    await page.evaluate(() => (document.querySelector(".panel").scrollTop = 1e6));
  },
  async live(page, say) {
    await ask(page, say.question);
    await icon(page, icons.live).click();
    await page.waitForTimeout(3200);
  },
  async xray(page, say) {
    await ask(page, say.question);
    await page.click('article.assistant button[aria-pressed]:has(path[d^="M4 8V4h4"])');
    await page.click(".receipt summary >> nth=0");
    await page.click(".same-row button >> nth=0");
    await page.waitForFunction(() => /\d/.test(document.querySelector(".same-row .verdict")?.textContent ?? ""));
    await settle(page);
    await page.evaluate(() => document.querySelector(".xray").scrollIntoView());
  },
  async xray_end(page, say) {
    await views.xray(page, say);
    await page.click(".raw summary");
    await settle(page);
    await page.evaluate(() => document.querySelector(".xray .spark").scrollIntoView());
  },
  async compare(page, say) {
    await ask(page, say.question);
    await page.click('article.assistant .actions button:nth-last-of-type(2)');
    await page.click(".compare .primary");
    await page.waitForFunction(() => document.querySelector(".compare .verdict").textContent);
  },
  async records(page) {
    await icon(page, icons.live).click();
    await page.click(".panel p > button");
    await page.setInputFiles('.panel input[type="file"]', { name: "records.json", mimeType: "application/json", buffer: Buffer.from(JSON.stringify(records)) });
    await page.waitForSelector(".record");
  },
  async models(page) { await page.click("button.model"); },
  async palette(page) { await icon(page, icons.search).click(); },
  async attachments(page, say) {
    const file = (name, mimeType, buffer) => ({ name, mimeType, buffer });
    await page.setInputFiles('input[type="file"][multiple]', [file("circle.png", "image/png", png(96, 72, circle)), file("tone.wav", "audio/wav", wav(0.5, 8000)), file("ring.py", "text/x-python", Buffer.from("def ring(): pass\n"))]);
    await page.waitForFunction(() => document.querySelectorAll(".files li").length === 3);
    await page.fill("#message", say.look);
    await page.press("#message", "Enter");
    await page.waitForSelector("article.assistant:last-of-type:not(.growing) .actions");
    await page.setInputFiles('input[type="file"][multiple]', [file("circle.png", "image/png", png(96, 72, circle)), file("a-rather-long-name-of-a-file-that-somebody-attached.md", "text/markdown", Buffer.from("# a\n"))]);
    await page.waitForFunction(() => document.querySelectorAll(".files li").length === 2);
    await page.waitForTimeout(600);
  },
  async tool(page, say) {
    await icon(page, icons.settings).click();
    await page.fill(".panel textarea.mono >> nth=0", '[{"name": "weather", "parameters": {"type": "object"}}]');
    await page.keyboard.press("Escape");
    await ask(page, `${say.next} (weather)`);
  },
  async trouble(page, say) {
    await ask(page, say.question);
    await page.route("**/*", (route) => route.abort());
    await page.fill("#message", say.next);
    await page.press("#message", "Enter");
    await page.waitForSelector(".error");
    await page.waitForSelector(".banner");
    await page.evaluate(() => { IDBObjectStore.prototype.put = () => { throw new DOMException("full", "QuotaExceededError"); }; });
    await page.click(".error button >> nth=1");
    await page.waitForSelector(".banner.bad");
  },
  async chats(page, say) {
    for (const title of say.titles) {
      await page.keyboard.press("Control+Shift+O");
      await ask(page, title);
    }
    if (await page.locator(".narrow").isVisible()) await icon(page, icons.menu).click();
    await page.hover(".entry >> nth=1");
    await page.click('.entry >> nth=1 >> button:has(path[d^="M3 6h6l2"])');
    await page.keyboard.type(say.folder);
    await page.keyboard.press("Enter");
    await page.waitForSelector(".folder");
    await page.click(".sidebar-foot summary");
    await page.hover(".entry >> nth=2");
    await page.click('.entry >> nth=2 >> button:has(path[d^="M4 7h16"])');
    await page.waitForSelector(".toast");
  },
  async help(page) {
    await page.evaluate(() => document.activeElement.blur());
    await page.keyboard.press("?");
    await page.waitForSelector(".keys");
  },
};

await mkdir(folder, { recursive: true });
const phone = { viewport: { width: 390, height: 780 }, isMobile: true, hasTouch: true };
let failed = 0;
for (const [locale, say] of Object.entries(words))
  for (const colorScheme of ["light", "dark"])
    for (const [device, how] of [["desktop", { viewport: { width: 1280, height: 800 } }], ["phone", phone]])
      for (const [view, act] of Object.entries(views)) {
        const name = `${view}-${locale}-${colorScheme}-${device}`;
        if (only && !new RegExp(only).test(name)) continue;
        const context = await browser.newContext({ locale, colorScheme, ...how });
        const page = await context.newPage();
        page.setDefaultTimeout(15_000);
        try {
          await page.goto(url);
          await page.waitForSelector(".empty b");
          await act(page, say);
          await settle(page);
          if (await page.evaluate(() => document.documentElement.scrollWidth > innerWidth)) throw new Error("wider than the screen");
        } catch (e) {
          failed++;
          console.log(`FAIL  ${name}: ${e.message.split("\n").slice(0, 3).join(" ")}`);
        }
        await page.screenshot({ path: `${folder}/${name}.png` });
        await context.close();
      }
await browser.close();
server.close();
console.log(failed ? `${failed} failed` : "all made");
process.exit(failed ? 1 : 0);
