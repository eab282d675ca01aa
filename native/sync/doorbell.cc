#include "sync/doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <ctime>
#include <string>

#include "base/clock.h"
#include "base/error.h"

namespace plait {

namespace {

constexpr int64_t kNsPerSecond = 1'000'000'000;

// The futex call wants the plain word; the atomic must be nothing else.
static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) &&
              std::atomic<uint32_t>::is_always_lock_free);

// Returns 0 or the errno. Sleeps only while *word == expected; the deadline is on CLOCK_MONOTONIC.
int futex_wait(const std::atomic<uint32_t>* word, uint32_t expected, int64_t until_ns) {
  timespec until;
  until.tv_sec = until_ns / kNsPerSecond;
  until.tv_nsec = until_ns % kNsPerSecond;
  const long rc = syscall(SYS_futex, word, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, expected,
                          until_ns == kNeverNs ? nullptr : &until, nullptr, FUTEX_BITSET_MATCH_ANY);
  return rc == 0 ? 0 : errno;
}

}  // namespace

void Doorbell::ring() {
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
  syscall(SYS_futex, &epoch_, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, INT_MAX, nullptr, nullptr, 0);
}

bool Doorbell::wait(uint32_t seen, int64_t timeout_ns, int64_t spin_ns) {
  const int64_t until_ns = timeout_ns < 0 ? kNeverNs : deadline_ns(monotonic_ns(), timeout_ns);
  while (true) {
    const Outcome outcome = wait_interruptible(seen, timeout_ns, spin_ns);
    if (outcome != Outcome::kInterrupted) return outcome == Outcome::kRung;
    if (until_ns != kNeverNs) timeout_ns = std::max<int64_t>(until_ns - monotonic_ns(), 0);
    spin_ns = 0;
  }
}

Doorbell::Outcome Doorbell::wait_interruptible(uint32_t seen, int64_t timeout_ns, int64_t spin_ns) {
  if (is_rung(seen)) return Outcome::kRung;
  if (timeout_ns == 0) return Outcome::kTimeout;
  const int64_t start_ns = monotonic_ns();
  const int64_t until_ns = deadline_ns(start_ns, timeout_ns);
  if (spin_ns <= 0) return sleep_until(seen, until_ns);

  const bool is_caught = spin_.spin(start_ns, spin_ns, until_ns, [&] { return is_rung(seen); });
  const Outcome outcome = is_caught ? Outcome::kRung : sleep_until(seen, until_ns);
  // Judged by when the ring came, asleep or not.
  spin_.learn(outcome == Outcome::kRung && monotonic_ns() - start_ns <= spin_ns);
  return outcome;
}

Doorbell::Outcome Doorbell::sleep_until(uint32_t seen, int64_t until_ns) {
  Outcome outcome = Outcome::kRung;
  int unexpected = 0;
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  while (epoch_.load(std::memory_order_seq_cst) == seen) {
    const int error = futex_wait(&epoch_, seen, until_ns);
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
