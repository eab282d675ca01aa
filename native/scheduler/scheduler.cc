#include "scheduler/scheduler.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "base/error.h"

namespace plait {

namespace {

SchedulerLimits checked(SchedulerLimits limits, const KvManager* kv) {
  check_limits(limits);
  if (kv == nullptr) throw Error(ErrorCode::kInvalidArgument, "kv must not be null");
  if (limits.num_blocks != kv->num_blocks() || limits.block_tokens != kv->block_tokens()) {
    throw Error(ErrorCode::kInvalidArgument, "num_blocks and block_tokens must be those of the KV manager");
  }
  return limits;
}

// Takes the parameters of `request`.
std::unique_ptr<RequestState> take_terms(Request& request, const std::vector<int32_t>& eos_token_ids) {
  auto state = std::make_unique<RequestState>();
  state->request_id = request.request_id;
  state->num_prompt = static_cast<int32_t>(request.prompt_ids.size());
  state->arrived_ns = request.arrived_ns;
  state->deadline_ns = request.deadline_ns;
  state->params = std::move(request.params);
  std::vector<int32_t>& stop_ids = state->params.stop_token_ids;
  if (!request.ignore_eos) stop_ids.insert(stop_ids.end(), eos_token_ids.begin(), eos_token_ids.end());
  std::sort(stop_ids.begin(), stop_ids.end());
  stop_ids.erase(std::unique(stop_ids.begin(), stop_ids.end()), stop_ids.end());
  state->wants_logprobs = state->params.num_logprobs >= 0;
  state->wants_scores = request.num_prompt_logprobs >= 0;
  state->num_top_prompt_logprobs = std::max(request.num_prompt_logprobs, 0);
  state->use_cache = !state->wants_scores;
  state->is_forked = request.n == 1;
  state->num_open = request.n;
  return state;
}

}  // namespace

Scheduler::Scheduler(SchedulerLimits limits, std::shared_ptr<KvManager> kv)
    : limits_(checked(std::move(limits), kv.get())),
      kv_(std::move(kv)),
      running_(limits_.num_slots(), *kv_),
      swapping_(*kv_, limits_, stats_),
      endings_(*kv_, waiting_, running_, swapping_, limits_, stats_),
      pacer_(limits_.prefill_chunk_tokens, limits_.target_step_s),
      growth_(*kv_, limits_, waiting_, running_, endings_, swapping_, pacer_.costs(), stats_),
      admission_(*kv_, limits_, waiting_, running_, growth_, endings_, swapping_, stats_),
      fair_share_(limits_.max_batch_tokens, pacer_),
      builder_(*kv_, waiting_, running_, growth_, endings_, fair_share_, stats_),
      results_(*kv_, limits_, endings_, stats_) {
  publish_gauges();
}

void Scheduler::add(Request&& request) {
  check_request(request, limits_.vocab_size);
  if (endings_.find(request.request_id) != nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                "request " + std::to_string(request.request_id) + " is already here");
  }
  if (!has_work()) work_since_ns_ = request.arrived_ns;
  RequestState& state = endings_.add(take_terms(request, limits_.eos_token_ids));
  state.tenant = endings_.tenants().enter(request.tenant);
  const int64_t arrival = num_arrivals_++;
  for (int32_t index = 0; index < request.n; ++index) {
    Sequence& seq = state.choices.emplace_back();
    seq.request = &state;
    seq.index = index;
    seq.seq_id = num_sequences_++;
    seq.seed = derive_seed(state.params.seed, index);
    seq.rank = {request.priority, arrival, index};
    seq.num_prompt = state.num_prompt;
    seq.max_len = state.num_prompt + request.max_tokens;
  }
  if (request.may_hold) admission_.on_arrival(state.arrived_ns);
  Sequence& first = state.choices.front();
  first.tokens = std::move(request.prompt_ids);
  first.tokens.insert(first.tokens.end(), request.produced_ids.begin(), request.produced_ids.end());
  first.state = SequenceState::kWaiting;
  waiting_.push(first);
  if (state.deadline_ns >= 0) {
    deadlines_.emplace_back(state.deadline_ns, state.request_id);
    std::push_heap(deadlines_.begin(), deadlines_.end(), std::greater<>());
  }
  stats_.requests_total.add(1);
  stats_.prompt_tokens_total.add(state.num_prompt);
  publish_gauges();
}

