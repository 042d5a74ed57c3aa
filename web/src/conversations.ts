// Opening, keeping, deleting and restoring conversations; what other tabs do to them.
import * as db from "./db.ts";
import { eraseMedia, loadDraft } from "./media.ts";
import { changed, newId, read, set, state, toast, write, type Open } from "./store.ts";
import { t } from "./text.ts";
import { path, tip, titleOf } from "./tree.ts";
import type { Conversation, Message, Settings } from "./types.ts";

// The same after a reload of this tab, another in every other tab.
export const tab = (() => {
  try {
    const id = sessionStorage.getItem("carat.tab") ?? newId();
    sessionStorage.setItem("carat.tab", id);
    return id;
  } catch {
    return newId();
  }
})();
const born = Date.now();
const kBeat = 3500;  // a tab that streams says so every second

const loaded = new Map<string, Open>();
const channel = "BroadcastChannel" in window ? new BroadcastChannel("carat") : null;

export function blank(): Open {
  return { head: { id: newId(), title: "", updated: 0, head: null }, messages: new Map() };
}

function listed(c: Conversation): void {
  state.list = [c, ...state.list.filter((o) => o.id !== c.id)].filter((o) => !o.deleted)
    .sort((a, b) => b.updated - a.updated);
}

async function keep(open: Open, list: Message[], head = true): Promise<void> {
  const records = list.map((record) => ({ store: "messages" as const, record }));
  const ok = await db.put(head ? [...records, { store: "conversations" as const, record: open.head }] : records);
  const unsaved = ok ? "" : db.fault === "QuotaExceededError" ? "full" : "closed";
  if (unsaved !== state.unsaved) set({ unsaved });
  if (ok) channel?.postMessage(open.head.id);
}

// A message that is new or has changed, and the conversation it belongs to.
export function save(open: Open, ...list: Message[]): Promise<void> {
  loaded.set(open.head.id, open);
  const asked = open.head.title ? undefined : path(open).find((m) => m.role === "user");
  if (asked) open.head.title = titleOf(asked.content || asked.media?.[0].name || "");
  open.head.updated = Date.now();
  listed(open.head);
  changed();
  return keep(open, list);
}

// While an answer grows: only the message itself, and no new drawing.
export const saveGrowing = (open: Open, m: Message): Promise<void> => keep(open, [m], false);

export function add(open: Open, values: Partial<Message> & { role: Message["role"]; parent: string | null }): Message {
  const m: Message = {
    id: newId(), conversation: open.head.id, created: Date.now(), content: "", thinking: "", tools: [], ...values,
  };
  open.messages.set(m.id, m);
  open.head.head = m.id;
  return m;
}

export function showBranch(open: Open, id: string): void {
  open.head.head = tip(open, id);
  void save(open);
}

// An answer whose tab is gone was cut.
function settle(open: Open): void {
  for (const m of open.messages.values()) {
    if (!m.writer || state.running.has(open.head.id)) continue;
    const mine = m.writer === tab && (m.beat ?? 0) <= born;
    if (mine || Date.now() - (m.beat ?? 0) > kBeat) {
      delete m.writer;
      m.cut = true;
      void keep(open, [m], false);
    } else {
      setTimeout(() => reload(open.head.id), kBeat);
    }
  }
}

async function load(id: string): Promise<Open | null> {
  const known = loaded.get(id);
  if (known) return known;
  const head = state.list.find((c) => c.id === id);
  if (!head) return null;
  const open: Open = { head, messages: new Map((await db.messagesOf(id)).map((m) => [m.id, m])) };
  loaded.set(id, open);
  settle(open);
  return open;
}

let wanted = "";
// push: a step of the browser's history.
export async function show(id: string, push = true): Promise<void> {
  wanted = id;
  const open = await load(id);
  if (wanted !== id) return;
  if (!open) {
    startNew(false);
    set({ notice: t("This chat is not in this browser.") });
    return;
  }
  state.fresh.delete(id);
  set({ current: open, sidebar: false, notice: "" });
  if (push && location.hash !== "#" + id) history.pushState(null, "", "#" + id);
}

export function startNew(push = true): void {
  wanted = "";
  set({ current: blank(), sidebar: false, notice: "" });
  if (push && location.hash) history.pushState(null, "", location.pathname);
  else if (!push && location.hash) history.replaceState(null, "", location.pathname);
}

export function followAddress(): void {
  const id = location.hash.slice(1);
  if (id === (state.current.messages.size ? state.current.head.id : "")) return;
  if (id) void show(id, false);
  else startNew(false);
}

export async function rename(id: string, title: string): Promise<void> {
  const open = await load(id);
  if (!open || !title || title === open.head.title) return;
  open.head.title = title;
  listed(open.head);
  changed();
  await keep(open, []);
}

