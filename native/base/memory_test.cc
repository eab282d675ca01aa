#include "base/memory.h"

#include <sys/mman.h>

#include <cstring>
#include <vector>

#include "base/test.h"

namespace plait {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kMiB = size_t{1} << 20;

// Pages of the memory that are there.
size_t num_present(const Memory& memory) {
  std::vector<unsigned char> present((memory.size() + kPage - 1) / kPage);
  CHECK_EQ(mincore(memory.data(), memory.size(), present.data()), 0);
  size_t num = 0;
  for (const unsigned char page : present) num += page & 1U;
  return num;
}

TEST(memory_comes_when_it_is_touched) {
  Memory memory(64 * kMiB);
  CHECK_EQ(num_present(memory), size_t{0});
  memory.data()[0] = std::byte{1};
  CHECK(num_present(memory) >= 1);
  CHECK(num_present(memory) <= 2 * kMiB / kPage);
}

TEST(a_range_is_taken_and_no_more) {
  for (const int32_t num_threads : {1, 3}) {
    Memory memory(64 * kMiB);
    memory.prefault(8 * kMiB, 16 * kMiB, num_threads);
    CHECK(num_present(memory) >= 16 * kMiB / kPage);
    // A huge page reaches over the ends.
    CHECK(num_present(memory) <= 20 * kMiB / kPage);
  }
}

TEST(what_is_written_stays) {
  Memory memory(5 * kMiB + 100);
  std::memset(memory.data() + 3, 7, 5000);
  memory.prefault(1, memory.size(), 2);
  CHECK_EQ(num_present(memory), (memory.size() + kPage - 1) / kPage);
  CHECK(memory.data()[2] == std::byte{0});
  CHECK(memory.data()[3] == std::byte{7});
  CHECK(memory.data()[5002] == std::byte{7});
  CHECK(memory.data()[5003] == std::byte{0});
}

TEST(what_is_beyond_the_end_is_left_alone) {
  Memory memory(kMiB + 1);
  memory.prefault(0, 1 << 30, 2);
  CHECK_EQ(num_present(memory), kMiB / kPage + 1);
  memory.prefault(1 << 30, 1 << 30, 2);
  memory.prefault(0, 0, 2);
  Memory none;
  none.prefault(0, 100, 2);
}

}  // namespace
}  // namespace plait

TEST_MAIN()