void Scheduler::refuse(const Request& request, FinishReason reason, const std::string& error) {
  endings_.refuse(request, reason, error);
}

void Scheduler::end(int64_t request_id, FinishReason reason, const std::string& error) {
  RequestState* state = endings_.find(request_id);
  if (state == nullptr) return;
  endings_.finish_request(*state, reason, error);
  mark_unwanted();
  publish_gauges();
}

void Scheduler::end_all(FinishReason reason, const std::string& error) {
  for (const int64_t request_id : endings_.request_ids()) end(request_id, reason, error);
}

bool Scheduler::schedule(int64_t now_ns, StepInput& step) {
  expire(now_ns);
  is_too_early_ = false;
  if (running_.is_empty() && waiting_.is_empty()) return false;
  if (!planned_.empty() && now_ns < plan_timer_.due_ns()) {
    is_too_early_ = true;
    return false;
  }
  if (spare_.empty()) spare_.push_back(std::make_unique<PlannedStep>());
  std::unique_ptr<PlannedStep> plan = std::move(spare_.back());
  spare_.pop_back();
  builder_.begin(*plan, step, num_steps_);
  if (!waiting_.is_empty()) admission_.make_room();
  if (endings_.num_tenants() > 1 || fair_share_.is_needed(num_steps_)) {
    fair_share_.choose_decodes(running_.sequences(), num_steps_);
  }
  bool has_rows = plan_rows(now_ns, *plan, step);
  if (!has_rows && fair_share_.has_passed_over()) {
    // Who was chosen has no blocks, or was preempted: the others must not wait for that.
    fair_share_.choose_all(running_.sequences());
    for (Sequence* seq : plan->starts) seq->needs_start = true;
    builder_.begin(*plan, step, num_steps_);
    has_rows = plan_rows(now_ns, *plan, step);
  }
  if (has_rows) {
    builder_.end(*plan, step);
    step.work_since_ns = std::max(work_since_ns_, std::min(hold_until_ns(), now_ns));
    planned_.push_back(std::move(plan));
    if (planned_.size() == 1) begin_planned(now_ns);
    endings_.set_next_step_id(++num_steps_);
  } else {
    for (Sequence* seq : plan->starts) seq->needs_start = true;
    spare_.push_back(std::move(plan));
  }
  ask_fetches();
  publish_gauges();
  return has_rows;
}

bool Scheduler::plan_rows(int64_t now_ns, PlannedStep& plan, StepInput& step) {
  const int64_t num_preemptions = stats_.preemptions_total.get();
  prompts_.clear();
  builder_.add_starts(plan);
  builder_.add_decodes(plan, step, prompts_);
  // Blocks that a preemption freed are for those that run; but an idle engine must take something.
  const bool has_preempted = stats_.preemptions_total.get() != num_preemptions;
  if (!waiting_.is_empty() && (!has_preempted || running_.is_empty())) {
    const auto num_starts = static_cast<std::ptrdiff_t>(plan.starts.size());
    admission_.admit(now_ns, plan.step_id, plan.starts);
    prompts_.insert(prompts_.end(), plan.starts.begin() + num_starts, plan.starts.end());
  }
  if (!prompts_.empty()) {
    std::sort(prompts_.begin(), prompts_.end(),
              [](const Sequence* a, const Sequence* b) { return a->rank < b->rank; });
    builder_.add_prompts(plan, step, prompts_);
  }
  return !plan.rows.empty();
}

void Scheduler::finish_step(const StepResult& result) {
  if (planned_.empty() || planned_.front()->step_id != result.step_id) {
    throw Error(ErrorCode::kInternal,
                "the result of step " + std::to_string(result.step_id) + " came, " +
                    (planned_.empty() ? "none" : std::to_string(planned_.front()->step_id)) + " was due");
  }
  const PlannedStep& plan = *planned_.front();
  results_.apply(plan, result);
  if (result.error.empty() && !result.was_skipped) {
    const double step_s = static_cast<double>(result.end_ns - result.begin_ns) * 1e-9;
    plan_timer_.on_end(step_s);
    pacer_.observe(plan.load, step_s);
  }
  end_planned(false);
  if (!planned_.empty()) begin_planned(result.end_ns);
}

