#include "fileio/bus_error.h"

#include <signal.h>
#include <unistd.h>

namespace plait {

namespace {

// Only what a signal handler may call. The handler is gone when this returns, so that the instruction, tried
// again, ends the process with the signal.
void explain(int /*signal*/) {
  static constexpr char kText[] =
      "plait: a file that is in use, the model's or its packed weights', became shorter or could not be "
      "read. Replace such files, never write into them; if nobody did, look at the disk\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kText, sizeof kText - 1);
}

}  // namespace

void explain_bus_errors() {
  struct sigaction before = {};
  if (::sigaction(SIGBUS, nullptr, &before) != 0 || before.sa_handler != SIG_DFL) return;
  struct sigaction action = {};
  action.sa_handler = explain;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_NODEFER);
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace plait
