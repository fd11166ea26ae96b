#include "engine/descriptor.h"

#include <cstdio>
#include <string_view>

namespace ring {
namespace {

constexpr std::string_view kNames[kKinds] = {"allreduce",     "broadcast", "allgather",
                                             "reducescatter", "barrier",   "alltoall",
                                             "gather",        "scatter",   "join"};
constexpr uint32_t kMaxTensors = 1 << 20;
constexpr uint32_t kMaxDimensions = 64;

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

std::string shape_text(const std::vector<int64_t>& shape, bool any_first) {
  std::string text = any_first ? "[*" : "[";
  bool first = !any_first;
  for (const int64_t extent : shape) {
    if (!first) text += ", ";
    text += std::to_string(extent);
    first = false;
  }
  return text + "]";
}

}  // namespace

Bytes Descriptor::encode() const {
  Writer writer;
  write_fields(writer, {name, number, kind, dtype, op, root, splits, prescale, postscale},
               static_cast<uint32_t>(shapes.size()));
  for (const auto& shape : shapes) write_shape(writer, shape.data(), shape.size());
  return writer.take();
}

std::optional<Descriptor> Descriptor::decode(Reader& reader) {
  Descriptor one;
  one.name = reader.text();
  one.number = reader.get<uint64_t>();
  one.kind = reader.get<Kind>();
  one.dtype = reader.get<DType>();
  one.op = reader.get<ReduceOp>();
  one.root = reader.get<int32_t>();
  const uint8_t splits = reader.get<uint8_t>();
  one.splits = splits == 1;
  one.prescale = reader.get<double>();
  one.postscale = reader.get<double>();
  const uint32_t tensors = reader.get<uint32_t>();
  if (tensors > kMaxTensors || one.kind > Kind::join || one.dtype > DType::boolean ||
      one.op > ReduceOp::adasum || splits > 1) {
    return std::nullopt;
  }
  for (uint32_t t = 0; t < tensors && reader.ok(); ++t) {
    std::vector<int64_t> shape;
    const uint32_t extents = reader.get<uint32_t>();
    if (extents > kMaxDimensions) return std::nullopt;
    for (uint32_t i = 0; i < extents && reader.ok(); ++i) shape.push_back(reader.get<int64_t>());
    one.shapes.push_back(std::move(shape));
  }
  if (!reader.ok() || !one.sensible()) return std::nullopt;
  return one;
}

bool Descriptor::sensible() const {
  switch (kind) {
    case Kind::allreduce:
      break;
    case Kind::barrier:
    case Kind::join:
    case Kind::scatter:
      if (!shapes.empty()) return false;
      break;
    default:
      if (shapes.size() != 1) return false;
  }
  if (kind == Kind::reducescatter && shapes[0].empty()) return false;
  size_t total = 0;
  for (const auto& shape : shapes) {
    size_t bytes = item_size(dtype);
    for (const int64_t extent : shape) {
      if (extent < 0 || __builtin_mul_overflow(bytes, static_cast<size_t>(extent), &bytes)) return false;
    }
    if (__builtin_add_overflow(total, bytes, &total)) return false;
  }
  return true;
}

std::string Descriptor::key() const {
  if (!name.empty()) return "n" + name;
  return "#" + std::to_string(static_cast<int>(kind)) + "." + std::to_string(number);
}

std::string Descriptor::title() const {
  const std::string what(kNames[static_cast<size_t>(kind)]);
  return name.empty() ? what + " (unnamed, number " + std::to_string(number) + ")" : what + " '" + name + "'";
}

std::string Descriptor::details() const {
  std::string text(kNames[static_cast<size_t>(kind)]);
  if (kind == Kind::barrier || kind == Kind::join) return text;
  if (kind == Kind::scatter) return text + " from root " + std::to_string(root);
  text += " of " + std::string(name_of(dtype)) + " ";
  for (size_t i = 0; i < shapes.size() && i < 4; ++i)
    text += (i ? " + " : "") + shape_text(shapes[i], any_rows());
  if (shapes.size() > 4) text += " + … (" + std::to_string(shapes.size()) + " tensors)";
  if (splits) text += ", with splits";
  if (rooted()) text += ", root " + std::to_string(root);
  if (kind == Kind::allreduce || kind == Kind::reducescatter) {
    text += ", op " + std::string(name_of(op));
    if (prescale != 1) text += ", prescale " + number_text(prescale);
    if (postscale != 1) text += ", postscale " + number_text(postscale);
  }
  return text;
}

}  // namespace ring
