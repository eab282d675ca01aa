#include "kernels/attention/attention.h"
#include "kernels/lanes/target.h"

#if PLAIT_HAS_AVX2

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/float16.h"

PLAIT_AVX512VNNI_BEGIN
#define PLAIT_LANES avx512vnni
#define PLAIT_LANES_AVX2 1
#define PLAIT_LANES_VNNI 1
#include "kernels/attention/attention-inl.h"
PLAIT_AVX512VNNI_END

#endif
