// What must never be lost, and what must never be a dead end.
import assert from "node:assert/strict";
import { answered, becomes, drawn, fed, open, panel, say, send } from "./harness.mjs";

const texts = (page) => page.locator("article").evaluateAll((all) => all.map((a) => (a.querySelector(".bubble, .markdown")?.textContent ?? "").trim()));
const feed = async (page, n, text) => {
  await page.waitForFunction((i) => window.asked.length > i, n);
  await page.evaluate(([i, s]) => window.feed(i, s), [n, text]);
};

export const reliable = {
  async "a reload in the middle keeps what was streamed"() {
    const page = await open({ init: fed });
    await send(page, "Tell me");
    await feed(page, 0, "The first half of it");
    await becomes(() => texts(page), ["Tell me", "The first half of it"]);
    await page.reload();
    await becomes(() => texts(page), ["Tell me", "The first half of it"]);
    await page.waitForSelector('.warning:has-text("connection was lost")');
    await page.click('.warning button:has-text("Continue")');
    await becomes(() => page.evaluate(() => window.asked[0]?.messages.map((m) => [m.role, m.content])), [["user", "Tell me"], ["assistant", "The first half of it"]]);
    assert.equal(await page.evaluate(() => window.asked[0].continue_final_message), true);
    await feed(page, 0, ", and the second");
    await page.evaluate(() => window.finish(0));
    await becomes(() => texts(page), ["Tell me", "The first half of it, and the second"]);
    await page.click('article.assistant [aria-label="Previous version"]');  // what there was stays
    await becomes(() => texts(page), ["Tell me", "The first half of it"]);
    await page.context().close();
  },

  async "two tabs do not overwrite each other, in two chats or in one"() {
    const one = await open({ init: fed });
    await send(one, "From one");
    await feed(one, 0, "Answer one");
    await one.evaluate(() => window.finish(0));
    await answered(one);
    const two = await open({ init: fed, context: one.context(), hash: new URL(one.url()).hash });
    await becomes(() => texts(two), ["From one", "Answer one"]);
    await send(two, "From two");
    await feed(two, 0, "Answer two");
    await becomes(() => texts(one), ["From one", "Answer one", "From two", "Answer two"]);
    await two.evaluate(() => window.finish(0));
    await becomes(() => one.locator("article.growing").count(), 0);
    await send(one, "Again one");
    await feed(one, 1, "Third");
    await one.evaluate(() => window.finish(1));
    await answered(one);
    await becomes(() => two.locator("article").count(), 6);
    await one.reload();
    await becomes(() => texts(one), ["From one", "Answer one", "From two", "Answer two", "Again one", "Third"]);
    await one.context().close();
  },

  async "a full storage is said, nothing is lost, and it is written when there is room"() {
    const page = await open({ init: fed });
    await page.evaluate(() => {
      window.put = IDBObjectStore.prototype.put;
      IDBObjectStore.prototype.put = () => { throw new DOMException("full", "QuotaExceededError"); };
    });
    await send(page, "Keep me");
    await page.waitForSelector('.banner:has-text("storage is full")');
    await feed(page, 0, "Kept");
    await page.evaluate(() => { IDBObjectStore.prototype.put = window.put; window.finish(0); });
    await answered(page);
    await becomes(() => page.locator(".banner").count(), 0);
    await page.reload();
    await becomes(() => texts(page), ["Keep me", "Kept"]);
    await page.context().close();
  },

  async "edit and regenerate make branches; all of them stay after a reload"() {
    const page = await open();
    say(page, { content: "First answer" });
    await send(page, "Question");
    await answered(page);
    say(page, { content: "Second answer" });
    await page.click('article.assistant [aria-label="Regenerate"]');
    await page.waitForSelector('article:has-text("Second answer")');
    await becomes(() => page.textContent("article.assistant .branches span"), "2/2");
    await page.click('article.assistant [aria-label="Previous version"]');
    await becomes(() => texts(page), ["Question", "First answer"]);
    say(page, { content: "To another" });
    await page.click('article.user [aria-label="Edit"]');
    await page.fill(".editor textarea", "Another question");
    await page.press(".editor textarea", "Enter");
    await becomes(() => texts(page), ["Another question", "To another"]);
    await page.reload();
    await becomes(() => texts(page), ["Another question", "To another"]);
    await page.click('article.user [aria-label="Previous version"]');
    await becomes(() => texts(page), ["Question", "Second answer"]);
    await page.click('article.assistant [aria-label="Previous version"]');
    await becomes(() => texts(page), ["Question", "First answer"]);
    await page.context().close();
  },

  async "delete has an undo; Escape leaves a title as it was"() {
    const page = await open();
    say(page, { content: "Yes." });
    await send(page, "Title of this");
    await answered(page);
    await page.hover(".entry");
    await page.click('[aria-label="Rename"]');
    await page.fill(".rename", "Something else");
    await page.press(".rename", "Escape");
    await becomes(() => page.textContent(".entry .title"), "Title of this");
    await page.hover(".entry");
    await page.click('[aria-label="Rename"]');
    await page.fill(".rename", "New title");
    await page.press(".rename", "Enter");
    await becomes(() => page.textContent(".entry .title"), "New title");
    await page.hover(".entry");
    await page.click('[aria-label="Delete chat"]');
    await becomes(() => page.locator(".entry").count(), 0);
    await page.click('.toast button:has-text("Undo")');
    await becomes(() => texts(page), ["Title of this", "Yes."]);
    await page.reload();
    await becomes(() => texts(page), ["Title of this", "Yes."]);
    await page.context().close();
  },

  async "every chat keeps its draft, and so does a new one"() {
    const page = await open();
    say(page, { content: "Yes." });
    await send(page, "Chat");
    await answered(page);
    await page.fill("#message", "half a thought");
    await page.click(".new");
    await becomes(() => page.inputValue("#message"), "");
    await page.fill("#message", "another");
    await page.reload();
    await becomes(() => page.inputValue("#message"), "another");
    await page.click(".entry .title");
    await becomes(() => page.inputValue("#message"), "half a thought");
    await page.context().close();
  },

  async "a skipped tool call is no dead end"() {
    const page = await open();
    const tool = { name: "w", id: "call_1", parts: ["{}"] };
    say(page, { tool, finish: "tool_calls" });
    await send(page, "Use w");
    await page.waitForSelector(".tool form");
    say(page, { tool: { ...tool, id: "call_2" }, finish: "tool_calls" });
    await send(page, "Never mind. Use w again");
    await becomes(() => page.locator(".tool form").count(), 1);
    await becomes(() => page.locator(".tool").count(), 2);
    const asked = say(page, { content: "Done." });
    await page.fill(".tool form textarea", "42");
    await page.click('.tool form button:has-text("Send result")');
    assert.deepEqual((await asked).messages.at(-1), { role: "tool", tool_call_id: "call_2", content: "42" });
    await page.waitForSelector('article:has-text("Done.")');
    await page.context().close();
  },

  async "an over-long message is no dead end"() {
    const page = await open({ quiet: /400/ });
    say(page, { status: 400, error: { message: "the prompt has 9999 tokens and the context 4096", type: "exceed_context_size_error" } });
    await send(page, "Far too long");
    await page.waitForSelector('.error:has-text("longer than the model\'s context")');
    await page.click('button:has-text("Remove message")');
    await becomes(() => page.inputValue("#message"), "Far too long");
    await becomes(() => page.locator("article").count(), 0);
    const asked = say(page, { content: "Fine." });
    await send(page, "Short");
    assert.deepEqual((await asked).messages, [{ role: "user", content: "Short" }]);
    await answered(page);
    await page.context().close();
  },

  async "a cut stream is marked and can be retried"() {
    const page = await open({ init: fed });
    await send(page, "Tell me");
    await feed(page, 0, "Half");
    await becomes(() => texts(page), ["Tell me", "Half"]);
    await page.evaluate(() => window.close_(0));
    await page.waitForSelector('.warning:has-text("connection was lost")');
    await page.click('.warning button:has-text("Retry")');
    await feed(page, 1, "Whole");
    await page.evaluate(() => window.breakOff(1));
    await page.waitForSelector('.warning:has-text("connection was lost")');
    await page.click('.warning button:has-text("Retry")');
    await feed(page, 2, "All of it");
    await page.evaluate(() => window.finish(2));
    await answered(page);
    await becomes(() => page.locator(".warning").count(), 0);
    await page.context().close();
  },

  async "a dead server is said and found again"() {
    const page = await open({ quiet: /ERR_|Failed to fetch|connection/i });
    await page.waitForSelector(".empty b");
    await page.context().setOffline(true);
    await send(page, "Anybody?");
    await page.waitForSelector('.error:has-text("Can\'t reach the server")');
    await page.waitForSelector('.banner:has-text("retrying in")');
    await page.context().setOffline(false);
    await page.waitForSelector(".banner", { state: "detached" });
    say(page, { content: "Here." });
    await page.click('.error button:has-text("Retry")');
    await becomes(() => texts(page), ["Anybody?", "Here."]);
    await page.context().close();
  },

  async "a wrong key is said, with a field for another"() {
    const page = await open({ quiet: /401/ });
    await page.waitForSelector(".empty b");
    say(page, { status: 401, error: { message: "invalid API key" } });
    await send(page, "Hello");
    await page.waitForSelector('.banner:has-text("refused this API key")');
    await page.waitForSelector('.error:has-text("Enter a valid API key")');
    await page.context().close();
  },

  async "several chats answer at once"() {
    const page = await open({ init: fed });
    await send(page, "One");
    await feed(page, 0, "a");
    await page.click(".new");
    await send(page, "Two");
    await feed(page, 1, "b");
    await becomes(() => page.locator(".mark.busy").count(), 2);
    await feed(page, 0, "aa");
    await page.evaluate(() => window.finish(0));
    await becomes(() => page.locator(".mark.busy").count(), 1);
    await becomes(() => texts(page), ["Two", "b"]);
    await page.click('.entry:has-text("One") .title');
    await becomes(() => texts(page), ["One", "aaa"]);
    await page.click('.entry:has-text("Two") .title');
    await page.keyboard.press("Escape");
    await page.waitForSelector('.facts:has-text("stopped")');
    await page.context().close();
  },

  async "Back, Forward and links open their chats"() {
    const page = await open();
    const links = [];
    for (const name of ["One", "Two"]) {
      say(page, { content: name });
      await page.click(".new");
      await send(page, name);
      await answered(page);
      links.push(new URL(page.url()).hash);
    }
    assert.notEqual(links[0], links[1]);
    await page.click('.entry:has-text("One") .title');
    await becomes(() => texts(page), ["One", "One"]);
    await page.goBack();
    await becomes(() => texts(page), ["Two", "Two"]);
    await page.goForward();
    await becomes(() => texts(page), ["One", "One"]);
    const other = await open({ context: page.context(), hash: links[1] });
    await becomes(() => texts(other), ["Two", "Two"]);
    await other.goto(other.url().split("#")[0] + "#nothing");
    await other.waitForSelector('.error:has-text("not in this browser")');
    await page.context().close();
  },

  async "Enter of an input method never sends"() {
    const page = await open({ init: fed });
    await page.fill("#message", "にほ");
    for (const init of [{ keyCode: 229 }, { isComposing: true }])
      await page.evaluate((i) => document.getElementById("message").dispatchEvent(
        new KeyboardEvent("keydown", { key: "Enter", bubbles: true, cancelable: true, ...i })), init);
    await drawn(page);
    assert.equal(await page.inputValue("#message"), "にほ");
    assert.equal(await page.evaluate(() => window.asked.length), 0);
    await page.press("#message", "Enter");
    await becomes(() => page.evaluate(() => window.asked.length), 1);
    // Nor does it end an edit, a new title or a choice of the palette.
    await feed(page, 0, "a");
    await page.evaluate(() => window.finish(0));
    await answered(page);
    const enter = (selector) => page.evaluate((s) => document.querySelector(s).dispatchEvent(
      new KeyboardEvent("keydown", { key: "Enter", keyCode: 229, bubbles: true, cancelable: true })), selector);
    await page.click('article.user [aria-label="Edit"]');
    await enter(".editor textarea");
    await drawn(page);
    assert.equal(await page.locator(".editor").count(), 1);
    await page.press(".editor textarea", "Escape");
    await page.hover(".entry");
    await page.click('[aria-label="Rename"]');
    await enter(".rename");
    await drawn(page);
    assert.equal(await page.locator(".rename").count(), 1);
    await page.press(".rename", "Escape");
    await page.keyboard.press("Control+k");
    await enter(".palette input");
    await drawn(page);
    assert.equal(await page.locator(".palette").count(), 1);
    assert.equal(await page.evaluate(() => window.asked.length), 1);
    await page.context().close();
  },

  async "keys that write characters on European keyboards do nothing else"() {
    const page = await open();
    for (const keys of ["Alt+N", "Alt+L", "Alt+P", "Control+Alt+Q"]) await page.keyboard.press(keys);
    await drawn(page);
    assert.equal(await page.locator(".panel").count(), 0);
    await page.keyboard.press("Control+k");
    await page.keyboard.type("settings");
    await page.keyboard.press("Enter");
    await page.waitForSelector('.panel[aria-label="Settings"]');
    await page.keyboard.press("Escape");
    await becomes(() => page.locator(".panel").count(), 0);
    await panel(page, "Live metrics");
    await page.waitForSelector(".panel");
    await page.context().close();
  },

  async "chats of the first page's localStorage are taken over"() {
    const page = await open({
      init: () => {
        if (localStorage.getItem("done")) return;
        localStorage.setItem("done", "1");
        localStorage.setItem("carat.index", JSON.stringify([{ id: "1-2-3", title: "Old", updated: 1 }]));
        localStorage.setItem("carat.c.1-2-3", JSON.stringify({ id: "1-2-3", title: "Old", updated: 1,
          messages: [{ role: "user", content: "q" }, { role: "assistant", content: "a", thinking: "", tools: [] }] }));
      },
    });
    await page.click('.entry:has-text("Old") .title');
    await becomes(() => texts(page), ["q", "a"]);
    assert.equal(await page.evaluate(() => localStorage.getItem("carat.index")), null);
    await page.context().close();
  },
};
