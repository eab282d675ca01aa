#include "parallel/team.h"

#include <pthread.h>
#include <sched.h>

#include <string>

namespace plait {

bool pin_this_thread(int32_t cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cpu), &set);
  return pthread_setaffinity_np(pthread_self(), sizeof(set), &set) == 0;
}

void name_this_thread(const char* name) {
  pthread_setname_np(pthread_self(), std::string(name).substr(0, 15).c_str());
}

Team::Team(int32_t num_threads, const std::vector<int32_t>& cpus) : crew_(num_threads, bell_) {
  for (int32_t member = 1; member < num_threads; ++member) {
    const int32_t cpu = static_cast<size_t>(member) < cpus.size() ? cpus[static_cast<size_t>(member)] : -1;
    threads_.emplace_back([this, member, cpu] {
      if (cpu >= 0) pin_this_thread(cpu);
      name_this_thread(("plait-team-" + std::to_string(member)).c_str());
      work_until(
          bell_, [this] { return is_stopping_.load(std::memory_order_acquire); },
          [this, member] { crew_.work(member); }, [this, member] { return crew_.fetch_ahead(member); });
    });
  }
}

Team::~Team() {
  is_stopping_.store(true, std::memory_order_release);
  bell_.ring();
  for (std::thread& thread : threads_) thread.join();
}

}  // namespace plait
