// Two answers to one prompt, side by side, aligned until they part.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { IconButton } from "./icons.tsx";
import { parting, rerun, runOf, verdict, type Run, type Way } from "./rerun.ts";
import { set, state } from "./store.ts";
import { t } from "./text.ts";
import { path } from "./tree.ts";
import type { Message } from "./types.ts";

const percent = (logprob: number) => `${(100 * Math.exp(logprob)).toFixed(1)} %`;

// The alternatives of a token, likeliest first.
function title(run: Run, i: number): string | undefined {
  const o = run.odds.length === run.tokens.length || run.odds[i]?.token === run.tokens[i] ? run.odds[i] : undefined;
  return o && [`${o.token}: ${percent(o.logprob)}`, ...(o.top_logprobs ?? []).filter((x) => x.token !== o.token)
    .map((x) => `${x.token}: ${percent(x.logprob)}`)].join("\n");
}

function Text({ run, at, label }: { run: Run; at: number; label: string }) {
  const same = at < 0 ? run.tokens.length : at;
  const s = run.timings;
  return (
    <section class="side" aria-label={label}>
      {run.error && <p class="error" role="alert">{run.error}</p>}
      <pre tabindex={0} dir="auto">{run.tokens.map((text, i) =>
        <span key={i} class={i < same ? "same" : i === same ? "parts" : undefined} title={title(run, i)}>{text}</span>)}
      </pre>
      <p class="hint">{s ? [t("{0} tokens", s.predicted_n), `${s.predicted_per_second.toFixed(1)} tokens/s`,
        s.speculation && `${s.speculation.accepted_length.toFixed(2)} tokens/step`].filter(Boolean).join(" · ") : run.done ? "" : "…"}</p>
    </section>
  );
}

function Ways({ way, change, busy }: { way: Way; change: (w: Way) => void; busy: boolean }) {
  return (
    <div class="row-fill">
      <label class="field">{t("Model")}
        {way.server ? <input value={way.model} placeholder={t("Its own")} disabled={busy} onInput={(e) => change({ ...way, model: e.currentTarget.value })} /> : (
          <select value={way.model} disabled={busy} onChange={(e) => change({ ...way, model: e.currentTarget.value })}>
            {state.models.map((m) => <option key={m.id}>{m.id}</option>)}
          </select>
        )}
      </label>
      <label class="field">{t("Drafts")}
        <select value={way.drafts ? "1" : ""} disabled={busy} onChange={(e) => change({ ...way, drafts: !!e.currentTarget.value })}>
          <option value="1">{t("on")}</option><option value="">{t("off")}</option>
        </select>
      </label>
      <label class="field" title={t("Empty: this server. Another one, with other drafters or KV types, must be named by --page-origin.")}>{t("Server")}
        <input type="url" value={way.server} placeholder={t("this one")} disabled={busy}
          onInput={(e) => change({ ...way, server: e.currentTarget.value.trim().replace(/\/$/, ""), model: e.currentTarget.value ? "" : state.model })} />
      </label>
    </div>
  );
}

export function Compare({ m }: { m: Message }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [way, change] = useState<Way>({ server: "", model: m.model ?? state.model, drafts: false });
  const [run, setRun] = useState<Run | null>(null);
  const [odds, setOdds] = useState<Run["odds"]>([]);
  const abort = useRef<AbortController | null>(null);
  useLayoutEffect(() => dialog.current!.showModal(), []);
  useEffect(() => () => abort.current?.abort(), []);
  const start = async () => {
    abort.current = new AbortController();
    const before = path(state.current, m.parent), { signal } = abort.current;
    await rerun(m, before, way, signal, (r) => setRun({ ...r }));
    if (odds.length || signal.aborted) return;
    // This answer was made without probabilities: it is made again for them, once the other's time is taken.
    const again = await rerun(m, before, { server: "", model: m.model ?? state.model, drafts: true }, signal, () => {});
    if (parting(runOf(m), again) < 0) setOdds(again.odds);
  };
  const first = { ...runOf(m), odds }, busy = !!run && !run.done;
  const found = run ? parting(first, run) : -1;
  const at = busy && found === Math.min(first.tokens.length, run.tokens.length) ? -1 : found;
  const over = run?.done && !run.error;
  return (
    <dialog class="compare" ref={dialog} aria-label={t("Compare")} onClose={() => set({ compared: null })}
      onKeyDown={(e) => (e.stopPropagation(), e.key === "Escape" && (e.preventDefault(), dialog.current!.close(), set({ compared: null })))}>
      <div class="panel-head"><h2>{t("Compare")}</h2><IconButton icon="close" label={t("Close")} onClick={() => dialog.current!.close()} /></div>
      <p class="hint">{t("The same prompt, seed and settings. What both say is dimmed; the first token that differs is marked.")}</p>
      <p class="verdict" role="status">{over ? verdict(first, run) : ""}</p>
      <div class="sides">
        <div><h3>{m.model} <span>{t("this answer")}</span></h3><Text run={first} at={run ? at : first.tokens.length} label={t("this answer")} /></div>
        <div>
          <Ways way={way} change={change} busy={busy} />
          {run && <Text run={run} at={at} label={t("the other answer")} />}
          {busy ? <button type="button" onClick={() => abort.current?.abort()}>{t("Stop")}</button>
            : <button type="button" class="primary" onClick={start}>{t("Run")}</button>}
        </div>
      </div>
    </dialog>
  );
}
