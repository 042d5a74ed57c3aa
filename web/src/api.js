// Talking to the server: the model list, metrics, and streamed answers.
import { changed, save, set, state } from "./store.js";

function headers() {
  const h = { "Content-Type": "application/json" };
  if (state.key) h.Authorization = `Bearer ${state.key}`;
  return h;
}

export async function get(path) {
  const r = await fetch(path, { headers: headers() });
  if (r.status === 401) set({ needKey: true });
  if (!r.ok) throw new Error(await message(r));
  return r;
}

async function message(r) {
  const text = await r.text();
  try {
    return JSON.parse(text).error.message;
  } catch {
    return text || `status ${r.status}`;
  }
}

export async function connect() {
  try {
    const [models, props] = await Promise.all([
      get("/v1/models").then((r) => r.json()),
      get("/props").then((r) => r.json()),
    ]);
    const names = models.data.map((m) => m.id);
    const model = names.includes(state.model) ? state.model : names[0];
    set({ models: names, props, model, needKey: false, offline: false });
  } catch (e) {
    set({ offline: !state.needKey, notice: state.needKey ? "" : String(e.message) });
    if (!state.needKey) setTimeout(connect, 3000);
  }
}

function wire(m) {
  if (m.role === "tool") return { role: "tool", tool_call_id: m.call, content: m.content };
  const out = { role: m.role, content: m.content };
  if (m.tools?.length)
    out.tool_calls = m.tools.map((t) => ({
      id: t.id, type: "function", function: { name: t.name, arguments: t.arguments },
    }));
  return out;
}

function parseField(text, name) {
  if (!text.trim()) return undefined;
  try {
    return JSON.parse(text);
  } catch (e) {
    throw new Error(`${name} in the parameters is not JSON: ${e.message}`);
  }
}

function request(conversation, settings) {
  const body = {
    model: state.model, stream: true, stream_options: { include_usage: true },
    messages: conversation.messages.filter((m) => !m.error || m.content).map(wire),
  };
  if (settings.system.trim()) body.messages.unshift({ role: "system", content: settings.system });
  for (const name of ["temperature", "top_p", "top_k", "min_p", "repeat_penalty", "max_tokens", "seed"])
    if (settings[name] !== "") body[name] = Number(settings[name]);
  if (settings.thinking) body.enable_thinking = settings.thinking === "on";
  const tools = parseField(settings.tools, "tools");
  if (tools) body.tools = (Array.isArray(tools) ? tools : [tools]).map((t) => (t.function ? t : { type: "function", function: t }));
  const schema = parseField(settings.schema, "the schema");
  if (schema) body.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  return body;
}

// The data of server-sent events.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    for (let end; (end = held.indexOf("\n\n")) >= 0; held = held.slice(end + 2)) {
      const data = held.slice(0, end).split("\n").filter((l) => l.startsWith("data:")).map((l) => l.slice(5).trim());
      if (data.length) yield data.join("\n");
    }
  }
}

function take(answer, delta) {
  answer.content += delta.content ?? "";
  answer.thinking += delta.reasoning_content ?? "";
  for (const t of delta.tool_calls ?? []) {
    answer.tools[t.index] ??= { id: t.id, name: "", arguments: "" };
    answer.tools[t.index].name += t.function?.name ?? "";
    answer.tools[t.index].arguments += t.function?.arguments ?? "";
  }
}

// Asks for the answer to what stands in the conversation, and appends it as it comes.
export async function answer(conversation) {
  if (state.running) return;
  const abort = new AbortController();
  const began = performance.now();
  const reply = { role: "assistant", content: "", thinking: "", tools: [], model: state.model };
  set({ running: { conversation, abort }, notice: "" });
  try {
    const body = JSON.stringify(request(conversation, state.settings));
    conversation.messages.push(reply);
    save(conversation);
    const r = await fetch("/v1/chat/completions", { method: "POST", headers: headers(), body, signal: abort.signal });
    if (r.status === 401) set({ needKey: true });
    if (!r.ok) throw new Error(await message(r));
    for await (const data of events(r.body)) {
      if (data === "[DONE]") break;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      const choice = chunk.choices?.[0];
      if (choice) {
        take(reply, choice.delta);
        reply.finish = choice.finish_reason ?? reply.finish;
        if (choice.delta.content || choice.delta.reasoning_content) reply.firstMs ??= performance.now() - began;
      }
      if (chunk.timings) reply.timings = chunk.timings;
      if (chunk.usage) reply.usage = chunk.usage;
      changed();
    }
  } catch (e) {
    if (abort.signal.aborted) reply.stopped = true;
    else if (conversation.messages.includes(reply)) reply.error = String(e.message || e);
    else set({ notice: String(e.message || e) });
  }
  reply.tools = reply.tools.filter(Boolean);
  set({ running: null });
  save(conversation);
}

export function send(text) {
  const conversation = state.current;
  conversation.messages.push({ role: "user", content: text });
  save(conversation);
  history.replaceState(null, "", "#" + conversation.id);
  return answer(conversation);
}

export function regenerate(conversation, at) {
  conversation.messages.length = at;
  return answer(conversation);
}

export function edit(conversation, at, text) {
  conversation.messages.length = at;
  conversation.messages.push({ role: "user", content: text });
  save(conversation);
  return answer(conversation);
}

export function giveResult(conversation, call, text) {
  conversation.messages.push({ role: "tool", content: text, call: call.id });
  save(conversation);
  const asked = conversation.messages.flatMap((m) => m.tools ?? []).map((t) => t.id);
  const given = new Set(conversation.messages.filter((m) => m.role === "tool").map((m) => m.call));
  if (asked.every((id) => given.has(id))) return answer(conversation);
}
