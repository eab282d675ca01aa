// The same work on several threads for a moment, at load. Must not know: the team that runs steps.
#pragma once

#include <cstddef>
#include <system_error>
#include <thread>
#include <vector>

namespace plait {

// Runs `work()` on this thread and on up to `num_threads` - 1 others; returns when all have ended. A system
// that gives fewer threads makes it slower, not wrong: the calls of `work` share what is to be done. `work`
// must not throw.
template <typename Work>
void fork_join(size_t num_threads, const Work& work) {
  std::vector<std::jthread> helpers;
  try {
    for (size_t i = 1; i < num_threads; ++i) helpers.emplace_back([&work] { work(); });
  } catch (const std::system_error&) {
    // Enough as it is.
  }
  work();
}

}  // namespace plait
