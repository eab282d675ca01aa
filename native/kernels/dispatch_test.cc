// The table that is asked for is the one that runs.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <vector>

#include "base/test.h"
#include "kernels/kernel_table.h"

namespace plait {
namespace {

std::vector<const void*> entries(const KernelTable& table) {
  const auto address = [](auto* function) { return reinterpret_cast<const void*>(function); };
  return {address(table.matmul),
          address(table.quantize),
          address(table.rms_norm),
          address(table.add),
          address(table.rope),
          address(table.gated_act),
          address(table.kv_write),
          address(table.attention),
          address(table.attention_partial),
          address(table.attention_merge)};
}

TEST(no_family_of_a_wide_isa_is_scalar) {
  const std::vector<const void*> scalar = entries(kernel_table(Isa::kScalar));
  // A family that is added to the table belongs in the list above, too.
  CHECK_EQ(sizeof(KernelTable), (scalar.size() + 1) * sizeof(void*));
  for (const Isa isa : supported_isas()) {
    const KernelTable& table = kernel_table(isa);
    CHECK(table.isa == isa);
    if (isa == Isa::kScalar) continue;
    const std::vector<const void*> wide = entries(table);
    for (size_t i = 0; i < wide.size(); ++i) CHECK(wide[i] != scalar[i]);
  }
}

TEST(the_forced_isa_brings_its_own_product) {
  const char* before = std::getenv("PLAIT_FORCE_ISA");
  const std::string kept = before != nullptr ? before : "";
  for (const Isa isa : supported_isas()) {
    setenv("PLAIT_FORCE_ISA", isa_name(isa), 1);
    const KernelTable& table = kernel_table(choose_isa().isa);
    CHECK(table.isa == isa);
    CHECK(table.matmul == matmul_kernel(isa));
    if (isa == Isa::kScalar) CHECK(table.matmul == matmul_ref);
#if defined(__aarch64__)
    if (isa == Isa::kNeon) CHECK(table.matmul == neon::matmul);
#endif
  }
  setenv("PLAIT_FORCE_ISA", kept.c_str(), 1);
}

#if defined(__aarch64__)

// A CPU without dot products must stumble over the NEON product: so it does consist of them, and detection
// is right to refuse it there.
TEST(neon_product_needs_what_detection_asks_for) {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    alignas(64) std::byte packed[(2 * kRowGroup + kRowGroup * kBlock)] = {};
    alignas(64) std::byte q8[acts_q8_bytes(1, kBlock)] = {};
    float out[kRowGroup];
    const PackedMatrix w{packed, sizeof packed, kRowGroup, kBlock, PackedKind::kS8};
    neon::matmul(w, Acts{q8, nullptr, 1, kBlock}, 0, kRowGroup, 0, 1, out, kRowGroup);
    _exit(out[0] == 0.0F ? 0 : 1);
  }
  int status = -1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  if (is_isa_supported(Isa::kNeon)) {
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  } else {
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGILL);
  }
}

#endif

}  // namespace
}  // namespace plait

TEST_MAIN()
