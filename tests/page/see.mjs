// The page with a model that sees, on a real server: node see.mjs URL KEY [SCREENSHOT_FOLDER]
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { accessible, answered, becomes, open, panel, run, send, shot } from "./harness.mjs";
import { bmp, circle, png } from "./pictures.mjs";

const red = png(96, 72, circle), blue = png(40, 60, () => [20, 40, 220]);
const attach = (page, ...files) => page.setInputFiles('input[type="file"][multiple]', files);

// A paste or a drop of files, as the browser makes them.
const give = (page, how, name, type, file, text = "") => page.evaluate(([how, name, type, base64, text]) => {
  const d = new DataTransfer(), bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  d.items.add(new File([bytes], name, { type }));
  if (text) d.setData("text/plain", text);
  const to = how === "paste" ? document.getElementById("message") : document.querySelector(".scroll");
  const made = how === "paste" ? new ClipboardEvent("paste", { clipboardData: d, bubbles: true, cancelable: true })
    : new DragEvent(how, { dataTransfer: d, bubbles: true, cancelable: true });
  to.dispatchEvent(made);
  return made.defaultPrevented;
}, [how, name, type, file.toString("base64"), text]);

async function few(page) {
  await page.waitForSelector(".empty b");
  await panel(page, "Settings");
  await page.fill('.panel label:has-text("Max tokens") input', "4");
  await page.keyboard.press("Escape");
}

await run({
  async "pictures are picked, pasted and dropped, seen by the model, kept, exported and imported"() {
    const page = await open();
    await few(page);
    await attach(page, { name: "circle.png", mimeType: "image/png", buffer: red });
    await becomes(() => page.locator(".files img").evaluateAll((all) => all.filter((e) => e.closest("li button.picture")).map((e) => e.naturalWidth)), [96]);
    assert.equal(await give(page, "paste", "image.png", "image/png", blue), true);
    assert.equal(await give(page, "dragover", "x.bmp", "image/bmp", bmp(50, 50, circle)), true);
    await page.waitForSelector(".composer.dropping");
    assert.equal(await give(page, "drop", "old.bmp", "image/bmp", bmp(50, 50, circle)), true);
    await becomes(() => page.locator(".files li").count(), 3);
    // An office program's text comes with a picture of it: the text is meant.
    assert.equal(await give(page, "paste", "image.png", "image/png", blue, "cells"), false);
    await page.click('.files [aria-label="Remove image.png"]');
    await becomes(() => page.locator(".files li").count(), 2);
    await accessible(page, "attached");
    await shot(page, "see-attached");
    const asked = page.waitForRequest("**/v1/chat/completions");
    await send(page, "What colour is it?");
    const { content } = JSON.parse((await asked).postData()).messages[0];
    assert.deepEqual(content.map((p) => p.type), ["image_url", "image_url", "text"]);
    assert.equal(content[0].image_url.url, `data:image/png;base64,${red.toString("base64")}`);
    assert.match(content[1].image_url.url, /^data:image\/jpeg;base64,/);  // no server reads BMP
    await answered(page);
    assert.equal(await page.locator("article .error").count(), 0);
    assert.match(await page.textContent(".facts"), /pictures: \d{3} tokens/);
    await becomes(() => page.locator(".files li").count(), 0);
    const shown = () => page.locator("article.user button.picture img").evaluateAll((all) => all.map((e) => [e.alt, e.naturalWidth]));
    const both = [["circle.png", 96], ["old.bmp", 50]];
    await becomes(shown, both);
    await page.reload();
    await becomes(shown, both);
    await page.click('article [aria-label="Show circle.png"]');
    await becomes(() => page.locator("dialog.viewer[open] img").evaluate((e) => e.naturalWidth), 96);
    await accessible(page, "viewer");
    await shot(page, "see-viewer");
    await page.keyboard.press("Escape");
    await becomes(() => page.locator("dialog[open]").count(), 0);
    await shot(page, "see-conversation");
    // The next question has them, too.
    const again = page.waitForRequest("**/v1/chat/completions");
    await send(page, "And now?");
    assert.equal(JSON.parse((await again).postData()).messages[0].content.length, 3);
    await answered(page);
    await page.click(".sidebar-foot summary");
    const [file] = await Promise.all([page.waitForEvent("download"), page.click('.sidebar button:has-text("This chat as JSON")')]);
    const saved = JSON.parse(readFileSync(await file.path(), "utf8"));
    assert.equal(saved.messages.find((m) => m.media).media[0].data, `data:image/png;base64,${red.toString("base64")}`);
    const [text] = await Promise.all([page.waitForEvent("download"), page.click('.sidebar button:has-text("Markdown")')]);
    assert.match(readFileSync(await text.path(), "utf8"), /!\[circle\.png\]\(data:image\/png;base64,/);
    const other = await open();  // another browser's storage
    await other.setInputFiles('input[type="file"][accept]', await file.path());
    await becomes(() => other.locator("article.user button.picture img").evaluateAll((all) => all.map((e) => [e.alt, e.naturalWidth])), both);
    await other.context().close();
    await page.context().close();
  },

  async "a large picture is made smaller, a broken one is refused, and an edit keeps its pictures"() {
    const page = await open({ viewport: { width: 390, height: 780 }, hasTouch: true, isMobile: true });
    await few(page);
    await attach(page, { name: "broken.png", mimeType: "image/png", buffer: Buffer.from("This is no picture.") });
    await page.waitForSelector('.error:has-text("read broken.png as a picture")');
    await page.click('.error button');
    await attach(page, { name: "large.bmp", mimeType: "image/bmp", buffer: bmp(2600, 1800, () => [9, 99, 199]) });
    await page.waitForSelector(".files img");
    const asked = page.waitForRequest("**/v1/chat/completions");
    await page.tap('[aria-label="Send"]');  // a picture alone
    const { content } = JSON.parse((await asked).postData()).messages[0];
    assert.equal(content.length, 1);
    await answered(page);
    const [width, height] = await page.locator("article.user button.picture img").evaluate((e) => [e.naturalWidth, e.naturalHeight]);
    assert.ok(width * height < 4_010_000 && width * height > 3_900_000, `${width} x ${height}`);
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "wider than the screen");
    await shot(page, "see-phone");
    await page.click('article.user [aria-label="Edit"]');
    await page.fill(".editor textarea", "What is it?");
    const anew = page.waitForRequest("**/v1/chat/completions");
    await page.keyboard.press("Enter");
    assert.deepEqual(JSON.parse((await anew).postData()).messages[0].content.map((p) => p.type), ["image_url", "text"]);
    await answered(page);
    await page.context().close();
  },
});
