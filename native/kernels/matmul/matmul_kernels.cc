#include "kernels/matmul/matmul_kernels.h"

namespace plait {

MatmulFn matmul_kernel(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::kAvx2:
      return avx2::matmul;
    case Isa::kAvx512:
      return avx512::matmul;
    case Isa::kAvx512Vnni:
      return avx512vnni::matmul;
#endif
    default:
      return matmul_ref;
  }
}

}  // namespace plait
