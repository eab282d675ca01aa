#include "bench/matmul_timer.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/error.h"
#include "kernels/matmul/coarse.h"
#include "kernels/matmul/random_blocks.h"

namespace plait {

namespace {

// With enough digits to tell neighbours apart.
std::string exact_text(float value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", static_cast<double>(value));
  return text;
}

constexpr size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

MatmulTimer::MatmulTimer(Rig& rig, GgmlType type, int32_t rows, int32_t cols,
                         const std::vector<const std::byte*>& sources, size_t cold_bytes, MatrixForm form)
    : rig_(rig), rows_(rows), cols_(cols), tiles_(static_cast<size_t>(rig.num_threads())) {
  if (sources.empty()) throw Error(ErrorCode::kInvalidArgument, "there is no matrix to time");
  const bool is_plain = form == MatrixForm::kPlain;
  if (!is_plain && !can_be_searched(type)) {
    throw Error(ErrorCode::kUnsupported, std::string(type_name(type)) + " matrices are not searched");
  }
  const size_t plain_bytes = packed_num_bytes(type, rows, cols);
  const SearchedBytes pieces = searched_bytes(rows, cols);
  const size_t bytes = is_plain ? plain_bytes : pieces.all();
  matrix_bytes_ = is_plain ? plain_bytes : pieces.records + (form == MatrixForm::kApart ? pieces.low : 0);
  const size_t num_copies = std::max<size_t>(sources.size(), (cold_bytes + bytes - 1) / bytes);
  packed_ = Memory(num_copies * aligned(bytes));
  for (size_t i = 0; i < num_copies; ++i) {
    const std::byte* data = packed_.data() + i * aligned(bytes);
    PackedMatrix matrix{data, bytes, rows, cols, packed_kind(type), nullptr};
    if (form == MatrixForm::kApart) {
      matrix = {data, pieces.records, rows, cols, PackedKind::kS8Apart, data + pieces.records};
    } else if (form == MatrixForm::kCoarse) {
      matrix = {data, pieces.records, rows, cols, PackedKind::kU6, nullptr};
    }
    matrices_.push_back(matrix);
  }
  // Slices are packed by whoever is free; a copy of a copy would leave the memory on one node.
  constexpr int32_t kSlice = 32 * kRowGroup;
  const int32_t num_slices = (rows + kSlice - 1) / kSlice;
  rig_.team().run(static_cast<int32_t>(num_copies) * num_slices, [&](int32_t chunk, int32_t) {
    const auto copy = static_cast<size_t>(chunk / num_slices);
    const int32_t row0 = chunk % num_slices * kSlice;
    const int32_t row1 = std::min(rows, row0 + kSlice);
    const std::byte* source = sources[copy % sources.size()];
    std::byte* data = packed_.data() + copy * aligned(bytes);
    if (is_plain) return pack_rows(type, source, cols, row0, row1, data);
    std::byte* low = data + pieces.records;
    pack_upper_rows(source, cols, row0, row1, data, reinterpret_cast<float*>(low + pieces.low));
    pack_lower_rows(source, cols, row0, row1, low);
  });
  for (std::vector<float>& tile : tiles_) {
    tile.resize(std::max<size_t>(kTileTokens * kMaxRowsPerCut, kTokensPerCut * kRowsPerCut));
  }
}

ProductCut MatmulTimer::cut(int32_t num_tokens) const {
  return cut_product(rows_, num_tokens, kRowUnit, rig_.num_threads());
}

void MatmulTimer::quantize(int32_t num_tokens) {
  x_.resize(static_cast<size_t>(num_tokens) * static_cast<size_t>(cols_));
  SplitMix64 random(1);
  for (float& x : x_) x = random.uniform();
  acts_ = {nullptr, nullptr, num_tokens, cols_};
  if (is_float_kind(matrices_.front().kind)) {
    acts_.f32 = x_.data();
    return;
  }
  q8_ = Memory(acts_q8_bytes(num_tokens, cols_));
  acts_.q8 = q8_.data();
  for (int32_t t = 0; t < num_tokens; ++t) {
    rig_.kernels().quantize(x_.data() + int64_t{t} * cols_, t, 0, cols_, acts_);
  }
}

void MatmulTimer::multiply(const PackedMatrix& matrix, const ProductArea& area, int32_t member, float* out) {
  const auto& [row0, row1, t0, t1] = area;
  if (out != nullptr) {
    rig_.kernels().matmul(matrix, acts_, row0, row1, t0, t1, out + int64_t{t0} * rows_ + row0, rows_);
  } else {
    float* tile = tiles_[static_cast<size_t>(member)].data();
    rig_.kernels().matmul(matrix, acts_, row0, row1, t0, t1, tile, row1 - row0);
  }
}

// The whole product through the team, held against the scalar one in the first, a middle and the last group
// of rows.
std::string MatmulTimer::check(int32_t num_tokens) {
  const PackedMatrix& matrix = matrices_.front();
  const auto num_out = static_cast<size_t>(num_tokens) * static_cast<size_t>(rows_);
  const Memory room(num_out * sizeof(float));
  auto* out = reinterpret_cast<float*>(room.data());
  std::memset(out, 0xff, num_out * sizeof(float));  // what is not written shows
  const ProductCut c = cut(num_tokens);
  rig_.team().run(c.num_chunks(),
                  [&](int32_t chunk, int32_t member) { multiply(matrix, c.area(chunk), member, out); });

  const KernelTable& scalar = kernel_table(Isa::kScalar);
  Acts expected_acts = acts_;
  std::vector<float> expected(static_cast<size_t>(num_tokens) * kRowGroup);
  const Memory expected_q8(acts_.q8 != nullptr ? acts_q8_bytes(num_tokens, cols_) : 0);
  if (acts_.q8 != nullptr) {
    expected_acts.q8 = expected_q8.data();
    for (int32_t t = 0; t < num_tokens; ++t) {
      scalar.quantize(x_.data() + int64_t{t} * cols_, t, 0, cols_, expected_acts);
    }
    if (std::memcmp(acts_.q8, expected_acts.q8, expected_q8.size()) != 0) {
      return "its quantised activations differ from the scalar ones";
    }
  }
  for (const int32_t group : {0, rows_ / kRowGroup / 2, rows_ / kRowGroup - 1}) {
    const int32_t row0 = group * kRowGroup;
    scalar.matmul(matrix, expected_acts, row0, row0 + kRowGroup, 0, num_tokens, expected.data(), kRowGroup);
    for (int32_t t = 0; t < num_tokens; ++t) {
      const float* row = out + int64_t{t} * rows_ + row0;
      for (int32_t n = 0; n < kRowGroup; ++n) {
        const float want = expected[static_cast<size_t>(t * kRowGroup + n)];
        if (std::memcmp(row + n, &want, sizeof want) == 0) continue;
        return "row " + std::to_string(row0 + n) + " of token " + std::to_string(t) + " is " +
               exact_text(row[n]) + ", the scalar kernel gives " + exact_text(want);
      }
    }
  }
  return "";
}

Timing MatmulTimer::run(int32_t num_tokens, int32_t repeats) {
  if (num_tokens < 1 || repeats < 1) throw Error(ErrorCode::kInvalidArgument, "nothing to time");
  quantize(num_tokens);
  Timing timing{check(num_tokens), {}};
  if (!timing.difference.empty()) return timing;
  const ProductCut c = cut(num_tokens);
  const int32_t num_chunks = c.num_chunks();
  timing.seconds = rig_.time_units(num_copies(), repeats, [&](int64_t first, int64_t count) {
    rig_.team().run(static_cast<int32_t>(count) * num_chunks, [&](int32_t chunk, int32_t member) {
      const int64_t copy = (first + chunk / num_chunks) % num_copies();
      multiply(matrices_[static_cast<size_t>(copy)], c.area(chunk % num_chunks), member, nullptr);
    });
  });
  return timing;
}

}  // namespace plait
