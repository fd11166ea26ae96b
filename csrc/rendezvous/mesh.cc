#include "rendezvous/mesh.h"

#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "rendezvous/handshake.h"
#include "rendezvous/route.h"
#include "transport/control_plane.h"

namespace ring {
namespace {

constexpr Purpose kPurposes[] = {Purpose::control, Purpose::data, Purpose::messages};
constexpr size_t kMaxGuests = 512;  // handshakes at once; beyond it the oldest is dropped
constexpr int64_t kFirstPauseUs = 10 * 1000;
constexpr int64_t kLongestPauseUs = 1000 * 1000;
// Some patience with a rank that refuses: a refusal may also come from a firewall that is just opening.
constexpr int64_t kGoneAfterUs = 1500 * 1000;
constexpr int64_t kProbeEveryUs = 500 * 1000;
// Without a free descriptor this rank looks again at times; others of its process may let some go.
constexpr int64_t kStarvedPauseUs = 20 * 1000;
constexpr int64_t kStarvedForUs = 1000 * 1000;
// With several addresses one may lead to a stranger with another secret: only after so many rounds is it the
// rank itself whose secret differs.
constexpr int kDistrustedRounds = 3;

// A connection that this rank makes.
struct Outgoing {
  Outgoing(int rank, Purpose purpose, Route route) : rank(rank), purpose(purpose), route(std::move(route)) {}

  int rank;
  Purpose purpose;
  Route route;
  Socket socket;
  bool connecting = false;
  std::optional<Handshake> handshake;
  Deadline deadline;
  int64_t retry_at = 0;
  int64_t pause_us = kFirstPauseUs;
  bool done = false;
  Status distrusted;
  std::string last_problem = "no attempt finished";
};

// A look whether a rank that is to connect to this one still listens. Nothing is sent.
struct Probe {
  Probe(int rank, Route route) : rank(rank), route(std::move(route)) {}

  int rank;
  Route route;
  Socket socket;
  int64_t next_at = 0;
};

// A connection that somebody made to this rank.
struct Guest {
  Socket socket;
  Handshake handshake;
  Deadline deadline;
};

class Builder {
 public:
  Builder(Listener& listener, int rank, const std::vector<PeerAddress>& peers, const std::string& secret,
          const MeshOptions& options)
      : listener_(listener), rank_(rank), peers_(peers), secret_(secret), options_(options) {
    mesh_.control.resize(peers.size());
    mesh_.data.resize(peers.size());
    mesh_.messages.resize(peers.size());
    for (int q = 0; q < rank; ++q) {
      for (const Purpose purpose : kPurposes) {
        outgoing_.emplace_back(q, purpose, route_to(q));
      }
    }
    for (size_t q = static_cast<size_t>(rank) + 1; q < peers_.size(); ++q) {
      Probe probe(static_cast<int>(q), route_to(static_cast<int>(q)));
      probe.next_at = now_us() + kProbeEveryUs;
      probes_.push_back(std::move(probe));
    }
  }

  Result<Mesh> run(Watch* watch) {
    const Status why = build(watch);
    for (const auto& guest : guests_) mesh_.strangers += guest->handshake.heard();  // still at the door
    if (why.ok()) return std::move(mesh_);
    return tell(why);
  }

 private:
  Status build(Watch* watch) {
    const Deadline deadline = Deadline::after(options_.connect_timeout);
    while (!complete()) {
      if (deadline.expired()) return too_late();
      if (watch != nullptr) {
        if (Status verdict = watch->check(-1); !verdict.ok()) return verdict;
      }
      for (auto& out : outgoing_) start(out);
      if (const int lost = wait(deadline); lost >= 0) return has_left(lost);
      for (auto& out : outgoing_) {
        if (Status fatal = advance(out); !fatal.ok()) return fatal;
      }
      welcome();
      serve();
      if (starved_since_ != 0 && now_us() - starved_since_ >= kStarvedForUs) return starved();
      if (const int gone = find_gone(kGoneAfterUs); gone >= 0) return is_gone(gone);
    }
    return {};
  }

