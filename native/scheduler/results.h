// What a step that ended means for its sequences.
//
// Owner: the thread that schedules.
#pragma once

#include <cstdint>
#include <string>

#include "kv/kv_manager.h"
#include "plan/step.h"
#include "scheduler/endings.h"
#include "scheduler/limits.h"
#include "scheduler/planned_step.h"
#include "scheduler/stats.h"

namespace plait {

class Results {
 public:
  Results(KvManager& kv, const SchedulerLimits& limits, Endings& endings, SchedulerStats& stats);

  // Appends the sampled tokens, publishes full blocks, ends what is complete.
  void apply(const PlannedStep& plan, const StepResult& result);
  // The step did not run: ends its sequences.
  void fail(const PlannedStep& plan, const std::string& error);

 private:
  void end_flight(const PlannedStep& plan);
  void end_all(const PlannedStep& plan, const std::string& error);
  void commit(const PlannedStep& plan);
  void append_token(Sequence& seq, const Sampled& sampled);

  KvManager& kv_;
  const SchedulerLimits& limits_;
  Endings& endings_;
  SchedulerStats& stats_;
};

}  // namespace plait
