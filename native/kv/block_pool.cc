#include "kv/block_pool.h"

#include <string>

#include "base/error.h"

namespace plait {

namespace {

[[noreturn]] void throw_internal(const char* what, int32_t block) {
  throw Error(ErrorCode::kInternal, std::string(what) + ", block " + std::to_string(block));
}

}  // namespace

BlockPool::BlockPool(int32_t num_blocks) {
  if (num_blocks <= 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "a block pool needs at least 1 block, got " + std::to_string(num_blocks));
  }
  states_.resize(num_blocks);
  versions_ = std::make_shared<BlockVersions>(num_blocks);
  free_.reserve(num_blocks);
  for (int32_t block = num_blocks - 1; block >= 0; --block) free_.push_back(block);
}

int32_t BlockPool::try_allocate() {
  if (free_.empty()) return kNoBlock;
  const int32_t block = free_.back();
  free_.pop_back();
  states_[block].num_refs = 1;
  return block;
}

int32_t BlockPool::try_evict() {
  const int32_t block = oldest_;
  if (block != kNoBlock) drop_cached(block);
  return block;
}

void BlockPool::acquire(int32_t block) {
  State& state = states_[check(block)];
  if (state.is_cached) {
    remove_cached(block);
  } else if (state.num_refs == 0) {
    throw_internal("acquire of a free block", block);
  }
  ++state.num_refs;
}

void BlockPool::release(int32_t block, bool is_cacheable) {
  State& state = states_[check(block)];
  if (state.num_refs == 0) throw_internal("release of a block without references", block);
  if (--state.num_refs > 0) return;
  if (is_cacheable) {
    append_cached(block);
  } else {
    free_.push_back(block);
  }
}

void BlockPool::drop_cached(int32_t block) {
  if (!states_[check(block)].is_cached) throw_internal("drop of a block that is not cached", block);
  remove_cached(block);
  free_.push_back(block);
}

void BlockPool::grant_write(int32_t block) {
  if (states_[check(block)].num_refs != 1)
    throw_internal("write grant for a block without a sole owner", block);
  versions_->raise(block);
}

size_t BlockPool::check(int32_t block) const {
  if (block < 0 || block >= num_blocks()) {
    throw Error(ErrorCode::kInvalidArgument,
                "block " + std::to_string(block) + " is outside 0.." + std::to_string(num_blocks() - 1));
  }
  return static_cast<size_t>(block);
}

void BlockPool::append_cached(int32_t block) {
  State& state = states_[block];
  state.is_cached = true;
  state.older = newest_;
  state.newer = kNoBlock;
  (newest_ == kNoBlock ? oldest_ : states_[newest_].newer) = block;
  newest_ = block;
  num_cached_.add(1);
}

void BlockPool::remove_cached(int32_t block) {
  State& state = states_[block];
  (state.older == kNoBlock ? oldest_ : states_[state.older].newer) = state.newer;
  (state.newer == kNoBlock ? newest_ : states_[state.newer].older) = state.older;
  state.older = state.newer = kNoBlock;
  state.is_cached = false;
  num_cached_.add(-1);
}

void BlockPool::check_consistency() const {
  std::vector<int8_t> num_seen(states_.size(), 0);
  for (const int32_t block : free_) {
    if (states_[check(block)].num_refs != 0 || states_[block].is_cached)
      throw_internal("free block in use", block);
    if (num_seen[block]++ != 0) throw_internal("block free twice", block);
  }
  int32_t num_listed = 0;
  int32_t previous = kNoBlock;
  for (int32_t block = oldest_; block != kNoBlock; block = states_[block].newer) {
    const State& state = states_[check(block)];
    if (!state.is_cached || state.num_refs != 0 || state.older != previous)
      throw_internal("bad cache list", block);
    if (num_seen[block]++ != 0) throw_internal("block both free and cached", block);
    previous = block;
    ++num_listed;
  }
  if (previous != newest_ || num_listed != num_cached())
    throw_internal("cache list has a wrong length", previous);
  for (int32_t block = 0; block < num_blocks(); ++block) {
    if ((num_seen[block] == 0) != (states_[block].num_refs > 0)) throw_internal("block lost", block);
  }
}

}  // namespace plait
