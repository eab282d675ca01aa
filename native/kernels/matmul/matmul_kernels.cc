#include "kernels/matmul/matmul_kernels.h"

namespace plait {

MatmulFn matmul_kernel(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx2) return matmul_avx2;
#endif
#if defined(__aarch64__)
  if (isa == Isa::kNeon) return neon::matmul;
#endif
  (void)isa;
  return matmul_ref;
}

}  // namespace plait
