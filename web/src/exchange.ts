// Conversations as files: Markdown, this page's JSON, and the exports of llama.cpp's page and of Open WebUI.
import * as db from "./db.ts";
import { add, blank, save, show } from "./conversations.ts";
import { dataUrl, keepMedia, loadMedia, takeData, withData } from "./media.ts";
import { state, toast, type Open } from "./store.ts";
import { t } from "./text.ts";
import { path, tip } from "./tree.ts";
import type { Conversation, Media, Message, TextFile } from "./types.ts";

function download(name: string, type: string, text: string): void {
  const a = document.createElement("a");
  a.href = URL.createObjectURL(new Blob([text], { type }));
  a.download = name;
  a.click();
  setTimeout(() => URL.revokeObjectURL(a.href), 10_000);
}

const fileName = (title: string) => (title || "conversation").replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40);
async function whole(head: Conversation, list: Message[]) {
  const messages = await Promise.all([...list].sort((a, b) => a.created - b.created).map(withData));
  return { format: "carat", title: head.title, folder: head.folder, head: head.head, messages };
}

export async function exportOne(open: Open): Promise<void> {
  const text = JSON.stringify(await whole(open.head, [...open.messages.values()]), null, 2);
  download(`${fileName(open.head.title)}.json`, "application/json", text);
}

export async function exportAll(): Promise<void> {
  const all = new Map<string, Message[]>(state.list.map((c) => [c.id, []]));
  for (const m of await db.allMessages()) all.get(m.conversation)?.push(m);
  const list = await Promise.all(state.list.map((c) => whole(c, all.get(c.id) ?? [])));
  download("carat-chats.json", "application/json", JSON.stringify(list));
}

export async function exportMarkdown(open: Open): Promise<void> {
  const names = { user: t("You"), assistant: t("Model"), tool: t("Tool result") };
  let text = `# ${open.head.title || t("Untitled")}\n`;
  for (const m of path(open)) {
    text += `\n## ${names[m.role]}\n`;
    if (m.thinking) text += `\n<details><summary>${t("Thought")}</summary>\n\n${m.thinking}\n\n</details>\n`;
    for (const one of m.media ?? []) {
      const blob = one.kind === "image" ? await loadMedia(one.id) : null;
      text += blob ? `\n![${one.name.replace(/[[\]]/g, "")}](${await dataUrl(blob)})\n` : `\n[${one.kind}: ${one.name}]\n`;
    }
    for (const f of m.files ?? []) text += `\n~~~~ ${f.name}\n${f.text}\n~~~~\n`;
    if (m.content) text += `\n${m.content}\n`;
    for (const c of m.tools) text += `\n\`${c.name}(${c.arguments})\`\n`;
  }
  download(`${fileName(open.head.title)}.md`, "text/markdown", text);
}

type Json = Record<string, any>;
interface Plan { title: string; folder?: string; head?: string; messages: Json[] }
const str = (v: unknown): string => (typeof v === "string" ? v : "");

// What a file holds, in the form of this page. Messages carry id and parent, or follow one another.
export function plans(given: unknown): Plan[] {
  const out: Plan[] = [];
  for (const c of (Array.isArray(given) ? given : [given]) as Json[]) {
    if (c?.conv && Array.isArray(c.messages))                              // llama.cpp's page
      out.push({ title: str(c.conv.name), head: str(c.conv.currNode), messages: c.messages });
    else if (c?.chat?.history?.messages)                                   // Open WebUI
      out.push({
        title: str(c.title) || str(c.chat.title), head: str(c.chat.history.currentId),
        messages: Object.values(c.chat.history.messages as Json).map((m: Json) => ({ ...m, parent: m.parentId })),
      });
    else if (Array.isArray(c?.messages)) out.push({ title: str(c.title), folder: str(c.folder), head: str(c.head), messages: c.messages });
  }
  if (!out.length) throw new Error(t("the file has no chat of Carat, llama.cpp or Open WebUI"));
  return out;
}

