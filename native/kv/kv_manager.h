// Which block holds which position of which sequence. Knows: sequences, tokens, blocks, the prefix cache.
// Must not know: bytes of the cache, steps, scheduling policy.
//
// Life of a sequence: open_sequence (takes cached blocks) -> try_grow (a place for the next positions, and
// leave to write them) -> the step runs -> commit (those positions are computed; full blocks become findable)
// -> ... -> close_sequence.
//
// INVARIANT: a published block is never written: every write grant is for a block that one sequence holds
// alone and that the index does not know.
//
// Steps run in the order in which they are planned, and a step's copies run before its writes, in the order
// given. That is why a block may be given away while the step before still uses it, and why a block copied
// from may be handed out again in the same step.
//
// Owner: the engine's main thread calls everything. From any thread: block_version(), and reading a snapshot
// that snapshot() returned, for as long as the reader holds it. A snapshot holds no references: a reader of
// bytes from another thread needs what capture() returns (see block_snapshot.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/gauge.h"
#include "kv/block_pool.h"
#include "kv/block_snapshot.h"
#include "kv/prefix_index.h"

namespace plait {

using BlockTable = std::shared_ptr<const std::vector<int32_t>>;

struct BlockCopy {
  int32_t src;
  int32_t dst;
};

// Totals since construction; they only rise.
struct KvCounters {
  uint64_t num_lookup_tokens = 0;  // prompt tokens of sequences opened with use_cache
  uint64_t num_hit_tokens = 0;     // those of them that were cached
  uint64_t num_evictions = 0;      // cached blocks that gave way to new ones
  uint64_t num_copies = 0;         // copies due by copy-on-write
  uint64_t num_merged_blocks = 0;  // own blocks given up for an equal published one
  uint64_t num_versions = 0;       // write grants: each raises the version of a block
};

// A prefix that is kept; `num_tokens` of it are, in full blocks.
struct PinnedPrefix {
  int64_t handle = 0;
  int32_t num_tokens = 0;
};

class KvManager {
 public:
  // Default of try_grow's first_write: the first position that is not committed.
  static constexpr int32_t kFromCommitted = -1;
  static constexpr int32_t kMaxBlockTokens = 4096;

  // Throws Error (kInvalidArgument) for sizes out of range.
  KvManager(int32_t num_blocks, int32_t block_tokens, std::string model_id);

  // Opens a sequence for a prompt and returns how many of its first tokens are cached and need not be
  // computed: full blocks, and never the whole prompt, since the last token must be computed to get logits.
  // They count as committed. `salt` separates tenants. Without `use_cache` the sequence neither takes from
  // the cache nor publishes to it. Takes no new block. Throws Error (kInvalidArgument) if seq_id is open.
  int32_t open_sequence(int64_t seq_id, std::span<const int32_t> token_ids, std::string_view salt,
                        bool use_cache);

  // Makes room for positions 0..num_tokens and grants writing of first_write..num_tokens. All or nothing:
  // false, with nothing changed, when blocks are short even after evicting every cached one. Shared blocks in
  // the written range are replaced by own ones (copy-on-write); take_copies() tells which content must be
  // copied. When a step is planned before the one before it is committed, pass first_write: else the
  // positions in flight would be taken for positions to be written again, and blocks shared since (fork)
  // copied for nothing.
  bool try_grow(int64_t seq_id, int32_t num_tokens, int32_t first_write = kFromCommitted);

  // A second sequence with all blocks of the first, those in flight included; same tokens committed, same
  // tenant.
  void fork(int64_t parent_id, int64_t child_id);

  // The next token_ids.size() positions are computed and hold these tokens. Blocks that get full are
  // published; if an equal block is published already, the sequence takes that one and gives its own up
  // (content is the same, and memory is saved at once). Throws Error (kInvalidArgument) beyond the room that
  // try_grow made.
  void commit(int64_t seq_id, std::span<const int32_t> token_ids);

  // Gives all blocks back: published ones stay findable until evicted (oldest first, and within a sequence
  // the last block first), others are free. Also for a sequence that a step in flight still uses.
  void close_sequence(int64_t seq_id);

