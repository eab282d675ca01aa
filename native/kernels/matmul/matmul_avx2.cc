#include "kernels/matmul/matmul_kernels.h"

#if defined(__x86_64__)

#include "kernels/matmul/avx2_float.h"
#include "kernels/matmul/avx2_part.h"

namespace plait {
namespace avx2 {
namespace {

// One group of 8 rows times kTokens tokens over all columns; codes go from memory to registers, each byte is
// read once. out: token t at t * out_stride. One group at a time also for one token: a second stream of
// weights halves the bandwidth.
template <PackedKind K, int kTokens>
PLAIT_AVX2 void multiply(const std::byte* record, int32_t cols, const ActTile& tile, float* out,
                         int64_t out_stride) {
  constexpr RecordShape kShape = record_shape(K);
  __m256 acc[kTokens];
  for (int t = 0; t < kTokens; ++t) acc[t] = _mm256_setzero_ps();
  const size_t act_step = static_cast<size_t>(tile.stored) * kActBytes;
  ActRecord act = tile.record(0);
  for (int32_t col = 0; col < cols; col += kShape.elements, record += kShape.bytes()) {
    const Head head = load_head<K>(record);
    for (int32_t i = 0; i < kShape.num_parts(); ++i) {
      Part part;
      load_part<K>(head, record + kShape.head_bytes() + i * kShape.part_bytes(), part);
      add_part<K, kTokens>(head, part, act, acc);
      act.q += act_step;
      act.scale += act_step;
      act.sum += act_step;
      act.half_sum += act_step;
    }
  }
  for (int t = 0; t < kTokens; ++t) _mm256_storeu_ps(out + t * out_stride, acc[t]);
}

// All rows of one range for one tile.
template <PackedKind K, int kTokens>
void multiply_tile(const std::byte* groups, int32_t num_groups, int32_t cols, const ActTile& tile, float* out,
                   int64_t out_stride) {
  const size_t step = group_bytes(K, cols);
  for (int32_t g = 0; g < num_groups; ++g) {
    multiply<K, kTokens>(groups + static_cast<size_t>(g) * step, cols, tile, out + g * kRowGroup, out_stride);
  }
}

using TileFn = void (*)(const std::byte* groups, int32_t num_groups, int32_t cols, const ActTile& tile,
                        float* out, int64_t out_stride);

template <PackedKind K>
constexpr TileFn kTileFns[kTileTokens] = {multiply_tile<K, 1>, multiply_tile<K, 2>, multiply_tile<K, 3>,
                                          multiply_tile<K, 4>, multiply_tile<K, 5>, multiply_tile<K, 6>,
                                          multiply_tile<K, 7>, multiply_tile<K, 8>};

const TileFn* tile_fns(PackedKind kind) {
  switch (kind) {
    case PackedKind::kU4:
      return kTileFns<PackedKind::kU4>;
    case PackedKind::kU4Min:
      return kTileFns<PackedKind::kU4Min>;
    case PackedKind::kU5:
      return kTileFns<PackedKind::kU5>;
    case PackedKind::kU5Min:
      return kTileFns<PackedKind::kU5Min>;
    case PackedKind::kS8:
      return kTileFns<PackedKind::kS8>;
    case PackedKind::kCode4:
      return kTileFns<PackedKind::kCode4>;
    case PackedKind::kU2K:
      return kTileFns<PackedKind::kU2K>;
    case PackedKind::kU3K:
      return kTileFns<PackedKind::kU3K>;
    case PackedKind::kU4K:
      return kTileFns<PackedKind::kU4K>;
    case PackedKind::kU5K:
      return kTileFns<PackedKind::kU5K>;
    case PackedKind::kU6K:
      return kTileFns<PackedKind::kU6K>;
    case PackedKind::kCode4K:
      return kTileFns<PackedKind::kCode4K>;
    case PackedKind::kF16:
    case PackedKind::kBF16:
    case PackedKind::kF32:
      break;
  }
  return nullptr;
}

// Weights that stay in the second-level cache while all tiles of tokens pass over them.
constexpr size_t kPanelBytes = size_t{256} << 10;

}  // namespace
}  // namespace avx2

void matmul_avx2(const PackedMatrix& w, const Acts& acts, int32_t row0, int32_t row1, int32_t t0, int32_t t1,
                 float* out, int64_t out_stride) {
  if (is_float_kind(w.kind)) return avx2::matmul_float(w, acts, row0, row1, t0, t1, out, out_stride);
  const avx2::TileFn* fns = avx2::tile_fns(w.kind);
  const size_t step = group_bytes(w.kind, w.cols);
  const auto panel = static_cast<int32_t>(avx2::kPanelBytes / step < 4 ? 4 : avx2::kPanelBytes / step);
  const int32_t group1 = row1 / kRowGroup;
  for (int32_t group = row0 / kRowGroup; group < group1; group += panel) {
    const int32_t num_groups = group1 - group < panel ? group1 - group : panel;
    for (int32_t t = t0; t < t1; t += kTileTokens) {
      const ActTile tile = act_tile(acts, t, t1);
      fns[tile.wanted - 1](w.data + static_cast<size_t>(group) * step, num_groups, w.cols, tile,
                           out + (t - t0) * out_stride + group * kRowGroup - row0, out_stride);
    }
  }
}

}  // namespace plait

#endif
