import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { send } from "./answers.ts";
import { countTokens } from "./api.ts";
import { draft, saveDraft } from "./conversations.ts";
import { MediaView } from "./gallery.tsx";
import { Icon, IconButton } from "./icons.tsx";
import { kindOf, kMost, readMedia, record, senses } from "./media.ts";
import { textOfPdf } from "./pdf.ts";
import { draw, state, set, type Open } from "./store.ts";
import { t } from "./text.ts";
import { path } from "./tree.ts";
import type { Media, TextFile } from "./types.ts";

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

interface Attached { files: TextFile[]; media: Media[] }
const kNothing: Attached = { files: [], media: [] };

function Files({ given: { files, media }, change }: { given: Attached; change: (a: Attached) => void }) {
  if (!files.length && !media.length) return null;
  const onRemove = (i: number) => change({ media, files: files.filter((_, at) => at !== i) });
  return (
    <ul class="files" aria-label={t("Attachments")}>
      {media.map((m) => (
        <li key={m.id} class="medium"><MediaView m={m} />
          <IconButton icon="close" label={t("Remove {0}", m.name)} onClick={() => change({ files, media: media.filter((o) => o !== m) })} /></li>
      ))}
      {files.map((f, i) => (
        <li key={f.name + i}>{f.name} <IconButton icon="close" label={t("Remove {0}", f.name)} onClick={() => onRemove(i)} /></li>
      ))}
    </ul>
  );
}

// The microphone, where the model hears.
function Recorder({ onDone }: { onDone: (m: Media) => void }) {
  const [running, setRunning] = useState<{ stop: () => Promise<Media | null> } | null>(null);
  const now = useRef(running);
  now.current = running;
  useEffect(() => () => void now.current?.stop(), []);
  if (!senses().audio || !("mediaDevices" in navigator)) return null;
  const press = async () => {
    setRunning(null);
    if (!running) return setRunning(await record());
    const made = await running.stop();
    if (made) onDone(made);
  };
  return <IconButton icon={running ? "stop" : "mic"} label={running ? t("Stop recording") : t("Record sound")} aria-pressed={!!running} onClick={press} />;
}

// What is dropped anywhere on the page is attached; a browser would leave the page for it.
function useDrop(take: (list: Iterable<File>) => void): boolean {
  const [over, setOver] = useState(false);
  const taken = useRef(take);
  taken.current = take;
  useEffect(() => {
    const files = (e: DragEvent) => e.dataTransfer?.types.includes("Files");
    const onOver = (e: DragEvent) => files(e) && (e.preventDefault(), setOver(true));
    const onLeave = (e: DragEvent) => !e.relatedTarget && setOver(false);
    const onDrop = (e: DragEvent) => {
      setOver(false);
      if (!files(e)) return;
      e.preventDefault();
      taken.current([...e.dataTransfer!.files]);
    };
    addEventListener("dragover", onOver), addEventListener("dragleave", onLeave), addEventListener("drop", onDrop);
    return () => (removeEventListener("dragover", onOver), removeEventListener("dragleave", onLeave), removeEventListener("drop", onDrop));
  }, []);
  return over;
}

export function Composer({ open, running, onSent, onEditLast }:
  { open: Open; running: boolean; onSent: () => void; onEditLast: () => void }) {
  const input = useRef<HTMLTextAreaElement>(null);
  const picker = useRef<HTMLInputElement>(null);
  const [text, setText] = useState(() => draft(open));
  const [given, setGiven] = useState<Attached>(kNothing);
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
  const show = (more: Media[]) => setGiven((old) => {
    const media = [...old.media, ...more];
    if (media.length > kMost) set({ notice: t("A message can have {0} pictures and sounds.", kMost) });
    return { ...old, media: media.slice(0, kMost) };
  });
  const attach = async (list: Iterable<File>) => {
    const all = [...list];
    const texts = readFiles(all.filter((f) => !kindOf(f)));
    for (const f of all) {
      const kind = kindOf(f), made = kind && await readMedia(f, kind);
      if (made) show([made]);
    }
    const files = await texts;
    setGiven((old) => ({ ...old, files: [...old.files, ...files] }));
  };
  const dropping = useDrop(attach);
  const ready = !!text.trim() || given.files.length + given.media.length > 0;
  const submit = (e?: Event) => {
    e?.preventDefault();
    if (!ready || running) return;
    change("");
    setGiven(kNothing);
    onSent();
    void send(open, text, given.files, given.media);
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
    // Office programs put a picture of the text beside the text.
    const all = [...(e.clipboardData?.files ?? [])].filter((f) => !pasted || kindOf(f) !== "image");
    if (!all.length && pasted.length < kLongPaste) return;
    e.preventDefault();
    if (all.length) void attach(all);
    else setGiven((old) => ({ ...old, files: [...old.files, { name: t("Pasted text"), text: pasted }] }));
  };
  return (
    <form class={`composer${dropping ? " dropping" : ""}`} onSubmit={submit}>
      <Files given={given} change={setGiven} />
      <div class="field-box">
        <IconButton icon="clip" label={t("Attach files")} onClick={() => picker.current!.click()} />
        <input ref={picker} type="file" multiple hidden aria-label={t("Attach files")}
          onChange={(e) => (void attach([...e.currentTarget.files!]), (e.currentTarget.value = ""))} />
        <Recorder onDone={(m) => show([m])} />
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
