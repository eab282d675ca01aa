// Runs steps on the thread that asks for it, with a team: one side submits steps and takes results, the other
// calls run_next. Knows: steps in flight, counters. Must not know: whose threads these are, who sleeps.
//
// Threads: main calls try_submit, try_pop and close; one thread at a time, main or another one, calls
// run_next and stop and is then member 0 of the team. Two rings lie between: a push's release pairs with a
// pop's acquire. The thread is not pinned and not named here: `cpus.front()` of the options is its owner's to
// use.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "plan/runner.h"
#include "sync/spsc_ring.h"

namespace plait {

struct ComputeOptions {
  Isa isa = Isa::kScalar;
  int32_t num_threads = 1;
  std::vector<int32_t> cpus;  // one per thread, or empty: not pinned
  RunnerLimits limits;
  Parallelism parallelism = Parallelism::kTensor;
};

class InlineExecutor {
 public:
  // Throws Error(kInvalidArgument) when the parallelism needs more threads.
  InlineExecutor(std::shared_ptr<const Plan> plan, std::shared_ptr<const Weights> weights,
                 std::shared_ptr<KvStorage> kv, const ComputeOptions& options);

  // Main. False when kDepth steps are unanswered; `step` is then unchanged. Throws Error(kInvalidArgument)
  // for a step that Runner::check refuses, and after close. Never blocks.
  bool try_submit(StepInput&& step);
  // Main. False when no result is ready.
  bool try_pop(StepResult& result);
  // Runs the oldest submitted step, which blocks for as long as it takes, and makes its result available; an
  // error of the step is in the result. False when no step is there.
  bool run_next();
  // Main. No more steps are taken. Idempotent.
  void close() { is_closed_.store(true, std::memory_order_release); }
  // Any thread. close's release pairs with it: whoever sees it sees the steps that were submitted before.
  bool is_closed() const { return is_closed_.load(std::memory_order_acquire); }
  // close, and runs the submitted steps. Idempotent.
  void stop();

  // Any thread: totals since start.
  int64_t num_steps() const { return num_steps_.load(std::memory_order_relaxed); }
  int64_t busy_ns() const { return busy_ns_.load(std::memory_order_relaxed); }
  // Any thread: CLOCK_MONOTONIC of the last end of a step.
  int64_t last_step_end_ns() const { return last_step_end_ns_.load(std::memory_order_relaxed); }
  // Any thread: time between the end of a step and the begin of the next one while there was work
  // (StepInput::work_since_ns): the sum, and the longest since start.
  int64_t gap_ns() const { return gap_ns_.load(std::memory_order_relaxed); }
  int64_t max_gap_ns() const { return max_gap_ns_.load(std::memory_order_relaxed); }
  // Any thread: steps that were submitted and do not run yet, results that were not taken yet.
  size_t num_queued_steps() const { return steps_.size(); }
  size_t num_queued_results() const { return results_.size(); }

  static constexpr size_t kDepth = 4;  // steps and results in flight

 private:
  void note_gap(int64_t begin_ns);

  Team team_;
  Runner runner_;
  SpscRing<StepInput> steps_{kDepth};
  // Twice the depth: main never lets more than kDepth steps go unanswered, so a push cannot fail.
  SpscRing<StepResult> results_{2 * kDepth};
  StepInput step_;  // the one that runs
  std::atomic<bool> is_closed_{false};
  std::atomic<int64_t> num_steps_{0};
  std::atomic<int64_t> busy_ns_{0};
  std::atomic<int64_t> last_step_end_ns_{0};
  std::atomic<int64_t> gap_ns_{0};
  std::atomic<int64_t> max_gap_ns_{0};
  int64_t num_unanswered_ = 0;  // main only
};

}  // namespace plait
