#include "sync/channel.h"

#include <atomic>
#include <ctime>
#include <memory>
#include <thread>
#include <vector>

#include "base/test.h"
#include "sync/mpsc_ring.h"
#include "sync/spsc_ring.h"

using plait::Channel;
using plait::monotonic_ns;
using plait::MpscRing;
using plait::SpscRing;

namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kLost = 20'000 * kMs;  // a wait this long means a lost wake-up

using IntChannel = Channel<SpscRing<int>>;
using PointerChannel = Channel<SpscRing<std::unique_ptr<int>>>;

int64_t thread_cpu_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void pause_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

}  // namespace

TEST(what_is_there_is_taken_without_waiting) {
  IntChannel channel(4);
  CHECK(channel.wait_push(7, 0));
  CHECK(channel.wait_push(8, -1));
  CHECK_EQ(channel.size(), size_t{2});
  int out = 0;
  CHECK(channel.wait_pop(out, 0));
  CHECK_EQ(out, 7);
  CHECK(channel.wait_pop(out, -1));
  CHECK_EQ(out, 8);
  CHECK_EQ(channel.capacity(), size_t{4});
}

TEST(waits_time_out_not_early_and_change_nothing) {
  for (const int64_t spin_ns : {int64_t{0}, 5 * kMs, 100 * kMs}) {
    PointerChannel channel(1, spin_ns);
    auto out = std::make_unique<int>(-7);
    int64_t begin = monotonic_ns();
    CHECK(!channel.wait_pop(out, 20 * kMs));
    CHECK(monotonic_ns() - begin >= 20 * kMs);
    CHECK(out != nullptr && *out == -7);

    CHECK(channel.try_push(std::make_unique<int>(1)));
    auto extra = std::make_unique<int>(2);
    begin = monotonic_ns();
    CHECK(!channel.wait_push(std::move(extra), 20 * kMs));
    CHECK(monotonic_ns() - begin >= 20 * kMs);
    CHECK(extra != nullptr && *extra == 2);
    CHECK(!channel.wait_push(std::move(extra), 0));
    CHECK(extra != nullptr);
  }
}

TEST(a_waiting_consumer_uses_no_cpu) {
  IntChannel channel(4);
  int out = 0;
  const int64_t begin = thread_cpu_ns();
  CHECK(!channel.wait_pop(out, 300 * kMs));
  CHECK(thread_cpu_ns() - begin < 20 * kMs);
}

TEST(a_push_wakes_the_consumer) {
  for (const int64_t spin_ns : {int64_t{0}, kLost}) {
    IntChannel channel(4, spin_ns);
    std::thread producer([&] {
      pause_ms(20);
      CHECK(channel.try_push(5));
    });
    int out = 0;
    CHECK(channel.wait_pop(out, kLost));
    CHECK_EQ(out, 5);
    producer.join();
  }
}

TEST(a_pop_wakes_every_producer) {
  Channel<MpscRing<int>> channel(2, 0);
  CHECK(channel.try_push(0) && channel.try_push(0));
  std::atomic<int> num_pushed{0};
  std::vector<std::thread> producers;
  for (int i = 0; i < 3; ++i) {
    producers.emplace_back([&] { num_pushed += channel.wait_push(1, kLost) ? 1 : 0; });
  }
  pause_ms(20);
  CHECK_EQ(num_pushed.load(), 0);
  int sum = 0;
  for (int i = 0; i < 5; ++i) {
    int out = 0;
    CHECK(channel.wait_pop(out, kLost));
    sum += out;
  }
  for (std::thread& producer : producers) producer.join();
  CHECK_EQ(num_pushed.load(), 3);
  CHECK_EQ(sum, 3);
}

TEST(close_ends_waits_and_keeps_what_was_pushed) {
  IntChannel channel(4, 0);
  std::thread closer([&] {
    pause_ms(20);
    CHECK(channel.try_push(1));
    CHECK(channel.try_push(2));
    channel.close();
    channel.close();
    CHECK(!channel.try_push(3));
    CHECK(!channel.wait_push(3, -1));
  });
  int out = 0;
  for (int i = 1; i <= 2; ++i) {
    CHECK(channel.wait_pop(out, kLost));
    CHECK_EQ(out, i);
  }
  CHECK(!channel.wait_pop(out, -1));
  CHECK_EQ(out, 2);
  CHECK(channel.is_closed());
  closer.join();

  IntChannel full(1, 0);
  CHECK(full.try_push(1));
  std::thread producer([&] { CHECK(!full.wait_push(2, -1)); });
  pause_ms(20);
  full.close();
  producer.join();
  CHECK(full.try_pop(out));
  CHECK_EQ(out, 1);
}

TEST(batches_take_what_fits_and_what_is_there) {
  IntChannel channel(4);
  int in[] = {1, 2, 3, 4, 5, 6};
  CHECK_EQ(channel.try_push_n(in, 3), size_t{3});
  CHECK_EQ(channel.try_push_n(in + 3, 3), size_t{1});
  CHECK_EQ(channel.try_push_n(in + 4, 2), size_t{0});
  int out[8] = {};
  CHECK_EQ(channel.try_pop_n(out, 2), size_t{2});
  CHECK_EQ(channel.try_push_n(in + 4, 2), size_t{2});
  CHECK_EQ(channel.wait_pop_n(out + 2, SIZE_MAX, -1), size_t{4});
  for (int i = 0; i < 6; ++i) CHECK_EQ(out[i], i + 1);
  CHECK_EQ(channel.try_pop_n(out, 8), size_t{0});
  CHECK_EQ(channel.wait_pop_n(out, 8, kMs), size_t{0});

  Channel<MpscRing<int>> many(4);
  for (int i = 1; i <= 4; ++i) CHECK(many.try_push(int{i}));
  CHECK_EQ(many.try_pop_n(out, 3), size_t{3});
  CHECK_EQ(out[2], 3);
  CHECK(many.try_push(5));
  CHECK_EQ(many.wait_pop_n(out, 8, -1), size_t{2});
  CHECK_EQ(out[1], 5);
  CHECK_EQ(many.size(), size_t{0});
}

TEST_MAIN()
