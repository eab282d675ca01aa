#include "plan/weights.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/fork_join.h"

namespace plait {
namespace {

// What is packed, and given back to the file, at a time.
constexpr size_t kSliceBytes = size_t{8} << 20;
// Of one thread at a time: small enough to balance, large enough not to matter.
constexpr int64_t kThreadRows = 16 * kRowGroup;

size_t row_bytes_of(const FileMatrix& matrix) {
  const BlockShape block = block_shape(matrix.type);
  return static_cast<size_t>(matrix.cols / block.elements) * static_cast<size_t>(block.bytes);
}

// Rows of a matrix whose packed form takes about kSliceBytes.
int64_t slice_rows(size_t num_bytes, int64_t rows) {
  const size_t bytes_per_row =
      std::max<size_t>(1, num_bytes / static_cast<size_t>(std::max<int64_t>(rows, 1)));
  const auto wanted = static_cast<int64_t>(kSliceBytes / bytes_per_row);
  return std::max<int64_t>(kRowGroup, wanted / kRowGroup * kRowGroup);
}

// Packs rows [row0, row1) of a slice of the file's rows, which begins at `src`, to `dst`, as a matrix of its
// own: a group of rows knows no place.
using PackFn = std::function<void(const std::byte* src, int64_t row0, int64_t row1, std::byte* dst)>;

void pack_slice(const PackFn& pack, const std::byte* src, int64_t rows, std::byte* dst, int32_t num_threads) {
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    for (int64_t row = next.fetch_add(kThreadRows); row < rows; row = next.fetch_add(kThreadRows)) {
      pack(src, row, std::min(rows, row + kThreadRows), dst);
    }
  };
  const int64_t num_pieces = (rows + kThreadRows - 1) / kThreadRows;
  fork_join(static_cast<size_t>(std::min<int64_t>(num_threads, num_pieces)), work);
}

// Packs slice by slice; `place` says where rows [row, row + num) go, `packed` is told when they are there.
template <typename Place, typename Packed>
void pack_slices(const FileMatrix& matrix, const PackFn& pack, size_t num_bytes, int32_t num_threads,
                 const DoneFn& done, const Place& place, const Packed& packed) {
  const size_t row_bytes = row_bytes_of(matrix);
  const int64_t step = slice_rows(num_bytes, matrix.rows);
  for (int64_t row = 0; row < matrix.rows; row += step) {
    const int64_t num = std::min(step, matrix.rows - row);
    const size_t offset = static_cast<size_t>(row) * row_bytes;
    pack_slice(pack, matrix.src + offset, num, place(row, num), num_threads);
    packed(num);
    if (done) done(offset, static_cast<size_t>(num) * row_bytes);
  }
}

// To `dst`, which takes all of it.
void pack_in_place(const FileMatrix& matrix, const PackFn& pack, std::byte* dst, size_t num_bytes,
                   int32_t num_threads, const DoneFn& done) {
  const size_t group_bytes = num_bytes / static_cast<size_t>(std::max<int64_t>(1, matrix.rows / kRowGroup));
  pack_slices(
      matrix, pack, num_bytes, num_threads, done,
      [&](int64_t row, int64_t) { return dst + static_cast<size_t>(row / kRowGroup) * group_bytes; },
      [](int64_t) {});
}

void pack_to_sink(const FileMatrix& matrix, const PackFn& pack, const SinkFn& sink, size_t num_bytes,
                  int32_t num_threads, const DoneFn& done) {
  const size_t group_bytes = num_bytes / static_cast<size_t>(std::max<int64_t>(1, matrix.rows / kRowGroup));
  std::vector<std::byte> slice;
  pack_slices(
      matrix, pack, num_bytes, num_threads, done,
      [&](int64_t, int64_t num) {
        slice.resize(static_cast<size_t>(num / kRowGroup) * group_bytes);
        return slice.data();
      },
      [&](int64_t) { sink(slice); });
}

PackFn matrix_packer(const FileMatrix& matrix) {
  return [&matrix](const std::byte* src, int64_t row0, int64_t row1, std::byte* dst) {
    pack_rows(matrix.type, src, matrix.cols, row0, row1, dst);
  };
}

// `bounds`: of all groups of the matrix.
PackFn upper_packer(const FileMatrix& matrix, float* bounds) {
  return [&matrix, bounds](const std::byte* src, int64_t row0, int64_t row1, std::byte* dst) {
    const auto first_row = (src - matrix.src) / static_cast<std::ptrdiff_t>(row_bytes_of(matrix));
    pack_upper_rows(src, matrix.cols, row0, row1, dst, bounds + first_row / kRowGroup);
  };
}

PackFn lower_packer(const FileMatrix& matrix) {
  return [&matrix](const std::byte* src, int64_t row0, int64_t row1, std::byte* dst) {
    pack_lower_rows(src, matrix.cols, row0, row1, dst);
  };
}

// Packs the pieces of a matrix one after the other; run(pack, num_bytes) packs all rows to one.
template <typename Run>
void pack_pieces(const FileMatrix& matrix, float* bounds, const Run& run) {
  if (!matrix.is_apart())
    return run(matrix_packer(matrix), packed_num_bytes(matrix.type, matrix.rows, matrix.cols));
  const SearchedBytes bytes = searched_bytes(matrix.rows, matrix.cols);
  run(upper_packer(matrix, bounds), bytes.records);
  run(lower_packer(matrix), bytes.low);
}

}  // namespace

