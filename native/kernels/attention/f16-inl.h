// Attention over K and V in f16. Scores and outputs are both products of the form
// C[row][16 lanes] += A[row][k] * B[k][16 lanes], k rising, each C element in a lane of its own; how rows are
// tiled changes no bit. A row touches only its own positions: lanes outside are replaced before the softmax,
// and V rows outside are never multiplied.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/attention/attention.h"
#include "kernels/attention/rows-inl.h"
#include "kernels/attention/work.h"
#include "kernels/lanes/double-inl.h"
#include "kernels/lanes/exp-inl.h"

namespace plait::PLAIT_LANES {

// K and V of one chunk in the pool.
struct Chunk {
  const uint16_t* k[kSpans];  // span s: k[s] + d * k_stride + position in the span
  int64_t k_stride = 0;
  const uint16_t* v[kSpans];  // span s: v[s] + (position in the span) * v_stride + column
  int64_t v_stride = 0;
  int64_t k_ahead[kSpans];  // elements from span s to the same span of the next chunk
  int64_t v_ahead[kSpans];
};

// acc[r][part] += a[r * a_stride + k] * b[part][k * b_stride ..], 16 columns, k rising. What is read is
// fetched `ahead` elements further on into the second-level cache as well: the next chunk lies in other
// blocks, where no hardware looks ahead, and the first level has too few misses in flight for the memory.
template <int kRows, int kParts>
inline void multiply(const float* a, int64_t a_stride, const uint16_t* const (&b)[kParts], int64_t b_stride,
                     const int64_t (&ahead)[kParts], int32_t num_k, F8x2 (&acc)[kRows][kParts]) {
  for (int32_t k = 0; k < num_k; ++k) {
    for (int part = 0; part < kParts; ++part) {
      const uint16_t* row = b[part] + k * b_stride;
      __builtin_prefetch(row + ahead[part], 0, 2);
      if constexpr (kHasDoubleRegisters || kParts == 1) {
        const F8x2 column = load2(row);
        for (int r = 0; r < kRows; ++r) acc[r][part] = fma(set1x2(a[r * a_stride + k]), column, acc[r][part]);
      } else {  // one vector of b at a time: with 12 sums and 3 factors, a second one would spill
        const F8 low = load(row);
        for (int r = 0; r < kRows; ++r)
          acc[r][part].lo = fma(set1(a[r * a_stride + k]), low, acc[r][part].lo);
        const F8 high = load(row + 8);
        for (int r = 0; r < kRows; ++r)
          acc[r][part].hi = fma(set1(a[r * a_stride + k]), high, acc[r][part].hi);
      }
    }
  }
}

// Few rows take two parts at once, so that enough sums are under way to hide the latency of one. Where there
// are registers for it many rows do as well: their factors then serve two products.
template <int kRows>
inline constexpr int kPartsOf = kRows <= 3 || kHasDoubleRegisters ? 2 : 1;

// Scores of kRows rows for spans [span, span + kParts).
template <int kRows, int kParts>
void score_spans(const Work& w, const Chunk& chunk, int32_t row, int32_t span) {
  F8x2 acc[kRows][kParts];
  const uint16_t* b[kParts];
  int64_t ahead[kParts];
  for (int part = 0; part < kParts; ++part) {
    b[part] = chunk.k[span + part];
    ahead[part] = chunk.k_ahead[span + part];
    for (int r = 0; r < kRows; ++r) acc[r][part] = set1x2(0.0F);
  }
  multiply<kRows, kParts>(w.q + row * w.head_dim, w.head_dim, b, chunk.k_stride, ahead, w.head_dim, acc);
  for (int part = 0; part < kParts; ++part) {
    float* out = w.weights + row * kChunk + (span + part) * kSpan;
    for (int r = 0; r < kRows; ++r) {
      store2(out + r * kChunk, acc[r][part]);
    }
  }
}

template <int kRows>
void score_rows(const Work& w, const Chunk& chunk, int32_t row, int32_t lo, int32_t hi) {
  int32_t span = lo / kSpan;
  for (; (span + kPartsOf<kRows> - 1) * kSpan < hi; span += kPartsOf<kRows>) {
    score_spans<kRows, kPartsOf<kRows>>(w, chunk, row, span);
  }
  for (; span * kSpan < hi; ++span) score_spans<kRows, 1>(w, chunk, row, span);
}

// Rows [row, row + kRows) see the same positions [lo, hi) of the chunk. kParts tiles of 16 columns.
template <int kRows, int kParts>
void add_columns(const Work& w, const Chunk& chunk, int32_t row, int32_t tile, int32_t lo, int32_t hi) {
  F8x2 acc[kRows][kParts];
  float* out = w.acc + row * w.head_dim + tile * kSpan;
  for (int r = 0; r < kRows; ++r) {
    const F8x2 decay = set1x2(w.decay[row + r]);
    for (int part = 0; part < kParts; ++part) {
      acc[r][part] = mul(load2(out + r * w.head_dim + part * kSpan), decay);
    }
  }
  for (int32_t span = lo / kSpan; span * kSpan < hi; ++span) {
    const int32_t begin = std::max(lo - span * kSpan, 0);
    const int32_t end = std::min(hi - span * kSpan, kSpan);
    const uint16_t* b[kParts];
    int64_t ahead[kParts];
    for (int part = 0; part < kParts; ++part) {
      b[part] = chunk.v[span] + (tile + part) * kSpan + begin * chunk.v_stride;
      ahead[part] = chunk.v_ahead[span];
    }
    multiply<kRows, kParts>(w.weights + row * kChunk + span * kSpan + begin, kChunk, b, chunk.v_stride, ahead,
                            end - begin, acc);
  }
  for (int r = 0; r < kRows; ++r) {
    for (int part = 0; part < kParts; ++part) {
      store2(out + r * w.head_dim + part * kSpan, acc[r][part]);
    }
  }
}

template <int kRows>
void add_values(const Work& w, const Chunk& chunk, int32_t row, int32_t lo, int32_t hi) {
  const int32_t num_tiles = w.head_dim / kSpan;
  int32_t tile = 0;
  for (; tile + kPartsOf<kRows> <= num_tiles; tile += kPartsOf<kRows>) {
    add_columns<kRows, kPartsOf<kRows>>(w, chunk, row, tile, lo, hi);
  }
  for (; tile < num_tiles; ++tile) add_columns<kRows, 1>(w, chunk, row, tile, lo, hi);
}

struct KeepWeights {
  F8 operator()(int, int32_t, F8 weights) const { return weights; }
};

// Rows [row, row + kRows) see the same positions of the chunk, at least one.
template <int kRows>
void weigh_rows(const Work& w, const Chunk& chunk, int32_t row, const Seen& seen, float softcap) {
  Seen all[kRows];
  for (Seen& one : all) one = seen;
  softmax_step<kRows>(w, row, all, softcap, KeepWeights{});
  add_values<kRows>(w, chunk, row, seen.lo, seen.hi);
}

inline void walk_chunk(const Work& w, const Chunk& chunk, int32_t chunk0, float softcap) {
  for (int32_t row = 0; row < w.num_rows; row += kRowTile) {
    const int32_t num_rows = std::min(kRowTile, w.num_rows - row);
    const int32_t lo = w.first_seen(row, chunk0);
    const int32_t hi = w.end_seen(row + num_rows - 1, chunk0);
    with_rows(num_rows, [&](auto n) { score_rows<decltype(n)::value>(w, chunk, row, lo, hi); });
  }
  for (int32_t row = 0; row < w.num_rows;) {
    const Seen seen{w.first_seen(row, chunk0), w.end_seen(row, chunk0)};
    int32_t end = row + 1;
    while (end < w.num_rows && end - row < kRowTile && w.first_seen(end, chunk0) == seen.lo &&
           w.end_seen(end, chunk0) == seen.hi) {
      ++end;
    }
    if (seen.lo < seen.hi) {
      with_rows(end - row, [&](auto n) { weigh_rows<decltype(n)::value>(w, chunk, row, seen, softcap); });
    }
    row = end;
  }
}

struct PoolSpan {
  const uint16_t* k;
  const uint16_t* v;
};

inline PoolSpan span_in_pool(const AttentionArgs& args, const SpanPlace& place) {
  const KvLayout& layout = *args.layout;
  const int32_t shift = std::countr_zero(static_cast<uint32_t>(layout.block_tokens));
  const std::byte* block = block_in_pool(args, place.block_table, place.position, shift);
  const int64_t slot = place.position & (layout.block_tokens - 1);
  return {reinterpret_cast<const uint16_t*>(block + layout.k_offset(args.layer, place.head)) + slot,
          reinterpret_cast<const uint16_t*>(block + layout.v_offset(args.layer, place.head)) +
              slot * layout.head_dim};
}

// The spans of one chunk that hold positions of the walk, in the pool. Entries of the block table before them
// are not looked at: a block that left the window may be gone.
inline Chunk chunk_in_pool(const AttentionArgs& args, const Walk& walk, int32_t chunk0) {
  Chunk chunk{};
  chunk.k_stride = args.layout->block_tokens;
  chunk.v_stride = args.layout->head_dim;
  const int32_t first = std::max(walk.begin - chunk0, 0) / kSpan;
  for (int32_t span = first; span < kSpans && chunk0 + span * kSpan < walk.end; ++span) {
    const PoolSpan here = span_in_pool(args, {args.block_table, args.kv_head, chunk0 + span * kSpan});
    chunk.k[span] = here.k;
    chunk.v[span] = here.v;
    const SpanPlace ahead = span_ahead(args, walk, chunk0, span);
    if (ahead.block_table == nullptr) continue;
    const PoolSpan next = span_in_pool(args, ahead);
    chunk.k_ahead[span] = next.k - here.k;
    chunk.v_ahead[span] = next.v - here.v;
  }
  return chunk;
}

// K and V stay f16 for every tile of rows: converting a vector again beside six products costs less than a
// copy of the chunk in f32 that the first-level cache cannot hold.
inline void walk_f16(const AttentionArgs& args, const Work& w, const Walk& walk) {
  for (int32_t chunk0 = walk.begin / kChunk * kChunk; chunk0 < walk.end; chunk0 += kChunk) {
    walk_chunk(w, chunk_in_pool(args, walk, chunk0), chunk0, args.softcap);
  }
}

inline void kv_write_f16(const KvLayout& layout, std::byte* block, int32_t layer, int32_t head, int32_t slot,
                         const float* k, const float* v) {
  auto* k_out = reinterpret_cast<uint16_t*>(block + layout.k_offset(layer, head)) + slot;
  auto* v_out = reinterpret_cast<uint16_t*>(block + layout.v_offset(layer, head)) +
                static_cast<int64_t>(slot) * layout.head_dim;
  for (int32_t d = 0; d < layout.head_dim; d += 8) {
    store(v_out + d, load(v + d));
    uint16_t half[8];
    store(half, load(k + d));
    for (int32_t i = 0; i < 8; ++i) k_out[static_cast<int64_t>(d + i) * layout.block_tokens] = half[i];
  }
}

}  // namespace plait::PLAIT_LANES
