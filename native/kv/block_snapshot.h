// Consistent reads of blocks by threads that do not own them. Knows: versions of blocks, what a reader and a
// writer must do. Must not know: sequences, layouts, where the bytes go.
//
// The protocol, in four parts; `owner` is the thread that owns the BlockPool:
//   capture   The owner notes (block, version) at a moment when the block's content is complete: whatever was
//             granted to be written is written and has come back to the owner (acquire). KvManager::capture
//             takes only such blocks. The snapshot goes to readers through anything that orders memory.
//   grant     Before anything may be written, the owner raises the version (BlockPool::grant_write) and only
//             then hands the write to the writer, through a ring (release, acquire).
//   write     The writer calls begin_block_writes() before its first store.
//   confirm   A reader copies the bytes and then asks is_unchanged(): true means that the copy is the
//             captured content, false that it may be torn and must be thrown away.
//
// Why: if a reader saw a byte of a later write, then by that byte the writer's release fence happens before
// the acquire fence in is_unchanged, and the raise happens before the writer's fence; so the reader sees the
// raised version. Versions only rise and have 64 bits: none comes back.
//
// Reader and writer may overlap, so that the bytes themselves must be accessed by atomic loads and stores to
// be no data race: copy_block_bytes does for the reader. The engine's kernels write plainly; there a reader's
// owner holds a reference to each block until the reader is done (see runtime/kv_swap.h), nobody can write
// meanwhile, and the version is what shows a broken promise.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace plait {

// How often each block was granted to be written. The owner raises, any thread reads. Shared, so that a
// reader may outlive the pool.
class BlockVersions {
 public:
  explicit BlockVersions(int32_t num_blocks)
      : num_blocks_(num_blocks),
        versions_(std::make_unique<std::atomic<uint64_t>[]>(static_cast<size_t>(num_blocks))) {}

  // `block` must be in 0..num_blocks. Acquire: pairs with raise's release.
  uint64_t of(int32_t block) const { return versions_[block].load(std::memory_order_acquire); }
  // Owner only.
  void raise(int32_t block) {
    versions_[block].fetch_add(1, std::memory_order_release);
    num_raises_.store(num_raises_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  int32_t num_blocks() const { return num_blocks_; }
  // Any thread: raises of all blocks since construction.
  uint64_t num_raises() const { return num_raises_.load(std::memory_order_relaxed); }

 private:
  const int32_t num_blocks_;
  std::unique_ptr<std::atomic<uint64_t>[]> versions_;
  std::atomic<uint64_t> num_raises_{0};  // written by the owner only
};

// Some blocks and the version of each when its content was complete. A plain value: any thread that has it
// may read it. Holds no references to the blocks.
struct BlockSnapshot {
  std::vector<int32_t> blocks;
  std::vector<uint64_t> versions;  // of blocks, in the same order
  int32_t num_tokens = 0;          // positions 0..num_tokens of the sequence are in them
};

// Writer: everything that the owner did before it handed over the write is seen by whoever sees one of the
// bytes stored from here on.
void begin_block_writes();

// Reader: copies `num_bytes`, a multiple of 8, between addresses aligned to 8, by relaxed atomic loads.
void copy_block_bytes(std::byte* target, const std::byte* source, size_t num_bytes);

// Reader, after it has copied: are these still the captured versions? Throws nothing.
bool is_unchanged(const BlockVersions& versions, const BlockSnapshot& snapshot);

}  // namespace plait
