#include "kv/kv_manager.h"

#include <algorithm>

#include "base/error.h"

namespace plait {

namespace {

int32_t checked_block_tokens(int32_t block_tokens) {
  if (block_tokens < 1 || block_tokens > KvManager::kMaxBlockTokens) {
    throw Error(ErrorCode::kInvalidArgument, "block_tokens " + std::to_string(block_tokens) +
                                                 " is outside 1.." +
                                                 std::to_string(KvManager::kMaxBlockTokens));
  }
  return block_tokens;
}

[[noreturn]] void throw_invalid(int64_t seq_id, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, "sequence " + std::to_string(seq_id) + " " + what);
}

}  // namespace

KvManager::KvManager(int32_t num_blocks, int32_t block_tokens, std::string model_id)
    : block_tokens_(checked_block_tokens(block_tokens)),
      model_id_(std::move(model_id)),
      pool_(num_blocks),
      index_(num_blocks, block_tokens),
      num_pins_(static_cast<size_t>(num_blocks), 0) {}

int32_t KvManager::open_sequence(int64_t seq_id, std::span<const int32_t> token_ids, std::string_view salt,
                                 bool use_cache) {
  const auto [it, is_new] = sequences_.try_emplace(seq_id);
  if (!is_new) throw_invalid(seq_id, "is already open");
  Sequence& sequence = it->second;
  sequence.is_publishing = use_cache;
  if (!use_cache) return 0;

  sequence.key = PrefixIndex::root_key(model_id_, salt);
  const size_t max_blocks = token_ids.empty() ? 0 : (token_ids.size() - 1) / block_tokens_;
  walk_prefix(token_ids, max_blocks, sequence.key, [&](int32_t block, const PrefixIndex::Key& key) {
    pool_.acquire(block);
    sequence.blocks.push_back(block);
    sequence.key = key;
  });
  sequence.num_committed = static_cast<int32_t>(sequence.blocks.size() * block_tokens_);
  sequence.num_granted = sequence.num_committed;
  totals_.num_lookup_tokens.add(token_ids.size());
  totals_.num_hit_tokens.add(static_cast<uint64_t>(sequence.num_committed));
  return sequence.num_committed;
}

template <typename Visit>
void KvManager::walk_prefix(std::span<const int32_t> token_ids, size_t max_blocks,
                            const PrefixIndex::Key& root, const Visit& visit) const {
  PrefixIndex::Key parent = root;
  for (size_t i = 0; i < max_blocks; ++i) {
    const auto tokens = token_ids.subspan(i * block_tokens_, block_tokens_);
    const PrefixIndex::Key key = PrefixIndex::child_key(parent, tokens);
    const int32_t block = index_.find(key, parent, tokens);
    if (block == PrefixIndex::kNoBlock) return;
    visit(block, key);
    parent = key;
  }
}

bool KvManager::try_grow(int64_t seq_id, int32_t num_tokens, int32_t first_write) {
  Sequence& sequence = find(seq_id);
  if (first_write == kFromCommitted) first_write = sequence.num_committed;
  if (first_write < sequence.num_committed) throw_invalid(seq_id, "may not write committed positions again");
  const size_t num_old = sequence.blocks.size();
  if (static_cast<size_t>(first_write) > num_old * block_tokens_) {
    throw_invalid(seq_id, "may not leave a gap before the first position to write");
  }
  if (num_tokens <= first_write) return true;

  const size_t num_needed = (static_cast<size_t>(num_tokens) + block_tokens_ - 1) / block_tokens_;
  const size_t begin = static_cast<size_t>(first_write) / block_tokens_;
  const size_t end = std::min(num_old, num_needed);
  size_t num_new = num_needed - end;
  for (size_t i = begin; i < end; ++i) num_new += pool_.num_refs(sequence.blocks[i]) > 1;
  if (num_new > static_cast<size_t>(pool_.num_available())) return false;

  for (size_t i = begin; i < end; ++i) {
    make_writable(sequence, i, i * block_tokens_ < static_cast<size_t>(first_write));
  }
  for (size_t i = num_old; i < num_needed; ++i) {
    sequence.blocks.push_back(allocate());
    pool_.grant_write(sequence.blocks.back());
    sequence.snapshot.reset();
  }
  sequence.num_granted = std::max(sequence.num_granted, num_tokens);
  return true;
}

// `has_content`: the block holds positions before the written range, which a new block must take over.
void KvManager::make_writable(Sequence& sequence, size_t block_idx, bool has_content) {
  const int32_t block = sequence.blocks[block_idx];
  if (pool_.num_refs(block) > 1) {
    const int32_t own = allocate();
    if (has_content) {
      copies_.push_back({block, own});
      totals_.num_copies.add(1);
    }
    release(block);
    sequence.blocks[block_idx] = own;
    sequence.snapshot.reset();
  } else {
    // Published by another sequence that shared it and is gone: it will be overwritten, so nobody may find
    // it.
    index_.erase(block);
  }
  pool_.grant_write(sequence.blocks[block_idx]);
}

