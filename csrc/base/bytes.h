// Little helpers to write and read flat binary messages. A Reader never reads past its end: once something
// is missing it stays failed and returns zeros, so a parser checks ok() once at the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace ring {

using Bytes = std::vector<std::byte>;
using ByteView = std::span<const std::byte>;

class Writer {
 public:
  template <class T>
  void put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    raw(&value, sizeof value);
  }
  void text(std::string_view value) {
    put(static_cast<uint32_t>(value.size()));
    raw(value.data(), value.size());
  }
  void raw(const void* data, size_t size);
  const Bytes& bytes() const { return bytes_; }
  Bytes take() { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

class Reader {
 public:
  explicit Reader(ByteView view) : view_(view) {}
  template <class T>
  T get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    if (need(sizeof value)) {
      std::memcpy(&value, view_.data() + at_, sizeof value);
      at_ += sizeof value;
    }
    return value;
  }
  std::string text() {
    const size_t size = get<uint32_t>();
    if (!need(size)) return {};
    std::string value(reinterpret_cast<const char*>(view_.data() + at_), size);
    at_ += size;
    return value;
  }
  bool ok() const { return ok_; }
  bool at_end() const { return ok_ && at_ == view_.size(); }

 private:
  bool need(size_t size) {
    if (size > view_.size() - at_) ok_ = false;
    return ok_;
  }
  ByteView view_;
  size_t at_ = 0;
  bool ok_ = true;
};

// FNV-1a over eight bytes at a time with a final mix: equal bytes, equal hash; used to compare descriptors.
inline uint64_t hash_bytes(ByteView bytes, uint64_t seed = 0xcbf29ce484222325ULL) {
  uint64_t hash = seed ^ (bytes.size() * 0x9e3779b97f4a7c15ULL);
  size_t at = 0;
  auto mix = [&hash](uint64_t word) {
    hash = (hash ^ word) * 0xff51afd7ed558ccdULL;
    hash ^= hash >> 32;
  };
  for (; at + 8 <= bytes.size(); at += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + at, 8);
    mix(word);
  }
  uint64_t tail = 0;
  if (at < bytes.size()) std::memcpy(&tail, bytes.data() + at, bytes.size() - at);
  mix(tail);
  return hash;
}

}  // namespace ring
