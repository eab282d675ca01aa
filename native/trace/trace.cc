#include "trace/trace.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "sync/doorbell.h"
#include "sync/spsc_ring.h"
#include "trace/trace_file.h"

namespace plait {

namespace {

constexpr size_t kMaxNameBytes = 64;
constexpr size_t kFetchEvents = 256;

// One thread's events. The thread is the ring's producer; whoever fetches (one at a time) is its consumer.
struct Lane {
  Lane(size_t num_events, int32_t tid, std::string name)
      : ring(num_events), tid(tid), name(std::move(name)) {}
  SpscRing<TraceEvent> ring;
  const int32_t tid;
  const std::string name;
  std::atomic<int64_t> num_dropped{0};  // written by the thread only
  std::atomic<bool> is_left{false};     // the thread has ended: what its ring holds is all
  // The fetcher's own.
  int64_t num_dropped_seen = 0;
  bool is_named = false;  // in the file that is written
};

class Tracer {
 public:
  void start(const std::string& path, const TraceLimits& limits);
  TraceTotals stop();
  TraceTotals totals();
  std::shared_ptr<Lane> new_lane();

 private:
  void flush_loop();
  void fetch();
  void fetch_lane(Lane& lane);

  std::mutex lanes_mutex_;  // threads take it for their first event, and the fetcher
  std::vector<std::shared_ptr<Lane>> lanes_;
  size_t lane_events_ = TraceLimits{}.lane_events;

  std::mutex file_mutex_;  // between the fetcher and totals()
  std::unique_ptr<TraceFile> file_;
  TraceTotals last_totals_;

