#include "scheduler/swapping.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/error.h"

namespace plait {

namespace {

// Taken for the speed of a copy before one was measured: to memory. Where it is less, the first saves tell;
// were it taken for less where computing is fast, nothing would ever be saved, and nothing measured.
constexpr double kFirstBytesPerSecond = 2e9;
constexpr double kSmoothing = 0.3;
// What a transfer costs besides its bytes: waiting for steps in flight, and for the answer.
constexpr double kTransferSeconds = 2e-3;

}  // namespace

Swapping::Swapping(KvManager& kv, const SchedulerLimits& limits, SchedulerStats& stats)
    : kv_(kv), limits_(limits), stats_(stats), bytes_per_s_(kFirstBytesPerSecond) {}

bool Swapping::is_worth_saving(const Sequence& seq, const StepCostModel& costs) const {
  if (limits_.kv_block_bytes == 0 || !costs.knows_prefills()) return false;
  const int32_t num_blocks = seq.num_scheduled / limits_.block_tokens;
  if (num_blocks == 0) return false;
  const int32_t num_tokens = num_blocks * limits_.block_tokens;
  const double copy_s = static_cast<double>(num_blocks * limits_.kv_block_bytes) / bytes_per_s_;
  return costs.prefill_s(num_tokens, attended_positions(0, num_tokens)) > 2.0 * (copy_s + kTransferSeconds);
}

void Swapping::hold(Sequence& seq) {
  seq.state = SequenceState::kSaving;
  ++num_saving_;
}

bool Swapping::begin_save(Sequence& seq) {
  BlockSnapshot snapshot = kv_.capture(seq.seq_id);
  if (snapshot.num_tokens == 0) {
    --num_saving_;
    return false;
  }
  seq.ticket = num_tickets_++;
  seq.num_saved = snapshot.num_tokens;
  transfers_[seq.ticket] = {&seq, seq.seq_id, true};
  requests_.push_back({SwapRequest::Kind::kSave, seq.ticket, std::move(snapshot), {}});
  return true;
}

bool Swapping::has_use_for_ticket(Sequence& seq, int32_t num_cached) {
  if (seq.ticket < 0) return false;
  if (seq.num_saved > num_cached) return true;
  drop(seq);
  return false;
}

void Swapping::begin_fetch(Sequence& seq, int64_t step_id) {
  seq.state = SequenceState::kFetching;
  seq.fetch_after_step_id = step_id;
  fetches_.push_back(&seq);
}

void Swapping::ask_fetches(int64_t oldest_step_id) {
  const auto is_due = [&](const Sequence* seq) { return seq->fetch_after_step_id < oldest_step_id; };
  for (Sequence* seq : fetches_) {
    if (!is_due(seq)) continue;
    const auto num_blocks =
        static_cast<size_t>((seq->num_saved + limits_.block_tokens - 1) / limits_.block_tokens);
    std::vector<int32_t> blocks(seq->block_table->begin(), seq->block_table->begin() + num_blocks);
    // What the prefix cache had is there already, and other sequences may read it.
    std::fill_n(blocks.begin(), seq->num_committed / limits_.block_tokens, SwapRequest::kSkipBlock);
    transfers_[seq->ticket] = {seq, seq->seq_id, false};
    requests_.push_back({SwapRequest::Kind::kFetch, seq->ticket, {}, std::move(blocks)});
  }
  std::erase_if(fetches_, is_due);
}

bool Swapping::abandon(Sequence& seq) {
  if (seq.state == SequenceState::kSaving) --num_saving_;
  std::erase(fetches_, &seq);
  const auto transfer = transfers_.find(seq.ticket);
  const bool is_under_way = seq.ticket >= 0 && transfer != transfers_.end();
  if (is_under_way) {
    transfer->second.seq = nullptr;
    ++num_orphans_;
  }
  drop(seq);
  return is_under_way;
}

Sequence* Swapping::finish(const SwapResult& result, bool& was_save) {
  const auto it = transfers_.find(result.ticket);
  if (it == transfers_.end()) {
    throw Error(ErrorCode::kInternal, "nothing is asked of ticket " + std::to_string(result.ticket));
  }
  const Transfer transfer = it->second;
  transfers_.erase(it);
  was_save = transfer.is_save;
  measure(result);
  Sequence* seq = transfer.seq;
  if (seq == nullptr) {
    --num_orphans_;
    kv_.close_sequence(transfer.seq_id);
    return nullptr;
  }
  if (transfer.is_save) {
    --num_saving_;
    if (!result.is_ok) {  // nothing is left of a save that failed
      seq->ticket = -1;
      seq->num_saved = 0;
    }
  }
  return seq;
}

void Swapping::drop(Sequence& seq) {
  if (seq.ticket < 0) return;
  requests_.push_back({SwapRequest::Kind::kDrop, seq.ticket, {}, {}});
  seq.ticket = -1;
  seq.num_saved = 0;
}

std::vector<SwapRequest> Swapping::take_requests() { return std::exchange(requests_, {}); }

void Swapping::measure(const SwapResult& result) {
  if (!result.is_ok) {
    stats_.failed_transfers_total.add(1);
    return;
  }
  if (result.seconds > 0.0 && result.num_bytes > 0) {
    bytes_per_s_ += kSmoothing * (static_cast<double>(result.num_bytes) / result.seconds - bytes_per_s_);
  }
}

}  // namespace plait
