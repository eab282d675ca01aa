// The compute thread of an EngineCore: takes steps from a ring, runs them with its team, gives results back.
// Never holds the GIL and never takes a mutex between steps.
//
// Threads: main calls try_submit, try_pop and stop; the compute thread owns everything else.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "plan/runner.h"
#include "sync/doorbell.h"
#include "sync/spsc_ring.h"

namespace plait {

struct ComputeOptions {
  Isa isa = Isa::kScalar;
  int32_t num_threads = 1;
  std::vector<int32_t> cpus;  // one per thread, or empty: not pinned
  RunnerLimits limits;
};

class ComputeThread {
 public:
  // `results_bell` is rung whenever a result is ready.
  ComputeThread(std::shared_ptr<const Plan> plan, std::shared_ptr<const Weights> weights,
                std::shared_ptr<KvStorage> kv, ComputeOptions options,
                std::shared_ptr<Doorbell> results_bell);
  ~ComputeThread();

  // Main thread. False when the ring is full; `step` is then unchanged. Throws Error(kInvalidArgument) for a
  // step that Runner::check refuses. Never blocks.
  bool try_submit(StepInput&& step);
  // Main thread. False when no result is ready.
  bool try_pop(StepResult& result);
  // Finishes the submitted steps and joins. Idempotent.
  void stop();

  // Any thread: totals since start.
  int64_t num_steps() const { return num_steps_.load(std::memory_order_relaxed); }
  int64_t busy_ns() const { return busy_ns_.load(std::memory_order_relaxed); }
  // Any thread: CLOCK_MONOTONIC of the last end of a step.
  int64_t last_step_end_ns() const { return last_step_end_ns_.load(std::memory_order_relaxed); }

  static constexpr size_t kDepth = 4;  // steps and results in flight

 private:
  void loop();

  Team team_;
  Runner runner_;
  std::vector<int32_t> cpus_;
  SpscRing<StepInput> steps_{kDepth};
  // Twice the depth: main never lets more than kDepth steps go unanswered, so a push cannot fail.
  SpscRing<StepResult> results_{2 * kDepth};
  Doorbell steps_bell_;
  std::shared_ptr<Doorbell> results_bell_;
  std::atomic<bool> is_stopping_{false};
  std::atomic<int64_t> num_steps_{0};
  std::atomic<int64_t> busy_ns_{0};
  std::atomic<int64_t> last_step_end_ns_{0};
  int64_t num_unanswered_ = 0;  // main thread only
  std::thread thread_;
};

}  // namespace plait
