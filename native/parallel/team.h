// The compute team: a fixed set of threads that run the chunks of one job after another (crew.h).
// Knows: threads. Must not know: what a chunk does.
//
// Owner: the thread that calls run() (the compute thread); it works as member 0. Members spin for some
// microseconds between jobs, then sleep on a futex: an idle team uses no CPU.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "parallel/crew.h"

namespace plait {

class Team {
 public:
  // `num_threads` >= 1 counts the caller. `cpus`: the CPU each member is pinned to (member 0 is pinned by its
  // owner); empty: not pinned.
  Team(int32_t num_threads, const std::vector<int32_t>& cpus);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int32_t num_threads() const { return static_cast<int32_t>(threads_.size()) + 1; }

  // Runs fn(chunk, member) for every chunk in [0, num_chunks) and returns when all have ended, see Crew::run.
  // Only the owner calls it; not reentrant.
  template <typename Fn>
  void run(int32_t num_chunks, Fn&& fn) {
    crew_.run(num_chunks, std::forward<Fn>(fn));
  }

  // Runs fn(member) once for every member and returns when all calls have ended. Calls may wait for each
  // other: no thread takes a second one before its first has ended. Only the owner calls it; not reentrant.
  template <typename Fn>
  void run_each(Fn&& fn) {
    crew_.run(num_threads(), [&fn](int32_t member, int32_t) { fn(member); });
  }

  // All members, as whoever runs one job at a time sees them.
  Crew& crew() { return crew_; }

 private:
  JobBell bell_;
  Crew crew_;
  std::atomic<bool> is_stopping_{false};
  std::vector<std::thread> threads_;
};

// Pins the calling thread to one CPU; false when the system refuses.
bool pin_this_thread(int32_t cpu);
// Names the calling thread (at most 15 bytes are kept).
void name_this_thread(const char* name);

}  // namespace plait
