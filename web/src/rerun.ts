// One prompt made into an answer once more, beside the first and kept nowhere: without drafts, by another model, or by
// another server.
import { headers, requestFor } from "./api.ts";
import { events } from "./answers.ts";
import { t } from "./text.ts";
import type { Chunk, Message, Odds, Timings } from "./types.ts";

export interface Run { tokens: string[]; odds: Odds[]; timings?: Timings; error?: string; done: boolean }
export interface Way { server: string; model: string; drafts: boolean }

export const runOf = (m: Message): Run =>
  ({ tokens: (m.steps ?? []).slice(m.begun?.steps).flatMap((s) => s.tokens), odds: [], timings: m.timings, done: true });

// `way.server` is another's origin, which gets no key of ours; empty: this server.
export async function rerun(m: Message, before: Message[], way: Way, signal: AbortSignal, changed: (r: Run) => void): Promise<Run> {
  const run: Run = { tokens: [], odds: [], done: false };
  try {
    const body = { ...await requestFor(m, before), model: way.model, speculation: way.drafts, logprobs: true, top_logprobs: 3 };
    if (way.server && !way.model) delete (body as { model?: string }).model;
    const r = await fetch(`${way.server}/v1/chat/completions`, { method: "POST", signal, body: JSON.stringify(body),
      headers: way.server ? { "Content-Type": "application/json" } : headers() });
    if (!r.ok) throw new Error((JSON.parse(await r.text()) as Chunk).error?.message ?? `HTTP ${r.status}`);
    for await (const data of events(r.body!)) {
      if (data === "[DONE]") break;
      const chunk = JSON.parse(data) as Chunk;
      if (chunk.error) throw new Error(chunk.error.message);
      for (const s of chunk.steps ?? []) run.tokens.push(...s.tokens);
      run.odds.push(...(chunk.choices?.[0]?.logprobs?.content ?? []));
      run.timings = chunk.timings ?? run.timings;
      changed(run);
    }
  } catch (e) {
    if (!signal.aborted) run.error = e instanceof TypeError
      ? t("Can't reach {0}. Is it running, does its --cors-origin let this page in, and does this server's --page-origin name it?", way.server || t("the server"))
      : (e as Error).message;
  }
  run.done = true;
  changed(run);
  return run;
}

// The first index where two answers are not the same; -1: none.
export function parting(a: Run, b: Run): number {
  const n = Math.min(a.tokens.length, b.tokens.length);
  for (let i = 0; i < n; i++) if (a.tokens[i] !== b.tokens[i]) return i;
  return a.tokens.length === b.tokens.length ? -1 : n;
}

// How much faster `a` generated than `b`.
export function faster(a: Run, b: Run): number | null {
  const x = a.timings?.predicted_per_second, y = b.timings?.predicted_per_second;
  return x && y ? x / y : null;
}

export function verdict(a: Run, b: Run): string {
  const at = parting(a, b), times = faster(a, b);
  const speed = times === null ? "" : Math.abs(times - 1) < 0.05 ? t("equally fast") : times > 1 ? t("{0} times faster", times.toFixed(1)) : t("{0} times slower", (1 / times).toFixed(1));
  if (at < 0) return t("Identical, {0} of {0} tokens", a.tokens.length) + (speed && `, ${speed}`);
  const show = (r: Run) => (r.tokens[at] === undefined ? t("the end") : `“${r.tokens[at]}”`);
  return t("Same for {0} tokens; then {1} here and {2} there.", at, show(a), show(b));
}
