// Ten million operations on each structure of this folder, with content and order checked. Also run under the
// sanitizers, where a missing barrier shows as a race. PLAIT_STRESS=1 runs ten times as many.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "base/test.h"
#include "sync/channel.h"
#include "sync/doorbell.h"
#include "sync/mpsc_ring.h"
#include "sync/spsc_ring.h"

using plait::Channel;
using plait::Doorbell;
using plait::MpscRing;
using plait::SpscRing;

namespace {

constexpr int64_t kLostNs = 20'000'000'000;  // a wait this long means a lost wake-up

uint64_t num_messages() {
  const char* stress = std::getenv("PLAIT_STRESS");
  return stress != nullptr && std::strcmp(stress, "1") == 0 ? 100'000'000 : 10'000'000;
}

// Mixes all bits of a number, so that a torn or mixed-up message cannot look right.
uint64_t scrambled(uint64_t x) {
  x = (x ^ (x >> 31)) * 0x9E3779B97F4A7C15U;
  return x ^ (x >> 29);
}

struct Small {
  uint64_t word = 0;
  static Small of(uint64_t producer, uint64_t i) { return {producer << 56 | (scrambled(i) >> 8)}; }
  uint64_t producer() const { return word >> 56; }
  bool is(uint64_t i) const { return (word << 8) >> 8 == scrambled(i) >> 8; }
};

struct Line {  // as long as a cache line
  uint64_t words[8] = {};
  static Line of(uint64_t producer, uint64_t i) {
    Line line;
    line.words[0] = producer;
    for (uint64_t k = 1; k < 8; ++k) line.words[k] = scrambled(i + k);
    return line;
  }
  uint64_t producer() const { return words[0]; }
  bool is(uint64_t i) const {
    for (uint64_t k = 1; k < 8; ++k) {
      if (words[k] != scrambled(i + k)) return false;
    }
    return true;
  }
};

// What one consumer sees of several producers: each one's messages whole, once and in order.
class Checker {
 public:
  explicit Checker(size_t num_producers) : next_(num_producers, 0) {}
  template <typename Message>
  void see(const Message& message) {
    const uint64_t producer = message.producer();
    if (producer >= next_.size() || !message.is(next_[producer]++)) ++num_wrong_;
  }
  uint64_t num_wrong() const { return num_wrong_; }

 private:
  std::vector<uint64_t> next_;
  uint64_t num_wrong_ = 0;
};

// A ring alone: both sides only try, and let others run when they cannot.
template <typename Ring>
void stress_ring(uint64_t num_producers, size_t capacity, uint64_t total) {
  using Message = typename Ring::Value;
  Ring ring(capacity);
  const uint64_t per_producer = total / num_producers;
  std::vector<std::thread> producers;
  for (uint64_t p = 0; p < num_producers; ++p) {
    producers.emplace_back([&ring, p, per_producer] {
      for (uint64_t i = 0; i < per_producer; ++i) {
        while (!ring.try_push(Message::of(p, i))) std::this_thread::yield();
      }
    });
  }
  Checker checker(num_producers);
  Message message;
  for (uint64_t i = 0; i < per_producer * num_producers; ++i) {
    while (!ring.try_pop(message)) std::this_thread::yield();
    checker.see(message);
  }
  for (std::thread& producer : producers) producer.join();
  CHECK_EQ(checker.num_wrong(), uint64_t{0});
  CHECK_EQ(ring.size(), size_t{0});
}

// Batches of changing sizes on both sides.
template <typename Message>
void stress_batches(size_t capacity, uint64_t total) {
  SpscRing<Message> ring(capacity);
  constexpr size_t kMost = 37;
  std::thread producer([&ring, total] {
    Message batch[kMost];
    for (uint64_t first = 0; first < total;) {
      const size_t count = std::min<uint64_t>(first % kMost + 1, total - first);
      for (size_t k = 0; k < count; ++k) batch[k] = Message::of(0, first + k);
      for (size_t sent = 0; sent < count;) {
        const size_t num = ring.try_push_n(batch + sent, count - sent);
        if (num == 0) std::this_thread::yield();
        sent += num;
      }
      first += count;
    }
  });
  Checker checker(1);
  Message batch[kMost];
  for (uint64_t seen = 0; seen < total;) {
    const size_t num = ring.try_pop_n(batch, seen % kMost + 1);
    if (num == 0) std::this_thread::yield();
    for (size_t k = 0; k < num; ++k) checker.see(batch[k]);
    seen += num;
  }
  producer.join();
  CHECK_EQ(checker.num_wrong(), uint64_t{0});
  CHECK_EQ(ring.size(), size_t{0});
}

struct ChannelUse {
  uint64_t num_producers;
  size_t capacity;
  size_t batch;  // messages that the consumer takes at once
  int64_t spin_ns = 20'000;
};

// Both sides sleep when they cannot go on: a lost wake-up ends the test by the timeout.
template <typename Ring>
void stress_channel(const ChannelUse& use, uint64_t total) {
  using Message = typename Ring::Value;
  const uint64_t num_producers = use.num_producers;
  Channel<Ring> channel(use.capacity, use.spin_ns);
  const uint64_t per_producer = total / num_producers;
  std::atomic<int> num_lost{0};
  std::vector<std::thread> producers;
  for (uint64_t p = 0; p < num_producers; ++p) {
    producers.emplace_back([&, p] {
      for (uint64_t i = 0; i < per_producer; ++i) {
        if (channel.wait_push(Message::of(p, i), kLostNs)) continue;
        ++num_lost;
        return;
      }
    });
  }
  Checker checker(num_producers);
  std::vector<Message> batch(use.batch);
  uint64_t num_seen = 0;
  while (num_seen < per_producer * num_producers) {
    const size_t num = use.batch == 1 ? (channel.wait_pop(batch[0], kLostNs) ? 1 : 0)
                                      : channel.wait_pop_n(batch.data(), use.batch, kLostNs);
    if (num == 0) break;
    for (size_t k = 0; k < num; ++k) checker.see(batch[k]);
    num_seen += num;
  }
  for (std::thread& producer : producers) producer.join();
  CHECK_EQ(num_lost.load(), 0);
  CHECK_EQ(num_seen, per_producer * num_producers);
  CHECK_EQ(checker.num_wrong(), uint64_t{0});
  CHECK_EQ(channel.size(), size_t{0});
}

}  // namespace

