#include "base/trace.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace ring {
namespace {

constexpr size_t kBufferBytes = 256 * 1024;
constexpr int64_t kFlushEveryNs = 20'000'000;
constexpr size_t kMostRows = 10000;  // further names share rows

std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(c));
      result += code;
    } else {
      result += c;
    }
  }
  return result + "\"";
}

std::string microseconds(int64_t ns) {
  char text[40];
  std::snprintf(text, sizeof text, "%lld.%03d", static_cast<long long>(ns / 1000),
                static_cast<int>(ns % 1000));
  return text;
}

}  // namespace

void TraceArgs::name(std::string_view name) {
  if (!text_.empty()) text_ += ",";
  text_ += quoted(name) + ":";
}

TraceArgs& TraceArgs::add(std::string_view key, int64_t value) {
  name(key);
  text_ += std::to_string(value);
  return *this;
}

TraceArgs& TraceArgs::add(std::string_view key, std::string_view text) {
  name(key);
  text_ += quoted(text);
  return *this;
}

Status Trace::start(const std::string& path, int rank, int size) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (file_ >= 0) return Status(Code::config, "a timeline is being recorded already; stop it first");
  file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file_ < 0) {
    return Status(Code::config, "the timeline '" + path + "' cannot be written: " + std::strerror(errno));
  }
  pid_ = rank;
  first_ = true;
  rows_.clear();
  by_title_.clear();
  buffer_ = "[\n";
  const int64_t mono = now_ns();
  const int64_t wall = std::chrono::duration_cast<std::chrono::nanoseconds>(
                           std::chrono::system_clock::now().time_since_epoch())
                           .count();
  auto metadata = [this](const char* name, const std::string& args) {
    event("{\"name\":\"" + std::string(name) + "\",\"ph\":\"M\",\"pid\":" + std::to_string(pid_) +
          ",\"tid\":0,\"args\":" + args + "}");
  };
  metadata("spark_ring_clock",
           TraceArgs().add("wall_minus_monotonic_ns", wall - mono).add("size", size).take());
  metadata("process_name", TraceArgs().add("name", "rank " + std::to_string(rank)).take());
  metadata("process_sort_index", TraceArgs().add("sort_index", rank).take());
  flush();
  on_.store(true, std::memory_order_relaxed);
  return {};
}

void Trace::stop() {
  const std::lock_guard<std::mutex> lock(mutex_);
  on_.store(false, std::memory_order_relaxed);
  if (file_ < 0) return;
  buffer_ += "\n]\n";
  flush();
  ::close(file_);
  file_ = -1;
}

int Trace::make_row(const std::string& title) {
  rows_.emplace_back();
  const int row = static_cast<int>(rows_.size());
  by_title_.emplace(title, row);
  for (const auto& [name, args] :
       {std::pair<const char*, std::string>{"thread_name", TraceArgs().add("name", title).take()},
        {"thread_sort_index", TraceArgs().add("sort_index", row).take()}}) {
    event("{\"name\":\"" + std::string(name) + "\",\"ph\":\"M\",\"pid\":" + std::to_string(pid_) +
          ",\"tid\":" + std::to_string(row) + ",\"args\":" + args + "}");
  }
  return row;
}

int Trace::row(const std::string& title, bool shared, int64_t since_ns) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!shared) {
    const auto known = by_title_.find(title);
    if (known != by_title_.end()) return known->second;
    if (rows_.size() < kMostRows) return make_row(title);
  }
  for (int k = 0;; ++k) {
    const std::string one = title + " #" + std::to_string(k);
    const auto known = by_title_.find(one);
    const int row = known != by_title_.end() ? known->second : make_row(one);
    Row& found = rows_[static_cast<size_t>(row - 1)];
    if (found.busy || found.end_ns > since_ns) continue;
    found.busy = true;
    return row;
  }
}

void Trace::release(int row) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (row >= 1 && static_cast<size_t>(row) <= rows_.size()) rows_[static_cast<size_t>(row - 1)].busy = false;
}

void Trace::span(int row, std::string_view name, int64_t start_ns, int64_t end_ns, const std::string& args) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (file_ < 0 || row < 1 || static_cast<size_t>(row) > rows_.size()) return;
  Row& place = rows_[static_cast<size_t>(row - 1)];
  start_ns = std::max(start_ns, place.end_ns);
  place.end_ns = std::max(end_ns, start_ns);
  complete(row, name, start_ns, place.end_ns, args);
}

void Trace::phase(int row, std::string_view name, int64_t start_ns, int64_t end_ns, const std::string& args) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (file_ < 0 || row < 1 || static_cast<size_t>(row) > rows_.size()) return;
  complete(row, name, start_ns, end_ns, args);
}

void Trace::complete(int row, std::string_view name, int64_t start_ns, int64_t end_ns,
                     const std::string& args) {
  event("{\"name\":" + quoted(name) + ",\"ph\":\"X\",\"pid\":" + std::to_string(pid_) +
        ",\"tid\":" + std::to_string(row) + ",\"ts\":" + microseconds(start_ns) +
        ",\"dur\":" + microseconds(end_ns - start_ns) + ",\"args\":" + args + "}");
}

void Trace::counter(std::string_view name, std::string_view series, int64_t value) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (file_ < 0) return;
  event("{\"name\":" + quoted(name) + ",\"ph\":\"C\",\"pid\":" + std::to_string(pid_) +
        ",\"ts\":" + microseconds(now_ns()) + ",\"args\":" + TraceArgs().add(series, value).take() + "}");
}

void Trace::breathe() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (file_ >= 0 && now_ns() - flushed_ns_ > kFlushEveryNs) flush();
}

void Trace::event(const std::string& text) {
  if (!first_) buffer_ += ",\n";
  first_ = false;
  buffer_ += text;
  if (buffer_.size() > kBufferBytes) flush();
}

// A disk that is full loses events, never the job.
void Trace::flush() {
  size_t done = 0;
  while (done < buffer_.size()) {
    const ssize_t written = ::write(file_, buffer_.data() + done, buffer_.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) break;
    done += static_cast<size_t>(written);
  }
  buffer_.clear();
  flushed_ns_ = now_ns();
}

void TracePhase::write() const {
  TraceArgs args;
  if (bytes_ > 0) args.add("bytes", static_cast<int64_t>(bytes_));
  if (peer_ >= 0) args.add("rank", peer_);
  spot_.trace->phase(spot_.row, name_, start_, now_ns(), args.take());
}

}  // namespace ring