  int64_t start_ns_ = 0;
  int64_t flush_ns_ = 0;
  std::atomic<bool> is_stopping_{false};
  Doorbell bell_;
  std::thread thread_;
};

// Never destroyed: threads may record until the process is gone.
Tracer& tracer() {
  static Tracer& instance = *new Tracer;
  return instance;
}

// The lane of a thread, left to the fetcher when the thread ends.
struct OwnLane {
  ~OwnLane() {
    if (lane != nullptr) lane->is_left.store(true, std::memory_order_release);
  }
  std::shared_ptr<Lane> lane;
};

thread_local OwnLane own_lane;

std::string thread_name() {
  char name[32] = "";
  pthread_getname_np(pthread_self(), name, sizeof name);
  return name;
}

void Tracer::start(const std::string& path, const TraceLimits& limits) {
  if (thread_.joinable()) throw Error(ErrorCode::kInvalidArgument, "a trace is being written already");
  start_ns_ = monotonic_ns();
  flush_ns_ = limits.flush_ns;
  auto file = std::make_unique<TraceFile>(path, start_ns_, limits.file_bytes);
  {
    const std::lock_guard lock(lanes_mutex_);
    lane_events_ = limits.lane_events;
    for (const auto& lane : lanes_) {
      lane->is_named = false;
      // What a thread recorded too late for the trace before.
      TraceEvent event;
      while (lane->ring.try_pop(event)) {
      }
      lane->num_dropped_seen = lane->num_dropped.load(std::memory_order_relaxed);
    }
  }
  {
    const std::lock_guard lock(file_mutex_);
    file_ = std::move(file);
  }
  is_stopping_.store(false, std::memory_order_relaxed);
  trace_detail::is_on.store(true, std::memory_order_relaxed);
  thread_ = std::thread([this] { flush_loop(); });
}

TraceTotals Tracer::stop() {
  if (!thread_.joinable()) return last_totals_;
  trace_detail::is_on.store(false, std::memory_order_relaxed);
  is_stopping_.store(true, std::memory_order_release);
  bell_.ring();
  thread_.join();
  fetch();
  const std::lock_guard lock(file_mutex_);
  file_->close();
  last_totals_ = file_->totals();
  file_.reset();
  return last_totals_;
}

TraceTotals Tracer::totals() {
  const std::lock_guard lock(file_mutex_);
  return file_ == nullptr ? last_totals_ : file_->totals();
}

std::shared_ptr<Lane> Tracer::new_lane() {
  const std::lock_guard lock(lanes_mutex_);
  const auto tid = static_cast<int32_t>(syscall(SYS_gettid));
  lanes_.push_back(std::make_shared<Lane>(lane_events_, tid, thread_name()));
  return lanes_.back();
}

void Tracer::flush_loop() {
  pthread_setname_np(pthread_self(), "plait-trace");
  for (;;) {
    const uint32_t seen = bell_.epoch();
    if (is_stopping_.load(std::memory_order_acquire)) return;
    bell_.wait(seen, flush_ns_);
    fetch();
  }
}

void Tracer::fetch() {
  std::vector<std::shared_ptr<Lane>> lanes;
  {
    const std::lock_guard lock(lanes_mutex_);
    lanes = lanes_;
  }
  for (const auto& lane : lanes) {
    const bool is_left = lane->is_left.load(std::memory_order_acquire);
    fetch_lane(*lane);
    if (!is_left) continue;
    const std::lock_guard lock(lanes_mutex_);
    std::erase(lanes_, lane);
  }
}

void Tracer::fetch_lane(Lane& lane) {
  TraceEvent events[kFetchEvents];
  const std::lock_guard lock(file_mutex_);
  // One ring full at most: a thread that records without pause must not hold the others up.
  for (size_t left = lane.ring.capacity(); left > 0;) {
    const size_t num = lane.ring.try_pop_n(events, std::min(left, kFetchEvents));
    if (num == 0) break;
    left -= num;
    if (!lane.is_named) file_->write_thread(lane.tid, lane.name);
    lane.is_named = true;
    for (size_t i = 0; i < num; ++i) {
      if (events[i].begin_ns >= start_ns_) file_->write(events[i], lane.tid);
    }
  }
  const int64_t num_dropped = lane.num_dropped.load(std::memory_order_relaxed);
  if (num_dropped == lane.num_dropped_seen) return;
  file_->write_dropped(lane.tid, monotonic_ns(), num_dropped - lane.num_dropped_seen);
  lane.num_dropped_seen = num_dropped;
}

void check_text(const std::string& text) {
  const bool is_plain = std::all_of(text.begin(), text.end(),
                                    [](char c) { return c >= ' ' && c < '\x7f' && c != '"' && c != '\\'; });
  if (is_plain && !text.empty() && text.size() <= kMaxNameBytes) return;
  throw Error(ErrorCode::kInvalidArgument, "a name in a trace has 1 to " + std::to_string(kMaxNameBytes) +
                                               " printable ASCII characters, no quotes and no backslashes");
}

struct OwnedName {
  std::string name, category;
  std::vector<std::string> args;
  TraceName view;
};

}  // namespace

void start_trace(const std::string& path, const TraceLimits& limits) { tracer().start(path, limits); }

TraceTotals stop_trace() { return tracer().stop(); }

TraceTotals trace_totals() { return tracer().totals(); }

void trace_detail::record(const TraceName& name, int64_t begin_ns, int64_t end_ns, const TraceArgs& args) {
  if (own_lane.lane == nullptr) own_lane.lane = tracer().new_lane();
  Lane& lane = *own_lane.lane;
  if (!lane.ring.try_push({&name, begin_ns, end_ns, args})) {
    lane.num_dropped.store(lane.num_dropped.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
}

const TraceName* trace_name(const std::string& name, const std::string& category,
                            const std::vector<std::string>& args) {
  static std::mutex& mutex = *new std::mutex;
  static std::deque<OwnedName>& names = *new std::deque<OwnedName>;
  check_text(name);
  check_text(category);
  for (const std::string& arg : args) check_text(arg);
  if (args.size() > kMaxTraceArgs) {
    throw Error(ErrorCode::kInvalidArgument,
                "an event has at most " + std::to_string(kMaxTraceArgs) + " numbers");
  }
  const std::lock_guard lock(mutex);
  for (const OwnedName& known : names) {
    if (known.name == name && known.category == category && known.args == args) return &known.view;
  }
  OwnedName& owned = names.emplace_back(OwnedName{name, category, args, {}});
  owned.view = {owned.name.c_str(), owned.category.c_str(), {}};
  for (size_t i = 0; i < args.size(); ++i) owned.view.args[i] = owned.args[i].c_str();
  return &owned.view;
}

}  // namespace plait
