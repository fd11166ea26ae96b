// What ranks tell each other about their hosts.
#include "fuzz.h"
#include "rendezvous/locality_message.h"

using ring::Bytes;
using ring::LocalityIntroduction;
using ring::LocalityOffer;
using ring::LocalityProof;

namespace {

// Whatever can be read was written so.
template <class Message>
void read(ring::ByteView bytes) {
  const auto one = Message::read(bytes);
  if (one) REQUIRE(one->encode() == Bytes(bytes.begin(), bytes.end()));
}

}  // namespace

std::vector<Bytes> fuzz::seeds() {
  return {LocalityIntroduction{"spark_ring protocol 1, transport auto", "host-1"}.encode(),
          LocalityOffer{"/spark-ring-0123456789abcdef", 1 << 20, ""}.encode(),
          LocalityOffer{"", 0, "shared memory: reserving pages failed"}.encode(),
          LocalityProof{true, ring::Challenge{std::byte{7}}, ""}.encode(),
          LocalityProof{false, {}, "no such file"}.encode()};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  read<LocalityIntroduction>(fuzz::view(data, size));
  read<LocalityOffer>(fuzz::view(data, size));
  read<LocalityProof>(fuzz::view(data, size));
  return 0;
}
