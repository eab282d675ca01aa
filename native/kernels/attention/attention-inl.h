// The body of the attention kernels for one ISA; see lanes-inl.h for how it is included.
//
// Work goes in chunks of kChunk positions (aligned, from position 0), cut in spans of 16. A row is one query
// of one head. Per chunk: scores of all rows, softmax step of each row, weighted V rows added (f16-inl.h,
// q8-inl.h). What is here: partitions, merges, and the KV write.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/attention/attention.h"
#include "kernels/attention/f16-inl.h"
#include "kernels/attention/q8-inl.h"
#include "kernels/attention/rows-inl.h"
#include "kernels/attention/work.h"

namespace plait::PLAIT_LANES {

inline Work start_work(const AttentionArgs& args) {
  const Work w = carve_work(args);
  for (int32_t row = 0; row < w.num_rows; ++row) {
    const float* q = args.q + (row / w.group) * args.q_stride + (row % w.group) * w.head_dim;
    for (int32_t d = 0; d < w.head_dim; d += 8) {
      store(w.q + row * w.head_dim + d, mul(load(q + d), set1(args.scale)));
    }
  }
  if (args.layout->dtype == KvDtype::kQ8) round_queries(w);
  return w;
}

// The partial results of all rows over a walk inside one partition in w.max, w.sum and w.acc.
inline void walk_partition(const AttentionArgs& args, const Work& w, const Walk& walk) {
  for (int32_t row = 0; row < w.num_rows; ++row) {
    w.max[row] = kMinusInf;
    w.sum[row] = 0.0F;
  }
  std::memset(w.acc, 0, sizeof(float) * static_cast<size_t>(w.num_rows) * static_cast<size_t>(w.head_dim));
  if (args.layout->dtype == KvDtype::kQ8) {
    walk_q8(args, w, walk);
  } else {
    walk_f16(args, w, walk);
  }
}

void attention(const AttentionArgs& args) {
  const Work w = start_work(args);
  for (int32_t row = 0; row < w.num_rows; ++row) w.total_sum[row] = 0.0F;
  const KvRange seen = range_of(args, -1);
  for (int32_t start = seen.begin / kPartition * kPartition; start < seen.end; start += kPartition) {
    walk_partition(args, w, {std::max(seen.begin, start), std::min(seen.end, start + kPartition), seen.end});
    for (int32_t row = 0; row < w.num_rows; ++row) {
      merge_partial(w.max[row], w.sum[row], w.acc + row * w.head_dim, w.head_dim, w.total_max[row],
                    w.total_sum[row], w.total + row * w.head_dim);
    }
  }
  for (int32_t row = 0; row < w.num_rows; ++row) {
    float* out = args.out + (row / w.group) * args.out_stride + (row % w.group) * w.head_dim;
    finish_row(w.total_sum[row], w.total + row * w.head_dim, w.head_dim, out);
  }
}

void attention_partial(const AttentionArgs& args, int32_t partition, float* partial) {
  const Work w = start_work(args);
  const KvRange seen = range_of(args, partition);
  walk_partition(args, w, {seen.begin, seen.end, seen.end});
  for (int32_t row = 0; row < w.num_rows; ++row) {
    float* out = partial + row * (2 + w.head_dim);
    out[0] = w.max[row];
    out[1] = w.sum[row];
    std::memcpy(out + 2, w.acc + row * w.head_dim, sizeof(float) * static_cast<size_t>(w.head_dim));
  }
}

void attention_merge(const float* partials, int32_t num_partials, int32_t num_rows, int32_t head_dim,
                     float* out) {
  const int64_t row_floats = 2 + head_dim;
  for (int32_t row = 0; row < num_rows; ++row) {
    float max = kMinusInf;
    float sum = 0.0F;
    float* acc = out + static_cast<int64_t>(row) * head_dim;
    for (int32_t i = 0; i < num_partials; ++i) {
      const float* part = partials + (static_cast<int64_t>(i) * num_rows + row) * row_floats;
      merge_partial(part[0], part[1], part + 2, head_dim, max, sum, acc);
    }
    finish_row(sum, acc, head_dim, acc);
  }
}

void kv_write(const KvLayout& layout, std::byte* block, int32_t layer, int32_t head, int32_t slot_in_block,
              const float* k, const float* v) {
  if (layout.dtype == KvDtype::kQ8) {
    kv_write_q8(layout, block, layer, head, slot_in_block, k, v);
  } else {
    kv_write_f16(layout, block, layer, head, slot_in_block, k, v);
  }
}

}  // namespace plait::PLAIT_LANES
