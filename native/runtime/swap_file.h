// A file without a name whose room is handed out in slots of one size. Knows: slots, the folder. Must not
// know: what is in a slot, who reads and writes (see fileio/io_pool.h).
//
// Owner: one thread calls everything; fd() may be used by any thread for as long as the object lives.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "fileio/descriptor.h"

namespace plait {

class SwapFile {
 public:
  // Slots that lie side by side.
  struct Extent {
    int64_t first = 0;
    int64_t num_slots = 0;
  };

  // Makes the file in `dir` and takes its name away at once: the kernel removes it with the last descriptor,
  // also when the process is killed. `max_bytes` 0: no bound of our own. Throws Error(kSystem) naming `dir`.
  SwapFile(const std::string& dir, int64_t slot_bytes, int64_t max_bytes);

  // Room for `num_slots`: in one piece where possible, else in the first pieces that are free. False, with
  // nothing changed, when there is less.
  bool try_reserve(int64_t num_slots, std::vector<Extent>& extents);
  // Gives room back that try_reserve handed out.
  void release(const std::vector<Extent>& extents);

  bool has_room(int64_t num_slots) const { return num_slots <= max_slots_ - num_used_; }
  int fd() const { return descriptor_.get(); }
  int64_t slot_bytes() const { return slot_bytes_; }
  int64_t num_used_slots() const { return num_used_; }
  // Slots before this one are used or were; everything after is untouched.
  int64_t end_slot() const { return end_; }

 private:
  void take(std::map<int64_t, int64_t>::iterator range, int64_t num_slots, std::vector<Extent>& extents);

  Descriptor descriptor_;
  const int64_t slot_bytes_;
  const int64_t max_slots_;
  int64_t num_used_ = 0;
  int64_t end_ = 0;
  // Free ranges before end_: first slot -> number. No two touch, and none touches end_.
  std::map<int64_t, int64_t> free_;
};

}  // namespace plait
