#include "parallel/messenger_thread.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

#include "base/test.h"

using namespace plait;

namespace {

int nice_of_this_thread() { return getpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid))); }

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

TEST_MAIN()
