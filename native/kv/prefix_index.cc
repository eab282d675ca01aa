#include "kv/prefix_index.h"

#include <algorithm>
#include <bit>

namespace plait {

namespace {

// Lengths and tokens go in as little-endian words, so that equal input gives equal keys on every machine.
void update_word(Sha256& hash, uint64_t word) {
  uint8_t bytes[8];
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<uint8_t>(word >> (8 * i));
  hash.update(bytes, sizeof(bytes));
}

void update_sized(Sha256& hash, std::string_view bytes) {
  update_word(hash, bytes.size());
  hash.update(bytes.data(), bytes.size());
}

constexpr uint8_t kRootTag = 'R';
constexpr uint8_t kBlockTag = 'B';

}  // namespace

PrefixIndex::PrefixIndex(int32_t num_blocks, int32_t block_tokens)
    : block_tokens_(block_tokens),
      entries_(num_blocks),
      tokens_(static_cast<size_t>(num_blocks) * block_tokens) {
  blocks_.reserve(num_blocks);
}

PrefixIndex::Key PrefixIndex::root_key(std::string_view model_id, std::string_view salt) {
  Sha256 hash;
  hash.update(&kRootTag, 1);
  update_sized(hash, model_id);
  update_sized(hash, salt);
  return hash.finish();
}

PrefixIndex::Key PrefixIndex::child_key(const Key& parent, std::span<const int32_t> tokens) {
  Sha256 hash;
  hash.update(&kBlockTag, 1);
  hash.update(parent.data(), parent.size());
  if constexpr (std::endian::native == std::endian::little) {
    hash.update(tokens.data(), tokens.size_bytes());
  } else {
    for (const int32_t token : tokens) {
      const auto word = static_cast<uint32_t>(token);
      const uint8_t bytes[4] = {static_cast<uint8_t>(word), static_cast<uint8_t>(word >> 8),
                                static_cast<uint8_t>(word >> 16), static_cast<uint8_t>(word >> 24)};
      hash.update(bytes, sizeof(bytes));
    }
  }
  return hash.finish();
}

int32_t PrefixIndex::find(const Key& key, const Key& parent, std::span<const int32_t> tokens) const {
  const auto it = blocks_.find(key);
  if (it == blocks_.end() || tokens.size() != block_tokens_) return kNoBlock;
  const int32_t block = it->second;
  const int32_t* stored = tokens_.data() + block * block_tokens_;
  if (entries_[block].parent != parent || !std::equal(tokens.begin(), tokens.end(), stored)) return kNoBlock;
  return block;
}

bool PrefixIndex::try_insert(const Key& key, const Key& parent, std::span<const int32_t> tokens,
                             int32_t block) {
  Entry& entry = entries_[block];
  if (entry.is_published || tokens.size() != block_tokens_ || !blocks_.try_emplace(key, block).second)
    return false;
  entry = {key, parent, true};
  std::copy(tokens.begin(), tokens.end(), tokens_.begin() + block * block_tokens_);
  return true;
}

void PrefixIndex::erase(int32_t block) {
  Entry& entry = entries_[block];
  if (!entry.is_published) return;
  blocks_.erase(entry.key);
  entry.is_published = false;
}

void PrefixIndex::clear() {
  for (const auto& [key, block] : blocks_) entries_[block].is_published = false;
  blocks_.clear();
}

}  // namespace plait
