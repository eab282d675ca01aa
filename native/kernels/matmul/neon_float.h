// Products of float weights, NEON. See matmul.h.
#pragma once

#include "kernels/matmul/matmul.h"

namespace plait::neon {

void matmul_float(const PackedMatrix& w, const Acts& acts, int32_t row0, int32_t row1, int32_t t0, int32_t t1,
                  float* out, int64_t out_stride);

}  // namespace plait::neon
