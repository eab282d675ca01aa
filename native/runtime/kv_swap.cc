#include "runtime/kv_swap.h"

#include <cstring>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/memory.h"
#include "fileio/checksum.h"
#include "trace/trace.h"

namespace plait {

namespace {

constexpr int32_t kSaveLane = 0;
constexpr int32_t kFetchLane = 1;
constexpr int32_t kNumLanes = 2;
constexpr size_t kLaneDepth = 2 * KvSwap::kMaxTransfers;  // frees wait there too

constexpr TraceName kSaveTrace = {"kv save", "io", {"ticket", "blocks", "in file"}};
constexpr TraceName kFetchTrace = {"kv fetch", "io", {"ticket", "blocks", "in file"}};

constexpr const char* kTorn = "a block was given to a writer while it was saved; the copy is thrown away";

[[noreturn]] void throw_invalid(int64_t ticket, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, "KV swap ticket " + std::to_string(ticket) + " " + what);
}

void add(std::atomic<int64_t>& counter, int64_t amount) {
  counter.store(counter.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
}

}  // namespace

// What is kept of a ticket. `memory` and `checksums` are written by the saving thread and read by the
// fetching one, which gets them by way of the caller; the rest is constant once the job is submitted.
struct KvSwap::Saved {
  int32_t num_blocks = 0;
  int64_t num_bytes = 0;
  bool is_file = false;
  Memory memory;
  std::vector<SwapFile::Extent> extents;
  std::vector<uint64_t> checksums;  // of each block, when it is in the file
  std::shared_ptr<std::atomic<bool>> cancelled = std::make_shared<std::atomic<bool>>(false);

