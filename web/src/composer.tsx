import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { send } from "./answers.ts";
import { countTokens } from "./api.ts";
import { draft, saveDraft } from "./conversations.ts";
import { Icon, IconButton } from "./icons.tsx";
import { textOfPdf } from "./pdf.ts";
import { draw, state, set, type Open } from "./store.ts";
import { t } from "./text.ts";
import { path } from "./tree.ts";
import type { TextFile } from "./types.ts";

const kLongPaste = 4000, kLargestFile = 2_000_000, kLargestPdf = 50_000_000;

// At once, so that the keys that follow go there: what was set is drawn first.
export function focusInput(): void {
  draw();
  void Promise.resolve().then(() => document.getElementById("message")?.focus());
}

let into: ((text: string) => void) | null = null;
export const insertText = (text: string): void => into?.(text);

// What the conversation and the text in the field take of the context.
function useContext(open: Open, text: string): { used: number; size: number } | null {
  const [typed, setTyped] = useState(0);
  useEffect(() => {
    if (!text.trim()) return setTyped(0);
    const abort = new AbortController();
    const timer = setTimeout(() => countTokens(text, abort.signal).then(setTyped, () => {}), 400);
    return () => (clearTimeout(timer), abort.abort());
  }, [text]);
  const size = state.props?.default_generation_settings?.n_ctx;
  const usage = path(open).findLast((m) => m.usage)?.usage;
  const used = (usage ? usage.prompt_tokens + usage.completion_tokens : 0) + typed;
  return size && used ? { used, size } : null;
}

function Meter({ open, text }: { open: Open; text: string }) {
  const c = useContext(open, text);
  if (!c) return null;
  const share = c.used / c.size;
  const label = t("Context: {0} of {1} tokens", c.used.toLocaleString(), c.size.toLocaleString());
  return (
    <span class={`meter${share > 0.9 ? " near" : ""}`} title={label}>
      <progress max={c.size} value={Math.min(c.used, c.size)} aria-label={label} /> <span>{label}</span>
    </span>
  );
}

async function readFiles(list: Iterable<File>): Promise<TextFile[]> {
  const out: TextFile[] = [];
  for (const f of list) {
    const pdf = /\.pdf$/i.test(f.name) || f.type === "application/pdf";
    const text = f.size > (pdf ? kLargestPdf : kLargestFile) ? null
      : pdf ? await textOfPdf(await f.arrayBuffer()).catch(() => "") : await f.text();
    if (text === null) set({ notice: t("{0} is larger than {1} MB and was not attached.", f.name, (pdf ? kLargestPdf : kLargestFile) / 1e6) });
    else if (pdf && !text.trim()) set({ notice: t("{0} holds no text that can be read (pictures of pages, or a password) and was not attached.", f.name) });
    else if (text.includes("\u0000") || text.includes("\ufffd")) set({ notice: t("{0} is not a text file and was not attached.", f.name) });
    else out.push({ name: f.name, text });
  }
  return out;
}

function Files({ files, onRemove }: { files: TextFile[]; onRemove: (i: number) => void }) {
  if (!files.length) return null;
  return (
    <ul class="files" aria-label={t("Attachments")}>
      {files.map((f, i) => (
        <li key={f.name + i}>{f.name} <IconButton icon="close" label={t("Remove {0}", f.name)} onClick={() => onRemove(i)} /></li>
      ))}
    </ul>
  );
}

export function Composer({ open, running, onSent, onEditLast }:
  { open: Open; running: boolean; onSent: () => void; onEditLast: () => void }) {
  const input = useRef<HTMLTextAreaElement>(null);
  const picker = useRef<HTMLInputElement>(null);
  const [text, setText] = useState(() => draft(open));
  const [files, setFiles] = useState<TextFile[]>([]);
  useLayoutEffect(() => {
    const e = input.current!;
    e.style.height = "auto";
    const height = Math.min(e.scrollHeight + 2, innerHeight * 0.4);
    e.style.height = `${height}px`;
    e.style.overflowY = e.scrollHeight > height ? "auto" : "hidden";
  }, [text]);
  useLayoutEffect(() => input.current!.focus(), []);
  const change = (value: string) => {
    setText(value);
    saveDraft(open, value);
  };
  useLayoutEffect(() => void (into = (more) => change(input.current!.value + more)));
  const attach = async (list: Iterable<File>) => {
    const more = await readFiles(list);
    setFiles((old) => [...old, ...more]);
  };
  const submit = (e?: Event) => {
    e?.preventDefault();
    if ((!text.trim() && !files.length) || running) return;
    change("");
    setFiles([]);
    onSent();
    void send(open, text, files);
  };
  const onKeyDown = (e: KeyboardEvent) => {
    if (e.isComposing || e.keyCode === 229) return;  // an input method's Enter takes its candidate
    if (e.key === "Enter" && !e.shiftKey) submit(e);
    if (e.key === "/" && !text && state.prompts.length && !e.ctrlKey && !e.metaKey && !e.altKey) {
      e.preventDefault();
      set({ palette: "prompts" });
      draw();
    }
    if (e.key === "ArrowUp" && !text) {
      e.preventDefault();
      onEditLast();
    }
  };
  const onPaste = (e: ClipboardEvent) => {
    const pasted = e.clipboardData?.getData("text/plain") ?? "";
    const given = [...(e.clipboardData?.files ?? [])];
    if (!given.length && pasted.length < kLongPaste) return;
    e.preventDefault();
    if (given.length) void attach(given);
    else setFiles((old) => [...old, { name: t("Pasted text"), text: pasted }]);
  };
  const onDrop = (e: DragEvent) => {
    if (!e.dataTransfer?.files.length) return;
    e.preventDefault();
    void attach(e.dataTransfer.files);
  };
  const ready = !!text.trim() || files.length > 0;
  return (
    <form class="composer" onSubmit={submit} onDrop={onDrop} onDragOver={(e) => e.preventDefault()}>
      <Files files={files} onRemove={(i) => setFiles(files.filter((_, at) => at !== i))} />
      <div class="field-box">
        <IconButton icon="clip" label={t("Attach files")} onClick={() => picker.current!.click()} />
        <input ref={picker} type="file" multiple hidden aria-label={t("Attach files")}
          onChange={(e) => (void attach([...e.currentTarget.files!]), (e.currentTarget.value = ""))} />
        <textarea id="message" ref={input} rows={1} dir="auto" value={text} aria-label={t("Message")} placeholder={t("Ask anything")}
          onInput={(e) => change(e.currentTarget.value)} onKeyDown={onKeyDown} onPaste={onPaste} />
        {running ? (
          <button type="button" class="round stop" aria-label={t("Stop")} title={`${t("Stop")} (Esc)`}
            onClick={() => state.running.get(open.head.id)?.abort()}><Icon name="stop" /></button>
        ) : (
          <button class="round primary" aria-label={t("Send")} title={`${t("Send")} (Enter)`} disabled={!ready}><Icon name="send" /></button>
        )}
      </div>
      <Meter open={open} text={text} />
    </form>
  );
}
