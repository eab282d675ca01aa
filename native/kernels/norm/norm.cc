#include "kernels/norm/norm.h"

#include "kernels/lanes/target.h"

namespace plait {

namespace scalar {
void rms_norm(const float* x, const float* weight, float eps, int32_t num, float* y);
void add(float* x, const float* delta, int32_t num);
}  // namespace scalar

#if PLAIT_HAS_AVX2
namespace avx2 {
void rms_norm(const float* x, const float* weight, float eps, int32_t num, float* y);
void add(float* x, const float* delta, int32_t num);
}  // namespace avx2
#endif

RmsNormFn rms_norm_kernel(Isa isa) {
#if PLAIT_HAS_AVX2
  if (is_avx2_or_wider(isa)) return avx2::rms_norm;
#endif
  (void)isa;
  return scalar::rms_norm;
}

AddFn add_kernel(Isa isa) {
#if PLAIT_HAS_AVX2
  if (is_avx2_or_wider(isa)) return avx2::add;
#endif
  (void)isa;
  return scalar::add;
}

}  // namespace plait
