#include "rendezvous/locality.h"

#include <sys/random.h>

#include <cstring>

#include "rendezvous/locality_message.h"
#include "transport/arena.h"

namespace ring {
namespace {

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

  Status trade(const Bytes& mine, std::vector<Bytes>* all) {
    Status status = control_.exchange(mine, deadline_, all, watch_);
    if (status.code() != Code::timeout) return status;
    return Status(
        Code::rendezvous,
        "rank " + std::to_string(status.rank()) + " connected but did not agree on the topology in time",
        status.rank());
  }

  Status introduce() {
    std::vector<Bytes> all;
    RING_TRY(trade(LocalityIntroduction{request_.settings, request_.host_id}.encode(), &all));
    std::vector<std::string> hosts;
    for (size_t q = 0; q < all.size(); ++q) {
      const auto read = LocalityIntroduction::read(all[q]);
      const std::string settings = read ? read->settings : "something that cannot be read";
      hosts.push_back(read ? read->host_id : "");
      if (!read || settings != request_.settings) {
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
    LocalityOffer mine;
    if (candidate(local) && local[0] == control_.rank()) {
      const size_t bytes = request_.segment_bytes(static_cast<int>(local.size()), request_.context);
      Result<SharedSegment> segment =
          SharedSegment::create(bytes, Arena::addresses(local.size(), request_.arena_bytes));
      if (!segment.ok()) {
        mine.problem = segment.status().message();
      } else if (::getentropy(segment->data(), challenge_.size()) != 0) {
        mine.problem = "no random numbers for the challenge";
      } else {
        locality_.segment = std::move(*segment);
        mine.name = locality_.segment.name();
        mine.bytes = bytes;
        read_challenge();
      }
    }
    return trade(mine.encode(), &offers_);
  }

  void read_challenge() { std::memcpy(challenge_.data(), locality_.segment.data(), challenge_.size()); }

  std::string answer(bool* read) {
    const auto& local = locality_.topology.local();
    if (!candidate(local)) return {};
    const auto offered = LocalityOffer::read(offers_[static_cast<size_t>(local[0])]);
    if (!offered) return "unreadable answer";
    if (offered->name.empty()) return offered->problem;
    if (local[0] != control_.rank()) {
      const size_t needed = request_.segment_bytes(static_cast<int>(local.size()), request_.context);
      if (offered->bytes != needed) {
        return "the segment that it was offered has " + std::to_string(offered->bytes) +
               " bytes instead of " + std::to_string(needed);
      }
      Result<SharedSegment> segment =
          SharedSegment::open(offered->name, needed, Arena::addresses(local.size(), request_.arena_bytes));
      if (!segment.ok()) return segment.status().message();
      locality_.segment = std::move(*segment);
      read_challenge();
    }
    *read = true;
    return {};
  }

  Status prove() {
    bool read = false;
    const std::string problem = answer(&read);
    std::vector<Bytes> all;
    RING_TRY(trade(LocalityProof{read, challenge_, problem}.encode(), &all));
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
    Challenge expected{};
    for (const int q : host) {
      const auto read = LocalityProof::read(all[static_cast<size_t>(q)]);
      *why = read ? read->problem : "unreadable answer";
      *who = q;
      if (!read || !read->seen) return false;
      if (q == host[0]) expected = read->challenge;
      if (read->challenge != expected) {
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
  Challenge challenge_{};
  Locality locality_;
};

}  // namespace

Result<Locality> agree_on_locality(ControlPlane& control, const LocalityRequest& request, Deadline deadline,
                                   Watch* watch) {
  return Agreement(control, request, deadline, watch).run();
}

}  // namespace ring