  // Why a rank left that was connected. If it could, it said so; without a word it may still have left
  // because of a rank that refuses this one too: then that one is to blame.
  Status has_left(int rank) {
    const int gone = find_gone(0);
    ControlPlane& plane = connected();
    const Status told = plane.check(rank);
    if (!told.ok() && !plane.discovered()) return told;
    if (gone >= 0) return is_gone(gone);
    return Status(Code::peer_lost,
                  name(rank) + " disconnected while ranks were still connecting; look at its own error",
                  rank);
  }

  // Tells the ranks that are connected why this one gives up: to them it would look as if this one had died.
  Status tell(const Status& why) {
    const bool own = why.code() == Code::interrupted;
    connected().send_abort(own ? Status(Code::aborted, "it was interrupted while it connected", rank_) : why);
    return why;
  }

  // The control connections that stand, as a control plane: from here on nothing more is connected.
  ControlPlane& connected() {
    if (!plane_) plane_.emplace(rank_, std::move(mesh_.control), WaitPolicy::choose(1, 0));
    return *plane_;
  }

  Socket& place(int rank, Purpose purpose) {
    auto& links = purpose == Purpose::control ? mesh_.control
                  : purpose == Purpose::data  ? mesh_.data
                                              : mesh_.messages;
    return links[static_cast<size_t>(rank)];
  }

  bool complete() const {
    for (size_t q = 0; q < peers_.size(); ++q) {
      if (static_cast<int>(q) == rank_) continue;
      if (!linked(q)) return false;
    }
    return true;
  }

  bool linked(size_t q) const {
    return mesh_.control[q].valid() && mesh_.data[q].valid() && mesh_.messages[q].valid();
  }

  bool same_host(int rank) const {
    return peers_[static_cast<size_t>(rank)].host_id == peers_[static_cast<size_t>(rank_)].host_id;
  }

  Route route_to(int rank) const {
    const PeerAddress& peer = peers_[static_cast<size_t>(rank)];
    std::vector<std::string> addresses{peer.address};
    addresses.insert(addresses.end(), peer.others.begin(), peer.others.end());
    return Route(std::move(addresses));
  }

  void keep(int rank, Purpose purpose, Socket socket) {
    socket.tune(purpose == Purpose::data ? options_.socket_buffer_bytes : 0, same_host(rank));
    if (purpose == Purpose::control) socket.notice_silence(options_.silence_timeout);
    place(rank, purpose) = std::move(socket);
  }

  Status is_gone(int rank) const {
    return Status(Code::peer_lost,
                  name(rank) +
                      " is gone: it announced this port and now refuses connections there. Look at its "
                      "own error; if it runs, the address is not its own (setting address)",
                  rank);
  }

  // What came of asking for a descriptor.
  void note_descriptor(bool starving) {
    if (!starving) {
      starved_since_ = 0;
    } else if (starved_since_ == 0) {
      starved_since_ = now_us();
    }
  }

  static bool is_starving(int error) { return error == EMFILE || error == ENFILE || error == ENOBUFS; }

  Status starved() const {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    return Status(
        Code::rendezvous,
        "there is no file descriptor left for the connections between ranks: this process may have " +
            std::to_string(limit.rlim_cur) + " open, and a rank needs " +
            std::to_string(std::size(kPurposes)) +
            " for each other rank; raise the limit (ulimit -n), or look for what leaks them",
        rank_);
  }

  // A rank whose port has refused for some microseconds, or -1.
  int find_gone(int64_t us) {
    for (const auto& out : outgoing_) {
      if (!out.done && out.route.refused_for(us)) return out.rank;
    }
    for (auto& probe : probes_) {
      if (mesh_.control[static_cast<size_t>(probe.rank)].valid()) continue;
      look(probe);
      if (probe.route.refused_for(us)) return probe.rank;
    }
    return -1;
  }

  void look(Probe& probe) {
    if (probe.socket.valid()) {
      pollfd one{probe.socket.fd(), POLLOUT, 0};
      if (::poll(&one, 1, 0) > 0) {
        judge(probe, connect_error(probe.socket));
      } else if (now_us() >= probe.next_at) {
        judge(probe, ETIMEDOUT);
      }
      return;
    }
    if (now_us() < probe.next_at) return;
    probe.next_at = now_us() + kProbeEveryUs;
    const PeerAddress& peer = peers_[static_cast<size_t>(probe.rank)];
    int why = 0;
    if (Result<Socket> socket = start_connect(probe.route.address(), peer.port, &why); socket.ok()) {
      probe.socket = std::move(*socket);
    } else {
      judge(probe, why);
    }
  }

