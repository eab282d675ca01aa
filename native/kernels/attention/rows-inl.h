// What one row (a query of one head) does with its scores, whatever K and V are stored as: the softmax step
// of a chunk, the merge of partial results, the end. See lanes-inl.h for how it is included.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/attention/work.h"
#include "kernels/lanes/exp-inl.h"

namespace plait::PLAIT_LANES {

inline constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// fn(n), n an integral_constant, for num_rows = n in [1, kRowTile]: code for each number of rows.
template <typename Fn>
inline void with_rows(int32_t num_rows, Fn fn) {
  static_assert(kRowTile == 6);
  switch (num_rows) {
    case 1:
      return fn(std::integral_constant<int, 1>{});
    case 2:
      return fn(std::integral_constant<int, 2>{});
    case 3:
      return fn(std::integral_constant<int, 3>{});
    case 4:
      return fn(std::integral_constant<int, 4>{});
    case 5:
      return fn(std::integral_constant<int, 5>{});
    default:
      return fn(std::integral_constant<int, 6>{});
  }
}

// The positions [lo, hi) of a chunk that a row sees, counted from the chunk's first.
struct Seen {
  int32_t lo, hi;

  bool is_whole() const { return lo == 0 && hi == kChunk; }
};

// The lanes of positions [i, i + 8) that a row sees; `other` in the rest.
inline F8 only_seen(F8 a, int32_t i, const Seen& seen, float other) {
  const F8 position = add(lane_indices(), set1(static_cast<float>(i)));
  a = if_less(position, set1(static_cast<float>(seen.lo)), set1(other), a);
  return if_less(position, set1(static_cast<float>(seen.hi)), a, set1(other));
}

// The highest score that a row sees; scores that it does not see become -infinity. kIsWhole: it sees the
// chunk.
template <bool kIsWhole>
inline float highest_score(float* s, const Seen& seen, float softcap) {
  const int32_t begin = kIsWhole ? 0 : seen.lo / 8 * 8;
  const int32_t end = kIsWhole ? kChunk : seen.hi;
  F8 highest = set1(kMinusInf);
  for (int32_t i = begin; i < end; i += 8) {
    F8 score = load(s + i);
    if (softcap > 0.0F) score = mul(set1(softcap), tanh(mul(score, set1(1.0F / softcap))));
    if (!kIsWhole && (i < seen.lo || i + 8 > seen.hi)) score = only_seen(score, i, seen, kMinusInf);
    if (!kIsWhole || softcap > 0.0F) store(s + i, score);
    highest = max(highest, score);
  }
  return max_lanes(highest);
}

// Scores become weights, of which keep(r, i, weights) stays; returns their sum.
template <bool kIsWhole, typename Keep>
inline float weigh_scores(float* s, const Seen& seen, float highest, int r, const Keep& keep) {
  const int32_t begin = kIsWhole ? 0 : seen.lo / 8 * 8;
  const int32_t end = kIsWhole ? kChunk : seen.hi;
  const F8 offset = set1(highest);
  F8 total = set1(0.0F);
  for (int32_t i = begin; i < end; i += 8) {
    const F8 weights = exp_bounded(sub(load(s + i), offset));
    store(s + i, keep(r, i, weights));
    total = add(total, weights);
  }
  return sum_lanes(total);
}

// One online softmax step of rows [row0, row0 + kRows) over the positions of the chunk that each sees, at
// least one: scores become weights, and max, sum and decay move on. What is kept of weights [i, i + 8) of row
// row0 + r is keep(r, i, weights). Each phase runs for all rows before the next, since the reductions of one
// row alone leave the CPU idle.
template <int kRows, typename Keep>
void softmax_step(const Work& w, int32_t row0, const Seen (&seen)[kRows], float softcap, const Keep& keep) {
  float highest[kRows];
  for (int r = 0; r < kRows; ++r) {
    float* s = w.weights + (row0 + r) * kChunk;
    highest[r] = seen[r].is_whole() ? highest_score<true>(s, seen[r], softcap)
                                    : highest_score<false>(s, seen[r], softcap);
  }
  for (int r = 0; r < kRows; ++r) {
    const int32_t row = row0 + r;
    float* s = w.weights + row * kChunk;
    const float before = w.max[row];
    const float now = before > highest[r] ? before : highest[r];
    const float sum = seen[r].is_whole() ? weigh_scores<true>(s, seen[r], now, r, keep)
                                         : weigh_scores<false>(s, seen[r], now, r, keep);
    float decay[8];
    store(decay, exp_bounded(sub(set1(before), set1(now))));
    w.decay[row] = decay[0];
    w.max[row] = now;
    w.sum[row] = std::fma(w.sum[row], decay[0], sum);
  }
}

// What a walk over positions reads. Each of its spans fetches the same span of the next chunk, which begins
// before `limit`, or, at the end, of the first chunk of what is read next (AttentionArgs::next).
struct Walk {
  int32_t begin = 0, end = 0;
  int32_t limit = 0;
};

// A span of 16 positions of a kv head.
struct SpanPlace {
  const int32_t* block_table = nullptr;  // null: none
  int32_t head = 0;
  int32_t position = 0;
};

inline SpanPlace span_ahead(const AttentionArgs& args, const Walk& walk, int32_t chunk0, int32_t span) {
  const int32_t next = chunk0 + span * kSpan + kChunk;
  if (next < walk.limit) return {args.block_table, args.kv_head, next};
  const int32_t position = args.next.begin / kChunk * kChunk + span * kSpan;
  if (position + kSpan <= args.next.begin || position >= args.next.end) return {};
  return {args.next.block_table, args.next.kv_head, position};
}

// The block of the pool that holds a position; blocks hold 2^shift of them.
inline const std::byte* block_in_pool(const AttentionArgs& args, const int32_t* block_table, int32_t position,
                                      int32_t shift) {
  const auto block_id = static_cast<size_t>(block_table[position >> shift]);
  return args.pool + block_id * args.layout->block_bytes();
}

// Adds a partial result to a running one. The only place where partials meet, so that every way to split the
// partitions over calls gives the same bits.
inline void merge_partial(float part_max, float part_sum, const float* part, int32_t head_dim, float& max,
                          float& sum, float* acc) {
  if (part_sum == 0.0F) return;
  if (sum == 0.0F) {
    max = part_max;
    sum = part_sum;
    std::memcpy(acc, part, sizeof(float) * static_cast<size_t>(head_dim));
    return;
  }
  const float now = max > part_max ? max : part_max;
  float decay[8];
  float weight[8];
  store(decay, exp_bounded(sub(set1(max), set1(now))));
  store(weight, exp_bounded(sub(set1(part_max), set1(now))));
  max = now;
  sum = std::fma(sum, decay[0], part_sum * weight[0]);
  for (int32_t d = 0; d < head_dim; d += 8) {
    store(acc + d, fma(load(acc + d), set1(decay[0]), mul(load(part + d), set1(weight[0]))));
  }
}

inline void finish_row(float sum, const float* acc, int32_t head_dim, float* out) {
  const F8 factor = set1(1.0F / sum);
  for (int32_t d = 0; d < head_dim; d += 8) store(out + d, mul(load(acc + d), factor));
}

}  // namespace plait::PLAIT_LANES
