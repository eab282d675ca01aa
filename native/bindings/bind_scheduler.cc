// Requests, the scheduler and its outputs. Calls take microseconds and hold the GIL, except that schedule()
// gives it away while it hashes a long prompt.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bindings/bindings.h"
#include "bindings/request_handle.h"
#include "scheduler/scheduler.h"

namespace plait {

namespace {

using namespace nb::literals;

// See kLongTokens in bind_kv.cc.
constexpr int32_t kLongTokens = 4096;

using Names = std::vector<std::pair<int64_t, int32_t>>;

FinishReason reason_of(const std::string& name) {
  if (name == "stop") return FinishReason::kStop;
  if (name == "length") return FinishReason::kLength;
  if (name == "abort") return FinishReason::kAbort;
  if (name == "error") return FinishReason::kError;
  throw Error(ErrorCode::kInvalidArgument, "no finish reason " + name);
}

nb::object reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return nb::none();
    case FinishReason::kStop:
      return nb::str("stop");
    case FinishReason::kLength:
      return nb::str("length");
    case FinishReason::kAbort:
      return nb::str("abort");
    case FinishReason::kError:
      return nb::str("error");
  }
  return nb::none();
}

nb::tuple logprob_of(const Sampled& sampled) {
  nb::list top;
  for (const auto& [token_id, logprob] : sampled.top) top.append(nb::make_tuple(token_id, logprob));
  return nb::make_tuple(sampled.token, sampled.logprob, sampled.rank, nb::tuple(top));
}

nb::tuple output_of(const Output& output) {
  nb::list token_ids;
  for (const int32_t token_id : output.token_ids) token_ids.append(token_id);
  nb::list logprobs;
  for (const Sampled& sampled : output.logprobs) logprobs.append(logprob_of(sampled));
  nb::list scores;
  if (output.has_prompt_scores) {
    scores.append(nb::none());
    for (const Sampled& sampled : output.prompt_scores) scores.append(logprob_of(sampled));
  }
  const nb::object stop = output.stop_token_id < 0 ? nb::none() : nb::object(nb::int_(output.stop_token_id));
  const nb::object error =
      output.error.empty() ? nb::none() : nb::object(nb::str(output.error.data(), output.error.size()));
  return nb::make_tuple(output.request_id, output.index, nb::tuple(token_ids), nb::tuple(logprobs),
                        reason_name(output.finish_reason), stop, output.num_cached_tokens, nb::tuple(scores),
                        error);
}

void register_limits(nb::module_& m) {
  const SchedulerLimits d;
  nb::class_<SchedulerLimits>(m, "SchedulerLimits", "The scheduler's fixed limits.")
      .def(
          "__init__",
          [](SchedulerLimits* self, int32_t num_blocks, int32_t block_tokens, int32_t max_batch_size,
             int32_t max_batch_tokens, int32_t prefill_chunk_tokens, double batch_timeout_s,
             bool enable_prefix_cache, double target_step_s, int32_t vocab_size,
             std::vector<int32_t> eos_token_ids) {
            SchedulerLimits limits;
            limits.num_blocks = num_blocks;
            limits.block_tokens = block_tokens;
            limits.max_batch_size = max_batch_size;
            limits.max_batch_tokens = max_batch_tokens;
            limits.prefill_chunk_tokens = prefill_chunk_tokens;
            limits.batch_timeout_s = batch_timeout_s;
            limits.enable_prefix_cache = enable_prefix_cache;
            limits.target_step_s = target_step_s;
            limits.vocab_size = vocab_size;
            limits.eos_token_ids = std::move(eos_token_ids);
            check_limits(limits);
            new (self) SchedulerLimits(std::move(limits));
          },
          nb::kw_only(), "num_blocks"_a, "block_tokens"_a, "max_batch_size"_a = d.max_batch_size,
          "max_batch_tokens"_a = d.max_batch_tokens, "prefill_chunk_tokens"_a = d.prefill_chunk_tokens,
          "batch_timeout_s"_a = d.batch_timeout_s, "enable_prefix_cache"_a = d.enable_prefix_cache,
          "target_step_s"_a = d.target_step_s, "vocab_size"_a = d.vocab_size,
          "eos_token_ids"_a = d.eos_token_ids,
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
      .def_ro("vocab_size", &SchedulerLimits::vocab_size)
      .def_ro("eos_token_ids", &SchedulerLimits::eos_token_ids)
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
             std::optional<int64_t> deadline_ns, bool may_hold) {
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
            new (self) RequestHandle(std::move(request));
          },
          "request_id"_a, "prompt_ids"_a, "max_tokens"_a, "produced_ids"_a = std::vector<int32_t>(),
          "n"_a = 1, "ignore_eos"_a = false, "num_prompt_logprobs"_a = -1, "tenant"_a = nb::bytes("", 0),
          "priority"_a = 0, "arrived_ns"_a = 0, "deadline_ns"_a = nb::none(), "may_hold"_a = true,
          "num_prompt_logprobs: -1 for none. Times are those of time.monotonic_ns().")
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
      .def_prop_ro("arrived_ns", &RequestHandle::arrived_ns, "time.monotonic_ns() of the submission.");
}

