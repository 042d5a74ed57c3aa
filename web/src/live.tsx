import { call } from "./api.ts";
import { live, parse } from "./metrics.ts";
import { usePolled } from "./polled.ts";
import { Panel } from "./settings.tsx";
import { set, state } from "./store.ts";
import { t } from "./text.ts";
import { path } from "./tree.ts";
import { Versions } from "./versions.tsx";

const kEvery = 1000, kKeep = 60;

// The server's counters, and how fast they grew in the last minute.
function ask() {
  let before: Map<string, number> | null = null, at = 0, rates: number[] = [];
  return async () => {
    const counters = parse(await (await call("/metrics")).text());
    const time = performance.now();
    const now = live(counters, before, (time - at) / 1000);
    if (before) rates = [...rates, now.generated].slice(-kKeep);
    before = counters;
    at = time;
    return { now, rates };
  };
}

const percent = (v: number | null | undefined) => (v == null ? "–" : `${Math.round(v * 100)} %`);
const number = (v: number | null) => (v === null ? "–" : v >= 100 ? String(Math.round(v)) : v.toFixed(1));

function Spark({ values }: { values: number[] }) {
  const top = Math.max(1, ...values);
  const points = values.map((v, i) => `${((i + kKeep - values.length) / (kKeep - 1)) * 200},${47 - (v / top) * 44}`).join(" ");
  return (
    <svg class="spark" viewBox="0 0 200 50" preserveAspectRatio="none" role="img" aria-label={t("Tokens per second in the last minute, at most {0}", number(top))}>
      <polyline points={points} vector-effect="non-scaling-stroke" />
    </svg>
  );
}

function Bar({ value, label }: { value: number | null; label: string }) {
  return (
    <div class="bar" role="img" aria-label={`${label}: ${percent(value)}`}>
      <div style={{ width: `${Math.min(100, (value ?? 0) * 100)}%` }} />
    </div>
  );
}

function Figure({ label, value, unit }: { label: string; value: string | number; unit?: string }) {
  return <div class="figure"><dt>{label}</dt><dd>{value}{unit && <small> {unit}</small>}</dd></div>;
}

function Acceptance({ list }: { list: (number | null)[] }) {
  if (!list.length) return <p class="hint">{t("No drafts yet.")}</p>;
  return (
    <ol class="places" aria-label={t("Acceptance by position in the draft")}>
      {list.slice(0, 16).map((v, i) => (
        <li key={i} title={t("Position {0}: {1}", i + 1, percent(v))}>
          <div class="column"><div style={{ height: `${(v ?? 0) * 100}%` }} /></div>
          <span>{i + 1}</span><span class="sr">: {percent(v)}</span>
        </li>
      ))}
    </ol>
  );
}

export function Live() {
  const { now, rates } = usePolled(kEvery, ask) ?? { now: null, rates: [] };
  const last = path(state.current).findLast((m) => m.timings)?.timings;
  return (
    <Panel title={t("Live metrics")}>
      {now ? (
        <>
          <dl class="figures">
            <Figure label={t("Generation")} value={number(now.generated)} unit="tokens/s" />
            <Figure label={t("Prompt processing")} value={number(now.read)} unit="tokens/s" />
            <Figure label={t("Running")} value={now.running} />
            <Figure label={t("Queued")} value={now.waiting} />
          </dl>
          <Spark values={rates} />
          <h3>{t("KV cache")} <span>{percent(now.kv)}</span></h3>
          <Bar value={now.kv} label={t("KV cache")} />
          <h3>{t("Prompt cache hits")} <span>{percent(now.prefix)}</span></h3>
          <Bar value={now.prefix} label={t("Prompt cache hits")} />
          <h3>{t("Speculation")} <span>{now.speculates ? `${number(now.length)} tokens/step` : t("off")}</span></h3>
          {now.speculates && <Acceptance list={now.perPlace} />}
          {now.energy !== null && <dl class="figures"><Figure label={t("Power")} value={number(now.energy)} unit="W" /></dl>}
        </>
      ) : <p class="hint">{t("Waiting for the first metrics…")}</p>}
      {last && (
        <>
          <h3>{t("Last answer")}</h3>
          <dl class="figures">
            <Figure label={t("Prompt")} value={last.prompt_n} unit={t("tokens")} />
            <Figure label={t("From cache")} value={last.cache_n ?? 0} unit={t("tokens")} />
            <Figure label={t("Generation")} value={number(last.predicted_per_second)} unit="tokens/s" />
            {last.speculation && <Figure label={t("Speculation")} value={number(last.speculation.accepted_length)} unit="tokens/step" />}
          </dl>
        </>
      )}
      {now?.versions && <Versions />}
      <p><button type="button" onClick={() => set({ panel: "records" })}>{t("Records")}…</button></p>
    </Panel>
  );
}
