// Preempted sequences whose KV blocks are saved and brought back instead of computed again. Knows: which
// sequence waits for which transfer. Must not know: who copies, where to, what else runs.
//
// A saved sequence goes
//   running -> saving    slot given back, blocks kept: steps in flight end, then the save is asked for
//           -> waiting   blocks given back, its ticket kept
//           -> fetching  slot and fresh blocks: steps planned before it had them end, then the fetch is asked
//           for
//           -> running   from the saved position on
// A save or fetch that fails falls back to computing: the same tokens either way. A ticket names one save;
// each save and fetch that was asked for is answered once by finish(), also after its ticket was dropped.
// Blocks that a transfer may touch stay held until then.
//
// Owner: the thread that schedules.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "kv/block_snapshot.h"
#include "kv/kv_manager.h"
#include "scheduler/limits.h"
#include "scheduler/sequence.h"
#include "scheduler/stats.h"
#include "scheduler/step_cost.h"

namespace plait {

// What the scheduler asks of whoever moves KV blocks, in this order.
struct SwapRequest {
  enum class Kind : uint8_t { kSave, kFetch, kDrop };

  Kind kind = Kind::kDrop;
  int64_t ticket = 0;
  BlockSnapshot snapshot;       // kSave
  std::vector<int32_t> blocks;  // kFetch: where saved block i goes, or kSkipBlock

  static constexpr int32_t kSkipBlock = -1;
};

// The answer to a kSave or kFetch.
struct SwapResult {
  int64_t ticket = 0;
  bool is_ok = false;
  int64_t num_bytes = 0;  // copied, in
  double seconds = 0.0;   // so long; 0: not measured
};

class Swapping {
 public:
  Swapping(KvManager& kv, const SchedulerLimits& limits, SchedulerStats& stats);

  // Whether moving the blocks of a sequence out and in again takes less time than computing them.
  bool is_worth_saving(const Sequence& seq, const StepCostModel& costs) const;
  // Asks to save a kSaving sequence whose steps have all ended. False: it has nothing to save.
  bool begin_save(Sequence& seq);
  // Is there more in its ticket than its `num_cached` first tokens? Else the ticket is dropped.
  bool has_use_for_ticket(Sequence& seq, int32_t num_cached);
  // A kFetching sequence got its blocks while step `step_id` was planned.
  void begin_fetch(Sequence& seq, int64_t step_id);
  // Asks for the fetches whose blocks no step may touch any more: those before `oldest_step_id` have ended.
  void ask_fetches(int64_t oldest_step_id);
  // The sequence ends: its ticket is dropped. True: a transfer may still touch its blocks, which are given
  // back when it ends; false: they are the caller's to give back.
  bool abandon(Sequence& seq);
  // Takes the answer to a request. Returns the sequence that it is about, with its blocks as they were and
  // `was_save` set, or null when it had ended. Throws Error (kInternal) for a ticket that nothing is asked
  // of.
  Sequence* finish(const SwapResult& result, bool& was_save);
  // Gives up the ticket of a sequence.
  void drop(Sequence& seq);

  // Requests since the last call.
  std::vector<SwapRequest> take_requests();
  // Some sequence that does not run holds blocks, and will give them back.
  bool holds_blocks() const { return num_saving_ > 0 || num_orphans_ > 0; }
  // A preempted sequence that will be saved holds its blocks from now on; finish() or abandon() ends that.
  void hold(Sequence& seq);
  bool has_transfers() const { return !transfers_.empty(); }

 private:
  struct Transfer {
    Sequence* seq = nullptr;  // null: it has ended
    int64_t seq_id = 0;
    bool is_save = false;
  };

  void measure(const SwapResult& result);

  KvManager& kv_;
  const SchedulerLimits& limits_;
  SchedulerStats& stats_;
  std::vector<SwapRequest> requests_;
  std::unordered_map<int64_t, Transfer> transfers_;  // by ticket
  std::vector<Sequence*> fetches_;                   // not asked for yet
  int32_t num_saving_ = 0;
  int32_t num_orphans_ = 0;
  int64_t num_tickets_ = 0;
  double bytes_per_s_;
};

}  // namespace plait
