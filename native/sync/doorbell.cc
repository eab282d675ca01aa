#include "sync/doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <ctime>
#include <limits>
#include <string>

#include "base/error.h"
#include "sync/cpu_relax.h"

namespace plait {

namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
constexpr int64_t kNsPerSecond = 1'000'000'000;
constexpr int32_t kFullShare = 16;
constexpr int kPausesPerClockRead = 16;

// The futex call wants the plain word; the atomic must be nothing else.
static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) &&
              std::atomic<uint32_t>::is_always_lock_free);

int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kNsPerSecond + now.tv_nsec;
}

int64_t deadline_after(int64_t start_ns, int64_t timeout_ns) {
  return timeout_ns < 0 || timeout_ns > kNever - start_ns ? kNever : start_ns + timeout_ns;
}

// Returns 0 or the errno. Sleeps only while *word == expected; the deadline is on CLOCK_MONOTONIC.
int futex_wait(const std::atomic<uint32_t>* word, uint32_t expected, int64_t deadline_ns) {
  timespec deadline;
  deadline.tv_sec = deadline_ns / kNsPerSecond;
  deadline.tv_nsec = deadline_ns % kNsPerSecond;
  const long rc = syscall(SYS_futex, word, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, expected,
                          deadline_ns == kNever ? nullptr : &deadline, nullptr, FUTEX_BITSET_MATCH_ANY);
  return rc == 0 ? 0 : errno;
}

}  // namespace

void Doorbell::ring() {
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
  syscall(SYS_futex, &epoch_, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, INT_MAX, nullptr, nullptr, 0);
}

bool Doorbell::wait(uint32_t seen, int64_t timeout_ns, int64_t spin_ns) {
  const int64_t deadline_ns = timeout_ns < 0 ? kNever : deadline_after(now_ns(), timeout_ns);
  while (true) {
    const Outcome outcome = wait_interruptible(seen, timeout_ns, spin_ns);
    if (outcome != Outcome::kInterrupted) return outcome == Outcome::kRung;
    if (deadline_ns != kNever) timeout_ns = std::max<int64_t>(deadline_ns - now_ns(), 0);
    spin_ns = 0;
  }
}

Doorbell::Outcome Doorbell::wait_interruptible(uint32_t seen, int64_t timeout_ns, int64_t spin_ns) {
  if (is_rung(seen)) return Outcome::kRung;
  if (timeout_ns == 0) return Outcome::kTimeout;
  const int64_t start_ns = now_ns();
  const int64_t deadline_ns = deadline_after(start_ns, timeout_ns);
  if (spin_ns <= 0) return sleep_until(seen, deadline_ns);

  const int32_t share = spin_share_.load(std::memory_order_relaxed);
  const int64_t spin_end_ns = std::min(deadline_after(start_ns, spin_ns / kFullShare * share), deadline_ns);
  Outcome outcome = Outcome::kTimeout;
  do {
    for (int i = 0; i < kPausesPerClockRead && !is_rung(seen); ++i) cpu_relax();
    if (is_rung(seen)) outcome = Outcome::kRung;
  } while (outcome != Outcome::kRung && now_ns() < spin_end_ns);
  if (outcome != Outcome::kRung) outcome = sleep_until(seen, deadline_ns);

  // Judge by when the ring came, asleep or not: a full spin would have caught it or would not.
  const bool would_catch = outcome == Outcome::kRung && now_ns() - start_ns <= spin_ns;
  spin_share_.store(would_catch ? std::min(share * 2, kFullShare) : std::max(share / 2, 1),
                    std::memory_order_relaxed);
  return outcome;
}

Doorbell::Outcome Doorbell::sleep_until(uint32_t seen, int64_t deadline_ns) {
  Outcome outcome = Outcome::kRung;
  int unexpected = 0;
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  while (epoch_.load(std::memory_order_seq_cst) == seen) {
    const int error = futex_wait(&epoch_, seen, deadline_ns);
    if (error == 0 || error == EAGAIN) continue;
    if (is_rung(seen)) break;
    outcome = error == ETIMEDOUT ? Outcome::kTimeout : Outcome::kInterrupted;
    if (error != ETIMEDOUT && error != EINTR) unexpected = error;
    break;
  }
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
  if (unexpected != 0) {
    throw Error(ErrorCode::kSystem, "futex wait failed with errno " + std::to_string(unexpected));
  }
  return outcome;
}

}  // namespace plait
