// The AI SDK and LangChain.js, unmodified, against a running server: node client.mjs URL KEY
import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { AIMessage, HumanMessage, SystemMessage, ToolMessage } from "@langchain/core/messages";
import { tool as langTool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [url, key] = process.argv.slice(2);
const headers = { Authorization: `Bearer ${key}` };
const trip = z.object({ city: z.enum(["Oslo", "Rome"]), days: z.number().int().min(1).max(9) });
const hello = "Say hello. 你好";
const endless = { type: "array", minItems: 900, items: { type: "integer" } };

async function running() {
  const text = await (await fetch(`${url}/metrics`, { headers })).text();
  return Number(/^vllm:num_requests_running\{.*\} (\d+)/m.exec(text)[1]);
}
async function becomesIdle() {
  for (let i = 0; i < 100 && (await running()) > 0; i++) await sleep(50);
  assert.equal(await running(), 0);
}
const greedy = { temperature: 0, maxOutputTokens: 12, maxRetries: 0 };
let model;

const sdk = createOpenAICompatible({
  name: "carat", baseURL: `${url}/v1`, apiKey: key, includeUsage: true, supportsStructuredOutputs: true,
});
const aiSdk = {
  async "chat, whole and streamed"() {
    const whole = await generateText({ model: sdk(model), prompt: hello, ...greedy });
    assert.ok(["stop", "length"].includes(whole.finishReason));
    assert.ok(whole.usage.outputTokens > 0 && whole.usage.inputTokens > 0);
    const stream = streamText({ model: sdk(model), prompt: hello, ...greedy });
    let text = "", pieces = 0;
    for await (const piece of stream.textStream) {
      text += piece;
      pieces++;
    }
    assert.equal(text, whole.text);
    assert.equal((await stream.usage).outputTokens, whole.usage.outputTokens);
    assert.ok(pieces >= 2 || text.length < 4);
  },

  async "a tool, called, run and answered"() {
    const asked = [];
    const weather = tool({
      description: "The weather of a city", inputSchema: trip,
      execute: async (input) => (asked.push(input), { sky: "clear" }),
    });
    const r = await generateText({
      model: sdk(model), prompt: "Weather in Oslo for 2 days?", tools: { weather }, maxRetries: 0, temperature: 0,
      maxOutputTokens: 200, stopWhen: stepCountIs(2),
      prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" }),
    });
    assert.equal(r.steps.length, 2);
    assert.equal(r.steps[0].finishReason, "tool-calls");
    assert.ok(asked.length >= 1);
    for (const input of asked) trip.parse(input);
    assert.equal(r.steps[1].toolCalls.length, 0);
    const stream = streamText({ model: sdk(model), prompt: "Weather in Rome?", tools: { weather }, toolChoice: "required", maxRetries: 0, maxOutputTokens: 200 });
    const calls = await stream.toolCalls;
    assert.equal(calls[0].toolName, "weather");
    trip.parse(calls[0].input);
  },

  async "a JSON schema is kept"() {
    const r = await generateText({ model: sdk(model), prompt: "A trip.", output: Output.object({ schema: trip }), maxRetries: 0, maxOutputTokens: 200, seed: 1 });
    trip.parse(r.output);
  },

  async "an abort frees the slot"() {
    const control = new AbortController();
    const stream = streamText({
      model: sdk(model), prompt: "Count", maxRetries: 0, abortSignal: control.signal, onError() {},
      providerOptions: { carat: { guided_json: endless } },
    });
    for await (const _ of stream.textStream) {
      assert.equal(await running(), 1);
      control.abort();
      break;
    }
    await becomesIdle();
  },
};

const chat = (more = {}) =>
  new ChatOpenAI({ model, apiKey: key, maxRetries: 0, temperature: 0, maxTokens: 12, configuration: { baseURL: `${url}/v1` }, ...more });
const langChain = {
  async "chat, whole and streamed"() {
    const messages = [new SystemMessage("Be brief."), new HumanMessage(hello)];
    const whole = await chat().invoke(messages);
    assert.ok(whole.usage_metadata.output_tokens > 0);
    let text = "";
    for await (const chunk of await chat().stream(messages)) text += chunk.content;
    assert.equal(text, whole.content);
  },

  async "the Responses API, whole and streamed"() {
    const messages = [new SystemMessage("Be brief."), new HumanMessage(hello)];
    const plain = await chat().invoke(messages);
    const whole = await chat({ useResponsesApi: true }).invoke(messages);
    assert.equal(whole.text, plain.content);
    let text = "";
    for await (const chunk of await chat({ useResponsesApi: true }).stream(messages)) text += chunk.text;
    assert.equal(text, plain.content);
    const weather = langTool(async () => "clear", { name: "weather", description: "The weather", schema: trip });
    const bound = chat({ useResponsesApi: true, maxTokens: 200 }).bindTools([weather], { tool_choice: "weather" });
    const question = new HumanMessage("Weather in Oslo?");
    const called = await bound.invoke([question]);
    trip.parse(called.tool_calls[0].args);
    const results = called.tool_calls.map((c) => new ToolMessage({ content: "clear", tool_call_id: c.id }));
    const after = await chat({ useResponsesApi: true }).invoke([question, called, ...results]);
    assert.ok(after.usage_metadata.input_tokens > called.usage_metadata.input_tokens - 200);
  },

  async "a tool, called, run and answered"() {
    const weather = langTool(async ({ city }) => `clear in ${city}`, { name: "weather", description: "The weather of a city", schema: trip });
    const bound = chat({ maxTokens: 200 }).bindTools([weather], { tool_choice: "required", parallel_tool_calls: false });
    const question = new HumanMessage("Weather in Oslo for 2 days?");
    const called = await bound.invoke([question]);
    assert.equal(called.tool_calls.length, 1);
    trip.parse(called.tool_calls[0].args);
    const result = await weather.invoke(called.tool_calls[0]);
    const after = await chat().invoke([question, called, result]);
    assert.ok(after instanceof AIMessage);
  },

  async "a JSON schema is kept"() {
    const r = await chat({ maxTokens: 200 }).withStructuredOutput(trip, { name: "trip", method: "jsonSchema" }).invoke("A trip.");
    trip.parse(r);
  },

  async "an abort frees the slot"() {
    const control = new AbortController();
    const endlessly = chat({ maxTokens: -1, modelKwargs: { guided_json: endless } });
    await assert.rejects(async () => {
      for await (const _ of await endlessly.stream("Count", { signal: control.signal })) control.abort();
    });
    await becomesIdle();
  },
};

model = (await (await fetch(`${url}/v1/models`, { headers })).json()).data[0].id;
let failed = 0;
for (const [library, tests] of [["AI SDK", aiSdk], ["LangChain.js", langChain]])
  for (const [name, test] of Object.entries(tests)) {
    try {
      await test();
      console.log(`ok    ${library}: ${name}`);
    } catch (e) {
      failed++;
      console.log(`FAIL  ${library}: ${name}\n${e.stack}`);
    }
  }
console.log(failed ? `${failed} failed` : "all passed");
process.exit(failed ? 1 : 0);
