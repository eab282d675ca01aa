#include "kernels/activation/activation.h"
#include "kernels/lanes/target.h"

#if PLAIT_HAS_AVX2

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/float16.h"

PLAIT_AVX2_BEGIN
#define PLAIT_LANES avx2
#define PLAIT_LANES_AVX2 1
#include "kernels/activation/activation-inl.h"
PLAIT_AVX2_END

#endif
