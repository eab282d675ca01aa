// Owner of a file descriptor: closed at the end of its life. A mapping of the file outlives it.
#pragma once

#include <unistd.h>

#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace plait {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

[[noreturn]] inline void throw_system(const std::string& what, int error_number) {
  throw Error(ErrorCode::kSystem, what + ": " + std::generic_category().message(error_number));
}

}  // namespace plait
