// Attention of query rows over the paged KV cache, and the KV write. Knows: the block layout.
// Must not know: pools of threads, sequences, scheduling.
//
// INVARIANT: a query's output depends only on its own q, its position and the K/V of the positions it sees:
// keys are walked in rising order from a fixed start, in partitions of kPartition positions counted from
// position 0, each reduced on its own and merged in rising order. Which queries are computed together, and
// whether later positions of a block are written yet, does not change a bit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/isa.h"

namespace plait {

inline constexpr int32_t kPartition = 512;  // positions that one partial result covers

// How K and V are stored.
//   kF16: rounded to nearest even f16.
//   kQ8: signed bytes of at most 127 with an f16 scale for every kScaleDims elements of K and one for the
//   whole V
//     of a position and head: the scale is the largest magnitude / 127, rounded up, and a byte is the
//     value / scale, rounded to nearest even. A position's bytes depend on its own values only. K or V that
//     is not finite makes the scales of K NaN.
enum class KvDtype : uint8_t { kF16, kQ8 };

// One KV block holds `block_tokens` positions of every layer. For each layer, for each kv head:
//   kF16: K [head_dim][block_tokens] (positions are lanes), then V [block_tokens][head_dim];
//   kQ8:  K [head_dim / 2][block_tokens][2], then V [block_tokens / 2][head_dim][2] (what a product adds up
//         lies side by side), then f16 scales of K [head_dim / kScaleDims, rounded up][block_tokens] and of V
//         [block_tokens]; filled up to whole cache lines.
inline constexpr int32_t kScaleDims = 32;

struct KvLayout {
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;       // a multiple of 16
  int32_t block_tokens = 16;  // a multiple of 16 that divides kPartition
  KvDtype dtype = KvDtype::kF16;

  size_t head_bytes() const {
    if (dtype == KvDtype::kF16) return 2 * part_bytes();
    const size_t num_scales = static_cast<size_t>(num_k_scales() + 1) * static_cast<size_t>(block_tokens);
    return 2 * part_bytes() + (num_scales * sizeof(uint16_t) + 63) / 64 * 64;
  }
  size_t block_bytes() const {
    return static_cast<size_t>(num_layers) * static_cast<size_t>(num_kv_heads) * head_bytes();
  }
  size_t k_offset(int32_t layer, int32_t head) const {
    const auto index = static_cast<size_t>(layer) * static_cast<size_t>(num_kv_heads);
    return (index + static_cast<size_t>(head)) * head_bytes();
  }
  size_t v_offset(int32_t layer, int32_t head) const { return k_offset(layer, head) + part_bytes(); }
  size_t k_scale_offset(int32_t layer, int32_t head) const {
    return k_offset(layer, head) + 2 * part_bytes();
  }
  size_t v_scale_offset(int32_t layer, int32_t head) const {
    const size_t num_scales = static_cast<size_t>(num_k_scales()) * static_cast<size_t>(block_tokens);
    return k_scale_offset(layer, head) + num_scales * sizeof(uint16_t);
  }

  size_t part_bytes() const {  // K or V
    const size_t element = dtype == KvDtype::kF16 ? 2 : 1;
    return element * static_cast<size_t>(head_dim) * static_cast<size_t>(block_tokens);
  }
  int32_t num_k_scales() const { return (head_dim + kScaleDims - 1) / kScaleDims; }  // of one position
};

// Writes one position of K and V ([head_dim] float32 each) for one layer and head.
using KvWriteFn = void (*)(const KvLayout& layout, std::byte* block, int32_t layer, int32_t head,
                           int32_t slot_in_block, const float* k, const float* v);

// Positions [begin, end) of one kv head of a sequence; none when end is not above begin.
struct KvRange {
  const int32_t* block_table = nullptr;
  int32_t kv_head = 0;
  int32_t begin = 0;
  int32_t end = 0;
};

struct AttentionArgs {
  const KvLayout* layout = nullptr;
  const std::byte* pool = nullptr;       // block b starts at pool + b * layout->block_bytes()
  const int32_t* block_table = nullptr;  // of this sequence, by position / block_tokens
  int32_t layer = 0;
  int32_t kv_head = 0;
  int32_t group = 1;  // query heads that share this kv head
  const float* q =
      nullptr;  // query i, group member g: q + i * q_stride + g * head_dim; already scaled by nothing
  int64_t q_stride = 0;
  int32_t num_queries = 0;  // consecutive tokens of one sequence
  int32_t position0 =
      0;               // position of query 0; query i sees positions [max(0, p-window+1), p], p = position0+i
  int32_t window = 0;  // sliding window in positions; 0: none
  float scale = 1.0F;  // multiplies q.k
  float softcap = 0.0F;  // scores become softcap*tanh(s/softcap) when > 0
  float* out = nullptr;  // query i, member g: out + i * out_stride + g * head_dim
  int64_t out_stride = 0;
  std::byte* scratch = nullptr;  // attention_scratch_bytes(...), this task's own, 64-byte aligned
  // What the call after this one will read, of the same layer: its beginning is fetched while the end of this
  // one is computed. Only ever fetched, never read.
  KvRange next;
};

size_t attention_scratch_bytes(const KvLayout& layout, int32_t group, int32_t num_queries);
inline constexpr int32_t kMaxQueriesPerTask = 16;  // num_queries of one call is at most this

using AttentionFn = void (*)(const AttentionArgs& args);

// The positions that the queries of `args` see, in one partition or (-1) in all of them.
KvRange range_of(const AttentionArgs& args, int32_t partition);

// The two halves, for few queries with a long context: the partial result of one partition (index = position
// / kPartition), and the merge of all of them in rising order. attention() gives the same bits. A partial is
// [rows][2 + head_dim] float32, rows = num_queries * group: max, sum, unnormalised output. The merge gives
// [rows][head_dim].
using AttentionPartialFn = void (*)(const AttentionArgs& args, int32_t partition, float* partial);
using AttentionMergeFn = void (*)(const float* partials, int32_t num_partials, int32_t num_rows,
                                  int32_t head_dim, float* out);

// The kernel of `isa`, which must be supported (cpu/isa.h). Every ISA gives the same bits.
KvWriteFn kv_write_kernel(Isa isa);
AttentionFn attention_kernel(Isa isa);
AttentionPartialFn attention_partial_kernel(Isa isa);
AttentionMergeFn attention_merge_kernel(Isa isa);

}  // namespace plait
