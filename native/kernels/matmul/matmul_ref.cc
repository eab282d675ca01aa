// The scalar oracle: one row and one token at a time, the arithmetic of matmul.h spelled out.
#include <cmath>

#include "kernels/matmul/act_tile.h"
#include "kernels/matmul/half.h"
#include "kernels/matmul/matmul_kernels.h"
#include "kernels/matmul/packed_layout.h"
#include "kernels/matmul/walk.h"

namespace plait {
namespace {

struct Token {
  int8_t q[kBlock];
  float scale;
  float sum;
};

Token load_token(const ActRecord& record, int32_t t) {
  Token token;
  std::memcpy(token.q, record.q + t * kBlock, sizeof token.q);
  std::memcpy(&token.scale, record.scale + t * 4, sizeof token.scale);
  std::memcpy(&token.sum, record.sum + t * 4, sizeof token.sum);
  return token;
}

// What codes are counted from.
float code_offset(PackedKind kind) {
  switch (kind) {
    case PackedKind::kU4:
      return 8.0F;
    case PackedKind::kU5:
      return 16.0F;
    default:
      return 0.0F;
  }
}

// The same of kinds with scales per 16.
int32_t code_offset_per_16(PackedKind kind) {
  return kind == PackedKind::kU3K ? 4 : kind == PackedKind::kU6K ? 32 : 0;
}

int32_t code_value(PackedKind kind, uint8_t code) {
  switch (kind) {
    case PackedKind::kS8:
    case PackedKind::kS8Apart:
      return static_cast<int8_t>(code);
    case PackedKind::kCode4:
    case PackedKind::kCode4K:
      return kIq4Values[code];
    case PackedKind::kU6:
      return 4 * code;
    default:
      return code;
  }
}

float add_per_32(PackedKind kind, const BlockCodes& block, int32_t part, const Token& token, float acc) {
  int32_t isum = 0;
  for (int32_t k = 0; k < kBlock; ++k) isum += code_value(kind, block.code[part * kBlock + k]) * token.q[k];
  float d = float_of_f16(block.d);
  float m = float_of_f16(block.min_d);
  bool has_min = record_shape(kind).has_min_d;
  if (record_shape(kind).num_scales > 0) {
    d = d * static_cast<float>(block.scale[part]);
    m = -(m * static_cast<float>(block.min[part]));
  }
  if (code_offset(kind) != 0) {
    m = -code_offset(kind) * d;
    has_min = true;
  }
  if (kind == PackedKind::kU6) {
    m = -126.5F * d;
    has_min = true;
  }
  acc = std::fma(d * token.scale, static_cast<float>(isum), acc);
  return has_min ? std::fma(m, token.sum, acc) : acc;
}

float add_per_16(PackedKind kind, const BlockCodes& block, int32_t part, const Token& token, float acc) {
  int32_t isum = 0;
  int32_t imin = 0;
  for (int32_t k = 0; k < kBlock; ++k) {
    const int32_t s = 2 * part + k / 16;
    isum += block.scale[s] * (block.code[part * kBlock + k] - code_offset_per_16(kind)) * token.q[k];
    imin += block.min[s] * token.q[k];
  }
  acc = std::fma(float_of_f16(block.d) * token.scale, static_cast<float>(isum), acc);
  if (!record_shape(kind).has_min_d) return acc;
  return std::fma(-float_of_f16(block.min_d) * token.scale, static_cast<float>(imin), acc);
}

// acc[t] for the wanted tokens of a tile.
void dot_row(PackedKind kind, const Groups& group, int32_t lane, int32_t cols, const ActTile& tile,
             float* acc) {
  const RecordShape shape = record_shape(kind);
  const bool is_per_16 = kind == PackedKind::kU2K || kind == PackedKind::kU3K || kind == PackedKind::kU6K;
  BlockCodes block;
  for (int32_t col = 0; col < cols; col += kBlock) {
    const int32_t part = col % shape.elements / kBlock;
    if (part == 0) read_record(kind, group.records + col / shape.elements * shape.bytes(), lane, block);
    if (kind == PackedKind::kS8Apart) read_low(group.low + col / kBlock * kLowPartBytes, lane, block);
    const ActRecord record = tile.record(col / kBlock);
    for (int32_t t = 0; t < tile.wanted; ++t) {
      const Token token = load_token(record, t);
      acc[t] = is_per_16 ? add_per_16(kind, block, part, token, acc[t])
                         : add_per_32(kind, block, part, token, acc[t]);
    }
  }
}

float dot_float_row(const PackedMatrix& w, int32_t row, const float* x) {
  const std::byte* group = w.data + static_cast<size_t>(row / kRowGroup) * group_bytes(w.kind, w.cols);
  float acc = 0.0F;
  for (int64_t k = 0; k < w.cols; ++k) {
    const int64_t i = k * kRowGroup + row % kRowGroup;
    acc = std::fma(load_float(w.kind, group + i * float_bytes(w.kind)), x[k], acc);
  }
  return acc;
}

}  // namespace

void matmul_ref(const PackedMatrix& w, const Acts& acts, int32_t row0, int32_t row1, int32_t t0, int32_t t1,
                float* out, int64_t out_stride) {
  if (is_float_kind(w.kind)) {
    for (int32_t t = t0; t < t1; ++t) {
      const float* x = acts.f32 + static_cast<int64_t>(t) * acts.cols;
      for (int32_t row = row0; row < row1; ++row) {
        out[(t - t0) * out_stride + row - row0] = dot_float_row(w, row, x);
      }
    }
    return;
  }
  for (int32_t t = t0; t < t1; t += kTileTokens) {
    const ActTile tile = act_tile(acts, t, t1);
    for (int32_t row = row0; row < row1; ++row) {
      const Groups group = Groups{w.data, w.low}.at(row / kRowGroup, w.kind, w.cols);
      float acc[kTileTokens] = {};
      dot_row(w.kind, group, row % kRowGroup, w.cols, tile, acc);
      for (int32_t i = 0; i < tile.wanted; ++i) out[(t - t0 + i) * out_stride + row - row0] = acc[i];
    }
  }
}

}  // namespace plait
