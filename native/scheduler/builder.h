// Fills a step: decodes first, then slices of prompts.
//
// Owner: the thread that schedules.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/kv_manager.h"
#include "plan/step.h"
#include "scheduler/endings.h"
#include "scheduler/fair_share.h"
#include "scheduler/planned_step.h"
#include "scheduler/preemption.h"
#include "scheduler/running.h"
#include "scheduler/stats.h"
#include "scheduler/waiting.h"

namespace plait {

class StepBuilder {
 public:
  StepBuilder(KvManager& kv, WaitingQueue& waiting, RunningSet& running, Growth& growth, Endings& endings,
              FairShare& fair_share, SchedulerStats& stats);

  // Empties both and gives them their id; their memory is used again.
  void begin(PlannedStep& plan, StepInput& step, int64_t step_id);
  // What came back from a transfer starts its sampling state again.
  void add_starts(PlannedStep& plan);
  // One token of each sequence that decodes and is not passed over; appends those that prefill or are
  // recomputed to `prompts`.
  void add_decodes(PlannedStep& plan, StepInput& step, std::vector<Sequence*>& prompts);
  // Slices of `prompts` (running, oldest first) within what the decodes left of the step.
  void add_prompts(PlannedStep& plan, StepInput& step, const std::vector<Sequence*>& prompts);
  // Copies and slot starts: what is only known when all rows are there.
  void end(PlannedStep& plan, StepInput& step);

 private:
  void add_slice(PlannedStep& plan, StepInput& step, Sequence& seq, int32_t num_tokens);
  void close_row(PlannedStep& plan, StepInput& step, Sequence& seq, int32_t end);
  void sample(PlannedStep& plan, StepInput& step, Sequence& seq, int32_t row);
  void add_scores(PlannedStep& plan, StepInput& step, Sequence& seq, int32_t begin, int32_t end);
  void fork(PlannedStep& plan, StepInput& step, Sequence& parent, int32_t row);
  bool try_fork_one(const Sequence& parent, Sequence& child);

  KvManager& kv_;
  WaitingQueue& waiting_;
  RunningSet& running_;
  Growth& growth_;
  Endings& endings_;
  FairShare& fair_share_;
  SchedulerStats& stats_;
  // Scratch.
  std::vector<Sequence*> sequences_;
};

}  // namespace plait
