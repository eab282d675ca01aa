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

TEST(streamed_bytes_of_searched_matrices_are_those_in_memory) {
  // Some slices, and one.
  for (const int64_t rows : {int64_t{24}, int64_t{20008}}) {
    Source source(GgmlType::kQ8_0, rows, 512);
    FileMatrix& m = source.matrix;
    m.is_searched = true;
    const size_t size = Weights::packed_bytes(m);
    CHECK(size > plait::packed_num_bytes(m.type, rows, 512));  // by the bounds
    uint64_t done = 0;
    const plait::DoneFn on_done = [&](uint64_t offset, uint64_t num) {
      CHECK_EQ(offset, done % source.bytes.size());
      done += num;
    };
    Weights weights(Weights::padded(size));
    weights.add_matrix(m, 3, on_done);
    CHECK_EQ(done, 2 * source.bytes.size());  // read twice
    CHECK(weights.matrix(0).kind == plait::PackedKind::kS8Apart);
    CHECK(weights.coarse(0) != nullptr);
    CHECK(weights.coarse(0)->codes.data == weights.matrix(0).data);
    std::vector<float> expected(512), unpacked(512);
    for (const int64_t row : {int64_t{0}, int64_t{13}, rows - 1}) {
      plait::dequantize_row(m.type, m.src + row * 512 / 32 * 34, 512, expected.data());
      plait::unpack_row(weights.matrix(0), row, unpacked.data());
      CHECK(expected == unpacked);
    }
    for (const int32_t num_threads : {1, 4}) {
      std::vector<std::byte> streamed;
      Weights::pack_matrix_to(
          [&](std::span<const std::byte> bytes) {
            streamed.insert(streamed.end(), bytes.begin(), bytes.end());
          },
          m, num_threads, {});
      CHECK_EQ(streamed.size(), size);
      CHECK(std::memcmp(streamed.data(), weights.matrix(0).data, size) == 0);
    }
    const auto packed = std::make_shared<std::vector<std::byte>>(size + Weights::kAlignment);
    Weights placed(packed, std::span<const std::byte>(*packed));
    placed.place_matrix(m);
    const auto offset_of = [](const Weights& w, const void* p) {
      return static_cast<const std::byte*>(p) - w.matrix(0).data;
    };
    CHECK_EQ(offset_of(placed, placed.matrix(0).low), offset_of(weights, weights.matrix(0).low));
    CHECK_EQ(offset_of(placed, placed.coarse(0)->bounds), offset_of(weights, weights.coarse(0)->bounds));
  }
  // Other types are packed as ever.
  Source other(GgmlType::kQ4_1, 8, 64);
  other.matrix.is_searched = true;
  Weights weights(size_t{1} << 16);
  weights.add_matrix(other.matrix, 1);
  CHECK(weights.coarse(0) == nullptr);
  CHECK(weights.matrix(0).kind == plait::PackedKind::kU4Min);
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
