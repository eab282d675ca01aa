#include <cstring>
#include <string>

#include "base/error.h"
#include "kernels/matmul/half.h"
#include "kernels/matmul/matmul.h"
#include "kernels/matmul/packed_layout.h"

namespace plait {
namespace {

constexpr int32_t kPlaneWords = 8;  // words of 4 columns in a part

uint32_t load_word(const void* p) {
  uint32_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

uint32_t spread(uint32_t mask) { return mask * 0x01010101U; }

// `code` points at the 32 codes of each row's part, BlockCodes apart; `from` is the plane's lowest bit in a
// code.
void write_plane(int32_t bits, int32_t from, const BlockCodes* rows, int32_t part, std::byte* plane) {
  const uint32_t mask = spread((1U << bits) - 1);
  for (int32_t v = 0; v < bits; ++v) {
    for (int32_t row = 0; row < kRowGroup; ++row) {
      uint32_t word = 0;
      for (int32_t j = v; j < kPlaneWords; j += bits) {
        word |= (load_word(rows[row].code + part * kBlock + 4 * j) >> from & mask) << (j - v);
      }
      std::memcpy(plane + 32 * v + 4 * row, &word, sizeof word);
    }
  }
}

void read_plane(int32_t bits, int32_t from, const std::byte* plane, int32_t row, uint8_t* code) {
  const uint32_t mask = spread((1U << bits) - 1);
  for (int32_t v = 0; v < bits; ++v) {
    const uint32_t word = load_word(plane + 32 * v + 4 * row);
    for (int32_t j = v; j < kPlaneWords; j += bits) {
      const uint32_t codes = load_word(code + 4 * j) | ((word >> (j - v) & mask) << from);
      std::memcpy(code + 4 * j, &codes, sizeof codes);
    }
  }
}

// The 6-bit codes of a part of kS8Apart; see packed_layout.h.
void write_upper(const BlockCodes* rows, std::byte* dst) {
  for (int32_t i = 0; i < 2; ++i) {
    for (int32_t row = 0; row < kRowGroup; ++row) {
      const uint8_t* code = rows[row].code + 16 * i;
      const uint32_t last = load_word(code + 12);
      for (int32_t j = 0; j < 3; ++j) {
        const uint32_t word = load_word(code + 4 * j) << 2 | (last >> (4 - 2 * j) & spread(3));
        std::memcpy(dst + 32 * (3 * i + j) + 4 * row, &word, sizeof word);
      }
    }
  }
}

void read_upper(const std::byte* src, int32_t row, uint8_t* code) {
  for (int32_t i = 0; i < 2; ++i) {
    uint32_t last = 0;
    for (int32_t j = 0; j < 3; ++j) {
      const uint32_t word = load_word(src + 32 * (3 * i + j) + 4 * row);
      const uint32_t codes = word >> 2 & spread(0x3f);
      std::memcpy(code + 16 * i + 4 * j, &codes, sizeof codes);
      last |= (word & spread(3)) << (4 - 2 * j);
    }
    std::memcpy(code + 16 * i + 12, &last, sizeof last);
  }
}

// Scale byte `i` of one part of one row: see packed_layout.h.
uint8_t scale_byte(PackedKind kind, const BlockCodes& block, int32_t part, int32_t i) {
  switch (kind) {
    case PackedKind::kU4K:
    case PackedKind::kU5K:
      return static_cast<uint8_t>(i == 0 ? block.scale[part] : block.min[part]);
    case PackedKind::kU2K:
      return static_cast<uint8_t>(block.scale[2 * part + i] | (block.min[2 * part + i] << 4));
    case PackedKind::kCode4K:
      return static_cast<uint8_t>(block.scale[part]);
    default:
      return static_cast<uint8_t>(block.scale[2 * part + i]);
  }
}

void set_scale_byte(PackedKind kind, int32_t part, int32_t i, uint8_t byte, BlockCodes& block) {
  switch (kind) {
    case PackedKind::kU4K:
    case PackedKind::kU5K:
      (i == 0 ? block.scale : block.min)[part] = static_cast<int8_t>(byte);
      return;
    case PackedKind::kU2K:
      block.scale[2 * part + i] = static_cast<int8_t>(byte & 0xf);
      block.min[2 * part + i] = static_cast<int8_t>(byte >> 4);
      return;
    case PackedKind::kCode4K:
      block.scale[part] = static_cast<int8_t>(byte);
      return;
    default:
      block.scale[2 * part + i] = static_cast<int8_t>(byte);
  }
}

void pack_float_group(int32_t element_bytes, const std::byte* src, int64_t cols, std::byte* dst) {
  const auto size = static_cast<size_t>(element_bytes);
  const size_t row_bytes = static_cast<size_t>(cols) * size;
  for (size_t row = 0; row < kRowGroup; ++row) {
    for (size_t k = 0; k < static_cast<size_t>(cols); ++k) {
      std::memcpy(dst + (k * kRowGroup + row) * size, src + row * row_bytes + k * size, size);
    }
  }
}

}  // namespace

PackedKind packed_kind(GgmlType type) {
  switch (type) {
    case GgmlType::kF32:
      return PackedKind::kF32;
    case GgmlType::kF16:
      return PackedKind::kF16;
    case GgmlType::kBF16:
      return PackedKind::kBF16;
    case GgmlType::kQ4_0:
      return PackedKind::kU4;
    case GgmlType::kQ4_1:
      return PackedKind::kU4Min;
    case GgmlType::kQ5_0:
      return PackedKind::kU5;
    case GgmlType::kQ5_1:
      return PackedKind::kU5Min;
    case GgmlType::kQ8_0:
      return PackedKind::kS8;
    case GgmlType::kIQ4_NL:
      return PackedKind::kCode4;
    case GgmlType::kQ2_K:
      return PackedKind::kU2K;
    case GgmlType::kQ3_K:
      return PackedKind::kU3K;
    case GgmlType::kQ4_K:
      return PackedKind::kU4K;
    case GgmlType::kQ5_K:
      return PackedKind::kU5K;
    case GgmlType::kQ6_K:
      return PackedKind::kU6K;
    case GgmlType::kIQ4_XS:
      return PackedKind::kCode4K;
  }
  throw Error(ErrorCode::kUnsupported,
              "tensor type " + std::to_string(static_cast<uint32_t>(type)) + " cannot be packed");
}

GgmlType packed_type(PackedKind kind) {
  if (kind == PackedKind::kS8Apart) return GgmlType::kQ8_0;
  for (const GgmlType type : kAllGgmlTypes) {
    if (packed_kind(type) == kind) return type;
  }
  throw Error(ErrorCode::kInternal, "no file type has this packed kind");
}

float load_float(PackedKind kind, const std::byte* src) {
  if (kind == PackedKind::kF32) return float_of_bits(load_word(src));
  uint16_t bits;
  std::memcpy(&bits, src, sizeof bits);
  return kind == PackedKind::kF16 ? float_of_f16(bits) : float_of_bf16(bits);
}

void write_record(PackedKind kind, const BlockCodes* rows, std::byte* record) {
  const RecordShape shape = record_shape(kind);
  for (int32_t row = 0; row < kRowGroup; ++row) {
    std::memcpy(record + 2 * row, &rows[row].d, 2);
    if (shape.has_min_d) std::memcpy(record + 2 * (kRowGroup + row), &rows[row].min_d, 2);
  }
  for (int32_t part = 0; part < shape.num_parts(); ++part) {
    std::byte* dst = record + shape.head_bytes() + part * shape.part_bytes();
    for (int32_t i = 0; i < shape.num_scales; ++i) {
      for (int32_t row = 0; row < kRowGroup; ++row) {
        dst[i * kRowGroup + row] = std::byte{scale_byte(kind, rows[row], part, i)};
      }
    }
    if (is_apart(kind)) {
      write_upper(rows, dst);
      continue;
    }
    write_plane(shape.low_bits, 0, rows, part, dst + shape.planes_offset());
    write_plane(shape.high_bits, shape.low_bits, rows, part, dst + shape.high_offset());
  }
}

void read_record(PackedKind kind, const std::byte* record, int32_t row, BlockCodes& out) {
  const RecordShape shape = record_shape(kind);
  out = BlockCodes{};
  out.num_elements = shape.elements;
  std::memcpy(&out.d, record + 2 * row, 2);
  if (shape.has_min_d) std::memcpy(&out.min_d, record + 2 * (kRowGroup + row), 2);
  for (int32_t part = 0; part < shape.num_parts(); ++part) {
    const std::byte* src = record + shape.head_bytes() + part * shape.part_bytes();
    for (int32_t i = 0; i < shape.num_scales; ++i) {
      set_scale_byte(kind, part, i, static_cast<uint8_t>(src[i * kRowGroup + row]), out);
    }
    uint8_t* code = out.code + part * kBlock;
    if (is_apart(kind)) {
      read_upper(src, row, code);
      continue;
    }
    read_plane(shape.low_bits, 0, src + shape.planes_offset(), row, code);
    read_plane(shape.high_bits, shape.low_bits, src + shape.high_offset(), row, code);
  }
}

void write_low(const BlockCodes* rows, std::byte* low) {
  for (int32_t i = 0; i < 2; ++i) {
    for (int32_t row = 0; row < kRowGroup; ++row) {
      uint32_t word = 0;
      for (int32_t j = 0; j < 4; ++j) {
        word |= (load_word(rows[row].code + 16 * i + 4 * j) & spread(3)) << (2 * j);
      }
      std::memcpy(low + 32 * i + 4 * row, &word, sizeof word);
    }
  }
}

void read_low(const std::byte* low, int32_t row, BlockCodes& out) {
  for (int32_t j = 0; j < kPlaneWords; ++j) {
    const uint32_t bits = load_word(low + 32 * (j / 4) + 4 * row) >> (2 * (j % 4)) & spread(3);
    const uint32_t codes = (load_word(out.code + 4 * j) << 2 | bits) ^ spread(0x80);
    std::memcpy(out.code + 4 * j, &codes, sizeof codes);
  }
}

size_t packed_num_bytes(GgmlType type, int64_t rows, int64_t cols) {
  const PackedKind kind = packed_kind(type);
  const int64_t block = block_shape(type).elements;
  constexpr int64_t kMaxSide = int64_t{1} << 31;
  if (rows <= 0 || cols <= 0 || rows >= kMaxSide || cols >= kMaxSide || rows % kRowGroup != 0 ||
      cols % kBlock != 0 || cols % block != 0) {
    throw Error(ErrorCode::kUnsupported, std::string(type_name(type)) + " matrix of " + std::to_string(rows) +
                                             " x " + std::to_string(cols) + ": rows must be a multiple of " +
                                             std::to_string(kRowGroup) + " and columns of " +
                                             std::to_string(block > kBlock ? block : kBlock));
  }
  return static_cast<size_t>(rows / kRowGroup) * group_bytes(kind, cols);
}

void pack_rows(GgmlType type, const std::byte* src, int64_t cols, int64_t row0, int64_t row1,
               std::byte* dst) {
  const PackedKind kind = packed_kind(type);
  const BlockShape block = block_shape(type);
  const int64_t num_blocks = cols / block.elements;
  const int64_t row_bytes = num_blocks * block.bytes;
  const auto step = static_cast<int64_t>(group_bytes(kind, cols));
  for (int64_t row = row0; row < row1; row += kRowGroup) {
    const std::byte* from = src + row * row_bytes;
    std::byte* to = dst + row / kRowGroup * step;
    if (is_float_kind(kind)) {
      pack_float_group(block.bytes, from, cols, to);
      continue;
    }
    BlockCodes rows[kRowGroup];
    for (int64_t b = 0; b < num_blocks; ++b) {
      for (int64_t i = 0; i < kRowGroup; ++i)
        decode_block(type, from + i * row_bytes + b * block.bytes, rows[i]);
      write_record(kind, rows, to + b * record_shape(kind).bytes());
    }
  }
}

void dequantize_row(GgmlType type, const std::byte* src, int64_t cols, float* out) {
  const PackedKind kind = packed_kind(type);
  const BlockShape shape = block_shape(type);
  if (is_float_kind(kind)) {
    for (int64_t k = 0; k < cols; ++k) out[k] = load_float(kind, src + k * shape.bytes);
    return;
  }
  BlockCodes block;
  for (int64_t k = 0; k < cols; k += shape.elements, src += shape.bytes) {
    decode_block(type, src, block);
    block_values(type, block, out + k);
  }
}

void unpack_row(const PackedMatrix& w, int64_t row, float* out) {
  const std::byte* group = w.data + static_cast<size_t>(row / kRowGroup) * group_bytes(w.kind, w.cols);
  const auto lane = static_cast<int32_t>(row % kRowGroup);
  if (is_float_kind(w.kind)) {
    const int32_t size = float_bytes(w.kind);
    for (int64_t k = 0; k < w.cols; ++k) out[k] = load_float(w.kind, group + (k * kRowGroup + lane) * size);
    return;
  }
  const GgmlType type = packed_type(w.kind);
  const RecordShape shape = record_shape(w.kind);
  const std::byte* low = w.low;
  if (low != nullptr) low += static_cast<size_t>(row / kRowGroup) * low_group_bytes(w.kind, w.cols);
  BlockCodes block;
  for (int64_t k = 0; k < w.cols; k += shape.elements, group += shape.bytes()) {
    read_record(w.kind, group, lane, block);
    if (low != nullptr) read_low(low + k / kBlock * kLowPartBytes, lane, block);
    block_values(type, block, out + k);
  }
}

}  // namespace plait
