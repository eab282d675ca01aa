// Vectors from FIPS 180-4's examples and NIST's secure hashing test material.
#include "kv/sha256.h"

#include <string>

#include "base/test.h"

using plait::Sha256;

namespace {

std::string hex(const plait::Sha256Digest& digest) {
  std::string out;
  for (const uint8_t byte : digest) {
    out += "0123456789abcdef"[byte >> 4];
    out += "0123456789abcdef"[byte & 15];
  }
  return out;
}

std::string sha256_hex(const std::string& message) {
  Sha256 hash;
  hash.update(message.data(), message.size());
  return hex(hash.finish());
}

}  // namespace

TEST(nist_vectors) {
  CHECK_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
           "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK_EQ(
      sha256_hex("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqr"
                 "lmnopqrsmnopqrstnopqrstu"),
      "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  CHECK_EQ(sha256_hex(std::string(1'000'000, 'a')),
           "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  CHECK_EQ(sha256_hex("\xbd"), "68325720aabd7c82f30f554b313d0570c95accbb7dc4b5aae11204c08ffe732b");
  CHECK_EQ(sha256_hex("\xc9\x8c\x8e\x55"),
           "7abc22c0ae5af26ce93dbb94433a0e0b2e119d014f8e7f65bd56c61ccccd9504");
  CHECK_EQ(sha256_hex(std::string(55, '\0')),
           "02779466cdec163811d078815c633f21901413081449002f24aa3e80f0b88ef7");
  CHECK_EQ(sha256_hex(std::string(56, '\0')),
           "d4817aa5497628e7c77e6b606107042bbba3130888c5f47a375e6179be789fbb");
  CHECK_EQ(sha256_hex(std::string(57, '\0')),
           "65a16cb7861335d5ace3c60718b5052e44660726da4cd13bb745381b235a1785");
  CHECK_EQ(sha256_hex(std::string(64, '\0')),
           "f5a5fd42d16a20302798ef6ed309979b43003d2320d9f0e8ea9831a92759fb4b");
  CHECK_EQ(sha256_hex(std::string(1000, '\0')),
           "541b3e9daa09b20bf85fa273e5cbd3e80185aa4ec298e765db87742b70138a53");
  CHECK_EQ(sha256_hex(std::string(1000, 'A')),
           "c2e686823489ced2017f6059b8b239318b6364f6dcd835d0a519105a1eadd6e4");
}

TEST(pieces_equal_whole) {
  std::string message;
  for (int i = 0; i < 300; ++i) message += static_cast<char>(i * 37 + 11);
  for (size_t length = 0; length <= message.size(); length += 7) {
    for (size_t piece = 1; piece <= 130; piece += 9) {
      Sha256 hash;
      for (size_t at = 0; at < length; at += piece) {
        hash.update(message.data() + at, std::min(piece, length - at));
      }
      CHECK_EQ(hex(hash.finish()), sha256_hex(message.substr(0, length)));
    }
  }
}

TEST_MAIN()
