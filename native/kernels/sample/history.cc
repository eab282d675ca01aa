#include <algorithm>

#include "kernels/sample/sample.h"

namespace plait {

void TokenHistory::start(std::span<const int32_t> prompt, std::span<const int32_t> output) {
  prompt_ids.assign(prompt.begin(), prompt.end());
  std::sort(prompt_ids.begin(), prompt_ids.end());
  prompt_ids.erase(std::unique(prompt_ids.begin(), prompt_ids.end()), prompt_ids.end());
  output_counts.clear();
  num_output = 0;
  for (const int32_t token : output) append(token);
}

void TokenHistory::append(int32_t token) {
  const auto at = std::lower_bound(output_counts.begin(), output_counts.end(), token,
                                   [](const auto& entry, int32_t id) { return entry.first < id; });
  if (at != output_counts.end() && at->first == token) {
    ++at->second;
  } else {
    output_counts.insert(at, {token, 1});
  }
  ++num_output;
}

}  // namespace plait
