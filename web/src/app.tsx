import { useEffect, useRef } from "preact/hooks";
import { connect } from "./api.ts";
import { Chat } from "./chat.tsx";
import { Compare } from "./compare.tsx";
import { focusInput } from "./composer.tsx";
import { startNew } from "./conversations.ts";
import { exportAll } from "./exchange.ts";
import { Icon, IconButton, type IconName } from "./icons.tsx";
import { Live } from "./live.tsx";
import { described, Palette } from "./palette.tsx";
import { Records } from "./records.tsx";
import { Help, Settings } from "./settings.tsx";
import { Sidebar } from "./sidebar.tsx";
import { draw, set, state, useTopic } from "./store.ts";
import { language, t } from "./text.ts";

export function togglePanel(panel: typeof state.panel): void {
  set({ panel: state.panel === panel ? null : panel });
}

function onEscape() {
  if (state.sidebar || state.panel) {
    set({ sidebar: false, panel: null });
    focusInput();
  } else {
    state.running.get(state.current.head.id)?.abort();
  }
}

// Alt, and on Windows Control with Alt, writes characters on European keyboards: no shortcut uses it.
function onKey(e: KeyboardEvent) {
  if (e.isComposing || e.keyCode === 229 || e.altKey || state.palette || state.compared) return;
  if (e.key === "Escape") return onEscape();
  let act: (() => void) | undefined;
  if (e.ctrlKey || e.metaKey) {
    if (e.shiftKey) act = e.code === "KeyO" ? () => (startNew(), focusInput()) : undefined;
    else if (e.key === "k") act = () => set({ palette: "all" });
    else if (e.key === ",") act = () => togglePanel("settings");
  } else if (!/^(INPUT|TEXTAREA|SELECT)$/.test((e.target as Element).tagName)) {
    if (e.key === "/") act = focusInput;
    if (e.key === "?") act = () => togglePanel("help");
  }
  if (!act) return;
  e.preventDefault();
  act();
  draw();
}

const themes: Record<string, [IconName, string]> = { auto: ["half", "light"], light: ["sun", "dark"], dark: ["moon", "auto"] };

function Header() {
  const [icon, next] = themes[state.theme] ?? themes.auto;
  const theme = { auto: t("Theme: as the system"), light: t("Theme: light"), dark: t("Theme: dark") }[state.theme];
  return (
    <header>
      <span class="narrow"><IconButton icon="menu" label={t("Chats")} aria-expanded={state.sidebar}
        onClick={() => set({ sidebar: !state.sidebar })} /></span>
      {state.models.length > 1 ? (
        <button type="button" class="model" aria-haspopup="dialog" aria-label={`${t("Model")}: ${state.model}`} onClick={() => set({ palette: "models" })}>
          <span>{state.model}</span><Icon name="pick" /></button>
      ) : <h1 class="model" title={state.models.map(described).join()}>{state.model || "Carat"}</h1>}
      <span class="gap" />
      <IconButton icon="search" label={`${t("Commands and chats")} (Ctrl+K)`} onClick={() => set({ palette: "all" })} />
      <IconButton icon={icon} label={theme ?? ""} onClick={() => set({ theme: next })} />
      <IconButton icon="sliders" label={t("Settings")} aria-pressed={state.panel === "settings"} onClick={() => togglePanel("settings")} />
      <IconButton icon="live" label={t("Live metrics")} aria-pressed={state.panel === "live"} onClick={() => togglePanel("live")} />
      <span class="wide"><IconButton icon="help" label={t("Keyboard shortcuts")} aria-pressed={state.panel === "help"} onClick={() => togglePanel("help")} /></span>
    </header>
  );
}

function KeyForm() {
  const input = useRef<HTMLInputElement>(null);
  const submit = (e: Event) => {
    e.preventDefault();
    set({ key: input.current!.value.trim(), needKey: false, wrongKey: false });
    void connect();
  };
  return (
    <form class="banner" onSubmit={submit}>
      <label>{state.wrongKey ? t("The server refused this API key. Enter another.") : t("This server needs an API key.")}{" "}
        <input ref={input} type="password" autocomplete="off" /></label>
      <button class="primary">{t("Connect")}</button>
    </form>
  );
}

function Banners() {
  if (!state.needKey && !state.retryIn && !state.unsaved) return null;
  return (
    <section aria-label={t("Notices")}>
      {state.needKey && <KeyForm />}
      {state.retryIn > 0 && (
        <div class="banner" role="status"><span class="grow">{t("Can't reach the server, retrying in {0} s", state.retryIn)}</span>
          <button type="button" onClick={connect}>{t("Retry now")}</button></div>
      )}
      {state.unsaved && (
        <div class="banner bad" role="alert">
          <span class="grow">{state.unsaved === "full"
            ? t("This browser's storage is full. New messages are kept only until this page closes: export your chats, or delete old ones.")
            : t("This browser doesn't let the page store data. New messages are kept only until this page closes.")}</span>
          <button type="button" onClick={exportAll}>{t("All chats as JSON")}</button>
        </div>
      )}
    </section>
  );
}

function Toast() {
  const now = state.toast;
  return (
    <div class="toasts" role="status">
      {now && <div class="toast">{now.text} {now.action && <button type="button" onClick={now.run}>{now.action}</button>}</div>}
    </div>
  );
}

export function App() {
  useTopic();
  const said = language();
  useEffect(() => {
    document.documentElement.dataset.theme = state.theme;
  }, [state.theme]);
  useEffect(() => {
    document.documentElement.lang = said;
  }, [said]);
  useEffect(() => {
    document.title = state.current.head.title ? `${state.current.head.title} · Carat` : "Carat";
  }, [state.current.head.title]);
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
        <Banners />
        <Chat open={state.current} />
      </div>
      {state.panel === "live" && <Live />}
      {state.panel === "settings" && <Settings />}
      {state.panel === "help" && <Help />}
      {state.panel === "records" && <Records />}
      {state.palette && <Palette />}
      {state.compared && <Compare key={state.compared.id} m={state.compared} />}
      <Toast />
    </div>
  );
}