void KvManager::fork(int64_t parent_id, int64_t child_id) {
  if (has_sequence(child_id)) throw_invalid(child_id, "is already open");
  Sequence child = find(parent_id);
  for (const int32_t block : child.blocks) pool_.acquire(block);
  sequences_.emplace(child_id, std::move(child));
}

void KvManager::commit(int64_t seq_id, std::span<const int32_t> token_ids) {
  Sequence& sequence = find(seq_id);
  const size_t num_room = sequence.blocks.size() * block_tokens_ - sequence.num_committed;
  if (token_ids.size() > num_room) {
    throw_invalid(seq_id, "has room for " + std::to_string(num_room) + " more tokens, cannot commit " +
                              std::to_string(token_ids.size()));
  }
  while (!token_ids.empty()) {
    const size_t num_taken = std::min(token_ids.size(), block_tokens_ - sequence.tail.size());
    sequence.tail.insert(sequence.tail.end(), token_ids.begin(), token_ids.begin() + num_taken);
    sequence.num_committed += static_cast<int32_t>(num_taken);
    token_ids = token_ids.subspan(num_taken);
    if (sequence.tail.size() == static_cast<size_t>(block_tokens_)) seal_tail(sequence);
  }
}

void KvManager::seal_tail(Sequence& sequence) {
  if (sequence.is_publishing) {
    int32_t& own = sequence.blocks[sequence.num_committed / block_tokens_ - 1];
    const PrefixIndex::Key key = PrefixIndex::child_key(sequence.key, sequence.tail);
    if (!index_.try_insert(key, sequence.key, sequence.tail, own)) {
      // After a fork the published block can be the same one; otherwise it is a twin, computed at the same
      // time.
      const int32_t twin = index_.find(key, sequence.key, sequence.tail);
      if (twin != PrefixIndex::kNoBlock && twin != own) {
        pool_.acquire(twin);
        release(own);
        own = twin;
        sequence.snapshot.reset();
        totals_.num_merged_blocks.add(1);
      }
    }
    sequence.key = key;
  }
  sequence.tail.clear();
}

void KvManager::close_sequence(int64_t seq_id) {
  const Sequence& sequence = find(seq_id);
  // Last block first: it gets older in the cache than the blocks without which it cannot be found.
  for (auto it = sequence.blocks.rbegin(); it != sequence.blocks.rend(); ++it) release(*it);
  sequences_.erase(seq_id);
}

BlockTable KvManager::snapshot(int64_t seq_id) {
  Sequence& sequence = find(seq_id);
  if (!sequence.snapshot) sequence.snapshot = std::make_shared<const std::vector<int32_t>>(sequence.blocks);
  return sequence.snapshot;
}

BlockSnapshot KvManager::capture(int64_t seq_id) const {
  const Sequence& sequence = find(seq_id);
  const int32_t num_tokens = sequence.num_granted > sequence.num_committed
                                 ? sequence.num_committed / block_tokens_ * block_tokens_
                                 : sequence.num_committed;
  const auto num_blocks = static_cast<size_t>((num_tokens + block_tokens_ - 1) / block_tokens_);
  BlockSnapshot captured;
  captured.num_tokens = num_tokens;
  captured.blocks.assign(sequence.blocks.begin(), sequence.blocks.begin() + num_blocks);
  captured.versions.reserve(num_blocks);
  for (const int32_t block : captured.blocks) captured.versions.push_back(pool_.version(block));
  return captured;
}

PinnedPrefix KvManager::pin_prefix(std::span<const int32_t> token_ids, std::string_view salt) {
  std::vector<int32_t> blocks;
  walk_prefix(token_ids, token_ids.size() / block_tokens_, PrefixIndex::root_key(model_id_, salt),
              [&](int32_t block, const PrefixIndex::Key&) { blocks.push_back(block); });
  if (blocks.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "cannot pin a prefix of " + std::to_string(token_ids.size()) +
                                                 " tokens: its first full block of " +
                                                 std::to_string(block_tokens_) +
                                                 " tokens is not in the cache; compute it first");
  }
  const auto num_new = static_cast<int32_t>(
      std::count_if(blocks.begin(), blocks.end(), [&](int32_t block) { return num_pins_[block] == 0; }));
  if (num_pinned_blocks_ + num_new > max_pinned_blocks()) {
    throw Error(ErrorCode::kInvalidArgument,
                "cannot pin " + std::to_string(num_new) +
                    " more blocks: " + std::to_string(num_pinned_blocks_) + " are pinned, and at most " +
                    std::to_string(max_pinned_blocks()) + " of " + std::to_string(num_blocks()) + " may be");
  }
  for (const int32_t block : blocks) {
    pool_.acquire(block);
    num_pinned_blocks_ += num_pins_[block]++ == 0;
  }
  const auto num_tokens = static_cast<int32_t>(blocks.size()) * block_tokens_;
  const int64_t handle = next_pin_++;
  pins_.emplace(handle, std::move(blocks));
  return {handle, num_tokens};
}

