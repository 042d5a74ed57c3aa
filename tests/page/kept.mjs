// What is typed, attached, deleted and exported is there when it is wanted again.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { answered, becomes, fed, open, say, send } from "./harness.mjs";
import { circle, png } from "./pictures.mjs";

const texts = (page) => page.locator("article").evaluateAll((all) => all.map((a) => (a.querySelector(".bubble, .markdown")?.textContent ?? "").trim()));
const file = (name, text) => ({ name, mimeType: "text/plain", buffer: Buffer.from(text) });
const attach = (page, ...list) => page.setInputFiles('input[type="file"][multiple]', list);
const attached = (page) => page.locator(".files li").evaluateAll((all) => all.map((e) => e.querySelector("img")?.alt || e.textContent.trim()));

export const kept = {
  async "what is attached stays with its chat's draft, over a reload too"() {
    const page = await open();
    await page.route("**/props", async (route) => {
      const r = await route.fetch();
      await route.fulfill({ response: r, json: { ...(await r.json()), modalities: { vision: true, audio: false } } });
    });
    await page.route("**/v1/models", async (route) => {
      const r = await route.fetch(), body = await r.json();
      for (const m of body.data) m.architecture = { input_modalities: ["text", "image"] };
      await route.fulfill({ response: r, json: body });
    });
    await page.reload();
    await page.waitForSelector(".empty b");
    say(page, { content: "Yes." });
    await send(page, "Chat");
    await answered(page);
    await attach(page, file("a.txt", "Alpha"), { name: "c.png", mimeType: "image/png", buffer: png(96, 72, circle) });
    await page.fill("#message", "About these");
    await becomes(() => attached(page), ["c.png", "a.txt"]);
    await page.click(".new");
    await becomes(() => attached(page), []);
    await attach(page, file("b.txt", "Beta"));
    await becomes(() => attached(page), ["b.txt"]);
    await page.reload();
    await becomes(() => attached(page), ["b.txt"]);
    await page.click(".entry .title");
    await becomes(() => attached(page), ["c.png", "a.txt"]);
    await becomes(() => page.locator(".files button.picture img").evaluate((e) => e.naturalWidth), 96);
    const asked = say(page, { content: "Seen." });
    await page.press("#message", "Enter");
    const content = (await asked).messages.at(-1).content;
    assert.match(content[0].image_url.url, /^data:image\/png;base64,/);
    assert.match(content[1].text, /^a\.txt\n```\nAlpha\n```\n\nAbout these$/);
    await answered(page);
    await becomes(() => attached(page), []);
    await page.reload();
    await becomes(() => attached(page), []);  // what was sent does not come back
    await page.waitForFunction(() => document.querySelector("article.user button.picture img")?.naturalWidth === 96);
    await page.context().close();
  },

  async "an over-long question comes back with its files"() {
    const page = await open({ quiet: /400/ });
    say(page, { status: 400, error: { message: "the prompt has 9999 tokens and the context 4096", type: "exceed_context_size_error" } });
    await attach(page, file("long.txt", "word ".repeat(2000)));
    await page.fill("#message", "Sum it up");
    await page.press("#message", "Enter");
    await page.click('button:has-text("Remove message")');
    await becomes(() => page.inputValue("#message"), "Sum it up");
    await becomes(() => attached(page), ["long.txt"]);
    await page.click('.files [aria-label="Remove long.txt"]');
    const asked = say(page, { content: "Fine." });
    await page.press("#message", "Enter");
    assert.deepEqual((await asked).messages, [{ role: "user", content: "Sum it up" }]);
    await answered(page);
    await page.context().close();
  },

  async "a chat deleted while it answers comes back with all that had come"() {
    const page = await open({ init: fed });
    await send(page, "Tell me");
    await page.waitForFunction(() => window.asked.length === 1);
    await page.evaluate(() => window.feed(0, "All that had come"));
    await becomes(() => texts(page), ["Tell me", "All that had come"]);
    await page.hover(".entry");
    await page.click('[aria-label="Delete chat"]');
    await becomes(() => page.locator(".entry").count(), 0);
    await page.click('.toast button:has-text("Undo")');
    await becomes(() => texts(page), ["Tell me", "All that had come"]);
    await becomes(() => page.locator(".mark.busy").count(), 0);
    await page.reload();
    await becomes(() => texts(page), ["Tell me", "All that had come"]);
    await page.waitForSelector('.facts:has-text("stopped")');
    await page.context().close();
  },

  async "all chats go out in one file, and come in elsewhere with their branches, files and folders"() {
    const page = await open();
    say(page, { content: "First answer" });
    await attach(page, file("a.txt", "Alpha"));
    await becomes(() => attached(page), ["a.txt"]);
    await send(page, "One");
    await answered(page);
    say(page, { content: "Second answer" });
    await page.click('article.assistant [aria-label="Regenerate"]');
    await page.waitForSelector('article:has-text("Second answer")');
    await page.hover(".entry");
    await page.click('[aria-label="Move to folder"]');
    await page.keyboard.type("Kept");
    await page.keyboard.press("Enter");
    await page.click(".new");
    say(page, { content: "Third answer" });
    await send(page, "Two");
    await answered(page);
    await page.click(".sidebar-foot summary");
    const [saved] = await Promise.all([page.waitForEvent("download"), page.click('.sidebar button:has-text("All chats as JSON")')]);
    assert.equal(JSON.parse(readFileSync(await saved.path(), "utf8")).length, 2);
    const other = await open();
    await other.setInputFiles('input[type="file"][accept*="json"]', await saved.path());
    await becomes(() => other.locator(".entry").count(), 2);
    await becomes(() => other.locator(".folder .entry").allTextContents(), ["One"]);
    await other.click(".folder .entry .title");
    await becomes(() => texts(other), ["One", "Second answer"]);
    await becomes(() => other.locator("article details.file").count(), 1);
    await becomes(() => other.textContent("article.assistant .branches span"), "2/2");
    await other.context().close();
    await page.context().close();
  },
};
