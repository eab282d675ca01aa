#include "kernels/lanes/target.h"
#include "kernels/rope/rope.h"

#if PLAIT_HAS_NEON

#define PLAIT_LANES neon
#define PLAIT_LANES_NEON 1
#include "kernels/rope/rope-inl.h"

#endif
