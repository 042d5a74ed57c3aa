// The page at / in a real Chromium: node page.mjs URL KEY [SCREENSHOT_FOLDER]
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { accessible, answered, becomes, key, open, panel, run, say, send, shot, shots } from "./harness.mjs";
import { content } from "./content.mjs";
import { expected } from "./expected.mjs";
import { kept } from "./kept.mjs";
import { media } from "./media.mjs";
import { xray } from "./xray.mjs";
import { languages } from "./languages.mjs";
import { reliable } from "./reliable.mjs";
import { tools } from "./tools.mjs";

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

  async "the picture of README.md (docs/images/page.png), where screenshots are asked for"() {
    if (!shots) return;
    const page = await open({ viewport: { width: 1100, height: 640 } });
    await panel(page, "Settings");
    await page.fill('.panel label:has-text("Temperature") input', "0");
    await page.keyboard.press("Escape");
    for (const text of ["What is 17 + 25?", "Write a Python function that adds two numbers."]) {
      await send(page, text);
      await answered(page);
    }
    await page.waitForTimeout(300);
    await shot(page, "page");
    await page.context().close();
  },

  async "a conversation with the model: stream, stop, answer anew, edit, keep"() {
    const page = await open();
    await send(page, "Repeat: hello");
    await answered(page);
    assert.match(await page.textContent(".facts"), /\d+ tokens/);
    const first = await page.textContent("article.assistant .markdown");
    assert.ok(first.trim().length > 0);
    await page.click('article.assistant [aria-label="Regenerate"]');
    await answered(page);
    await becomes(() => page.locator("article").count(), 2);
    // Something long, stopped on the way.
    await panel(page, "Settings");
    await page.fill('.panel label:has-text("schema") textarea', '{"type": "array", "minItems": 900, "items": {"type": "integer"}}');
    await page.keyboard.press("Escape");
    await send(page, "Count");
    await page.waitForFunction(() => document.querySelector("article.growing .markdown")?.textContent.length > 20);
    await shot(page, "streaming");
    await page.keyboard.press("Escape");
    await answered(page);
    assert.match(await page.textContent("article.assistant:last-of-type .facts"), /stopped/);
    await panel(page, "Settings");
    await page.click('.panel button:has-text("Reset to")');
    await page.keyboard.press("Escape");
    // The last question, changed.
    await page.focus("#message");
    await page.keyboard.press("ArrowUp");
    await page.fill(".editor textarea", "Repeat: world");
    await page.keyboard.press("Enter");
    await answered(page);
    await becomes(() => page.locator("article.user .bubble").last().textContent(), "Repeat: world");
    await becomes(() => page.locator("article").count(), 4);
    const all = await page.locator("article").allTextContents();
    await page.reload();
    await becomes(() => page.locator("article").allTextContents(), all);
    // A second conversation beside it; out and in again; away.
    await page.keyboard.press("Control+Shift+O");
    await send(page, "Repeat: two");
    await answered(page);
    await becomes(() => page.locator(".entry").count(), 2);
    await page.click(".sidebar-foot summary");
    const [file] = await Promise.all([page.waitForEvent("download"), page.click('.sidebar button:has-text("This chat as JSON")')]);
    const saved = JSON.parse(readFileSync(await file.path(), "utf8"));
    assert.equal(saved.messages[0].content, "Repeat: two");
    const [text] = await Promise.all([page.waitForEvent("download"), page.click('.sidebar button:has-text("Markdown")')]);
    assert.match(readFileSync(await text.path(), "utf8"), /## You\n\nRepeat: two/);
    await page.setInputFiles('input[type="file"]', await file.path());
    await page.waitForFunction(() => document.querySelectorAll(".entry").length === 3 && document.querySelector(".entry.active") === document.querySelector(".entry"));
    await page.hover(".entry.active");
    await page.click('.entry.active [aria-label="Delete chat"]');
    await becomes(() => page.locator(".entry").count(), 2);
    await page.click('.entry:has-text("Repeat: hello") .title');
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
      await panel(page, "Live metrics");
      await page.waitForSelector(".figure");
      await page.waitForTimeout(colorScheme === "light" ? 1500 : 200);
      await accessible(page, `rich ${colorScheme}`);
      await page.evaluate(() => (document.querySelector(".scroll").scrollTop = 0));
      await shot(page, `rich-${colorScheme}`);
      await page.keyboard.press("Escape");
      const asked = say(page, { tool: { name: "weather", parts: ['{"city": "Os', 'lo"}'] }, finish: "tool_calls" });
      await panel(page, "Settings");
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
      await page.click(".tool form button.primary");
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
    await page.tap('button[aria-label="Chats"]');
    await page.waitForSelector(".sidebar.open");
    await page.waitForTimeout(300);
    await accessible(page, "telephone");
    await shot(page, "mobile-sidebar");
    await page.tap(".new");
    await page.waitForSelector(".empty");
    await page.tap('[aria-label^="Live metrics"]');
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
    for (let i = 0; i < 20; i++) {
      await page.keyboard.press("Tab");
      met.add(await page.evaluate(() => document.activeElement.ariaLabel ?? document.activeElement.textContent.trim()));
    }
    for (const name of ["New chat", "Settings", "Live metrics", "Message"]) assert.ok(met.has(name), `${name} is not reached: ${[...met]}`);
    await page.context().close();
  },
};

await run({ ...tests, ...reliable, ...kept, ...expected, ...content, ...media, ...xray, ...tools, ...languages });
