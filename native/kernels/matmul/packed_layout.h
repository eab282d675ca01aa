// The bytes of a packed matrix. Knows: where scales and codes of 8 rows stand. Must not know: arithmetic.
//
// A matrix is a run of groups of kRowGroup rows; a group is a run of records along the columns; a record
// holds 32 columns (one part) or 256 (eight parts):
//
//   record:  f16 d[8]; f16 min_d[8] when has_min_d; part parts[elements / 32]
//   part:    uint8 scales[num_scales][8]; the code planes, low bits first
//   plane:   `bits` vectors of 32 bytes. Vector v, byte 4 * row + c holds elements 4 * j + c of that row for
//            j = v, v + bits, ...; the one of index j in bits [j - v, j - v + bits) of the byte.
//
// so one 256-bit vector is 8 rows x 4 consecutive columns, and the codes of the 8 such vectors of a part come
// out by shift and mask. Scale bytes, by row: kU4K, kU5K: scale, min; kU3K, kU6K: scale of columns 0..15,
// scale of 16..31; kU2K: the same, min in the high nibble; kCode4K: scale.
//
// kS8Apart: codes + 128, of which the record holds the upper 6 bits h, four vectors of columns in three: byte
// k of vector 3 * i + j holds h of vector 4 * i + j in bits [2, 8), j = 0, 1, 2, and in bits [0, 2) the bits
// [4 - 2 * j, 6 - 2 * j) of h of vector 4 * i + 3. The lower 2 bits stand apart, PackedMatrix::low: of each
// part of each group two vectors, byte k of vector i with those of vector 4 * i + j in bits [2 * j, 2 * j +
// 2). So each code is put together by one selection of bits, or four. kU6 is the same record.
//
// Float kinds have no records: a group is [cols][8] elements.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/isa.h"
#include "kernels/matmul/block_codes.h"
#include "kernels/matmul/matmul.h"

namespace plait {

// Names what is drawn above: weights that were packed before are used again only under the same name. Whoever
// changes a byte of the layout, or of what pack_rows() puts into it, changes the name. One layout serves all
// ISAs; another one would have a name of its own.
constexpr const char* packed_layout_name(Isa /*isa*/) { return "rows8.2"; }

struct RecordShape {
  int32_t elements;
  int32_t num_scales;  // scale bytes per row and part
  int32_t low_bits;    // of the code, in the first plane
  int32_t high_bits;   // in the second plane; 0: none (kS8Apart and kU6: together those of the record)
  bool has_min_d;

  constexpr int32_t num_parts() const { return elements / kBlock; }
  constexpr int32_t head_bytes() const { return (has_min_d ? 4 : 2) * kRowGroup; }
  constexpr int32_t planes_offset() const { return num_scales * kRowGroup; }  // within a part
  constexpr int32_t high_offset() const { return planes_offset() + low_bits * 32; }
  constexpr int32_t part_bytes() const { return high_offset() + high_bits * 32; }
  constexpr int32_t bytes() const { return head_bytes() + num_parts() * part_bytes(); }
};

constexpr RecordShape record_shape(PackedKind kind) {
  switch (kind) {
    case PackedKind::kU4:
    case PackedKind::kCode4:
      return {32, 0, 4, 0, false};
    case PackedKind::kU4Min:
      return {32, 0, 4, 0, true};
    case PackedKind::kU5:
      return {32, 0, 4, 1, false};
    case PackedKind::kU5Min:
      return {32, 0, 4, 1, true};
    case PackedKind::kS8Apart:
    case PackedKind::kU6:
      return {32, 0, 4, 2, false};
    case PackedKind::kS8:
      return {32, 0, 8, 0, false};
    case PackedKind::kU2K:
      return {256, 2, 2, 0, true};
    case PackedKind::kU3K:
      return {256, 2, 2, 1, false};
    case PackedKind::kU4K:
      return {256, 2, 4, 0, true};
    case PackedKind::kU5K:
      return {256, 2, 4, 1, true};
    case PackedKind::kU6K:
      return {256, 2, 4, 2, false};
    case PackedKind::kCode4K:
      return {256, 1, 4, 0, false};
    case PackedKind::kF16:
    case PackedKind::kBF16:
    case PackedKind::kF32:
      break;
  }
  return {1, 0, 0, 0, false};
}

inline constexpr int32_t kLowBits = 2;
inline constexpr int32_t kLowPartBytes = 32 * kLowBits;
constexpr bool is_apart(PackedKind kind) { return kind == PackedKind::kS8Apart || kind == PackedKind::kU6; }

// Bytes of the lower bits of one group, 0 for kinds that do not keep them apart.
constexpr size_t low_group_bytes(PackedKind kind, int64_t cols) {
  return kind == PackedKind::kS8Apart ? static_cast<size_t>(cols / kBlock) * kLowPartBytes : 0;
}

constexpr int32_t float_bytes(PackedKind kind) { return kind == PackedKind::kF32 ? 4 : 2; }

// Bytes of one group of kRowGroup rows.
constexpr size_t group_bytes(PackedKind kind, int64_t cols) {
  if (is_float_kind(kind)) return static_cast<size_t>(cols * kRowGroup * float_bytes(kind));
  const RecordShape shape = record_shape(kind);
  return static_cast<size_t>(cols / shape.elements) * static_cast<size_t>(shape.bytes());
}

// The file type that `kind` packs. Throws Error(kInternal) for kU6, which packs none.
GgmlType packed_type(PackedKind kind);

// One element of a float kind.
float load_float(PackedKind kind, const std::byte* src);

// Packs one block of each of the 8 rows of a group into a record, and reads one row's block back. Codes of
// kS8Apart and kU6 are the h of the record; write_low() takes signed ones of 8 bits, and read_low() makes
// such ones of h.
void write_record(PackedKind kind, const BlockCodes* rows, std::byte* record);
void read_record(PackedKind kind, const std::byte* record, int32_t row, BlockCodes& out);
void write_low(const BlockCodes* rows, std::byte* low);
void read_low(const std::byte* low, int32_t row, BlockCodes& out);

}  // namespace plait
