// Tensor descriptions of a GGUF file and the layout rules they must keep. Knows: shapes, types, byte ranges.
// Must not know: metadata, what a tensor is for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/ggml_type.h"
#include "fileio/byte_reader.h"

namespace plait {

struct TensorInfo {
  std::string_view name;                       // valid while the file is
  GgmlType type = GgmlType::kF32;              // always one that block_shape() knows
  int32_t num_dims = 0;                        // 1 to 4
  std::array<int64_t, 4> dims = {1, 1, 1, 1};  // dims[0]: columns, contiguous; unused ones are 1
  uint64_t offset = 0;                         // of the first byte, from the start of the file
  uint64_t num_bytes = 0;

  int64_t columns() const { return dims[0]; }
  int64_t rows() const { return dims[1] * dims[2] * dims[3]; }
};

inline constexpr size_t kMaxGgufTensorNameBytes = 64;

// Reads one description. `offset` is still the one in the file, relative to the data section.
TensorInfo read_gguf_tensor_info(ByteReader& reader);

// Turns relative offsets into absolute ones. Checks that each tensor is aligned, lies inside the file and
// overlaps no other. Throws Error that names the tensor.
void place_gguf_tensors(std::vector<TensorInfo>& tensors, uint64_t data_offset, uint64_t alignment,
                        uint64_t file_size);

}  // namespace plait
