#include "runtime/swap_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <limits>

namespace plait {

namespace {

Descriptor open_nameless(const std::string& dir) {
  std::string path = dir + "/plait-kv-XXXXXX";
  Descriptor descriptor(::mkostemp(path.data(), O_CLOEXEC));
  if (!descriptor.is_open()) throw_system("cannot make a file for swapped-out KV in " + dir, errno);
  if (::unlink(path.c_str()) != 0) throw_system("cannot unlink " + path, errno);
  return descriptor;
}

}  // namespace

SwapFile::SwapFile(const std::string& dir, int64_t slot_bytes, int64_t max_bytes)
    : descriptor_(open_nameless(dir)),
      slot_bytes_(slot_bytes),
      max_slots_((max_bytes == 0 ? std::numeric_limits<int64_t>::max() : max_bytes) / slot_bytes) {}

void SwapFile::take(std::map<int64_t, int64_t>::iterator range, int64_t num_slots,
                    std::vector<Extent>& extents) {
  const auto [first, num_free] = *range;
  extents.push_back({first, num_slots});
  free_.erase(range);
  if (num_slots < num_free) free_.emplace(first + num_slots, num_free - num_slots);
}

bool SwapFile::try_reserve(int64_t num_slots, std::vector<Extent>& extents) {
  if (num_slots < 1 || !has_room(num_slots)) return false;
  num_used_ += num_slots;
  const auto whole =
      std::find_if(free_.begin(), free_.end(), [&](const auto& range) { return range.second >= num_slots; });
  if (whole != free_.end()) {
    take(whole, num_slots, extents);
    return true;
  }
  if (num_slots > max_slots_ - end_) {
    // Not in one piece: what is free before the end first.
    while (num_slots > 0 && !free_.empty()) {
      const int64_t part = std::min(num_slots, free_.begin()->second);
      take(free_.begin(), part, extents);
      num_slots -= part;
    }
  }
  if (num_slots > 0) {
    extents.push_back({end_, num_slots});
    end_ += num_slots;
  }
  return true;
}

void SwapFile::release(const std::vector<Extent>& extents) {
  for (const Extent& extent : extents) {
    num_used_ -= extent.num_slots;
    auto [range, is_new] = free_.emplace(extent.first, extent.num_slots);
    if (range != free_.begin()) {
      const auto before = std::prev(range);
      if (before->first + before->second == range->first) {
        before->second += range->second;
        free_.erase(range);
        range = before;
      }
    }
    const auto after = std::next(range);
    if (after != free_.end() && range->first + range->second == after->first) {
      range->second += after->second;
      free_.erase(after);
    }
    if (range->first + range->second == end_) {
      end_ = range->first;
      free_.erase(range);
    }
  }
}

}  // namespace plait
