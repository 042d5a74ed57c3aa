import { useMemo, useRef, useState } from "preact/hooks";
import { giveResult, goOn, isCalled, regenerate, runTool } from "./answers.ts";
import { showBranch } from "./conversations.ts";
import { copy } from "./copy.ts";
import { Gallery } from "./gallery.tsx";
import { IconButton } from "./icons.tsx";
import { blocks, codeOf, Growing, html, type Block as Source } from "./markdown.ts";
import { allowAlways, permission } from "./mcp.ts";
import { memo } from "./memo.ts";
import { togglePreview } from "./preview.ts";
import { set, state, useTopic, type Open } from "./store.ts";
import { t } from "./text.ts";
import { XRay } from "./xray.tsx";
import type { Message, ToolCall } from "./types.ts";

const Block = memo(({ block }: { block: Source }) => {
  const made = useMemo(() => ({ __html: html(block) }), [block.raw]);
  return <div class="block" dir="auto" dangerouslySetInnerHTML={made} />;
}, (a, b) => a.block.raw === b.block.raw);

// A block of code that still grows is plain: it is coloured once, when it ends.
function GrowingCode({ name, text }: { name: string; text: string }) {
  return (
    <div class="block">
      <div class="code" dir="ltr">
        <div class="code-bar"><span>{name || "text"}</span></div>
        <pre tabindex={0}><code>{text}</code></pre>
      </div>
    </div>
  );
}

async function onClick(e: MouseEvent) {
  const seen = (e.target as Element).closest<HTMLButtonElement>("button.preview");
  if (seen) togglePreview(seen);
  const button = (e.target as Element).closest("button.copy");
  if (!button) return;
  await copy(button.closest(".code")!.querySelector("code")!.textContent ?? "");
  button.textContent = t("Copied");
  setTimeout(() => (button.textContent = t("Copy")), 1500);
}

function Markdown({ text, growing }: { text: string; growing: boolean }) {
  const reader = useRef<Growing | null>(null);
  if (growing) reader.current ??= new Growing();
  const list = useMemo(() => (growing ? reader.current!.blocks(text) : blocks(text)), [text, growing]);
  const code = growing && list.length ? codeOf(list.at(-1)!) : null;
  return (
    <div class="markdown" onClick={onClick}>
      {(code ? list.slice(0, -1) : list).map((b, i) => <Block key={i} block={b} />)}
      {code && <GrowingCode {...code} />}
    </div>
  );
}

function Thinking({ m, growing }: { m: Message; growing: boolean }) {
  const seconds = m.thoughtMs === undefined ? "" : String(Math.max(1, Math.round(m.thoughtMs / 1000)));
  return (
    <details class="thinking">
      <summary>{growing ? t("Thinking…") : seconds ? t("Thought for {0} s", seconds) : t("Thought")}</summary>
      <Markdown text={m.thinking} growing={growing} />
    </details>
  );
}

function pretty(json: string): string {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}

function Tool({ call, result, open, asks }: { call: ToolCall; result?: string; open: Open; asks: boolean }) {
  const input = useRef<HTMLTextAreaElement>(null);
  const submit = (e: Event) => {
    e.preventDefault();
    void giveResult(open, call.id, input.current!.value);
  };
  const mcp = asks ? permission(call.name) : null;
  return (
    <div class="tool">
      <details open={asks}>
        <summary>{t("Tool call")} <code>{call.name}</code></summary>
        <pre tabindex={0}><code>{pretty(call.arguments)}</code></pre>
        {result !== undefined && <><div class="label">{t("Tool result")}</div><pre tabindex={0}><code>{pretty(result)}</code></pre></>}
      </details>
      {isCalled(call.id) ? <p class="hint" role="status">{t("Running…")}</p> : mcp && mcp !== "never" && (
        <div class="row">
          <button type="button" onClick={() => (allowAlways(call.name), runTool(open, call))}>{t("Always run")}</button>
          <button type="button" class="primary" onClick={() => runTool(open, call)}>{t("Run tool")}</button>
        </div>
      )}
      {asks && !isCalled(call.id) && (
        <form onSubmit={submit}>
          <label class="field">{t("Tool result")} <textarea ref={input} rows={2} class="mono" /></label>
          <div class="row">
            <button type="button" onClick={() => giveResult(open, call.id, "The user skipped this tool call.")}>{t("Skip")}</button>
            <button class="primary">{t("Send result")}</button>
          </div>
        </form>
      )}
    </div>
  );
}

