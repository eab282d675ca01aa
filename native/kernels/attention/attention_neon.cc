#include "kernels/attention/attention.h"
#include "kernels/lanes/target.h"

#if PLAIT_HAS_NEON

#define PLAIT_LANES neon
#define PLAIT_LANES_NEON 1
#include "kernels/attention/attention-inl.h"

#endif
