#include "kernels/activation/activation.h"
#include "kernels/lanes/target.h"

#if PLAIT_HAS_NEON

#define PLAIT_LANES neon
#define PLAIT_LANES_NEON 1
#include "kernels/activation/activation-inl.h"

#endif