  static void judge(Probe& probe, int error) {
    probe.route.note(error);
    probe.socket.close();
    if (error != 0) probe.route.next();
  }

  void start(Outgoing& out) {
    if (out.done || out.socket.valid() || now_us() < out.retry_at) return;
    const PeerAddress& peer = peers_[static_cast<size_t>(out.rank)];
    int why = 0;
    Result<Socket> socket = start_connect(out.route.address(), peer.port, &why);
    note_descriptor(!socket.ok() && is_starving(why));
    if (!socket.ok()) {
      out.route.note(why);
      return postpone(out, socket.status().message());
    }
    out.socket = std::move(*socket);
    out.connecting = true;
    out.handshake.reset();
    out.deadline = Deadline::after(out.route.patience(options_.handshake_timeout));
  }

  void postpone(Outgoing& out, const std::string& why) {
    out.socket.close();
    out.handshake.reset();
    out.last_problem = out.route.several() ? out.route.address() + ": " + why : why;
    if (!out.route.next()) {
      out.retry_at = now_us();
      return;
    }
    out.retry_at = now_us() + out.pause_us;
    out.pause_us = std::min(out.pause_us * 2, kLongestPauseUs);
  }

  Status advance(Outgoing& out) {
    if (out.done || !out.socket.valid()) return {};
    if (out.deadline.expired()) {
      if (out.connecting) out.route.note(ETIMEDOUT);
      postpone(out, out.connecting ? "no answer" : "no answer within handshake_timeout");
      return {};
    }
    if (out.connecting) {
      pollfd one{out.socket.fd(), POLLOUT, 0};
      if (::poll(&one, 1, 0) <= 0) return {};
      const int error = connect_error(out.socket);
      out.route.note(error);
      if (error != 0) {
        postpone(out, error_text(error));
        return {};
      }
      out.connecting = false;
      out.deadline = Deadline::after(options_.handshake_timeout);
      const Introduction introduction{out.purpose, static_cast<uint32_t>(rank_),
                                      static_cast<uint32_t>(out.rank), static_cast<uint32_t>(peers_.size())};
      out.handshake = Handshake::client(out.socket.fd(), introduction, secret_);
    }
    out.handshake->advance();
    if (!out.handshake->finished()) return {};
    if (out.handshake->succeeded()) {
      out.done = true;
      keep(out.rank, out.purpose, std::move(out.socket));
      return {};
    }
    const Status failure = out.handshake->failure();
    if (failure.code() == Code::authentication) {
      out.distrusted = Status(Code::authentication,
                              "connecting to " + name(out.rank) + ": " + failure.message(), out.rank);
    }
    postpone(out, failure.message());
    return !out.route.several() || out.route.rounds() >= kDistrustedRounds ? out.distrusted : Status();
  }

  void welcome() {
    for (;;) {
      int why = 0;
      Socket socket = listener_.try_accept(&why);
      if (!socket.valid()) {
        if (is_starving(why)) return make_room();
        return note_descriptor(false);
      }
      if (guests_.size() >= kMaxGuests) {
        guests_.erase(guests_.begin());
        ++mesh_.strangers;
      }
      const Introduction expected{Purpose::control, 0, static_cast<uint32_t>(rank_),
                                  static_cast<uint32_t>(peers_.size())};
      const int fd = socket.fd();
      guests_.push_back(
          std::make_unique<Guest>(Guest{std::move(socket), Handshake::server(fd, expected, secret_),
                                        Deadline::after(options_.handshake_timeout)}));
    }
  }

  // No descriptor is left to take a connection with. Who is still proving itself has to make room, the oldest
  // first: a rank among them tries again.
  void make_room() {
    note_descriptor(true);
    listen_at_ = now_us() + kStarvedPauseUs;
    if (guests_.empty()) return;
    guests_.erase(guests_.begin());
    ++mesh_.strangers;
  }

  void serve() {
    for (auto& guest : guests_) {
      guest->handshake.advance();
      if (!guest->handshake.finished() && !guest->deadline.expired()) continue;
      if (guest->handshake.succeeded() && admit(*guest)) {
        guest.reset();
        continue;
      }
      // Another rank that looks whether this one still listens leaves without a word.
      const bool looked = guest->handshake.finished() && !guest->handshake.heard();
      if (!looked) ++mesh_.strangers;
      guest.reset();
    }
    guests_.erase(std::remove(guests_.begin(), guests_.end(), nullptr), guests_.end());
  }