size_t Weights::packed_bytes(const FileMatrix& matrix) {
  try {
    const size_t plain = packed_num_bytes(matrix.type, matrix.rows, matrix.cols);
    return matrix.is_apart() ? searched_bytes(matrix.rows, matrix.cols).all() : plain;
  } catch (const Error& e) {
    throw Error(e.code(), "tensor " + matrix.name + ": " + e.what());
  }
}

int32_t Weights::add_matrix(const FileMatrix& matrix, int32_t num_threads, const DoneFn& done) {
  const size_t num_bytes = packed_bytes(matrix);
  std::byte* dst = memory_.data() + take(matrix.name, num_bytes, memory_.size());
  std::byte* next = dst;
  auto* bounds = reinterpret_cast<float*>(dst + num_bytes) - matrix.rows / kRowGroup;  // if it has some
  pack_pieces(matrix, bounds, [&](const PackFn& pack, size_t piece_bytes) {
    pack_in_place(matrix, pack, next, piece_bytes, num_threads, done);
    next += piece_bytes;
  });
  return name_matrix(matrix, dst);
}

void Weights::pack_matrix_to(const SinkFn& sink, const FileMatrix& matrix, int32_t num_threads,
                             const DoneFn& done) {
  packed_bytes(matrix);  // throws
  std::vector<float> bounds(matrix.is_apart() ? static_cast<size_t>(matrix.rows / kRowGroup) : 0);
  pack_pieces(matrix, bounds.data(), [&](const PackFn& pack, size_t piece_bytes) {
    pack_to_sink(matrix, pack, sink, piece_bytes, num_threads, done);
  });
  if (!bounds.empty()) sink(std::as_bytes(std::span(bounds)));
}

int32_t Weights::add_vector(const std::string& name, GgmlType type, const std::byte* src, int64_t num) {
  auto own = std::make_unique<float[]>(static_cast<size_t>(num));
  dequantize_row(type, src, num, own.get());
  const std::span<const float> values(own.get(), static_cast<size_t>(num));
  vectors_.push_back({name, values, std::move(own)});
  return num_vectors() - 1;
}

int32_t Weights::place_matrix(const FileMatrix& matrix) {
  return name_matrix(matrix, packed_.data() + take(matrix.name, packed_bytes(matrix), packed_.size()));
}

int32_t Weights::place_vector(const std::string& name, int64_t num) {
  const size_t size = static_cast<size_t>(num);
  const std::byte* at = packed_.data() + take(name, size * sizeof(float), packed_.size());
  vectors_.push_back({name, {reinterpret_cast<const float*>(at), size}, nullptr});
  return num_vectors() - 1;
}

size_t Weights::take(const std::string& name, size_t size, size_t room) {
  if (padded(size) > room - used_) {
    throw Error(ErrorCode::kInternal, "tensor " + name + ": no room left for packed weights");
  }
  const size_t at = used_;
  used_ += padded(size);
  return at;
}

int32_t Weights::name_matrix(const FileMatrix& matrix, const std::byte* packed) {
  NamedMatrix named;
  named.name = matrix.name;
  PackedMatrix& all = named.packed;
  all = {packed, packed_bytes(matrix), static_cast<int32_t>(matrix.rows), static_cast<int32_t>(matrix.cols),
         packed_kind(matrix.type)};
  if (matrix.is_apart()) {
    const SearchedBytes bytes = searched_bytes(matrix.rows, matrix.cols);
    all.kind = PackedKind::kS8Apart;
    all.num_bytes = bytes.records;
    all.low = packed + bytes.records;
    named.coarse = {{packed, bytes.records, all.rows, all.cols, PackedKind::kU6},
                    reinterpret_cast<const float*>(packed + bytes.records + bytes.low)};
  }
  matrices_.push_back(std::move(named));
  return num_matrices() - 1;
}

}  // namespace plait
