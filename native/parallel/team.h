// The compute team: a fixed set of threads that run the chunks of one job after another.
// Knows: chunks. Must not know: what a chunk does.
//
// Owner: the thread that calls run() (the compute thread); it works as member 0. Each member has a share of
// consecutive chunks and claims them one by one, then those that are left of the others' shares: neighbouring
// chunks stay with one member, whose reads of memory then run on, and a member that the kernel takes off the
// CPU delays one chunk, not the job. Members spin for some microseconds between jobs, then sleep on a futex:
// an idle team uses no CPU.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace plait {

class Team {
 public:
  using ChunkFn = void (*)(void* context, int32_t chunk, int32_t member);

  // `num_threads` >= 1 counts the caller. `cpus`: the CPU each member is pinned to (member 0 is pinned by its
  // owner); empty: not pinned.
  Team(int32_t num_threads, const std::vector<int32_t>& cpus);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int32_t num_threads() const { return static_cast<int32_t>(threads_.size()) + 1; }

  // Runs fn(chunk, member) for every chunk in [0, num_chunks) and returns when all have ended. What the
  // chunks wrote is visible afterwards. Chunks must not throw. Only the owner calls it; not reentrant.
  template <typename Fn>
  void run(int32_t num_chunks, Fn&& fn) {
    using Plain = std::remove_reference_t<Fn>;
    run_job(
        num_chunks,
        [](void* context, int32_t chunk, int32_t member) { (*static_cast<Plain*>(context))(chunk, member); },
        const_cast<void*>(static_cast<const void*>(&fn)));
  }

 private:
  // By member. ticket: end of the share in the high half, its next chunk in the low half. The owner's release
  // store publishes a share; a member's acquire fetch_add claims a chunk of whatever job stands, and that job
  // stays until the claimed chunk has ended, since remaining_ counts it.
  struct alignas(64) Share {
    std::atomic<uint64_t> ticket{0};
  };

  void run_job(int32_t num_chunks, ChunkFn fn, void* context);
  void work(int32_t member);
  void work_on(Share& share, int32_t member);
  void member_loop(int32_t member, int32_t cpu);

  // The job. Written by the owner while remaining_ == 0, read by a member after it claimed one of its chunks.
  ChunkFn fn_ = nullptr;
  void* context_ = nullptr;

  std::unique_ptr<Share[]> shares_;
  // remaining_: chunks not ended. Members' release decrements pair with the owner's acquire load.
  alignas(64) std::atomic<int32_t> remaining_{0};
  // epoch_: raised for each job and at the end; members sleep on it.
  alignas(64) std::atomic<uint32_t> epoch_{0};
  std::atomic<bool> is_stopping_{false};
  std::vector<std::thread> threads_;
};

// Pins the calling thread to one CPU; false when the system refuses.
bool pin_this_thread(int32_t cpu);
// Names the calling thread (at most 15 bytes are kept).
void name_this_thread(const char* name);

}  // namespace plait
