#include "scheduler/preemption.h"

#include <exception>
#include <string>

namespace plait {

std::string too_large_message(int32_t num_tokens, const SchedulerLimits& limits) {
  const int32_t num_blocks = (num_tokens + limits.block_tokens - 1) / limits.block_tokens;
  return "the request needs " + std::to_string(num_blocks) + " KV cache blocks, the whole pool has " +
         std::to_string(limits.num_blocks);
}

Growth::Growth(KvManager& kv, const SchedulerLimits& limits, WaitingQueue& waiting, RunningSet& running,
               Endings& endings, SchedulerStats& stats)
    : kv_(kv), limits_(limits), waiting_(waiting), running_(running), endings_(endings), stats_(stats) {}

bool Growth::grow(Sequence& seq, int32_t num_tokens) {
  try {
    while (!kv_.try_grow(seq.seq_id, limits_.whole_blocks(num_tokens), seq.num_scheduled)) {
      Sequence& victim = *running_.sequences().back();
      if (&victim == &seq && running_.size() == 1) {
        endings_.finish(seq, FinishReason::kError, too_large_message(num_tokens, limits_));
        return false;
      }
      preempt(victim);
      if (&victim == &seq) return false;
    }
    seq.block_table = kv_.snapshot(seq.seq_id);
  } catch (const std::exception& error) {  // the boundary of one request: the others go on
    endings_.finish(seq, FinishReason::kError,
                    std::string("no KV cache for the next token: ") + error.what());
    return false;
  }
  seq.capacity = static_cast<int32_t>(seq.block_table->size()) * limits_.block_tokens;
  return true;
}

void Growth::resume_drained() {
  drained_.clear();
  running_.take_drained(drained_);
  for (Sequence* seq : drained_) {
    if (seq->state == SequenceState::kPreempting) requeue(*seq);
  }
}

void Growth::preempt(Sequence& seq) {
  stats_.preemptions_total.add(1);
  running_.remove(seq, SequenceState::kPreempting);
  if (seq.num_in_flight > 0) {
    running_.drain(seq);
  } else {
    requeue(seq);
  }
}

void Growth::requeue(Sequence& seq) {
  seq.reset();
  seq.state = SequenceState::kWaiting;
  RequestState& request = *seq.request;
  if (seq.index == 0) request.num_scores_scheduled = static_cast<int32_t>(request.prompt_scores.size()) + 1;
  waiting_.push_resumed(seq);
}

}  // namespace plait
