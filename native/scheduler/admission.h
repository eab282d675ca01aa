// Which waiting sequences get a slot and blocks.
//
// Owner: the thread that schedules.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/kv_manager.h"
#include "scheduler/endings.h"
#include "scheduler/limits.h"
#include "scheduler/preemption.h"
#include "scheduler/running.h"
#include "scheduler/stats.h"
#include "scheduler/swapping.h"
#include "scheduler/waiting.h"

namespace plait {

class Admission {
 public:
  Admission(KvManager& kv, const SchedulerLimits& limits, WaitingQueue& waiting, RunningSet& running,
            Growth& growth, Endings& endings, Swapping& swapping, SchedulerStats& stats);

  // When the last wait for a fuller batch ended, or will end at the latest; 0 before the first.
  int64_t hold_until_ns() const { return hold_until_ns_; }
  // Before a request enters the queue: the first of an idle engine opens the batch timeout.
  void on_arrival(int64_t now_ns);
  // When the wait for a fuller batch ends, or -1 when nothing is held. In the past only until admit() is
  // called.
  int64_t held_until_ns() const;

  // Before a step is planned: takes one sequence from a tenant that runs more than its share. Only for the
  // first in the queue, when it cannot be admitted, and when its tenant stays below the other one even after
  // the exchange: the same two sequences never take turns.
  void make_room();
  // Moves what fits from the queue to the running set while step `step_id` is planned; appends those that can
  // run to `admitted`, and has the others' saved blocks fetched.
  void admit(int64_t now_ns, int64_t step_id, std::vector<Sequence*>& admitted);

 private:
  bool is_hopeless(const Sequence& seq) const;
  bool try_open(Sequence& seq);
  bool try_open_or_end(Sequence& seq, bool& is_ended);

  KvManager& kv_;
  const SchedulerLimits& limits_;
  WaitingQueue& waiting_;
  RunningSet& running_;
  Growth& growth_;
  Endings& endings_;
  Swapping& swapping_;
  SchedulerStats& stats_;
  int64_t hold_until_ns_ = 0;
  bool is_holding_ = false;
  // The sequence that did not fit last, and the free blocks then.
  int64_t refused_seq_id_ = -1;
  int32_t refused_free_blocks_ = 0;
};

}  // namespace plait
