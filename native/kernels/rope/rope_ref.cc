// The scalar kernels: the oracle for every other ISA.
#define PLAIT_LANES scalar
#include "kernels/rope/rope-inl.h"
