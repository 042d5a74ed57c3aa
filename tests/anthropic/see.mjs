// Pictures sent by the real Anthropic client to a model that sees, in a message and in a tool's result: node see.mjs URL KEY
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { circle, png } from "../page/pictures.mjs";

const [url, key] = process.argv.slice(2);
const client = new Anthropic({ baseURL: url, apiKey: key, maxRetries: 0, timeout: 120_000 });
const image = { type: "image", source: { type: "base64", media_type: "image/png", data: png(96, 72, circle).toString("base64") } };
const base = { model: "default", max_tokens: 6, temperature: 0 };
const read = (usage) => usage.input_tokens + usage.cache_read_input_tokens;

const question = [{ type: "text", text: "What is it?" }];
const plain = await client.messages.countTokens({ model: base.model, messages: [{ role: "user", content: question }] });
const messages = [{ role: "user", content: [image, ...question] }];
const counted = await client.messages.countTokens({ model: base.model, messages });
assert.ok(counted.input_tokens > plain.input_tokens + 200, `${counted.input_tokens} ${plain.input_tokens}`);
const m = await client.messages.create({ ...base, messages });
assert.equal(read(m.usage), counted.input_tokens);
const streamed = await client.messages.stream({ ...base, messages }).finalMessage();
assert.deepEqual(streamed.content, m.content);

// A screenshot that a tool took.
const tools = [{ name: "screenshot", description: "What the screen shows", input_schema: { type: "object", properties: {} } }];
const shown = [
  { role: "user", content: "Look." }, { role: "assistant", content: [{ type: "tool_use", id: "t1", name: "screenshot", input: {} }] },
  { role: "user", content: [{ type: "tool_result", tool_use_id: "t1", content: [{ type: "text", text: "Here:" }, image] }] },
];
const after = await client.messages.create({ ...base, tools, messages: shown });
assert.ok(read(after.usage) > 250, `${read(after.usage)}`);
const broken = { type: "image", source: { type: "base64", media_type: "image/png", data: "aGVsbG8gd29ybGQhIQ==" } };
await assert.rejects(client.messages.create({ ...base, messages: [{ role: "user", content: [broken, ...question] }] }),
  (e) => e instanceof Anthropic.BadRequestError && /picture/.test(e.message));
console.log("ok    Anthropic: pictures");
