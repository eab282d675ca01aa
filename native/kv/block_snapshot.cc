#include "kv/block_snapshot.h"

#include <cassert>

// The thread sanitizer does not know fences, and GCC warns that it may therefore report what is no race. Here
// it has nothing to report: versions and bytes are accessed by atomic operations only.
#if defined(__SANITIZE_THREAD__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wtsan"
#endif

namespace plait {

namespace {

uint64_t load_word(const std::byte* at) {
  return __atomic_load_n(reinterpret_cast<const uint64_t*>(at), __ATOMIC_RELAXED);
}

}  // namespace

void begin_block_writes() { std::atomic_thread_fence(std::memory_order_release); }

void copy_block_bytes(std::byte* target, const std::byte* source, size_t num_bytes) {
  assert(num_bytes % sizeof(uint64_t) == 0);
  auto* words = reinterpret_cast<uint64_t*>(target);
  for (size_t at = 0; at < num_bytes; at += sizeof(uint64_t)) *words++ = load_word(source + at);
}

bool is_unchanged(const BlockVersions& versions, const BlockSnapshot& snapshot) {
  std::atomic_thread_fence(std::memory_order_acquire);
  for (size_t i = 0; i < snapshot.blocks.size(); ++i) {
    if (versions.of(snapshot.blocks[i]) != snapshot.versions[i]) return false;
  }
  return true;
}

}  // namespace plait
