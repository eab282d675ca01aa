// Saves KV blocks of a preempted sequence to memory or to a file and brings them back, on threads of its own.
// Knows: blocks and their bytes, tickets. Must not know: sequences, tokens, when to preempt.
//
// A ticket is the caller's number for one saved list of blocks. Life of a ticket:
//   try_save -> (completion kSave) -> try_fetch -> (completion kFetch), again if wanted -> drop
// Every accepted try_save and try_fetch gives exactly one completion, also after drop. A save that failed
// leaves nothing behind: its ticket is forgotten when the completion is popped.
//
// Who may touch which block, so that no two threads do:
//   save    The caller keeps its references to the blocks until it has popped the completion: while it holds
//           them, nobody is granted to write them. Steps may read them meanwhile. Versions are compared after
//           the copy (kv/block_snapshot.h): a block that was granted to a writer all the same fails the save.
//   fetch   The caller holds the target blocks alone (freshly granted by try_grow) until it has popped the
//           completion, plans no step that touches them before, and asks only when every step has come back
//           that was submitted before the blocks were granted: blocks change hands while a step in flight
//           still uses them, and only steps are ordered among each other.
//   The compute thread's accesses before: compute -> results ring -> caller -> requests ring -> file thread.
//   Its accesses after: file thread -> completions ring -> caller -> steps ring -> compute. Each arrow is a
//   release store paired with an acquire load.
//
// Where the bytes go: memory (anonymous, given back on drop) up to ram_bytes; then an unlinked file in `dir`
// up to file_bytes, with a checksum of each block; a ticket lies in one of the two. Reserving is done in
// try_save by the caller, so that "no room" is an answer at once; whatever the disk says later fails that
// ticket only.
//
// Threads: one caller for all calls but counters(); nothing it calls waits for a lock, a disk or a copy. Two
// threads work, one for saves and one for fetches, so that no fetch waits behind saves; they sleep when idle.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "fileio/io_pool.h"
#include "kv/block_snapshot.h"
#include "plan/kv_storage.h"
#include "runtime/swap_file.h"
#include "sync/doorbell.h"
#include "sync/mpsc_ring.h"

namespace plait {

struct KvSwapOptions {
  int64_t ram_bytes = 0;
  std::string dir;         // folder for the file; empty: memory only
  int64_t file_bytes = 0;  // at most so much in the file; 0: what the disk gives
};

enum class KvTransferKind : uint8_t { kSave, kFetch };

// What became of one request.
struct KvTransfer {
  int64_t ticket = 0;
  KvTransferKind kind = KvTransferKind::kSave;
  bool ok = false;
  bool is_file = false;    // the ticket lies in the file
  std::string error;       // why not ok: for the log; the sequence can be computed again
  int32_t num_blocks = 0;  // copied
  int64_t num_bytes = 0;   // copied
  int64_t begin_ns = 0;    // CLOCK_MONOTONIC, when the thread began and ended the work
  int64_t end_ns = 0;
};

// Totals since construction, of requests that went well, and what is kept now. Any thread; relaxed.
struct KvSwapCounters {
  int64_t num_saved_blocks = 0;
  int64_t num_saved_bytes = 0;
  int64_t num_fetched_blocks = 0;
  int64_t num_fetched_bytes = 0;
  int64_t num_failures = 0;  // saves and fetches that failed, cancelled ones not counted
  int64_t ram_bytes_used = 0;
  int64_t file_bytes_used = 0;
};

class KvSwap {
 public:
  static constexpr int32_t kSkipBlock = -1;
  static constexpr int32_t kMaxTransfers = 256;  // saves and fetches without a popped completion

  // `versions`: of the pool whose blocks these are (KvManager::versions). `done_bell` is rung after each
  // completion. Opens the file, if any: throws Error(kSystem) naming `dir`; Error(kInvalidArgument) for sizes
  // that make no sense.
  KvSwap(std::shared_ptr<KvStorage> storage, std::shared_ptr<const BlockVersions> versions,
         KvSwapOptions options, std::shared_ptr<Doorbell> done_bell);
  // Cancels what is queued, finishes the block at hand and joins.
  ~KvSwap();
  KvSwap(const KvSwap&) = delete;
  KvSwap& operator=(const KvSwap&) = delete;

