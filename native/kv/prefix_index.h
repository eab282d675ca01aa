// Finds the block that holds given tokens after a given prefix. Knows: tokens and keys of published blocks.
// Must not know: references, sequences, bytes of the cache.
//
// The key of a block is SHA-256(tag, key of the block before, its tokens); the first one follows the root key
// SHA-256(tag, model id, tenant salt). So a key stands for the model, the tenant and every token up to the
// block's end. A hit also compares the block's tokens and the key before it: a wrong hit needs a collision
// and still fails.
//
// Owner: the engine's main thread.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kv/sha256.h"

namespace plait {

class PrefixIndex {
 public:
  using Key = Sha256Digest;
  static constexpr int32_t kNoBlock = -1;

  PrefixIndex(int32_t num_blocks, int32_t block_tokens);

  static Key root_key(std::string_view model_id, std::string_view salt);
  static Key child_key(const Key& parent, std::span<const int32_t> tokens);

  // The block published under `key`, if its tokens and parent are these; else kNoBlock.
  int32_t find(const Key& key, const Key& parent, std::span<const int32_t> tokens) const;
  // Publishes a block (`tokens` must be one full block). False, with nothing changed, if the key is taken or
  // the block is already published.
  bool try_insert(const Key& key, const Key& parent, std::span<const int32_t> tokens, int32_t block);
  // Forgets a block; nothing happens if it is not published.
  void erase(int32_t block);
  void clear();

  bool is_published(int32_t block) const { return entries_[block].is_published; }
  int32_t num_published() const { return static_cast<int32_t>(blocks_.size()); }

 private:
  struct Entry {
    Key key;
    Key parent;
    bool is_published = false;
  };
  // The keys are uniform already; tenants cannot choose them without breaking SHA-256.
  struct KeyHash {
    size_t operator()(const Key& key) const {
      size_t hash;
      std::memcpy(&hash, key.data(), sizeof(hash));
      return hash;
    }
  };

  const size_t block_tokens_;
  std::vector<Entry> entries_;   // by block
  std::vector<int32_t> tokens_;  // (num_blocks, block_tokens)
  std::unordered_map<Key, int32_t, KeyHash> blocks_;
};

}  // namespace plait
