#include "trace/trace_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>

#include "base/error.h"

namespace plait {

namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;
constexpr size_t kLineBytes = 1024;  // longer than any event: names are bounded (trace.cc)
constexpr int64_t kNsPerUs = 1000;

// One line of the file, without printf: there may be tens of thousands a second.
class Line {
 public:
  void add(std::string_view text) {
    const size_t size = std::min(text.size(), sizeof text_ - size_);
    std::memcpy(text_ + size_, text.data(), size);
    size_ += size;
  }
  void add(int64_t number) {
    const auto end = std::to_chars(text_ + size_, text_ + sizeof text_, number);
    if (end.ec == std::errc()) size_ = static_cast<size_t>(end.ptr - text_);
  }
  // Microseconds with three decimals, from whole nanoseconds: no rounding can make neighbours overlap.
  void add_us(int64_t ns) {
    const int64_t rest = ns % kNsPerUs;
    add(ns / kNsPerUs);
    add(rest < 10 ? ".00" : rest < 100 ? ".0" : ".");
    add(rest);
  }
  const char* data() const { return text_; }
  size_t size() const { return size_; }

 private:
  char text_[kLineBytes];
  size_t size_ = 0;
};

std::string json_text(const std::string& text) {
  std::string out;
  for (const char c : text) out += c >= ' ' && c < '\x7f' && c != '"' && c != '\\' ? c : '?';
  return out;
}

}  // namespace

TraceFile::TraceFile(const std::string& path, int64_t start_ns, int64_t max_bytes)
    : file_(std::fopen(path.c_str(), "we")), pid_(getpid()), start_ns_(start_ns), max_bytes_(max_bytes) {
  if (file_ == nullptr) {
    throw Error(ErrorCode::kSystem, path + ": " + std::strerror(errno));
  }
  std::setvbuf(file_, nullptr, _IOFBF, kBufferBytes);
  static constexpr char kHead[] = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  put(kHead, sizeof kHead - 1);
}

TraceFile::~TraceFile() { close(); }

void TraceFile::fail(const char* what) {
  if (totals_.error.empty()) totals_.error = std::string(what) + ": " + std::strerror(errno);
}

void TraceFile::put(const char* text, size_t size) {
  if (totals_.error.empty() && std::fwrite(text, 1, size, file_) != size) fail("the trace cannot be written");
  num_bytes_ += static_cast<int64_t>(size);
}

void TraceFile::put_line(const char* text, size_t size) {
  put(has_lines_ ? ",\n" : "\n", has_lines_ ? 2 : 1);
  has_lines_ = true;
  put(text, size);
}

void TraceFile::write(const TraceEvent& event, int32_t tid) {
  if (num_bytes_ >= max_bytes_ || !totals_.error.empty()) {
    ++totals_.num_dropped;
    return;
  }
  const TraceName& name = *event.name;
  const bool is_moment = event.end_ns < 0;
  Line line;
  line.add(is_moment ? "{\"ph\":\"i\",\"s\":\"t\",\"pid\":" : "{\"ph\":\"X\",\"pid\":");
  line.add(pid_);
  line.add(",\"tid\":");
  line.add(tid);
  line.add(",\"name\":\"");
  line.add(name.name);
  line.add("\",\"cat\":\"");
  line.add(name.category);
  line.add("\",\"ts\":");
  line.add_us(event.begin_ns - start_ns_);
  if (!is_moment) {
    line.add(",\"dur\":");
    line.add_us(event.end_ns - event.begin_ns);
  }
  for (size_t i = 0; i < kMaxTraceArgs && name.args[i] != nullptr; ++i) {
    line.add(i == 0 ? ",\"args\":{\"" : ",\"");
    line.add(name.args[i]);
    line.add("\":");
    line.add(event.args[i]);
  }
  line.add(name.args[0] != nullptr ? "}}" : "}");
  put_line(line.data(), line.size());
  ++totals_.num_events;
}

void TraceFile::write_dropped(int32_t tid, int64_t now_ns, int64_t num_dropped) {
  static constexpr TraceName kDropped = {"events dropped", "trace", {"events"}};
  write({&kDropped, now_ns, -1, {num_dropped}}, tid);
  totals_.num_dropped += num_dropped;
}

void TraceFile::write_thread(int32_t tid, const std::string& name) {
  Line line;
  line.add("{\"ph\":\"M\",\"pid\":");
  line.add(pid_);
  line.add(",\"tid\":");
  line.add(tid);
  line.add(",\"name\":\"thread_name\",\"args\":{\"name\":\"");
  line.add(json_text(name));
  line.add("\"}}");
  put_line(line.data(), line.size());
}

void TraceFile::close() {
  if (file_ == nullptr) return;
  Line tail;
  tail.add("\n],\"otherData\":{\"start_monotonic_ns\":");
  tail.add(start_ns_);
  tail.add(",\"num_events\":");
  tail.add(totals_.num_events);
  tail.add(",\"num_dropped_events\":");
  tail.add(totals_.num_dropped);
  tail.add(",\"max_file_bytes\":");
  tail.add(max_bytes_);
  tail.add("}}\n");
  put(tail.data(), tail.size());
  if (std::fclose(file_) != 0) fail("the trace cannot be written");
  file_ = nullptr;
}

}  // namespace plait
