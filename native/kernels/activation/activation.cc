#include "kernels/activation/activation.h"

#include "kernels/lanes/target.h"

namespace plait {

namespace scalar {
void gated_act(const float* gate, const float* up, int32_t num, Activation act, float* y);
}  // namespace scalar

#if PLAIT_HAS_AVX2
namespace avx2 {
void gated_act(const float* gate, const float* up, int32_t num, Activation act, float* y);
}  // namespace avx2
#endif

GatedActFn gated_act_kernel(Isa isa) {
#if PLAIT_HAS_AVX2
  if (is_avx2_or_wider(isa)) return avx2::gated_act;
#endif
  (void)isa;
  return scalar::gated_act;
}

}  // namespace plait