const content = (v: unknown): string =>
  Array.isArray(v) ? v.map((p: Json) => str(p?.text)).filter(Boolean).join("\n\n") : str(v);

// As this page, llama.cpp's, Open WebUI's and the API carry them.
async function mediaOf(m: Json): Promise<Media[]> {
  const given: [string, string][] = [];
  const list = (v: unknown): Json[] => (Array.isArray(v) ? v.filter((x) => x && typeof x === "object") : []);
  for (const x of list(m.media)) given.push([str(x.data), str(x.name)]);
  for (const x of list(m.extra))
    given.push([str(x.base64Url) || (x.base64Data ? `data:${str(x.mimeType) || "audio/wav"};base64,${str(x.base64Data)}` : ""), str(x.name)]);
  for (const x of list(m.files)) if (x.type === "image") given.push([str(x.url), str(x.name)]);
  for (const x of list(m.content)) given.push([str(x.image_url?.url ?? x.image_url), ""]);
  const out = await Promise.all(given.map(([url, name]) => takeData(url, (name || t("Picture")).slice(0, 200))));
  return out.filter((x) => x !== null);
}

const textsOf = (v: unknown): TextFile[] =>
  (Array.isArray(v) ? v : []).filter((f: Json) => str(f?.text)).map((f: Json) => ({ name: str(f.name), text: str(f.text) }));

// Every message behind the one that it continues, whatever order a file has.
function inOrder(messages: Json[]): Json[] {
  const known = new Map(messages.map((m) => [str(m?.id), m]));
  const depth = (m: Json): number => {
    let n = 0;
    for (let at: Json | undefined = m; n < messages.length && (at = known.get(str(at?.parent))) && str(at.id); ) n++;
    return n;
  };
  return messages.map((m) => ({ m, at: depth(m) })).sort((a, b) => a.at - b.at).map(({ m }) => m);
}

async function take(plan: Plan): Promise<Open> {
  const open = blank();
  const ids = new Map<string, string>();
  const known = new Set(plan.messages.map((m) => str(m?.id)).filter(Boolean));
  // llama.cpp has an empty root, which is no message: its children become first ones.
  const roles = ["user", "assistant", "tool"];
  for (const [i, m] of inOrder(plan.messages).entries()) {
    if (!roles.includes(m?.role)) continue;
    const linked = known.size > 0 && "parent" in m;
    const parent = linked ? ids.get(str(m.parent)) ?? null : open.head.head;
    const media = await mediaOf(m), files = textsOf(m.files);
    const made = add(open, {
      role: m.role, parent, created: i, content: content(m.content), thinking: str(m.thinking) || str(m.reasoning_content),
      ...(m.call ? { call: str(m.call) } : {}), ...(files.length ? { files } : {}), ...(media.length ? { media } : {}),
      tools: (Array.isArray(m.tools) ? m.tools : []).map((c: Json) => ({
        id: str(c?.id), name: str(c?.name), arguments: str(c?.arguments),
      })),
    });
    if (media.length) await keepMedia(open.head.id, media);
    if (str(m.id)) ids.set(str(m.id), made.id);
  }
  open.head.title = plan.title.slice(0, 200);
  if (plan.folder) open.head.folder = plan.folder.slice(0, 80);
  open.head.head = ids.get(plan.head ?? "") ?? tip(open, open.head.head);
  return open;
}

export async function importText(text: string): Promise<void> {
  let given;
  try {
    given = JSON.parse(text);
  } catch {
    throw new Error(t("the file is not JSON"));
  }
  const made: Open[] = [];
  for (const plan of plans(given)) made.push(await take(plan));
  for (const none of made.filter((o) => !o.messages.size)) made.splice(made.indexOf(none), 1);
  for (const open of made) await save(open, ...open.messages.values());
  if (made.length) await show(made[0].head.id);
  toast({ text: t("Imported chats: {0}", made.length) });
}
