#if defined(__x86_64__)

#define PLAIT_ISA avx2
#define PLAIT_TARGET "avx2,fma,f16c"
#define PLAIT_HAS_512 0
#define PLAIT_HAS_VNNI 0
#include "kernels/matmul/matmul-inl.h"

#endif
