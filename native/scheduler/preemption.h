// What happens when the pool has no block left for a running sequence, or a tenant holds what is due to
// another.
//
// One other sequence, the lowest in rank, gives its blocks back and is recomputed later from its prompt and
// what it produced: the same tokens, since sampling depends on (seed, number of produced tokens) only. Where
// that pays, its blocks are saved first: they come free a little later, and whoever needs them sits out until
// then. The highest in rank never yields, so there is always progress.
//
// Owner: the thread that schedules.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/kv_manager.h"
#include "scheduler/endings.h"
#include "scheduler/limits.h"
#include "scheduler/running.h"
#include "scheduler/stats.h"
#include "scheduler/step_cost.h"
#include "scheduler/swapping.h"
#include "scheduler/waiting.h"

namespace plait {

class Growth {
 public:
  Growth(KvManager& kv, const SchedulerLimits& limits, WaitingQueue& waiting, RunningSet& running,
         Endings& endings, Swapping& swapping, const StepCostModel& costs, SchedulerStats& stats);

  // Room for `num_tokens` positions, by preemption if need be. False: `seq` sits this step out.
  bool grow(Sequence& seq, int32_t num_tokens);
  // The preempted ones whose last step ended wait again, or are saved.
  void resume_drained();
  // Takes slot and blocks from a running sequence that is in no plan which was not submitted yet. It may be
  // saved when blocks are what is short; where it is a slot, the prefix cache has its blocks a while longer.
  void preempt(Sequence& seq, bool is_for_blocks);
  // A save or fetch has ended.
  void finish_transfer(const SwapResult& result);

 private:
  void save(Sequence& seq);
  void requeue(Sequence& seq);
  void resume_fetched(Sequence& seq, bool has_content);

  KvManager& kv_;
  const SchedulerLimits& limits_;
  WaitingQueue& waiting_;
  RunningSet& running_;
  Endings& endings_;
  Swapping& swapping_;
  const StepCostModel& costs_;
  SchedulerStats& stats_;
  std::vector<Sequence*> drained_;  // scratch
};

// What is said of a request that the whole pool cannot hold.
std::string too_large_message(int32_t num_tokens, const SchedulerLimits& limits);

}  // namespace plait
