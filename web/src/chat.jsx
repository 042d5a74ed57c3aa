import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { answer, edit, send } from "./api.js";
import { Icon, IconButton } from "./icons.jsx";
import { Message } from "./message.jsx";
import { set, state } from "./store.js";

export function focusInput() {
  requestAnimationFrame(() => document.getElementById("message")?.focus());
}

// Follows the text while the reader is at its end, and leaves him alone otherwise.
function useFollow(conversation) {
  const box = useRef();
  const follow = useRef(true);
  const [away, setAway] = useState(false);
  const toEnd = () => {
    box.current.scrollTop = box.current.scrollHeight;
  };
  const onScroll = () => {
    const e = box.current;
    follow.current = e.scrollHeight - e.scrollTop - e.clientHeight < 60;
    setAway(!follow.current);
  };
  useLayoutEffect(() => {
    if (follow.current) toEnd();
  });
  useEffect(() => {
    follow.current = true;
    toEnd();
  }, [conversation.id]);
  return { box, away, onScroll, toEnd: () => ((follow.current = true), toEnd()) };
}

function Composer({ running, onSent, onEditLast }) {
  const input = useRef();
  const [text, setText] = useState("");
  useLayoutEffect(() => {
    const e = input.current;
    e.style.height = "auto";
    e.style.height = `${Math.min(e.scrollHeight, innerHeight * 0.4)}px`;
  }, [text]);
  useEffect(focusInput, []);
  const submit = (e) => {
    e?.preventDefault();
    if (!text.trim() || state.running) return;
    setText("");
    onSent();
    send(text);
  };
  const onKeyDown = (e) => {
    if (e.key === "Enter" && !e.shiftKey && !e.isComposing) submit(e);
    if (e.key === "ArrowUp" && !text) {
      e.preventDefault();
      onEditLast();
    }
  };
  return (
    <form class="composer" onSubmit={submit}>
      <textarea id="message" ref={input} rows="1" value={text} aria-label="Message" placeholder="Message"
        onInput={(e) => setText(e.target.value)} onKeyDown={onKeyDown} />
      {running ? (
        <button type="button" class="round stop" aria-label="Stop" title="Stop (Esc)" onClick={() => state.running.abort.abort()}><Icon name="stop" /></button>
      ) : (
        <button class="round primary" aria-label="Send" title="Send (Enter)" disabled={!text.trim() || !!state.running}><Icon name="send" /></button>
      )}
    </form>
  );
}

function Empty() {
  const context = state.props?.default_generation_settings?.n_ctx;
  return (
    <div class="empty">
      <h2>{state.model ? "Say something" : "Connecting"}</h2>
      {state.model && <p><b>{state.model}</b> runs on this server{context ? `, with room for ${context.toLocaleString("en")} tokens` : ""}. Conversations stay in this browser.</p>}
    </div>
  );
}

export function Chat({ conversation, running }) {
  const { box, away, onScroll, toEnd } = useFollow(conversation);
  const [editing, setEditing] = useState(-1);
  useEffect(() => setEditing(-1), [conversation.id]);
  const list = conversation.messages;
  const results = new Map(list.filter((m) => m.role === "tool").map((m) => [m.call, m.content]));
  const editLast = () => {
    const at = list.findLastIndex((m) => m.role === "user");
    if (at >= 0 && !state.running) setEditing(at);
  };
  const finishEdit = (at, text) => {
    setEditing(-1);
    if (text !== null) edit(conversation, at, text);
    focusInput();
  };
  const status = running ? "The model is answering" : list.length ? "Ready" : "";
  return (
    <main>
      <div class="scroll" ref={box} onScroll={onScroll} tabindex="-1">
        <div class="column-text">
          {!list.length && <Empty />}
          {list.map((m, i) => m.role !== "tool" && (
            <Message key={i} message={m} at={i} conversation={conversation} results={results} editing={editing === i}
              growing={running && i === list.length - 1} last={i === list.length - 1} busy={!!state.running}
              onEdit={() => setEditing(i)} onEdited={(text) => finishEdit(i, text)} />
          ))}
          {state.notice && !state.offline && <p class="error" role="alert">{state.notice} <button type="button" onClick={() => set({ notice: "" })}>Hide</button></p>}
          {!running && list.at(-1)?.role === "user" && (
            <button type="button" onClick={() => answer(conversation)}>Ask again</button>
          )}
        </div>
      </div>
      {away && <span class="to-end"><IconButton icon="end" label="To the end" onClick={toEnd} /></span>}
      <p class="sr" role="status">{status}</p>
      <Composer running={running} onSent={toEnd} onEditLast={editLast} />
    </main>
  );
}
