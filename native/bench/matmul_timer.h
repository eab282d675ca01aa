// Times one matrix kernel at one shape. Knows: packed copies of matrices. Must not know: files, models.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/memory.h"
#include "bench/rig.h"
#include "kernels/matmul/matmul.h"
#include "kernels/matmul/product_cut.h"

namespace plait {

// How a matrix is packed and which of it is multiplied: as all but some output matrices are; as one that is
// searched (kernels/matmul/coarse.h), for all products; the same in 6 bits, for the search.
enum class MatrixForm : uint8_t { kPlain, kApart, kCoarse };

class MatmulTimer {
 public:
  // Packs the matrices ([rows, cols] of `type`, file layout) one after the other, again from the first one,
  // until they take `cold_bytes`: walked in turn, each has left the caches when its turn comes again.
  // Throws Error(kUnsupported) for a shape that cannot be packed, or a type that has no such form,
  // Error(kOutOfMemory).
  MatmulTimer(Rig& rig, GgmlType type, int32_t rows, int32_t cols,
              const std::vector<const std::byte*>& sources, size_t cold_bytes,
              MatrixForm form = MatrixForm::kPlain);

  // That a product reads.
  size_t matrix_bytes() const { return matrix_bytes_; }
  int64_t num_copies() const { return static_cast<int64_t>(matrices_.size()); }

  // Compares the first copy's product with the scalar one, then times products of all rows with `num_tokens`
  // tokens, cut for the team as a step of the engine cuts them. A unit is one matrix.
  Timing run(int32_t num_tokens, int32_t repeats);

 private:
  ProductCut cut(int32_t num_tokens) const;
  void quantize(int32_t num_tokens);
  std::string check(int32_t num_tokens);
  // One chunk of the product of a matrix. `out` null: into the member's own tile.
  void multiply(const PackedMatrix& matrix, const ProductArea& area, int32_t member, float* out);

  Rig& rig_;
  Memory packed_;
  std::vector<PackedMatrix> matrices_;
  size_t matrix_bytes_;
  int32_t rows_;
  int32_t cols_;
  std::vector<float> x_;
  Memory q8_;
  Acts acts_;
  std::vector<std::vector<float>> tiles_;  // by member
};

}  // namespace plait
