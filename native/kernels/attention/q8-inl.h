// Attention over K and V in signed bytes. Queries (once) and softmax weights times the scales of V (per chunk
// and row) become int16 with a float scale of their row, so that both products are exact integers:
// C[row][16 lanes] += A[row][pair] * B[pair][16 lanes]. What a row does not see of V has weight 0, whatever
// bytes stand there; what it does not see of K is replaced before the softmax.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/float16.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/rows-inl.h"
#include "kernels/attention/work.h"
#include "kernels/lanes/lanes-inl.h"
#include "kernels/lanes/pairs-inl.h"

namespace plait::PLAIT_LANES {

inline constexpr float kLargest16 = 32767.0F;
// A chunk whose largest weight is below this adds nothing; it keeps 1 / weight finite.
inline constexpr float kLeastWeight = 1e-30F;

struct ChunkQ8 {
  const int8_t* k[kSpans];          // span s: k[s] + (d / 2) * k_stride + 2 * (position in the span)
  const int8_t* v[kSpans];          // span s: v[s] + (position in the span / 2) * v_stride + 2 * column
  const uint16_t* k_scale[kSpans];  // span s, of dimension d: [d / kScaleDims * k_scale_stride]
  const uint16_t* v_scale[kSpans];
  int64_t k_scale_stride = 0;
  int64_t k_stride = 0;
  int64_t v_stride = 0;
  // What to fetch while span s is read, of the same span of the next chunk: head_dim / 4 lines of K that are
  // k_fetch_stride apart, and 16 bytes of V per column.
  const int8_t* k_fetch[kSpans];
  const int8_t* v_fetch[kSpans];
  int64_t k_fetch_stride = 0;
};

// Sums of kRows rows by 16 lanes, for kParts parts of b. They are exact: how they are added up changes no
// bit.
template <int kRows, int kParts>
struct Sums {
  Sum16 of[kRows * kParts];

