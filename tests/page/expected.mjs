// What people take for granted who come from other pages: a picker of models, presets, a meter, groups by date, what an answer cost.
import assert from "node:assert/strict";
import { accessible, answered, becomes, open, panel, say, send, shot, url } from "./harness.mjs";

const models = [["small", "loaded", 19_300_000, 4096], ["large", "unloaded", 17_040_000_000, 131_072], ["next", "loading", 4_970_000_000, 8192]]
  .map(([id, value, size, n_ctx_train]) => ({ id, object: "model", status: { value }, meta: { size, n_ctx_train, quantization_level: "Q5_K" } }));

export const expected = {
  async "the picker tells state, size and context of each model, and the chosen one answers"() {
    const page = await open();
    await page.route("**/v1/models", (route) => route.fulfill({ json: { object: "list", data: models } }));
    await page.reload();
    await page.click("button.model");
    await becomes(() => page.locator(".palette li").allTextContents(), ["smallloaded · 19.3 MB · Q5_K · 4,096 tokens of context",
      "largenot loaded · 17.0 GB · Q5_K · 131,072 tokens of context", "nextloading… · 4.97 GB · Q5_K · 8,192 tokens of context"]);
    await accessible(page, "models");
    await shot(page, "models");
    await page.keyboard.type("lar");
    await page.keyboard.press("Enter");
    await becomes(() => page.textContent("button.model span"), "large");
    const asked = say(page, { content: "Yes." });
    await send(page, "Hello");
    assert.equal((await asked).model, "large");
    await answered(page);
    await page.reload();
    await becomes(() => page.textContent("button.model span"), "large");
    await page.context().close();
  },

  async "the server itself tells its model's size and context"() {
    const page = await open();
    await page.waitForSelector(".empty b");
    assert.match(await page.getAttribute(".model", "title"), /^loaded · \d+(\.\d+)? [MG]B · .* · 4,096 tokens of context$/);
    await page.context().close();
  },

  async "the context is counted before a message is sent, with what is attached"() {
    const page = await open();
    const used = async () => Number(/Context: ([\d,]+) of/.exec(await page.textContent(".meter"))[1].replaceAll(",", ""));
    await page.fill("#message", "One two three four five");
    await page.waitForSelector(".meter");
    const alone = await used();
    assert.ok(alone >= 5, `${alone}`);
    await page.setInputFiles('input[type="file"][multiple]', { name: "a.txt", mimeType: "text/plain", buffer: Buffer.from("word ".repeat(400)) });
    await page.waitForFunction((n) => Number(/Context: ([\d,]+) of/.exec(document.querySelector(".meter").textContent)[1].replaceAll(",", "")) > n + 300, alone);
    await page.setInputFiles('input[type="file"][multiple]', { name: "b.txt", mimeType: "text/plain", buffer: Buffer.from("word ".repeat(8000)) });
    await page.waitForSelector(".meter.near");
    await page.context().close();
  },

  async "an answer that reached its limit goes on where it stood, and the rest is proven too"() {
    const page = await open();
    const limit = async (tokens) => {
      await panel(page, "Settings");
      await page.fill('.panel label:has-text("Max tokens") input', tokens);
      await page.keyboard.press("Escape");
    };
    await limit("12");
    await send(page, "Count from 1 to 20.");
    await page.waitForSelector('.warning:has-text("token limit")');
    const begun = await page.textContent("article.assistant .markdown");
    await limit("40");
    await page.click('.warning button:has-text("Continue")');
    await becomes(() => page.textContent("article.assistant .branches span"), "2/2");
    await answered(page);
    const whole = await page.textContent("article.assistant .markdown");
    assert.ok(whole.startsWith(begun.trimEnd()) && whole.length > begun.length, `${begun} | ${whole}`);
    await page.click('[aria-label="X-ray"]');
    await page.click('button:has-text("Same without drafts?")');
    await page.waitForSelector('.same-row .verdict:has-text("Identical")');
    await page.context().close();
  },

  async "presets hold all settings: saved, chosen and deleted"() {
    const page = await open();
    await panel(page, "Settings");
    await page.fill('.panel label:has-text("System prompt") textarea', "Answer in one word.");
    await page.fill('.panel label:has-text("Temperature") input', "0");
    await page.fill('.panel label:has-text("Tools") textarea', '[{"name": "w"}]');
    await page.fill('.panel label:has-text("as a preset") input', "Terse");
    await page.click('.panel .presets button:has-text("Save") >> nth=0');
    await page.click('.panel button:has-text("Reset to server defaults")');
    await becomes(() => page.inputValue('.panel label:has-text("System prompt") textarea'), "");
    await page.reload();
    await panel(page, "Settings");
    await page.selectOption('.panel label:has-text("Preset") select', { label: "Terse" });
    await page.keyboard.press("Escape");
    const asked = say(page, { content: "Yes." });
    await send(page, "Well?");
    const body = await asked;
    assert.deepEqual([body.messages[0].content, body.temperature, body.tools[0].function.name], ["Answer in one word.", 0, "w"]);
    await answered(page);
    await panel(page, "Settings");
    await page.click('.panel [aria-label="Delete preset"]');
    await becomes(() => page.locator('.panel label:has-text("Preset") select').count(), 0);
    await page.context().close();
  },

  async "chats stand in groups by date"() {
    const page = await open();
    const day = 86_400_000, midnight = new Date().setHours(0, 0, 0, 0);
    const list = [["Now", Date.now()], ["Before", midnight - 1000], ["This week", midnight - 3 * day], ["Long ago", Date.UTC(2020, 4, 15)]];
    await page.evaluate((all) => new Promise((resolve) => {
      const r = indexedDB.open("carat");
      r.onsuccess = () => {
        const t = r.result.transaction("conversations", "readwrite");
        for (const [title, updated] of all) t.objectStore("conversations").put({ id: title, title, updated, head: null });
        t.oncomplete = resolve;
      };
    }), list);
    await page.reload();
    await becomes(() => page.locator(".entries h2").allTextContents(), ["Today", "Yesterday", "Previous 7 days", "May 2020"]);
    await becomes(() => page.locator(".entry .title").allTextContents(), ["Now", "Before", "This week", "Long ago"]);
    await page.context().close();
  },

  async "a receipt tells what was drawn, where it was measured, and is copied as Markdown"() {
    const page = await open({ permissions: ["clipboard-read", "clipboard-write"] });
    const timings = { prompt_n: 12, prompt_ms: 3.5, cache_n: 8, predicted_n: 2, predicted_ms: 20, predicted_per_second: 100, energy_j: 1.5, energy_j_per_token: 0.75,
      speculation: { accepted_length: 2, accepted_per_pos: [0.9, 0.5], accepted_per_pos_given_previous: [0.9, 0.6], draft_ms: 1, verify_ms: 2, sample_ms: 0.5 } };
    const steps = [{ tokens: ["a", " b"], drafter: "suffix", drafted: 2, accepted: 1, rejected: [" c"] }];
    await page.route("**/v1/chat/completions", (route) => route.fulfill({ contentType: "text/event-stream", body:
      `data: ${JSON.stringify({ choices: [{ index: 0, delta: { content: "a b" }, finish_reason: "stop" }], timings })}\n\ndata: ${JSON.stringify({ choices: [], steps })}\n\ndata: [DONE]\n\n` }));
    await send(page, "Go");
    await answered(page);
    await page.click('[aria-label="X-ray"]');
    assert.equal(await page.locator(".xray .spark polyline").count(), 2);  // both curves, over the table of their figures
    await becomes(() => page.locator(".curves td").allTextContents(), ["90 %", "50 %", "90 %", "60 %"]);
    await becomes(() => page.textContent(".table:has(.curves) + .hint"), "Drafts hold to their last position: longer drafts may pay off.");
    await page.click(".receipt summary");
    await page.click('button:has-text("Copy as Markdown")');
    const copied = await page.evaluate(() => navigator.clipboard.readText());
    for (const line of ["| Prompt tokens read | 12 |", "| From cache | 8 |", "| Draft | 1.0 ms |", "| Verify | 2.0 ms |", "| Sample | 0.5 ms |", "| Energy | 0.75 J/token |", "| KV cache | f16 |"])
      assert.ok(copied.includes(line), `${line} is not in ${copied}`);
    await page.context().close();
  },

  async "the page's policy lets nothing in from elsewhere, and no code within the text"() {
    const policy = (await fetch(url)).headers.get("content-security-policy");
    assert.doesNotMatch(policy, /unsafe|\*/);
    assert.match(policy, /default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'/);
    const page = await open({ quiet: /Content Security Policy|violates|Refused/ });
    assert.equal(await page.evaluate(() => new Promise((resolve) => {
      const s = document.createElement("script");
      s.textContent = "window.ran = true";
      document.head.append(s);
      setTimeout(() => resolve(window.ran ?? false), 50);
    })), false);
    await page.context().close();
  },
};
