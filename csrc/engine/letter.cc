#include "engine/letter.h"

#include <limits>

namespace ring {
namespace {

bool has_shape(Mark mark) { return mark == Mark::eager || mark == Mark::offer; }

struct Fixed {
  uint32_t mark;
  uint16_t dtype;
  uint16_t dimensions;
  int64_t tag;
  uint64_t bytes;
  uint64_t id;
};
static_assert(sizeof(Fixed) == Letter::kHeader);

// Bytes of an array, or empty if they are not countable.
std::optional<size_t> bytes_of(const Looks& looks) {
  size_t bytes = item_size(looks.dtype);
  bool empty = false;
  for (const int64_t extent : looks.shape) {
    if (extent < 0) return std::nullopt;
    empty = empty || extent == 0;
  }
  if (empty) return 0;
  for (const int64_t extent : looks.shape) {
    if (static_cast<uint64_t>(extent) > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) / bytes) {
      return std::nullopt;
    }
    bytes *= static_cast<size_t>(extent);
  }
  return bytes;
}

}  // namespace

std::string Looks::text() const {
  std::string text = std::string(name_of(dtype)) + " [";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

Bytes Letter::head() const {
  Writer writer;
  const size_t dimensions = has_shape(mark) ? looks.shape.size() : 0;
  writer.put(Fixed{static_cast<uint32_t>(mark), static_cast<uint16_t>(looks.dtype),
                   static_cast<uint16_t>(dimensions), tag, looks.bytes, id});
  writer.raw(looks.shape.data(), dimensions * sizeof(int64_t));
  return writer.take();
}

std::optional<size_t> Letter::head_bytes(ByteView header) {
  const Fixed fixed = Reader(header).get<Fixed>();
  const auto mark = static_cast<Mark>(fixed.mark);
  if (mark < Mark::eager || mark > Mark::goodbye) return std::nullopt;
  if (fixed.dtype > static_cast<uint16_t>(DType::boolean)) return std::nullopt;
  if (fixed.dimensions > (has_shape(mark) ? kMaxDimensions : 0)) return std::nullopt;
  if (mark == Mark::eager && fixed.bytes > kEager) return std::nullopt;
  return kHeader + fixed.dimensions * sizeof(int64_t);
}

std::optional<Letter> Letter::read(ByteView head) {
  if (head.size() < kHeader || head_bytes(head) != head.size()) return std::nullopt;
  Reader reader(head);
  const Fixed fixed = reader.get<Fixed>();
  Letter letter;
  letter.mark = static_cast<Mark>(fixed.mark);
  letter.tag = fixed.tag;
  letter.id = fixed.id;
  letter.looks.dtype = static_cast<DType>(fixed.dtype);
  letter.looks.bytes = fixed.bytes;
  for (uint16_t i = 0; i < fixed.dimensions; ++i) letter.looks.shape.push_back(reader.get<int64_t>());
  if (has_shape(letter.mark) && bytes_of(letter.looks) != letter.looks.bytes) return std::nullopt;
  return letter;
}

}  // namespace ring