void register_outputs(nb::module_& m) {
  nb::class_<OutputBatch>(m, "OutputBatch", "Outputs of a scheduler, in order.")
      .def("__len__", [](const OutputBatch& batch) { return batch.outputs.size(); })
      .def(
          "take",
          [](OutputBatch& batch) {
            nb::list list;
            for (const Output& output : std::exchange(batch.outputs, {})) list.append(output_of(output));
            return list;
          },
          nb::sig("def take(self) -> list[tuple[object, ...]]"),
          "Give the outputs away, each as a tuple in the order of plait.types.TokenOutput's fields; logprobs "
          "are "
          "tuples in the order of TokenLogprob's.");
}

void register_stats(nb::module_& m) {
  const auto total = [](Gauge SchedulerStats::* member) {
    return [member](const SchedulerStats& stats) { return (stats.*member).get(); };
  };
  nb::class_<SchedulerStats>(m, "SchedulerStats",
                             "Totals of a scheduler, see native/scheduler/stats.h. Any thread may read.")
      .def_prop_ro("requests_total", total(&SchedulerStats::requests_total))
      .def_prop_ro("requests_dequeued_total", total(&SchedulerStats::requests_dequeued_total))
      .def_prop_ro("dequeued_prompt_tokens_total", total(&SchedulerStats::dequeued_prompt_tokens_total))
      .def_prop_ro("dequeued_choices_total", total(&SchedulerStats::dequeued_choices_total))
      .def_prop_ro("requests_finished_total", total(&SchedulerStats::requests_finished_total))
      .def_prop_ro("choices_aborted_total", total(&SchedulerStats::choices_aborted_total))
      .def_prop_ro("choices_failed_total", total(&SchedulerStats::choices_failed_total))
      .def_prop_ro("prompt_tokens_total", total(&SchedulerStats::prompt_tokens_total))
      .def_prop_ro("cached_tokens_total", total(&SchedulerStats::cached_tokens_total))
      .def_prop_ro("generated_tokens_total", total(&SchedulerStats::generated_tokens_total))
      .def_prop_ro("prefill_tokens_total", total(&SchedulerStats::prefill_tokens_total))
      .def_prop_ro("dropped_tokens_total", total(&SchedulerStats::dropped_tokens_total))
      .def_prop_ro("preemptions_total", total(&SchedulerStats::preemptions_total));
}

// Whose rows a planned step holds, by (request_id, index).
struct PlannedStepNames {
  int64_t step_id;
  int32_t num_prefill_tokens;
  Names rows, forked, starts;
};

Names names_of(const std::vector<Sequence*>& sequences) {
  Names names;
  for (const Sequence* seq : sequences) names.emplace_back(seq->request->request_id, seq->index);
  return names;
}

std::optional<PlannedStepNames> planned_step(const Scheduler& scheduler, bool last) {
  const PlannedStep* plan = scheduler.planned_step(last);
  if (plan == nullptr) return std::nullopt;
  std::vector<Sequence*> rows;
  for (const PlannedStep::Row& row : plan->rows) rows.push_back(row.seq);
  return PlannedStepNames{plan->step_id, plan->load.num_prefills, names_of(rows), names_of(plan->forked),
                          names_of(plan->starts)};
}

nb::object schedule(Scheduler& scheduler, int64_t now_ns) {
  StepInput step;
  bool has_step;
  {
    std::optional<nb::gil_scoped_release> release;
    if (scheduler.next_prompt_tokens() > kLongTokens) release.emplace();
    has_step = scheduler.schedule(now_ns, step);
  }
  return has_step ? nb::cast(std::move(step)) : nb::none();
}

void add(Scheduler& scheduler, RequestHandle& request) {
  scheduler.add(std::move(request.edit()));
  request.set_taken();
}

void refuse(Scheduler& scheduler, const RequestHandle& request, const std::string& reason,
            const std::optional<std::string>& error) {
  scheduler.refuse(request.read(), reason_of(reason), error.value_or(""));
}

