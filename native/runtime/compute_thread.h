// The compute thread of an EngineCore: takes steps from a ring, runs them with its team, gives results back.
// Never holds the GIL and never takes a mutex between steps.
//
// Threads: main calls try_submit, try_pop and stop; the compute thread runs the steps.
#pragma once

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "runtime/inline_executor.h"
#include "sync/doorbell.h"

namespace plait {

class ComputeThread {
 public:
  // `results_bell` is rung whenever a result is ready. Throws as InlineExecutor does.
  ComputeThread(std::shared_ptr<const Plan> plan, std::shared_ptr<const Weights> weights,
                std::shared_ptr<KvStorage> kv, ComputeOptions options,
                std::shared_ptr<Doorbell> results_bell);
  ~ComputeThread();

  // Main thread. False when the ring is full; `step` is then unchanged. Throws Error(kInvalidArgument) for a
  // step that Runner::check refuses. Never blocks.
  bool try_submit(StepInput&& step);
  // Main thread. False when no result is ready.
  bool try_pop(StepResult& result) { return executor_.try_pop(result); }
  // Finishes the submitted steps and joins. Idempotent.
  void stop();

  // The CPU that it is pinned to, -1: none.
  int32_t cpu() const { return cpu_; }
  // Any thread: totals since start.
  int64_t num_steps() const { return executor_.num_steps(); }
  int64_t busy_ns() const { return executor_.busy_ns(); }
  // Any thread: CLOCK_MONOTONIC of the last end of a step.
  int64_t last_step_end_ns() const { return executor_.last_step_end_ns(); }
  // Any thread, see InlineExecutor.
  int64_t gap_ns() const { return executor_.gap_ns(); }
  int64_t max_gap_ns() const { return executor_.max_gap_ns(); }
  size_t num_queued_steps() const { return executor_.num_queued_steps(); }
  size_t num_queued_results() const { return executor_.num_queued_results(); }

  static constexpr size_t kDepth = InlineExecutor::kDepth;

 private:
  void loop();

  InlineExecutor executor_;
  int32_t cpu_;  // -1: not pinned
  Doorbell steps_bell_;
  std::shared_ptr<Doorbell> results_bell_;
  std::thread thread_;
};

}  // namespace plait
