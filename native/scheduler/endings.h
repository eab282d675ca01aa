// How choices and requests end: exactly one output with a finish reason per choice, then nothing.
//
// Owner: the thread that schedules.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "scheduler/limits.h"
#include "scheduler/running.h"
#include "scheduler/sequence.h"
#include "scheduler/stats.h"
#include "scheduler/swapping.h"
#include "scheduler/tenants.h"
#include "scheduler/waiting.h"

namespace plait {

// Owner of the requests and of the outputs that were not taken yet.
class Endings {
 public:
  Endings(KvManager& kv, WaitingQueue& waiting, RunningSet& running, Swapping& swapping,
          const SchedulerLimits& limits, SchedulerStats& stats);

  RequestState& add(std::unique_ptr<RequestState> request);
  RequestState* find(int64_t request_id) const;
  bool is_empty() const { return requests_.empty(); }
  size_t num_requests() const { return requests_.size(); }
  std::vector<int64_t> request_ids() const;
  Tenants& tenants() { return tenants_; }
  size_t num_tenants() const { return tenants_.size(); }
  std::vector<Output>& outputs() { return outputs_; }

  // An output of a choice, to be filled in by the caller; valid until the next call.
  Output& emit(Sequence& seq);
  // Ends a choice from outside; before the fork of its siblings they end with it.
  void finish(Sequence& seq, FinishReason reason, const std::string& error);
  // Ends every choice that has not ended.
  void finish_request(RequestState& request, FinishReason reason, const std::string& error);
  // Takes a choice, whose last output was emitted, out of wherever it is.
  void close(Sequence& seq, FinishReason reason);
  // For a request that was never added: one last output for each of its choices, all counted.
  void refuse(const Request& request, FinishReason reason, const std::string& error);

  // The ended requests are kept while a step that is planned may still name them. A step with this id is the
  // next to be planned, or being planned.
  void set_next_step_id(int64_t step_id) { next_step_id_ = step_id; }
  // Steps before this one are over: forgets the ended requests that only those could name.
  void forget_before(int64_t oldest_step_id);

 private:
  void give_back(Sequence& seq);
  void finish_now(Sequence& seq, FinishReason reason, const std::string& error);
  void count_choice(FinishReason reason);

  KvManager& kv_;
  WaitingQueue& waiting_;
  RunningSet& running_;
  Swapping& swapping_;
  SchedulerStats& stats_;
  Tenants tenants_;
  std::unordered_map<int64_t, std::unique_ptr<RequestState>> requests_;
  std::deque<std::pair<int64_t, std::unique_ptr<RequestState>>>
      ended_;  // with the last step that may name it
  std::vector<Output> outputs_;
  int64_t next_step_id_ = 0;
};

}  // namespace plait
