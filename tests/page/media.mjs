// Pictures and sounds with a model that has neither eyes nor ears, and with one of which the server says that it has.
import assert from "node:assert/strict";
import { accessible, answered, becomes, open, say, send, shot } from "./harness.mjs";
import { circle, png, wav } from "./pictures.mjs";

const attach = (page, ...files) => page.setInputFiles('input[type="file"][multiple]', files);

// The server's word on the model, changed.
async function able(page, modalities) {
  await page.route("**/props", async (route) => {
    const r = await route.fetch();
    await route.fulfill({ response: r, json: { ...(await r.json()), modalities } });
  });
  await page.route("**/v1/models", async (route) => {
    const r = await route.fetch(), body = await r.json();
    const inputs = ["text", ...(modalities.vision ? ["image"] : []), ...(modalities.audio ? ["audio"] : [])];
    for (const m of body.data) m.architecture = { input_modalities: inputs };
    await route.fulfill({ response: r, json: body });
  });
  await page.reload();
  await page.waitForSelector(".empty b");
}

export const media = {
  async "a model without eyes and ears is not shown pictures and sounds: a message says so"() {
    const page = await open();
    await page.waitForSelector(".empty b");
    const model = await page.textContent(".model");
    for (const [name, mimeType, buffer, said] of [["a.png", "image/png", png(96, 72, circle), "cannot see pictures"], ["b.wav", "audio/wav", wav(0.2, 8000), "cannot hear sound"]]) {
      await attach(page, { name, mimeType, buffer });
      await page.waitForSelector(`.error[role=alert]:has-text("${name} was not attached: ${model} ${said}.")`);
      assert.equal(await page.locator(".files li").count(), 0);
    }
    await accessible(page, "blind");
    await shot(page, "blind");
    await page.context().close();
  },

  async "a sound is attached, heard before it is sent, sent as it is, and recorded"() {
    const page = await open({ permissions: ["microphone"] });
    await able(page, { vision: false, audio: true });
    const file = wav(0.3, 8000);
    await attach(page, { name: "word.wav", mimeType: "audio/wav", buffer: file });
    await page.waitForSelector('.files li:has-text("word.wav") audio');
    await becomes(() => page.locator(".files audio").evaluate((a) => Math.round(a.duration * 10)), 3);
    await page.click('[aria-label="Record sound"]');
    await page.waitForSelector('[aria-label="Stop recording"]');
    await page.waitForTimeout(400);
    await page.click('[aria-label="Stop recording"]');
    await page.waitForSelector('.files li:has-text("Recording") audio');
    await accessible(page, "sound");
    await shot(page, "sound");
    const asked = say(page, { content: "A tone." });
    await send(page, "What do you hear?");
    const { content } = (await asked).messages[0];
    assert.deepEqual(content.map((p) => p.type), ["input_audio", "input_audio", "text"]);
    assert.deepEqual(content[0].input_audio, { data: file.toString("base64"), format: "wav" });
    const recorded = Buffer.from(content[1].input_audio.data, "base64");
    assert.equal(recorded.toString("latin1", 0, 4), "RIFF");
    assert.equal(recorded.readUInt32LE(24), 16_000);
    await answered(page);
    await becomes(() => page.locator("article.user audio").count(), 2);
    await page.context().close();
  },
};
