#include "scheduler/request.h"

#include <span>

#include "base/error.h"

namespace plait {

namespace {

void require(bool holds, const std::string& what) {
  if (!holds) throw Error(ErrorCode::kInvalidArgument, what);
}

void check_ids(const char* name, std::span<const int32_t> ids, int32_t vocab_size) {
  for (const int32_t id : ids) {
    require(id >= 0 && (vocab_size == 0 || id < vocab_size),
            std::string(name) + ": token id " + std::to_string(id) + " is not in the vocabulary");
  }
}

}  // namespace

void check_request(const Request& request, int32_t vocab_size) {
  require(!request.prompt_ids.empty(), "prompt_ids must have at least one token");
  check_ids("prompt_ids", request.prompt_ids, vocab_size);
  check_ids("produced_ids", request.produced_ids, vocab_size);
  require(request.n >= 1 && request.n <= Request::kMaxChoices, "n must be between 1 and " +
                                                                   std::to_string(Request::kMaxChoices) +
                                                                   ", got " + std::to_string(request.n));
  require(request.max_tokens >= 1,
          "max_tokens must be at least 1, got " + std::to_string(request.max_tokens));
  require(request.prompt_ids.size() + static_cast<size_t>(request.max_tokens) <= INT32_MAX,
          "prompt_ids and max_tokens are more than positions can count");
  if (request.produced_ids.empty()) return;
  require(request.n == 1, "produced_ids must be empty when n is not 1");
  require(request.num_prompt_logprobs < 0, "produced_ids must be empty when prompt logprobs are wanted");
  require(request.produced_ids.size() < static_cast<size_t>(request.max_tokens),
          "produced_ids must have fewer tokens than max_tokens");
}

uint64_t derive_seed(uint64_t seed, int32_t index) {
  if (index == 0) return seed;
  // SplitMix64: nearby (seed, index) give unrelated streams.
  uint64_t z = seed + static_cast<uint64_t>(index) * 0x9E3779B97F4A7C15U;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

}  // namespace plait