TEST(stress_spsc_ring) { stress_ring<SpscRing<Small>>(1, 1024, num_messages()); }
TEST(stress_spsc_ring_of_lines) { stress_ring<SpscRing<Line>>(1, 64, num_messages() / 4); }
TEST(stress_spsc_ring_of_one) { stress_ring<SpscRing<Small>>(1, 1, num_messages() / 100); }
TEST(stress_spsc_batches) {
  stress_batches<Small>(1024, num_messages());
  stress_batches<Line>(16, num_messages() / 4);
}
TEST(stress_mpsc_ring) { stress_ring<MpscRing<Small>>(3, 1024, num_messages()); }
TEST(stress_mpsc_ring_of_lines) { stress_ring<MpscRing<Line>>(3, 64, num_messages() / 4); }
TEST(stress_mpsc_ring_of_two) { stress_ring<MpscRing<Small>>(3, 2, num_messages() / 100); }
TEST(stress_spsc_channel) { stress_channel<SpscRing<Small>>({1, 1024, 1}, num_messages()); }
TEST(stress_mpsc_channel) {
  stress_channel<MpscRing<Small>>({3, 1024, 64}, num_messages());
  stress_channel<MpscRing<Line>>({3, 1024, 1}, num_messages() / 20);
}
TEST(stress_channels_that_sleep_at_once) {
  stress_channel<SpscRing<Line>>({1, 1024, 1, 0}, num_messages() / 20);
  stress_channel<SpscRing<Small>>({1, 1, 1, 0}, num_messages() / 200);
  stress_channel<MpscRing<Small>>({3, 2, 1, 0}, num_messages() / 200);
}

// Ringers count up and ring; the waiter sleeps whenever it has seen every count so far.
TEST(stress_doorbell) {
  constexpr int kNumRingers = 2;
  for (const int64_t spin_ns : {int64_t{20'000}, int64_t{0}}) {
    const uint64_t per_ringer = num_messages() / kNumRingers / (spin_ns == 0 ? 20 : 1);
    Doorbell bell;
    std::atomic<uint64_t> count{0};
    std::vector<std::thread> ringers;
    for (int r = 0; r < kNumRingers; ++r) {
      ringers.emplace_back([&] {
        for (uint64_t i = 0; i < per_ringer; ++i) {
          count.fetch_add(1, std::memory_order_relaxed);  // the bell alone makes it visible
          bell.ring();
        }
      });
    }
    uint64_t last = 0;
    bool is_lost = false;
    while (last != per_ringer * kNumRingers && !is_lost) {
      const uint32_t seen = bell.epoch();
      const uint64_t now = count.load(std::memory_order_relaxed);
      if (now == last) {
        is_lost = !bell.wait(seen, kLostNs, spin_ns);
      } else {
        CHECK(now > last);
        last = now;
      }
    }
    for (std::thread& ringer : ringers) ringer.join();
    CHECK(!is_lost);
    CHECK_EQ(bell.epoch(), static_cast<uint32_t>(per_ringer * kNumRingers));
  }
}

TEST_MAIN()
