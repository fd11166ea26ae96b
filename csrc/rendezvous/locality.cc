#include "rendezvous/locality.h"

#include <sys/random.h>

#include <cstring>

#include "base/bytes.h"

namespace ring {
namespace {

struct Offer {
  std::string name;
  uint64_t bytes = 0;
  std::string problem;
};

Offer read_offer(ByteView bytes) {
  Reader reader(bytes);
  Offer offer;
  offer.name = reader.text();
  offer.bytes = reader.get<uint64_t>();
  offer.problem = reader.text();
  if (!reader.at_end()) offer = {"", 0, "unreadable answer"};
  return offer;
}

class Agreement {
 public:
  Agreement(ControlPlane& control, const LocalityRequest& request, Deadline deadline, Watch* watch)
      : control_(control), request_(request), deadline_(deadline), watch_(watch) {}

  Result<Locality> run() {
    if (Status status = introduce(); !status.ok()) return status;
    if (Status status = offer(); !status.ok()) return status;
    if (Status status = prove(); !status.ok()) return status;
    locality_.segment.unlink();
    return std::move(locality_);
  }

 private:
  bool candidate(const std::vector<int>& host) const {
    return request_.transport != "tcp" && host.size() > 1;
  }

  Status trade(const Writer& mine, std::vector<Bytes>* all) {
    Status status = control_.exchange(mine.bytes(), deadline_, all, watch_);
    if (status.code() != Code::timeout) return status;
    return Status(
        Code::rendezvous,
        "rank " + std::to_string(status.rank()) + " connected but did not agree on the topology in time",
        status.rank());
  }

  Status introduce() {
    Writer mine;
    mine.text(request_.settings);
    mine.text(request_.host_id);
    std::vector<Bytes> all;
    RING_TRY(trade(mine, &all));
    std::vector<std::string> hosts;
    for (size_t q = 0; q < all.size(); ++q) {
      Reader reader(all[q]);
      const std::string settings = reader.text();
      hosts.push_back(reader.text());
      if (!reader.at_end() || settings != request_.settings) {
        return Status(Code::rendezvous,
                      "ranks have different settings: rank " + std::to_string(control_.rank()) + " has " +
                          request_.settings + ", rank " + std::to_string(q) + " has " + settings +
                          "; give every rank the same version and settings",
                      static_cast<int>(q));
      }
    }
    locality_.topology = Topology::from(hosts, control_.rank());
    if (request_.transport == "shm" && locality_.topology.hosts.size() > 1) {
      const int other = locality_.topology.hosts[1][0];
      return Status(Code::rendezvous,
                    "transport='shm' needs every rank on one host, but rank " + std::to_string(other) +
                        " is on another host than rank 0 (host ids '" + hosts[static_cast<size_t>(other)] +
                        "' and '" + hosts[0] + "'); use transport='auto'",
                    other);
    }
    return {};
  }

  Status offer() {
    const auto& local = locality_.topology.local();
    Offer mine;
    if (candidate(local) && local[0] == control_.rank()) {
      const size_t bytes = request_.segment_bytes(static_cast<int>(local.size()), request_.context);
      Result<SharedSegment> segment = SharedSegment::create(bytes);
      if (!segment.ok()) {
        mine.problem = segment.status().message();
      } else if (::getentropy(segment->data(), kChallengeBytes) != 0) {
        mine.problem = "no random numbers for the challenge";
      } else {
        locality_.segment = std::move(*segment);
        mine.name = locality_.segment.name();
        mine.bytes = bytes;
        std::memcpy(challenge_, locality_.segment.data(), kChallengeBytes);
      }
    }
    Writer writer;
    writer.text(mine.name);
    writer.put<uint64_t>(mine.bytes);
    writer.text(mine.problem);
    return trade(writer, &offers_);
  }

  std::string answer(bool* read) {
    const auto& local = locality_.topology.local();
    if (!candidate(local)) return {};
    const Offer offered = read_offer(offers_[static_cast<size_t>(local[0])]);
    if (offered.name.empty()) return offered.problem;
    if (local[0] != control_.rank()) {
      Result<SharedSegment> segment = SharedSegment::open(offered.name, offered.bytes);
      if (!segment.ok()) return segment.status().message();
      locality_.segment = std::move(*segment);
      std::memcpy(challenge_, locality_.segment.data(), kChallengeBytes);
    }
    *read = true;
    return {};
  }

  Status prove() {
    bool read = false;
    const std::string problem = answer(&read);
    Writer mine;
    mine.put<uint8_t>(read);
    mine.raw(challenge_, kChallengeBytes);
    mine.text(problem);
    std::vector<Bytes> all;
    RING_TRY(trade(mine, &all));
    std::vector<std::string> groups(all.size());
    for (const auto& host : locality_.topology.hosts) {
      std::string why;
      int who = -1;
      const bool shared = candidate(host) && proven(host, all, &why, &who);
      if (candidate(host) && !shared && request_.transport == "shm") {
        return Status(Code::rendezvous,
                      "transport='shm' is not possible: rank " + std::to_string(who) + ": " + why, who);
      }
      for (const int q : host) groups[static_cast<size_t>(q)] = std::to_string(shared ? host[0] : q);
      locality_.any_shared = locality_.any_shared || shared;
    }
    locality_.data = Topology::from(groups, control_.rank());
    if (locality_.data.local_size == 1) locality_.segment = SharedSegment();
    return {};
  }

  static bool proven(const std::vector<int>& host, const std::vector<Bytes>& all, std::string* why,
                     int* who) {
    std::byte expected[kChallengeBytes] = {};
    for (const int q : host) {
      Reader reader(all[static_cast<size_t>(q)]);
      const bool read = reader.get<uint8_t>() != 0;
      std::byte seen[kChallengeBytes];
      for (auto& byte : seen) byte = reader.get<std::byte>();
      *why = reader.text();
      *who = q;
      if (!reader.at_end() || !read) return false;
      if (q == host[0]) std::memcpy(expected, seen, kChallengeBytes);
      if (std::memcmp(expected, seen, kChallengeBytes) != 0) {
        *why = "it opened a segment of the same name that is not the same memory";
        return false;
      }
    }
    return true;
  }

  ControlPlane& control_;
  const LocalityRequest& request_;
  const Deadline deadline_;
  Watch* const watch_;
  std::vector<Bytes> offers_;
  std::byte challenge_[kChallengeBytes] = {};
  Locality locality_;
};

}  // namespace

Result<Locality> agree_on_locality(ControlPlane& control, const LocalityRequest& request, Deadline deadline,
                                   Watch* watch) {
  return Agreement(control, request, deadline, watch).run();
}

}  // namespace ring
