// The real Anthropic client against a running server: node client.mjs URL KEY
import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";
import Anthropic from "@anthropic-ai/sdk";

const [url, key] = process.argv.slice(2);
const client = new Anthropic({ baseURL: url, apiKey: key, maxRetries: 0, timeout: 120_000 });
const model = "default";
const messages = [{ role: "user", content: "Say hello. 你好" }];
const base = { model, max_tokens: 24, temperature: 0, messages };
const tools = [{
  name: "weather",
  description: "The weather of a city",
  input_schema: {
    type: "object", required: ["city", "days"], additionalProperties: false,
    properties: { city: { enum: ["Oslo", "Rome"] }, days: { type: "integer", minimum: 1, maximum: 9 } },
  },
}];

async function rejects(promise, kind, status, type) {
  const error = await promise.then(() => assert.fail(`expected ${kind.name}`), (e) => e);
  assert.ok(error instanceof kind, `${error}`);
  assert.equal(error.status, status);
  assert.equal(error.error.type, "error");
  assert.equal(error.error.error.type, type);
}

// Tokens of a prompt, whether they were read or known already.
const read = (usage) => usage.input_tokens + usage.cache_read_input_tokens;

const tests = {
  async "a message"() {
    const m = await client.messages.create({ ...base, system: "Be brief." });
    assert.equal(m.type, "message");
    assert.equal(m.role, "assistant");
    assert.ok(["end_turn", "max_tokens"].includes(m.stop_reason));
    assert.ok(m.usage.input_tokens > 0 && m.usage.output_tokens > 0);
    this.text = m.content.map((b) => b.text ?? "").join("");
    const counted = await client.messages.countTokens({ model, system: "Be brief.", messages });
    assert.equal(counted.input_tokens, read(m.usage));
  },

  async "streamed, put together by the client"() {
    const events = [];
    const stream = client.messages.stream({ ...base, system: "Be brief." }).on("streamEvent", (e) => events.push(e.type));
    const m = await stream.finalMessage();
    assert.equal(m.content.map((b) => b.text ?? "").join(""), this.text);
    assert.equal(events[0], "message_start");
    assert.equal(events.at(-1), "message_stop");
    assert.ok(m.usage.output_tokens > 0);
    assert.ok(m.stop_reason);
  },

  async "a tool that must be used, round trip"() {
    const asked = { ...base, max_tokens: 400, tools, messages: [{ role: "user", content: "Weather in Oslo for 2 days?" }] };
    const once = { disable_parallel_tool_use: true };
    for (const tool_choice of [{ type: "any", ...once }, { type: "tool", name: "weather", ...once }]) {
      const m = await client.messages.create({ ...asked, tool_choice });
      assert.equal(m.stop_reason, "tool_use");
      const call = m.content.find((b) => b.type === "tool_use");
      assert.equal(call.name, "weather");
      assert.ok(["Oslo", "Rome"].includes(call.input.city));
      assert.ok(Number.isInteger(call.input.days) && call.input.days >= 1 && call.input.days <= 9);
      const streamed = await client.messages.stream({ ...asked, tool_choice }).finalMessage();
      assert.deepEqual(streamed.content.find((b) => b.type === "tool_use").input, call.input);
      const answer = await client.messages.create({
        ...asked, max_tokens: 24,
        messages: [...asked.messages, { role: "assistant", content: m.content },
          { role: "user", content: [{ type: "tool_result", tool_use_id: call.id, content: "rain" }] }],
      });
      assert.ok(read(answer.usage) > read(m.usage));
    }
  },

  async thinking() {
    const m = await client.messages.create({ ...base, max_tokens: 2000, thinking: { type: "enabled", budget_tokens: 1024 } });
    for (const b of m.content) assert.ok(["thinking", "text"].includes(b.type));
  },

  async "stop sequences"() {
    if (this.text.length < 3) return;
    const stop = [...this.text].slice(1, 3).join("");
    const m = await client.messages.create({ ...base, system: "Be brief.", stop_sequences: [stop] });
    assert.equal(m.stop_reason, "stop_sequence");
    assert.equal(m.stop_sequence, stop);
  },

  async "an aborted stream"() {
    const stream = client.messages.stream({ ...base, max_tokens: 4000 });
    stream.on("error", () => {});
    stream.on("abort", () => {});
    const timer = setTimeout(() => stream.abort(), 50);
    await stream.done().catch(() => {});
    clearTimeout(timer);
    await sleep(300);
    await client.messages.create({ ...base, max_tokens: 1 });
  },

  async "errors are the client's own classes"() {
    await rejects(client.messages.create({ ...base, messages: [] }), Anthropic.BadRequestError, 400, "invalid_request_error");
    await rejects(client.messages.create({ ...base, max_tokens: -5 }), Anthropic.BadRequestError, 400, "invalid_request_error");
    await rejects(client.messages.create({ ...base, tool_choice: { type: "any" } }), Anthropic.BadRequestError, 400,
      "invalid_request_error");
    const stranger = new Anthropic({ baseURL: url, apiKey: "wrong", maxRetries: 0 });
    await rejects(stranger.messages.create(base), Anthropic.AuthenticationError, 401, "authentication_error");
  },
};

const state = {};
let failed = 0;
for (const [name, test] of Object.entries(tests)) {
  try {
    await test.call(state);
    console.log(`ok    ${name}`);
  } catch (e) {
    failed++;
    console.log(`FAIL  ${name}\n${e.stack}`);
  }
}
console.log(failed ? `${failed} failed` : "all passed");
process.exit(failed ? 1 : 0);
