#include "kernels/rope/rope.h"

#include "kernels/lanes/target.h"

namespace plait {

namespace scalar {
void rope(float* x, int32_t rot_dim, const float* cos, const float* sin, RopeStyle style);
}  // namespace scalar

#if PLAIT_HAS_AVX2
namespace avx2 {
void rope(float* x, int32_t rot_dim, const float* cos, const float* sin, RopeStyle style);
}  // namespace avx2
#endif

RopeFn rope_kernel(Isa isa) {
#if PLAIT_HAS_AVX2
  if (is_avx2_or_wider(isa)) return avx2::rope;
#endif
  (void)isa;
  return scalar::rope;
}

}  // namespace plait
