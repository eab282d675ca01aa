// Times queues between threads. Knows: the rings, the channel, a queue with a mutex to compare with. Must not
// know: what an engine sends.
//
// Every function blocks while it measures, on the calling thread and threads of its own: the caller consumes.
// Threads are pinned to `cpus` in turn, the consumer to the first; empty: not pinned. With fewer CPUs than
// threads, those that cannot go on let others run, so that the figures still mean something.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "bench/rig.h"
#include "sync/doorbell.h"

namespace plait {

enum class QueueKind {
  kSpsc,       // SpscRing, both sides try
  kSpscBatch,  // the same, kQueueBatch messages at a time
  kMpsc,       // MpscRing, all sides try
  kChannel,    // Channel<SpscRing>, or of an MpscRing when there are several producers; both sides wait
  kMutex,      // MutexQueue, both sides wait
};

inline constexpr int32_t kQueueBatch = 32;

// "spsc", "spsc-batch", "mpsc", "channel" or "mutex"; throws Error(kInvalidArgument) for others.
QueueKind queue_kind(std::string_view name);

struct QueueWork {
  QueueKind kind = QueueKind::kSpsc;
  int32_t num_producers = 1;
  int32_t message_bytes = 8;  // 8 or 64
  int64_t num_messages = 1;   // of all producers; rounded down to a multiple of their number
  int32_t capacity = 4096;
  std::vector<int32_t> cpus;
};

// First sends all messages and checks each one's content and each producer's order; only a queue that keeps
// them is timed. Seconds of one message, by run, from the moment when all threads run until the last message
// is there. Throws Error(kInvalidArgument) for work that cannot be.
Timing time_messages(const QueueWork& work, int32_t repeats);

// Seconds of each round trip of a message of 8 bytes: there through one queue, back through another. A wrong
// answer stands in `difference`, and there are no times then.
Timing time_round_trips(QueueKind kind, int64_t num_rounds, const std::vector<int32_t>& cpus);

// Seconds that a changed cache line takes from one CPU to the other, by run: half a round trip of a number
// that two spinning threads raise in turn. No queue can answer faster. With one CPU it says little.
std::vector<double> time_line_transfers(int64_t num_rounds, int32_t repeats,
                                        const std::vector<int32_t>& cpus);

// Rings a bell now and then from a thread of its own, as a compute thread does that has a result.
class Metronome {
 public:
  // Rings every `period_ns` until stop. Throws Error(kInvalidArgument) for a period below a microsecond.
  Metronome(std::shared_ptr<Doorbell> bell, int64_t period_ns);
  ~Metronome();
  Metronome(const Metronome&) = delete;
  Metronome& operator=(const Metronome&) = delete;

  // Any thread: CLOCK_MONOTONIC just before the last ring.
  int64_t rung_at_ns() const { return rung_at_ns_.load(std::memory_order_relaxed); }
  // Waits for the thread, for a period at most. Idempotent.
  void stop();

 private:
  void loop();

  std::shared_ptr<Doorbell> bell_;
  const int64_t period_ns_;
  std::atomic<int64_t> rung_at_ns_{0};  // written by the thread before it rings
  std::atomic<bool> is_stopping_{false};
  std::thread thread_;
};

}  // namespace plait
