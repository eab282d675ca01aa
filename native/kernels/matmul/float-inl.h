// Products of float weights: each lane is one chain of dependent multiply-adds in rising column order. One
// source for every ISA; included once per translation unit by matmul-inl.h.

namespace plait::PLAIT_ISA {
namespace {

template <class V, PackedKind K>
PLAIT_INLINE typename V::Float load_weights(const std::byte* p, size_t step) {
  if constexpr (K == PackedKind::kF32) return V::load_f32x8(p, step);
  if constexpr (K == PackedKind::kF16) return V::load_f16x8(p, step);
  return V::load_bf16x8(p, step);
}

// kVectors vectors of rows times kTokens tokens. A chain waits for itself at every column, so several must
// run side by side; more than 8 groups are more streams than memory serves well.
template <class V, PackedKind K, int kTokens, int kVectors>
PLAIT_FN void multiply_float(const std::byte* groups, size_t step, int64_t cols, const float* x, float* out,
                             int64_t out_stride) {
  constexpr int64_t kStep = kRowGroup * float_bytes(K);
  constexpr int32_t kRows = V::kGroups * kRowGroup;
  typename V::Float acc[kVectors][kTokens];
  for (int v = 0; v < kVectors; ++v) {
    for (int t = 0; t < kTokens; ++t) acc[v][t] = V::zero_float();
  }
  for (int64_t k = 0; k < cols; ++k) {
    for (int v = 0; v < kVectors; ++v) {
      const std::byte* p = groups + static_cast<size_t>(v * V::kGroups) * step + k * kStep;
      const typename V::Float w = load_weights<V, K>(p, step);
      for (int t = 0; t < kTokens; ++t) {
        acc[v][t] =
            V::fma(w, V::broadcast_float(reinterpret_cast<const std::byte*>(x + t * cols + k)), acc[v][t]);
      }
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    for (int t = 0; t < kTokens; ++t) V::store(out + t * out_stride + v * kRows, acc[v][t]);
  }
}

template <PackedKind K, int kTokens, int kVectors>
void multiply_float_rows(const std::byte* groups, int32_t num_groups, int64_t cols, const float* x,
                         float* out, int64_t out_stride) {
  constexpr int32_t kGroups = kVectors * Wide::kGroups;
  const size_t step = group_bytes(K, cols);
  int32_t g = 0;
  for (; g + kGroups <= num_groups; g += kGroups) {
    multiply_float<Wide, K, kTokens, kVectors>(groups + static_cast<size_t>(g) * step, step, cols, x,
                                               out + g * kRowGroup, out_stride);
  }
  for (; g < num_groups; ++g) {
    multiply_float<V256, K, kTokens, 1>(groups + static_cast<size_t>(g) * step, step, cols, x,
                                        out + g * kRowGroup, out_stride);
  }
}

template <PackedKind K>
void matmul_float_kind(const PackedMatrix& w, const Acts& acts, int32_t row0, int32_t row1, int32_t t0,
                       int32_t t1, float* out, int64_t out_stride) {
  walk_floats(w, acts, row0, row1, t0, t1, out, out_stride,
              [&](auto num_tokens, const std::byte* groups, int32_t num_groups, const float* x, float* to) {
                // So many groups side by side that 8 chains of additions run at once.
                constexpr int kTokens = decltype(num_tokens)::value;
                constexpr int kVectors = kTokens == 1 ? 8 / Wide::kGroups : 8 / kTokens;
                multiply_float_rows<K, kTokens, kVectors>(groups, num_groups, w.cols, x, to, out_stride);
              });
}

void matmul_float(const PackedMatrix& w, const Acts& acts, int32_t row0, int32_t row1, int32_t t0, int32_t t1,
                  float* out, int64_t out_stride) {
  switch (w.kind) {
    case PackedKind::kF16:
      return matmul_float_kind<PackedKind::kF16>(w, acts, row0, row1, t0, t1, out, out_stride);
    case PackedKind::kBF16:
      return matmul_float_kind<PackedKind::kBF16>(w, acts, row0, row1, t0, t1, out, out_stride);
    default:
      return matmul_float_kind<PackedKind::kF32>(w, acts, row0, row1, t0, t1, out, out_stride);
  }
}

}  // namespace
}  // namespace plait::PLAIT_ISA
