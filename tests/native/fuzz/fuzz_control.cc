// A peer that sends anything over a control connection.
//
//   input:  byte 0  in how many pieces it comes
//           rest    what rank 1 sends to rank 0 of three
#include "fuzz.h"
#include "transport/control_plane.h"

using ring::Bytes;
using ring::ControlPlane;
using ring::Socket;
using ring::WaitPolicy;
using ring::Writer;

std::vector<Bytes> fuzz::seeds() {
  const std::string text = "a piece of an exchange";
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  Writer reason;
  reason.put<int32_t>(static_cast<int32_t>(ring::Code::peer_lost));
  reason.put<int32_t>(2);
  reason.text("allreduce 'grad'");
  reason.text("rank 2 is lost");
  Writer report;
  report.put<int32_t>(2);
  Writer all;
  all.put(uint8_t{0});
  put_frame(all, 1, 0, Bytes(first, first + text.size()));
  put_frame(all, 4, 0, {});
  put_frame(all, 5, 0, report.bytes());
  put_frame(all, 2, 0, reason.bytes());
  put_frame(all, 3, 0, {});
  Writer ahead;
  ahead.put(uint8_t{3});
  for (uint32_t sequence = 0; sequence < 3; ++sequence) put_frame(ahead, 1, sequence, {});
  return {all.bytes(), ahead.bytes()};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  ControlPlane control(0, std::vector<Socket>(3), WaitPolicy::choose(1, 0));
  const size_t step = std::max<size_t>(1, (size - 1) / (1 + data[0] % 8));
  for (size_t at = 1; at < size; at += step) {
    control.feed(1, fuzz::view(data + at, std::min(step, size - at)));
  }
  const ring::Status verdict = control.check(1);
  REQUIRE(verdict.rank() >= -1 && verdict.rank() < 3);
  REQUIRE(control.find_culprit(1, 0) < 3);
  (void)control.peer_ahead();
  return 0;
}