void register_planned_step(nb::module_& m) {
  nb::class_<PlannedStepNames>(m, "PlannedStep", "Whose rows a step holds, by (request_id, index).")
      .def_ro("step_id", &PlannedStepNames::step_id)
      .def_ro("num_prefill_tokens", &PlannedStepNames::num_prefill_tokens)
      .def_ro("rows", &PlannedStepNames::rows, "By entry of StepInput.seq_slots.")
      .def_ro("forked", &PlannedStepNames::forked, "They sample from the row of another choice.")
      .def_ro("starts", &PlannedStepNames::starts, "By entry of StepInput.slot_starts.");
}

}  // namespace

void register_scheduler(nb::module_& m) {
  register_limits(m);
  register_request(m);
  register_outputs(m);
  register_stats(m);
  register_planned_step(m);
  nb::class_<Scheduler>(m, "Scheduler",
                        "Which tokens of which sequences run in the next step. One thread calls everything; "
                        "stats and the num_ gauges may be read from any.")
      .def(nb::init<SchedulerLimits, std::shared_ptr<KvManager>>(), "limits"_a, "kv"_a)
      .def("add", &add, "request"_a,
           "Queue a request and take its content. Raises NativeError, and takes nothing, for one that cannot "
           "run or whose id is in use.")
      .def("refuse", &refuse, "request"_a, "reason"_a, "error"_a = nb::none(),
           "Instead of add: one last output for each choice of the request.")
      .def("abort", &Scheduler::abort, "request_id"_a, "Unknown and ended ones are ignored.")
      .def(
          "end",
          [](Scheduler& self, int64_t request_id, const std::string& reason,
             const std::optional<std::string>& error) {
            self.end(request_id, reason_of(reason), error.value_or(""));
          },
          "request_id"_a, "reason"_a, "error"_a = nb::none(), "End what has not ended of a request.")
      .def(
          "end_all",
          [](Scheduler& self, const std::string& reason, const std::optional<std::string>& error) {
            self.end_all(reason_of(reason), error.value_or(""));
          },
          "reason"_a, "error"_a = nb::none())
      .def("schedule", &schedule, "now_ns"_a, nb::sig("def schedule(self, now_ns: int) -> StepInput | None"),
           "The next step, or None when nothing can run before a result, an arrival or next_wakeup_ns(). "
           "Releases the GIL when a prompt of more than 4096 tokens is to be admitted.")
      .def("finish_step", &Scheduler::finish_step, "result"_a,
           "Take in the result of the oldest planned step; raises NativeError for any other.")
      .def("fail_step", &Scheduler::fail_step, "step_id"_a, "error"_a,
           "The step planned last could not be submitted: its sequences end.")
      .def(
          "take_outputs", [](Scheduler& self) { return OutputBatch{self.take_outputs()}; },
          "Outputs since the last call.")
      .def(
          "next_wakeup_ns",
          [](Scheduler& self) {
            const int64_t when_ns = self.next_wakeup_ns();
            return when_ns < 0 ? std::nullopt : std::optional<int64_t>(when_ns);
          },
          "When schedule() should be called again though nothing happened, or None.")
      .def("planned_step", &planned_step, "last"_a = true,
           "The newest step that is planned and not finished (or the oldest), None when there is none.")
      .def("check_idle", &Scheduler::check_idle,
           "Raises NativeError unless nothing is left of any request. For tests.")
      .def_prop_ro("limits", &Scheduler::limits, nb::rv_policy::reference_internal)
      .def_prop_ro("stats", &Scheduler::stats, nb::rv_policy::reference_internal)
      .def_prop_ro("has_work", &Scheduler::has_work, "A request has not ended.")
      .def_prop_ro("num_requests", &Scheduler::num_requests)
      .def_prop_ro("num_waiting", &Scheduler::num_waiting, "Sequences without slot and blocks.")
      .def_prop_ro("num_running", &Scheduler::num_running, "Sequences that hold slot and blocks.")
      .def_prop_ro("num_free_blocks", &Scheduler::num_free_blocks, "Free and evictable blocks.")
      .def_prop_ro(
          "prefill_token_s",
          [](const Scheduler& self) { return static_cast<double>(self.prefill_token_ns()) * 1e-9; },
          "Measured seconds per prompt token, 0 before the first measurement.")
      .def_prop_ro(
          "hold_until_s",
          [](const Scheduler& self) { return static_cast<double>(self.hold_until_ns()) * 1e-9; },
          "time.monotonic() when the last wait for a fuller batch ends at the latest; 0 before the first.");
}

}  // namespace plait
