// The bytes of the KV cache: `num_blocks` blocks of one layout (kernels/attention/attention.h).
// Written by the compute thread only. A block takes memory when it is first written, or before, by prefault.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/memory.h"
#include "kernels/attention/attention.h"

namespace plait {

class KvStorage {
 public:
  KvStorage(const KvLayout& layout, int32_t num_blocks)
      : layout_(layout),
        num_blocks_(num_blocks),
        memory_(layout.block_bytes() * static_cast<size_t>(num_blocks)) {}

  const KvLayout& layout() const { return layout_; }
  int32_t num_blocks() const { return num_blocks_; }
  // Takes the memory of blocks before their first use, see Memory::prefault; a range beyond the end is cut
  // off.
  void prefault(int32_t first_block, int32_t num_blocks, int32_t num_threads) {
    memory_.prefault(static_cast<size_t>(first_block) * layout_.block_bytes(),
                     static_cast<size_t>(num_blocks) * layout_.block_bytes(), num_threads);
  }
  std::byte* pool() const { return memory_.data(); }
  std::byte* block(int32_t id) const {
    return memory_.data() + static_cast<size_t>(id) * layout_.block_bytes();
  }
  void copy_block(int32_t source, int32_t target) {
    std::memcpy(block(target), block(source), layout_.block_bytes());
  }

 private:
  KvLayout layout_;
  int32_t num_blocks_;
  Memory memory_;
};

}  // namespace plait
