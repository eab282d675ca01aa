// Random loads: whatever comes, fails and is called off, each choice ends once and nothing is left. What
// tokens come out is tested against a model in tests/native/scheduler.
#include "scheduler/scheduler.h"

#include <deque>
#include <map>
#include <random>

#include "base/error.h"
#include "base/test.h"

using namespace plait;

namespace {

class Load {
 public:
  explicit Load(uint32_t seed) : rng_(seed) {
    SchedulerLimits limits;
    limits.num_blocks = 12 + below(30);
    limits.block_tokens = 1 + below(7);
    limits.max_batch_size = 1 + below(9);
    limits.max_batch_tokens = limits.max_batch_size + below(40);
    limits.prefill_chunk_tokens = 1 + below(40);
    limits.batch_timeout_s = below(3) == 0 ? 0.05 : 0.0;
    limits.enable_prefix_cache = below(2) == 0;
    limits.target_step_s = below(2) == 0 ? 0.0 : 0.01;
    limits.kv_block_bytes = below(2);
    limits.eos_token_ids = {3};
    limits.tenant_weights = {{"0", 3.0}};
    kv_ = std::make_shared<KvManager>(limits.num_blocks, limits.block_tokens, "m");
    scheduler_ = std::make_unique<Scheduler>(limits, kv_);
  }

  void run(int32_t num_turns) {
    for (int32_t turn = 0; turn < num_turns; ++turn) {
      if (below(3) == 0) add();
      if (below(6) == 0 && next_id_ > 0) scheduler_->abort(below(static_cast<int32_t>(next_id_)));
      this->turn();
      kv_->check_consistency();
    }
    if (below(4) == 0) scheduler_->end_all(FinishReason::kAbort, "");
    for (int32_t i = 0;
         i < 20'000 && (scheduler_->has_work() || scheduler_->has_transfers() || !in_flight_.empty()); ++i) {
      this->turn();
    }
    take_outputs();
    CHECK(!scheduler_->has_work());
    CHECK(open_.empty());
    scheduler_->check_idle();
  }

  const SchedulerStats& stats() const { return scheduler_->stats(); }

 private:
  int32_t below(int32_t end) { return std::uniform_int_distribution<int32_t>(0, end - 1)(rng_); }

  void add() {
    Request request;
    request.request_id = next_id_++;
    const int32_t num_prompt = 1 + below(30);
    for (int32_t i = 0; i < num_prompt; ++i) request.prompt_ids.push_back(1 + below(2));
    request.max_tokens = 1 + below(25);
    request.n = below(3) == 0 ? 1 + below(5) : 1;
    if (below(4) == 0) request.num_prompt_logprobs = below(3);
    if (below(4) == 0) request.params.num_logprobs = below(3);
    request.ignore_eos = below(2) == 0;
    request.tenant = std::to_string(below(3));
    request.priority = below(5) == 0 ? below(3) - 1 : 0;
    request.arrived_ns = now_ns_;
    if (below(8) == 0) request.deadline_ns = now_ns_ + below(500'000'000);
    for (int32_t index = 0; index < request.n; ++index) open_[{request.request_id, index}] = true;
    scheduler_->add(std::move(request));
  }

  void turn() {
    StepInput step;
    bool is_busy = false;
    while (in_flight_.size() < 2 && scheduler_->schedule(now_ns_, step)) {
      is_busy = true;
      take_requests();
      if (below(40) == 0) {
        scheduler_->fail_step(step.step_id, "not submitted");
      } else {
        in_flight_.push_back(result_of(step));
        are_unwanted_.push_back(step.is_unwanted);
      }
    }
    take_requests();
    if (!in_flight_.empty()) {
      is_busy = true;
      StepResult& result = in_flight_.front();
      // Compute may have looked before that was known.
      if (*are_unwanted_.front() && below(2) == 0) {
        result.was_skipped = true;
        result.samples.clear();
      }
      const int64_t num_failed = stats().choices_failed_total.get();
      scheduler_->finish_step(result);
      CHECK(!result.was_skipped || stats().choices_failed_total.get() == num_failed);
      in_flight_.pop_front();
      are_unwanted_.pop_front();
    }
    answer(!is_busy);
    take_requests();
    take_outputs();
    now_ns_ += 1'000'000;
    const int64_t wakeup_ns = scheduler_->next_wakeup_ns(true);
    if (!is_busy && wakeup_ns > now_ns_) now_ns_ = wakeup_ns;
  }

  StepResult result_of(const StepInput& step) {
    StepResult result;
    result.step_id = step.step_id;
    if (below(40) == 0) {
      result.error = "injected";
      return result;
    }
    result.samples.resize(step.sample_slots.size());
    for (Sampled& sampled : result.samples) sampled.token = below(20);
    result.scores.resize(step.scores.size());
    result.begin_ns = now_ns_;
    result.end_ns = now_ns_ + 10'000 + below(1'000'000) * static_cast<int64_t>(step.token_ids.size());
    return result;
  }

  void take_requests() {
    for (const SwapRequest& request : scheduler_->take_swap_requests()) {
      if (request.kind != SwapRequest::Kind::kDrop) transfers_.push_back(request.ticket);
    }
  }

  // Some of what is under way ends, in any order, well or not.
  void answer(bool must) {
    while (!transfers_.empty() && (must || below(2) == 0)) {
      must = false;
      const auto it = transfers_.begin() + below(static_cast<int32_t>(transfers_.size()));
      const int64_t ticket = *it;
      transfers_.erase(it);
      scheduler_->finish_transfer({ticket, below(4) > 0, 1, 1e-6});
    }
  }

  void take_outputs() {
    for (const Output& output : scheduler_->take_outputs()) {
      const std::pair<int64_t, int32_t> key{output.request_id, output.index};
      CHECK(open_.contains(key));  // nothing comes after the last one
      if (output.finish_reason != FinishReason::kNone) open_.erase(key);
    }
  }

  std::mt19937 rng_;
  std::shared_ptr<KvManager> kv_;
  std::unique_ptr<Scheduler> scheduler_;
  std::deque<StepResult> in_flight_;
  std::deque<std::shared_ptr<const std::atomic<bool>>> are_unwanted_;  // by step in flight
  std::vector<int64_t> transfers_;
  std::map<std::pair<int64_t, int32_t>, bool> open_;
  int64_t next_id_ = 0;
  int64_t now_ns_ = 1'000'000'000;
};

}  // namespace

TEST(random_loads_leave_nothing) {
  int64_t num_preemptions = 0, num_saved = 0, num_fetched = 0, num_failed = 0, num_dropped = 0;
  int64_t num_skipped = 0;
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    Load load(seed);
    load.run(200);
    num_preemptions += load.stats().preemptions_total.get();
    num_saved += load.stats().saved_sequences_total.get();
    num_fetched += load.stats().fetched_sequences_total.get();
    num_failed += load.stats().choices_failed_total.get();
    num_dropped += load.stats().dropped_tokens_total.get();
    num_skipped += load.stats().skipped_steps_total.get();
  }
  // They do go where it hurts.
  CHECK(num_preemptions > 1000 && num_saved > 100 && num_fetched > 100 && num_failed > 100 &&
        num_dropped > 100 && num_skipped > 100);
}

TEST_MAIN()