  void clear() { PLAIT_UNROLL for (int i = 0; i < kRows * kParts; ++i) of[i] = zero_sum(); }
};

// A fused product and sum takes several cycles, and there are registers for the sums of two parts: these hide
// it, and share the factors.
#if defined(PLAIT_LANES_VNNI)
inline constexpr int kPartsQ8 = 2;
#else
inline constexpr int kPartsQ8 = 1;
#endif

// sums[r][part] += a[r * a_stride ..] * b[part][offset ..]
template <int kRows, int kParts>
inline void add_pair(const int16_t* a, int64_t a_stride, const int8_t* const (&b)[kParts], int64_t offset,
                     Sums<kRows, kParts>& sums) {
  Pairs columns[kParts];
  PLAIT_UNROLL for (int part = 0; part < kParts; ++part) columns[part] = load_pairs(b[part] + offset);
  PLAIT_UNROLL for (int i = 0; i < kRows * kParts; ++i) {
    const Pairs factor = set1_pair(a + i / kParts * a_stride);
    sums.of[i] = add_products(factor, columns[i % kParts], sums.of[i]);
    pin(sums.of[i]);
  }
}

// sums[r][part] += a[r * a_stride + 2 k ..] * b[part][k * b_stride ..]. kIsAhead: of each part one cache line
// every two pairs, fetch_stride apart, is fetched into the second-level cache.
template <int kRows, int kParts, bool kIsAhead>
inline void multiply_pairs(const int16_t* a, int64_t a_stride, const int8_t* const (&b)[kParts],
                           int64_t b_stride, const int8_t* const (&fetch)[kParts], int64_t fetch_stride,
                           int32_t num_pairs, Sums<kRows, kParts>& sums) {
  int64_t offset = 0;
  int64_t fetch_offset = 0;
  int32_t k = 0;
  for (; k + 2 <= num_pairs; k += 2) {
    if constexpr (kIsAhead) {
      PLAIT_UNROLL for (int part = 0; part < kParts; ++part)
          __builtin_prefetch(fetch[part] + fetch_offset, 0, 2);
      fetch_offset += fetch_stride;
    }
    add_pair(a + 2 * k, a_stride, b, offset, sums);
    add_pair(a + 2 * k + 2, a_stride, b, offset + b_stride, sums);
    offset += 2 * b_stride;
  }
  if (k < num_pairs) add_pair(a + 2 * k, a_stride, b, offset, sums);
}

// Scores of kRows rows for spans [span, span + kParts): by the dimensions of one scale after the other, in
// rising order.
template <int kRows, int kParts, bool kIsAhead>
void score_spans_q8(const Work& w, const ChunkQ8& chunk, int32_t row, int32_t span) {
  F8 scores[kRows * kParts][2];
  PLAIT_UNROLL for (int i = 0; i < kRows * kParts; ++i) scores[i][0] = scores[i][1] = set1(0.0F);
  const int8_t* k[kParts];
  const int8_t* fetch[kParts];
  PLAIT_UNROLL for (int part = 0; part < kParts; ++part) {
    k[part] = chunk.k[span + part];
    fetch[part] = chunk.k_fetch[span + part];
  }
  int64_t scale_offset = 0;
  for (int32_t d = 0; d < w.head_dim; d += kScaleDims) {
    const int32_t num_pairs = std::min(kScaleDims, w.head_dim - d) / 2;
    Sums<kRows, kParts> sums;
    sums.clear();
    multiply_pairs<kRows, kParts, kIsAhead>(w.q16 + row * w.head_dim + d, w.head_dim, k, chunk.k_stride,
                                            fetch, chunk.k_fetch_stride, num_pairs, sums);
    PLAIT_UNROLL for (int part = 0; part < kParts; ++part) {
      k[part] += num_pairs * chunk.k_stride;
      fetch[part] += num_pairs / 2 * chunk.k_fetch_stride;
    }
    PLAIT_UNROLL for (int i = 0; i < kRows * kParts; ++i) {
      const uint16_t* scale = chunk.k_scale[span + i % kParts] + scale_offset;
      scores[i][0] = fma(low_float(sums.of[i]), load(scale), scores[i][0]);
      scores[i][1] = fma(high_float(sums.of[i]), load(scale + 8), scores[i][1]);
    }
    scale_offset += chunk.k_scale_stride;
  }
  PLAIT_UNROLL for (int i = 0; i < kRows * kParts; ++i) {
    const int32_t r = row + i / kParts;
    const F8 scale = set1(w.q_scale[r]);
    float* out = w.weights + r * kChunk + (span + i % kParts) * kSpan;
    store(out, mul(scores[i][0], scale));
    store(out + 8, mul(scores[i][1], scale));
  }
}

// Scores of rows [row, row + kRows) for the spans that hold positions in [lo, hi).
template <int kRows, bool kIsAhead>
void score_rows_q8(const Work& w, const ChunkQ8& chunk, int32_t row, int32_t lo, int32_t hi) {
  int32_t span = lo / kSpan;
  for (; (span + kPartsQ8 - 1) * kSpan < hi; span += kPartsQ8) {
    score_spans_q8<kRows, kPartsQ8, kIsAhead>(w, chunk, row, span);
  }
  for (; span * kSpan < hi; ++span) score_spans_q8<kRows, 1, kIsAhead>(w, chunk, row, span);
}

// Columns [column, column + kParts * kSpan) of the values that rows [row, row + kRows) see in [lo, hi).
template <int kRows, int kParts, bool kIsAhead>
void add_columns_q8(const Work& w, const ChunkQ8& chunk, int32_t row, int32_t column, int32_t lo,
                    int32_t hi) {
  Sums<kRows, kParts> sums;
  sums.clear();
  for (int32_t span = lo / kSpan; span * kSpan < hi; ++span) {
    const int32_t begin = std::max(lo - span * kSpan, 0) / 2;
    const int32_t end = (std::min(hi - span * kSpan, kSpan) + 1) / 2;
    const int8_t* v[kParts];
    const int8_t* fetch[kParts];
    PLAIT_UNROLL for (int part = 0; part < kParts; ++part) {
      v[part] = chunk.v[span] + begin * chunk.v_stride + 2 * (column + part * kSpan);
      fetch[part] = chunk.v_fetch[span] + 16 * (column + part * kSpan);
    }
    multiply_pairs<kRows, kParts, kIsAhead>(w.weights16 + row * kChunk + span * kSpan + 2 * begin, kChunk, v,
                                            chunk.v_stride, fetch, 64, end - begin, sums);
  }
  PLAIT_UNROLL for (int i = 0; i < kRows * kParts; ++i) {
    const int32_t r = row + i / kParts;
    const F8 decay = set1(w.decay[r]);
    const F8 scale = set1(w.weight_scale[r]);
    float* out = w.acc + r * w.head_dim + column + i % kParts * kSpan;
    store(out, fma(low_float(sums.of[i]), scale, mul(load(out), decay)));
    store(out + 8, fma(high_float(sums.of[i]), scale, mul(load(out + 8), decay)));
  }
}

// Rows [row, row + kRows) see positions in [lo, hi) of the chunk, each perhaps not all of them.
template <int kRows, bool kIsAhead>
void add_values_q8(const Work& w, const ChunkQ8& chunk, int32_t row, int32_t lo, int32_t hi) {
  int32_t column = 0;
  for (; column + kPartsQ8 * kSpan <= w.head_dim; column += kPartsQ8 * kSpan) {
    add_columns_q8<kRows, kPartsQ8, kIsAhead>(w, chunk, row, column, lo, hi);
  }
  for (; column < w.head_dim; column += kSpan) {
    add_columns_q8<kRows, 1, kIsAhead>(w, chunk, row, column, lo, hi);
  }
}

// Multiplies softmax weights with the scales of V and finds the largest products.
template <int kRows>
struct ScaleWeights {
  const ChunkQ8& chunk;
  const Seen (&seen)[kRows];
  F8 (&highest)[kRows];

