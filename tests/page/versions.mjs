// The section of versions, on a server that keeps them: node versions.mjs URL KEY SCREENSHOT_FOLDER CARAT DIR MODEL ("" for no folder)
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { accessible, becomes, key, open, panel, run, shot } from "./harness.mjs";

const [carat, dir, model] = process.argv.slice(5);
const promote = (...args) => execFileSync(carat, ["promote", ...args, "--dir", dir], { stdio: ["ignore", "ignore", "pipe"] });

await run({
  async "versions: which serves, is tried with its share, stands by, and what changed"() {
    const page = await open();
    await panel(page, "Live metrics");
    const versions = () => page.locator(".versions summary b").allTextContents();
    await becomes(versions, ["Serving: 1"]);
    promote("-m", model, "-c", "1024", "-ctk", "q8_0", "--gates", "none", "--canary", "25%", "--stay", "--api-key", key);
    await becomes(versions, ["Serving: 1", "Tried: 2"]);
    await becomes(() => page.locator(".versions .hint").allTextContents(), ["25 % of conversations go to the version that is tried."]);
    promote("accept");
    await becomes(versions, ["Serving: 2", "Standing by: 1"]);
    await page.click('.versions summary:has-text("Serving: 2")');
    assert.match(await page.textContent(".versions pre"), /q8_0/);
    await page.click('.versions summary:has-text("What changed")');
    assert.match(await page.textContent(".versions li"), /^promoted 2/);
    await accessible(page, "versions");
    await shot(page, "versions-light");
    await page.context().close();
    const dark = await open({ colorScheme: "dark" });
    await panel(dark, "Live metrics");
    await dark.waitForSelector(".versions");
    await accessible(dark, "versions, dark");
    await shot(dark, "versions-dark");
  },
});
