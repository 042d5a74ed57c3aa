// Pictures sent by the real openai client to a model that sees: node see.mjs URL KEY
import assert from "node:assert/strict";
import OpenAI from "openai";
import { circle, png } from "../page/pictures.mjs";

const [url, key] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0, timeout: 120_000 });
const picture = (shift) => `data:image/png;base64,${png(96, 72, (x, y) => circle(x + shift, y)).toString("base64")}`;
const model = (await client.models.list()).data[0];
assert.deepEqual(model.architecture.input_modalities, ["text", "image"]);

// Chat completions, whole and streamed; more for a picture when it asks for it, other tokens for another picture.
const ask = (more, ...images) => client.chat.completions.create({
  model: model.id, temperature: 0, max_tokens: 6, ...more,
  messages: [{ role: "user", content: [...images.map((image_url) => ({ type: "image_url", image_url })), { type: "text", text: "What is it?" }] }],
});
const low = await ask({}, { url: picture(0), detail: "low" });
const image = low.usage.prompt_tokens_details.image_tokens;
assert.ok(image > 40 && image <= 70, `${image}`);
assert.equal((await ask({}, { url: picture(0), detail: "low" }, { url: picture(9), detail: "low" })).usage.prompt_tokens_details.image_tokens, 2 * image);
let text = "", usage;
for await (const c of await ask({ stream: true, stream_options: { include_usage: true } }, { url: picture(0), detail: "low" })) {
  text += c.choices[0]?.delta.content ?? "";
  usage = c.usage ?? usage;
}
assert.equal(text, low.choices[0].message.content ?? "");
assert.equal(usage.prompt_tokens, low.usage.prompt_tokens);
// The same picture is found in the prefix cache; another of the same size is not taken for it.
assert.ok(usage.prompt_tokens_details.cached_tokens > image);
const other = await ask({}, { url: picture(20), detail: "low" });
assert.equal(other.usage.prompt_tokens, low.usage.prompt_tokens);
assert.ok(other.usage.prompt_tokens_details.cached_tokens < image);

// Responses.
const r = await client.responses.create({
  model: model.id, temperature: 0, max_output_tokens: 6,
  input: [{ role: "user", content: [{ type: "input_image", image_url: picture(0), detail: "low" }, { type: "input_text", text: "What is it?" }] }],
});
assert.equal(r.usage.input_tokens, low.usage.prompt_tokens);
assert.equal(r.output_text, low.choices[0].message.content ?? "");

// What is no picture, and what lies elsewhere: the client's own error with the field's name.
for (const bad of ["data:image/png;base64,aGVsbG8gd29ybGQhIQ==", "https://example.org/a.png"])
  await assert.rejects(ask({}, { url: bad }), (e) => e instanceof OpenAI.BadRequestError && /messages\[0\]\.content\[0\]/.test(e.message));
console.log("ok    openai: pictures");
