// The X-ray of an answer of the real server: all its tokens, where they came from, and what they cost.
import assert from "node:assert/strict";
import { accessible, answered, open, panel, send, shot } from "./harness.mjs";

export const xray = {
  async "X-ray shows each token's origin, and a receipt"() {
    for (const colorScheme of ["light", "dark"]) {
      const page = await open({ colorScheme });
      await panel(page, "Settings");
      await page.fill('.panel label:has-text("Temperature") input', "0");
      await page.keyboard.press("Escape");
      await send(page, "Count from 1 to 20.");
      await answered(page);
      const said = (await page.textContent("article.assistant .markdown")).trim();
      await page.click('[aria-label="X-ray"]');
      await page.waitForSelector(".xray pre span");
      const raw = (await page.locator(".xray pre span").allTextContents()).join("").replaceAll("⏎", "");
      assert.ok(raw.includes(said), `${raw} | ${said}`);
      assert.ok(await page.locator(".xray pre span:not(.plain):not(.own)").count() > 0, "no token of a draft");
      assert.match(await page.locator(".xray pre span:not(.plain):not(.own)").first().getAttribute("title"), /^Drafted by \w+.*position 1, \d+ of \d+ accepted/);
      await page.click(".receipt summary");
      assert.match(await page.textContent(".receipt dl"), /Generated tokens\d+/);
      await accessible(page, `X-ray ${colorScheme}`);
      await shot(page, `xray-${colorScheme}`);
      await page.context().close();
    }
  },
};
