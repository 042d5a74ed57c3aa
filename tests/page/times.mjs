// How fast the page draws long answers and long chats: node times.mjs [FOLDER_OF_THE_PAGE] (web/dist). A server of its own answers;
// measure on a quiet machine. Frames as the browser gives them: one that comes later than 50 ms after the last is called slow.
import { readFileSync } from "node:fs";
import http from "node:http";
import { chromium } from "playwright-core";
import { fed, keyTime } from "./harness_fed.mjs";
import { code, prose } from "./long_texts.mjs";

const folder = process.argv[2] ?? new URL("../../web/dist", import.meta.url).pathname;
const types = { js: "text/javascript", css: "text/css", html: "text/html", svg: "image/svg+xml" };
const server = http.createServer((request, reply) => {
  const path = request.url === "/" ? "/index.html" : request.url;
  const json = (v) => reply.writeHead(200, { "Content-Type": "application/json" }).end(JSON.stringify(v));
  if (path === "/v1/models") return json({ data: [{ id: "model" }] });
  if (path === "/props") return json({ default_generation_settings: { n_ctx: 32_768, params: {} } });
  if (path === "/tokenize") return json({ tokens: [] });
  try {
    const text = readFileSync(folder + path);
    reply.writeHead(200, { "Content-Type": types[path.split(".").at(-1)] ?? "text/plain" }).end(text);
  } catch {
    reply.writeHead(404).end();
  }
});
await new Promise((r) => server.listen(0, "127.0.0.1", r));
const url = `http://127.0.0.1:${server.address().port}/`;
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"] });

async function open(context, init) {
  const page = await context.newPage();
  page.setDefaultTimeout(120_000);
  if (init) await page.addInitScript(init);
  // What the frames say from now on: window.frames_.end() gives the longest wait for one, and how many were slow.
  await page.addInitScript(() => {
    window.frames_ = {
      begin() {
        let slowest = 0, slow = 0, on = true, last = performance.now();
        const frame = (now) => {
          slowest = Math.max(slowest, now - last);
          if (now - last > 50) slow++;
          last = now;
          if (on) requestAnimationFrame(frame);
        };
        requestAnimationFrame(frame);
        this.end = () => ((on = false), { slowest: Math.round(slowest), slow });
      },
    };
  });
  await page.goto(url);
  await page.waitForSelector(".empty b");
  return page;
}

// 5,000 tokens, `pace` a second (0: as fast as they can be given), until the last is drawn.
async function streamed(tokens, pace) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 } });
  const page = await open(context, fed);
  await page.fill("#message", "Write");
  await page.press("#message", "Enter");
  await page.waitForFunction(() => window.asked.length === 1);
  await page.waitForTimeout(300);
  const times = await page.evaluate(async ([all, perSecond]) => {
    window.frames_.begin();
    const began = performance.now();
    for (let i = 0; i < all.length; i += 10) {
      for (let k = i; k < i + 10; k++) window.feed(0, all[k]);
      const wait = perSecond ? began + ((i + 10) / perSecond) * 1000 - performance.now() : 4;
      await new Promise((r) => setTimeout(r, Math.max(0, wait)));
    }
    window.finish(0);
    while (document.querySelector(".growing")) await new Promise((r) => setTimeout(r, 4));
    const seconds = (performance.now() - began) / 1000;
    await new Promise((r) => setTimeout(r, 500));  // what is done once the answer has ended is seen, too
    return { seconds: seconds.toFixed(1), ...window.frames_.end() };
  }, [tokens, pace]);
  await context.close();
  return times;
}

async function longChat() {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 } });
  const page = await open(context);
  const file = JSON.stringify({ title: "Long", messages: Array.from({ length: 1000 }, (_, i) => ({
    role: i % 2 ? "assistant" : "user", content: `Message ${i} with **bold** text\n\n- one\n- two\n\n\`\`\`c\nint x = ${i};\n\`\`\``,
  })) });
  await page.setInputFiles('input[type="file"][accept*="json"]', { name: "long.json", mimeType: "application/json", buffer: Buffer.from(file) });
  await page.waitForSelector('article:has-text("Message 999")');
  const opened = await context.newPage();
  opened.setDefaultTimeout(120_000);
  await opened.addInitScript(() => {
    window.seen = new Promise((resolve) => {
      const look = () => (document.querySelector("article:last-of-type")?.textContent.includes("Message 999")
        ? requestAnimationFrame(() => setTimeout(() => resolve(performance.now()))) : setTimeout(look, 4));
      look();
    });
    let last = 0;
    window.slowest = 0, window.slow = 0;
    const frame = (now) => {
      if (last) window.slowest = Math.max(window.slowest, now - last), window.slow += now - last > 50;
      last = now;
      requestAnimationFrame(frame);
    };
    window.seen.then(() => requestAnimationFrame(frame));
  });
  await opened.goto(page.url());
  if (!new URL(page.url()).hash) await opened.click(".entry .title");
  const end = await opened.evaluate(() => window.seen);
  const key = await keyTime(opened);
  await opened.waitForFunction(() => document.querySelectorAll("article").length === 1000);
  const all = await opened.evaluate(() => performance.now());
  await opened.waitForTimeout(500);
  const { slowest, slow } = await opened.evaluate(() => ({ slowest: Math.round(window.slowest), slow: window.slow }));
  await context.close();
  return { "end seen after ms": Math.round(end), "a key ms": Math.round(key), "all drawn after ms": Math.round(all), slowest, slow };
}

const paces = (process.env.PACES ?? "250,0").split(",").filter(Boolean).map(Number);  // PACES= : the long chat alone
if (paces.length)
  for (const [name, tokens] of Object.entries({ prose, code }))
    for (const pace of paces) console.log(`5,000 tokens of ${name}, ${pace || "as many as go"} a second:`, JSON.stringify(await streamed(tokens, pace)));
console.log("1,000 messages:", JSON.stringify(await longChat()));
await browser.close();
server.close();
