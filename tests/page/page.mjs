// The page at / in a real Chromium: node page.mjs URL KEY [SCREENSHOT_FOLDER]
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { isDeepStrictEqual } from "node:util";
import { chromium } from "playwright-core";

const [url, key, shots] = process.argv.slice(2);
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
});
const complaints = [], foreign = [];

async function open(options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(15_000);
  // The browser notes the 401s of a wrong key, some of them late.
  page.on("console", (m) => m.type() === "error" && !(options.key && /\b401\b/.test(m.text())) && complaints.push(m.text()));
  page.on("pageerror", (e) => complaints.push(String(e)));
  page.on("request", (r) => !r.url().startsWith(url) && !/^(data|blob):/.test(r.url()) && foreign.push(r.url()));
  await page.addInitScript((k) => localStorage.getItem("carat.key") ?? localStorage.setItem("carat.key", JSON.stringify(k)), options.key ?? key);
  await page.goto(url);
  await page.waitForSelector(".model");
  return page;
}

async function shot(page, name) {
  if (shots) await page.screenshot({ path: `${shots}/${name}.png` });
}

// No finding that keeps anybody out.
async function accessible(page, what) {
  const found = await page.evaluate(`${axe}; axe.run(document, { resultTypes: ["violations"] })`);
  const bad = found.violations.filter((v) => ["serious", "critical"].includes(v.impact));
  assert.deepEqual(bad.map((v) => `${what}: ${v.id}: ${v.nodes.map((n) => `${n.target} ${n.failureSummary}`).join(" | ")}`), []);
}

const send = async (page, text) => {
  await page.fill("#message", text);
  await page.keyboard.press("Enter");
};
// Two frames later what was done is drawn.
const drawn = (page) => page.evaluate(() => new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r))));
// What is asked of the page becomes this within two seconds: it draws when it can, not when it is clicked.
async function becomes(ask, wanted) {
  for (const end = Date.now() + 2000; ; await new Promise((r) => setTimeout(r, 20))) {
    const got = await ask();
    if (isDeepStrictEqual(got, wanted) || Date.now() > end) return assert.deepEqual(got, wanted);
  }
}
async function answered(page) {
  await drawn(page);
  await page.waitForSelector("article.assistant:last-of-type:not(.growing) .actions");
}

const rich = `Here is **bold**, \`code\` and a [link](https://example.org).

\`\`\`python
def greet(name: str) -> str:
    # says hello
    return f"Hello, {name}!" if name else "Hello!"
\`\`\`

| thing | cost |
|---|--:|
| one | 1.00 |
| two | 22.50 |

1. first
2. second, with $x^2$
- [x] done

> A quotation.

<img src="https://example.org/x.png" onerror="window.hit = 1"> <script>window.hit = 2</script>
![picture](https://example.org/y.png) [bad](javascript:window.hit=3) [worse](data:text/html,x)
`;

// The server's next answer is this.
async function say(page, { content = "", thinking = "", tool = null, finish = "stop" }) {
  const chunk = (delta, more = {}) => `data: ${JSON.stringify({ object: "chat.completion.chunk", choices: [{ index: 0, delta, finish_reason: null }], ...more })}\n\n`;
  let body = chunk({ role: "assistant", content: "" });
  if (thinking) body += chunk({ reasoning_content: thinking });
  for (let i = 0; i < content.length; i += 7) body += chunk({ content: content.slice(i, i + 7) });
  if (tool) {
    body += chunk({ tool_calls: [{ index: 0, id: "call_1", type: "function", function: { name: tool.name, arguments: "" } }] });
    for (const part of tool.parts) body += chunk({ tool_calls: [{ index: 0, function: { arguments: part } }] });
  }
  const timings = { prompt_n: 12, predicted_n: 99, predicted_per_second: 41.25, cache_n: 8, speculation: { accepted_length: 2.31 } };
  body += `data: ${JSON.stringify({ choices: [{ index: 0, delta: {}, finish_reason: finish }], timings })}\n\ndata: [DONE]\n\n`;
  const asked = new Promise((resolve) =>
    page.route("**/v1/chat/completions", async (route) => {
      resolve(JSON.parse(route.request().postData()));
      await route.fulfill({ status: 200, contentType: "text/event-stream", body });
      await page.unroute("**/v1/chat/completions");
    }));
  return asked;
}

