// SHA-256 (FIPS 180-4), portable. Knows: bytes. Must not know: blocks, tokens.
// Not constant-time with respect to the message length; the prefix index needs collision resistance only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace plait {

using Sha256Digest = std::array<uint8_t, 32>;

// One message, fed in pieces. One thread at a time; no allocation.
class Sha256 {
 public:
  void update(const void* data, size_t num_bytes);
  // Ends the message; the object may not be used after it.
  Sha256Digest finish();

 private:
  void compress(const uint8_t* block);

  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> pending_;
  size_t num_pending_ = 0;
  uint64_t num_bytes_ = 0;
};

}  // namespace plait
