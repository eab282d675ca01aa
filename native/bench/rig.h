// What the measurements of kernels share: the team, the kernels and the way time is taken; and the ceilings
// of the machine. Knows: threads and clocks. Must not know: files, models, Python.
//
// Owner: one thread at a time; it works as member 0 of the team and is pinned while it measures.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "bench/mac_loops.h"
#include "kernels/kernel_table.h"
#include "parallel/team.h"

namespace plait {

// Moves the calling thread to one CPU until it ends; -1: leaves it where it is.
class PinnedHere {
 public:
  explicit PinnedHere(int32_t cpu);
  ~PinnedHere();
  PinnedHere(const PinnedHere&) = delete;
  PinnedHere& operator=(const PinnedHere&) = delete;

 private:
  std::vector<std::byte> before_;  // a cpu_set_t; empty: nothing to restore
};

struct Timing {
  std::string difference;       // how the kernel differs from the scalar one; then nothing was timed
  std::vector<double> seconds;  // of one unit, by run
};

class Rig {
 public:
  // `kernels` and `cpus` as for a runner and its team; both must outlive the rig or be copied by it.
  Rig(const KernelTable& kernels, int32_t num_threads, std::vector<int32_t> cpus);

  const KernelTable& kernels() const { return kernels_; }
  Team& team() { return team_; }
  int32_t num_threads() const { return team_.num_threads(); }
  int32_t first_cpu() const { return cpus_.empty() ? -1 : cpus_.front(); }

  // Bytes per second that 1 or all threads read from `num_bytes` of memory; each repeat is five runs, of
  // five ways to read. Throws Error(kOutOfMemory), or Error(kInternal) when not all of it was read.
  std::vector<double> read_rates(size_t num_bytes, bool is_alone, int32_t repeats);

  // Multiply-adds per second of 1 or all threads, by run.
  std::vector<double> mac_rates(MacUnit unit, bool is_alone, int32_t repeats);

  // Times units of equal work that are walked round and round, so that a unit is cold again when its turn
  // comes. run(first, count) does units first .. first + count - 1, count <= num_units, first < num_units,
  // which wrap around. A run lasts kMinRunSeconds or longer; one that does not count comes before.
  template <typename Run>
  std::vector<double> time_units(int64_t num_units, int32_t repeats, Run&& run);

 private:
  template <typename Fn>
  void run_chunks(bool is_alone, int32_t num_chunks, Fn&& fn);

  KernelTable kernels_;
  std::vector<int32_t> cpus_;
  Team team_;
};

inline constexpr double kMinRunSeconds = 0.005;

template <typename Run>
std::vector<double> Rig::time_units(int64_t num_units, int32_t repeats, Run&& run) {
  const PinnedHere pinned(first_cpu());
  int64_t next = 0;
  const auto time = [&](int64_t count) {
    const int64_t begin = monotonic_ns();
    for (int64_t left = count; left > 0;) {
      const int64_t slice = std::min(left, num_units);
      run(next, slice);
      next = (next + slice) % num_units;
      left -= slice;
    }
    return static_cast<double>(monotonic_ns() - begin) * 1e-9;
  };
  // So many units that a run is long enough, from a probe that grows until it says something.
  int64_t count = 1;
  double seconds = time(count);
  while (seconds < kMinRunSeconds / 4) {
    count *= 4;
    seconds = time(count);
  }
  count = std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(count) * kMinRunSeconds / seconds));
  std::vector<double> runs;
  for (int32_t i = 0; i < repeats; ++i) runs.push_back(time(count) / static_cast<double>(count));
  return runs;
}

}  // namespace plait
