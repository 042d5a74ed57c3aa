// What the live panel says of two readings of /metrics.
import { expect, test } from "vitest";
import { live, parse } from "../src/metrics.ts";

const text = (generated: number, more = "") => `# HELP vllm:generation_tokens_total Tokens generated.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="a"} ${generated}
vllm:generation_tokens_total{engine="0",model_name="b, \\"x\\"} 1"} 8
vllm:prompt_tokens_total{engine="0"} 4e3
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:prefix_cache_hits_total{engine="0"} 30
vllm:prefix_cache_queries_total{engine="0"} 40
vllm:e2e_request_latency_seconds_bucket{le="+Inf"} 3
${more}`;
const drafts = `vllm:spec_decode_num_drafts_total 10
carat:spec_plain_steps_total 5
vllm:spec_decode_num_accepted_tokens_total 15
vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 9
vllm:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 6
carat:spec_num_tried_tokens_per_pos_total{position="0"} 10
carat:spec_num_tried_tokens_per_pos_total{position="1"} 9
`;

test("models are summed, names lose their maker, comments are not read", () => {
  const m = parse(text(100));
  expect(m.get("generation_tokens_total")).toBe(108);
  expect(m.get("prompt_tokens_total")).toBe(4000);
  expect([...m.keys()].some((k) => k.includes("#"))).toBe(false);
});

test("rates are of two readings; a server that began anew is not negative", () => {
  const before = parse(text(100)), now = parse(text(180));
  expect(live(now, before, 2).generated).toBe(40);
  expect(live(now, null, 0).generated).toBe(0);
  expect(live(before, now, 1).generated).toBe(0);
  expect(live(now, before, 2).prefix).toBe(0.75);
  expect(live(now, before, 2).kv).toBe(0.25);
});

test("tokens a step count plain steps, and acceptance is of those tried", () => {
  const f = live(parse(text(1, drafts)), null, 0);
  expect(f.speculates).toBe(true);
  expect(f.length).toBe((15 + 10 + 5) / (10 + 5));
  expect(f.perPlace).toEqual([0.9, 6 / 9]);
  expect(live(parse(text(1)), null, 0)).toMatchObject({ speculates: false, length: null, perPlace: [] });
});

test("power is told where joules are, and nowhere else", () => {
  const joules = (n: number) => parse(`carat:energy_joules_total ${n}\n`);
  expect(live(joules(500), joules(400), 2).energy).toBe(50);
  expect(live(parse(text(1)), parse(text(1)), 1).energy).toBeNull();
});
