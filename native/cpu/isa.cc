#include "cpu/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <cstdlib>
#include <iterator>
#include <string>

#include "base/error.h"

namespace plait {

namespace {

bool runs_everywhere() { return true; }

#if defined(__x86_64__)

// CPUID leaf 1, ECX bit 29; not every compiler knows the name for __builtin_cpu_supports.
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & (1U << 29)) != 0;
}

bool runs_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c(); }

bool runs_avx512() {
  return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

bool runs_avx512vnni() { return runs_avx512() && __builtin_cpu_supports("avx512vnni"); }

#else

bool runs_nowhere() { return false; }
constexpr auto runs_avx2 = runs_nowhere;
constexpr auto runs_avx512 = runs_nowhere;
constexpr auto runs_avx512vnni = runs_nowhere;

#endif

#if defined(__aarch64__)
bool runs_neon() { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }
#else
bool runs_neon() { return false; }
#endif

constexpr const char* kNothingWide =
#if defined(__x86_64__)
    "no AVX2, FMA and F16C on this CPU: slow scalar kernels";
#elif defined(__aarch64__)
    "no dot product instructions on this CPU: slow scalar kernels";
#else
    "no wide kernels for this architecture: slow scalar kernels";
#endif

struct Entry {
  Isa isa;
  const char* name;
  bool (*is_supported)();
};

// As in kAllIsas.
constexpr Entry kEntries[] = {
    {Isa::kScalar, "scalar", runs_everywhere}, {Isa::kAvx2, "avx2", runs_avx2},
    {Isa::kAvx512, "avx512", runs_avx512},     {Isa::kAvx512Vnni, "avx512vnni", runs_avx512vnni},
    {Isa::kNeon, "neon", runs_neon},
};

constexpr bool is_in_order() {
  for (size_t i = 0; i < std::size(kEntries); ++i) {
    if (kEntries[i].isa != kAllIsas[i] || static_cast<size_t>(kAllIsas[i]) != i) return false;
  }
  return std::size(kEntries) == std::size(kAllIsas);
}
static_assert(is_in_order());

const Entry& entry(Isa isa) { return kEntries[static_cast<size_t>(isa)]; }

}  // namespace

const char* isa_name(Isa isa) { return entry(isa).name; }

bool is_isa_supported(Isa isa) { return entry(isa).is_supported(); }

std::vector<Isa> supported_isas() {
  std::vector<Isa> supported;
  for (const Isa isa : kAllIsas) {
    if (is_isa_supported(isa)) supported.push_back(isa);
  }
  return supported;
}

bool fetches_enough_by_itself() {
#if defined(__x86_64__)
  // Of family 19h Zen 4 has AVX-512, Zen 3 has not.
  return __builtin_cpu_is("amdfam19h") && __builtin_cpu_supports("avx512f");
#else
  return false;
#endif
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