  bool is_cancelled() const { return cancelled->load(std::memory_order_acquire); }
};

KvSwap::KvSwap(std::shared_ptr<KvStorage> storage, std::shared_ptr<const BlockVersions> versions,
               KvSwapOptions options, std::shared_ptr<Doorbell> done_bell)
    : storage_(std::move(storage)),
      versions_(std::move(versions)),
      options_(std::move(options)),
      done_bell_(std::move(done_bell)),
      block_bytes_(static_cast<int64_t>(storage_->layout().block_bytes())),
      pool_(kNumLanes, kLaneDepth) {
  if (options_.ram_bytes < 0 || options_.file_bytes < 0) {
    throw Error(ErrorCode::kInvalidArgument, "KV swap: ram_bytes and file_bytes must be at least 0");
  }
  if (versions_->num_blocks() != storage_->num_blocks()) {
    throw Error(ErrorCode::kInvalidArgument,
                "KV swap: the storage has " + std::to_string(storage_->num_blocks()) + " blocks, the pool " +
                    std::to_string(versions_->num_blocks()));
  }
  if (!options_.dir.empty()) {
    file_ = std::make_unique<SwapFile>(options_.dir, block_bytes_, options_.file_bytes);
  }
}

KvSwap::~KvSwap() {
  for (auto& [ticket, entry] : tickets_) entry.saved->cancelled->store(true, std::memory_order_release);
}

void KvSwap::check_blocks(const std::vector<int32_t>& blocks, int32_t lowest) const {
  for (const int32_t block : blocks) {
    if (block < lowest || block >= storage_->num_blocks()) {
      throw Error(ErrorCode::kInvalidArgument, "KV swap: block " + std::to_string(block) + " is outside 0.." +
                                                   std::to_string(storage_->num_blocks() - 1));
    }
  }
}

bool KvSwap::has_room(int32_t num_blocks) const {
  const int64_t ram_left = options_.ram_bytes - ram_bytes_used_.load(std::memory_order_relaxed);
  return num_transfers_ < kMaxTransfers &&
         (num_blocks * block_bytes_ <= ram_left || (file_ && file_->has_room(num_blocks)));
}

bool KvSwap::try_reserve(Saved& saved) {
  if (saved.num_bytes <= options_.ram_bytes - ram_bytes_used_.load(std::memory_order_relaxed)) {
    add(ram_bytes_used_, saved.num_bytes);
    return true;
  }
  saved.is_file = file_ && file_->try_reserve(saved.num_blocks, saved.extents);
  if (saved.is_file) add(file_bytes_used_, saved.num_bytes);
  return saved.is_file;
}

void KvSwap::release(const Saved& saved) {
  if (saved.is_file) file_->release(saved.extents);
  add(saved.is_file ? file_bytes_used_ : ram_bytes_used_, -saved.num_bytes);
}

bool KvSwap::try_start(IoJob&& job, int32_t lane) {
  if (!pool_.try_submit(std::move(job), lane)) return false;
  ++num_transfers_;
  return true;
}

bool KvSwap::try_save(int64_t ticket, BlockSnapshot snapshot) {
  flush_frees();
  if (tickets_.contains(ticket)) throw_invalid(ticket, "is kept already");
  if (snapshot.blocks.empty() || snapshot.blocks.size() != snapshot.versions.size()) {
    throw_invalid(ticket, "needs blocks, and a version for each");
  }
  check_blocks(snapshot.blocks, 0);
  if (num_transfers_ == kMaxTransfers) return false;
  auto saved = std::make_shared<Saved>();
  saved->num_blocks = static_cast<int32_t>(snapshot.blocks.size());
  saved->num_bytes = saved->num_blocks * block_bytes_;
  if (!try_reserve(*saved)) return false;
  if (!try_start(save_job(ticket, saved, std::move(snapshot)), kSaveLane)) {
    release(*saved);
    return false;
  }
  tickets_.emplace(ticket, Ticket{std::move(saved), State::kSaving, false});
  return true;
}

bool KvSwap::try_fetch(int64_t ticket, std::vector<int32_t> blocks) {
  const auto it = tickets_.find(ticket);
  if (it == tickets_.end() || it->second.is_dropped) throw_invalid(ticket, "is not kept");
  Ticket& entry = it->second;
  if (entry.state != State::kSaved) throw_invalid(ticket, "has a transfer under way");
  if (blocks.size() > static_cast<size_t>(entry.saved->num_blocks)) {
    throw_invalid(ticket, "has " + std::to_string(entry.saved->num_blocks) + " blocks, not " +
                              std::to_string(blocks.size()));
  }
  check_blocks(blocks, kSkipBlock);
  if (num_transfers_ == kMaxTransfers) return false;
  if (!try_start(fetch_job(ticket, entry.saved, std::move(blocks)), kFetchLane)) return false;
  entry.state = State::kFetching;
  return true;
}

// The copy is made first and judged second: see block_snapshot.h.
IoJob KvSwap::save_job(int64_t ticket, const std::shared_ptr<Saved>& saved, BlockSnapshot snapshot) {
  IoJob job;
  job.cancelled = saved->cancelled;
  job.trace = &kSaveTrace;
  job.trace_args = {ticket, saved->num_blocks, saved->is_file};
  const auto shared = std::make_shared<const BlockSnapshot>(std::move(snapshot));
  const auto size = static_cast<size_t>(block_bytes_);
  if (saved->is_file) {
    auto block = shared->blocks.begin();
    for (const SwapFile::Extent& extent : saved->extents) {
      const int64_t offset = extent.first * block_bytes_;
      job.ops.push_back(IoOp::reserve(file_->fd(), offset, extent.num_slots * block_bytes_));
      for (int64_t i = 0; i < extent.num_slots; ++i) {
        job.ops.push_back(
            IoOp::write(file_->fd(), offset + i * block_bytes_, std::span(storage_->block(*block++), size)));
      }
    }
  }
  job.ops.push_back(IoOp::run([this, saved, shared, size] {
    if (!saved->is_file) saved->memory = Memory(static_cast<size_t>(saved->num_bytes));
    std::byte* target = saved->memory.data();
    for (const int32_t block : shared->blocks) {
      if (saved->is_cancelled()) return;
      if (saved->is_file) {
        saved->checksums.push_back(checksum64({storage_->block(block), size}));
      } else {
        copy_block_bytes(target, storage_->block(block), size);
        target += size;
      }
    }
    if (!is_unchanged(*versions_, *shared)) throw Error(ErrorCode::kInternal, kTorn);
  }));
  job.done = [this, ticket, saved](const IoResult& result) {
    complete({ticket, KvTransferKind::kSave, result.error.empty(), saved->is_file, result.error,
              saved->num_blocks, saved->num_bytes, result.begin_ns, result.end_ns});
  };
  return job;
}

IoJob KvSwap::fetch_job(int64_t ticket, const std::shared_ptr<Saved>& saved, std::vector<int32_t> blocks) {
  IoJob job;
  job.cancelled = saved->cancelled;
  const auto size = static_cast<size_t>(block_bytes_);
  int32_t num_blocks = 0;
  size_t idx = 0;
  for (const SwapFile::Extent& extent : saved->extents) {
    for (int64_t i = 0; i < extent.num_slots && idx < blocks.size(); ++i, ++idx) {
      if (blocks[idx] == kSkipBlock) continue;
      job.ops.push_back(IoOp::read(file_->fd(), (extent.first + i) * block_bytes_,
                                   std::span(storage_->block(blocks[idx]), size)));
    }
  }
  for (const int32_t block : blocks) num_blocks += block != kSkipBlock;
  job.trace = &kFetchTrace;
  job.trace_args = {ticket, num_blocks, saved->is_file};
  job.ops.push_back(IoOp::run([this, saved, blocks = std::move(blocks), size] {
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (saved->is_cancelled()) return;
      if (blocks[i] == kSkipBlock) continue;
      std::byte* target = storage_->block(blocks[i]);
      if (!saved->is_file) {
        std::memcpy(target, saved->memory.data() + i * size, size);
      } else if (checksum64({target, size}) != saved->checksums[i]) {
        throw Error(ErrorCode::kInvalidFile, "the file of swapped-out KV in " + options_.dir +
                                                 " is damaged: the checksum of block " + std::to_string(i) +
                                                 " differs");
      }
    }
  }));
  job.done = [this, ticket, saved, num_blocks](const IoResult& result) {
    complete({ticket, KvTransferKind::kFetch, result.error.empty(), saved->is_file, result.error, num_blocks,
              num_blocks * block_bytes_, result.begin_ns, result.end_ns});
  };
  return job;
}

