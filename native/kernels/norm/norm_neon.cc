#include "kernels/lanes/target.h"
#include "kernels/norm/norm.h"

#if PLAIT_HAS_NEON

#define PLAIT_LANES neon
#define PLAIT_LANES_NEON 1
#include "kernels/norm/norm-inl.h"

#endif
