// The choice of an instruction set. With PLAIT_EXPECT_ISA set, the one that this machine gives must bear that
// name: whoever sets it knows the machine, so that a detection that fails does not pass as a CPU without.
#include "cpu/isa.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/test.h"

namespace plait {
namespace {

// Sets PLAIT_FORCE_ISA (null: unsets it) for the life of the object.
class Forced {
 public:
  explicit Forced(const char* name) {
    if (const char* before = std::getenv(kVariable)) before_ = before;
    set(name);
  }
  ~Forced() { set(before_ ? before_->c_str() : nullptr); }
  Forced(const Forced&) = delete;
  Forced& operator=(const Forced&) = delete;

 private:
  static constexpr const char* kVariable = "PLAIT_FORCE_ISA";
  static void set(const char* name) {
    if (name == nullptr) {
      unsetenv(kVariable);
    } else {
      setenv(kVariable, name, 1);
    }
  }
  std::optional<std::string> before_;
};

std::string refusal(const char* name) {
  const Forced forced(name);
  try {
    choose_isa();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(names_are_all_different) {
  std::set<std::string> names;
  for (const Isa isa : kAllIsas) names.insert(isa_name(isa));
  CHECK_EQ(names.size(), std::size(kAllIsas));
  CHECK_EQ(names.count("unknown"), size_t{0});
  for (size_t i = 0; i < std::size(kAllIsas); ++i) CHECK_EQ(static_cast<size_t>(kAllIsas[i]), i);
}

TEST(the_widest_is_chosen) {
  for (const char* name : {static_cast<const char*>(nullptr), ""}) {
    const Forced forced(name);
    CHECK(choose_isa().isa == supported_isas().back());
  }
  CHECK(supported_isas().front() == Isa::kScalar);
}

TEST(this_machine_gives_the_expected_one) {
  const char* expected = std::getenv("PLAIT_EXPECT_ISA");
  const Forced forced(nullptr);
  if (expected != nullptr) CHECK_EQ(std::string(isa_name(choose_isa().isa)), expected);
}

TEST(the_forced_one_is_chosen_or_refused) {
  const std::vector<Isa> supported = supported_isas();
  for (const Isa isa : kAllIsas) {
    const bool can_run = std::find(supported.begin(), supported.end(), isa) != supported.end();
    CHECK_EQ(is_isa_supported(isa), can_run);
    if (!can_run) {
      CHECK(refusal(isa_name(isa)).find("cannot run it") != std::string::npos);
      continue;
    }
    const Forced forced(isa_name(isa));
    CHECK(choose_isa().isa == isa);
    CHECK(choose_isa().reason.find("PLAIT_FORCE_ISA") != std::string::npos);
  }
}

TEST(an_unknown_one_is_refused_by_name) {
  const std::string message = refusal("neon2");
  CHECK(message.find("neon2: unknown") != std::string::npos);
  for (const Isa isa : kAllIsas) CHECK(message.find(isa_name(isa)) != std::string::npos);
}

TEST(no_isa_of_another_architecture) {
#if defined(__aarch64__)
  CHECK(!is_isa_supported(Isa::kAvx2));
#else
  CHECK(!is_isa_supported(Isa::kNeon));
#endif
}

}  // namespace
}  // namespace plait

TEST_MAIN()
