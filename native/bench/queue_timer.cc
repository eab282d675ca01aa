#include "bench/queue_timer.h"

#include <chrono>
#include <string>

#include "base/error.h"
#include "bench/mutex_queue.h"
#include "sync/channel.h"
#include "sync/mpsc_ring.h"
#include "sync/spsc_ring.h"

namespace plait {

namespace {

constexpr int32_t kMaxProducers = 64;
constexpr int kSpinsBeforeYield = 256;

// Mixes all bits of a number: a torn or mixed-up message cannot look right.
uint64_t scrambled(uint64_t x) {
  x = (x ^ (x >> 31)) * 0x9E3779B97F4A7C15U;
  return x ^ (x >> 29);
}

template <size_t kWords>
struct Message {
  uint64_t words[kWords] = {};

  static Message of(uint64_t producer, uint64_t i) {
    Message message;
    message.words[0] = producer << 56 | i;
    for (size_t k = 1; k < kWords; ++k) message.words[k] = scrambled(i + k);
    return message;
  }
  uint64_t producer() const { return words[0] >> 56; }
  uint64_t index() const { return (words[0] << 8) >> 8; }
  bool is_whole() const {
    for (size_t k = 1; k < kWords; ++k) {
      if (words[k] != scrambled(index() + k)) return false;
    }
    return true;
  }
};

// Waits actively, and lets other threads run after a while.
class Patience {
 public:
  void wait() {
    if (++num_spins_ % kSpinsBeforeYield == 0) {
      std::this_thread::yield();
    } else {
      cpu_relax();
    }
  }

 private:
  int num_spins_ = 0;
};

// How each kind of queue is used: push(first, count) sends one producer's messages, pop hands them to `see`.
template <typename Queue>
struct Ends {
  explicit Ends(size_t capacity) : queue(capacity) {}
  using Value = typename Queue::Value;

  void push(Value&& value) {
    if constexpr (requires { queue.try_push(std::move(value)); } && !requires { queue.close(); }) {
      Patience patience;
      while (!queue.try_push(std::move(value))) patience.wait();
    } else if constexpr (requires { queue.close(); }) {
      queue.wait_push(std::move(value), -1);
    } else {
      queue.wait_push(std::move(value));
    }
  }
  void pop(Value& out) {
    if constexpr (requires { queue.try_pop(out); } && !requires { queue.close(); }) {
      Patience patience;
      while (!queue.try_pop(out)) patience.wait();
    } else if constexpr (requires { queue.close(); }) {
      queue.wait_pop(out, -1);
    } else {
      queue.wait_pop(out);
    }
  }
  void send(uint64_t producer, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) push(Value::of(producer, i));
  }
  template <typename See>
  void receive(uint64_t count, See&& see) {
    Value value;
    for (uint64_t i = 0; i < count; ++i) {
      pop(value);
      see(value);
    }
  }

  Queue queue;
};

template <typename T>
struct BatchEnds {
  explicit BatchEnds(size_t capacity) : queue(capacity) {}
  using Value = T;

  void send(uint64_t producer, uint64_t count) {
    T batch[kQueueBatch];
    for (uint64_t first = 0; first < count;) {
      const size_t num = std::min<uint64_t>(kQueueBatch, count - first);
      for (size_t k = 0; k < num; ++k) batch[k] = T::of(producer, first + k);
      Patience patience;
      for (size_t sent = 0; sent < num;) {
        const size_t now = queue.try_push_n(batch + sent, num - sent);
        if (now == 0) patience.wait();
        sent += now;
      }
      first += num;
    }
  }
  template <typename See>
  void receive(uint64_t count, See&& see) {
    T batch[kQueueBatch];
    Patience patience;
    for (uint64_t seen = 0; seen < count;) {
      const size_t num = queue.try_pop_n(batch, kQueueBatch);
      if (num == 0) patience.wait();
      for (size_t k = 0; k < num; ++k) see(batch[k]);
      seen += num;
    }
  }

