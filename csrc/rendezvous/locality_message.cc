#include "rendezvous/locality_message.h"

namespace ring {

Bytes LocalityIntroduction::encode() const {
  Writer writer;
  writer.text(settings);
  writer.text(host_id);
  return writer.take();
}

std::optional<LocalityIntroduction> LocalityIntroduction::read(ByteView bytes) {
  Reader reader(bytes);
  LocalityIntroduction one;
  one.settings = reader.text();
  one.host_id = reader.text();
  return reader.at_end() ? std::optional(std::move(one)) : std::nullopt;
}

Bytes LocalityOffer::encode() const {
  Writer writer;
  writer.text(name);
  writer.put(bytes);
  writer.text(problem);
  return writer.take();
}

std::optional<LocalityOffer> LocalityOffer::read(ByteView bytes) {
  Reader reader(bytes);
  LocalityOffer one;
  one.name = reader.text();
  one.bytes = reader.get<uint64_t>();
  one.problem = reader.text();
  return reader.at_end() ? std::optional(std::move(one)) : std::nullopt;
}

Bytes LocalityProof::encode() const {
  Writer writer;
  writer.put(static_cast<uint8_t>(seen));
  writer.put(challenge);
  writer.text(problem);
  return writer.take();
}

std::optional<LocalityProof> LocalityProof::read(ByteView bytes) {
  Reader reader(bytes);
  LocalityProof one;
  const uint8_t seen = reader.get<uint8_t>();
  one.seen = seen == 1;
  one.challenge = reader.get<Challenge>();
  one.problem = reader.text();
  return reader.at_end() && seen <= 1 ? std::optional(std::move(one)) : std::nullopt;
}

}  // namespace ring