  F8 operator()(int r, int32_t i, F8 weight) const {
    F8 scaled = mul(weight, load(chunk.v_scale[i / kSpan] + i % kSpan));
    // Where nothing is written, a scale may be NaN.
    if (i < seen[r].lo || i + 8 > seen[r].hi) scaled = only_seen(scaled, i, seen[r], 0.0F);
    highest[r] = max(highest[r], scaled);
    return scaled;
  }
};

// The softmax step of the rows; then their weights times the scales of V as int16 with one scale per row, 0
// where a row does not see.
template <int kRows>
void weigh_rows_q8(const Work& w, const ChunkQ8& chunk, int32_t row0, const Seen (&seen)[kRows],
                   float softcap) {
  F8 highest[kRows];
  for (F8& most : highest) most = set1(0.0F);
  softmax_step<kRows>(w, row0, seen, softcap, ScaleWeights<kRows>{chunk, seen, highest});
  for (int r = 0; r < kRows; ++r) {
    const auto [lo, hi] = seen[r];
    const float* weights = w.weights + (row0 + r) * kChunk;
    int16_t* out = w.weights16 + (row0 + r) * kChunk;
    const float largest = max_lanes(highest[r]);
    const bool is_some = largest >= kLeastWeight;
    w.weight_scale[row0 + r] = is_some ? largest / kLargest16 : 0.0F;
    if (!is_some || lo > 0 || hi < kChunk) std::memset(out, 0, sizeof(int16_t) * kChunk);
    if (!is_some) continue;
    const F8 factor = set1(kLargest16 / largest);
    for (int32_t i = lo / 8 * 8; i < hi; i += 8) store_rounded(out + i, mul(load(weights + i), factor));
  }
}

template <int kRows, bool kIsAhead>
void walk_tile_q8(const Work& w, const ChunkQ8& chunk, int32_t chunk0, int32_t row, float softcap) {
  const int32_t lo = w.first_seen(row, chunk0);
  const int32_t hi = w.end_seen(row + kRows - 1, chunk0);
  score_rows_q8<kRows, kIsAhead>(w, chunk, row, lo, hi);
  Seen seen[kRows];
  for (int r = 0; r < kRows; ++r) seen[r] = {w.first_seen(row + r, chunk0), w.end_seen(row + r, chunk0)};
  weigh_rows_q8<kRows>(w, chunk, row, seen, softcap);
  add_values_q8<kRows, kIsAhead>(w, chunk, row, lo, hi);
}

template <bool kIsAhead>
void walk_chunk_q8(const Work& w, const ChunkQ8& chunk, int32_t chunk0, float softcap) {
  // Rows that see nothing here come first (their end is before the chunk) and last (their window is after).
  int32_t row = 0;
  int32_t end = w.num_rows;
  while (row < end && w.end_seen(row, chunk0) == 0) ++row;
  while (end > row && w.first_seen(end - 1, chunk0) == kChunk) --end;
  while (row < end) {
    const int32_t num_rows = std::min(kRowTile, end - row);
    with_rows(num_rows,
              [&](auto n) { walk_tile_q8<decltype(n)::value, kIsAhead>(w, chunk, chunk0, row, softcap); });
    row += num_rows;
  }
}

struct PoolSpanQ8 {
  const int8_t* k;
  const int8_t* v;
  const uint16_t* k_scale;
  const uint16_t* v_scale;
};

// Where the spans of a kv head are: what is the same for all of a walk, computed once.
class PoolHeadQ8 {
 public:
  PoolHeadQ8(const AttentionArgs& args, int32_t head, const int32_t* block_table)
      : first_(args.pool + args.layout->k_offset(args.layer, head)),
        block_table_(block_table),
        block_bytes_(args.layout->block_bytes()),
        part_bytes_(args.layout->part_bytes()),
        v_scale_ahead_(int64_t{args.layout->num_k_scales()} * args.layout->block_tokens),
        head_dim_(args.layout->head_dim),
        shift_(std::countr_zero(static_cast<uint32_t>(args.layout->block_tokens))) {}