export async function toFolder(id: string, folder: string): Promise<void> {
  const open = await load(id);
  if (!open || folder === (open.head.folder ?? "")) return;
  if (folder) open.head.folder = folder;
  else delete open.head.folder;
  changed();
  await keep(open, []);
}

// The chat's own settings, or those of all chats that have none.
export function changeSettings(open: Open, settings: Settings | null): void {
  if (settings) open.head.settings = settings;
  else delete open.head.settings;
  changed();
  if (open.messages.size) void keep(open, []);
}

export async function remove(id: string): Promise<void> {
  const open = await load(id);
  if (!open) return;
  state.running.get(id)?.abort();
  open.head.deleted = Date.now();
  listed(open.head);
  const shown = state.current.head.id === id;
  if (shown) startNew();
  await keep(open, []);
  toast({
    text: t("Chat deleted."), action: t("Undo"),
    run: () => {
      delete open.head.deleted;
      listed(open.head);
      set({ toast: null });
      void keep(open, [...open.messages.values()]);  // an answer that ran has grown since
      if (shown) void show(id);
    },
  });
}

async function reload(id: string): Promise<void> {
  if (state.running.has(id) || !loaded.has(id)) return;
  const open = loaded.get(id)!;
  const fresh = await db.messagesOf(id).catch(() => []);
  for (const m of fresh) {
    const old = open.messages.get(m.id);
    if (!old) open.messages.set(m.id, m);
    else if (JSON.stringify(old) !== JSON.stringify(m)) {
      for (const name of Object.keys(old)) delete (old as unknown as Record<string, unknown>)[name];
      changed(Object.assign(old, m).id);
    }
  }
  open.head.head = tip(open, open.head.head);
  settle(open);
  changed();
}

async function relist(): Promise<void> {
  const all = await db.conversations();
  for (const c of all) {
    const open = loaded.get(c.id);
    if (open) Object.assign(open.head, { title: c.title, updated: c.updated, deleted: c.deleted, folder: c.folder, settings: c.settings });
  }
  state.list = all.filter((c) => !c.deleted).map((c) => loaded.get(c.id)?.head ?? c)
    .sort((a, b) => b.updated - a.updated);
  changed();
}

// Conversations of the page's first form lay in localStorage.
async function adopt(): Promise<void> {
  for (const { id } of read<{ id: string }[]>("index", [])) {
    const old = read<{ title?: string; updated?: number; messages?: Partial<Message>[] } | null>("c." + id, null);
    if (!old?.messages) continue;
    const open: Open = { head: { id, title: old.title ?? "", updated: old.updated ?? 0, head: null }, messages: new Map() };
    for (const m of old.messages) {
      const error = typeof m.error === "string" ? { kind: "other" as const, text: m.error } : undefined;
      add(open, { ...m, role: m.role ?? "user", error, id: newId(), conversation: id, parent: open.head.head });
    }
    await keep(open, [...open.messages.values()]);
    if (state.unsaved) return;
    write("c." + id, undefined);
  }
  write("index", undefined);
}

// A page that goes away can finish no transaction: what its answers have grown to goes to localStorage, at once.
export const rescue = (m: Message): void => write("rescue." + m.id, m);

async function takeRescued(): Promise<void> {
  for (const name of Object.keys(localStorage).filter((k) => k.startsWith("carat.rescue."))) {
    const key = name.slice("carat.".length);
    const record = read<Message | null>(key, null);
    if (record && !(await db.put([{ store: "messages", record }]))) return;
    write(key, undefined);
  }
}

export async function begin(): Promise<void> {
  try {
    await takeRescued();
    await adopt();
    for (const c of await db.conversations())
      if (c.deleted && Date.now() - c.deleted > 60_000) {
        await db.erase(c.id);
        await eraseMedia(c.id);
        await eraseMedia("draft." + c.id);
      }
    const left = await loadDraft("draft.new");  // pictures that were taken out of the field are in no draft
    await eraseMedia("draft.new", ["draft.new", ...(left?.media ?? []).map((m) => m.id)]);
    await relist();
  } catch {
    set({ unsaved: "closed" });
  }
  channel?.addEventListener("message", (e) => {
    void relist();
    void reload(String(e.data));
  });
  const id = location.hash.slice(1);
  if (id) await show(id, false);
}

// Drafts: what stands in the field of a conversation, and of the next new one.
export const draftKey = (open: Open) => "draft." + (open.messages.size ? open.head.id : "new");
export const draft = (open: Open): string => read(draftKey(open), "");
export const saveDraft = (open: Open, text: string): void => write(draftKey(open), text || undefined);