function Editor({ text, onDone }: { text: string; onDone: (text: string | null) => void }) {
  const [value, setValue] = useState(text);
  const onKeyDown = (e: KeyboardEvent) => {
    e.stopPropagation();
    if (e.isComposing || e.keyCode === 229) return;
    if (e.key === "Escape") onDone(null);
    if (e.key === "Enter" && !e.shiftKey) {
      e.preventDefault();
      if (value.trim()) onDone(value);
    }
  };
  const start = (e: HTMLTextAreaElement | null) => {
    if (!e || e.dataset.seen) return;
    e.dataset.seen = "1";
    e.focus();
    e.setSelectionRange(text.length, text.length);
  };
  return (
    <div class="editor">
      <textarea aria-label={t("Edit message")} dir="auto" rows={Math.min(12, value.split("\n").length + 1)} value={value} ref={start}
        onInput={(e) => setValue(e.currentTarget.value)} onKeyDown={onKeyDown} />
      <div class="row">
        <button type="button" onClick={() => onDone(null)}>{t("Cancel")}</button>
        <button type="button" class="primary" disabled={!value.trim()} onClick={() => onDone(value)}>{t("Send")}</button>
      </div>
    </div>
  );
}

function Facts({ m }: { m: Message }) {
  const parts: string[] = [];
  const s = m.timings;
  if (s) {
    parts.push(t("{0} tokens", s.predicted_n));
    if (s.predicted_per_second > 0) parts.push(`${s.predicted_per_second.toFixed(1)} tokens/s`);
    if (m.firstMs) parts.push(t("first token after {0} s", (m.firstMs / 1000).toFixed(2)));
    if (s.speculation) parts.push(`${s.speculation.accepted_length.toFixed(2)} tokens/step`);
  }
  const seen = m.usage?.prompt_tokens_details;
  if (seen?.image_tokens) parts.push(t("pictures: {0} tokens", seen.image_tokens));
  if (seen?.audio_tokens) parts.push(t("sound: {0} tokens", seen.audio_tokens));
  if (m.stopped) parts.push(t("stopped"));
  return <span class="facts">{parts.join(" · ")}</span>;
}

function Branches({ m, open, versions, busy }: { m: Message; open: Open; versions: string[]; busy: boolean }) {
  if (versions.length < 2) return null;
  const at = versions.indexOf(m.id);
  return (
    <span class="branches" role="group" aria-label={t("Versions")}>
      <IconButton icon="left" label={t("Previous version")} disabled={busy || at === 0} onClick={() => showBranch(open, versions[at - 1])} />
      <span>{at + 1}/{versions.length}</span>
      <IconButton icon="right" label={t("Next version")} disabled={busy || at === versions.length - 1}
        onClick={() => showBranch(open, versions[at + 1])} />
    </span>
  );
}

export interface MessageProps {
  m: Message; open: Open; versions: string[]; results: Map<string, string> | null; asks: boolean; last: boolean; busy: boolean;
  growing: boolean; editing: boolean; language: string;
  onEdit: (id: string) => void; onEdited: (m: Message, text: string | null) => void; onTakeBack: (m: Message) => void;
}

function User({ m, open, versions, busy, editing, onEdit, onEdited }: MessageProps) {
  return (
    <article class="user" aria-label={t("You")}>
      <Gallery list={m.media} />
      {m.files?.map((f, i) => (
        <details class="file" key={i}><summary>{f.name} <small>{t("{0} characters", f.text.length.toLocaleString())}</small></summary>
          <pre tabindex={0}><code>{f.text}</code></pre></details>
      ))}
      {editing ? <Editor text={m.content} onDone={(text) => onEdited(m, text)} /> : m.content && <div class="bubble" dir="auto">{m.content}</div>}
      {!editing && (
        <div class="actions">
          <Branches m={m} open={open} versions={versions} busy={busy} />
          <IconButton icon="copy" label={t("Copy")} onClick={() => copy(m.content)} />
          <IconButton icon="pen" label={t("Edit")} disabled={busy} onClick={() => onEdit(m.id)} />
        </div>
      )}
    </article>
  );
}

