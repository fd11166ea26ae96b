// What ranks have in common, and how disagreement is told. The rest of agreement is in test_collectives.cc.
#include "check.h"
#include "engine/agreement.h"

namespace {

ring::Descriptor named(const std::string& name, std::vector<int64_t> shape = {2}) {
  ring::Descriptor one;
  one.kind = ring::Kind::allreduce;
  one.dtype = ring::DType::float32;
  one.name = name;
  one.shapes = {std::move(shape)};
  return one;
}

}  // namespace

TEST(a_descriptor_survives_the_wire) {
  ring::Descriptor one = named("grad.0", {3, 0, 5});
  one.shapes.push_back({});
  one.prescale = 0.25;
  one.root = 7;
  const ring::Bytes bytes = one.encode();
  ring::Reader reader(bytes);
  const auto read = ring::Descriptor::decode(reader);
  CHECK(read.has_value() && read->encode() == bytes && reader.at_end());
}

TEST(cut_or_foreign_descriptors_are_refused) {
  const ring::Bytes bytes = named("grad.0", {3, 4}).encode();
  for (size_t length = 0; length < bytes.size(); ++length) {
    ring::Reader reader(ring::ByteView(bytes.data(), length));
    CHECK(!ring::Descriptor::decode(reader).has_value());
  }
  for (size_t at = 0; at < bytes.size(); ++at) {  // any byte may be anything: no crash, no endless loop
    ring::Bytes broken = bytes;
    broken[at] = std::byte{0xff};
    ring::Reader reader(broken);
    (void)ring::Descriptor::decode(reader);
  }
}

TEST(operations_that_cannot_be_are_refused) {
  const auto readable = [](const std::vector<ring::Descriptor>& list) {
    ring::Writer writer;
    writer.put(static_cast<uint32_t>(list.size()));
    for (const auto& one : list) {
      const ring::Bytes bytes = one.encode();
      writer.raw(bytes.data(), bytes.size());
    }
    bool ok = false;
    (void)ring::read_descriptors(writer.bytes(), 3, &ok);
    return ok;
  };
  const ring::Descriptor good = named("g", {2, 3});
  CHECK(readable({}) && readable({good}));
  CHECK(!readable({good, good}));  // it would be run twice
  CHECK(!readable({named("g", {2, -3})}));
  CHECK(!readable({named("g", {int64_t{1} << 40, int64_t{1} << 40})}));
  CHECK(!readable({named("g", std::vector<int64_t>(65, 1))}));
  ring::Descriptor sent = named("g");
  sent.kind = ring::Kind::broadcast;
  for (const int root : {-1, 3, 1 << 30}) {
    sent.root = root;
    CHECK(!readable({sent}));
  }
  sent.root = 2;
  CHECK(readable({sent}));
  sent.shapes.clear();  // nothing to send
  CHECK(!readable({sent}));
  ring::Descriptor end = named("end");
  end.kind = ring::Kind::barrier;
  CHECK(!readable({end}));  // with a tensor
}

TEST(common_operations_come_in_the_order_of_rank_0) {
  const auto common = ring::find_common({{named("b"), named("x"), named("a")}, {named("a"), named("b")}});
  CHECK_EQ(common.size(), 2u);
  CHECK_EQ(common[0].key, named("b").key());
  CHECK_EQ(common[1].key, named("a").key());
  CHECK(common[0].disagreement.empty() && common[1].disagreement.empty());
}

TEST(disagreement_names_both_sides) {
  const auto common =
      ring::find_common({{named("g", {100, 5})}, {named("g", {100, 5})}, {named("g", {200, 5})}});
  CHECK_EQ(common.size(), 1u);
  CHECK_EQ(common[0].rank, 2);
  CHECK_CONTAINS(common[0].disagreement, "allreduce 'g'");
  CHECK_CONTAINS(common[0].disagreement, "rank 0 has allreduce of float32 [100, 5]");
  CHECK_CONTAINS(common[0].disagreement, "rank 2 has allreduce of float32 [200, 5]");
}

TEST(nothing_in_common_is_nothing) {
  CHECK(ring::find_common({{named("a")}, {named("b")}}).empty());
  CHECK(ring::find_common({{named("a")}, {}}).empty());
}

TEST(an_unnamed_operation_never_meets_a_named_one) {
  ring::Descriptor unnamed = named("");
  unnamed.number = 0;
  CHECK(unnamed.key() != named("0").key());
  CHECK(ring::find_common({{unnamed}, {named("#0.0")}}).empty());
}
