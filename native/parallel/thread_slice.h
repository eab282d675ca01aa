// How long the kernel lets the calling thread run before another may have the CPU. Knows: Linux's fair
// scheduler.
#pragma once

#include <cstdint>

namespace plait {

// Asks for slices of `slice_ns` (the kernel takes 0.1 to 100 ms). A thread that wakes with a short slice gets
// the CPU from one in the middle of a long one, so that a thread that works for some microseconds now and
// then need not wait for compute threads, which never sleep under load. What share of the CPU either gets
// does not change. False where the kernel has no such setting (before Linux 6.12) or refuses: then it waits.
bool set_thread_slice(int64_t slice_ns);

// For threads that pass messages.
inline constexpr int64_t kMessengerSliceNs = 100'000;

}  // namespace plait
