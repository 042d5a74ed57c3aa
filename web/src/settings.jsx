import { IconButton } from "./icons.jsx";
import { defaults, set, state } from "./store.js";

const fields = [
  ["temperature", "Temperature", "0 to 2; 0 always takes the likeliest token", { min: 0, max: 100, step: 0.1 }, "temperature"],
  ["top_p", "Top-p", "Keep the likeliest tokens up to this probability", { min: 0, max: 1, step: 0.01 }, "top_p"],
  ["top_k", "Top-k", "Keep so many tokens; 0 keeps all", { min: 0, step: 1 }, "top_k"],
  ["min_p", "Min-p", "Drop tokens below this share of the likeliest", { min: 0, max: 1, step: 0.01 }, "min_p"],
  ["repeat_penalty", "Repeat penalty", "1 is none", { min: 0.01, max: 100, step: 0.01 }, "repeat_penalty"],
  ["max_tokens", "Longest answer", "In tokens", { min: 1, step: 1 }, "max_tokens"],
  ["seed", "Seed", "The same seed gives the same answer", { step: 1 }, null],
];

function change(name, value) {
  set({ settings: { ...state.settings, [name]: value } });
}

export function Panel({ title, children }) {
  return (
    <aside class="panel" aria-label={title}>
      <div class="panel-head"><h2>{title}</h2><IconButton icon="close" label="Close" onClick={() => set({ panel: null })} /></div>
      {children}
    </aside>
  );
}

export function Settings() {
  const s = state.settings;
  const served = state.props?.default_generation_settings?.params ?? {};
  const shown = (v) => (typeof v !== "number" ? "" : v < 0 ? "no limit" : String(Math.round(v * 1000) / 1000));
  return (
    <Panel title="Parameters">
      <p class="hint">What is left empty, the server decides. Kept in this browser.</p>
      <label class="field">System message
        <textarea rows="3" value={s.system} onInput={(e) => change("system", e.target.value)} />
      </label>
      <div class="grid">
        {fields.map(([name, label, title, limits, from]) => (
          <label class="field" key={name} title={title}>{label}
            <input type="number" inputmode="decimal" value={s[name]} {...limits} placeholder={from ? shown(served[from]) : "random"}
              onInput={(e) => change(name, e.target.value)} />
          </label>
        ))}
        <label class="field">Thinking
          <select value={s.thinking} onChange={(e) => change("thinking", e.target.value)}>
            <option value="">as served</option><option value="on">on</option><option value="off">off</option>
          </select>
        </label>
      </div>
      <label class="field">Tools (JSON, OpenAI's form)
        <textarea rows="4" spellcheck={false} class="mono" value={s.tools} onInput={(e) => change("tools", e.target.value)}
          placeholder={'[{"name": "weather", "parameters": {...}}]'} />
      </label>
      <label class="field">Answers as JSON of this schema
        <textarea rows="3" spellcheck={false} class="mono" value={s.schema} onInput={(e) => change("schema", e.target.value)} />
      </label>
      <label class="field">API key
        <input type="password" autocomplete="off" value={state.key} onChange={(e) => set({ key: e.target.value.trim() })} />
      </label>
      <button type="button" onClick={() => set({ settings: { ...defaults } })}>Back to the server's</button>
    </Panel>
  );
}

const keys = [
  ["Enter", "send"], ["Shift + Enter", "new line"], ["Esc", "close a panel, stop the answer"], ["↑", "in an empty field: edit the last message"],
  ["/", "to the message field"], ["Alt + N", "new conversation"], ["Alt + P", "parameters"], ["Alt + L", "live figures"], ["?", "this list"],
];

export function Help() {
  return (
    <Panel title="Keys">
      <dl class="keys">{keys.map(([key, what]) => <div key={key}><dt><kbd>{key}</kbd></dt><dd>{what}</dd></div>)}</dl>
      <p class="hint">Conversations stay in this browser; the server keeps none. {state.props?.build_info} · <a href="/openapi.json">API</a> · <a href="/licenses.txt">notices</a></p>
    </Panel>
  );
}
