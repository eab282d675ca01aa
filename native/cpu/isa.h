// Which instruction set the kernels use. Knows: CPUID, HWCAP and PLAIT_FORCE_ISA. Must not know: kernels.
#pragma once

#include <string>
#include <vector>

namespace plait {

enum class Isa {
  kScalar,
  kAvx2,        // with FMA and F16C
  kAvx512,      // AVX-512 F, BW, VL and DQ, and what kAvx2 has
  kAvx512Vnni,  // AVX-512 VNNI as well
  kNeon,        // aarch64 with the dot product instructions
};

// Every one that plait knows, in the order of the enumeration: of those that one CPU runs, the widest is
// last.
inline constexpr Isa kAllIsas[] = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Vnni, Isa::kNeon};

const char* isa_name(Isa isa);

// True when this CPU and this build can run `isa`.
bool is_isa_supported(Isa isa);

// Those of kAllIsas that can run here; the first is kScalar.
std::vector<Isa> supported_isas();

// True for the ISAs whose CPUs run AVX2 code: a kernel family without a wider version gives them that one.
constexpr bool is_avx2_or_wider(Isa isa) {
  return isa == Isa::kAvx2 || isa == Isa::kAvx512 || isa == Isa::kAvx512Vnni;
}

// True on CPUs that lose when code tells them what it will read next from memory in one stream, since they
// have fetched it already. Measured: Zen 4 loses a tenth; Zen 3 and Zen 5 win as much and more.
bool fetches_enough_by_itself();

struct IsaChoice {
  Isa isa;
  std::string reason;  // for the start-up log
};

// The widest supported ISA, or the one named by the environment variable PLAIT_FORCE_ISA ("scalar", "avx2",
// "avx512", "avx512vnni", "neon"). Throws Error(kUnsupported) when the named one is unknown or cannot run
// here.
IsaChoice choose_isa();

}  // namespace plait
