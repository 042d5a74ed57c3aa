import { useRef, useState } from "preact/hooks";
import { focusInput } from "./chat.jsx";
import { Icon, IconButton } from "./icons.jsx";
import { exportJson, exportMarkdown, importJson, newConversation, openConversation, remove, rename, set, state } from "./store.js";

function Entry({ entry }) {
  const [editing, edit] = useState(false);
  const active = state.current?.id === entry.id;
  if (editing)
    return (
      <li class="entry">
        <input class="rename" aria-label="Title" value={entry.title} ref={(e) => e?.focus()}
          onBlur={(e) => (rename(entry.id, e.target.value.trim() || entry.title), edit(false))}
          onKeyDown={(e) => (e.key === "Enter" || e.key === "Escape") && (e.stopPropagation(), e.target.blur())} />
      </li>
    );
  return (
    <li class={`entry${active ? " active" : ""}`}>
      <button type="button" class="title" aria-current={active ? "page" : undefined} onClick={() => openConversation(entry.id)}
        onDblClick={() => edit(true)}>{entry.title || "Untitled"}</button>
      {active && <IconButton icon="pen" label="Rename" onClick={() => edit(true)} />}
      {active && <IconButton icon="trash" label="Delete conversation" onClick={() => remove(entry.id)} />}
    </li>
  );
}

export function Sidebar() {
  const file = useRef();
  const load = async (e) => {
    try {
      importJson(await e.target.files[0].text());
    } catch (error) {
      set({ notice: `Not imported: ${error.message}`, sidebar: false });
    }
    e.target.value = "";
  };
  return (
    <nav class={`sidebar${state.sidebar ? " open" : ""}`} aria-label="Conversations">
      <div class="brand">
        <svg viewBox="0 0 32 32" aria-hidden="true"><path d="M9 5h14l6 8-13 15L3 13z" /><path d="M3 13h26M9 5l7 8 7-8M16 13v15" class="facet" /></svg>
        <span>Carat</span>
      </div>
      <button type="button" class="new" onClick={() => (newConversation(), focusInput())}><Icon name="plus" /> New conversation</button>
      <ul class="entries">{state.index.map((entry) => <Entry key={entry.id} entry={entry} />)}</ul>
      <div class="sidebar-foot">
        <button type="button" disabled={!state.current?.messages.length} onClick={() => exportMarkdown(state.current)}><Icon name="down" /> Markdown</button>
        <button type="button" disabled={!state.current?.messages.length} onClick={() => exportJson(state.current)}><Icon name="down" /> JSON</button>
        <button type="button" onClick={() => file.current.click()}><Icon name="up" /> Import</button>
        <input ref={file} type="file" accept=".json,application/json" hidden onChange={load} aria-label="Import a conversation" />
      </div>
    </nav>
  );
}
