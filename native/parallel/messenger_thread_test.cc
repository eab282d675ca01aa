#include "parallel/messenger_thread.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

#include "base/test.h"

using namespace plait;

namespace {

int nice_of_this_thread() { return getpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid))); }

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

TEST_MAIN()
