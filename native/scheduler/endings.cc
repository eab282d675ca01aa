#include "scheduler/endings.h"

#include <algorithm>

namespace plait {

Endings::Endings(KvManager& kv, WaitingQueue& waiting, RunningSet& running, Swapping& swapping,
                 const SchedulerLimits& limits, SchedulerStats& stats)
    : kv_(kv),
      waiting_(waiting),
      running_(running),
      swapping_(swapping),
      stats_(stats),
      tenants_(limits.tenant_weights) {}

RequestState& Endings::add(std::unique_ptr<RequestState> request) {
  RequestState& state = *request;
  requests_.emplace(state.request_id, std::move(request));
  return state;
}

RequestState* Endings::find(int64_t request_id) const {
  const auto it = requests_.find(request_id);
  return it == requests_.end() ? nullptr : it->second.get();
}

std::vector<int64_t> Endings::request_ids() const {
  std::vector<int64_t> ids;
  ids.reserve(requests_.size());
  for (const auto& [id, request] : requests_) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  return ids;
}

Output& Endings::emit(Sequence& seq) {
  RequestState& request = *seq.request;
  Output& output = outputs_.emplace_back();
  output.request_id = request.request_id;
  output.index = seq.index;
  output.num_cached_tokens = std::max(request.num_cached_tokens, 0);
  if (!seq.has_output) {
    seq.has_output = true;
    const bool is_whole = request.prompt_scores.size() + 1 == static_cast<size_t>(request.num_prompt);
    if (request.wants_scores && seq.index == 0 && is_whole) {
      output.has_prompt_scores = true;
      output.prompt_scores = request.prompt_scores;
    }
  }
  return output;
}

void Endings::finish(Sequence& seq, FinishReason reason, const std::string& error) {
  if (seq.request->is_forked) {
    finish_now(seq, reason, error);
  } else {
    finish_request(*seq.request, reason, error);
  }
}

void Endings::finish_request(RequestState& request, FinishReason reason, const std::string& error) {
  request.is_forked = true;
  for (Sequence& seq : request.choices) finish_now(seq, reason, error);
}

void Endings::finish_now(Sequence& seq, FinishReason reason, const std::string& error) {
  if (seq.state == SequenceState::kFinished) return;
  Output& output = emit(seq);
  output.finish_reason = reason;
  output.error = error;
  close(seq, reason);
}

void Endings::close(Sequence& seq, FinishReason reason) {
  give_back(seq);
  seq.state = SequenceState::kFinished;
  stats_.leave_queue(seq);
  count_choice(reason);
  RequestState& request = *seq.request;
  if (--request.num_open > 0) return;
  tenants_.leave(*request.tenant);
  stats_.requests_finished_total.add(1);
  if (request.num_cached_tokens < 0) {
    stats_.requests_dequeued_total.add(1);
    stats_.dequeued_prompt_tokens_total.add(request.num_prompt);
  }
  const auto it = requests_.find(request.request_id);
  ended_.emplace_back(next_step_id_, std::move(it->second));
  requests_.erase(it);
}

// Slot, blocks and what is saved. Blocks that a transfer may touch come back when that ends.
void Endings::give_back(Sequence& seq) {
  switch (seq.state) {
    case SequenceState::kWaiting:
      waiting_.remove(seq);
      swapping_.abandon(seq);
      break;
    case SequenceState::kRunning:
      running_.remove(seq, SequenceState::kFinished);
      break;
    case SequenceState::kFetching:
      if (swapping_.abandon(seq)) {
        running_.detach(seq, SequenceState::kFinished);
      } else {
        running_.remove(seq, SequenceState::kFinished);
      }
      break;
    case SequenceState::kSaving:
      if (!swapping_.abandon(seq)) kv_.close_sequence(seq.seq_id);
      break;
    case SequenceState::kPlanned:
    case SequenceState::kPreempting:  // it is dropped from the draining when its steps have ended
    case SequenceState::kFinished:
      break;
  }
}

void Endings::refuse(const Request& request, FinishReason reason, const std::string& error) {
  // What was refused may have any n; whoever waits counts on what is valid.
  const int32_t num_choices = std::clamp(request.n, 1, Request::kMaxChoices);
  for (int32_t index = 0; index < num_choices; ++index) {
    Output& output = outputs_.emplace_back();
    output.request_id = request.request_id;
    output.index = index;
    output.finish_reason = reason;
    output.error = error;
    count_choice(reason);
  }
  stats_.requests_dequeued_total.add(1);
  stats_.dequeued_prompt_tokens_total.add(static_cast<int64_t>(request.prompt_ids.size()));
  stats_.dequeued_choices_total.add(num_choices);
  stats_.requests_finished_total.add(1);
}

void Endings::count_choice(FinishReason reason) {
  if (reason == FinishReason::kAbort) stats_.choices_aborted_total.add(1);
  if (reason == FinishReason::kError) stats_.choices_failed_total.add(1);
}

void Endings::forget_before(int64_t oldest_step_id) {
  while (!ended_.empty() && ended_.front().first < oldest_step_id) ended_.pop_front();
}

}  // namespace plait