  bool admit(Guest& guest) {
    const Introduction& who = guest.handshake.peer();
    if (who.purpose == Purpose::rendezvous) return false;
    if (who.from <= static_cast<uint32_t>(rank_) || who.from >= peers_.size()) return false;
    keep(static_cast<int>(who.from), who.purpose, std::move(guest.socket));  // a repeated attempt replaces
    return true;
  }

  // Waits for anything to happen. Returns a rank that was connected and has gone, or -1.
  int wait(Deadline deadline) {
    std::vector<pollfd> fds;
    std::vector<int> ranks;
    for (size_t q = 0; q < mesh_.control.size(); ++q) {
      if (!mesh_.control[q].valid()) continue;
      fds.push_back({mesh_.control[q].fd(), POLLRDHUP, 0});
      ranks.push_back(static_cast<int>(q));
    }
    const bool listening = now_us() >= listen_at_;
    if (listening) fds.push_back({listener_.fd(), POLLIN, 0});
    int longest = deadline.poll_ms(listening ? 100 : static_cast<int>(kStarvedPauseUs / 1000));
    for (const auto& out : outgoing_) {
      if (out.done) continue;
      if (!out.socket.valid()) {
        longest = std::min(longest, static_cast<int>(std::max<int64_t>(1, (out.retry_at - now_us()) / 1000)));
        continue;
      }
      const bool writing = out.connecting || out.handshake->wants_write();
      fds.push_back({out.socket.fd(), static_cast<short>(writing ? POLLOUT | POLLIN : POLLIN), 0});
    }
    for (const auto& guest : guests_) {
      const bool writing = guest->handshake.wants_write();
      fds.push_back({guest->socket.fd(), static_cast<short>(writing ? POLLOUT | POLLIN : POLLIN), 0});
    }
    ::poll(fds.data(), fds.size(), longest);
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (fds[i].revents != 0) return ranks[i];
    }
    return -1;
  }

  std::string name(int rank) const {
    const PeerAddress& peer = peers_[static_cast<size_t>(rank)];
    std::string text = "rank " + std::to_string(rank) + " at " + peer.address;
    for (const auto& other : peer.others) text += " or " + other;
    return text + " port " + std::to_string(peer.port);
  }

  Status too_late() {
    std::string message = "not every rank was connected within connect_timeout (" +
                          std::to_string(options_.connect_timeout) + " s):";
    int blamed = -1;
    for (const auto& out : outgoing_) {
      if (out.done || out.rank == blamed) continue;
      message += " " + name(out.rank) + " could not be reached (" + out.last_problem + ");";
      blamed = blamed < 0 ? out.rank : blamed;
    }
    for (size_t q = static_cast<size_t>(rank_) + 1; q < peers_.size(); ++q) {
      if (linked(q)) continue;
      message += " rank " + std::to_string(q) + " did not connect to this rank;";
      blamed = blamed < 0 ? static_cast<int>(q) : blamed;
    }
    message += " " + std::to_string(mesh_.strangers) +
               " connections were dropped because they did not prove the job's secret. Check that every rank "
               "started, and that the announced addresses are reachable from each host (setting address).";
    return Status(Code::rendezvous, message, blamed);
  }

  Listener& listener_;
  const int rank_;
  const std::vector<PeerAddress>& peers_;
  const std::string& secret_;
  const MeshOptions& options_;
  Mesh mesh_;
  std::vector<Outgoing> outgoing_;
  std::vector<std::unique_ptr<Guest>> guests_;
  std::vector<Probe> probes_;
  std::optional<ControlPlane> plane_;  // once this rank gives up
  int64_t starved_since_ = 0;          // since when no descriptor was left
  int64_t listen_at_ = 0;              // when to look at the listener again
};

}  // namespace

Result<Mesh> connect_mesh(Listener& listener, int rank, const std::vector<PeerAddress>& peers,
                          const std::string& secret, const MeshOptions& options, Watch* watch) {
  return Builder(listener, rank, peers, secret, options).run(watch);
}

}  // namespace ring
