import { useEffect, useReducer, useRef } from "preact/hooks";
import { connect } from "./api.js";
import { Chat, focusInput } from "./chat.jsx";
import { IconButton } from "./icons.jsx";
import { Live } from "./live.jsx";
import { Help, Settings } from "./settings.jsx";
import { Sidebar } from "./sidebar.jsx";
import { newConversation, set, state, subscribe } from "./store.js";

function useStore() {
  const [, draw] = useReducer((n) => n + 1, 0);
  useEffect(() => subscribe(draw), []);
}

export function togglePanel(panel) {
  set({ panel: state.panel === panel ? null : panel });
}

function onKey(e) {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(e.target.tagName);
  if (e.key === "Escape") {
    if (state.sidebar || state.panel) {
      set({ sidebar: false, panel: null });
      focusInput();
    } else if (state.running) state.running.abort.abort();
    return;
  }
  if (e.altKey && !e.ctrlKey && !e.metaKey) {
    const act = { KeyN: () => (newConversation(), focusInput()), KeyL: () => togglePanel("live"), KeyP: () => togglePanel("settings") }[e.code];
    if (act) {
      e.preventDefault();
      act();
    }
    return;
  }
  if (typing || e.ctrlKey || e.metaKey) return;
  if (e.key === "/") {
    e.preventDefault();
    focusInput();
  } else if (e.key === "?") togglePanel("help");
}

function useTheme() {
  useEffect(() => {
    document.documentElement.dataset.theme = state.theme;
  }, [state.theme]);
}

const themes = { auto: ["half", "light"], light: ["sun", "dark"], dark: ["moon", "auto"] };

function Header() {
  const [icon, next] = themes[state.theme] ?? themes.auto;
  return (
    <header>
      <span class="narrow"><IconButton icon="menu" label="Conversations" aria-expanded={state.sidebar}
        onClick={() => set({ sidebar: !state.sidebar })} /></span>
      {state.models.length > 1 ? (
        <select aria-label="Model" class="model" value={state.model} onChange={(e) => set({ model: e.target.value })}>
          {state.models.map((m) => <option key={m}>{m}</option>)}
        </select>
      ) : <h1 class="model">{state.model || "Carat"}</h1>}
      <span class="gap" />
      <IconButton icon={icon} label={`Colours: ${state.theme}`} onClick={() => set({ theme: next })} />
      <IconButton icon="sliders" label="Parameters (Alt+P)" aria-pressed={state.panel === "settings"}
        onClick={() => togglePanel("settings")} />
      <IconButton icon="live" label="Live figures (Alt+L)" aria-pressed={state.panel === "live"}
        onClick={() => togglePanel("live")} />
      <IconButton icon="help" label="Keys (?)" aria-pressed={state.panel === "help"} onClick={() => togglePanel("help")} />
    </header>
  );
}

function KeyForm() {
  const input = useRef();
  const submit = (e) => {
    e.preventDefault();
    set({ key: input.current.value.trim(), needKey: false });
    connect();
  };
  return (
    <form class="banner" onSubmit={submit}>
      <label>This server asks for an API key. <input ref={input} type="password" autocomplete="off" /></label>
      <button class="primary">Use it</button>
    </form>
  );
}

export function App() {
  useStore();
  useTheme();
  useEffect(() => {
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  return (
    <div class={`app${state.panel ? " with-panel" : ""}`}>
      <Sidebar />
      {state.sidebar && <div class="shade" onClick={() => set({ sidebar: false })} />}
      <div class="middle">
        <Header />
        {state.needKey && <KeyForm />}
        {state.offline && <div class="banner" role="status">The server does not answer: {state.notice}. Trying again.</div>}
        {state.storageFailed && <div class="banner" role="status">The browser's store is full or closed: this conversation will not be kept.</div>}
        <Chat conversation={state.current} running={state.running?.conversation === state.current} />
      </div>
      {state.panel === "live" && <Live />}
      {state.panel === "settings" && <Settings />}
      {state.panel === "help" && <Help />}
    </div>
  );
}
