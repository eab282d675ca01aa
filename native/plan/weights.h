// Packed weights of one model. Knows: matrices and vectors by name. Must not know: what they are for.
// Filled at load by one thread, then read-only and shared by all threads.
//
// Packed memory: one tensor after the other, each at a multiple of kAlignment; matrices as packed_layout.h
// draws them (those that are searched in three pieces, see coarse.h), vectors as float32. add_* pack into
// memory of this process. *_to write the same bytes elsewhere, place_* find them again in memory that was
// packed before; all in the same order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/memory.h"
#include "kernels/matmul/coarse.h"
#include "kernels/matmul/matmul.h"

namespace plait {

// A matrix as it stands in the model file: [rows, cols] of `type` at `src`.
struct FileMatrix {
  std::string name;
  GgmlType type = GgmlType::kF32;
  const std::byte* src = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  bool is_searched = false;  // packed so that it can be, if its type allows it

  bool is_apart() const { return is_searched && can_be_searched(type); }
};

// Is told bytes [offset, offset + num) of FileMatrix::src that are not needed any more; may be empty.
using DoneFn = std::function<void(uint64_t offset, uint64_t num)>;
// Takes packed bytes in rising order.
using SinkFn = std::function<void(std::span<const std::byte>)>;

class Weights {
 public:
  static constexpr size_t kAlignment = 64;
  static size_t padded(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

  // Of a matrix in packed memory. Throws Error when its shape or type is not supported.
  static size_t packed_bytes(const FileMatrix& matrix);

  // To be packed here. `bytes`: room for all matrices, see padded() and packed_bytes().
  explicit Weights(size_t bytes) : memory_(bytes) {}
  // Packed before. `keep` owns what `packed` views, which starts at a multiple of kAlignment.
  Weights(std::shared_ptr<const void> keep, std::span<const std::byte> packed)
      : keep_(std::move(keep)), packed_(packed) {}

  // Packs a matrix with `num_threads` threads; returns its id.
  // Throws Error when its shape or type is not supported, or when there is no room.
  int32_t add_matrix(const FileMatrix& matrix, int32_t num_threads, const DoneFn& done = {});
  int32_t add_matrix(const std::string& name, GgmlType type, const std::byte* src, int64_t rows, int64_t cols,
                     int32_t num_threads) {
    return add_matrix(FileMatrix{name, type, src, rows, cols}, num_threads);
  }
  // Copies a vector to float32, outside the packed memory; returns its id.
  int32_t add_vector(const std::string& name, GgmlType type, const std::byte* src, int64_t num);

  // The next matrix or vector of memory that was packed before; `src` is not read. Returns its id.
  int32_t place_matrix(const FileMatrix& matrix);
  int32_t place_vector(const std::string& name, int64_t num);

  // Packs a matrix some MiB at a time, so that only those need memory; one that is searched is read twice.
  // `sink` pads to kAlignment afterwards.
  static void pack_matrix_to(const SinkFn& sink, const FileMatrix& matrix, int32_t num_threads,
                             const DoneFn& done);

  // The matrix to search; null: it was not packed for that.
  const CoarseMatrix* coarse(int32_t id) const {
    const CoarseMatrix& coarse = matrices_[static_cast<size_t>(id)].coarse;
    return coarse.bounds == nullptr ? nullptr : &coarse;
  }
  const PackedMatrix& matrix(int32_t id) const { return matrices_[static_cast<size_t>(id)].packed; }
  std::span<const float> vector(int32_t id) const { return vectors_[static_cast<size_t>(id)].values; }
  const std::string& matrix_name(int32_t id) const { return matrices_[static_cast<size_t>(id)].name; }
  const std::string& vector_name(int32_t id) const { return vectors_[static_cast<size_t>(id)].name; }
  int32_t num_matrices() const { return static_cast<int32_t>(matrices_.size()); }
  int32_t num_vectors() const { return static_cast<int32_t>(vectors_.size()); }
  size_t used_bytes() const { return used_; }

 private:
  struct NamedMatrix {
    std::string name;
    PackedMatrix packed;
    CoarseMatrix coarse;  // no bounds: none
  };
  struct NamedVector {
    std::string name;
    std::span<const float> values;
    std::unique_ptr<float[]> own;  // empty when the values are packed memory
  };
  // Where the next tensor stands in packed memory of `room` bytes.
  size_t take(const std::string& name, size_t size, size_t room);
  int32_t name_matrix(const FileMatrix& matrix, const std::byte* packed);

  Memory memory_;
  std::shared_ptr<const void> keep_;
  std::span<const std::byte> packed_;
  size_t used_ = 0;
  std::vector<NamedMatrix> matrices_;
  std::vector<NamedVector> vectors_;
};

}  // namespace plait
