// The forced instruction set is the one that runs, and one that cannot is an error.
#include "kernels/kernel_table.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/test.h"
#include "kernels/matmul/random_blocks.h"

using namespace plait;

namespace {

// Sets PLAIT_FORCE_ISA for the life of the object.
class Forced {
 public:
  explicit Forced(const std::string& name) {
    if (const char* before = std::getenv("PLAIT_FORCE_ISA")) before_ = before;
    setenv("PLAIT_FORCE_ISA", name.c_str(), 1);
  }
  ~Forced() { setenv("PLAIT_FORCE_ISA", before_.c_str(), 1); }  // empty is as good as unset
  Forced(const Forced&) = delete;
  Forced& operator=(const Forced&) = delete;

 private:
  std::string before_;
};

std::string refusal(const std::string& name) {
  const Forced forced(name);
  try {
    choose_isa();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kUnsupported);
    return error.what();
  }
  return "";
}

// The product of one small matrix by the kernels of `table`.
std::vector<float> product(const KernelTable& table) {
  constexpr int32_t kRows = 24;
  constexpr int32_t kCols = 64;
  AlignedBytes packed(packed_num_bytes(GgmlType::kQ8_0, kRows, kCols));
  AlignedBytes q8(acts_q8_bytes(3, kCols));
  const std::vector<std::byte> file = random_blocks(GgmlType::kQ8_0, kRows * kCols / 32, 1);
  pack_rows(GgmlType::kQ8_0, file.data(), kCols, 0, kRows, packed.data());
  const PackedMatrix w{packed.data(), packed_num_bytes(GgmlType::kQ8_0, kRows, kCols), kRows, kCols,
                       PackedKind::kS8};
  const Acts acts{q8.data(), nullptr, 3, kCols};
  SplitMix64 random(2);
  for (int32_t t = 0; t < 3; ++t) {
    std::vector<float> x(kCols);
    for (float& v : x) v = random.uniform();
    table.quantize(x.data(), t, 0, kCols, acts);
  }
  std::vector<float> out(3 * kRows);
  table.matmul(w, acts, 0, kRows, 0, 3, out.data(), kRows);
  return out;
}

}  // namespace

TEST(each_supported_isa_runs_when_it_is_forced) {
  const std::vector<float> expected = product(kernel_table(Isa::kScalar));
  for (const Isa isa : supported_isas()) {
    const Forced forced(isa_name(isa));
    const KernelTable& table = kernel_table(choose_isa().isa);
    CHECK(table.isa == isa);
    CHECK(product(table) == expected);
    for (const Isa other : supported_isas()) {
      CHECK_EQ(kernel_table(other).matmul == table.matmul, other == isa);  // each has its own
    }
  }
}

TEST(wider_isas_take_the_avx2_version_of_the_other_families) {
  if (!is_isa_supported(Isa::kAvx2)) return;
  const KernelTable& avx2 = kernel_table(Isa::kAvx2);
  const KernelTable& scalar = kernel_table(Isa::kScalar);
  CHECK(avx2.attention != scalar.attention);
  for (const Isa isa : supported_isas()) {
    if (!is_avx2_or_wider(isa)) continue;
    const KernelTable& table = kernel_table(isa);
    CHECK(table.quantize == avx2.quantize && table.rms_norm == avx2.rms_norm && table.add == avx2.add);
    CHECK(table.rope == avx2.rope && table.gated_act == avx2.gated_act);
    if (isa == Isa::kAvx512Vnni) continue;  // its attention multiplies signed bytes in one instruction
    CHECK(table.kv_write == avx2.kv_write);
    CHECK(table.attention == avx2.attention && table.attention_partial == avx2.attention_partial &&
          table.attention_merge == avx2.attention_merge);
  }
}

TEST(an_isa_that_cannot_run_is_refused) {
  const std::vector<Isa> supported = supported_isas();
  for (const Isa isa : kAllIsas) {
    const bool can_run = std::find(supported.begin(), supported.end(), isa) != supported.end();
    CHECK_EQ(is_isa_supported(isa), can_run);
    const std::string message = refusal(isa_name(isa));
    CHECK_EQ(message.empty(), can_run);
    CHECK(can_run || message.find("cannot run it") != std::string::npos);
  }
  const std::string message = refusal("avx1024");
  CHECK(message.find("avx1024: unknown") != std::string::npos);
  for (const Isa isa : kAllIsas) CHECK(message.find(isa_name(isa)) != std::string::npos);
}

TEST(the_widest_is_chosen_when_nothing_is_forced) {
  const Forced forced("");
  CHECK(choose_isa().isa == supported_isas().back());
  CHECK(supported_isas().front() == Isa::kScalar);
}

TEST_MAIN()
