import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { focusInput, insertText } from "./composer.tsx";
import { show, startNew } from "./conversations.ts";
import { exportMarkdown } from "./exchange.ts";
import { set, state } from "./store.ts";
import { gigabytes, t } from "./text.ts";
import type { Model } from "./types.ts";

interface Command { name: string; hint?: string; now?: boolean; run: () => void }

const prompts = (): Command[] =>
  state.prompts.map((p) => ({ name: p.name, hint: t("Prompt"), run: () => insertText(p.text) }));

const states = (): Record<string, string> => ({ loaded: t("loaded"), unloaded: t("not loaded"), loading: t("loading…"), failed: t("failed") });

// A model, whether it is in memory, its size, and its context.
export function described(m: Model): string {
  const said = m.status && (states()[m.status.value] ?? m.status.value);
  const context = m.max_model_len ?? m.meta?.n_ctx_train;
  return [said, m.meta?.size && gigabytes(m.meta.size), m.meta?.quantization_level,
    context && t("{0} tokens of context", context.toLocaleString())].filter(Boolean).join(" · ");
}

const models = (): Command[] =>
  state.models.map((m) => ({ name: m.id, hint: described(m), now: m.id === state.model, run: () => set({ model: m.id }) }));

function commands(): Command[] {
  if (state.palette === "prompts") return prompts();
  if (state.palette === "models") return models();
  return [
    { name: t("New chat"), run: () => (startNew(), focusInput()) },
    { name: t("Settings"), run: () => set({ panel: "settings" }) },
    { name: t("Live metrics"), run: () => set({ panel: "live" }) },
    { name: t("Records"), run: () => set({ panel: "records" }) },
    { name: t("Keyboard shortcuts"), run: () => set({ panel: "help" }) },
    ...(state.models.length > 1 ? [{ name: t("Choose model"), run: () => set({ palette: "models" }) }] : []),
    { name: t("Theme: light"), run: () => set({ theme: "light" }) },
    { name: t("Theme: dark"), run: () => set({ theme: "dark" }) },
    { name: t("Theme: as the system"), run: () => set({ theme: "auto" }) },
    ...(state.current.messages.size ? [
      { name: t("This chat as Markdown"), run: () => exportMarkdown(state.current) },
      { name: t("Print"), run: () => window.print() },
    ] : []),
    ...prompts(),
    ...state.list.map((c) => ({ name: c.title || t("Untitled"), hint: t("Chat"), run: () => void show(c.id) })),
  ];
}

export function Palette() {
  const dialog = useRef<HTMLDialogElement>(null);
  const [query, setQuery] = useState("");
  const [at, setAt] = useState(() => Math.max(0, commands().findIndex((c) => c.now)));
  const label = state.palette === "models" ? t("Choose model") : t("Commands and chats");
  const taken = useRef(false);
  useLayoutEffect(() => dialog.current!.showModal(), []);
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const found = commands().filter((c) => words.every((w) => c.name.toLowerCase().includes(w))).slice(0, state.palette === "models" ? 99 : 12);
  // At once: the browser's own close event comes when the next keys have gone elsewhere.
  const close = () => {
    if (!state.palette) return;
    // Nothing typed is lost: it was meant for the field.
    if (state.palette === "prompts" && !taken.current) insertText("/" + dialog.current!.querySelector("input")!.value);
    set({ palette: null });
    dialog.current!.close();
    focusInput();
  };
  const run = (c?: Command) => {
    if (!c && state.palette !== "prompts") return;
    taken.current = !!c;
    close();
    c?.run();
  };
  const onKeyDown = (e: KeyboardEvent) => {
    e.stopPropagation();
    if (e.isComposing || e.keyCode === 229) return;
    const step = { ArrowDown: 1, ArrowUp: -1 }[e.key];
    if (step) {
      e.preventDefault();
      setAt((at + step + found.length) % Math.max(1, found.length));
    } else if (e.key === "Escape") {
      e.preventDefault();
      close();
    } else if (e.key === "Enter") {
      e.preventDefault();
      run(found[at]);
    }
  };
  return (
    <dialog class="palette" ref={dialog} aria-label={label} onClose={close} onKeyDown={onKeyDown}
      onClick={(e) => e.target === dialog.current && close()}>
      <input role="combobox" aria-expanded="true" aria-controls="found" aria-activedescendant={found[at] && `found-${at}`}
        aria-label={label} placeholder={state.palette === "all" ? t("Type a command or a chat's title") : label} value={query}
        onInput={(e) => (setQuery(e.currentTarget.value), setAt(0))} />
      <ul id="found" role="listbox" aria-label={label}>
        {found.map((c, i) => (
          <li key={i} id={`found-${i}`} role="option" class={c.now === undefined ? undefined : "two"} aria-selected={i === at} onMouseMove={() => setAt(i)} onClick={() => run(c)}>
            <span class={c.now ? "now" : undefined}>{c.name}</span>{c.hint && <small>{c.hint}</small>}
          </li>
        ))}
      </ul>
    </dialog>
  );
}
