import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { send } from "./answers.ts";
import { countTokens, withFiles } from "./api.ts";
import { draft, draftKey, saveDraft } from "./conversations.ts";
import { MediaView } from "./gallery.tsx";
import { Icon, IconButton } from "./icons.tsx";
import { keepDraft, kindOf, kMost, loadDraft, readMedia, record, senses, type Attached } from "./media.ts";
import { textOfPdf } from "./pdf.ts";
import { draw, settingsOf, state, set, type Open } from "./store.ts";
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

// As the server counts, once nothing has changed for a moment.
function useCount(text: string): number {
  const [count, setCount] = useState(0);
  useEffect(() => {
    if (!text.trim()) return setCount(0);
    const abort = new AbortController();
    const timer = setTimeout(() => countTokens(text, abort.signal).then(setCount, () => {}), 400);
    return () => (clearTimeout(timer), abort.abort());
  }, [text]);
  return count;
}

// What the conversation, the text in the field and attached texts take of the context. Where no answer has told yet how long its
// prompt was, all that was said is counted.
function useContext(open: Open, text: string, files: TextFile[]): { used: number; size: number } | null {
  const size = state.props?.default_generation_settings?.n_ctx, list = path(open);
  const usage = list.findLast((m) => m.usage)?.usage, system = settingsOf(open).system;
  const said = useMemo(() => (usage ? "" : [system, ...list.map(withFiles)].filter(Boolean).join("\n")), [usage, system, open.head.head, list.length]);
  const before = useCount(list.length || text ? said : ""), now = useCount(withFiles({ content: text, files }));
  const used = (usage ? usage.prompt_tokens + usage.completion_tokens : before) + now;
  return size && used ? { used, size } : null;
}

function Meter({ open, text, files }: { open: Open; text: string; files: TextFile[] }) {
  const c = useContext(open, text, files);
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
    else if (pdf && !text.trim()) set({ notice: t("{0} has no readable text (scanned pages, or a password) and was not attached.", f.name) });
    else if (text.includes("\u0000") || text.includes("\ufffd")) set({ notice: t("{0} is not a text file and was not attached.", f.name) });
    else out.push({ name: f.name, text });
  }
  return out;
}

const kNothing: Attached = { files: [], media: [] };

function Files({ given: { files, media }, change }: { given: Attached; change: (make: () => Attached) => void }) {
  if (!files.length && !media.length) return null;
  const onRemove = (i: number) => change(() => ({ media, files: files.filter((_, at) => at !== i) }));
  return (
    <ul class="files" aria-label={t("Attachments")}>
      {media.map((m) => (
        <li key={m.id} class="medium"><MediaView m={m} />
          <IconButton icon="close" label={t("Remove {0}", m.name)} onClick={() => change(() => ({ files, media: media.filter((o) => o !== m) }))} /></li>
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

// What is attached stays with the draft, as its text does.
function useAttached(open: Open): [Attached, (change: (old: Attached) => Attached) => void] {
  const [given, show] = useState(kNothing);
  const now = useRef(kNothing);
  const change = (make: (old: Attached) => Attached) => {
    show((now.current = make(now.current)));
    void keepDraft(draftKey(open), now.current);
  };
  useEffect(() => {
    let gone = false;
    void loadDraft(draftKey(open)).then((kept) => {
      if (kept && !gone && kept.files.length + kept.media.length)
        change((old) => ({ files: [...kept.files, ...old.files], media: [...kept.media, ...old.media] }));
    });
    return () => void (gone = true);
  }, []);
  return [given, change];
}

export function Composer({ open, running, onSent, onEditLast }:
  { open: Open; running: boolean; onSent: () => void; onEditLast: () => void }) {
  const input = useRef<HTMLTextAreaElement>(null);
  const picker = useRef<HTMLInputElement>(null);
  const [text, setText] = useState(() => draft(open));
  const [given, setGiven] = useAttached(open);
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
    if (media.length > kMost) set({ notice: t("A message can have up to {0} pictures and sounds.", kMost) });
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
    setGiven(() => kNothing);
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
      <Meter open={open} text={text} files={given.files} />
    </form>
  );
}