  SpscRing<T> queue;
};

int32_t cpu_of(const std::vector<int32_t>& cpus, size_t thread_idx) {
  return cpus.empty() ? -1 : cpus[thread_idx % cpus.size()];
}

void pin(int32_t cpu) {
  if (cpu >= 0) pin_this_thread(cpu);
}

// One transfer of all messages; seconds from when every thread runs.
template <typename Queue, typename See>
double transfer(const QueueWork& work, See&& see) {
  Queue ends(static_cast<size_t>(work.capacity));
  const auto num_producers = static_cast<size_t>(work.num_producers);
  const uint64_t per_producer = static_cast<uint64_t>(work.num_messages) / num_producers;
  std::atomic<size_t> num_ready{0};
  std::atomic<bool> is_begun{false};
  std::vector<std::thread> producers;
  for (size_t p = 0; p < num_producers; ++p) {
    producers.emplace_back([&, p] {
      // The consumer has the first CPU to itself while there is another.
      const size_t num_others = work.cpus.size() > 1 ? work.cpus.size() - 1 : 1;
      pin(cpu_of(work.cpus, work.cpus.size() > 1 ? 1 + p % num_others : 0));
      num_ready.fetch_add(1, std::memory_order_release);
      while (!is_begun.load(std::memory_order_acquire)) std::this_thread::yield();
      ends.send(p, per_producer);
    });
  }
  while (num_ready.load(std::memory_order_acquire) != num_producers) std::this_thread::yield();
  const int64_t begin = monotonic_ns();
  is_begun.store(true, std::memory_order_release);
  ends.receive(per_producer * num_producers, see);
  const int64_t end = monotonic_ns();
  for (std::thread& producer : producers) producer.join();
  return static_cast<double>(end - begin) * 1e-9 / static_cast<double>(per_producer * num_producers);
}

template <typename Queue>
std::string check_transfer(const QueueWork& work) {
  std::vector<uint64_t> next(static_cast<size_t>(work.num_producers), 0);
  std::string difference;
  transfer<Queue>(work, [&](const auto& message) {
    if (!difference.empty()) return;
    const uint64_t producer = message.producer();
    if (producer >= next.size() || !message.is_whole()) {
      difference = "a message came torn";
    } else if (message.index() != next[producer]++) {
      difference = "message " + std::to_string(next[producer] - 1) + " of producer " +
                   std::to_string(producer) + " was due, " + std::to_string(message.index()) + " came";
    }
  });
  return difference;
}

template <typename Queue>
Timing time_transfers(const QueueWork& work, int32_t repeats) {
  Timing timing;
  timing.difference = check_transfer<Queue>(work);
  const auto num_producers = static_cast<uint64_t>(work.num_producers);
  const uint64_t per_producer = static_cast<uint64_t>(work.num_messages) / num_producers;
  for (int32_t run = 0; run < repeats && timing.difference.empty(); ++run) {
    uint64_t sum = 0;
    const double seconds = transfer<Queue>(work, [&](const auto& message) { sum += message.index(); });
    // Each producer sends 0 .. n - 1.
    if (sum != num_producers * (per_producer * (per_producer - 1) / 2)) {
      timing.difference = "messages of a timed run do not add up";
      timing.seconds.clear();
    } else {
      timing.seconds.push_back(seconds);
    }
  }
  return timing;
}

template <typename T>
Timing time_kind(const QueueWork& work, int32_t repeats) {
  switch (work.kind) {
    case QueueKind::kSpsc:
      return time_transfers<Ends<SpscRing<T>>>(work, repeats);
    case QueueKind::kSpscBatch:
      return time_transfers<BatchEnds<T>>(work, repeats);
    case QueueKind::kMpsc:
      return time_transfers<Ends<MpscRing<T>>>(work, repeats);
    case QueueKind::kChannel:
      return work.num_producers == 1 ? time_transfers<Ends<Channel<SpscRing<T>>>>(work, repeats)
                                     : time_transfers<Ends<Channel<MpscRing<T>>>>(work, repeats);
    case QueueKind::kMutex:
      return time_transfers<Ends<MutexQueue<T>>>(work, repeats);
  }
  throw Error(ErrorCode::kInternal, "a queue of no kind");
}

template <typename Queue>
Timing time_trips(int64_t num_rounds, const std::vector<int32_t>& cpus) {
  constexpr size_t kCapacity = 8;
  Queue there(kCapacity);
  Queue back(kCapacity);
  std::thread other([&] {
    pin(cpu_of(cpus, 1));
    Message<1> message;
    for (int64_t i = 0; i < num_rounds; ++i) {
      there.pop(message);
      message.words[0] += 1;
      back.push(std::move(message));
    }
  });
  Timing timing;
  timing.seconds.reserve(static_cast<size_t>(num_rounds));
  for (int64_t i = 0; i < num_rounds; ++i) {
    const int64_t begin = monotonic_ns();
    auto message = Message<1>{{scrambled(static_cast<uint64_t>(i))}};
    there.push(std::move(message));
    back.pop(message);
    timing.seconds.push_back(static_cast<double>(monotonic_ns() - begin) * 1e-9);
    if (message.words[0] != scrambled(static_cast<uint64_t>(i)) + 1)
      timing.difference = "a wrong answer came";
  }
  other.join();
  if (!timing.difference.empty()) timing.seconds.clear();
  return timing;
}

void check_counts(int64_t count, int32_t repeats) {
  if (count < 1 || repeats < 1) throw Error(ErrorCode::kInvalidArgument, "there is nothing to time");
}

}  // namespace

