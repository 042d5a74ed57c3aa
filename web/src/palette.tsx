import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { focusInput, insertText } from "./composer.tsx";
import { show, startNew } from "./conversations.ts";
import { exportMarkdown } from "./exchange.ts";
import { set, state } from "./store.ts";
import { t } from "./text.ts";

interface Command { name: string; hint?: string; run: () => void }

const prompts = (): Command[] =>
  state.prompts.map((p) => ({ name: p.name, hint: t("Prompt"), run: () => insertText(p.text) }));

function commands(): Command[] {
  if (state.palette === "prompts") return prompts();
  return [
    { name: t("New chat"), run: () => (startNew(), focusInput()) },
    { name: t("Settings"), run: () => set({ panel: "settings" }) },
    { name: t("Live metrics"), run: () => set({ panel: "live" }) },
    { name: t("Records"), run: () => set({ panel: "records" }) },
    { name: t("Keyboard shortcuts"), run: () => set({ panel: "help" }) },
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
  const [at, setAt] = useState(0);
  const taken = useRef(false);
  useLayoutEffect(() => dialog.current!.showModal(), []);
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const found = commands().filter((c) => words.every((w) => c.name.toLowerCase().includes(w))).slice(0, 12);
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
    <dialog class="palette" ref={dialog} aria-label={t("Commands and chats")} onClose={close} onKeyDown={onKeyDown}
      onClick={(e) => e.target === dialog.current && close()}>
      <input role="combobox" aria-expanded="true" aria-controls="found" aria-activedescendant={found[at] && `found-${at}`}
        aria-label={t("Commands and chats")} placeholder={t("Type a command or a chat's title")} value={query}
        onInput={(e) => (setQuery(e.currentTarget.value), setAt(0))} />
      <ul id="found" role="listbox" aria-label={t("Commands and chats")}>
        {found.map((c, i) => (
          <li key={i} id={`found-${i}`} role="option" aria-selected={i === at} onMouseMove={() => setAt(i)} onClick={() => run(c)}>
            {c.name}{c.hint && <small>{c.hint}</small>}
          </li>
        ))}
      </ul>
    </dialog>
  );
}
