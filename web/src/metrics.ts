// Prometheus text as a map, and what the live panel shows of two readings.

export type Figures = ReturnType<typeof live>;

export function parse(text: string): Map<string, number> {
  const all = new Map<string, number>();
  for (const line of text.split("\n")) {
    const m = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? ([-+.\w]+)$/.exec(line);
    if (!m) continue;
    const name = m[1].replace(/^(carat|vllm):/, "");
    const position = /position="(\d+)"/.exec(m[2] ?? "");
    const key = position ? `${name}/${position[1]}` : name;
    all.set(key, (all.get(key) ?? 0) + Number(m[3]));
  }
  return all;
}

// Values under a name with positions 0, 1, ...
function places(m: Map<string, number>, name: string): number[] {
  const out: number[] = [];
  while (m.has(`${name}/${out.length}`)) out.push(m.get(`${name}/${out.length}`)!);
  return out;
}

export function live(now: Map<string, number>, before: Map<string, number> | null, seconds: number) {
  const value = (name: string) => now.get(name) ?? 0;
  const rate = (name: string) => (before && seconds > 0 ? Math.max(0, value(name) - (before.get(name) ?? 0)) / seconds : 0);
  const share = (a: number, b: number) => (b > 0 ? a / b : null);
  const drafts = value("spec_decode_num_drafts_total");
  const accepted = places(now, "spec_decode_num_accepted_tokens_per_pos_total");
  const tried = places(now, "spec_num_tried_tokens_per_pos_total");
  return {
    generated: rate("generation_tokens_total"),
    read: rate("prompt_tokens_total"),
    running: value("num_requests_running"),
    waiting: value("num_requests_waiting"),
    kv: value("kv_cache_usage_perc"),
    prefix: share(value("prefix_cache_hits_total"), value("prefix_cache_queries_total")),
    speculates: now.has("spec_decode_num_drafts_total"),
    length: share(value("spec_decode_num_accepted_tokens_total") + drafts + value("spec_plain_steps_total"),
      drafts + value("spec_plain_steps_total")),
    perPlace: accepted.map((n, i) => share(n, tried[i] ?? drafts)),
    energy: now.has("energy_joules_total") ? rate("energy_joules_total") : null,
    versions: now.has("version"),
    total: value("generation_tokens_total"),
  };
}
