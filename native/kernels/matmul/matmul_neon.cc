#include "kernels/matmul/matmul_kernels.h"

#if defined(__aarch64__)

#include <array>
#include <cstring>
#include <utility>

#include "kernels/lanes/target.h"
#include "kernels/matmul/act_tile.h"
#include "kernels/matmul/neon_float.h"
#include "kernels/matmul/packed_layout.h"
#include "kernels/matmul/walk.h"

PLAIT_DOTPROD_BEGIN

#include "kernels/matmul/neon_part.h"

namespace plait::neon {
namespace {

// One group of 8 rows times kTokens tokens over all columns; codes go from memory to registers, each byte is
// read once. out: token t at t * out_stride.
template <PackedKind K, int kTokens>
void multiply(const Groups& group, int32_t cols, const ActTile& tile, float* out, int64_t out_stride) {
  const std::byte* record = group.records;
  const std::byte* low = group.low;
  constexpr RecordShape kShape = record_shape(K);
  float32x4_t lo[kTokens];
  float32x4_t hi[kTokens];
  for (int t = 0; t < kTokens; ++t) lo[t] = hi[t] = vdupq_n_f32(0.0F);
  const size_t act_step = static_cast<size_t>(tile.stored) * kActBytes;
  ActRecord act = tile.record(0);
  for (int32_t col = 0; col < cols; col += kShape.elements, record += kShape.bytes()) {
    const Head head = load_head<K>(record);
    for (int32_t i = 0; i < kShape.num_parts(); ++i) {
      const std::byte* part = record + kShape.head_bytes() + i * kShape.part_bytes();
      add_tokens<K, kTokens>(load_part<K, 0>(head, part, low), act, lo);
      PLAIT_FENCE();
      add_tokens<K, kTokens>(load_part<K, 1>(head, part, low), act, hi);
      PLAIT_FENCE();
      act.q += act_step;
      act.scale += act_step;
      act.sum += act_step;
      act.half_sum += act_step;
      if constexpr (K == PackedKind::kS8Apart) low += kLowPartBytes;
    }
  }
  for (int t = 0; t < kTokens; ++t) {
    vst1q_f32(out + t * out_stride, lo[t]);
    vst1q_f32(out + t * out_stride + 4, hi[t]);
  }
}

// All rows of one range for one tile.
template <PackedKind K, int kTokens>
void multiply_tile(const Groups& groups, int32_t num_groups, int32_t cols, const ActTile& tile, float* out,
                   int64_t out_stride) {
  for (int32_t g = 0; g < num_groups; ++g) {
    multiply<K, kTokens>(groups.at(g, K, cols), cols, tile, out + g * kRowGroup, out_stride);
  }
}

}  // namespace
}  // namespace plait::neon

PLAIT_DOTPROD_END

namespace plait::neon {
namespace {

template <PackedKind K>
constexpr TileFns kTileFns = {
    {multiply_tile<K, 1>, multiply_tile<K, 2>, multiply_tile<K, 3>, multiply_tile<K, 4>, multiply_tile<K, 5>,
     multiply_tile<K, 6>, multiply_tile<K, 7>, multiply_tile<K, 8>},
    nullptr};

// By kind: the float kinds stand last.
template <size_t... kKinds>
constexpr auto make_table(std::index_sequence<kKinds...> /*kinds*/) {
  return std::array<TileFns, sizeof...(kKinds)>{kTileFns<static_cast<PackedKind>(kKinds)>...};
}
constexpr size_t kNumQuantised = static_cast<size_t>(PackedKind::kF16);
constexpr auto kTable = make_table(std::make_index_sequence<kNumQuantised>{});
static_assert(!is_float_kind(static_cast<PackedKind>(kNumQuantised - 1)));

}  // namespace

void matmul(const PackedMatrix& w, const Acts& acts, int32_t row0, int32_t row1, int32_t t0, int32_t t1,
            float* out, int64_t out_stride) {
  if (is_float_kind(w.kind)) return matmul_float(w, acts, row0, row1, t0, t1, out, out_stride);
  walk_tiles(kTable[static_cast<size_t>(w.kind)], w, acts, row0, row1, t0, t1, out, out_stride);
}

}  // namespace plait::neon

#endif
