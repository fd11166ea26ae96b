// Which operations share a bucket.
#include "check.h"
#include "engine/fusion.h"

namespace {

ring::OperationPtr allreduce(size_t bytes, ring::DType dtype = ring::DType::float32, double prescale = 1) {
  ring::Request request;
  request.kind = ring::Kind::allreduce;
  request.dtype = dtype;
  request.prescale = prescale;
  auto operation = std::make_shared<ring::Operation>(request, ring::Deadline::after(1));
  operation->bytes = bytes;
  return operation;
}

ring::OperationPtr barrier() {
  return std::make_shared<ring::Operation>(ring::Request{}, ring::Deadline::after(1));
}

using Buckets = std::vector<ring::Bucket>;

}  // namespace

TEST(small_equal_ones_share) {
  CHECK(ring::make_buckets({allreduce(10), allreduce(20), allreduce(30)}, 60) == (Buckets{{0, 1, 2}}));
}

TEST(a_bucket_never_exceeds_its_size) {
  CHECK(ring::make_buckets({allreduce(10), allreduce(20), allreduce(31)}, 60) == (Buckets{{0, 1}, {2}}));
  std::vector<ring::OperationPtr> many;
  for (size_t i = 0; i < 200; ++i) many.push_back(allreduce(i * 7 % 50));
  size_t seen = 0;
  for (const auto& bucket : ring::make_buckets(many, 100)) {
    size_t bytes = 0;
    for (const size_t i : bucket) bytes += many[i]->bytes;
    CHECK(bytes <= 100);
    seen += bucket.size();
  }
  CHECK_EQ(seen, many.size());
}

TEST(what_differs_stays_apart) {
  const auto half = ring::DType::float16;
  CHECK(ring::make_buckets({allreduce(8), allreduce(8, half), allreduce(8), allreduce(8, half)}, 64) ==
        (Buckets{{0, 2}, {1, 3}}));
  CHECK(ring::make_buckets({allreduce(8), allreduce(8, ring::DType::float32, 0.5)}, 64) ==
        (Buckets{{0}, {1}}));
}

TEST(large_ones_and_other_kinds_travel_alone) {
  CHECK(ring::make_buckets({allreduce(8), allreduce(65), barrier(), allreduce(8)}, 64) ==
        (Buckets{{0, 3}, {1}, {2}}));
}

TEST(zero_turns_fusion_off) {
  CHECK(ring::make_buckets({allreduce(8), allreduce(0), allreduce(0)}, 0) == (Buckets{{0}, {1}, {2}}));
}
