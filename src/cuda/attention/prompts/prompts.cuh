// Attention of prompts on warpgroups (sm_90a), heads of 256 and 512, caches of halves or decoded to halves,
// rows on chains, scores without a cap. A task is 64 pairs of a row and a query head as in
// tiles/tiles.cuh, and so are its bits. It goes through the positions two tiles of 64 at a time:
// one warpgroup brings keys and values to shared memory, 64 columns at a time; each of two others multiplies
// the queries by one tile's keys, and then both tiles' weights by its half of the columns of the values.
#pragma once
#include "cuda/attention/prompts/long.cuh"
#include "cuda/attention/prompts/short.cuh"
#include "cuda/attention/prompts/warps.cuh"

namespace carat::cuda {

template <class S>
__global__ void __launch_bounds__(kPromptThreads, 1)
    prompt_attention(const AttentionPart a, const DevStep* s, const Tables* tables, RowSet set,
                     const __grid_constant__ KvBoxes boxes) {
#if defined(CARAT_WIDE) || defined(CARAT_CUDA_EMULATE)
  CARAT_SHARED(shared);
  unsigned char* memory = shared + (1024 - shared_address(shared) % 1024) % 1024;
  if (threadIdx.x < 4 * S::kStages)
    gate_init(shared_address(memory) + S::kGates + 8 * threadIdx.x,
              threadIdx.x < 2 * S::kStages ? 32 : arrivals(4));
  sync_block();
  begin_kernel();
  if (threadIdx.x >= kPromptConsumers) {
    fewer_registers<S::kLoaderRegs>();
    PromptLoader<S>{a, s, set, boxes, shared_address(memory)}.run();
  } else {
    more_registers<S::kConsumerRegs>();
    PromptWalk<S>(a, s, *tables, set, memory).run();
  }
#endif
}

template <class S>
bool prompts_take(const Context& c, const AttentionPart& a) {
  const auto even = [](const Tensor& t) {
    return reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && t.pitch % 16 == 0;
  };
  return c.launcher.major == 9 && compiled_for(prompt_attention<S>) == 90 && S::kBytes <= c.launcher.shared &&
         even(a.q) && even(a.y);
}
template <class S>
void launch_prompts(const Context& c, const AttentionPart& a, int32_t rows, RowSet set,
                    const KvBoxes& boxes) {
  const int32_t per = kPromptRows / a.width;
  const int64_t tasks = (int64_t{(rows + per - 1) / per} + 7) * a.kv.heads * a.chunks;
  launch(c.launcher, "attention", prompt_attention<S>,
         dim3(static_cast<unsigned>(std::min<int64_t>(tasks, c.launcher.sms))), kPromptThreads,
         static_cast<size_t>(S::kBytes), a, c.step, c.tables, set, boxes);
}
// Of a cache of halves. False: nothing for these kernels.
template <int DIM>
bool attend_prompt(const Context& c, const AttentionPart& a, int32_t rows, RowSet set) {
  if (rows < kPromptRows || a.softcap > 0 || a.kv.page_tokens % kKvTile || !in_pairs(a.y)) return false;
  using S = PromptShape<DIM, PromptSource::halves>;
  KvBoxes boxes;
  if (prompts_take<S>(c, a) && make_boxes(boxes, a.kv) && make_output_box(boxes, a))
    launch_prompts<S>(c, a, rows, set, boxes);
  else
    attend_by_warps<DIM, PromptSource::halves>(c, a, rows, set);
  return true;
}

// Of the part of a packed cache that has been decoded (prompts/unpacked.cu).
template <int DIM, PromptSource SOURCE, bool TWICE>
void attend_decoded(const Context& c, const AttentionPart& a, int32_t rows, RowSet set) {
  using S = PromptShape<DIM, SOURCE, TWICE>;
  KvBoxes boxes;
  if (prompts_take<S>(c, a) && make_boxes(boxes, a.unpacked, a.kv) && make_output_box(boxes, a))
    launch_prompts<S>(c, a, rows, set, boxes);
  else
    attend_by_warps<DIM, SOURCE, TWICE>(c, a, rows, set);
}
template <bool TWICE>
void attend_decoded(const Context& c, const AttentionPart& a, int32_t rows, RowSet set) {
  if (a.kv.dim == 256)
    attend_decoded<256, PromptSource::unpacked, TWICE>(c, a, rows, set);
  else if (a.copies.pairs)
    attend_decoded<512, PromptSource::single, TWICE>(c, a, rows, set);
  else
    attend_decoded<512, PromptSource::unpacked, TWICE>(c, a, rows, set);
}
// The same where rows are protected (prompts/protected.cu).
void attend_protected(const Context& c, const AttentionPart& a, int32_t rows, RowSet set);

}  // namespace carat::cuda
