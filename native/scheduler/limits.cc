#include "scheduler/limits.h"

#include <cmath>
#include <string>
#include <utility>

#include "base/error.h"

namespace plait {

namespace {

// Longer than any machine stays up; below it nanoseconds fit into 64 bits with room to spare.
constexpr double kMaxSeconds = 1e9;
constexpr double kMinWeight = 1e-3;
constexpr double kMaxWeight = 1e3;

}  // namespace

void check_limits(const SchedulerLimits& limits) {
  for (const auto& [name, value] : {std::pair{"num_blocks", limits.num_blocks},
                                    {"block_tokens", limits.block_tokens},
                                    {"max_batch_size", limits.max_batch_size},
                                    {"max_batch_tokens", limits.max_batch_tokens},
                                    {"prefill_chunk_tokens", limits.prefill_chunk_tokens}}) {
    if (value < 1) {
      throw Error(ErrorCode::kInvalidArgument,
                  std::string(name) + " must be at least 1, got " + std::to_string(value));
    }
  }
  for (const auto& [name, value] :
       {std::pair{"batch_timeout_s", limits.batch_timeout_s}, {"target_step_s", limits.target_step_s}}) {
    if (!(value >= 0.0 && value <= kMaxSeconds)) {
      throw Error(ErrorCode::kInvalidArgument,
                  std::string(name) + " must be between 0 and 1e9, got " + std::to_string(value));
    }
  }
  for (const auto& [name, weight] : limits.tenant_weights) {
    if (!(weight >= kMinWeight && weight <= kMaxWeight)) {
      throw Error(ErrorCode::kInvalidArgument, "tenant_weights must be between 0.001 and 1000, got " +
                                                   std::to_string(weight) + " for " + name);
    }
  }
  for (const auto& [name, value] :
       {std::pair{"vocab_size", int64_t{limits.vocab_size}}, {"kv_block_bytes", limits.kv_block_bytes}}) {
    if (value < 0) {
      throw Error(ErrorCode::kInvalidArgument,
                  std::string(name) + " must be at least 0, got " + std::to_string(value));
    }
  }
}

}  // namespace plait
