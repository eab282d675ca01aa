#include <memory>
#include <thread>

#include "base/test.h"
#include "sync/mpsc_ring.h"
#include "sync/spsc_ring.h"

using plait::MpscRing;
using plait::SpscRing;

namespace {

template <typename Ring>
void check_order_and_bounds() {
  Ring ring(3);
  CHECK_EQ(ring.capacity(), size_t{4});
  int out = -7;
  CHECK(!ring.try_pop(out));
  CHECK_EQ(out, -7);
  int pushed = 0;
  int popped = 0;
  for (int round = 0; round < 50; ++round) {
    const int num = round % 4 + 1;
    for (int i = 0; i < num; ++i) CHECK(ring.try_push(int{pushed++}));
    CHECK_EQ(ring.size(), static_cast<size_t>(num));
    for (int i = 0; i < num; ++i) {
      CHECK(ring.try_pop(out));
      CHECK_EQ(out, popped++);
    }
    CHECK_EQ(ring.size(), size_t{0});
  }
}

template <typename Ring>
void check_full_keeps_value() {
  Ring ring(4);
  for (int i = 0; i < 4; ++i) CHECK(ring.try_push(std::make_shared<int>(i)));
  auto extra = std::make_shared<int>(99);
  CHECK(!ring.try_push(std::move(extra)));
  CHECK(extra != nullptr && *extra == 99);
  std::shared_ptr<int> out;
  CHECK(ring.try_pop(out));
  CHECK_EQ(*out, 0);
  CHECK(ring.try_push(std::move(extra)));
  CHECK(extra == nullptr);
}

template <typename Ring>
void check_destructor_frees() {
  auto watched = std::make_shared<int>(1);
  {
    Ring ring(8);
    for (int i = 0; i < 5; ++i) CHECK(ring.try_push(std::shared_ptr<int>(watched)));
    std::shared_ptr<int> out;
    CHECK(ring.try_pop(out));
    out.reset();
    CHECK_EQ(watched.use_count(), 5L);  // a popped slot keeps no reference
  }
  CHECK_EQ(watched.use_count(), 1L);
}

}  // namespace

TEST(order_and_bounds) {
  check_order_and_bounds<SpscRing<int>>();
  check_order_and_bounds<MpscRing<int>>();
}

TEST(full_keeps_value) {
  check_full_keeps_value<SpscRing<std::shared_ptr<int>>>();
  check_full_keeps_value<MpscRing<std::shared_ptr<int>>>();
}

TEST(destructor_frees) {
  check_destructor_frees<SpscRing<std::shared_ptr<int>>>();
  check_destructor_frees<MpscRing<std::shared_ptr<int>>>();
}

TEST(capacity_is_checked) {
  CHECK_THROWS(SpscRing<int>(0));
  CHECK_THROWS(MpscRing<int>(0));
  CHECK_THROWS(SpscRing<int>(plait::kMaxRingCapacity + 1));
  CHECK_THROWS(MpscRing<int>(SIZE_MAX));
  CHECK_EQ(SpscRing<int>(1).capacity(), size_t{1});
  CHECK_EQ(MpscRing<int>(1).capacity(), size_t{2});
}

TEST(size_is_bounded_from_any_thread) {
  MpscRing<int> ring(8);
  SpscRing<int> other(8);
  std::thread worker([&] {
    int out;
    for (int i = 0; i < 100'000; ++i) {
      ring.try_push(int{i});
      other.try_push(int{i});
      if (i % 3 != 0) {
        ring.try_pop(out);
        other.try_pop(out);
      }
    }
  });
  size_t largest = 0;
  for (int i = 0; i < 100'000; ++i) largest = std::max({largest, ring.size(), other.size()});
  worker.join();
  CHECK(largest <= 8);
}

TEST_MAIN()
