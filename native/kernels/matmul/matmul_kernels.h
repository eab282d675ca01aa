// The matmul kernels by ISA; matmul.h defines what they compute.
#pragma once

#include "cpu/isa.h"
#include "kernels/matmul/matmul.h"

namespace plait {

// The kernel of `isa`, which must be supported (cpu/isa.h).
MatmulFn matmul_kernel(Isa isa);

void matmul_ref(const PackedMatrix& w, const Acts& acts, int32_t row0, int32_t row1, int32_t t0, int32_t t1,
                float* out, int64_t out_stride);

#if defined(__x86_64__)
namespace avx2 {
void matmul(const PackedMatrix& w, const Acts& acts, int32_t row0, int32_t row1, int32_t t0, int32_t t1,
            float* out, int64_t out_stride);
}  // namespace avx2
namespace avx512 {
void matmul(const PackedMatrix& w, const Acts& acts, int32_t row0, int32_t row1, int32_t t0, int32_t t1,
            float* out, int64_t out_stride);
}  // namespace avx512
namespace avx512vnni {
void matmul(const PackedMatrix& w, const Acts& acts, int32_t row0, int32_t row1, int32_t t0, int32_t t1,
            float* out, int64_t out_stride);
}  // namespace avx512vnni
#endif

}  // namespace plait
