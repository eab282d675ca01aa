#include "runtime/engine_loop.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "parallel/team.h"
#include "trace/trace.h"

namespace plait {

namespace {

// The longest sleep: whatever bell was missed, the loop looks again.
constexpr int64_t kHeartbeatNs = 2'000'000'000;
// While a full ring keeps outputs back there is no bell for "room again": look this often.
constexpr int64_t kRetryNs = 5'000'000;

}  // namespace

EngineLoop::EngineLoop(std::shared_ptr<Scheduler> scheduler, std::shared_ptr<ComputeThread> compute,
                       std::shared_ptr<Doorbell> main_bell, std::shared_ptr<Doorbell> outputs_bell,
                       EngineLoopOptions options, std::shared_ptr<KvSwap> swap)
    : scheduler_(std::move(scheduler)),
      compute_(std::move(compute)),
      main_bell_(std::move(main_bell)),
      outputs_bell_(std::move(outputs_bell)),
      swap_(std::move(swap)),
      max_steps_in_flight_(options.max_steps_in_flight),
      messages_(options.num_messages),
      outputs_(options.num_outputs) {
  if (max_steps_in_flight_ < 1 || max_steps_in_flight_ > static_cast<int32_t>(ComputeThread::kDepth)) {
    throw Error(ErrorCode::kInvalidArgument, "max_steps_in_flight must be between 1 and " +
                                                 std::to_string(ComputeThread::kDepth) + ", got " +
                                                 std::to_string(max_steps_in_flight_));
  }
  if ((scheduler_->limits().kv_block_bytes > 0) != (swap_ != nullptr)) {
    throw Error(ErrorCode::kInvalidArgument, "kv_block_bytes and swap go together");
  }
}

EngineLoop::~EngineLoop() {
  abandon_outputs();
  push_stop();
  join(-1);
}

void EngineLoop::start() {
  if (is_started_) throw Error(ErrorCode::kInvalidArgument, "the engine loop was started already");
  is_started_ = true;
  thread_ = std::thread([this] { thread_main(); });
}

bool EngineLoop::push(Request&& request) {
  Message message(std::in_place_type<Request>, std::move(request));
  if (!messages_.try_push(std::move(message))) {
    request = std::move(std::get<Request>(message));
    return false;
  }
  main_bell_->ring();
  return true;
}

bool EngineLoop::push_abort(int64_t request_id) {
  if (!messages_.try_push(Message(std::in_place_type<Abort>, Abort{request_id}))) return false;
  main_bell_->ring();
  return true;
}

void EngineLoop::push_stop() {
  must_stop_.store(true, std::memory_order_release);
  main_bell_->ring();
}

void EngineLoop::abandon_outputs() {
  are_outputs_abandoned_.store(true, std::memory_order_release);
  main_bell_->ring();
}

bool EngineLoop::join(int64_t timeout_ns) {
  if (!thread_.joinable()) return true;
  const int64_t deadline_ns = timeout_ns < 0 ? -1 : monotonic_ns() + timeout_ns;
  while (!is_over_.load(std::memory_order_acquire)) {
    const uint32_t seen = over_bell_->epoch();
    if (is_over_.load(std::memory_order_acquire)) break;
    const int64_t left_ns = deadline_ns < 0 ? -1 : deadline_ns - monotonic_ns();
    if (deadline_ns >= 0 && left_ns <= 0) return false;
    over_bell_->wait(seen, left_ns);
  }
  thread_.join();
  return true;
}

void EngineLoop::thread_main() {
  name_this_thread("plait-main");
  RealtimeMessenger messenger(compute_->cpu());
  std::string error;
  try {
    run(messenger);
  } catch (const std::exception& e) {
    error = std::string("the engine's main thread died: ") + e.what();
  }
  leave(std::move(error));
  is_over_.store(true, std::memory_order_release);
  over_bell_->ring();
}

void EngineLoop::run(RealtimeMessenger& messenger) {
  for (;;) {
    messenger.check();
    const uint32_t seen = main_bell_->epoch();
    take_results();
    take_messages();
    if (must_stop_.load(std::memory_order_acquire) && !is_stopping_) {
      is_stopping_ = true;
      scheduler_->end_all(FinishReason::kAbort, {});
    }
    feed();
    send_outputs();
    const bool is_idle = !scheduler_->has_work() && num_in_flight_ == 0 && !scheduler_->has_transfers();
    if (is_stopping_ && is_idle) return;
    static constexpr TraceName kTrace = {"wait", "main"};
    const TraceScope trace(kTrace);
    main_bell_->wait(seen, timeout_ns());
  }
}

void EngineLoop::take_results() {
  while (compute_->try_pop(result_)) {
    --num_in_flight_;
    num_steps_in_flight_.set(num_in_flight_);
    if (!result_.error.empty()) num_failed_steps_.add(1);
    if (result_.begin_ns != 0) step_ns_.add(result_.end_ns - result_.begin_ns);
    forward_ns_.add(result_.forward_ns);
    last_progress_ns_.set(result_.end_ns);
    static constexpr TraceName kTrace = {"results", "main", {"step"}};
    const TraceScope trace(kTrace, {result_.step_id});
    scheduler_->finish_step(result_);
    num_steps_.add(1);
  }
}

void EngineLoop::take_messages() {
  // At most one ring full, so that a flood cannot hold the loop here.
  for (size_t i = 0; i < messages_.capacity() && messages_.try_pop(message_); ++i) {
    if (Request* request = std::get_if<Request>(&message_)) {
      take_request(std::move(*request));
    } else if (const Abort* abort = std::get_if<Abort>(&message_)) {
      scheduler_->abort(abort->request_id);
    }
  }
}

// The boundary of one request: whatever it breaks here ends it, and nothing else.
void EngineLoop::take_request(Request&& request) {
  if (request.is_timed) accepts_.note(monotonic_ns() - request.arrived_ns);
  if (is_stopping_) {
    scheduler_->refuse(request, FinishReason::kAbort, {});
    return;
  }
  try {
    scheduler_->add(std::move(request));
  } catch (const Error& error) {
    scheduler_->refuse(request, FinishReason::kError,
                       std::string("the request could not be taken in: ") + error.what());
  }
}

bool EngineLoop::plan() {
  static constexpr TraceName kTrace = {"schedule", "main", {"step", "tokens", "sequences"}};
  const int64_t begin_ns = monotonic_ns();
  const bool has_step = scheduler_->schedule(begin_ns, step_);
  if (trace_is_on() && has_step) {
    record_trace(kTrace, begin_ns, monotonic_ns(),
                 {step_.step_id, static_cast<int64_t>(step_.token_ids.size()),
                  static_cast<int64_t>(step_.seq_slots.size())});
  }
  return has_step;
}

// Keeps the compute thread busy: plans the next step before one ends.
void EngineLoop::feed() {
  scheduler_->expire(monotonic_ns());
  run_transfers();
  do {
    plan_steps();
  } while (run_transfers());  // what was answered at once may leave more to plan
}

void EngineLoop::plan_steps() {
  while (num_in_flight_ < max_steps_in_flight_ && plan()) {
    const int64_t step_id = step_.step_id;
    std::string error = "the step ring is full";
    try {
      if (compute_->try_submit(std::move(step_))) error.clear();
    } catch (const Error& e) {  // the sequences of this step end, the loop goes on
      error = e.what();
    }
    if (error.empty()) {
      num_steps_in_flight_.set(++num_in_flight_);
    } else {
      num_failed_steps_.add(1);
      scheduler_->fail_step(step_id, error);
    }
  }
}

bool EngineLoop::run_transfers() { return swap_ && run_swap_transfers(*scheduler_, *swap_); }

void EngineLoop::send_outputs() {
  std::vector<Output> outputs = scheduler_->take_outputs();
  if (outbox_.outputs.empty()) {
    outbox_.outputs = std::move(outputs);
  } else {
    std::move(outputs.begin(), outputs.end(), std::back_inserter(outbox_.outputs));
  }
  if (!outbox_.outputs.empty()) try_flush();
}

bool EngineLoop::try_flush() {
  if (are_outputs_abandoned_.load(std::memory_order_acquire)) {
    outbox_ = {};
    return true;
  }
  if (!outputs_.try_push(std::move(outbox_))) return false;
  outbox_ = {};
  outputs_bell_->ring();
  return true;
}

// The last words of this thread: hands over what is left, stops the compute thread.
void EngineLoop::leave(std::string error) {
  const auto flush = [this] {
    for (;;) {
      const uint32_t seen = main_bell_->epoch();
      if (try_flush()) return;
      main_bell_->wait(seen, kRetryNs);
    }
  };
  if (!outbox_.outputs.empty()) flush();
  outbox_.has_ended = true;
  outbox_.error = std::move(error);
  flush();
  compute_->stop();
}

int64_t EngineLoop::timeout_ns() {
  if (!outbox_.outputs.empty()) return kRetryNs;
  const int64_t wakeup_ns = scheduler_->next_wakeup_ns(num_in_flight_ < max_steps_in_flight_);
  if (wakeup_ns < 0) return kHeartbeatNs;
  return std::clamp<int64_t>(wakeup_ns - monotonic_ns(), 0, kHeartbeatNs);
}

}  // namespace plait
