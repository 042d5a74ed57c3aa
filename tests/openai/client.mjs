// The real openai client against a running server: node client.mjs URL KEY
import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";
import OpenAI from "openai";

const [url, key] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0, timeout: 120_000 });
const messages = [
  { role: "system", content: "Be brief." },
  { role: "user", content: "Say hello. 你好" },
];
const greedy = { temperature: 0, max_tokens: 12 };
const headers = { Authorization: `Bearer ${key}` };

async function metric(name) {
  const text = await (await fetch(`${url}/metrics`, { headers })).text();
  const line = text.split("\n").find((l) => l.startsWith(`vllm:${name}{`));
  return Number(line.split(" ").at(-1));
}

async function rejects(promise, kind, status, check = () => {}) {
  const error = await promise.then(
    () => assert.fail(`expected ${kind.name}`),
    (e) => e,
  );
  assert.ok(error instanceof kind, `${error}`);
  assert.equal(error.status, status);
  check(error);
}

const tests = {
  async models() {
    const list = await client.models.list();
    assert.equal(list.data.length, 1);
    assert.equal(list.data[0].object, "model");
    this.model = list.data[0].id;
  },

  async chat() {
    const r = await client.chat.completions.create({ model: this.model, messages, ...greedy });
    assert.equal(r.object, "chat.completion");
    assert.equal(r.choices[0].message.role, "assistant");
    assert.ok(["stop", "length", "tool_calls"].includes(r.choices[0].finish_reason));
    assert.equal(r.usage.total_tokens, r.usage.prompt_tokens + r.usage.completion_tokens);
    assert.ok(r.usage.completion_tokens >= 1 && r.usage.completion_tokens <= 12);
    assert.equal(r.timings.predicted_n, r.usage.completion_tokens);
    this.chatText = r.choices[0].message.content;
  },

  async "chat, streamed"() {
    const stream = await client.chat.completions.create({
      model: this.model, messages, ...greedy, stream: true, stream_options: { include_usage: true },
    });
    let text = "", finish = null, usage = null, chunks = 0;
    for await (const chunk of stream) {
      chunks++;
      assert.equal(chunk.object, "chat.completion.chunk");
      usage = chunk.usage ?? usage;
      text += chunk.choices[0]?.delta.content ?? "";
      finish = chunk.choices[0]?.finish_reason ?? finish;
    }
    assert.equal(text, this.chatText ?? "");
    assert.ok(finish);
    assert.ok(usage.completion_tokens >= 1);
    assert.ok(chunks >= 3);
  },

  async "the client's own stream helper"() {
    const runner = client.chat.completions.stream({ model: this.model, messages, ...greedy });
    const final = await runner.finalChatCompletion();
    assert.equal(final.choices[0].message.content ?? "", this.chatText ?? "");
  },

  async "tools reach the template"() {
    const tools = [{
      type: "function",
      function: { name: "weather", description: "The weather",
        parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } },
    }];
    const asked = client.chat.completions.create({ model: this.model, messages, tools, ...greedy });
    if (await asked.then(() => false, (e) => /tools/.test(e.message))) {
      // This model's own template refuses them; the client must hear of it as a wrong request.
      return await rejects(asked, OpenAI.BadRequestError, 400);
    }
    const r = await asked;
    const plain = await client.chat.completions.create({ model: this.model, messages, ...greedy });
    assert.ok(r.usage.prompt_tokens > plain.usage.prompt_tokens);
  },

  async "a JSON schema is kept"() {
    const schema = {
      type: "object", required: ["city", "days"], additionalProperties: false,
      properties: { city: { enum: ["Oslo", "Rome"] }, days: { type: "integer", minimum: 1, maximum: 9 } },
    };
    const check = (v) => {
      assert.ok(["Oslo", "Rome"].includes(v.city));
      assert.ok(Number.isInteger(v.days) && v.days >= 1 && v.days <= 9);
    };
    const ask = { model: this.model, messages, temperature: 1, max_tokens: 200 };
    const format = { type: "json_schema", json_schema: { name: "trip", strict: true, schema } };
    for (let seed = 0; seed < 3; seed++) {
      const r = await client.chat.completions.create({ ...ask, seed, response_format: format });
      assert.equal(r.choices[0].finish_reason, "stop");
      check(JSON.parse(r.choices[0].message.content));
    }
    const stream = client.chat.completions.stream({ ...ask, response_format: format });
    check(JSON.parse((await stream.finalChatCompletion()).choices[0].message.content));
    const r = await client.chat.completions.create({ ...ask, guided_choice: ["yes", "no"] });
    assert.ok(["yes", "no"].includes(r.choices[0].message.content));

    const tools = [{ type: "function", function: { name: "trip", strict: true, parameters: schema } }];
    for (const tool_choice of ["required", { type: "function", function: { name: "trip" } }]) {
      const asked = client.chat.completions.create({ ...ask, tools, tool_choice, parallel_tool_calls: false });
      const refused = await asked.then(() => false, (e) => e);
      if (refused) {  // this model's own template refuses tools, or its way of calling them is not known
        assert.ok(/tool/.test(refused.message), refused.message);
        continue;
      }
      const { message, finish_reason } = (await asked).choices[0];
      assert.equal(finish_reason, "tool_calls");
      assert.equal(message.tool_calls.length, 1);
      check(JSON.parse(message.tool_calls[0].function.arguments));
    }
  },

  async "log probabilities"() {
    const r = await client.chat.completions.create({
      model: this.model, messages, ...greedy, logprobs: true, top_logprobs: 3,
    });
    for (const t of r.choices[0].logprobs.content) {
      assert.ok(t.logprob <= 0);
      assert.equal(t.top_logprobs.length, 3);
      assert.ok(t.top_logprobs[0].logprob >= t.logprob - 1e-6);
    }
  },

  async completions() {
    const body = { model: this.model, prompt: "Once upon", ...greedy, n: 2 };
    const r = await client.completions.create(body);
    assert.equal(r.object, "text_completion");
    assert.equal(r.choices.length, 2);
    assert.equal(r.choices[0].text, r.choices[1].text);
    let text = "";
    for await (const chunk of await client.completions.create({ ...body, n: 1, stream: true }))
      text += chunk.choices[0]?.text ?? "";
    assert.equal(text, r.choices[0].text);
    this.text = text;
  },

  async responses() {
    const body = { model: this.model, instructions: "Be brief.", input: messages[1].content, temperature: 0, max_output_tokens: 12 };
    const r = await client.responses.create(body);
    assert.equal(r.output_text, this.chatText ?? "");
    assert.ok(r.usage.output_tokens >= 1);
    const stream = client.responses.stream(body);
    let text = "";
    stream.on("response.output_text.delta", (e) => (text += e.delta));
    const final = await stream.finalResponse();
    assert.equal(text, r.output_text);
    assert.equal(final.output.at(-1).content[0].text, r.output_text);
    const tools = [{ type: "function", name: "pick", strict: true, parameters: {
      type: "object", required: ["n"], additionalProperties: false, properties: { n: { type: "integer", minimum: 1, maximum: 9 } } } }];
    const asked = client.responses.create({ ...body, max_output_tokens: 100, tools, tool_choice: "required" });
    const refused = await asked.then(() => false, (e) => e);
    if (refused) return assert.ok(/tool/.test(refused.message), refused.message);
    const call = (await asked).output.find((o) => o.type === "function_call");
    assert.ok(JSON.parse(call.arguments).n >= 1);
    const input = [{ role: "user", content: "Pick." }, call, { type: "function_call_output", call_id: call.call_id, output: "done" }];
    assert.equal((await client.responses.create({ ...body, input, tools })).status !== "failed", true);
  },

  async "stop strings"() {
    if (this.text.length < 3) return;
    const stop = [...this.text].slice(1, 3).join("");
    const r = await client.completions.create({ model: this.model, prompt: "Once upon", ...greedy, stop });
    assert.equal(r.choices[0].text, this.text.slice(0, this.text.indexOf(stop)));
    assert.equal(r.choices[0].finish_reason, "stop");
  },

  async "the seed decides"() {
    const ask = async (seed) =>
      (await client.completions.create({ model: this.model, prompt: "A", temperature: 1.5, max_tokens: 16, seed }))
        .choices[0].text;
    const [a, b, c] = [await ask(1), await ask(1), await ask(2)];
    assert.equal(a, b);
    assert.notEqual(a, c);
  },

  async "eight at once"() {
    const ask = (i) =>
      client.completions.create({ model: this.model, prompt: `Number ${i}:`, temperature: 1, seed: i, max_tokens: 4 + i })
        .then((r) => r.choices[0].text);
    const alone = [];
    for (let i = 0; i < 8; i++) alone.push(await ask(i));
    assert.deepEqual(await Promise.all(alone.map((_, i) => ask(i))), alone);
  },

  async "an aborted stream frees its slot"() {
    const endless = { model: this.model, prompt: "Go on", ignore_eos: true, stream: true };
    const stream = await client.completions.create(endless);
    for await (const _ of stream) break;  // leaving the loop aborts
    const control = new AbortController();
    const waiting = client.completions.create({ ...endless, stream: false }, { signal: control.signal });
    await sleep(300);
    control.abort();
    await assert.rejects(waiting, OpenAI.APIUserAbortError);
    for (let i = 0; i < 100 && (await metric("num_requests_running")) > 0; i++) await sleep(50);
    assert.equal(await metric("num_requests_running"), 0);
    assert.equal(await metric("kv_cache_usage_perc"), 0);
  },

  async "errors are the client's own classes"() {
    const ask = (more) => client.chat.completions.create({ model: this.model, messages, ...greedy, ...more });
    await rejects(ask({ temperature: "hot" }), OpenAI.BadRequestError, 400, (e) => {
      assert.equal(e.param, "temperature");
      assert.equal(e.type, "invalid_request_error");
    });
    await rejects(ask({ messages: [] }), OpenAI.BadRequestError, 400, (e) => assert.equal(e.param, "messages"));
    await rejects(ask({ messages: [{ role: "user", content: "~".repeat(60_000) }] }), OpenAI.BadRequestError, 400,
      (e) => assert.equal(e.code, "context_length_exceeded"));
    await rejects(client.get("/nothing"), OpenAI.NotFoundError, 404);
    const stranger = new OpenAI({ baseURL: `${url}/v1`, apiKey: "wrong", maxRetries: 0 });
    await rejects(stranger.models.list(), OpenAI.AuthenticationError, 401,
      (e) => assert.equal(e.code, "invalid_api_key"));
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