  // Begins to save. False, with nothing changed, when neither memory nor file has room for all of it or too
  // many transfers are under way: compute again instead. Throws Error(kInvalidArgument) for a ticket that is
  // kept already, no blocks, or blocks outside the storage.
  bool try_save(int64_t ticket, BlockSnapshot snapshot);
  // Begins to bring saved block i back into blocks[i], for each i that is not kSkipBlock; `blocks` may be
  // shorter than what was saved. The ticket stays kept. False, with nothing changed, when too many transfers
  // are under way: ask again later. Throws Error(kInvalidArgument) unless a save of the ticket has succeeded
  // and been popped and no fetch of it is under way, or for blocks outside the storage.
  bool try_fetch(int64_t ticket, std::vector<int32_t> blocks);
  // Forgets the ticket and gives its room back. A transfer of it that is under way is cancelled: it may still
  // touch its blocks, and the number stays taken, until its completion (never ok) is popped. Nothing happens
  // for an unknown ticket.
  void drop(int64_t ticket);
  // False when no completion is there.
  bool try_pop(KvTransfer& transfer);

  // Caller: is the ticket saved, ready for try_fetch?
  bool is_saved(int64_t ticket) const;
  // Caller: accepted requests whose completion has not been popped.
  int32_t num_transfers() const { return num_transfers_; }
  // Caller: would try_save take so many blocks now?
  bool has_room(int32_t num_blocks) const;
  // Any thread.
  KvSwapCounters counters() const;
  // Why a transfer failed, lately; empty: none has. Any thread.
  std::string last_error() const;

 private:
  struct Saved;
  enum class State : uint8_t { kSaving, kSaved, kFetching };
  struct Ticket {
    std::shared_ptr<Saved> saved;
    State state = State::kSaving;
    bool is_dropped = false;
  };
  // Room that comes back once the saving thread has the job that frees it, so that whatever is written there
  // next is written later.
  struct Free {
    IoJob job;
    std::shared_ptr<Saved> saved;
  };

  void check_blocks(const std::vector<int32_t>& blocks, int32_t lowest) const;
  bool try_reserve(Saved& saved);
  void release(const Saved& saved);
  IoJob save_job(int64_t ticket, const std::shared_ptr<Saved>& saved, BlockSnapshot snapshot);
  IoJob fetch_job(int64_t ticket, const std::shared_ptr<Saved>& saved, std::vector<int32_t> blocks);
  bool try_start(IoJob&& job, int32_t lane);
  void complete(KvTransfer&& transfer);
  void note_failure(const std::string& error);
  void forget(int64_t ticket);
  void flush_frees();

  const std::shared_ptr<KvStorage> storage_;
  const std::shared_ptr<const BlockVersions> versions_;
  const KvSwapOptions options_;
  const std::shared_ptr<Doorbell> done_bell_;
  const int64_t block_bytes_;
  std::unique_ptr<SwapFile> file_;  // null: memory only
  std::unordered_map<int64_t, Ticket> tickets_;
  std::deque<Free> frees_;
  int32_t num_transfers_ = 0;
  // As many as transfers may be under way, so that a push cannot fail.
  MpscRing<KvTransfer> completions_{kMaxTransfers};
  // Written by the caller only, relaxed.
  std::atomic<int64_t> ram_bytes_used_{0};
  std::atomic<int64_t> file_bytes_used_{0};
  std::atomic<int64_t> num_saved_blocks_{0};
  std::atomic<int64_t> num_fetched_blocks_{0};
  std::atomic<int64_t> num_failures_{0};
  // The caller only tries to take it: while somebody reads the last error, the next one is not kept.
  mutable std::mutex error_mutex_;
  std::string last_error_;
  IoPool pool_;  // last: its threads end before what they use
};

}  // namespace plait