void Scheduler::fail_step(int64_t step_id, const std::string& error) {
  if (planned_.empty() || planned_.back()->step_id != step_id) {
    throw Error(ErrorCode::kInternal, "step " + std::to_string(step_id) + " was not planned last");
  }
  results_.fail(*planned_.back(), error);
  end_planned(true);
}

void Scheduler::end_planned(bool last) {
  if (running_.has_draining()) growth_.resume_drained();
  if (last) {
    spare_.push_back(std::move(planned_.back()));
    planned_.pop_back();
  } else {
    spare_.push_back(std::move(planned_.front()));
    planned_.pop_front();
  }
  const bool is_idle = planned_.empty();
  endings_.forget_before(is_idle ? std::numeric_limits<int64_t>::max() : planned_.front()->step_id);
  mark_unwanted();
  ask_fetches();
  publish_gauges();
}

void Scheduler::begin_planned(int64_t now_ns) {
  plan_timer_.on_begin(now_ns, pacer_.costs().step_s(planned_.front()->load));
}

void Scheduler::mark_unwanted() {
  for (const std::unique_ptr<PlannedStep>& plan : planned_) {
    if (!plan->is_wanted()) plan->is_unwanted->store(true, std::memory_order_relaxed);
  }
}

void Scheduler::finish_transfer(const SwapResult& result) {
  growth_.finish_transfer(result);
  publish_gauges();
}

void Scheduler::ask_fetches() {
  swapping_.ask_fetches(planned_.empty() ? std::numeric_limits<int64_t>::max() : planned_.front()->step_id);
}

int64_t Scheduler::next_wakeup_ns(bool can_plan) {
  // Ended requests leave their deadline behind; it must not wake an idle engine.
  while (!deadlines_.empty() && endings_.find(deadlines_.front().second) == nullptr) {
    std::pop_heap(deadlines_.begin(), deadlines_.end(), std::greater<>());
    deadlines_.pop_back();
  }
  int64_t held_until = -1;
  if (can_plan) held_until = is_too_early_ ? plan_timer_.due_ns() : admission_.held_until_ns();
  if (deadlines_.empty()) return held_until;
  const int64_t deadline = deadlines_.front().first;
  return held_until < 0 ? deadline : std::min(deadline, held_until);
}

int32_t Scheduler::next_prompt_tokens() const {
  const Sequence* seq = waiting_.peek();
  return seq == nullptr || running_.num_free_slots() == 0 ? 0 : seq->length();
}

const PlannedStep* Scheduler::planned_step(bool last) const {
  if (planned_.empty()) return nullptr;
  return (last ? planned_.back() : planned_.front()).get();
}

void Scheduler::check_idle() const {
  const bool is_idle = endings_.is_empty() && waiting_.is_empty() && running_.is_empty() &&
                       !running_.has_draining() && planned_.empty() && !has_transfers() &&
                       running_.num_free_slots() == limits_.num_slots() && endings_.num_tenants() == 0 &&
                       kv_->num_sequences() == 0 && kv_->num_free_blocks() == kv_->num_blocks();
  if (!is_idle) throw Error(ErrorCode::kInternal, "something is left of an ended request");
}

void Scheduler::expire(int64_t now_ns) {
  while (!deadlines_.empty() && deadlines_.front().first <= now_ns) {
    const int64_t request_id = deadlines_.front().second;
    std::pop_heap(deadlines_.begin(), deadlines_.end(), std::greater<>());
    deadlines_.pop_back();
    abort(request_id);
  }
}

void Scheduler::publish_gauges() {
  num_requests_.set(static_cast<int64_t>(endings_.num_requests()));
  num_waiting_.set(static_cast<int64_t>(waiting_.size()));
  num_running_.set(running_.size());
  num_free_blocks_.set(kv_->num_free_blocks());
  prefill_token_ns_.set(static_cast<int64_t>(pacer_.token_s() * 1e9));
  hold_until_ns_.set(admission_.hold_until_ns());
}

}  // namespace plait
