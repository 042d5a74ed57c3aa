// Streamed answers: several conversations may have one each.
import { ApiError, call, faultOf, lost, requestFor } from "./api.ts";
import { add, rescue, save, saveGrowing, tab } from "./conversations.ts";
import { keepMedia } from "./media.ts";
import { callTool, offered, permission } from "./mcp.ts";
import { changed, set, settingsOf, state, type Open } from "./store.ts";
import { openCalls, path } from "./tree.ts";
import type { Chunk, Delta, Media, Message, TextFile, ToolCall } from "./types.ts";

const kSaveEvery = 300, kBeatEvery = 1000;

// The data of server-sent events.
export async function* events(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const reader = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value.replaceAll("\r\n", "\n");
    for (let end; (end = held.indexOf("\n\n")) >= 0; held = held.slice(end + 2)) {
      const data = held.slice(0, end).split("\n").filter((l) => l.startsWith("data:")).map((l) => l.slice(5).trim());
      if (data.length) yield data.join("\n");
    }
  }
}

function take(reply: Message, delta: Delta): void {
  reply.content += delta.content ?? "";
  reply.thinking += delta.reasoning_content ?? "";
  for (const c of delta.tool_calls ?? []) {
    reply.tools[c.index] ??= { id: c.id ?? "", name: "", arguments: "" };
    reply.tools[c.index].name += c.function?.name ?? "";
    reply.tools[c.index].arguments += c.function?.arguments ?? "";
  }
}

const soon = new Set<string>();
function saveSoon(open: Open, reply: Message): void {
  if (soon.has(reply.id)) return;
  soon.add(reply.id);
  setTimeout(() => {
    soon.delete(reply.id);
    if (reply.writer) void saveGrowing(open, reply);
  }, kSaveEvery);
}

async function stream(open: Open, reply: Message, before: Message[], abort: AbortController): Promise<void> {
  const began = performance.now();
  reply.used = settingsOf(open);
  reply.seed = Number(reply.used.seed || crypto.getRandomValues(new Uint32Array(1))[0] >>> 1);
  const body = JSON.stringify(await requestFor(reply, before, offered()));
  const r = await call("/v1/chat/completions", { method: "POST", body, signal: abort.signal });
  let ended = false;
  for await (const data of events(r.body!)) {
    if (data === "[DONE]") break;
    const chunk = JSON.parse(data) as Chunk;
    if (chunk.error) throw new ApiError("other", chunk.error.message);
    const choice = chunk.choices?.[0];
    const now = performance.now();
    if (choice) {
      take(reply, choice.delta);
      if (choice.finish_reason) ended = true;
      reply.finish = choice.finish_reason ?? reply.finish;
      if (choice.delta.content || choice.delta.reasoning_content) reply.firstMs ??= now - began;
      if (choice.delta.content && reply.thinking) reply.thoughtMs ??= now - began - (reply.firstMs ?? 0);
    }
    if (chunk.timings) reply.timings = chunk.timings;
    if (chunk.steps) (reply.steps ??= []).push(...chunk.steps);
    if (chunk.usage) reply.usage = chunk.usage;
    changed(reply.id);
    saveSoon(open, reply);
  }
  if (!ended) reply.cut = true;
}

function failed(reply: Message, e: unknown, stopped: boolean): void {
  if (stopped) {
    reply.stopped = true;
  } else if (e instanceof ApiError) {
    reply.error = faultOf(e);
  } else if (e instanceof TypeError) {  // the browser's name for a connection that broke
    reply.cut = true;
    lost();
  } else {
    reply.error = faultOf(e);
  }
}

// Asks for the answer to what stands up to the head, and appends it as it comes.
export async function answer(open: Open, begun: Partial<Message> = {}): Promise<void> {
  const id = open.head.id;
  if (state.running.has(id)) return;
  const abort = new AbortController();
  const before = path(open);
  state.running.set(id, abort);
  const reply = add(open, { role: "assistant", parent: open.head.head, model: state.model, writer: tab, beat: Date.now(), ...begun });
  set({ notice: "" });
  void save(open, reply);
  const beat = setInterval(() => {
    reply.beat = Date.now();
    void saveGrowing(open, reply);
  }, kBeatEvery);
  const flush = () => rescue(reply);
  addEventListener("pagehide", flush);
  try {
    await stream(open, reply, before, abort);
  } catch (e) {
    failed(reply, e, abort.signal.aborted);
  }
  clearInterval(beat);
  removeEventListener("pagehide", flush);
  reply.tools = reply.tools.filter(Boolean);
  delete reply.writer;
  delete reply.beat;
  state.running.delete(id);
  if (state.current.head.id !== id) state.fresh.add(id);
  changed(reply.id);
  if (open.head.deleted) return;
  void save(open, reply);
  await runAllowed(open, reply);
}

// Tools of MCP servers that need not ask run at once, some rounds long.
const kRounds = 12;
async function runAllowed(open: Open, reply: Message): Promise<void> {
  if (reply.error || reply.cut || reply.stopped) return;
  const since = path(open).slice(path(open).findLastIndex((m) => m.role === "user")).filter((m) => m.role === "assistant");
  if (since.length > kRounds) return;
  for (const c of reply.tools) if (permission(c.name) === "always") await runTool(open, c);
}

const called = new Set<string>();
export const isCalled = (id: string): boolean => called.has(id);

export async function runTool(open: Open, c: ToolCall): Promise<void> {
  if (called.has(c.id)) return;
  called.add(c.id);
  changed();
  const result = await callTool(c.name, c.arguments);
  called.delete(c.id);
  await giveResult(open, c.id, result);
}

export function send(open: Open, text: string, files: TextFile[] = [], media: Media[] = []): Promise<void> {
  const m = add(open, {
    role: "user", content: text, ...(files.length ? { files } : {}), ...(media.length ? { media } : {}), parent: open.head.head,
  });
  if (media.length) void keepMedia(open.head.id, media);
  void save(open, m);
  if (state.current === open && location.hash !== "#" + open.head.id) history.pushState(null, "", "#" + open.head.id);
  return answer(open);
}

// Another answer beside this one.
export function regenerate(open: Open, m: Message): Promise<void> {
  open.head.head = m.parent;
  return answer(open);
}

export function edit(open: Open, m: Message, text: string): Promise<void> {
  open.head.head = m.parent;
  return send(open, text, m.files, m.media);
}

// Lets the model go on where its answer ended, as another version: what there was stays.
export function goOn(open: Open, m: Message): Promise<void> {
  open.head.head = m.parent;
  return answer(open, { content: m.content, thinking: m.thinking, thoughtMs: m.thoughtMs, steps: [...(m.steps ?? [])],
    begun: { content: m.content, steps: m.steps?.length ?? 0 } });
}

// Takes the question of a failed answer out of the way; it stays as a branch.
export function takeBack(open: Open, reply: Message): Message | undefined {
  const question = open.messages.get(reply.parent ?? "");
  open.head.head = question?.parent ?? null;
  void save(open);
  return question;
}

export async function giveResult(open: Open, id: string, text: string): Promise<void> {
  void save(open, add(open, { role: "tool", content: text, call: id, parent: open.head.head }));
  if (!openCalls(path(open))?.calls.length) await answer(open);
}
