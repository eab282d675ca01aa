#if defined(__x86_64__)

#define PLAIT_ISA avx512vnni
#define PLAIT_TARGET "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"
#define PLAIT_HAS_512 1
#define PLAIT_HAS_VNNI 1
#include "kernels/matmul/matmul-inl.h"

#endif
