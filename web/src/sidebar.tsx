import { useEffect, useRef, useState } from "preact/hooks";
import { focusInput } from "./composer.tsx";
import { remove, rename, show, startNew, toFolder } from "./conversations.ts";
import * as db from "./db.ts";
import { exportAll, exportMarkdown, exportOne, importText } from "./exchange.ts";
import { Icon, IconButton } from "./icons.tsx";
import { read, set, state, write } from "./store.ts";
import { language, t } from "./text.ts";
import type { Conversation } from "./types.ts";

// A field for a chat's title or its folder.
function Field({ label, value, list, save, onDone }:
  { label: string; value: string; list?: string; save: (text: string) => void; onDone: () => void }) {
  const ended = useRef(false);
  const end = (text: string | null) => {
    if (ended.current) return;
    ended.current = true;
    if (text !== null) save(text);
    onDone();
  };
  const onKeyDown = (e: KeyboardEvent & { currentTarget: HTMLInputElement }) => {
    e.stopPropagation();
    if (e.isComposing || e.keyCode === 229) return;
    if (e.key === "Enter") end(e.currentTarget.value.trim());
    if (e.key === "Escape") end(null);
  };
  const first = useRef(value);
  return (
    <li class="entry">
      <input class="rename" aria-label={label} placeholder={label} defaultValue={first.current} list={list} ref={(e) => e?.focus()}
        onBlur={(e) => end(e.currentTarget.value.trim())} onKeyDown={onKeyDown} />
    </li>
  );
}

function Entry({ entry }: { entry: Conversation }) {
  const [editing, edit] = useState<"" | "title" | "folder">("");
  const active = state.current.head.id === entry.id;
  const done = () => edit("");
  if (editing === "title")
    return <Field label={t("Title")} value={entry.title} save={(title) => void rename(entry.id, title)} onDone={done} />;
  if (editing === "folder")
    return <Field label={t("Folder (empty: none)")} value={entry.folder ?? ""} list="folders" save={(f) => void toFolder(entry.id, f)} onDone={done} />;
  const mark = state.running.has(entry.id) ? t("answering") : state.fresh.has(entry.id) ? t("new answer") : "";
  return (
    <li class={`entry${active ? " active" : ""}`}>
      <button type="button" class="title" dir="auto" aria-current={active ? "page" : undefined} onClick={() => show(entry.id)}
        onDblClick={() => edit("title")}>
        {mark && <span class={`mark${state.running.has(entry.id) ? " busy" : ""}`} title={mark}><span class="sr">{mark}: </span></span>}
        {entry.title || t("Untitled")}
      </button>
      <span class="entry-actions">
        <IconButton icon="folder" label={t("Move to folder")} onClick={() => edit("folder")} />
        <IconButton icon="pen" label={t("Rename")} onClick={() => edit("title")} />
        <IconButton icon="trash" label={t("Delete chat")} onClick={() => remove(entry.id)} />
      </span>
    </li>
  );
}

// By the time of the last change: today, yesterday, the last week, and by month.
function groups(list: Conversation[]): [string, Conversation[]][] {
  const midnight = new Date().setHours(0, 0, 0, 0), day = 86_400_000;
  const month = new Intl.DateTimeFormat(language(), { month: "long", year: "numeric" });
  const name = (at: number) => at >= midnight ? t("Today") : at >= midnight - day ? t("Yesterday")
    : at >= midnight - 6 * day ? t("Previous 7 days") : month.format(at);
  const out = new Map<string, Conversation[]>();
  for (const c of list) {
    const key = name(c.updated);
    out.set(key, [...(out.get(key) ?? []), c]);
  }
  return [...out];
}

