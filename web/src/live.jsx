import { useEffect, useState } from "preact/hooks";
import { get } from "./api.js";
import { live, parse } from "./metrics.js";
import { Panel } from "./settings.jsx";
import { state } from "./store.js";

const kEvery = 1000, kKeep = 60;

// Reads the server's counters once a second while the panel is open and the page is seen.
function useLive() {
  const [shown, show] = useState({ now: null, rates: [] });
  useEffect(() => {
    let before = null, at = 0, timer = 0, ended = false, rates = [];
    const tick = async () => {
      if (!document.hidden) {
        try {
          const now = parse(await (await get("/metrics")).text());
          const time = performance.now();
          const figures = live(now, before, (time - at) / 1000);
          if (before) rates = [...rates, figures.generated].slice(-kKeep);
          before = now;
          at = time;
          if (!ended) show({ now: figures, rates });
        } catch { /* the chat says that the server is away */ }
      }
      if (!ended) timer = setTimeout(tick, kEvery);
    };
    tick();
    return () => {
      ended = true;
      clearTimeout(timer);
    };
  }, []);
  return shown;
}

const percent = (v) => (v === null ? "–" : `${Math.round(v * 100)} %`);
const number = (v) => (v === null ? "–" : v >= 100 ? String(Math.round(v)) : v.toFixed(1));

function Spark({ values }) {
  const top = Math.max(1, ...values);
  const points = values.map((v, i) => `${((i + kKeep - values.length) / (kKeep - 1)) * 200},${47 - (v / top) * 44}`).join(" ");
  return (
    <svg class="spark" viewBox="0 0 200 50" preserveAspectRatio="none" role="img" aria-label={`Tokens per second in the last minute, at most ${number(top)}`}>
      <polyline points={points} vector-effect="non-scaling-stroke" />
    </svg>
  );
}

function Bar({ value, label }) {
  return (
    <div class="bar" role="img" aria-label={`${label}: ${percent(value)}`}>
      <div style={{ width: `${Math.min(100, (value ?? 0) * 100)}%` }} />
    </div>
  );
}

function Figure({ label, value, unit, title }) {
  return <div class="figure" title={title}><dt>{label}</dt><dd>{value}{unit && <small> {unit}</small>}</dd></div>;
}

function Acceptance({ list }) {
  if (!list.length) return <p class="hint">No drafts yet.</p>;
  return (
    <ol class="places" aria-label="Acceptance by place in the draft">
      {list.slice(0, 16).map((v, i) => (
        <li key={i} title={`place ${i + 1}: ${percent(v)}`}>
          <div class="column"><div style={{ height: `${(v ?? 0) * 100}%` }} /></div>
          <span>{i + 1}</span><span class="sr">: {percent(v)}</span>
        </li>
      ))}
    </ol>
  );
}

export function Live() {
  const { now, rates } = useLive();
  const last = state.current?.messages.findLast?.((m) => m.timings)?.timings;
  return (
    <Panel title="Live figures">
      {now ? (
        <>
          <dl class="figures">
            <Figure label="Generating" value={number(now.generated)} unit="tok/s" />
            <Figure label="Reading" value={number(now.read)} unit="tok/s" />
            <Figure label="Running" value={now.running} />
            <Figure label="Waiting" value={now.waiting} />
          </dl>
          <Spark values={rates} />
          <h3>KV cache <span>{percent(now.kv)}</span></h3>
          <Bar value={now.kv} label="KV cache in use" />
          <h3>Prefix hits <span>{percent(now.prefix)}</span></h3>
          <Bar value={now.prefix} label="Prompt tokens found in the cache" />
          <h3>Speculation <span>{now.speculates ? `${number(now.length)} tok/step` : "off"}</span></h3>
          {now.speculates && <Acceptance list={now.perPlace} />}
          {now.energy !== null && <dl class="figures"><Figure label="Power" value={number(now.energy)} unit="W" /></dl>}
        </>
      ) : <p class="hint">Waiting for figures.</p>}
      {last && (
        <>
          <h3>Last answer</h3>
          <dl class="figures">
            <Figure label="Prompt" value={last.prompt_n} unit="tok" />
            <Figure label="Reused" value={last.cache_n ?? 0} unit="tok" />
            <Figure label="Speed" value={number(last.predicted_per_second)} unit="tok/s" />
            {last.speculation && <Figure label="Accepted length" value={number(last.speculation.accepted_length)} unit="tok/step" />}
          </dl>
        </>
      )}
    </Panel>
  );
}
