#include "cpu/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
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
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c(); }
bool has_neon() { return false; }
constexpr const char* kNothingWide = "no AVX2, FMA and F16C on this CPU: slow scalar kernels";
#elif defined(__aarch64__)
bool has_avx2() { return false; }
bool has_neon() { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }
constexpr const char* kNothingWide = "no dot product instructions on this CPU: slow scalar kernels";
#else
bool has_avx2() { return false; }
bool has_neon() { return false; }
constexpr const char* kNothingWide = "no wide kernels for this architecture: slow scalar kernels";
#endif

}  // namespace

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kNeon:
      return "neon";
  }
  return "unknown";
}

bool is_isa_supported(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return true;
    case Isa::kAvx2:
      return has_avx2();
    case Isa::kNeon:
      return has_neon();
  }
  return false;
}

std::vector<Isa> supported_isas() {
  std::vector<Isa> supported;
  for (const Isa isa : kAllIsas) {
    if (is_isa_supported(isa)) supported.push_back(isa);
  }
  return supported;
}

IsaChoice choose_isa() {
  const char* forced = std::getenv("PLAIT_FORCE_ISA");
  if (forced != nullptr && *forced != '\0') {
    const std::string prefix = std::string("PLAIT_FORCE_ISA=") + forced;
    std::string names;
    for (const Isa isa : kAllIsas) {
      names += std::string(isa_name(isa)) + ", ";
      if (std::string(forced) != isa_name(isa)) continue;
      if (!is_isa_supported(isa)) {
        throw Error(ErrorCode::kUnsupported, prefix + ": this CPU cannot run it; unset the variable");
      }
      return {isa, "forced by PLAIT_FORCE_ISA"};
    }
    throw Error(ErrorCode::kUnsupported, prefix + ": unknown; use one of " + names + "or unset it");
  }
  const Isa widest = supported_isas().back();
  if (widest == Isa::kScalar) return {widest, kNothingWide};
  return {widest, "widest that this CPU supports"};
}

}  // namespace plait
