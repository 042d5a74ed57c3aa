// Talking to the server: what it serves, and whether it can be reached.
import { partsOf } from "./media.ts";
import { set, state } from "./store.ts";
import { t } from "./text.ts";
import type { Fault, FaultKind, Message, Model, Props, Settings, ToolCall } from "./types.ts";

export class ApiError extends Error {
  constructor(public kind: FaultKind, text: string) {
    super(text);
  }
}

export function headers(): Record<string, string> {
  const h: Record<string, string> = { "Content-Type": "application/json" };
  if (state.key) h.Authorization = `Bearer ${state.key}`;
  return h;
}

async function failure(r: Response): Promise<ApiError> {
  const body = await r.text();
  let text = body || `HTTP ${r.status}`;
  let code = "";
  try {
    const { error } = JSON.parse(body);
    text = error.message ?? text;
    code = String(error.code ?? error.type ?? "");
  } catch { /* not JSON: shown as it is */ }
  if (r.status === 401) return new ApiError("key", text);
  if (r.status === 503 || r.status === 429) return new ApiError("busy", text);
  const long = r.status === 413 || /context_length|exceed_context/.test(code) || (/context/i.test(text) && /token/i.test(text));
  return new ApiError(long ? "long" : "other", text);
}

export async function call(path: string, init: RequestInit = {}): Promise<Response> {
  let r;
  try {
    r = await fetch(path, { headers: headers(), ...init });
  } catch (e) {
    if (init.signal?.aborted) throw e;
    lost();
    throw new ApiError("away", t("Can't reach the server."));
  }
  if (r.status === 401) set({ needKey: true, wrongKey: !!state.key });
  if (!r.ok) throw await failure(r);
  return r;
}

export const faultOf = (e: unknown): Fault =>
  e instanceof ApiError ? { kind: e.kind, text: e.message } : { kind: "other", text: String((e as Error)?.message ?? e) };

const kRetry = 3;
let timer = 0;

// Counts down and tries again, until the server answers.
export function lost(): void {
  if (timer) return;
  set({ retryIn: kRetry });
  timer = window.setInterval(() => {
    if (state.retryIn > 1) return set({ retryIn: state.retryIn - 1 });
    clearInterval(timer);
    timer = 0;
    void connect();
  }, 1000);
}

export async function connect(): Promise<void> {
  try {
    const [models, props] = await Promise.all([
      call("/v1/models").then((r) => r.json() as Promise<{ data: Model[] }>),
      call("/props").then((r) => r.json() as Promise<Props>),
    ]);
    const names = models.data.map((m) => m.id);
    const model = names.includes(state.model) ? state.model : names[0] ?? "";
    clearInterval(timer);
    timer = 0;
    set({ models: models.data, props, model, needKey: false, wrongKey: false, retryIn: 0 });
  } catch (e) {
    if (faultOf(e).kind !== "key") lost();
    else set({ retryIn: 0 });
  }
}

// The number of tokens of a text, as the server counts.
export async function countTokens(text: string, signal: AbortSignal): Promise<number> {
  const r = await call("/tokenize", { method: "POST", body: JSON.stringify({ content: text }), signal });
  return ((await r.json()) as { tokens: unknown[] }).tokens.length;
}

// A text file stands before the question, fenced by more backticks than it has in a row.
export function withFiles(m: Pick<Message, "content" | "files">): string {
  const fenced = (m.files ?? []).map(({ name, text }) => {
    const fence = "`".repeat(Math.max(3, ...[...text.matchAll(/`+/g)].map((r) => r[0].length + 1)));
    return `${name}\n${fence}\n${text}\n${fence}`;
  });
  return [...fenced, m.content].join("\n\n");
}

function wire(m: Message, media: Map<string, unknown>): Record<string, unknown> {
  if (m.role === "tool") return { role: "tool", tool_call_id: m.call, content: m.content };
  const calls = (c: ToolCall) => ({ id: c.id, type: "function", function: { name: c.name, arguments: c.arguments } });
  const text = withFiles(m), shown = (m.media ?? []).map((one) => media.get(one.id));
  const content = shown.length ? [...shown, ...(text ? [{ type: "text", text }] : [])] : text;
  return { role: m.role, content, ...(m.tools.length ? { tool_calls: m.tools.map(calls) } : {}) };
}

function parseField(text: string, name: string): unknown {
  if (!text.trim()) return undefined;
  try {
    return JSON.parse(text);
  } catch (e) {
    throw new ApiError("other", t("{0} in the settings is not valid JSON: {1}", name, (e as Error).message));
  }
}

const numbers = ["temperature", "top_p", "top_k", "min_p", "repeat_penalty", "max_tokens", "seed"] as const;

export async function request(messages: Message[], settings: Settings, seed?: number, more: unknown[] = []): Promise<Record<string, unknown>> {
  const media = await partsOf(messages);
  const said = messages.filter((m) => m.role !== "assistant" || m.content || m.tools.length).map((m) => wire(m, media));
  if (settings.system.trim()) said.unshift({ role: "system", content: settings.system });
  const body: Record<string, unknown> = {
    model: state.model, stream: true, stream_options: { include_usage: true, include_steps: true }, messages: said,
  };
  if (seed !== undefined) body.seed = seed;
  for (const name of numbers) if (settings[name] !== "") body[name] = Number(settings[name]);
  if (settings.thinking) body.enable_thinking = settings.thinking === "on";
  const tools = [parseField(settings.tools, t("Tools")) ?? [], more].flat() as Record<string, unknown>[];
  if (tools.length) body.tools = tools.map((f) => (f.function ? f : { type: "function", function: f }));
  const schema = parseField(settings.schema, t("Response schema"));
  if (schema) body.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  return body;
}

// What an answer was asked with; one that went on is asked for from where it stood.
export async function requestFor(m: Message, before: Message[], more: unknown[] = []): Promise<Record<string, unknown>> {
  const used = m.used ?? state.settings;
  if (!m.begun) return request(before, used, m.seed, more);
  const begun = { ...m, content: m.begun.content, tools: [], files: [], media: [] };
  return { ...await request([...before, begun], used, m.seed, more), continue_final_message: true };
}
