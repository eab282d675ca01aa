// Chunks of one job after another, claimed by whoever works for a crew. Knows: chunks, sleeping. Must not
// know: what a chunk does, whose threads work.
//
// Owner: one thread at a time calls run(); it works along. Each member has a share of consecutive chunks and
// claims them one by one, then those that are left of the others' shares: neighbouring chunks stay with one
// member, whose reads of memory then run on, and a member that the kernel takes off the CPU delays one chunk,
// not the job. Helpers are threads without a share, who take what is left.
//
// Who waits for others, or for the next job, fetches what it will read soon into its caches: memory idles
// then, too.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "sync/cpu_relax.h"
#include "trace/trace.h"

namespace plait {

// Tells threads that there may be something to do. They spin for some microseconds, then sleep on a futex.
// Whoever changes something that a waiter looks at changes it first and rings second; a waiter reads epoch()
// first, looks second and waits third. ring's release pairs with the acquire of epoch and wait.
class JobBell {
 public:
  void ring() {
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
  }
  uint32_t epoch() const { return epoch_.load(std::memory_order_acquire); }
  // Blocks until the epoch is not `seen`. While it spins it calls idle(), which does a little of something
  // useful, or says by false that there is nothing.
  template <typename Idle>
  void wait(uint32_t seen, Idle&& idle) const {
    for (int32_t spin = 0; epoch_.load(std::memory_order_acquire) == seen; ++spin) {
      if (spin >= kSpins) {
        epoch_.wait(seen, std::memory_order_acquire);
      } else if (!idle()) {
        cpu_relax();
      }
    }
  }

  // About 20 us on current cores: ops of a step follow each other within this; a longer gap means idle.
  static constexpr int32_t kSpins = 2000;

 private:
  alignas(64) std::atomic<uint32_t> epoch_{0};
};

// Calls work() whenever `bell` has been rung, until is_done() holds, and idle() in between (JobBell::wait).
// What makes is_done() hold rings the bell.
template <typename Done, typename Work, typename Idle>
void work_until(const JobBell& bell, Done&& is_done, Work&& work, Idle&& idle) {
  for (;;) {
    const uint32_t seen = bell.epoch();
    if (is_done()) return;
    work();
    bell.wait(seen, idle);
  }
}

class WorkTrace;

class Crew {
 public:
  using ChunkFn = void (*)(void* context, int32_t chunk, int32_t member);

  // Has `max_members` members. `bell` is rung for each job; crews that help each other share one.
  Crew(int32_t max_members, JobBell& bell);
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  // From now on: members [first, first + num), and `num_helpers` threads besides. Only while nobody works.
  void assign(int32_t first_member, int32_t num_members, int32_t num_helpers);

  // Threads that may work on a job, for how finely it is cut.
  int32_t num_workers() const { return num_members_ + num_helpers_; }

  // Owner, which works as the first member: runs fn(chunk, member) for every chunk in [0, num_chunks) and
  // returns when all have ended. What the chunks wrote is visible afterwards. `member` is what the thread
  // that runs the chunk gave to work(). Chunks must not throw. Never allocates.
  template <typename Fn>
  void run(int32_t num_chunks, Fn&& fn) {
    using Plain = std::remove_reference_t<Fn>;
    run_job(
        num_chunks,
        [](void* context, int32_t chunk, int32_t member) { (*static_cast<Plain*>(context))(chunk, member); },
        const_cast<void*>(static_cast<const void*>(&fn)));
  }

  // Any thread but the owner: runs chunks of the job that stands, if one does, until none is left to claim.
  // Never waits. `member` is the caller's own number, also when it is a helper.
  void work(int32_t member);

  // Owner: from now on `member` may fetch `num_bytes` at `begin` while it waits. They are only ever fetched,
  // never read.
  void set_ahead(int32_t member, const std::byte* begin, size_t num_bytes) {
    Ahead& ahead = ahead_[static_cast<size_t>(member - first_member_)];
    ahead.begin.store(begin, std::memory_order_relaxed);
    ahead.num_bytes.store(num_bytes, std::memory_order_relaxed);
  }
  // The thread of `member`, helper or not: fetches some of that; false when nothing is left of it.
  bool fetch_ahead(int32_t member);

 private:
  // By member. ticket: end of the share in the high half, its next chunk in the low half. The owner's release
  // store publishes a share; a worker's acquire fetch_add claims a chunk of whatever job stands, and that job
  // stays until the claimed chunk has ended, since remaining_ counts it.
  struct alignas(64) Share {
    std::atomic<uint64_t> ticket{0};
  };

  // By member. begin and num_bytes: written by the owner; values that do not belong together fetch bytes that
  // nobody needs, no more. of and num_fetched: the member's own, how far it has got.
  struct alignas(64) Ahead {
    std::atomic<const std::byte*> begin{nullptr};
    std::atomic<size_t> num_bytes{0};
    const std::byte* of = nullptr;
    size_t num_fetched = 0;
  };

  void run_job(int32_t num_chunks, ChunkFn fn, void* context);
  void work_on_shares(int32_t member, WorkTrace* trace);
  void work_on(Share& share, int32_t member, WorkTrace* trace);

  JobBell& bell_;
  int32_t first_member_ = 0;
  int32_t num_members_;
  int32_t num_helpers_ = 0;

  // The job. Written by the owner while remaining_ == 0, read by a worker after it claimed one of its chunks.
  ChunkFn fn_ = nullptr;
  void* context_ = nullptr;
  const TraceName* trace_name_ = nullptr;  // what the owner does; null: no trace runs

  std::unique_ptr<Share[]> shares_;
  std::unique_ptr<Ahead[]> ahead_;
  // remaining_: chunks not ended. Workers' release decrements pair with the owner's acquire load.
  alignas(64) std::atomic<int32_t> remaining_{0};
};

}  // namespace plait
