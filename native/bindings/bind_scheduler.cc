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
  const auto total = [](Gauge<int64_t> SchedulerStats::* member) {
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
      .def_prop_ro("skipped_steps_total", total(&SchedulerStats::skipped_steps_total))
      .def_prop_ro("preemptions_total", total(&SchedulerStats::preemptions_total))
      .def_prop_ro("saved_sequences_total", total(&SchedulerStats::saved_sequences_total))
      .def_prop_ro("fetched_sequences_total", total(&SchedulerStats::fetched_sequences_total))
      .def_prop_ro("fetched_tokens_total", total(&SchedulerStats::fetched_tokens_total))
      .def_prop_ro("failed_transfers_total", total(&SchedulerStats::failed_transfers_total));
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

const char* kind_name(const SwapRequest& request) {
  switch (request.kind) {
    case SwapRequest::Kind::kSave:
      return "save";
    case SwapRequest::Kind::kFetch:
      return "fetch";
    case SwapRequest::Kind::kDrop:
      return "drop";
  }
  return "";
}

void register_swap_request(nb::module_& m) {
  nb::class_<SwapRequest>(m, "SwapRequest", "What the scheduler asks of whoever moves KV blocks.")
      .def_prop_ro("kind", &kind_name, "save, fetch or drop.")
      .def_ro("ticket", &SwapRequest::ticket)
      .def_prop_ro(
          "blocks",
          [](const SwapRequest& self) {
            return self.kind == SwapRequest::Kind::kSave ? self.snapshot.blocks : self.blocks;
          },
          "save: what to read; fetch: where saved block i goes, -1 for nowhere.")
      .def_prop_ro("num_tokens", [](const SwapRequest& self) { return self.snapshot.num_tokens; });
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
  register_outputs(m);
  register_stats(m);
  register_planned_step(m);
  register_swap_request(m);
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
           "The next step, or None when nothing can run before a result, an arrival or next_wakeup_ns(), or "
           "when it is too early to plan: while a step runs, until next_wakeup_ns(). Releases the GIL when a "
           "prompt of more than 4096 tokens is to be admitted.")
      .def("finish_step", &Scheduler::finish_step, "result"_a,
           "Take in the result of the oldest planned step; raises NativeError for any other.")
      .def("fail_step", &Scheduler::fail_step, "step_id"_a, "error"_a,
           "The step planned last could not be submitted: its sequences end.")
      .def(
          "take_outputs", [](Scheduler& self) { return OutputBatch{self.take_outputs()}; },
          "Outputs since the last call.")
      .def(
          "next_wakeup_ns",
          [](Scheduler& self, bool can_plan) {
            const int64_t when_ns = self.next_wakeup_ns(can_plan);
            return when_ns < 0 ? std::nullopt : std::optional<int64_t>(when_ns);
          },
          "can_plan"_a = true,
          "When expire() or, if ``can_plan``, schedule() should be called again though nothing happened, or "
          "None. After schedule().")
      .def("expire", &Scheduler::expire, "now_ns"_a,
           "End requests whose deadline has passed. schedule() does so, too, but is not called while steps "
           "enough are planned.")
      .def("take_swap_requests", &Scheduler::take_swap_requests,
           "What is to be done with KV blocks since the last call, in this order. See run_swap_transfers.")
      .def(
          "finish_transfer",
          [](Scheduler& self, int64_t ticket, bool is_ok, int64_t num_bytes, double seconds) {
            self.finish_transfer({ticket, is_ok, num_bytes, seconds});
          },
          "ticket"_a, "is_ok"_a, "num_bytes"_a = 0, "seconds"_a = 0.0,
          "The answer to a save or fetch: one for each, also when it was not begun, and after a drop.")
      .def("planned_step", &planned_step, "last"_a = true,
           "The newest step that is planned and not finished (or the oldest), None when there is none.")
      .def("check_idle", &Scheduler::check_idle,
           "Raises NativeError unless nothing is left of any request. For tests.")
      .def_prop_ro("limits", &Scheduler::limits, nb::rv_policy::reference_internal)
      .def_prop_ro("stats", &Scheduler::stats, nb::rv_policy::reference_internal)
      .def_prop_ro("has_work", &Scheduler::has_work, "A request has not ended.")
      .def_prop_ro("has_transfers", &Scheduler::has_transfers, "A save or fetch has not been answered.")
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
