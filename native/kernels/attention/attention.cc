#include "kernels/attention/attention.h"

#include "kernels/attention/work.h"
#include "kernels/lanes/target.h"

namespace plait {

namespace {

constexpr size_t kRowArrays = 5;  // max, sum, decay, total_max, total_sum

// Rounded up so that every array starts on a cache line.
size_t padded_rows(int32_t group, int32_t num_queries) {
  return (static_cast<size_t>(group) * static_cast<size_t>(num_queries) + 15) / 16 * 16;
}

}  // namespace

size_t attention_scratch_bytes(const KvLayout& layout, int32_t group, int32_t num_queries) {
  const auto head_dim = static_cast<size_t>(layout.head_dim);
  const size_t rows = padded_rows(group, num_queries);
  return sizeof(float) * (rows * (3 * head_dim + kChunk + kRowArrays) + 2 * kChunk * head_dim);
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
  w.k32 = take(kChunk * head_dim);
  w.v32 = take(kChunk * head_dim);
  w.max = take(rows);
  w.sum = take(rows);
  w.decay = take(rows);
  w.total_max = take(rows);
  w.total_sum = take(rows);
  w.head_dim = args.layout->head_dim;
  w.group = args.group;
  w.num_rows = args.group * args.num_queries;
  w.position0 = args.position0;
  w.window = args.window;
  return w;
}

namespace scalar {
void kv_write(const KvLayout& layout, std::byte* block, int32_t layer, int32_t head, int32_t slot_in_block,
              const float* k, const float* v);
void attention(const AttentionArgs& args);
void attention_partial(const AttentionArgs& args, int32_t partition, float* partial);
void attention_merge(const float* partials, int32_t num_partials, int32_t group, int32_t head_dim,
                     float* out);
}  // namespace scalar

#if PLAIT_HAS_AVX2
namespace avx2 {
void kv_write(const KvLayout& layout, std::byte* block, int32_t layer, int32_t head, int32_t slot_in_block,
              const float* k, const float* v);
void attention(const AttentionArgs& args);
void attention_partial(const AttentionArgs& args, int32_t partition, float* partial);
void attention_merge(const float* partials, int32_t num_partials, int32_t group, int32_t head_dim,
                     float* out);
}  // namespace avx2
#endif

KvWriteFn kv_write_kernel(Isa isa) {
#if PLAIT_HAS_AVX2
  if (is_avx2_or_wider(isa)) return avx2::kv_write;
#endif
  (void)isa;
  return scalar::kv_write;
}

AttentionFn attention_kernel(Isa isa) {
#if PLAIT_HAS_AVX2
  if (is_avx2_or_wider(isa)) return avx2::attention;
#endif
  (void)isa;
  return scalar::attention;
}

AttentionPartialFn attention_partial_kernel(Isa isa) {
#if PLAIT_HAS_AVX2
  if (is_avx2_or_wider(isa)) return avx2::attention_partial;
#endif
  (void)isa;
  return scalar::attention_partial;
}

AttentionMergeFn attention_merge_kernel(Isa isa) {
#if PLAIT_HAS_AVX2
  if (is_avx2_or_wider(isa)) return avx2::attention_merge;
#endif
  (void)isa;
  return scalar::attention_merge;
}

}  // namespace plait
