// Conversations and messages in IndexedDB, one record a message: two tabs that write to one conversation add to it, and
// an answer that grows rewrites only itself.
import type { Conversation, Message } from "./types.ts";

type Store = "conversations" | "messages";
type Stored = Conversation | Message;

let opened: Promise<IDBDatabase> | null = null;

function open(): Promise<IDBDatabase> {
  return (opened ??= new Promise((resolve, reject) => {
    const r = indexedDB.open("carat", 1);
    r.onupgradeneeded = () => {
      r.result.createObjectStore("conversations", { keyPath: "id" });
      r.result.createObjectStore("messages", { keyPath: "id" }).createIndex("conversation", "conversation");
    };
    r.onsuccess = () => resolve(r.result);
    r.onerror = () => reject(r.error);
  }));
}

const done = <T>(r: IDBRequest<T>): Promise<T> => new Promise((resolve, reject) => {
  r.onsuccess = () => resolve(r.result);
  r.onerror = () => reject(r.error);
});

export async function conversations(): Promise<Conversation[]> {
  return done((await open()).transaction("conversations").objectStore("conversations").getAll());
}

export async function messagesOf(conversation: string): Promise<Message[]> {
  const index = (await open()).transaction("messages").objectStore("messages").index("conversation");
  return done(index.getAll(conversation));
}

export async function allMessages(): Promise<Message[]> {
  return done((await open()).transaction("messages").objectStore("messages").getAll());
}

// What could not be written stays here and is tried again with the next write.
const waiting = new Map<string, { store: Store; record: Stored }>();
export let fault = "";

export async function put(list: { store: Store; record: Stored }[]): Promise<boolean> {
  for (const item of list) waiting.set(`${item.store}/${item.record.id}`, { ...item, record: structuredClone(item.record) });
  const now = [...waiting];
  try {
    const t = (await open()).transaction(["conversations", "messages"], "readwrite", { durability: "relaxed" });
    for (const [, { store, record }] of now) t.objectStore(store).put(record);
    await new Promise<void>((resolve, reject) => {
      t.oncomplete = () => resolve();
      t.onabort = t.onerror = () => reject(t.error);
    });
    for (const [key, item] of now) if (waiting.get(key) === item) waiting.delete(key);
    fault = "";
    return true;
  } catch (e) {
    fault = (e as DOMException | null)?.name ?? "unknown";
    return false;
  }
}

export async function erase(conversation: string): Promise<void> {
  for (const [key, { record }] of waiting)
    if (record.id === conversation || (record as Message).conversation === conversation) waiting.delete(key);
  const t = (await open()).transaction(["conversations", "messages"], "readwrite");
  t.objectStore("conversations").delete(conversation);
  const messages = t.objectStore("messages");
  const cursor = messages.index("conversation").openKeyCursor(conversation);
  cursor.onsuccess = () => {
    if (!cursor.result) return;
    messages.delete(cursor.result.primaryKey);
    cursor.result.continue();
  };
  await new Promise<void>((resolve, reject) => {
    t.oncomplete = () => resolve();
    t.onabort = () => reject(t.error);
  });
}
