// Where each token of an answer came from, and what the answer cost.
import { useEffect, useRef, useState } from "preact/hooks";
import { call, requestFor } from "./api.ts";
import { copy } from "./copy.ts";
import { rerun, runOf, verdict } from "./rerun.ts";
import { set, state, type Open } from "./store.ts";
import { t } from "./text.ts";
import { path } from "./tree.ts";
import type { Message, Step, Timings } from "./types.ts";

// Colours by kind of drafter: networks, repeated text, grammar.
function kind(drafter: string): string {
  if (/mtp|nextn/.test(drafter)) return "mtp";
  if (/dflash/.test(drafter)) return "dflash";
  if (/grammar/.test(drafter)) return "grammar";
  return /model/.test(drafter) ? "model" : "text";
}

const visible = (s: string) => s.replace(/\n/g, "⏎\n") || "∅";

function TokenSpans({ step }: { step: Step }) {
  const { tokens, drafter, drafted = 0, accepted = 0, rejected = [] } = step;
  return (
    <>
      {tokens.map((text, i) => {
        const own = !drafter || i >= accepted;
        const instead = own && rejected.length ? `\n${t("Rejected: {0}", rejected.map(visible).join(""))}` : "";
        const title = !drafter ? t("Plain step")
          : own ? t("Chosen by the model after {0}: {1} of {2} drafted tokens accepted", drafter, accepted, drafted)
            : t("Drafted by {0}: position {1}, {2} of {3} accepted", drafter, i + 1, accepted, drafted);
        return <span key={i} style={own ? undefined : { "--place": i }} class={own ? (drafter ? "own" : "plain") : `by-${kind(drafter)}`} title={title + instead}
          data-rejected={instead ? rejected.map(visible).join("") : undefined}>{visible(text)}</span>;
      })}
    </>
  );
}

function advice(list: number[]): string {
  const last = list.findLastIndex((v) => v >= 0.5);
  if (last < 0) return t("Few drafts are accepted here: plain decoding or another drafter may be as fast.");
  if (last === list.length - 1) return t("Drafts hold to their last position: longer drafts may pay off.");
  return t("Drafts hold up to position {0}: longer ones rarely pay off here.", last + 1);
}

function Curves({ s }: { s: NonNullable<Timings["speculation"]> }) {
  const reached = s.accepted_per_pos ?? [], given = s.accepted_per_pos_given_previous ?? [];
  if (!reached.length) return null;
  const line = (list: number[]) => list.map((v, i) => `${list.length > 1 ? (i / (list.length - 1)) * 200 : 100},${50 - v * 46}`).join(" ");
  return (
    <>
      <svg class="spark two" viewBox="0 0 200 52" preserveAspectRatio="none" aria-hidden="true">
        <polyline points={line(given)} vector-effect="non-scaling-stroke" /><polyline class="all" points={line(reached)} vector-effect="non-scaling-stroke" />
      </svg>
      <div class="table" tabindex={0}>
        <table class="curves">
          <thead><tr><th>{t("Position")}</th>{reached.map((_, i) => <th key={i}>{i + 1}</th>)}</tr></thead>
          <tbody>
            <tr><th class="of-all">{t("Accepted, of all drafts")}</th>{reached.map((v, i) => <td key={i}>{Math.round(v * 100)} %</td>)}</tr>
            <tr><th class="of-reached">{t("Accepted, if the ones before were")}</th>{given.map((v, i) => <td key={i}>{Math.round(v * 100)} %</td>)}</tr>
          </tbody>
        </table>
      </div>
      <p class="hint">{advice(given)}</p>
    </>
  );
}

