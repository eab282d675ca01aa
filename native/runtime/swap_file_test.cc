#include "runtime/swap_file.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <random>

#include "base/test.h"

using plait::SwapFile;
using Extents = std::vector<SwapFile::Extent>;

TEST(leaves_no_name_behind) {
  char dir[] = "/tmp/plait-swap-test-XXXXXX";
  CHECK(::mkdtemp(dir) != nullptr);
  {
    const SwapFile file(dir, 4096, 0);
    struct stat info{};
    CHECK_EQ(::fstat(file.fd(), &info), 0);
    CHECK_EQ(info.st_nlink, nlink_t{0});
  }
  CHECK_EQ(::rmdir(dir), 0);  // empty
  bool is_named = false;
  try {
    SwapFile(dir, 4096, 0);
  } catch (const plait::Error& e) {
    is_named = e.code() == plait::ErrorCode::kSystem && std::strstr(e.what(), dir) != nullptr;
  }
  CHECK(is_named);
}

TEST(one_piece_where_possible_else_what_is_free) {
  SwapFile file("/tmp", 100, 1099);  // 10 slots
  Extents a, b, c, d;
  CHECK(file.try_reserve(4, a) && file.try_reserve(2, b) && file.try_reserve(4, c));
  CHECK(!file.has_room(1));
  CHECK(!file.try_reserve(1, d) && d.empty());
  file.release(b);
  CHECK(!file.try_reserve(3, d));
  CHECK(file.try_reserve(1, d));
  CHECK_EQ(d[0].first, int64_t{4});
  file.release(a);
  Extents e;
  CHECK(file.try_reserve(5, e));  // 0..4 and 5
  CHECK_EQ(e.size(), size_t{2});
  CHECK_EQ(e[0].first + e[0].num_slots, int64_t{4});
  CHECK_EQ(e[1].first, int64_t{5});
  file.release(c);
  file.release(d);
  file.release(e);
  CHECK_EQ(file.num_used_slots(), int64_t{0});
  CHECK_EQ(file.end_slot(), int64_t{0});
  Extents whole;
  CHECK(file.try_reserve(10, whole));
  CHECK_EQ(whole.size(), size_t{1});
}

TEST(a_file_smaller_than_a_slot_has_no_room) {
  SwapFile file("/tmp", 100, 99);
  Extents extents;
  CHECK(!file.has_room(1));
  CHECK(!file.try_reserve(1, extents));
  CHECK(!SwapFile("/tmp", 100, 0).try_reserve(0, extents));
}

// Random use: no slot is handed out twice, counts agree, and everything comes back.
TEST(random_use_never_hands_out_a_slot_twice) {
  constexpr int64_t kNumSlots = 64;
  std::mt19937 random(5);
  SwapFile file("/tmp", 8, kNumSlots * 8);
  std::vector<bool> is_taken(kNumSlots, false);
  std::vector<Extents> held;
  int64_t num_taken = 0;
  int num_refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    if (random() % 2 == 0 || held.empty()) {
      const auto num_slots = static_cast<int64_t>(1 + random() % 12);
      Extents extents;
      const bool fits = num_slots <= kNumSlots - num_taken;
      CHECK_EQ(file.try_reserve(num_slots, extents), fits);
      num_refused += !fits;
      if (!fits) continue;
      int64_t num_got = 0;
      for (const SwapFile::Extent& extent : extents) {
        CHECK(extent.first >= 0 && extent.first + extent.num_slots <= kNumSlots);
        for (int64_t slot = extent.first; slot < extent.first + extent.num_slots; ++slot, ++num_got) {
          CHECK(!is_taken[static_cast<size_t>(slot)]);
          is_taken[static_cast<size_t>(slot)] = true;
        }
      }
      CHECK_EQ(num_got, num_slots);
      num_taken += num_slots;
      held.push_back(std::move(extents));
    } else {
      std::swap(held[random() % held.size()], held.back());
      for (const SwapFile::Extent& extent : held.back()) {
        for (int64_t slot = extent.first; slot < extent.first + extent.num_slots; ++slot) {
          is_taken[static_cast<size_t>(slot)] = false;
        }
        num_taken -= extent.num_slots;
      }
      file.release(held.back());
      held.pop_back();
    }
    CHECK_EQ(file.num_used_slots(), num_taken);
    CHECK(file.end_slot() == 0 || is_taken[static_cast<size_t>(file.end_slot() - 1)]);
  }
  CHECK(num_refused > 100);
}

TEST_MAIN()