void KvSwap::complete(KvTransfer&& transfer) {
  if (!transfer.ok && transfer.is_file) {
    transfer.error = "KV swap, file in " + options_.dir + ": " + transfer.error;
  }
  static constexpr TraceName kSave = {"save", "io", {"ticket", "blocks", "bytes"}};
  static constexpr TraceName kFetch = {"fetch", "io", {"ticket", "blocks", "bytes"}};
  record_trace(transfer.kind == KvTransferKind::kSave ? kSave : kFetch, transfer.begin_ns, transfer.end_ns,
               {transfer.ticket, transfer.num_blocks, transfer.num_bytes});
  completions_.try_push(std::move(transfer));
  done_bell_->ring();
}

void KvSwap::note_failure(const std::string& error) {
  if (const std::unique_lock lock(error_mutex_, std::try_to_lock); lock.owns_lock()) last_error_ = error;
  add(num_failures_, 1);
}

std::string KvSwap::last_error() const {
  const std::lock_guard lock(error_mutex_);
  return last_error_;
}

bool KvSwap::try_pop(KvTransfer& transfer) {
  flush_frees();
  if (!completions_.try_pop(transfer)) return false;
  --num_transfers_;
  Ticket& entry = tickets_.at(transfer.ticket);
  if (entry.is_dropped) {
    transfer.ok = false;
    transfer.error = "cancelled";
  } else if (!transfer.ok) {
    note_failure(transfer.error);
  }
  if (!transfer.ok) {
    transfer.num_blocks = 0;
    transfer.num_bytes = 0;
  }
  const bool is_save = transfer.kind == KvTransferKind::kSave;
  add(is_save ? num_saved_blocks_ : num_fetched_blocks_, transfer.num_blocks);
  entry.state = State::kSaved;
  if (entry.is_dropped || (is_save && !transfer.ok)) forget(transfer.ticket);
  return true;
}

void KvSwap::drop(int64_t ticket) {
  const auto it = tickets_.find(ticket);
  if (it == tickets_.end()) return;
  if (it->second.state == State::kSaved) {
    forget(ticket);
  } else {
    it->second.is_dropped = true;
    it->second.saved->cancelled->store(true, std::memory_order_release);
  }
}

// Memory is unmapped, and room on the disk given back, by the saving thread.
void KvSwap::forget(int64_t ticket) {
  const auto it = tickets_.find(ticket);
  Free free;
  free.saved = std::move(it->second.saved);
  tickets_.erase(it);
  for (const SwapFile::Extent& extent : free.saved->extents) {
    free.job.ops.push_back(
        IoOp::punch(file_->fd(), extent.first * block_bytes_, extent.num_slots * block_bytes_));
  }
  free.job.ops.push_back(IoOp::run([saved = free.saved] { saved->memory = Memory(); }));
  frees_.push_back(std::move(free));
  flush_frees();
}

void KvSwap::flush_frees() {
  while (!frees_.empty() && pool_.try_submit(std::move(frees_.front().job), kSaveLane)) {
    release(*frees_.front().saved);
    frees_.pop_front();
  }
}

bool KvSwap::is_saved(int64_t ticket) const {
  const auto it = tickets_.find(ticket);
  return it != tickets_.end() && it->second.state == State::kSaved;
}

KvSwapCounters KvSwap::counters() const {
  KvSwapCounters counters;
  counters.num_saved_blocks = num_saved_blocks_.load(std::memory_order_relaxed);
  counters.num_saved_bytes = counters.num_saved_blocks * block_bytes_;
  counters.num_fetched_blocks = num_fetched_blocks_.load(std::memory_order_relaxed);
  counters.num_fetched_bytes = counters.num_fetched_blocks * block_bytes_;
  counters.num_failures = num_failures_.load(std::memory_order_relaxed);
  counters.ram_bytes_used = ram_bytes_used_.load(std::memory_order_relaxed);
  counters.file_bytes_used = file_bytes_used_.load(std::memory_order_relaxed);
  return counters;
}

}  // namespace plait
