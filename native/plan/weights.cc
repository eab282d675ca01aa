#include "plan/weights.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"

namespace plait {

int32_t Weights::add_matrix(const std::string& name, GgmlType type, const std::byte* src, int64_t rows,
                            int64_t cols, int32_t num_threads) {
  size_t bytes = 0;
  try {
    bytes = packed_num_bytes(type, rows, cols);
  } catch (const Error& e) {
    throw Error(e.code(), "tensor " + name + ": " + e.what());
  }
  if (padded(bytes) > memory_.size() - used_) {
    throw Error(ErrorCode::kInternal, "tensor " + name + ": no room left for packed weights");
  }
  std::byte* dst = memory_.data() + used_;
  used_ += padded(bytes);

  // Row slices small enough to balance, large enough not to matter.
  const int64_t slice = std::max<int64_t>(kRowGroup, 64 * kRowGroup);
  std::atomic<int64_t> next{0};
  const auto pack_slices = [&] {
    for (int64_t row = next.fetch_add(slice); row < rows; row = next.fetch_add(slice)) {
      pack_rows(type, src, cols, row, std::min(rows, row + slice), dst);
    }
  };
  std::vector<std::thread> helpers;
  for (int32_t i = 1; i < num_threads && rows > slice; ++i) helpers.emplace_back(pack_slices);
  pack_slices();
  for (std::thread& helper : helpers) helper.join();

  matrices_.push_back({name, PackedMatrix{dst, bytes, static_cast<int32_t>(rows), static_cast<int32_t>(cols),
                                          packed_kind(type)}});
  return num_matrices() - 1;
}

int32_t Weights::add_vector(const std::string& name, GgmlType type, const std::byte* src, int64_t num) {
  std::vector<float> values(static_cast<size_t>(num));
  dequantize_row(type, src, num, values.data());
  vectors_.push_back({name, std::move(values)});
  return num_vectors() - 1;
}

}  // namespace plait
