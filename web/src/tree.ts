// A conversation's messages are a tree: to edit or to regenerate adds a sibling, and nothing is lost.
import type { Open } from "./store.ts";
import type { Message } from "./types.ts";

const order = (a: Message, b: Message) => a.created - b.created || (a.id < b.id ? -1 : 1);

// The messages from the first to the head.
export function path(open: Open, end = open.head.head): Message[] {
  const out: Message[] = [];
  const seen = new Set<string>();
  for (let id = end; id !== null && !seen.has(id);) {
    const m = open.messages.get(id);
    if (!m) break;
    seen.add(id);
    out.push(m);
    id = m.parent;
  }
  return out.reverse();
}

// The children of every message, the oldest first; those of null are first messages.
export function children(open: Open): Map<string | null, Message[]> {
  const out = new Map<string | null, Message[]>();
  for (const m of [...open.messages.values()].sort(order)) {
    const list = out.get(m.parent);
    if (list) list.push(m);
    else out.set(m.parent, [m]);
  }
  return out;
}

// The end of the latest branch below a message.
export function tip(open: Open, id: string | null): string | null {
  const below = children(open);
  for (let at = id; ;) {
    const next = below.get(at)?.at(-1);
    if (!next) return at;
    at = next.id;
  }
}

// The calls of a message, or of the one before its results, that have no result yet.
export function openCalls(list: Message[]): { message: Message; calls: string[] } | null {
  const at = list.findLastIndex((m) => m.role === "assistant");
  if (at < 0 || !list[at].tools.length || list.slice(at + 1).some((m) => m.role !== "tool")) return null;
  const given = new Set(list.slice(at + 1).map((m) => m.call));
  return { message: list[at], calls: list[at].tools.map((t) => t.id).filter((id) => !given.has(id)) };
}

export const titleOf = (text: string): string => text.trim().replace(/\s+/g, " ").slice(0, 60);