void KvManager::unpin(int64_t handle) {
  const auto it = pins_.find(handle);
  if (it == pins_.end()) {
    throw Error(ErrorCode::kInvalidArgument, "no prefix is pinned as " + std::to_string(handle));
  }
  release_pins(it->second);
  pins_.erase(it);
}

// Last block first, as in close_sequence.
void KvManager::release_pins(const std::vector<int32_t>& blocks) {
  for (auto it = blocks.rbegin(); it != blocks.rend(); ++it) {
    num_pinned_blocks_ -= --num_pins_[*it] == 0;
    release(*it);
  }
}

KvCounters KvManager::counters() const {
  return {.num_lookup_tokens = totals_.num_lookup_tokens.get(),
          .num_hit_tokens = totals_.num_hit_tokens.get(),
          .num_evictions = totals_.num_evictions.get(),
          .num_copies = totals_.num_copies.get(),
          .num_merged_blocks = totals_.num_merged_blocks.get(),
          .num_versions = pool_.versions()->num_raises()};
}

void KvManager::reset_cache() {
  for (auto& [handle, blocks] : pins_) release_pins(std::exchange(blocks, {}));
  while (pool_.try_evict() != BlockPool::kNoBlock) {
  }
  index_.clear();
  // What they compute from now on may rest on forgotten content.
  for (auto& [seq_id, sequence] : sequences_) sequence.is_publishing = false;
}

KvManager::Sequence& KvManager::find(int64_t seq_id) {
  const auto it = sequences_.find(seq_id);
  if (it == sequences_.end()) throw_invalid(seq_id, "is not open");
  return it->second;
}

const KvManager::Sequence& KvManager::find(int64_t seq_id) const {
  return const_cast<KvManager*>(this)->find(seq_id);
}

int32_t KvManager::allocate() {
  if (pool_.num_free() == 0) {
    const int32_t evicted = pool_.try_evict();
    if (evicted == BlockPool::kNoBlock)
      throw Error(ErrorCode::kInternal, "allocation without an available block");
    index_.erase(evicted);
    totals_.num_evictions.add(1);
  }
  return pool_.try_allocate();
}

void KvManager::check_consistency() const {
  pool_.check_consistency();
  std::vector<int32_t> num_refs(num_blocks(), 0);
  for (const auto& [seq_id, sequence] : sequences_) {
    for (const int32_t block : sequence.blocks) ++num_refs[block];
    const bool has_room =
        sequence.blocks.size() * block_tokens_ >= static_cast<size_t>(sequence.num_committed);
    const bool has_tail = sequence.tail.size() == static_cast<size_t>(sequence.num_committed % block_tokens_);
    const bool is_granted =
        sequence.num_granted >= sequence.num_committed &&
        sequence.blocks.size() * block_tokens_ >= static_cast<size_t>(sequence.num_granted);
    if (!has_room || !has_tail || !is_granted ||
        (sequence.snapshot && *sequence.snapshot != sequence.blocks)) {
      throw Error(ErrorCode::kInternal, "sequence " + std::to_string(seq_id) + " contradicts itself");
    }
  }
  std::vector<int32_t> num_pins(num_blocks(), 0);
  for (const auto& [handle, blocks] : pins_) {
    for (const int32_t block : blocks) {
      ++num_refs[block];
      ++num_pins[block];
    }
  }
  const auto num_pinned = num_blocks() - std::count(num_pins.begin(), num_pins.end(), 0);
  if (num_pins != num_pins_ || num_pinned != num_pinned_blocks_ || num_pinned > max_pinned_blocks())
    throw Error(ErrorCode::kInternal, "pinned blocks are miscounted");
  int32_t num_published = 0;
  for (int32_t block = 0; block < num_blocks(); ++block) {
    const bool is_published = index_.is_published(block);
    num_published += is_published;
    const bool is_kept = pool_.num_refs(block) > 0 || pool_.is_cached(block);
    if (num_refs[block] != pool_.num_refs(block) || (is_published && !is_kept) ||
        (pool_.is_cached(block) && !is_published)) {
      throw Error(ErrorCode::kInternal, "block " + std::to_string(block) + " contradicts its users");
    }
  }
  if (num_published != index_.num_published())
    throw Error(ErrorCode::kInternal, "the prefix index lost a block");
}

}  // namespace plait
