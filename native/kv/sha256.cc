#include "kv/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace plait {

namespace {

constexpr size_t kBlockBytes = 64;
constexpr size_t kLengthBytes = 8;

constexpr std::array<uint32_t, 64> kRoundConstants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t load_big_endian(const uint8_t* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | uint32_t{bytes[3]};
}

}  // namespace

void Sha256::update(const void* data, size_t num_bytes) {
  if (num_bytes == 0) return;
  const uint8_t* bytes = static_cast<const uint8_t*>(data);
  num_bytes_ += num_bytes;
  if (num_pending_ > 0) {
    const size_t num_taken = std::min(num_bytes, kBlockBytes - num_pending_);
    std::memcpy(pending_.data() + num_pending_, bytes, num_taken);
    num_pending_ += num_taken;
    bytes += num_taken;
    num_bytes -= num_taken;
    if (num_pending_ < kBlockBytes) return;
    compress(pending_.data());
    num_pending_ = 0;
  }
  for (; num_bytes >= kBlockBytes; bytes += kBlockBytes, num_bytes -= kBlockBytes) compress(bytes);
  if (num_bytes > 0) std::memcpy(pending_.data(), bytes, num_bytes);
  num_pending_ = num_bytes;
}

Sha256Digest Sha256::finish() {
  const uint64_t num_bits = num_bytes_ * 8;
  pending_[num_pending_++] = 0x80;
  if (num_pending_ > kBlockBytes - kLengthBytes) {
    std::fill(pending_.begin() + num_pending_, pending_.end(), uint8_t{0});
    compress(pending_.data());
    num_pending_ = 0;
  }
  std::fill(pending_.begin() + num_pending_, pending_.end() - kLengthBytes, uint8_t{0});
  for (size_t i = 0; i < kLengthBytes; ++i) {
    pending_[kBlockBytes - 1 - i] = static_cast<uint8_t>(num_bits >> (8 * i));
  }
  compress(pending_.data());
  Sha256Digest digest;
  for (size_t i = 0; i < digest.size(); ++i) {
    digest[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
  }
  return digest;
}

void Sha256::compress(const uint8_t* block) {
  std::array<uint32_t, 64> w;
  for (size_t i = 0; i < 16; ++i) w[i] = load_big_endian(block + 4 * i);
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t sum1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t choice = (e & f) ^ (~e & g);
    const uint32_t t1 = h + sum1 + choice + kRoundConstants[i] + w[i];
    const uint32_t sum0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t majority = (a & b) ^ (a & c) ^ (b & c);
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + sum0 + majority;
  }
  const std::array<uint32_t, 8> added = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state_[i] += added[i];
}

}  // namespace plait
