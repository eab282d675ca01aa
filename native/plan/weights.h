// Packed weights of one model. Knows: matrices and vectors by name. Must not know: what they are for.
// Filled at load by one thread, then read-only and shared by all threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/memory.h"
#include "kernels/matmul/matmul.h"

namespace plait {

class Weights {
 public:
  // `bytes`: room for all matrices, see packed_num_bytes; each starts at a multiple of 64.
  explicit Weights(size_t bytes) : memory_(bytes) {}

  // Packs a file matrix ([rows, cols] of `type` at `src`) with `num_threads` threads; returns its id.
  // Throws Error when its shape or type is not supported, or when there is no room.
  int32_t add_matrix(const std::string& name, GgmlType type, const std::byte* src, int64_t rows, int64_t cols,
                     int32_t num_threads);
  // Copies a vector to float32; returns its id.
  int32_t add_vector(const std::string& name, GgmlType type, const std::byte* src, int64_t num);

  const PackedMatrix& matrix(int32_t id) const { return matrices_[static_cast<size_t>(id)].packed; }
  std::span<const float> vector(int32_t id) const { return vectors_[static_cast<size_t>(id)].values; }
  const std::string& matrix_name(int32_t id) const { return matrices_[static_cast<size_t>(id)].name; }
  const std::string& vector_name(int32_t id) const { return vectors_[static_cast<size_t>(id)].name; }
  int32_t num_matrices() const { return static_cast<int32_t>(matrices_.size()); }
  int32_t num_vectors() const { return static_cast<int32_t>(vectors_.size()); }
  size_t used_bytes() const { return used_; }

  static size_t padded(size_t bytes) { return (bytes + 63) / 64 * 64; }

 private:
  struct NamedMatrix {
    std::string name;
    PackedMatrix packed;
  };
  struct NamedVector {
    std::string name;
    std::vector<float> values;
  };
  Memory memory_;
  size_t used_ = 0;
  std::vector<NamedMatrix> matrices_;
  std::vector<NamedVector> vectors_;
};

}  // namespace plait
