#include "cpu/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <cstdlib>
#include <string>

#include "base/error.h"

namespace plait {

namespace {

#if defined(__x86_64__)
// CPUID leaf 1, ECX bit 29; not every compiler knows the name for __builtin_cpu_supports.
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & (1U << 29)) != 0;
}
#endif

}  // namespace

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
  }
  return "unknown";
}

bool is_isa_supported(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return true;
    case Isa::kAvx2:
#if defined(__x86_64__)
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
#else
      return false;
#endif
  }
  return false;
}

IsaChoice choose_isa() {
  const char* forced = std::getenv("PLAIT_FORCE_ISA");
  if (forced != nullptr && *forced != '\0') {
    for (Isa isa : {Isa::kScalar, Isa::kAvx2}) {
      if (std::string(forced) != isa_name(isa)) continue;
      if (!is_isa_supported(isa)) {
        throw Error(ErrorCode::kUnsupported, std::string("PLAIT_FORCE_ISA=") + forced +
                                                 ": this CPU cannot run it; unset the variable");
      }
      return {isa, "forced by PLAIT_FORCE_ISA"};
    }
    throw Error(ErrorCode::kUnsupported,
                std::string("PLAIT_FORCE_ISA=") + forced + ": unknown; use one of scalar, avx2 or unset it");
  }
  if (is_isa_supported(Isa::kAvx2)) return {Isa::kAvx2, "widest that this CPU supports"};
  return {Isa::kScalar, "no AVX2, FMA and F16C on this CPU: slow scalar kernels"};
}

}  // namespace plait
