#include "fileio/gguf_tensor.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "fileio/utf8.h"

namespace plait {
namespace {

constexpr int64_t kMaxDim = std::numeric_limits<int64_t>::max();

std::string_view read_name(ByteReader& reader) {
  const uint64_t at = reader.offset();
  const std::string_view name = reader.read_string("a tensor name");
  if (name.empty()) throw_bad_byte(at, "a tensor name is empty");
  if (name.size() > kMaxGgufTensorNameBytes) {
    throw_bad_byte(at, "the tensor name " + quoted(name) + " has " + std::to_string(name.size()) +
                           " bytes; the format allows " + std::to_string(kMaxGgufTensorNameBytes));
  }
  if (!is_utf8(name)) throw_bad_byte(at, "the tensor name " + quoted(name) + " is not UTF-8");
  if (has_control_bytes(name)) {
    throw_bad_byte(at, "the tensor name " + quoted(name) + " contains control characters");
  }
  return name;
}

// The shape, with a product that fits int64.
void read_dims(ByteReader& reader, TensorInfo& tensor, const std::string& what) {
  const uint64_t at = reader.offset();
  const auto num_dims = reader.read<uint32_t>(what);
  if (num_dims < 1 || num_dims > tensor.dims.size()) {
    throw_bad_byte(at, what + " has " + std::to_string(num_dims) + " dimensions; 1 to 4 are allowed");
  }
  tensor.num_dims = static_cast<int32_t>(num_dims);
  int64_t num_elements = 1;
  for (uint32_t i = 0; i < num_dims; ++i) {
    const uint64_t dim_at = reader.offset();
    const auto dim = reader.read<uint64_t>(what);
    if (dim == 0) throw_bad_byte(dim_at, what + ": dimension " + std::to_string(i) + " is 0");
    if (dim > static_cast<uint64_t>(kMaxDim / num_elements)) {
      throw_bad_byte(dim_at, what + ": dimension " + std::to_string(i) + " is " + std::to_string(dim) +
                                 ": the number of elements overflows");
    }
    tensor.dims[i] = static_cast<int64_t>(dim);
    num_elements *= tensor.dims[i];
  }
}

void read_type(ByteReader& reader, TensorInfo& tensor, const std::string& what) {
  const uint64_t at = reader.offset();
  const auto number = reader.read<uint32_t>(what);
  tensor.type = static_cast<GgmlType>(number);
  const BlockShape block = block_shape(tensor.type);
  if (block.elements == 0) {
    throw Error(ErrorCode::kUnsupported, "byte " + std::to_string(at) + ": " + what +
                                             " has the tensor type " + std::to_string(number) +
                                             ", which plait does not read");
  }
  if (tensor.columns() % block.elements != 0) {
    throw_bad_byte(at, what + " has " + std::to_string(tensor.columns()) +
                           " columns, not a multiple of the " + std::to_string(block.elements) +
                           " elements of a " + type_name(tensor.type) + " block");
  }
  const auto num_blocks = static_cast<uint64_t>(tensor.columns() / block.elements * tensor.rows());
  const auto block_bytes = static_cast<uint64_t>(block.bytes);
  if (num_blocks > std::numeric_limits<uint64_t>::max() / block_bytes) {
    throw_bad_byte(at, what + ": the number of bytes overflows");
  }
  tensor.num_bytes = num_blocks * block_bytes;
}

}  // namespace

TensorInfo read_gguf_tensor_info(ByteReader& reader) {
  TensorInfo tensor;
  tensor.name = read_name(reader);
  const std::string what = "tensor " + quoted(tensor.name);
  read_dims(reader, tensor, what);
  read_type(reader, tensor, what);
  tensor.offset = reader.read<uint64_t>(what);
  return tensor;
}

void place_gguf_tensors(std::vector<TensorInfo>& tensors, uint64_t data_offset, uint64_t alignment,
                        uint64_t file_size) {
  const uint64_t data_size = file_size > data_offset ? file_size - data_offset : 0;
  for (TensorInfo& tensor : tensors) {
    const std::string_view name = tensor.name;
    if (tensor.offset % alignment != 0) {
      throw Error(ErrorCode::kInvalidFile,
                  "tensor " + quoted(name) + ": its data offset " + std::to_string(tensor.offset) +
                      " is not a multiple of the alignment " + std::to_string(alignment));
    }
    if (tensor.offset > data_size || tensor.num_bytes > data_size - tensor.offset) {
      throw Error(ErrorCode::kInvalidFile,
                  "tensor " + quoted(name) + " needs " + std::to_string(tensor.num_bytes) + " bytes at " +
                      std::to_string(tensor.offset) + " of the data section, which starts at byte " +
                      std::to_string(data_offset) + ", but the file ends at byte " +
                      std::to_string(file_size) + "; is it cut short?");
    }
    tensor.offset += data_offset;
  }
  std::vector<uint32_t> by_offset(tensors.size());
  std::iota(by_offset.begin(), by_offset.end(), 0u);
  std::sort(by_offset.begin(), by_offset.end(),
            [&](uint32_t a, uint32_t b) { return tensors[a].offset < tensors[b].offset; });
  for (size_t i = 1; i < by_offset.size(); ++i) {
    const TensorInfo& before = tensors[by_offset[i - 1]];
    const TensorInfo& after = tensors[by_offset[i]];
    if (before.offset + before.num_bytes > after.offset) {
      throw Error(ErrorCode::kInvalidFile, "tensors " + quoted(before.name) + " and " + quoted(after.name) +
                                               " overlap at byte " + std::to_string(after.offset));
    }
  }
}

}  // namespace plait