  PoolSpanQ8 span(int32_t position) const {
    const auto block_id = static_cast<size_t>(block_table_[position >> shift_]);
    const std::byte* k = first_ + block_id * block_bytes_;
    const std::byte* v = k + part_bytes_;
    const int64_t slot = position & ((1 << shift_) - 1);
    const auto* k_scale = reinterpret_cast<const uint16_t*>(v + part_bytes_) + slot;
    return {reinterpret_cast<const int8_t*>(k) + 2 * slot,
            reinterpret_cast<const int8_t*>(v) + slot * head_dim_, k_scale, k_scale + v_scale_ahead_};
  }

 private:
  const std::byte* first_;
  const int32_t* block_table_;
  size_t block_bytes_;
  size_t part_bytes_;
  int64_t v_scale_ahead_;
  int64_t head_dim_;
  int32_t shift_;
};

// As chunk_in_pool() of f16-inl.h.
inline ChunkQ8 chunk_in_pool_q8(const AttentionArgs& args, const PoolHeadQ8& head,
                                const PoolHeadQ8& next_head, const Walk& walk, int32_t chunk0) {
  const KvLayout& layout = *args.layout;
  ChunkQ8 chunk;
  chunk.k_scale_stride = layout.block_tokens;
  chunk.k_stride = int64_t{2} * layout.block_tokens;
  chunk.v_stride = int64_t{2} * layout.head_dim;
  // A line of K holds two pairs of dimensions of a block of 16 positions, or one of 32 positions: then the
  // first of two spans fetches the first half of the dimensions, for both.
  const bool is_line_shared = layout.block_tokens > kSpan;
  chunk.k_fetch_stride = is_line_shared ? chunk.k_stride : 64;
  const int32_t first = std::max(walk.begin - chunk0, 0) / kSpan;
  for (int32_t span = first; span < kSpans && chunk0 + span * kSpan < walk.end; ++span) {
    const PoolSpanQ8 here = head.span(chunk0 + span * kSpan);
    chunk.k[span] = here.k;
    chunk.v[span] = here.v;
    chunk.k_scale[span] = here.k_scale;
    chunk.v_scale[span] = here.v_scale;
    chunk.k_fetch[span] = here.k;
    chunk.v_fetch[span] = here.v;
    const SpanPlace ahead = span_ahead(args, walk, chunk0, span);
    if (ahead.block_table == nullptr) continue;
    const bool is_here = ahead.block_table == args.block_table && ahead.head == args.kv_head;
    const PoolSpanQ8 next = (is_here ? head : next_head).span(ahead.position);
    const int64_t half = is_line_shared && span % 2 == 1 ? layout.head_dim / 4 : 0;
    chunk.k_fetch[span] = next.k + half * chunk.k_stride;
    chunk.v_fetch[span] = next.v;
    // Scales of K, then of V; a cache line holds two rows of 16 positions.
    for (int32_t i = 0; i <= layout.num_k_scales(); i += is_line_shared ? 1 : 2) {
      __builtin_prefetch(next.k_scale + i * layout.block_tokens, 0, 2);
    }
  }
  return chunk;
}

// Queries, already scaled, as int16 with one scale per row. NaN and infinity spoil the scale.
inline void round_queries(const Work& w) {
  for (int32_t row = 0; row < w.num_rows; ++row) {
    const float* q = w.q + row * w.head_dim;
    F8 highest = set1(0.0F);
    F8 check = set1(0.0F);
    for (int32_t d = 0; d < w.head_dim; d += 8) {
      highest = max(highest, abs(load(q + d)));
      check = fma(load(q + d), set1(0.0F), check);
    }
    const float largest = max_lanes(highest);
    const bool is_some = largest >= kLeastWeight;
    w.q_scale[row] = (is_some ? largest / kLargest16 : 0.0F) + sum_lanes(check);
    const F8 factor = set1(is_some ? kLargest16 / largest : 0.0F);
    for (int32_t d = 0; d < w.head_dim; d += 8) {
      store_rounded(w.q16 + row * w.head_dim + d, mul(load(q + d), factor));
    }
  }
}

inline void walk_q8(const AttentionArgs& args, const Work& w, const Walk& walk) {
  const PoolHeadQ8 head(args, args.kv_head, args.block_table);
  const PoolHeadQ8 next_head(args, args.next.kv_head, args.next.block_table);
  for (int32_t chunk0 = walk.begin / kChunk * kChunk; chunk0 < walk.end; chunk0 += kChunk) {
    const ChunkQ8 chunk = chunk_in_pool_q8(args, head, next_head, walk, chunk0);
    if (w.num_rows <= kRowTile) {
      walk_chunk_q8<true>(w, chunk, chunk0, args.softcap);
    } else {
      walk_chunk_q8<false>(w, chunk, chunk0, args.softcap);
    }
  }
}

// Elements that share a scale as signed bytes: element d goes to out[d / 2 * pair_stride + d % 2 * step].
// Returns the scale (f16 bits).
inline uint16_t write_bytes(const float* x, int32_t num, int64_t pair_stride, int64_t step, int8_t* out) {
  F8 highest = set1(0.0F);
  for (int32_t d = 0; d < num; d += 8) highest = max(highest, abs(load(x + d)));
  const float wanted = max_lanes(highest) / 127.0F;
  uint16_t half = float_to_half(wanted);
  if (half_to_float(half) < wanted) ++half;  // rounded up, so that no byte exceeds 127
  const float scale = half_to_float(half);
  const F8 factor = set1(scale > 0.0F ? 1.0F / scale : 0.0F);
  for (int32_t d = 0; d < num; d += 8) {
    int16_t whole[8];
    store_rounded(whole, mul(load(x + d), factor));
    for (int32_t i = 0; i < 8; ++i) {
      out[(d + i) / 2 * pair_stride + (d + i) % 2 * step] = static_cast<int8_t>(whole[i]);
    }
  }
  return half;
}

inline bool is_finite(const float* x, int32_t num) {
  F8 check = set1(0.0F);
  for (int32_t d = 0; d < num; d += 8) check = fma(load(x + d), set1(0.0F), check);
  return sum_lanes(check) == 0.0F;
}

inline void kv_write_q8(const KvLayout& layout, std::byte* block, int32_t layer, int32_t head, int32_t slot,
                        const float* k, const float* v) {
  auto* k_out = reinterpret_cast<int8_t*>(block + layout.k_offset(layer, head)) + 2 * int64_t{slot};
  auto* v_out = reinterpret_cast<int8_t*>(block + layout.v_offset(layer, head)) +
                int64_t{slot / 2} * 2 * layout.head_dim + slot % 2;
  auto* k_scale = reinterpret_cast<uint16_t*>(block + layout.k_scale_offset(layer, head)) + slot;
  auto* v_scale = reinterpret_cast<uint16_t*>(block + layout.v_scale_offset(layer, head)) + slot;
  if (!is_finite(k, layout.head_dim) || !is_finite(v, layout.head_dim)) {
    // Whoever sees this position gets NaN, as with f16.
    for (int32_t i = 0; i < layout.num_k_scales(); ++i) k_scale[i * layout.block_tokens] = 0x7E00;
    *v_scale = 0;
    return;
  }
  const int64_t k_stride = int64_t{2} * layout.block_tokens;
  for (int32_t d = 0; d < layout.head_dim; d += kScaleDims) {
    k_scale[d / kScaleDims * layout.block_tokens] =
        write_bytes(k + d, std::min(kScaleDims, layout.head_dim - d), k_stride, 1, k_out + d / 2 * k_stride);
  }
  *v_scale = write_bytes(v, layout.head_dim, 4, 2, v_out);
}

}  // namespace plait::PLAIT_LANES
