// What `carat gate` and `carat tune` measured, from their records (`--json`, `--records`). Nothing is green without its record.
import { useRef, useState } from "preact/hooks";
import { Panel } from "./settings.tsx";
import { read, set, write } from "./store.ts";
import { t } from "./text.ts";

type Json = Record<string, any>;
const isRecord = (v: Json): boolean => v?.schema === "carat.record";

async function recordsIn(files: Iterable<File>): Promise<Json[]> {
  const out: Json[] = [];
  for (const f of files) {
    const given = JSON.parse(await f.text()) as Json | Json[];
    out.push(...[given].flat().filter((r) => isRecord(r) && /^(gate|regime)$/.test(r.kind)).map((r) => ({ ...r, file: f.name })));
  }
  return out;
}

const number = (v: unknown, digits = 1) => (typeof v === "number" ? v.toFixed(digits) : "–");

function Row({ mark, title, said, record, id }: { mark?: boolean; title: string; said: string; record: Json; id?: string }) {
  return (
    <details class="record" id={id}>
      <summary>{mark !== undefined && <b class={mark ? "good" : "fault"}>{mark ? t("passed") : t("failed")}</b>} {title} <small>{said}</small></summary>
      <pre tabindex={0}>{JSON.stringify(record, null, 1)}</pre>
    </details>
  );
}

// Contexts down, prompts across: the best settings of each, and how much faster than plain decoding they are. A cell opens its record.
function RegimeMap({ list }: { list: Json[] }) {
  const values = (name: string) => [...new Set(list.map((r) => r.settings?.[name]))];
  const open = (r: Json) => {
    const row = document.getElementById(`regime-${list.indexOf(r)}`) as HTMLDetailsElement;
    row.open = true;
    row.scrollIntoView({ block: "nearest" });
  };
  const cell = (r?: Json) => r && (
    <button type="button" onClick={() => open(r)}>{r.settings.config} <b>{number(r.figures?.decode_tps)}</b>
      {r.figures?.plain_tps > 0 && ` ×${number(r.figures.decode_tps / r.figures.plain_tps)}`}</button>
  );
  const prompts = values("prompts");
  return (
    <div class="table" tabindex={0}><table class="regimes">
      <thead><tr><th>{t("Context")}</th>{prompts.map((p) => <th key={p}>{p}</th>)}</tr></thead>
      <tbody>{values("ctx").map((ctx) => (
        <tr key={ctx}><th>{Number(ctx).toLocaleString()}</th>
          {prompts.map((p) => <td key={p}>{cell(list.findLast((r) => r.settings?.ctx === ctx && r.settings?.prompts === p))}</td>)}</tr>
      ))}</tbody>
    </table></div>
  );
}

export function Records() {
  const file = useRef<HTMLInputElement>(null);
  const [list, show] = useState<Json[]>(() => read<Json[]>("records", []));
  const load = async (e: Event & { currentTarget: HTMLInputElement }) => {
    const input = e.currentTarget;
    try {
      const found = await recordsIn(input.files!);
      if (!found.length) set({ notice: t("The file has no record of carat gate or carat tune.") });
      else show(found), write("records", found);
    } catch {
      set({ notice: t("the file is not JSON") });
    }
    input.value = "";
  };
  const gates = list.filter((r) => r.kind === "gate"), map = list.filter((r) => r.kind === "regime");
  const about = (r: Json) => [r.model?.name, r.time, r.carat, r.busy && t("busy: {0}", r.busy), r.file].filter(Boolean).join(" · ");
  return (
    <Panel title={t("Records")}>
      <p class="hint">{t("Files of carat gate and carat tune (--json, --records): each line opens its record.")}</p>
      <button type="button" onClick={() => file.current!.click()}>{t("Open records")}…</button>
      <input ref={file} type="file" multiple hidden accept=".json" aria-label={t("Open records")} onChange={load} />
      {gates.length > 0 && <h3>{t("Gates")} <span>{gates.filter((r) => r.figures?.passed === true).length} / {gates.length}</span></h3>}
      {gates.map((r, i) => (
        <Row key={i} record={r} mark={r.figures?.passed === true} title={`${r.settings?.suite ?? ""} ${r.settings?.case ?? ""}`}
          said={[...(r.figures?.faults ?? []), `${number(r.figures?.decode_tps)} tokens/s`, about(r)].join(" · ")} />
      ))}
      {map.length > 0 && <><h3>{t("Regime map")} <span>tokens/s</span></h3><RegimeMap list={map} /></>}
      {map.map((r, i) => (
        <Row key={i} id={`regime-${i}`} record={r} title={`${r.settings?.ctx} · ${r.settings?.prompts}: ${r.settings?.config}`}
          said={`${number(r.figures?.decode_tps)} tokens/s, ${t("{0} without drafts", number(r.figures?.plain_tps))} · ${about(r)}`} />
      ))}
    </Panel>
  );
}
