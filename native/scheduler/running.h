// Sequences that hold a slot and blocks, and preempted ones whose last tokens are still on their way.
//
// Slot and blocks come free at once, even while a step in flight uses them: steps run in the order in which
// they are planned, so whatever that step still writes comes before anything that a new owner's step does.
//
// Owner: the thread that schedules.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/kv_manager.h"
#include "scheduler/sequence.h"

namespace plait {

class RunningSet {
 public:
  RunningSet(int32_t num_slots, KvManager& kv);

  // By rank: the first is the last to be preempted.
  const std::vector<Sequence*>& sequences() const { return sequences_; }
  int32_t size() const { return static_cast<int32_t>(sequences_.size()); }
  bool is_empty() const { return sequences_.empty(); }  // nobody holds a block
  int32_t num_free_slots() const { return static_cast<int32_t>(free_slots_.size()); }

  // Gives a slot (there must be a free one) to a sequence that the KV manager has open.
  void add(Sequence& seq);
  // Takes a running sequence out; its slot and blocks are free.
  void remove(Sequence& seq, SequenceState state);

  // kPreempting, with steps in flight: they hold nothing, and wait again once their tokens are known.
  void drain(Sequence& seq) { draining_.push_back(&seq); }
  bool has_draining() const { return !draining_.empty(); }
  // Moves those whose last step ended to the end of `drained`.
  void take_drained(std::vector<Sequence*>& drained);

 private:
  std::vector<Sequence*>::iterator place_of(const Sequence& seq);

  std::vector<Sequence*> sequences_;
  std::vector<Sequence*> draining_;
  std::vector<int32_t> free_slots_;
  KvManager& kv_;
};

}  // namespace plait
