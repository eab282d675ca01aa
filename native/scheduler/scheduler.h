// Continuous batching: which tokens of which sequences run in the next step. Pure policy, put together from
// the parts beside it. Knows: requests, budgets, block accounting. Must not know: threads, clocks (time is
// passed in, nanoseconds of CLOCK_MONOTONIC), kernels.
//
// A step is planned while the one before it runs, shortly before that ends: tokens that are still being
// sampled are named by reference (-1), a max_tokens end is known ahead, and an EOS that shows late costs one
// dropped token.
//
// Owner: one thread calls everything. From any thread: stats() and the gauges, which are relaxed atomics.
// Nothing blocks.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kv/kv_manager.h"
#include "plan/step.h"
#include "scheduler/admission.h"
#include "scheduler/budget.h"
#include "scheduler/builder.h"
#include "scheduler/endings.h"
#include "scheduler/fair_share.h"
#include "scheduler/limits.h"
#include "scheduler/plan_timer.h"
#include "scheduler/planned_step.h"
#include "scheduler/preemption.h"
#include "scheduler/request.h"
#include "scheduler/results.h"
#include "scheduler/running.h"
#include "scheduler/stats.h"
#include "scheduler/swapping.h"
#include "scheduler/waiting.h"

namespace plait {

class Scheduler {
 public:
  // Throws Error (kInvalidArgument) for limits out of range or that do not fit the KV manager.
  Scheduler(SchedulerLimits limits, std::shared_ptr<KvManager> kv);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Queues a request. Throws Error (kInvalidArgument), with `request` unchanged, for one that no engine could
  // run or whose id is in use.
  void add(Request&& request);
  // Instead of add: one last output for each choice, and all counted as come and gone.
  void refuse(const Request& request, FinishReason reason, const std::string& error);
  // Ends a request with FinishReason::kAbort. Unknown and ended ones are ignored.
  void abort(int64_t request_id) { end(request_id, FinishReason::kAbort, {}); }
  // Ends what has not ended of a request.
  void end(int64_t request_id, FinishReason reason, const std::string& error);
  void end_all(FinishReason reason, const std::string& error);

  // Plans the next step into `step`, whose content is replaced. False when nothing can run before a result,
  // an arrival or next_wakeup_ns(), or when it is too early to plan: while a step runs, until
  // next_wakeup_ns(). `step` is then worth nothing.
  bool schedule(int64_t now_ns, StepInput& step);
  // Takes in the result of the oldest step that is planned. Throws Error (kInternal) for any other.
  void finish_step(const StepResult& result);
  // The step planned last could not be submitted: its sequences end. Throws Error (kInternal) for any other.
  void fail_step(int64_t step_id, const std::string& error);

  // What is to be done with KV blocks since the last call; all must be tried, in this order, before the next
  // step is submitted. Empty unless limits().kv_block_bytes is set.
  std::vector<SwapRequest> take_swap_requests() { return swapping_.take_requests(); }
  // The answer to a save or fetch, one for each: also for what could not be begun, and after a drop. Throws
  // Error (kInternal) for a ticket that nothing is asked of.
  void finish_transfer(const SwapResult& result);

  // Outputs since the last call, in order.
  std::vector<Output> take_outputs() { return std::exchange(endings_.outputs(), {}); }
  // Ends requests whose deadline has passed. schedule() does so, too, but is not called while enough is
  // planned.
  void expire(int64_t now_ns);
  // When expire() or, if `can_plan`, schedule() should be called again though nothing happened, or -1. After
  // schedule().
  int64_t next_wakeup_ns(bool can_plan);
  // Tokens of the sequence that schedule() will try to admit first, 0 when there is none: hashing many takes
  // long.
  int32_t next_prompt_tokens() const;
  // A request has not ended.
  bool has_work() const { return !endings_.is_empty(); }
  // A save or fetch has not been answered.
  bool has_transfers() const { return swapping_.has_transfers(); }
  // Steps that are planned and not finished.
  size_t num_planned() const { return planned_.size(); }
  // The oldest of them, or with `last` the newest; null when there is none. For tests and traces; valid until
  // the next call.
  const PlannedStep* planned_step(bool last) const;
  // Throws Error (kInternal) unless nothing is left of any request. For tests.
  void check_idle() const;

  const SchedulerLimits& limits() const { return limits_; }
  // Any thread.
  const SchedulerStats& stats() const { return stats_; }
  int64_t num_requests() const { return num_requests_.get(); }
  int64_t num_waiting() const { return num_waiting_.get(); }          // sequences without slot and blocks
  int64_t num_running() const { return num_running_.get(); }          // sequences that hold slot and blocks
  int64_t num_free_blocks() const { return num_free_blocks_.get(); }  // free and evictable
  // Measured nanoseconds per prompt token, 0 before the first measurement.
  int64_t prefill_token_ns() const { return prefill_token_ns_.get(); }
  // When the last wait for a fuller batch ended, or will end at the latest; 0 before the first.
  int64_t hold_until_ns() const { return hold_until_ns_.get(); }

 private:
  bool plan_rows(int64_t now_ns, PlannedStep& plan, StepInput& step);
  void end_planned(bool last);
  // The oldest step in flight begins.
  void begin_planned(int64_t now_ns);
  // Of the steps in flight, those whose results nobody waits for.
  void mark_unwanted();
  void ask_fetches();
  void publish_gauges();

  const SchedulerLimits limits_;
  const std::shared_ptr<KvManager> kv_;
  SchedulerStats stats_;
  WaitingQueue waiting_;
  RunningSet running_;
  Swapping swapping_;
  Endings endings_;
  PrefillPacer pacer_;
  PlanTimer plan_timer_;
  Growth growth_;
  Admission admission_;
  FairShare fair_share_;
  StepBuilder builder_;
  Results results_;
  std::deque<std::unique_ptr<PlannedStep>> planned_;    // in order
  std::vector<std::unique_ptr<PlannedStep>> spare_;     // their memory is used again
  std::vector<std::pair<int64_t, int64_t>> deadlines_;  // a heap of (when, request id), soonest first
  std::vector<Sequence*> prompts_;                      // scratch
  int64_t num_arrivals_ = 0;
  int64_t num_steps_ = 0;
  int64_t num_sequences_ = 0;
  bool is_too_early_ = false;  // said schedule() last, though there is something to plan
  int64_t work_since_ns_ = 0;  // when the request arrived that ended the last idle time
  Gauge<int64_t> num_requests_, num_waiting_, num_running_, num_free_blocks_, prefill_token_ns_,
      hold_until_ns_;
};

}  // namespace plait
