#include "parallel/messenger_thread.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/clock.h"
#include "base/test.h"

using namespace plait;

namespace {

int nice_of_this_thread() { return getpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid))); }

int policy_of_this_thread() { return sched_getscheduler(0) & ~SCHED_RESET_ON_FORK; }

void work_for(int64_t ns) {
  const int64_t end_ns = monotonic_ns() + ns;
  while (monotonic_ns() < end_ns) {
  }
}

cpu_set_t cpus_of_this_thread() {
  cpu_set_t set;
  CPU_ZERO(&set);
  CHECK_EQ(pthread_getaffinity_np(pthread_self(), sizeof(set), &set), 0);
  return set;
}

int32_t first_cpu(const cpu_set_t& set) {
  int32_t cpu = 0;
  while (!CPU_ISSET(static_cast<size_t>(cpu), &set)) ++cpu;
  return cpu;
}

}  // namespace

TEST(only_the_thread_that_asks_is_favoured) {
  const int before = nice_of_this_thread();
  int of_messenger = before;
  int of_its_child = before;
  std::thread([&] {
    const bool is_favoured = favour_messenger_thread();
    of_messenger = nice_of_this_thread();
    std::thread([&] { of_its_child = nice_of_this_thread(); }).join();
    CHECK(is_favoured || of_messenger == before);
    favour_messenger_thread();
    CHECK_EQ(nice_of_this_thread(), of_messenger);
  }).join();
  CHECK(of_messenger <= before);
  CHECK_EQ(of_its_child, before);
  CHECK_EQ(nice_of_this_thread(), before);
}

TEST(a_messenger_keeps_off_one_cpu_if_there_are_others) {
  std::thread([] {
    const cpu_set_t before = cpus_of_this_thread();
    favour_messenger_thread();
    cpu_set_t now = cpus_of_this_thread();
    CHECK(CPU_EQUAL(&now, &before));
    const int32_t off_cpu = first_cpu(before);
    favour_messenger_thread(off_cpu);
    now = cpus_of_this_thread();
    if (CPU_COUNT(&before) == 1) {
      CHECK(CPU_EQUAL(&now, &before));
      return;
    }
    CHECK(!CPU_ISSET(static_cast<size_t>(off_cpu), &now));
    CHECK_EQ(CPU_COUNT(&now), CPU_COUNT(&before) - 1);
    // Of what is left, one CPU stays however often this is asked.
    for (int32_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) favour_messenger_thread(cpu);
    now = cpus_of_this_thread();
    CHECK_EQ(CPU_COUNT(&now), 1);
    favour_messenger_thread(CPU_SETSIZE + 5);
  }).join();
}

TEST(a_realtime_messenger_gives_the_policy_back_while_it_is_busy) {
  const int nice_before = nice_of_this_thread();
  std::thread([&] {
    RealtimeMessenger messenger;
    const bool was_permitted = messenger.is_realtime();
    CHECK_EQ(policy_of_this_thread(), was_permitted ? SCHED_RR : SCHED_OTHER);
    int policy_of_child = SCHED_RR;
    std::thread([&] { policy_of_child = policy_of_this_thread(); }).join();
    CHECK_EQ(policy_of_child, SCHED_OTHER);

    // Not before a window is over, however busy it is.
    work_for(RealtimeMessenger::kWindowNs / 4);
    messenger.check();
    CHECK_EQ(messenger.is_realtime(), was_permitted);
    // Busy in the eyes of a CPU that other processes use, too: until it got enough of one.
    for (int i = 0; i < 100 && messenger.is_realtime(); ++i) {
      work_for(RealtimeMessenger::kWindowNs);
      messenger.check();
    }
    CHECK(!messenger.is_realtime());
    CHECK_EQ(policy_of_this_thread(), SCHED_OTHER);
    CHECK(nice_of_this_thread() <= nice_before);

    std::this_thread::sleep_for(std::chrono::nanoseconds(2 * RealtimeMessenger::kWindowNs));
    messenger.check();
    CHECK_EQ(messenger.is_realtime(), was_permitted);
    CHECK_EQ(policy_of_this_thread(), was_permitted ? SCHED_RR : SCHED_OTHER);
  }).join();
  CHECK_EQ(policy_of_this_thread(), SCHED_OTHER);
}

TEST(a_process_that_lets_others_go_first_goes_on_doing_so) {
  std::thread([] {
    const int before = nice_of_this_thread();
    if (before > 10) return;
    CHECK_EQ(setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), 10), 0);
    favour_messenger_thread();
    CHECK_EQ(nice_of_this_thread(), 10);
    RealtimeMessenger messenger;
    CHECK(!messenger.is_realtime());
    CHECK_EQ(nice_of_this_thread(), 10);
    int of_child = 0;
    std::thread([&] { of_child = nice_of_this_thread(); }).join();
    CHECK_EQ(of_child, 10);
  }).join();
}

// The kernel kills a process that uses so much at a real-time policy.
TEST(a_limit_for_realtime_threads_means_none) {
  rlimit before{};
  CHECK_EQ(getrlimit(RLIMIT_RTTIME, &before), 0);
  rlimit limited = before;
  limited.rlim_cur = std::min<rlim_t>(before.rlim_max, 1'000'000);
  CHECK_EQ(setrlimit(RLIMIT_RTTIME, &limited), 0);
  std::thread([] {
    RealtimeMessenger messenger;
    CHECK(!messenger.is_realtime());
    CHECK_EQ(policy_of_this_thread(), SCHED_OTHER);
  }).join();
  CHECK_EQ(setrlimit(RLIMIT_RTTIME, &before), 0);
}

TEST(a_policy_that_somebody_chose_stays) {
  std::thread([] {
    const sched_param none{};
    CHECK_EQ(sched_setscheduler(0, SCHED_BATCH, &none), 0);
    CHECK(!favour_messenger_thread());
    RealtimeMessenger messenger;
    CHECK(!messenger.is_realtime());
    CHECK_EQ(policy_of_this_thread(), SCHED_BATCH);
  }).join();
}

TEST_MAIN()
