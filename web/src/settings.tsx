import { useState } from "preact/hooks";
import { changeSettings } from "./conversations.ts";
import { IconButton } from "./icons.tsx";
import { McpServers } from "./servers.tsx";
import { defaults, set, settingsOf, state } from "./store.ts";
import { languages, t } from "./text.ts";
import type { Settings as Values } from "./types.ts";

type Field = [name: keyof Values, label: string, hint: string, limits: Record<string, number>, served: string | null];
const fields = (): Field[] => [
  ["temperature", t("Temperature"), t("0 always takes the most likely token; higher is more varied"), { min: 0, max: 100, step: 0.1 }, "temperature"],
  ["top_p", "Top-p", t("Keep the most likely tokens up to this total probability"), { min: 0, max: 1, step: 0.01 }, "top_p"],
  ["top_k", "Top-k", t("Keep this many of the most likely tokens; 0 keeps all"), { min: 0, step: 1 }, "top_k"],
  ["min_p", "Min-p", t("Drop tokens below this fraction of the top probability"), { min: 0, max: 1, step: 0.01 }, "min_p"],
  ["repeat_penalty", t("Repeat penalty"), t("1 turns it off"), { min: 0.01, max: 100, step: 0.01 }, "repeat_penalty"],
  ["max_tokens", t("Max tokens"), t("The longest answer, in tokens"), { min: 1, step: 1 }, "max_tokens"],
  ["seed", t("Seed"), t("The same seed gives the same answer"), { step: 1 }, null],
];

const now = (): Values => settingsOf(state.current);
function use(values: Values) {
  if (state.current.head.settings) changeSettings(state.current, values);
  else set({ settings: values });
}
const change = (name: keyof Values, value: string) => use({ ...now(), [name]: value });

export function Panel({ title, children }: { title: string; children: preact.ComponentChildren }) {
  return (
    <aside class="panel" aria-label={title}>
      <div class="panel-head"><h2>{title}</h2><IconButton icon="close" label={t("Close")} onClick={() => set({ panel: null })} /></div>
      {children}
    </aside>
  );
}

function Presets() {
  const [name, setName] = useState("");
  const same = (a: Values) => JSON.stringify({ ...defaults, ...a }) === JSON.stringify(now());
  const chosen = state.presets.findIndex((p) => same(p.settings));
  const keep = () => {
    set({ presets: [...state.presets.filter((p) => p.name !== name.trim()), { name: name.trim(), settings: now() }] });
    setName("");
  };
  return (
    <div class="presets">
      {state.presets.length > 0 && (
        <div class="row-fill">
          <label class="field">{t("Preset")}
            <select value={chosen} onChange={(e) => {
              const p = state.presets[Number(e.currentTarget.value)];
              if (p) use({ ...defaults, ...p.settings });
            }}>
              <option value={-1}>{t("None")}</option>
              {state.presets.map((p, i) => <option key={p.name} value={i}>{p.name}</option>)}
            </select>
          </label>
          <IconButton icon="trash" label={t("Delete preset")} disabled={chosen < 0}
            onClick={() => set({ presets: state.presets.filter((_, i) => i !== chosen) })} />
        </div>
      )}
      <div class="row-fill">
        <label class="field">{t("Save these settings as a preset")}
          <input value={name} placeholder={t("Name")} onInput={(e) => setName(e.currentTarget.value)} />
        </label>
        <button type="button" disabled={!name.trim()} onClick={keep}>{t("Save")}</button>
      </div>
    </div>
  );
}

function Prompts() {
  const [name, setName] = useState(""), [text, setText] = useState("");
  const keep = () => {
    set({ prompts: [...state.prompts.filter((p) => p.name !== name.trim()), { name: name.trim(), text }] });
    setName("");
    setText("");
  };
  return (
    <div class="presets">
      <h3>{t("Prompt library")}</h3>
      <p class="hint">{t("/ in an empty message field lists these.")}</p>
      {state.prompts.map((p) => (
        <div class="row-fill" key={p.name}>
          <button type="button" class="plain-button" title={p.text} onClick={() => (setName(p.name), setText(p.text))}>{p.name}</button>
          <IconButton icon="trash" label={t("Remove {0}", p.name)} onClick={() => set({ prompts: state.prompts.filter((o) => o !== p) })} />
        </div>
      ))}
      <label class="field">{t("Text")} <textarea rows={2} dir="auto" value={text} onInput={(e) => setText(e.currentTarget.value)} /></label>
      <div class="row-fill">
        <label class="field">{t("Name")} <input value={name} onInput={(e) => setName(e.currentTarget.value)} /></label>
        <button type="button" disabled={!name.trim() || !text.trim()} onClick={keep}>{t("Save prompt")}</button>
      </div>
    </div>
  );
}

