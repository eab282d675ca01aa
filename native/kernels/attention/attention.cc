#include "kernels/attention/attention.h"

#include <algorithm>

#include "kernels/attention/work.h"
#include "kernels/lanes/target.h"

namespace plait {

namespace {

constexpr size_t kRowArrays = 7;  // max, sum, decay, total_max, total_sum, q_scale, weight_scale

// Rounded up so that every array starts on a cache line.
size_t padded_rows(int32_t group, int32_t num_queries) {
  return (static_cast<size_t>(group) * static_cast<size_t>(num_queries) + 15) / 16 * 16;
}

}  // namespace

KvRange range_of(const AttentionArgs& args, int32_t partition) {
  KvRange range{args.block_table, args.kv_head, 0, args.position0 + args.num_queries};
  if (args.window > 0) range.begin = std::max(0, args.position0 + 1 - args.window);
  if (partition >= 0) {
    range.begin = std::max(range.begin, partition * kPartition);
    range.end = std::min(range.end, (partition + 1) * kPartition);
  }
  return range;
}

size_t attention_scratch_bytes(const KvLayout& layout, int32_t group, int32_t num_queries) {
  const auto head_dim = static_cast<size_t>(layout.head_dim);
  const size_t rows = padded_rows(group, num_queries);
  const size_t floats = rows * (3 * head_dim + kChunk + kRowArrays);
  return sizeof(float) * floats + sizeof(int16_t) * rows * (head_dim + kChunk);
}

Work carve_work(const AttentionArgs& args) {
  const auto head_dim = static_cast<size_t>(args.layout->head_dim);
  const size_t rows = padded_rows(args.group, args.num_queries);
  auto* next = reinterpret_cast<float*>(args.scratch);
  const auto take = [&next](size_t num) {
    float* const array = next;
    next += num;
    return array;
  };
  Work w;
  w.q = take(rows * head_dim);
  w.acc = take(rows * head_dim);
  w.total = take(rows * head_dim);
  w.weights = take(rows * kChunk);
  w.q_scale = take(rows);
  w.weight_scale = take(rows);
  w.max = take(rows);
  w.sum = take(rows);
  w.decay = take(rows);
  w.total_max = take(rows);
  w.total_sum = take(rows);
  w.q16 = reinterpret_cast<int16_t*>(next);
  w.weights16 = w.q16 + rows * head_dim;
  w.head_dim = args.layout->head_dim;
  w.group = args.group;
  w.num_rows = args.group * args.num_queries;
  w.position0 = args.position0;
  w.window = args.window;
  return w;
}

// The entry points of attention-inl.h in each namespace.
#define PLAIT_DECLARE(lanes)                                                                         \
  namespace lanes {                                                                                  \
  void kv_write(const KvLayout& layout, std::byte* block, int32_t layer, int32_t head,               \
                int32_t slot_in_block, const float* k, const float* v);                              \
  void attention(const AttentionArgs& args);                                                         \
  void attention_partial(const AttentionArgs& args, int32_t partition, float* partial);              \
  void attention_merge(const float* partials, int32_t num_partials, int32_t group, int32_t head_dim, \
                       float* out);                                                                  \
  }

PLAIT_DECLARE(scalar)
#if PLAIT_HAS_AVX2
PLAIT_DECLARE(avx2)
PLAIT_DECLARE(avx512vnni)
#endif
#if PLAIT_HAS_NEON
PLAIT_DECLARE(neon)
#endif
#undef PLAIT_DECLARE

namespace {

struct Entries {
  KvWriteFn kv_write;
  AttentionFn attention;
  AttentionPartialFn attention_partial;
  AttentionMergeFn attention_merge;
};

Entries entries(Isa isa) {
#define PLAIT_ENTRIES(lanes)                                                            \
  {                                                                                     \
    lanes::kv_write, lanes::attention, lanes::attention_partial, lanes::attention_merge \
  }
#if PLAIT_HAS_AVX2
  if (isa == Isa::kAvx512Vnni) return PLAIT_ENTRIES(avx512vnni);
  if (is_avx2_or_wider(isa)) return PLAIT_ENTRIES(avx2);
#endif
#if PLAIT_HAS_NEON
  if (isa == Isa::kNeon) return PLAIT_ENTRIES(neon);
#endif
  (void)isa;
  return PLAIT_ENTRIES(scalar);
#undef PLAIT_ENTRIES
}

}  // namespace

KvWriteFn kv_write_kernel(Isa isa) { return entries(isa).kv_write; }
AttentionFn attention_kernel(Isa isa) { return entries(isa).attention; }
AttentionPartialFn attention_partial_kernel(Isa isa) { return entries(isa).attention_partial; }
AttentionMergeFn attention_merge_kernel(Isa isa) { return entries(isa).attention_merge; }

}  // namespace plait
