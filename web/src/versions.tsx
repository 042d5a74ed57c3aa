// The versions that the server keeps (carat serve --promotions): which serves, is tried and stands by, and what changed when.
import { call } from "./api.ts";
import { usePolled } from "./polled.ts";
import { t } from "./text.ts";

type Role = "serving" | "candidate" | "fallback";
interface Open { requests: number; errors: number; tok_s: number }
interface Kept extends Record<Role, number> {
  versions: { id: number; flags: string[] }[];
  history: { time: string; event: string; version: number; why?: string }[];
  open: Partial<Record<Role, Open>>;
  canary: number;
  shadow: boolean;
  opening: number;
  progress?: number;
  compared: { same: number; other: number; failed: number };
}
const kEvery = 2000, kShown = 20;

const ask = () => async () => (await (await call("/promotion")).json()) as Kept;

const percent = (v: number) => `${Math.round(1000 * v) / 10} %`;

function said(kept: Kept, role: Role): string {
  const open = kept.open[role];
  if (!open) return kept.opening === kept[role] ? `${t("loading…")} ${percent(kept.progress ?? 0)}` : t("not loaded");
  return t("{0} answers, {1} failed, {2} tokens/s", open.requests, open.errors, open.tok_s.toFixed(1));
}

function Version({ kept, role, name }: { kept: Kept; role: Role; name: string }) {
  const version = kept.versions.find((v) => v.id === kept[role]);
  if (!version) return null;
  return (
    <details class="record">
      <summary><b>{name}: {version.id}</b> <small>{said(kept, role)}</small></summary>
      <pre tabindex={0}>{version.flags.join(" ")}</pre>
    </details>
  );
}

export function Versions() {
  const kept = usePolled(kEvery, ask);
  if (!kept) return null;
  const { same, other, failed } = kept.compared;
  return (
    <section class="versions" aria-label={t("Versions served")}>
      <h3>{t("Versions served")}</h3>
      <Version kept={kept} role="serving" name={t("Serving")} />
      <Version kept={kept} role="candidate" name={t("Tried")} />
      <Version kept={kept} role="fallback" name={t("Standing by")} />
      {kept.candidate > 0 && kept.canary > 0 && <p class="hint">{t("{0} of conversations go to the version that is tried.", percent(kept.canary))}</p>}
      {kept.candidate > 0 && kept.shadow && <p class="hint">{t("Copies of requests: {0} answers the same, {1} others, {2} failed.", same, other, failed)}</p>}
      <details class="record">
        <summary>{t("What changed")} <small>{kept.history.length}</small></summary>
        <ul>
          {kept.history.slice(-kShown).reverse().map((h, i) => (
            <li key={i}>{h.event} {h.version} <small>{[h.time, h.why].filter(Boolean).join(" · ")}</small></li>
          ))}
        </ul>
      </details>
    </section>
  );
}
