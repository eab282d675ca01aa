// The one clock of the native core: CLOCK_MONOTONIC, in nanoseconds; the same that time.monotonic_ns reads.
#pragma once

#include <time.h>

#include <cstdint>
#include <limits>

namespace plait {

inline int64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

inline constexpr int64_t kNeverNs = std::numeric_limits<int64_t>::max();

// The time `timeout_ns` after `start_ns`; kNeverNs for a negative timeout or one beyond the end of the type.
inline int64_t deadline_ns(int64_t start_ns, int64_t timeout_ns) {
  return timeout_ns < 0 || timeout_ns > kNeverNs - start_ns ? kNeverNs : start_ns + timeout_ns;
}

}  // namespace plait
