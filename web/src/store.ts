// What the page knows. Views listen to a topic ("app", or the id of a message) and only those drawn from it draw anew.
import { useLayoutEffect, useReducer } from "preact/hooks";
import type { Conversation, Message, Model, Props, Settings } from "./types.ts";

const kPrefix = "carat.";

export function read<T>(key: string, otherwise: T): T {
  try {
    const text = localStorage.getItem(kPrefix + key);
    return text === null ? otherwise : (JSON.parse(text) as T);
  } catch {
    return otherwise;
  }
}

// Settings and drafts are small; a closed store costs them, not the chat.
export function write(key: string, value: unknown): void {
  try {
    if (value === undefined) localStorage.removeItem(kPrefix + key);
    else localStorage.setItem(kPrefix + key, JSON.stringify(value));
  } catch { /* the banner of the conversations' store says it */ }
}

export const defaults: Settings = {
  system: "", temperature: "", top_p: "", top_k: "", min_p: "", repeat_penalty: "", max_tokens: "", seed: "",
  thinking: "", tools: "", schema: "",
};

export interface Preset { name: string; settings: Settings }
export interface Prompt { name: string; text: string }
export type Permission = "ask" | "always" | "never";
// A server of tools: MCP over HTTP.
export interface McpServer { url: string; header: string; allow: Record<string, Permission> }
export interface Toast { text: string; action?: string; run?: () => void }

export const state = {
  settings: { ...defaults, ...read<Partial<Settings>>("settings", {}) },
  presets: read<Preset[]>("presets", []),
  prompts: read<Prompt[]>("prompts", []),
  mcp: read<McpServer[]>("mcp", []),
  theme: read("theme", "auto"),
  language: read("language", ""),
  key: read("key", ""),
  model: read("model", ""),
  list: [] as Conversation[],                 // the latest first, without the deleted
  current: null as unknown as Open,           // the conversation that is shown
  running: new Map<string, AbortController>(),// by conversation: answers that come now
  fresh: new Set<string>(),                   // conversations whose answer came while another was shown
  panel: null as "live" | "settings" | "help" | "records" | null,
  palette: null as "all" | "prompts" | "models" | null,
  compared: null as Message | null,           // an answer beside another way to make it
  sidebar: false,                             // on narrow screens
  props: null as Props | null, models: [] as Model[],
  needKey: false, wrongKey: false, retryIn: 0, unsaved: "", notice: "", toast: null as Toast | null,
  query: "",
};

// A conversation in memory with all its messages, branches included.
export interface Open { head: Conversation; messages: Map<string, Message> }

type Listener = () => void;
const listeners = new Map<string, Set<Listener>>();
const due = new Set<string>();
let scheduled = false;

// At once: what a key opens gets the next key.
export function draw(): void {
  scheduled = false;
  const topics = [...due];
  due.clear();
  for (const topic of topics) for (const l of [...(listeners.get(topic) ?? [])]) l();
}

// Many changes, one drawing.
export function changed(topic = "app"): void {
  due.add(topic);
  if (scheduled) return;
  scheduled = true;
  if (document.hidden) setTimeout(draw, 50);
  else requestAnimationFrame(draw);
}

export function useTopic(topic = "app"): void {
  const [, again] = useReducer((n: number) => n + 1, 0);
  useLayoutEffect(() => {  // before anything else runs: what changed since the drawing would be missed
    const those = listeners.get(topic) ?? new Set();
    listeners.set(topic, those.add(again as Listener));
    return () => {
      those.delete(again as Listener);
    };
  }, [topic]);
}

const kept = ["settings", "presets", "theme", "language", "key", "model", "prompts", "mcp"] as const;

export function set(values: Partial<typeof state>): void {
  Object.assign(state, values);
  for (const name of kept) if (name in values) write(name, values[name]);
  changed();
}

export const settingsOf = (open: Open): Settings => ({ ...defaults, ...(open.head.settings ?? state.settings) });

let toastTimer = 0;
export function toast(t: Toast, ms = 8000): void {
  clearTimeout(toastTimer);
  set({ toast: t });
  toastTimer = window.setTimeout(() => set({ toast: null }), ms);
}

export const newId = (): string => crypto.getRandomValues(new Uint32Array(3)).join("-");
