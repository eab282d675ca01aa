// A fixed number of blocks: who is free, how often each is referenced, which may be evicted. Knows: numbers
// of blocks. Must not know: bytes, tokens, sequences, hashes.
//
// A block is in exactly one state:
//   free    no reference; on the free list
//   used    1 or more references
//   cached  no reference, but its content is still wanted; on the list of evictable blocks, oldest first
//
// Owner: the engine's main thread calls everything. version() may be read from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/gauge.h"
#include "kv/block_snapshot.h"

namespace plait {

class BlockPool {
 public:
  static constexpr int32_t kNoBlock = -1;

  // Throws Error (kInvalidArgument) unless num_blocks is positive. The only allocation of memory.
  explicit BlockPool(int32_t num_blocks);
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // Takes a free block with one reference; kNoBlock when no block is free, cached ones or not.
  int32_t try_allocate();
  // Makes the oldest cached block free and returns it, so that the caller forgets its content; kNoBlock when
  // none.
  int32_t try_evict();
  // One more reference; a cached block becomes used. Throws Error (kInternal) for a free one.
  void acquire(int32_t block);
  // One reference less. The last one makes the block cached (`is_cacheable`, as the newest) or free.
  // Throws Error (kInternal) when it has none.
  void release(int32_t block, bool is_cacheable);
  // A cached block becomes free: its content is no longer wanted. Throws Error (kInternal) if it is not
  // cached.
  void drop_cached(int32_t block);
  // Says that the holder may now write: raises the version. Throws Error (kInternal) unless the block has
  // exactly one reference.
  void grant_write(int32_t block);

  // Any thread. How often the block was granted to be written; see block_snapshot.h for what readers do with
  // it.
  uint64_t version(int32_t block) const {
    check(block);
    return versions_->of(block);
  }
  // The versions themselves, for readers in other threads.
  std::shared_ptr<const BlockVersions> versions() const { return versions_; }

  int32_t num_refs(int32_t block) const { return states_[check(block)].num_refs; }
  bool is_cached(int32_t block) const { return states_[check(block)].is_cached; }
  int32_t num_blocks() const { return static_cast<int32_t>(states_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  int32_t num_cached() const { return num_cached_.get(); }  // any thread
  // Free and cached: what allocation can still deliver.
  int32_t num_available() const { return num_free() + num_cached(); }

  // Recounts everything in O(num_blocks); throws Error (kInternal) on a contradiction. For tests.
  void check_consistency() const;

 private:
  struct State {
    int32_t num_refs = 0;
    int32_t older = kNoBlock;  // neighbours in the list of cached blocks
    int32_t newer = kNoBlock;
    bool is_cached = false;
  };

  // Returns the index; throws Error (kInvalidArgument) outside 0..num_blocks.
  size_t check(int32_t block) const;
  void append_cached(int32_t block);
  void remove_cached(int32_t block);

  std::vector<State> states_;
  std::vector<int32_t> free_;  // a stack: the block freed last is the warmest in the CPU's caches
  int32_t oldest_ = kNoBlock;
  int32_t newest_ = kNoBlock;
  Gauge<int32_t> num_cached_;
  std::shared_ptr<BlockVersions> versions_;
};

}  // namespace plait
