import { memo } from "./memo.js";
import { useMemo, useRef, useState } from "preact/hooks";
import { giveResult, regenerate } from "./api.js";
import { IconButton } from "./icons.jsx";
import { blocks, html } from "./markdown.js";

const Block = memo(({ block }) => {
  const made = useMemo(() => ({ __html: html(block) }), [block.raw]);
  return <div class="block" dangerouslySetInnerHTML={made} />;
}, (a, b) => a.block.raw === b.block.raw);

async function onClick(e) {
  const button = e.target.closest("button.copy");
  if (!button) return;
  await copy(button.closest(".code").querySelector("code").textContent);
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = "Copy"), 1500);
}

// navigator.clipboard is for secure origins only; another machine's plain http is none.
async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text).catch(() => {});
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

function Markdown({ text }) {
  const list = useMemo(() => blocks(text), [text]);
  return <div class="markdown" onClick={onClick}>{list.map((b, i) => <Block key={i} block={b} />)}</div>;
}

function Thinking({ text, open, growing }) {
  return (
    <details class="thinking" open={open}>
      <summary>{growing ? "Thinking…" : "Thought"}</summary>
      <Markdown text={text} />
    </details>
  );
}

function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}

function Tool({ call, result, conversation, asks }) {
  const input = useRef();
  const submit = (e) => {
    e.preventDefault();
    giveResult(conversation, call, input.current.value);
  };
  return (
    <div class="tool">
      <details open={asks}>
        <summary>Call <code>{call.name}</code></summary>
        <pre tabindex="0"><code>{pretty(call.arguments)}</code></pre>
        {result !== undefined && <><div class="label">Result</div><pre tabindex="0"><code>{pretty(result)}</code></pre></>}
      </details>
      {asks && result === undefined && (
        <form onSubmit={submit}>
          <label class="field">Result of the call <textarea ref={input} rows="2" class="mono" /></label>
          <button class="primary">Give it to the model</button>
        </form>
      )}
    </div>
  );
}

function Editor({ text, onDone }) {
  const [value, setValue] = useState(text);
  const onKeyDown = (e) => {
    e.stopPropagation();
    if (e.key === "Escape") onDone(null);
    if (e.key === "Enter" && !e.shiftKey && !e.isComposing) {
      e.preventDefault();
      if (value.trim()) onDone(value);
    }
  };
  return (
    <div class="editor">
      <textarea aria-label="Edit the message" rows={Math.min(12, value.split("\n").length + 1)} value={value}
        ref={(e) => e && !e.dataset.seen && ((e.dataset.seen = "1"), e.focus(), e.setSelectionRange(text.length, text.length))}
        onInput={(e) => setValue(e.target.value)} onKeyDown={onKeyDown} />
      <div class="row">
        <button type="button" onClick={() => onDone(null)}>Cancel</button>
        <button type="button" class="primary" disabled={!value.trim()} onClick={() => onDone(value)}>Send anew</button>
      </div>
    </div>
  );
}

function Facts({ message }) {
  const t = message.timings;
  const parts = [];
  if (t) {
    parts.push(`${t.predicted_n} tokens`);
    if (t.predicted_per_second > 0) parts.push(`${t.predicted_per_second.toFixed(1)} tok/s`);
    if (message.firstMs) parts.push(`first after ${(message.firstMs / 1000).toFixed(2)} s`);
    if (t.speculation) parts.push(`${t.speculation.accepted_length.toFixed(2)} per step`);
  }
  if (message.stopped) parts.push("stopped");
  if (message.finish === "length") parts.push("cut: the limit of tokens is reached");
  return <span class="facts">{parts.join(" · ")}</span>;
}

export function Message({ message: m, at, conversation, results, growing, last, busy, editing, onEdit, onEdited }) {
  if (m.role === "user")
    return (
      <article class="user" aria-label="You">
        {editing ? <Editor text={m.content} onDone={onEdited} /> : <div class="bubble">{m.content}</div>}
        {!editing && (
          <div class="actions">
            <IconButton icon="copy" label="Copy" onClick={() => copy(m.content)} />
            <IconButton icon="pen" label="Edit" disabled={busy} onClick={onEdit} />
          </div>
        )}
      </article>
    );
  const silent = growing && !m.content && !m.thinking && !m.tools.length;
  return (
    <article class={`assistant${growing ? " growing" : ""}`} aria-label="Model" aria-busy={growing}>
      {m.thinking && <Thinking text={m.thinking} open={false} growing={growing && !m.content} />}
      {silent && <span class="dots" aria-hidden="true"><i /><i /><i /></span>}
      {m.content && <Markdown text={m.content} />}
      {m.tools?.map((t, i) => t && (
        <Tool key={i} call={t} result={results.get(t.id)} conversation={conversation} asks={!growing && !busy && at + 1 + m.tools.length >= conversation.messages.length && !results.has(t.id)} />
      ))}
      {m.error && <p class="error" role="alert">{m.error}</p>}
      {!growing && (
        <div class="actions">
          {m.content && <IconButton icon="copy" label="Copy" onClick={() => copy(m.content)} />}
          <IconButton icon="redo" label={last ? "Answer anew" : "Answer anew from here"} disabled={busy} onClick={() => regenerate(conversation, at)} />
          <Facts message={m} />
        </div>
      )}
    </article>
  );
}
