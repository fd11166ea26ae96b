#include "engine/fusion.h"

namespace ring {
namespace {

bool fusable(const Request& a, const Request& b) {
  return a.dtype == b.dtype && a.op == b.op && a.prescale == b.prescale && a.postscale == b.postscale;
}

}  // namespace

std::vector<Bucket> make_buckets(const std::vector<OperationPtr>& batch, size_t fusion_bytes) {
  struct Open {
    size_t bucket;
    size_t bytes;
  };
  std::vector<Bucket> buckets;
  std::vector<Open> open;  // the bucket that is being filled, one per combination of dtype, op and scales
  for (size_t i = 0; i < batch.size(); ++i) {
    const Operation& one = *batch[i];
    const bool small = one.request.kind == Kind::allreduce && one.request.op != ReduceOp::adasum &&
                       one.bytes <= fusion_bytes && fusion_bytes > 0;
    Open* place = nullptr;
    for (Open& candidate : open) {
      if (small && fusable(batch[buckets[candidate.bucket][0]]->request, one.request)) place = &candidate;
    }
    if (place != nullptr && place->bytes + one.bytes <= fusion_bytes) {
      buckets[place->bucket].push_back(i);
      place->bytes += one.bytes;
      continue;
    }
    buckets.push_back({i});
    const Open fresh{buckets.size() - 1, one.bytes};
    if (place != nullptr) {
      *place = fresh;
    } else if (small) {
      open.push_back(fresh);
    }
  }
  return buckets;
}

}  // namespace ring
