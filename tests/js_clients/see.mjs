// Pictures sent by the AI SDK, LangChain.js and Ollama's package to a model that sees: node see.mjs URL KEY
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { HumanMessage } from "@langchain/core/messages";
import { ChatOpenAI } from "@langchain/openai";
import { generateText, streamText } from "ai";
import { Ollama } from "ollama";
import { circle, png } from "../page/pictures.mjs";

const [url, key] = process.argv.slice(2);
const headers = { Authorization: `Bearer ${key}` };
const image = png(96, 72, circle);
const model = (await (await fetch(`${url}/v1/models`, { headers })).json()).data[0].id;

const sdk = createOpenAICompatible({ name: "carat", baseURL: `${url}/v1`, apiKey: key, includeUsage: true });
const asked = {
  model: sdk(model), temperature: 0, maxOutputTokens: 6, maxRetries: 0,
  messages: [{ role: "user", content: [{ type: "image", image, mediaType: "image/png" }, { type: "text", text: "What is it?" }] }],
};
const whole = await generateText(asked);
assert.ok(whole.usage.inputTokens > 250, `${whole.usage.inputTokens}`);
assert.equal(await streamText(asked).text, whole.text);
console.log("ok    AI SDK: a picture");

const chat = new ChatOpenAI({ model, apiKey: key, maxRetries: 0, temperature: 0, maxTokens: 6, configuration: { baseURL: `${url}/v1` } });
const seen = await chat.invoke([new HumanMessage({ content: [
  { type: "image_url", image_url: { url: `data:image/png;base64,${image.toString("base64")}` } }, { type: "text", text: "What is it?" },
] })]);
assert.equal(seen.content, whole.text);
assert.equal(seen.usage_metadata.input_tokens, whole.usage.inputTokens);
console.log("ok    LangChain.js: a picture");

const ollama = new Ollama({ host: url, headers });
assert.ok((await ollama.show({ model })).capabilities.includes("vision"));
const said = await ollama.chat({ model, messages: [{ role: "user", content: "What is it?", images: [new Uint8Array(image)] }], options: { temperature: 0, num_predict: 6 } });
assert.ok(said.prompt_eval_count > 250, `${said.prompt_eval_count}`);
assert.equal(said.message.content, whole.text);
console.log("ok    ollama: a picture");
