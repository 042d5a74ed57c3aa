// What the page knows: settings and conversations, kept in localStorage. Views listen and draw anew.

const kPrefix = "carat.";
const listeners = new Set();
let scheduled = false;

function read(key, otherwise) {
  try {
    const text = localStorage.getItem(kPrefix + key);
    return text === null ? otherwise : JSON.parse(text);
  } catch {
    return otherwise;
  }
}

// A full or forbidden store costs the history, not the chat.
function write(key, value) {
  try {
    if (value === undefined) localStorage.removeItem(kPrefix + key);
    else localStorage.setItem(kPrefix + key, JSON.stringify(value));
    state.storageFailed = false;
  } catch {
    state.storageFailed = true;
  }
}

export const defaults = {
  system: "", temperature: "", top_p: "", top_k: "", min_p: "", repeat_penalty: "", max_tokens: "", seed: "",
  thinking: "", tools: "", schema: "",
};

export const state = {
  settings: { ...defaults, ...read("settings", {}) },
  theme: read("theme", "auto"),
  key: read("key", ""),
  model: read("model", ""),
  index: read("index", []),  // [{id, title, updated}], the latest first
  current: null,             // the open conversation: {id, title, updated, messages}
  running: null,             // {conversation, abort} while an answer comes
  panel: null,               // "live", "settings", "help" or null
  sidebar: false,            // on narrow screens
  props: null, models: [], needKey: false, offline: false, storageFailed: false, notice: "",
};

export function subscribe(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

// Many changes, one drawing.
export function changed() {
  if (scheduled) return;
  scheduled = true;
  const run = () => {
    scheduled = false;
    for (const l of listeners) l();
  };
  if (document.hidden) setTimeout(run, 50);
  else requestAnimationFrame(run);
}

export function set(values) {
  Object.assign(state, values);
  for (const name of ["settings", "theme", "key", "model"]) if (name in values) write(name, values[name]);
  changed();
}

export const newId = () => crypto.getRandomValues(new Uint32Array(3)).join("-");

export function newConversation() {
  set({ current: { id: newId(), title: "", updated: 0, messages: [] }, sidebar: false, notice: "" });
  history.replaceState(null, "", location.pathname);
}

export function openConversation(id) {
  if (state.running && state.running.conversation.id === id) {
    set({ current: state.running.conversation, sidebar: false });
  } else {
    const found = read("c." + id, null);
    if (!found || !Array.isArray(found.messages)) return newConversation();
    set({ current: found, sidebar: false, notice: "" });
  }
  history.replaceState(null, "", "#" + id);
}

export function save(conversation) {
  if (!conversation.messages.length) return;
  const first = conversation.messages.find((m) => m.role === "user");
  if (!conversation.title && first) conversation.title = first.content.trim().replace(/\s+/g, " ").slice(0, 60);
  conversation.updated = Date.now();
  const { id, title, updated } = conversation;
  state.index = [{ id, title, updated }, ...state.index.filter((c) => c.id !== id)];
  write("c." + id, conversation);
  write("index", state.index);
  changed();
}

export function rename(id, title) {
  state.index = state.index.map((c) => (c.id === id ? { ...c, title } : c));
  const conversation = state.current?.id === id ? state.current : read("c." + id, null);
  if (conversation) {
    conversation.title = title;
    write("c." + id, conversation);
  }
  write("index", state.index);
  changed();
}

export function remove(id) {
  state.index = state.index.filter((c) => c.id !== id);
  write("c." + id, undefined);
  write("index", state.index);
  if (state.running?.conversation.id === id) state.running.abort.abort();
  if (state.current?.id === id) newConversation();
  else changed();
}

export function download(name, type, text) {
  const a = document.createElement("a");
  a.href = URL.createObjectURL(new Blob([text], { type }));
  a.download = name;
  a.click();
  setTimeout(() => URL.revokeObjectURL(a.href), 10_000);
}

const fileName = (title) => (title || "conversation").replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40);

export function exportJson(conversation) {
  download(`${fileName(conversation.title)}.json`, "application/json", JSON.stringify(conversation, null, 2));
}

export function exportMarkdown(conversation) {
  const names = { user: "You", assistant: "Model", tool: "Tool result" };
  let text = `# ${conversation.title || "Conversation"}\n`;
  for (const m of conversation.messages) {
    text += `\n## ${names[m.role] ?? m.role}\n`;
    if (m.thinking) text += `\n<details><summary>Thinking</summary>\n\n${m.thinking}\n\n</details>\n`;
    if (m.content) text += `\n${m.content}\n`;
    for (const t of m.tools ?? []) text += `\n\`${t.name}(${t.arguments})\`\n`;
  }
  download(`${fileName(conversation.title)}.md`, "text/markdown", text);
}

// Only what this page would have written itself is taken from a file.
export function importJson(text) {
  const given = JSON.parse(text);
  if (!Array.isArray(given.messages)) throw new Error("no conversation of this page");
  const str = (v) => (typeof v === "string" ? v : "");
  const messages = given.messages
    .filter((m) => ["user", "assistant", "tool"].includes(m?.role))
    .map((m) => ({
      role: m.role, content: str(m.content), thinking: str(m.thinking), call: str(m.call),
      tools: (Array.isArray(m.tools) ? m.tools : []).map((t) => ({
        id: str(t.id), name: str(t.name), arguments: str(t.arguments),
      })),
    }));
  const conversation = { id: newId(), title: str(given.title).slice(0, 200), updated: 0, messages };
  save(conversation);
  openConversation(conversation.id);
}
