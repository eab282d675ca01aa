// Errors of the native core. Knows: codes and messages. Must not know: Python, logging.
// Native code never prints and never aborts: what a file, a request or the machine can cause is thrown as
// Error with a message that says what to do; an error on a thread is stored and rethrown at the wait.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace plait {

enum class ErrorCode {
  kInvalidFile,      // a model file breaks its format
  kUnsupported,      // valid, but not something this build can do
  kInvalidArgument,  // the caller passed what the contract forbids
  kOutOfMemory,
  kSystem,    // an operating-system call failed
  kInternal,  // our bug
};

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, std::string message) : std::runtime_error(std::move(message)), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace plait
