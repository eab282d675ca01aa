// What goes into the scheduler: its limits and requests. Calls take microseconds and hold the GIL.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/request_handle.h"
#include "scheduler/limits.h"

namespace plait {

namespace {

using namespace nb::literals;

void register_limits(nb::module_& m) {
  const SchedulerLimits d;
  nb::class_<SchedulerLimits>(m, "SchedulerLimits", "The scheduler's fixed limits.")
      .def(
          "__init__",
          [](SchedulerLimits* self, int32_t num_blocks, int32_t block_tokens, int32_t max_batch_size,
             int32_t max_batch_tokens, int32_t prefill_chunk_tokens, double batch_timeout_s,
             bool enable_prefix_cache, double target_step_s, int64_t kv_block_bytes, int32_t vocab_size,
             std::vector<int32_t> eos_token_ids,
             const std::vector<std::pair<nb::bytes, double>>& tenant_weights) {
            SchedulerLimits limits;
            limits.num_blocks = num_blocks;
            limits.block_tokens = block_tokens;
            limits.max_batch_size = max_batch_size;
            limits.max_batch_tokens = max_batch_tokens;
            limits.prefill_chunk_tokens = prefill_chunk_tokens;
            limits.batch_timeout_s = batch_timeout_s;
            limits.enable_prefix_cache = enable_prefix_cache;
            limits.target_step_s = target_step_s;
            limits.kv_block_bytes = kv_block_bytes;
            limits.vocab_size = vocab_size;
            limits.eos_token_ids = std::move(eos_token_ids);
            for (const auto& [name, weight] : tenant_weights) {
              limits.tenant_weights.emplace_back(std::string(name.c_str(), name.size()), weight);
            }
            check_limits(limits);
            new (self) SchedulerLimits(std::move(limits));
          },
          nb::kw_only(), "num_blocks"_a, "block_tokens"_a, "max_batch_size"_a = d.max_batch_size,
          "max_batch_tokens"_a = d.max_batch_tokens, "prefill_chunk_tokens"_a = d.prefill_chunk_tokens,
          "batch_timeout_s"_a = d.batch_timeout_s, "enable_prefix_cache"_a = d.enable_prefix_cache,
          "target_step_s"_a = d.target_step_s, "kv_block_bytes"_a = d.kv_block_bytes,
          "vocab_size"_a = d.vocab_size, "eos_token_ids"_a = d.eos_token_ids,
          "tenant_weights"_a = std::vector<std::pair<nb::bytes, double>>(),
          "See native/scheduler/limits.h. Raises NativeError (\"invalid_argument\") with the name of what is "
          "out of range.")
      .def_ro("num_blocks", &SchedulerLimits::num_blocks)
      .def_ro("block_tokens", &SchedulerLimits::block_tokens)
      .def_ro("max_batch_size", &SchedulerLimits::max_batch_size)
      .def_ro("max_batch_tokens", &SchedulerLimits::max_batch_tokens)
      .def_ro("prefill_chunk_tokens", &SchedulerLimits::prefill_chunk_tokens)
      .def_ro("batch_timeout_s", &SchedulerLimits::batch_timeout_s)
      .def_ro("enable_prefix_cache", &SchedulerLimits::enable_prefix_cache)
      .def_ro("target_step_s", &SchedulerLimits::target_step_s)
      .def_ro("kv_block_bytes", &SchedulerLimits::kv_block_bytes)
      .def_ro("vocab_size", &SchedulerLimits::vocab_size)
      .def_ro("eos_token_ids", &SchedulerLimits::eos_token_ids)
      .def_prop_ro(
          "tenant_weights",
          [](const SchedulerLimits& limits) {
            std::vector<std::pair<nb::bytes, double>> weights;
            for (const auto& [name, weight] : limits.tenant_weights) {
              weights.emplace_back(nb::bytes(name.data(), name.size()), weight);
            }
            return weights;
          },
          "Tenants without one have 1.")
      .def_prop_ro("num_slots", &SchedulerLimits::num_slots, "Sequences that may run.");
}

void register_request(nb::module_& m) {
  nb::class_<RequestHandle>(m, "Request",
                            "A request for the scheduler. Whoever adds it takes its content, once; what is "
                            "shown here stays.")
      .def(
          "__init__",
          [](RequestHandle* self, int64_t request_id, std::vector<int32_t> prompt_ids, int32_t max_tokens,
             std::vector<int32_t> produced_ids, int32_t n, bool ignore_eos, int32_t num_prompt_logprobs,
             const nb::bytes& tenant, int32_t priority, int64_t arrived_ns,
             std::optional<int64_t> deadline_ns, bool may_hold, bool is_timed) {
            Request request;
            request.request_id = request_id;
            request.prompt_ids = std::move(prompt_ids);
            request.max_tokens = max_tokens;
            request.produced_ids = std::move(produced_ids);
            request.n = n;
            request.ignore_eos = ignore_eos;
            request.num_prompt_logprobs = num_prompt_logprobs;
            request.tenant.assign(tenant.c_str(), tenant.size());
            request.priority = priority;
            request.arrived_ns = arrived_ns;
            request.deadline_ns = deadline_ns.value_or(-1);
            request.may_hold = may_hold;
            request.is_timed = is_timed;
            new (self) RequestHandle(std::move(request));
          },
          "request_id"_a, "prompt_ids"_a, "max_tokens"_a, "produced_ids"_a = std::vector<int32_t>(),
          "n"_a = 1, "ignore_eos"_a = false, "num_prompt_logprobs"_a = -1, "tenant"_a = nb::bytes("", 0),
          "priority"_a = 0, "arrived_ns"_a = 0, "deadline_ns"_a = nb::none(), "may_hold"_a = true,
          "is_timed"_a = true, "num_prompt_logprobs: -1 for none. Times are those of time.monotonic_ns().")
      .def(
          "set_sampling",
          [](RequestHandle& self, float temperature, float top_p, int32_t top_k, float min_p,
             float repetition_penalty, float presence_penalty, float frequency_penalty, uint64_t seed,
             int32_t num_logprobs, int32_t min_tokens, std::vector<int32_t> stop_token_ids,
             std::vector<std::pair<int32_t, float>> logit_bias) {
            self.edit().params = {temperature,
                                  top_p,
                                  top_k,
                                  min_p,
                                  repetition_penalty,
                                  presence_penalty,
                                  frequency_penalty,
                                  seed,
                                  num_logprobs,
                                  min_tokens,
                                  std::move(stop_token_ids),
                                  std::move(logit_bias)};
          },
          nb::kw_only(), "temperature"_a = 1.0F, "top_p"_a = 1.0F, "top_k"_a = 0, "min_p"_a = 0.0F,
          "repetition_penalty"_a = 1.0F, "presence_penalty"_a = 0.0F, "frequency_penalty"_a = 0.0F,
          "seed"_a = 0, "num_logprobs"_a = -1, "min_tokens"_a = 0,
          "stop_token_ids"_a = std::vector<int32_t>(),
          "logit_bias"_a = std::vector<std::pair<int32_t, float>>(),
          "seed: of choice 0. num_logprobs: -1 for none. Raises NativeError when the content was taken.")
      .def_prop_ro("request_id", &RequestHandle::request_id)
      .def_prop_ro("n", &RequestHandle::n)
      .def_prop_ro("num_prompt", &RequestHandle::num_prompt, "Prompt tokens.")
      .def_prop_ro("arrived_ns", &RequestHandle::arrived_ns, "time.monotonic_ns() of the submission.")
      .def_prop_ro("is_timed", &RequestHandle::is_timed, "Whether its way to acceptance counts.");
}

}  // namespace

void register_requests(nb::module_& m) {
  register_limits(m);
  register_request(m);
}

}  // namespace plait
