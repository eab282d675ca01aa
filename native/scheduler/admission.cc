#include "scheduler/admission.h"

#include <algorithm>
#include <exception>
#include <string>

namespace plait {

Admission::Admission(KvManager& kv, const SchedulerLimits& limits, WaitingQueue& waiting, RunningSet& running,
                     Growth& growth, Endings& endings, Swapping& swapping, SchedulerStats& stats)
    : kv_(kv),
      limits_(limits),
      waiting_(waiting),
      running_(running),
      growth_(growth),
      endings_(endings),
      swapping_(swapping),
      stats_(stats) {}

void Admission::on_arrival(int64_t now_ns) {
  if (waiting_.is_empty() && running_.is_empty()) {
    hold_until_ns_ = now_ns + static_cast<int64_t>(limits_.batch_timeout_s * 1e9);
    is_holding_ = true;
  }
}

int64_t Admission::held_until_ns() const {
  if (!is_holding_ || !running_.is_empty() || waiting_.is_empty()) return -1;
  return waiting_.size() < static_cast<size_t>(limits_.num_slots()) ? hold_until_ns_ : -1;
}

void Admission::make_room() {
  if (endings_.tenants().size() < 2 || running_.is_empty()) return;
  const Sequence* seq = waiting_.peek();
  if (seq == nullptr) return;
  const bool has_slot = running_.num_free_slots() > 0;
  if (has_slot && (!is_hopeless(*seq) || swapping_.holds_blocks())) return;
  const Tenant& tenant = *seq->request->tenant;
  const std::vector<Sequence*>& sequences = running_.sequences();
  for (auto it = sequences.rbegin(); it != sequences.rend(); ++it) {
    Sequence& victim = **it;
    if (victim.rank.priority < seq->rank.priority) return;  // what is left has a higher priority
    if (victim.state != SequenceState::kRunning) continue;
    const Tenant& other = *victim.request->tenant;
    if ((other.num_running - 1) * tenant.weight >= (tenant.num_running + 1) * other.weight) {
      growth_.preempt(victim, has_slot);
      return;
    }
  }
}

void Admission::admit(int64_t now_ns, int64_t step_id, std::vector<Sequence*>& admitted) {
  const int64_t held_until = held_until_ns();
  if (held_until >= 0 && now_ns < held_until) return;
  is_holding_ = false;
  while (running_.num_free_slots() > 0) {
    Sequence* seq = waiting_.peek();
    if (seq == nullptr || is_hopeless(*seq)) return;
    bool is_ended = false;
    if (try_open_or_end(*seq, is_ended)) {
      waiting_.remove(*seq);
      running_.add(*seq);
      stats_.leave_queue(*seq);
      if (swapping_.has_use_for_ticket(*seq, seq->num_committed)) {
        swapping_.begin_fetch(*seq, step_id);
      } else {
        admitted.push_back(seq);
      }
    } else if (is_ended) {
      continue;
    } else if (running_.is_empty() && !swapping_.holds_blocks()) {
      endings_.finish(*seq, FinishReason::kError, too_large_message(seq->length(), limits_));
    } else {
      refused_seq_id_ = seq->seq_id;
      refused_free_blocks_ = kv_.num_free_blocks();
      return;
    }
  }
}

// It did not fit, and no block came free since: do not hash its prompt again.
bool Admission::is_hopeless(const Sequence& seq) const {
  return seq.seq_id == refused_seq_id_ && !running_.is_empty() &&
         kv_.num_free_blocks() <= refused_free_blocks_;
}

bool Admission::try_open_or_end(Sequence& seq, bool& is_ended) {
  try {
    return try_open(seq);
  } catch (const std::exception& error) {  // the boundary of one request: the others go on
    const std::string what = error.what();
    try {
      kv_.close_sequence(seq.seq_id);
    } catch (const std::exception&) {
      // It was never opened.
    }
    endings_.finish(seq, FinishReason::kError, "no KV cache for the prompt: " + what);
    is_ended = true;
    return false;
  }
}

// Blocks for all tokens that `seq` has, and one more for each running sequence, or nothing.
bool Admission::try_open(Sequence& seq) {
  RequestState& request = *seq.request;
  const bool use_cache = limits_.enable_prefix_cache && request.use_cache;
  const int32_t num_cached = kv_.open_sequence(seq.seq_id, seq.tokens, request.tenant->name, use_cache);
  bool has_room = kv_.try_grow(seq.seq_id, limits_.whole_blocks(seq.length()), num_cached);
  if (has_room && !running_.is_empty() && kv_.num_free_blocks() < running_.size()) {
    has_room = false;  // it would be preempted at once
  }
  if (!has_room) {
    kv_.close_sequence(seq.seq_id);
    return false;
  }
  seq.num_scheduled = seq.num_committed = num_cached;
  seq.block_table = kv_.snapshot(seq.seq_id);
  seq.capacity = static_cast<int32_t>(seq.block_table->size()) * limits_.block_tokens;
  if (request.num_cached_tokens < 0) {
    request.num_cached_tokens = std::min(num_cached, request.num_prompt);
    request.tenant->charge(request.num_prompt - request.num_cached_tokens);
    stats_.cached_tokens_total.add(request.num_cached_tokens);
    stats_.requests_dequeued_total.add(1);
    stats_.dequeued_prompt_tokens_total.add(request.num_prompt);
  }
  return true;
}

}  // namespace plait
