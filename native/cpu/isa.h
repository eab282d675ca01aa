// Which instruction set the kernels use. Knows: CPUID and PLAIT_FORCE_ISA. Must not know: kernels.
#pragma once

#include <string>

namespace plait {

enum class Isa { kScalar, kAvx2 };

const char* isa_name(Isa isa);

// True when this CPU and this build can run `isa`.
bool is_isa_supported(Isa isa);

struct IsaChoice {
  Isa isa;
  std::string reason;  // for the start-up log
};

// The widest supported ISA, or the one named by the environment variable PLAIT_FORCE_ISA
// ("scalar", "avx2"). Throws Error(kUnsupported) when the named one is unknown or cannot run here.
IsaChoice choose_isa();

}  // namespace plait