const advice = (m: Message): string => ({
  key: t("Enter a valid API key above, then retry."),
  away: t("Your message is kept. Retry when the server is back."),
  long: t("This chat is longer than the model's context. Shorten or remove the last message, or start a new chat."),
  busy: t("The server is busy. Retry in a moment."),
  other: "",
})[m.error!.kind];

function Trouble({ m, open, last, busy, onTakeBack }: MessageProps) {
  if (m.error)
    return (
      <div class="error" role="alert">
        <p>{m.error.text} {advice(m)}</p>
        {last && !busy && (
          <div class="row">
            <button type="button" onClick={() => onTakeBack(m)}>{t("Remove message")}</button>
            <button type="button" onClick={() => regenerate(open, m)}>{t("Retry")}</button>
          </div>
        )}
      </div>
    );
  const limit = m.finish === "length" && t("The answer reached the token limit.");
  const cut = m.cut && t("The connection was lost before the answer was complete.");
  if (!limit && !cut) return null;
  return (
    <div class="warning" role="status">
      <p>{cut || limit}</p>
      {last && !busy && (
        <div class="row">
          {cut && <button type="button" onClick={() => regenerate(open, m)}>{t("Retry")}</button>}
          {m.content && !m.tools.length && !m.used?.schema && <button type="button" onClick={() => goOn(open, m)}>{t("Continue")}</button>}
        </div>
      )}
    </div>
  );
}

function Assistant(p: MessageProps) {
  const { m, open, growing, busy } = p;
  useTopic(m.id);
  useTopic(p.asks ? "app" : m.id);
  const [xray, setXray] = useState(false);
  const silent = growing && !m.content && !m.thinking && !m.tools.length;
  return (
    <article class={`assistant${growing ? " growing" : ""}`} aria-label={t("Model")} aria-busy={growing}>
      {m.thinking && <Thinking m={m} growing={growing && !m.content} />}
      {silent && <span class="dots" aria-hidden="true"><i /><i /><i /></span>}
      {xray && !growing ? <XRay m={m} open={open} /> : m.content && <Markdown text={m.content} growing={growing} />}
      {m.tools.map((c, i) => c && (
        <Tool key={i} call={c} result={p.results?.get(c.id)} open={open} asks={p.asks && !busy && !p.results?.has(c.id)} />
      ))}
      {!growing && <Trouble {...p} />}
      {!growing && (
        <div class="actions">
          <Branches m={m} open={open} versions={p.versions} busy={busy} />
          {m.content && <IconButton icon="copy" label={t("Copy")} onClick={() => copy(m.content)} />}
          <IconButton icon="redo" label={t("Regenerate")} disabled={busy} onClick={() => regenerate(open, m)} />
          {!!m.steps?.length && <IconButton icon="compare" label={t("Compare")} disabled={busy} onClick={() => set({ compared: m })} />}
          {!!m.steps?.length && <IconButton icon="xray" label={t("X-ray")} aria-pressed={xray} onClick={() => setXray(!xray)} />}
          <Facts m={m} />
        </div>
      )}
    </article>
  );
}

const View = (p: MessageProps) => (p.m.role === "user" ? <User {...p} /> : <Assistant {...p} />);

export const MessageView = memo(View, (a, b) =>
  a.m === b.m && a.open === b.open && a.asks === b.asks && a.last === b.last && a.busy === b.busy && a.growing === b.growing &&
  a.editing === b.editing && a.language === b.language && a.versions.join() === b.versions.join() &&
  JSON.stringify([...(a.results ?? [])]) === JSON.stringify([...(b.results ?? [])]));

export const isGrowing = (m: Message): boolean => m.writer !== undefined && (state.running.has(m.conversation) || !m.cut);