  // Valid until the next call for this sequence.
  std::span<const int32_t> block_table(int64_t seq_id) const { return find(seq_id).blocks; }
  // Immutable; shared between calls until the table changes.
  BlockTable snapshot(int64_t seq_id);
  // The blocks whose content is complete, with their versions: those that are full of committed positions,
  // and the last one that is not full unless positions after the committed ones are granted (a step in flight
  // may write them). `num_tokens` says up to which position that is.
  BlockSnapshot capture(int64_t seq_id) const;
  // Copies due since the last call; perform them in this order before the next step's writes.
  std::vector<BlockCopy> take_copies() { return std::exchange(copies_, {}); }

  // Keeps the published blocks of a prefix from eviction until unpin: the longest run of full blocks from its
  // start (the last one too, other than for open_sequence). They count as used. Pins may overlap; a block
  // counts once. Throws Error (kInvalidArgument) when not even the first block is published, or when more
  // than max_pinned_blocks() would be pinned.
  PinnedPrefix pin_prefix(std::span<const int32_t> token_ids, std::string_view salt);
  // Throws Error (kInvalidArgument) for a handle that is not pinned.
  void unpin(int64_t handle);
  // Distinct blocks.
  int32_t num_pinned_blocks() const { return num_pinned_blocks_; }
  // A quarter of the pool: the rest always stays for sequences, so that what fits there can never starve.
  int32_t max_pinned_blocks() const { return num_blocks() / 4; }

  // Forgets all cached content; sequences that are open keep running and no longer publish. Pinned blocks are
  // let go as well; their handles stay valid and hold nothing.
  void reset_cache();

  bool has_sequence(int64_t seq_id) const { return sequences_.contains(seq_id); }
  int32_t num_committed(int64_t seq_id) const { return find(seq_id).num_committed; }
  int32_t num_sequences() const { return static_cast<int32_t>(sequences_.size()); }
  int32_t num_blocks() const { return pool_.num_blocks(); }
  int32_t block_tokens() const { return block_tokens_; }
  // Free and evictable.
  int32_t num_free_blocks() const { return pool_.num_available(); }
  // Evictable only: content kept for a later prompt. Any thread.
  int32_t num_cached_blocks() const { return pool_.num_cached(); }
  int32_t num_refs(int32_t block) const { return pool_.num_refs(block); }
  uint64_t block_version(int32_t block) const { return pool_.version(block); }
  // Of all blocks, for readers in other threads.
  std::shared_ptr<const BlockVersions> versions() const { return pool_.versions(); }
  // Any thread.
  KvCounters counters() const;

  // Recounts everything; throws Error (kInternal) on a contradiction. For tests.
  void check_consistency() const;

 private:
  struct Sequence {
    std::vector<int32_t> blocks;
    BlockTable snapshot;        // of blocks, or null
    std::vector<int32_t> tail;  // committed tokens after the last full block
    PrefixIndex::Key key;       // of the last full block, or the root
    int32_t num_committed = 0;
    int32_t num_granted = 0;  // positions that were granted to be written, from the start
    bool is_publishing = true;
  };

  Sequence& find(int64_t seq_id);
  const Sequence& find(int64_t seq_id) const;
  // Call only when the pool has an available block.
  int32_t allocate();
  void release(int32_t block) { pool_.release(block, index_.is_published(block)); }
  void make_writable(Sequence& sequence, size_t block_idx, bool has_content);
  void seal_tail(Sequence& sequence);
  // Calls visit(block, key) for the published blocks at the start of `token_ids`, `max_blocks` at most.
  template <typename Visit>
  void walk_prefix(std::span<const int32_t> token_ids, size_t max_blocks, const PrefixIndex::Key& root,
                   const Visit& visit) const;
  void release_pins(const std::vector<int32_t>& blocks);

  const int32_t block_tokens_;
  const std::string model_id_;
  BlockPool pool_;
  PrefixIndex index_;
  std::unordered_map<int64_t, Sequence> sequences_;
  std::vector<BlockCopy> copies_;
  std::unordered_map<int64_t, std::vector<int32_t>> pins_;  // blocks by handle
  std::vector<int32_t> num_pins_;                           // by block
  int32_t num_pinned_blocks_ = 0;
  int64_t next_pin_ = 1;
  // As in KvCounters.
  struct {
    Gauge<uint64_t> num_lookup_tokens, num_hit_tokens, num_evictions, num_copies, num_merged_blocks;
  } totals_;
};

}  // namespace plait
