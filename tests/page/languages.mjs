// The page in its languages: the browser's is taken, nothing is wider than the screen, nothing keeps a reader out.
import assert from "node:assert/strict";
import { accessible, answered, becomes, open, say, send, shot } from "./harness.mjs";

const asks = { "zh-TW": ["zh-Hant", "想問什麼都可以"], "zh-CN": ["zh-Hans", "想问什么都可以"], ja: ["ja", "何でも聞いてください"], "de-DE": ["de", "Stell eine Frage"] };
const phone = { viewport: { width: 390, height: 780 }, hasTouch: true, isMobile: true };

export const languages = {
  async "the page speaks the browser's language"() {
    for (const [locale, [lang, ask]] of Object.entries(asks))
      for (const [colorScheme, device] of [["light", {}], ["dark", phone]]) {
        const page = await open({ locale, colorScheme, ...device });
        await page.waitForSelector(".empty b");
        await becomes(() => page.getAttribute("#message", "placeholder"), ask);
        assert.equal(await page.evaluate(() => document.documentElement.lang), lang);
        await accessible(page, locale);
        say(page, { content: "**1**", thinking: "2", finish: "length" });
        await send(page, "?");
        await answered(page);
        await page.click("header .icon-button:nth-last-of-type(2)");
        await page.waitForSelector(".panel");
        await accessible(page, `${locale} panel`);
        assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "wider than the screen");
        await shot(page, `${lang}-${colorScheme}`);
        await page.context().close();
      }
  },
};
