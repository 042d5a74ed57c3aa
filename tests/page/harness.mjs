// What the tests of the page share: pages of Chromium, answers that a test controls, and the run itself.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { isDeepStrictEqual } from "node:util";
import { chromium } from "playwright-core";

export { fed, keyTime } from "./harness_fed.mjs";

export const [url, key, shots] = process.argv.slice(2);
export const mcpPort = process.env.MCP_PORT;  // the server lets the page ask this origin

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
export const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
    "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"],
});
const complaints = [], foreign = [];

// options.quiet: console errors of this kind belong to the test.
export async function open(options = {}) {
  const { context = await browser.newContext({ viewport: { width: 1280, height: 800 }, locale: "en-US", ...options }) } = options;
  const page = await context.newPage();
  page.setDefaultTimeout(20_000);
  // The browser notes the 401s of a wrong key, some of them late.
  const expected = options.quiet ?? (options.key ? /\b401\b/ : null);
  page.on("console", (m) => m.type() === "error" && !expected?.test(m.text()) && complaints.push(m.text()));
  page.on("pageerror", (e) => complaints.push(String(e.stack)));
  page.on("request", (r) => !r.url().startsWith(url) && !(mcpPort && r.url().startsWith(`http://127.0.0.1:${mcpPort}/`)) && !/^(data|blob):/.test(r.url()) && foreign.push(r.url()));
  await page.addInitScript((k) => window.top === window && (localStorage.getItem("carat.key") ?? localStorage.setItem("carat.key", JSON.stringify(k))), options.key ?? key);
  if (options.init) await page.addInitScript(options.init);
  await page.goto(url + (options.hash ?? ""));
  await page.waitForSelector(".model");
  return page;
}

export async function shot(page, name) {
  if (shots) await page.screenshot({ path: `${shots}/${name}.png` });
}

// No finding at all.
export async function accessible(page, what) {
  const found = await page.evaluate(`${axe}; axe.run(document, { resultTypes: ["violations"] })`);
  assert.deepEqual(found.violations.map((v) => `${what}: ${v.id}: ${v.nodes.map((n) => `${n.target} ${n.failureSummary}`).join(" | ")}`), []);
}

export const send = async (page, text) => {
  await page.fill("#message", text);
  await page.press("#message", "Enter");
};
// Two frames later what was done is drawn.
export const drawn = (page) => page.evaluate(() => new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r))));
// What is asked of the page becomes this within some seconds: it draws when it can, not when it is clicked.
export async function becomes(ask, wanted) {
  for (const end = Date.now() + 5000; ; await new Promise((r) => setTimeout(r, 20))) {
    const got = await ask();
    if (isDeepStrictEqual(got, wanted) || Date.now() > end) return assert.deepEqual(got, wanted);
  }
}
export async function answered(page) {
  await drawn(page);
  await page.waitForSelector("article.assistant:last-of-type:not(.growing) .actions");
}
export const panel = (page, name) => page.click(`header [aria-label="${name}"]`);

const chunk = (delta, more = {}) => `data: ${JSON.stringify({ object: "chat.completion.chunk", choices: [{ index: 0, delta, finish_reason: null }], ...more })}\n\n`;
const timings = { prompt_n: 12, predicted_n: 99, predicted_per_second: 41.25, cache_n: 8, speculation: { accepted_length: 2.31 } };

// The server's next answer is this.
export async function say(page, { content = "", thinking = "", tool = null, finish = "stop", status = 200, error = null, step = 7 }) {
  let body = chunk({ role: "assistant", content: "" });
  if (thinking) body += chunk({ reasoning_content: thinking });
  for (let i = 0; i < content.length; i += step) body += chunk({ content: content.slice(i, i + step) });
  if (tool) {
    body += chunk({ tool_calls: [{ index: 0, id: tool.id ?? "call_1", type: "function", function: { name: tool.name, arguments: "" } }] });
    for (const part of tool.parts) body += chunk({ tool_calls: [{ index: 0, function: { arguments: part } }] });
  }
  body += `data: ${JSON.stringify({ choices: [{ index: 0, delta: {}, finish_reason: finish }], timings })}\n\ndata: [DONE]\n\n`;
  if (error) body = JSON.stringify({ error });
  return new Promise((resolve) =>
    page.route("**/v1/chat/completions", async (route) => {
      resolve(JSON.parse(route.request().postData()));
      await route.fulfill({ status, contentType: error ? "application/json" : "text/event-stream", body });
    }, { times: 1 }));
}

export async function run(tests) {
  let failed = 0;
  const only = process.env.ONLY;
  for (const [name, test] of Object.entries(tests)) {
    if (only && !name.includes(only)) continue;
    try {
      await test();
      console.log(`ok    ${name}`);
    } catch (e) {
      failed++;
      console.log(`FAIL  ${name}\n${e.stack}`);
    }
  }
  await browser.close();
  for (const c of [...complaints, ...foreign.map((f) => `asked for ${f}`)]) {
    failed++;
    console.log(`FAIL  ${c}`);
  }
  console.log(failed ? `${failed} failed` : "all passed");
  process.exit(failed ? 1 : 0);
}