function Foot() {
  const file = useRef<HTMLInputElement>(null);
  const load = async (e: Event & { currentTarget: HTMLInputElement }) => {
    const input = e.currentTarget;
    try {
      await importText(await input.files![0].text());
    } catch (error) {
      set({ notice: t("Not imported: {0}", (error as Error).message), sidebar: false });
    }
    input.value = "";
  };
  const some = state.current.messages.size > 0;
  return (
    <details class="sidebar-foot">
      <summary>{t("Import and export")}</summary>
      <button type="button" disabled={!some} onClick={() => exportMarkdown(state.current)}><Icon name="down" /> {t("This chat as Markdown")}</button>
      <button type="button" disabled={!some} onClick={() => exportOne(state.current)}><Icon name="down" /> {t("This chat as JSON")}</button>
      <button type="button" disabled={!state.list.length} onClick={exportAll}><Icon name="down" /> {t("All chats as JSON")}</button>
      <button type="button" onClick={() => file.current!.click()}><Icon name="up" /> {t("Import")}</button>
      <input ref={file} type="file" accept=".json,application/json" hidden onChange={load} aria-label={t("Import")} />
    </details>
  );
}

// Chats whose messages hold the words; their titles are looked at by the caller.
function useHits(query: string): Set<string> {
  const [hits, found] = useState<Set<string>>(new Set());
  useEffect(() => {
    found(new Set());
    if (query.length < 2) return;
    let gone = false;
    const timer = setTimeout(async () => {
      const all = await db.allMessages().catch(() => []);
      if (!gone) found(new Set(all.filter((m) => m.content.toLowerCase().includes(query)).map((m) => m.conversation)));
    }, 200);
    return () => ((gone = true), clearTimeout(timer));
  }, [query]);
  return hits;
}

function Folders({ list }: { list: Conversation[] }) {
  const names = [...new Set(list.flatMap((c) => c.folder ?? []))].sort((a, b) => a.localeCompare(b, language()));
  const shut = read<string[]>("shut", []);
  const toggle = (name: string, open: boolean) =>
    write("shut", [...read<string[]>("shut", []).filter((one) => one !== name), ...(open ? [] : [name])]);
  return (
    <>
      {names.map((name) => (
        <details class="folder" key={name} open={!!state.query || !shut.includes(name)}>
          <summary onClick={(e) => toggle(name, !(e.currentTarget.parentElement as HTMLDetailsElement).open)}><Icon name="folder" /> <span dir="auto">{name}</span></summary>
          <ul>{list.filter((c) => c.folder === name).map((entry) => <Entry key={entry.id} entry={entry} />)}</ul>
        </details>
      ))}
      <datalist id="folders">{names.map((name) => <option key={name} value={name} />)}</datalist>
    </>
  );
}

export function Sidebar() {
  const query = state.query.trim().toLowerCase();
  const hits = useHits(query);
  const list = query ? state.list.filter((c) => c.title.toLowerCase().includes(query) || hits.has(c.id)) : state.list;
  return (
    <nav class={`sidebar${state.sidebar ? " open" : ""}`} aria-label={t("Chats")}>
      <div class="brand">
        <svg viewBox="0 0 32 32" aria-hidden="true"><path d="M9 5h14l6 8-13 15L3 13z" /><path d="M3 13h26M9 5l7 8 7-8M16 13v15" class="facet" /></svg>
        <span>Carat</span>
      </div>
      <button type="button" class="new" onClick={() => (startNew(), focusInput())}><Icon name="plus" /> {t("New chat")}</button>
      {state.list.length > 0 && (
        <input type="search" class="search" placeholder={t("Search chats")} aria-label={t("Search chats")} value={state.query}
          onInput={(e) => set({ query: e.currentTarget.value })} />
      )}
      <div class="entries">
        <Folders list={list} />
        {groups(list.filter((c) => !c.folder)).map(([name, entries]) => (
          <section key={name}><h2>{name}</h2><ul>{entries.map((entry) => <Entry key={entry.id} entry={entry} />)}</ul></section>
        ))}
        {query && !list.length && <p class="hint">{t("No chats match.")}</p>}
      </div>
      <Foot />
    </nav>
  );
}