QueueKind queue_kind(std::string_view name) {
  if (name == "spsc") return QueueKind::kSpsc;
  if (name == "spsc-batch") return QueueKind::kSpscBatch;
  if (name == "mpsc") return QueueKind::kMpsc;
  if (name == "channel") return QueueKind::kChannel;
  if (name == "mutex") return QueueKind::kMutex;
  throw Error(ErrorCode::kInvalidArgument, "unknown kind of queue " + std::string(name));
}

Timing time_messages(const QueueWork& work, int32_t repeats) {
  check_counts(work.num_messages, repeats);
  const bool is_single = work.kind == QueueKind::kSpsc || work.kind == QueueKind::kSpscBatch;
  if (work.num_producers < 1 || work.num_producers > (is_single ? 1 : kMaxProducers) ||
      work.num_messages < work.num_producers || work.num_messages >= int64_t{1} << 48) {
    throw Error(ErrorCode::kInvalidArgument, "this queue does not take " + std::to_string(work.num_messages) +
                                                 " messages of " + std::to_string(work.num_producers) +
                                                 " producers");
  }
  if (work.capacity < 1) throw Error(ErrorCode::kInvalidArgument, "a queue has a slot at least");
  const PinnedHere pinned(cpu_of(work.cpus, 0));
  if (work.message_bytes == 8) return time_kind<Message<1>>(work, repeats);
  if (work.message_bytes == 64) return time_kind<Message<8>>(work, repeats);
  throw Error(ErrorCode::kInvalidArgument, "messages have 8 or 64 bytes");
}

Timing time_round_trips(QueueKind kind, int64_t num_rounds, const std::vector<int32_t>& cpus) {
  check_counts(num_rounds, 1);
  const PinnedHere pinned(cpu_of(cpus, 0));
  switch (kind) {
    case QueueKind::kSpsc:
    case QueueKind::kSpscBatch:  // a batch of one
      return time_trips<Ends<SpscRing<Message<1>>>>(num_rounds, cpus);
    case QueueKind::kMpsc:
      return time_trips<Ends<MpscRing<Message<1>>>>(num_rounds, cpus);
    case QueueKind::kChannel:
      return time_trips<Ends<Channel<SpscRing<Message<1>>>>>(num_rounds, cpus);
    case QueueKind::kMutex:
      return time_trips<Ends<MutexQueue<Message<1>>>>(num_rounds, cpus);
  }
  throw Error(ErrorCode::kInternal, "a queue of no kind");
}

std::vector<double> time_line_transfers(int64_t num_rounds, int32_t repeats,
                                        const std::vector<int32_t>& cpus) {
  check_counts(num_rounds, repeats);
  const PinnedHere pinned(cpu_of(cpus, 0));
  std::vector<double> runs;
  for (int32_t run = 0; run < repeats; ++run) {
    alignas(64) std::atomic<int64_t> ball{-1};
    const auto play = [&](int64_t parity) {
      Patience patience;
      for (int64_t turn = parity; turn < 2 * num_rounds; turn += 2) {
        while (ball.load(std::memory_order_acquire) != turn) patience.wait();
        ball.store(turn + 1, std::memory_order_release);
      }
    };
    std::atomic<bool> is_ready{false};
    std::thread other([&] {
      pin(cpu_of(cpus, 1));
      is_ready.store(true, std::memory_order_release);
      play(1);
    });
    while (!is_ready.load(std::memory_order_acquire)) std::this_thread::yield();
    const int64_t begin = monotonic_ns();
    ball.store(0, std::memory_order_release);
    play(0);
    other.join();
    runs.push_back(static_cast<double>(monotonic_ns() - begin) * 1e-9 / static_cast<double>(2 * num_rounds));
  }
  return runs;
}

Metronome::Metronome(std::shared_ptr<Doorbell> bell, int64_t period_ns)
    : bell_(std::move(bell)), period_ns_(period_ns) {
  if (!bell_ || period_ns < 1000) throw Error(ErrorCode::kInvalidArgument, "a bell and a period are needed");
  thread_ = std::thread([this] { loop(); });
}

Metronome::~Metronome() { stop(); }

void Metronome::stop() {
  is_stopping_.store(true, std::memory_order_relaxed);
  if (thread_.joinable()) thread_.join();
}

void Metronome::loop() {
  while (!is_stopping_.load(std::memory_order_relaxed)) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(period_ns_));
    rung_at_ns_.store(monotonic_ns(), std::memory_order_relaxed);
    bell_->ring();
  }
}

}  // namespace plait
