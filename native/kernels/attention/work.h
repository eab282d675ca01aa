// The scratch of one attention call, carved by name. Knows: sizes and which positions a row sees.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/attention/attention.h"

namespace plait {

inline constexpr int32_t kChunk = 64;  // positions of one softmax step, aligned from position 0
inline constexpr int32_t kSpan = 16;   // positions of one score product; a block holds whole spans
inline constexpr int32_t kSpans = kChunk / kSpan;
inline constexpr int32_t kRowTile = 6;  // rows of one product: 12 accumulators of 8 lanes
static_assert(kPartition % kChunk == 0);

// Row r is group member r % group of query r / group.
struct Work {
  float* q = nullptr;            // [rows][head_dim], scaled
  float* acc = nullptr;          // [rows][head_dim], of the running partition
  float* total = nullptr;        // [rows][head_dim], merged partitions
  float* weights = nullptr;      // [rows][kChunk], scores, then softmax weights
  int16_t* q16 = nullptr;        // [rows][head_dim], kQ8 only; so the next three
  int16_t* weights16 = nullptr;  // [rows][kChunk]
  float* q_scale = nullptr;      // [rows]
  float* weight_scale = nullptr;
  float* max = nullptr;  // [rows], and so the rest
  float* sum = nullptr;
  float* decay = nullptr;  // what the last softmax step multiplies acc with
  float* total_max = nullptr;
  float* total_sum = nullptr;
  int32_t head_dim = 0;
  int32_t group = 1;
  int32_t num_rows = 0;
  int32_t position0 = 0;
  int32_t window = 0;

  int32_t end_position(int32_t row) const { return position0 + row / group + 1; }
  int32_t first_position(int32_t row) const {
    return window > 0 ? std::max(0, end_position(row) - window) : 0;
  }
  // The positions [first, end) that a row sees of the chunk at chunk0, counted from chunk0.
  int32_t first_seen(int32_t row, int32_t chunk0) const {
    return std::clamp(first_position(row) - chunk0, 0, kChunk);
  }
  int32_t end_seen(int32_t row, int32_t chunk0) const {
    return std::clamp(end_position(row) - chunk0, 0, kChunk);
  }
};

// Lays the arrays out in args.scratch. attention_scratch_bytes() says how much that takes.
Work carve_work(const AttentionArgs& args);

}  // namespace plait