const tests = {
  async "first paint within a second, nothing from elsewhere"() {
    await (await open()).context().close();  // a browser's own first page is no page's fault
    const page = await open();
    const paint = await page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime ??
      new Promise((r) => new PerformanceObserver((l) => r(l.getEntries()[0].startTime)).observe({ type: "paint", buffered: true })));
    console.log(`      first paint after ${Math.round(paint)} ms`);
    assert.ok(paint < 1000, `${paint} ms`);
    await page.waitForFunction(() => document.querySelector(".empty b"));
    await accessible(page, "empty");
    await shot(page, "empty-light");
    await page.context().close();
  },

  async "a conversation with the model: stream, stop, answer anew, edit, keep"() {
    const page = await open();
    await send(page, "Repeat: hello");
    await answered(page);
    assert.match(await page.textContent(".facts"), /\d+ tokens/);
    const first = await page.textContent("article.assistant .markdown");
    assert.ok(first.trim().length > 0);
    await page.click('article.assistant [aria-label="Answer anew"]');
    await answered(page);
    await becomes(() => page.locator("article").count(), 2);
    // Something long, stopped on the way.
    await page.keyboard.press("Alt+P");
    await page.fill('.panel label:has-text("schema") textarea', '{"type": "array", "minItems": 900, "items": {"type": "integer"}}');
    await page.keyboard.press("Escape");
    await send(page, "Count");
    await page.waitForFunction(() => document.querySelector("article.growing .markdown")?.textContent.length > 20);
    await shot(page, "streaming");
    await page.keyboard.press("Escape");
    await answered(page);
    assert.match(await page.textContent("article.assistant:last-of-type .facts"), /stopped/);
    await page.evaluate(() => document.activeElement.blur());
    await page.keyboard.press("Alt+P");
    await page.click('.panel button:has-text("Back to")');
    await page.keyboard.press("Escape");
    // The last question, changed.
    await page.focus("#message");
    await page.keyboard.press("ArrowUp");
    await page.fill(".editor textarea", "Repeat: world");
    await page.keyboard.press("Enter");
    await answered(page);
    await becomes(() => page.locator("article.user").last().textContent(), "Repeat: world");
    await becomes(() => page.locator("article").count(), 4);
    const all = await page.locator("article").allTextContents();
    await page.reload();
    await becomes(() => page.locator("article").allTextContents(), all);
    // A second conversation beside it; out and in again; away.
    await page.keyboard.press("Alt+N");
    await send(page, "Repeat: two");
    await answered(page);
    await becomes(() => page.locator(".entry").count(), 2);
    const [file] = await Promise.all([page.waitForEvent("download"), page.click('.sidebar button:has-text("JSON")')]);
    const saved = JSON.parse(readFileSync(await file.path(), "utf8"));
    assert.equal(saved.messages[0].content, "Repeat: two");
    const [text] = await Promise.all([page.waitForEvent("download"), page.click('.sidebar button:has-text("Markdown")')]);
    assert.match(readFileSync(await text.path(), "utf8"), /## You\n\nRepeat: two/);
    await page.setInputFiles('input[type="file"]', await file.path());
    await page.waitForFunction(() => document.querySelectorAll(".entry").length === 3);
    await page.click('[aria-label="Delete conversation"]');
    await becomes(() => page.locator(".entry").count(), 2);
    await page.click(".entry:last-child .title");
    await becomes(() => page.locator("article").allTextContents(), all);
    await page.context().close();
  },

  async "markdown, code, thoughts, tools; nothing of it is obeyed"() {
    for (const colorScheme of ["light", "dark"]) {
      const page = await open({ colorScheme });
      say(page, { thinking: "The user wants *everything*.", content: rich });
      await send(page, "Show me everything you can, please:\n- text\n- code");
      await answered(page);
      assert.equal(await page.locator(".code .hljs-keyword").first().textContent(), "def");
      assert.equal(await page.locator("td").nth(3).textContent(), "22.50");
      assert.equal(await page.locator("td").nth(3).evaluate((e) => getComputedStyle(e).textAlign), "right");
      assert.equal(await page.locator("article details.thinking[open]").count(), 0);
      await page.click("details.thinking summary");
      await becomes(() => page.textContent("details.thinking em"), "everything");
      assert.equal(await page.locator(".markdown img, .markdown script").count(), 0);
      assert.equal(await page.locator('.markdown a[href^="javascript"], .markdown a[href^="data"]').count(), 0);
      assert.equal(await page.evaluate(() => window.hit), undefined);
      await page.keyboard.press("Alt+L");
      await page.waitForSelector(".figure");
      await page.waitForTimeout(colorScheme === "light" ? 1500 : 200);
      await accessible(page, `rich ${colorScheme}`);
      await page.evaluate(() => (document.querySelector(".scroll").scrollTop = 0));
      await shot(page, `rich-${colorScheme}`);
      await page.keyboard.press("Escape");
      const asked = say(page, { tool: { name: "weather", parts: ['{"city": "Os', 'lo"}'] }, finish: "tool_calls" });
      await page.keyboard.press("Alt+P");
      await page.fill('.panel label:has-text("Tools") textarea', '[{"name": "weather", "parameters": {"type": "object"}}]');
      await accessible(page, `parameters ${colorScheme}`);
      await shot(page, `parameters-${colorScheme}`);
      await page.keyboard.press("Escape");
      await send(page, "And the weather?");
      assert.equal((await asked).tools[0].function.name, "weather");
      await page.waitForSelector(".tool form");
      assert.match(await page.textContent(".tool pre"), /"city": "Oslo"/);
      await accessible(page, `tool ${colorScheme}`);
      await shot(page, `tool-${colorScheme}`);
      const again = say(page, { content: "It rains." });
      await page.fill(".tool form textarea", '{"sky": "rain"}');
      await page.click(".tool form button");
      const messages = (await again).messages;
      assert.deepEqual(messages.at(-1), { role: "tool", tool_call_id: "call_1", content: '{"sky": "rain"}' });
      assert.equal(messages.at(-2).tool_calls[0].function.arguments, '{"city": "Oslo"}');
      await page.waitForSelector('article:has-text("It rains.")');
      await page.context().close();
    }
  },

  async "on a telephone"() {
    const page = await open({ viewport: { width: 390, height: 780 }, hasTouch: true, isMobile: true, deviceScaleFactor: 2 });
    say(page, { thinking: "Hm.", content: rich });
    await page.fill("#message", "Hello");
    await page.tap('[aria-label="Send"]');
    await answered(page);
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "the page is wider than the screen");
    await page.evaluate(() => (document.querySelector(".scroll").scrollTop = 0));
    await shot(page, "mobile");
    await page.tap('button[aria-label="Conversations"]');
    await page.waitForSelector(".sidebar.open");
    await page.waitForTimeout(300);
    await accessible(page, "telephone");
    await shot(page, "mobile-sidebar");
    await page.tap(".new");
    await page.waitForSelector(".empty");
    await page.tap('[aria-label^="Live figures"]');
    await page.waitForSelector(".figure");
    await shot(page, "mobile-live");
    await page.context().close();
  },

  async "by keyboard alone; a wrong key is asked for again"() {
    const page = await open({ key: "wrong" });
    await page.waitForSelector(".banner input");
    await accessible(page, "key");
    await page.fill(".banner input", key);
    await page.keyboard.press("Enter");
    await page.waitForSelector(".empty b");
    await page.evaluate(() => document.activeElement.blur());
    await page.keyboard.press("?");
    await page.waitForSelector(".keys");
    await accessible(page, "keys");
    await page.keyboard.press("Escape");
    await becomes(() => page.evaluate(() => document.activeElement.id), "message");
    await page.evaluate(() => document.activeElement.blur());
    const met = new Set();
    for (let i = 0; i < 14; i++) {
      await page.keyboard.press("Tab");
      met.add(await page.evaluate(() => document.activeElement.ariaLabel ?? document.activeElement.textContent.trim()));
    }
    for (const name of ["New conversation", "Parameters (Alt+P)", "Live figures (Alt+L)", "Message"]) assert.ok(met.has(name), `${name} is not reached: ${[...met]}`);
    await page.context().close();
  },
};

let failed = 0;
for (const [name, test] of Object.entries(tests)) {
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