function rows(m: Message): [string, string][] {
  const s = m.timings!, d = s.speculation;
  const ms = (v?: number) => (v === undefined ? "–" : `${v.toFixed(1)} ms`);
  const out: [string, string][] = [
    [t("Model"), m.model ?? ""], [t("Prompt tokens read"), String(s.prompt_n)], [t("From cache"), String(s.cache_n ?? 0)],
    [t("Prompt processing"), ms(s.prompt_ms)], [t("Generated tokens"), String(s.predicted_n)], [t("Generation"), ms(s.predicted_ms)],
    ["tokens/s", s.predicted_per_second.toFixed(1)],
  ];
  const u = m.used, kv = state.props?.kv_cache, context = state.props?.default_generation_settings?.n_ctx;
  if (m.seed !== undefined) out.push([t("Seed"), String(m.seed)]);
  if (u?.temperature) out.push([t("Temperature"), u.temperature]);
  if (context) out.push([t("Context"), context.toLocaleString()]);
  if (kv) out.push([t("KV cache"), kv.k === kv.v ? kv.k : `${kv.k}, ${kv.v}`]);
  if (d) out.push(["tokens/step", d.accepted_length.toFixed(2)], [t("Draft"), ms(d.draft_ms)], [t("Verify"), ms(d.verify_ms)],
    [t("Sample"), ms(d.sample_ms)]);
  if (s.energy_j_per_token !== undefined) out.push([t("Energy"), `${s.energy_j_per_token.toFixed(2)} J/token`]);
  return out;
}

function Receipt({ m }: { m: Message }) {
  const list = rows(m);
  const markdown = () => ["| | |", "|---|--:|", ...list.map(([a, b]) => `| ${a} | ${b} |`)].join("\n");
  return (
    <details class="receipt">
      <summary>{t("Receipt")}</summary>
      <dl>{list.map(([a, b]) => <div key={a}><dt>{a}</dt><dd>{b}</dd></div>)}</dl>
      <button type="button" onClick={() => copy(markdown())}>{t("Copy as Markdown")}</button>
    </details>
  );
}

// The answer made again with its seed and without drafts: the same tokens, later.
function Same({ m, open }: { m: Message; open: Open }) {
  const [said, say] = useState("");
  const abort = useRef<AbortController | null>(null);
  useEffect(() => () => abort.current?.abort(), []);
  const ask = async () => {
    abort.current = new AbortController();
    say("…");
    const way = { server: "", model: m.model ?? state.model, drafts: false };
    const run = await rerun(m, path(open, m.parent), way, abort.current.signal,
      (r) => !r.done && say(`${r.tokens.length} / ${m.timings?.predicted_n ?? ""}`));
    say(run.error ?? verdict(runOf(m), run));
  };
  return (
    <p class="row-fill same-row">
      <button type="button" disabled={said === "…"} onClick={ask}>{t("Same without drafts?")}</button>
      <button type="button" onClick={() => set({ compared: m })}>{t("Compare")}…</button>
      <span class="verdict" role="status">{said}</span>
    </p>
  );
}

function Prompt({ m, open }: { m: Message; open: Open }) {
  const [text, show] = useState("");
  const load = async (e: Event & { currentTarget: HTMLDetailsElement }) => {
    if (!e.currentTarget.open || text) return;
    const body = JSON.stringify(await requestFor(m, path(open, m.parent)));
    show(await call("/apply-template", { method: "POST", body }).then(async (r) => ((await r.json()) as { prompt: string }).prompt, String));
  };
  return <details class="receipt raw" onToggle={load}><summary>{t("Raw prompt")}</summary><pre tabindex={0}>{text}</pre></details>;
}

export function XRay({ m, open }: { m: Message; open: Open }) {
  const steps = m.steps ?? [];
  const drafters = [...new Set(steps.map((s) => s.drafter).filter((d) => d !== undefined))];
  return (
    <section class="xray" aria-label={t("X-ray")}>
      <p class="legend">
        {drafters.map((d) => <span key={d} class={`by-${kind(d)}`}>{d}</span>)}
        <span class="own">{t("model, after a draft")}</span><span class="plain">{t("plain")}</span>
        {drafters.length > 0 && <small>{t("paler: later in the draft")}</small>}
      </p>
      <pre tabindex={0}>{steps.map((s, i) => <TokenSpans key={i} step={s} />)}</pre>
      {m.timings?.speculation && <Curves s={m.timings.speculation} />}
      <Same m={m} open={open} />
      {m.timings && <Receipt m={m} />}
      <Prompt m={m} open={open} />
    </section>
  );
}
