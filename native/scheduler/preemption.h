// What happens when the pool has no block left for a running sequence, or a tenant holds what is due to
// another.
//
// One other sequence, the lowest in rank, gives its blocks back and is recomputed later from its prompt and
// what it produced: the same tokens, since sampling depends on (seed, number of produced tokens) only. The
// highest in rank never yields, so there is always progress.
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
#include "scheduler/waiting.h"

namespace plait {

class Growth {
 public:
  Growth(KvManager& kv, const SchedulerLimits& limits, WaitingQueue& waiting, RunningSet& running,
         Endings& endings, SchedulerStats& stats);

  // Room for `num_tokens` positions, by preemption if need be. False: `seq` sits this step out.
  bool grow(Sequence& seq, int32_t num_tokens);
  // The preempted ones whose last step ended wait again.
  void resume_drained();
  // Takes slot and blocks from a running sequence that is in no plan which was not submitted yet.
  void preempt(Sequence& seq);

 private:
  void requeue(Sequence& seq);

  KvManager& kv_;
  const SchedulerLimits& limits_;
  WaitingQueue& waiting_;
  RunningSet& running_;
  Endings& endings_;
  SchedulerStats& stats_;
  std::vector<Sequence*> drained_;  // scratch
};

// What is said of a request that the whole pool cannot hold.
std::string too_large_message(int32_t num_tokens, const SchedulerLimits& limits);

}  // namespace plait
