#include "scheduler/running.h"

#include <algorithm>

namespace plait {

RunningSet::RunningSet(int32_t num_slots, KvManager& kv) : kv_(kv) {
  for (int32_t slot = num_slots - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

void RunningSet::add(Sequence& seq) {
  seq.slot = free_slots_.back();
  free_slots_.pop_back();
  seq.state = SequenceState::kRunning;
  seq.is_passed_over = false;
  ++seq.request->tenant->num_running;
  sequences_.insert(place_of(seq), &seq);
}

void RunningSet::remove(Sequence& seq, SequenceState state) {
  detach(seq, state);
  kv_.close_sequence(seq.seq_id);
}

void RunningSet::detach(Sequence& seq, SequenceState state) {
  sequences_.erase(place_of(seq));
  seq.block_table.reset();
  free_slots_.push_back(seq.slot);
  --seq.request->tenant->num_running;
  seq.slot = -1;
  seq.state = state;
}

void RunningSet::take_drained(std::vector<Sequence*>& drained) {
  const auto kept = std::stable_partition(draining_.begin(), draining_.end(),
                                          [](const Sequence* seq) { return seq->num_in_flight > 0; });
  drained.insert(drained.end(), kept, draining_.end());
  draining_.erase(kept, draining_.end());
}

// Ranks are unique: the place of a sequence that is in the set is where it stands.
std::vector<Sequence*>::iterator RunningSet::place_of(const Sequence& seq) {
  return std::lower_bound(sequences_.begin(), sequences_.end(), seq.rank,
                          [](const Sequence* other, const Rank& rank) { return other->rank < rank; });
}

}  // namespace plait
