// The quantize kernels by ISA; acts.h defines what they write.
#pragma once

#include "cpu/isa.h"
#include "kernels/quantize/acts.h"

namespace plait {

// The kernel of `isa`, which must be supported (cpu/isa.h).
QuantizeFn quantize_kernel(Isa isa);

}  // namespace plait
