// Weights: the same packed bytes whichever way they come into memory.
#include "plan/weights.h"

#include <cstring>
#include <memory>
#include <vector>

#include "base/error.h"
#include "base/test.h"
#include "kernels/matmul/random_blocks.h"

using plait::Error;
using plait::FileMatrix;
using plait::GgmlType;
using plait::Weights;

namespace {

struct Source {
  std::vector<std::byte> bytes;
  FileMatrix matrix;

  Source(GgmlType type, int64_t rows, int64_t cols)
      : bytes(plait::random_blocks(type, rows * cols / plait::block_shape(type).elements, 7)),
        matrix{"w", type, bytes.data(), rows, cols} {}
};

// One of each type; the last takes more than one slice.
std::vector<Source> sources() {
  std::vector<Source> all;
  for (const GgmlType type : plait::kAllGgmlTypes) all.emplace_back(type, 264, 512);
  all.emplace_back(GgmlType::kF32, 4104, 1024);
  return all;
}

}  // namespace

TEST(streamed_bytes_are_those_in_memory) {
  for (const Source& source : sources()) {
    const FileMatrix& m = source.matrix;
    const size_t size = plait::packed_num_bytes(m.type, m.rows, m.cols);
    std::vector<std::byte> expected(size);
    plait::pack_rows(m.type, m.src, m.cols, 0, m.rows, expected.data());

    uint64_t done = 0;
    const plait::DoneFn on_done = [&](uint64_t offset, uint64_t num) {
      CHECK_EQ(offset, done);  // the source is given back in order, all of it
      done += num;
    };
    Weights weights(Weights::padded(size));
    weights.add_matrix(m, 3, on_done);
    CHECK_EQ(done, source.bytes.size());
    CHECK(std::memcmp(weights.matrix(0).data, expected.data(), size) == 0);

    for (const int32_t num_threads : {1, 4}) {
      done = 0;
      std::vector<std::byte> streamed;
      Weights::pack_matrix_to(
          [&](std::span<const std::byte> bytes) {
            streamed.insert(streamed.end(), bytes.begin(), bytes.end());
          },
          m, num_threads, on_done);
      CHECK_EQ(done, source.bytes.size());
      CHECK(streamed == expected);
    }
  }
}

TEST(placed_tensors_are_views_in_order) {
  const Source first(GgmlType::kQ4_1, 16, 96), second(GgmlType::kQ8_0, 8, 64);
  const auto packed = std::make_shared<std::vector<std::byte>>(size_t{1} << 16);
  auto weights = std::make_unique<Weights>(packed, std::span<const std::byte>(*packed));
  const std::byte* base = packed->data();
  CHECK_EQ(weights->place_matrix(first.matrix), 0);
  CHECK_EQ(weights->place_vector("norm", 10), 0);
  CHECK_EQ(weights->place_matrix(second.matrix), 1);
  const size_t first_bytes = Weights::padded(plait::packed_num_bytes(GgmlType::kQ4_1, 16, 96));
  CHECK(weights->matrix(0).data == base);
  CHECK_EQ(weights->matrix(0).rows, 16);
  CHECK_EQ(weights->matrix(0).cols, 96);
  CHECK(weights->matrix(0).kind == plait::packed_kind(GgmlType::kQ4_1));
  CHECK(reinterpret_cast<const std::byte*>(weights->vector(0).data()) == base + first_bytes);
  CHECK_EQ(weights->vector(0).size(), size_t{10});
  CHECK(weights->matrix(1).data == base + first_bytes + Weights::padded(40));
  CHECK_EQ(weights->matrix_name(1), std::string("w"));
  CHECK_EQ(weights->vector_name(0), std::string("norm"));
}

TEST(packed_memory_is_not_left_behind_nor_exceeded) {
  const Source source(GgmlType::kQ8_0, 8, 64);
  const size_t room = Weights::padded(plait::packed_num_bytes(GgmlType::kQ8_0, 8, 64));
  auto packed = std::make_shared<std::vector<std::byte>>(room);
  const std::weak_ptr<std::vector<std::byte>> watch = packed;
  {
    Weights weights(packed, std::span<const std::byte>(*packed));
    packed.reset();
    CHECK(!watch.expired());
    weights.place_matrix(source.matrix);
    CHECK_THROWS(weights.place_matrix(source.matrix));
    CHECK_THROWS(weights.place_vector("norm", 1));
    CHECK_EQ(weights.used_bytes(), room);
  }
  CHECK(watch.expired());
  Weights own(room);
  own.add_matrix(source.matrix, 1);
  CHECK_THROWS(own.add_matrix(source.matrix, 1));
  CHECK_THROWS(own.add_matrix({"odd", GgmlType::kQ8_0, source.bytes.data(), 7, 64}, 1));
}

TEST_MAIN()
