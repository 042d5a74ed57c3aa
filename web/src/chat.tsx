import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { answer, edit, send, takeBack } from "./answers.ts";
import { draftKey, saveDraft } from "./conversations.ts";
import { Composer, focusInput } from "./composer.tsx";
import { IconButton } from "./icons.tsx";
import { keepDraft } from "./media.ts";
import { isGrowing, MessageView } from "./message.tsx";
import { set, state, type Open } from "./store.ts";
import { language, t } from "./text.ts";
import { children, openCalls, path } from "./tree.ts";
import type { Message } from "./types.ts";

const kAtOnce = 40;  // messages drawn at first; the earlier ones follow while the browser is idle

// Follows the text while the reader is at its end, and otherwise leaves the reader alone.
function useFollow(id: string) {
  const box = useRef<HTMLDivElement>(null), inner = useRef<HTMLDivElement>(null);
  const follow = useRef(true);
  const [away, setAway] = useState(false);
  const toEnd = () => {
    const e = box.current!;
    e.scrollTop = e.scrollHeight;
  };
  const onScroll = () => {
    const e = box.current!;
    follow.current = e.scrollHeight - e.scrollTop - e.clientHeight < 60;
    setAway(!follow.current);
  };
  useLayoutEffect(() => {
    const watch = new ResizeObserver(() => follow.current && toEnd());
    watch.observe(inner.current!);
    return () => watch.disconnect();
  }, []);
  useLayoutEffect(() => {
    follow.current = true;
    toEnd();
  }, [id]);
  return { box, inner, away, onScroll, toEnd: () => ((follow.current = true), toEnd()) };
}

function useShown(id: string, count: number): number {
  const [shown, setShown] = useState({ id, n: kAtOnce });
  const n = shown.id === id ? shown.n : kAtOnce;
  useEffect(() => {
    if (n >= count) return;
    const timer = setTimeout(() => setShown({ id, n: n + 30 }), 20);
    return () => clearTimeout(timer);
  }, [id, n, count]);
  return n;
}

const suggestions = () => [t("What is the capital of Japan?"), t("Write a Python function that returns the largest number in a list."),
  t("Count from 1 to 20."), t("Give me a JSON object with a name and an age.")];

function Empty({ open }: { open: Open }) {
  const context = state.props?.default_generation_settings?.n_ctx;
  return (
    <div class="empty">
      <h2>{state.model ? t("What can I help with?") : t("Connecting…")}</h2>
      {state.model && (
        <>
          <p><b>{state.model}</b>{context ? ` · ${t("{0} tokens of context", context.toLocaleString())}` : ""}<br />
            {t("Chats stay in this browser.")}</p>
          <div class="suggestions">
            {suggestions().map((s) => <button type="button" key={s} onClick={() => send(open, s)}>{s}</button>)}
          </div>
        </>
      )}
    </div>
  );
}

function List({ open, list, editing, onEdit, onTakeBack }: {
  open: Open; list: Message[]; editing: string; onEdit: (id: string) => void; onTakeBack: (m: Message) => void;
}) {
  const busy = state.running.has(open.head.id);
  const siblings = children(open);
  const results = new Map(list.filter((m) => m.role === "tool").map((m) => [m.call!, m.content]));
  const asking = busy ? null : openCalls(list)?.message;
  const onEdited = (m: Message, text: string | null) => {
    onEdit("");
    if (text !== null) void edit(open, m, text);
    focusInput();
  };
  const first = Math.max(0, list.length - useShown(open.head.id, list.length));
  return (
    <>
      {list.slice(first).map((m, i) => m.role !== "tool" && (
        <MessageView key={m.id} m={m} open={open} versions={siblings.get(m.parent)!.map((s) => s.id)} language={language()}
          results={m.tools.length ? results : null} asks={m === asking} last={first + i === list.length - 1} busy={busy}
          growing={isGrowing(m)} editing={editing === m.id} onEdit={onEdit} onEdited={onEdited} onTakeBack={onTakeBack} />
      ))}
    </>
  );
}

export function Chat({ open }: { open: Open }) {
  const { box, inner, away, onScroll, toEnd } = useFollow(open.head.id);
  const [editing, setEditing] = useState("");
  const [taken, setTaken] = useState(0);
  useEffect(() => setEditing(""), [open.head.id]);
  const list = path(open);
  const running = state.running.has(open.head.id);
  const editLast = () => {
    const m = list.findLast((one) => one.role === "user");
    if (m && !running) setEditing(m.id);
  };
  const onTakeBack = (m: Message) => {
    const question = takeBack(open, m);
    saveDraft(open, question?.content ?? "");
    void keepDraft(draftKey(open), { files: question?.files ?? [], media: question?.media ?? [] });
    setTaken(taken + 1);
  };
  return (
    <main>
      <div class="scroll" ref={box} onScroll={onScroll} tabIndex={-1}>
        <div class="column-text" ref={inner}>
          {!list.length && <Empty open={open} />}
          <List open={open} list={list} editing={editing} onEdit={setEditing} onTakeBack={onTakeBack} />
          {state.notice && (
            <div class="error" role="alert"><p>{state.notice}</p>
              <div class="row"><button type="button" onClick={() => set({ notice: "" })}>{t("Close")}</button></div></div>
          )}
          {!running && (list.at(-1)?.role === "user" || (list.at(-1)?.role === "tool" && !openCalls(list)?.calls.length)) && (
            <button type="button" onClick={() => answer(open)}>{t("Retry")}</button>
          )}
        </div>
      </div>
      {away && <span class="to-end"><IconButton icon="end" label={t("Scroll to the end")} onClick={toEnd} /></span>}
      <p class="sr" role="status">{running ? t("The model is answering") : list.length ? t("Ready") : ""}</p>
      <Composer key={open.head.id + taken} open={open} running={running} onSent={toEnd} onEditLast={editLast} />
    </main>
  );
}