export function Settings() {
  const s = now();
  const served: Record<string, number> = state.props?.default_generation_settings?.params ?? {};
  const shown = (v: unknown) => (typeof v !== "number" ? "" : v < 0 ? t("unlimited") : String(Math.round(v * 1000) / 1000));
  return (
    <Panel title={t("Settings")}>
      <p class="hint">{t("The server's default is used for empty fields. Settings stay in this browser.")}</p>
      <label class="check-row"><input type="checkbox" checked={!!state.current.head.settings}
        onChange={(e) => changeSettings(state.current, e.currentTarget.checked ? { ...state.settings } : null)} /> {t("Only for this chat")}</label>
      <label class="field">{t("System prompt")}
        <textarea rows={3} dir="auto" value={s.system} onInput={(e) => change("system", e.currentTarget.value)} />
      </label>
      <div class="grid">
        {fields().map(([name, label, title, limits, from]) => (
          <label class="field" key={name} title={title}>{label}
            <input type="number" inputMode="decimal" value={s[name]} {...limits} placeholder={from ? shown(served[from]) : t("random")}
              onInput={(e) => change(name, e.currentTarget.value)} />
          </label>
        ))}
        <label class="field">{t("Thinking")}
          <select value={s.thinking} onChange={(e) => change("thinking", e.currentTarget.value)}>
            <option value="">{t("server default")}</option><option value="on">{t("on")}</option><option value="off">{t("off")}</option>
          </select>
        </label>
      </div>
      <label class="field">{t("Tools")} (JSON)
        <textarea rows={4} spellcheck={false} class="mono" value={s.tools} onInput={(e) => change("tools", e.currentTarget.value)}
          placeholder={'[{"name": "weather", "parameters": {...}}]'} />
      </label>
      <label class="field">{t("Response schema")} (JSON Schema)
        <textarea rows={3} spellcheck={false} class="mono" value={s.schema} onInput={(e) => change("schema", e.currentTarget.value)} />
      </label>
      <Presets />
      <Prompts />
      <McpServers />
      <label class="field">{t("API key")}
        <input type="password" autocomplete="off" value={state.key} onChange={(e) => set({ key: e.currentTarget.value.trim() })} />
      </label>
      <label class="field">{t("Language")}
        <select value={state.language} onChange={(e) => set({ language: e.currentTarget.value })}>
          <option value="">{t("browser default")}</option>
          {languages.map(([id, name]) => <option key={id} value={id} lang={id}>{name}</option>)}
        </select>
      </label>
      <button type="button" onClick={() => use({ ...defaults })}>{t("Reset to server defaults")}</button>
    </Panel>
  );
}

const keys = () => [
  ["Enter", t("Send")], ["Shift + Enter", t("New line")], ["Esc", t("Close a panel, or stop the answer")],
  ["↑", t("In an empty field: edit the last message")], ["/", t("Go to the message field")],
  ["Ctrl/⌘ + K", t("Commands and chats")], ["Ctrl/⌘ + Shift + O", t("New chat")], ["Ctrl/⌘ + ,", t("Settings")], ["?", t("Keyboard shortcuts")],
];

export function Help() {
  return (
    <Panel title={t("Keyboard shortcuts")}>
      <dl class="keys">{keys().map(([key, what]) => <div key={key}><dt><kbd>{key}</kbd></dt><dd>{what}</dd></div>)}</dl>
      <p class="hint">{t("Chats stay in this browser; the server keeps none.")} {state.props?.build_info} · <a href="/openapi.json">API</a> · <a href="/licenses.txt">{t("Licenses")}</a></p>
    </Panel>
  );
}
