// The AI SDK, LangChain.js (OpenAI's and Ollama's chats) and Ollama's own package, unmodified, against a running server: node client.mjs URL KEY
import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { AIMessage, HumanMessage, SystemMessage, ToolMessage } from "@langchain/core/messages";
import { tool as langTool } from "@langchain/core/tools";
import { ChatOllama } from "@langchain/ollama";
import { ChatOpenAI } from "@langchain/openai";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { Ollama } from "ollama";
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

const ollama = new Ollama({ host: url, headers });
const brief = { temperature: 0, num_predict: 12, seed: 1 };
const tripSchema = z.toJSONSchema(trip);
const weatherTool = { type: "function", function: { name: "weather", description: "The weather of a city", parameters: tripSchema } };
const ollamaPackage = {
  async "models"() {
    const { models } = await ollama.list();
    assert.ok(models.some((m) => m.name === model && m.size > 0 && m.details.family && m.digest.length === 64));
    const shown = await ollama.show({ model });
    assert.ok(shown.capabilities.includes("completion") && shown.template.length > 0);
    assert.ok(shown.model_info["general.architecture"]);
    const running = await ollama.ps();
    assert.ok(running.models[0].context_length > 0 && running.models[0].expires_at);
    assert.match((await ollama.version()).version, /^\d+\.\d+\.\d+$/);
    const steps = [];
    for await (const step of await ollama.pull({ model, stream: true })) steps.push(step.status);
    assert.equal(steps.at(-1), "success");
    await assert.rejects(ollama.pull({ model: "no/such" }), (e) => e.status_code === 403 && /carat pull/.test(e.message));
    await assert.rejects(ollama.embed({ model, input: "x" }), /embeddings/);
    await assert.rejects(ollama.delete({ model }), (e) => e.status_code === 501);
  },

  async "chat and generate, whole and streamed"() {
    const messages = [{ role: "user", content: hello }];
    const whole = await ollama.chat({ model, messages, options: brief });
    assert.ok(whole.done && whole.eval_count > 0 && whole.prompt_eval_count > 0 && whole.total_duration > 1e5);
    let text = "", last;
    for await (const part of await ollama.chat({ model, messages, options: brief, stream: true })) {
      text += part.message.content;
      last = part;
    }
    assert.equal(text, whole.message.content);
    assert.equal(last.eval_count, whole.eval_count);
    assert.equal((await ollama.generate({ model, prompt: hello, options: brief })).response, text);
    const raw = await ollama.generate({ model, prompt: "Once", raw: true, options: brief });
    assert.ok(raw.eval_count > 0 && raw.context === undefined);
    assert.equal((await ollama.generate({ model, prompt: "" })).done_reason, "load");
    await assert.rejects(ollama.chat({ model, messages: [{ role: "user", content: "?", images: ["aGk="] }] }), /images/);
  },

  async "a JSON schema is kept"() {
    const r = await ollama.chat({ model, messages: [{ role: "user", content: "A trip." }], format: tripSchema, options: { num_predict: 200, seed: 1 } });
    trip.parse(JSON.parse(r.message.content));
  },

  async "a call's result goes back"() {
    const asked = { role: "user", content: "Weather in Oslo for 2 days?" };
    const call = { role: "assistant", content: "", tool_calls: [{ function: { name: "weather", arguments: { city: "Oslo", days: 2 } } }] };
    const after = await ollama.chat({ model, messages: [asked, call, { role: "tool", tool_name: "weather", content: "clear" }], tools: [weatherTool], options: brief });
    assert.ok(after.done);
    for (const c of after.message.tool_calls ?? []) assert.equal(typeof c.function.arguments, "object");
  },

  async "an abort frees the slot"() {
    const stream = await ollama.chat({ model, messages: [{ role: "user", content: "Count" }], format: endless, stream: true });
    await assert.rejects(async () => {
      for await (const _ of stream) stream.abort();
    });
    await becomesIdle();
  },
};

const chatOllama = (more = {}) => new ChatOllama({ model, baseUrl: url, headers, temperature: 0, numPredict: 12, seed: 1, ...more });
const langChainOllama = {
  async "chat, whole and streamed, the model looked for"() {
    const messages = [new SystemMessage("Be brief."), new HumanMessage(hello)];
    const whole = await chatOllama({ checkOrPullModel: true }).invoke(messages);
    assert.ok(whole.usage_metadata.output_tokens > 0);
    let text = "";
    for await (const chunk of await chatOllama().stream(messages)) text += chunk.content;
    assert.equal(text, whole.content);
    assert.equal((await chat().invoke(messages)).content, text);
  },

  async "a JSON schema is kept; results of tools go back"() {
    trip.parse(await chatOllama({ numPredict: 200 }).withStructuredOutput(trip).invoke("A trip."));
    const call = { name: "weather", args: { city: "Oslo", days: 2 }, id: "w1", type: "tool_call" };
    const history = [
      new HumanMessage("Weather in Oslo?"), new AIMessage({ content: "", tool_calls: [call] }),
      new ToolMessage({ content: "clear", tool_call_id: "w1" }),
    ];
    const weather = langTool(async () => "clear", { name: "weather", description: "The weather", schema: trip });
    assert.ok((await chatOllama().bindTools([weather]).invoke(history)).usage_metadata.input_tokens > 20);
  },
};

model = (await (await fetch(`${url}/v1/models`, { headers })).json()).data[0].id;
let failed = 0;
for (const [library, tests] of [["AI SDK", aiSdk], ["LangChain.js", langChain], ["ollama", ollamaPackage], ["LangChain's Ollama", langChainOllama]])
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
