// The one clock of the native core: CLOCK_MONOTONIC, in nanoseconds; the same that time.monotonic_ns reads.
#pragma once

#include <time.h>

#include <cstdint>

namespace plait {

inline int64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace plait
