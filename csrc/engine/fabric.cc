#include "engine/fabric.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include "collective/self_group.h"
#include "collective/shm_exchange.h"
#include "collective/shm_group.h"
#include "collective/tcp_exchange.h"
#include "collective/tcp_group.h"
#include "collective/two_level.h"

namespace ring {
namespace {

constexpr const char* kProtocol = "spark_ring protocol 1";

std::string settings_text(const Options& options) {
  return std::string(kProtocol) + ", transport " + options.transport + ", segment_bytes " +
         std::to_string(options.segment_bytes) + ", fusion_bytes " + std::to_string(options.fusion_bytes) +
         ", arena_bytes " + std::to_string(options.arena_bytes) + (options.autotune ? ", autotune" : "");
}

size_t segment_size(int local_size, const void* context) {
  const auto* options = static_cast<const Options*>(context);
  return ShmLayout(local_size, static_cast<size_t>(options->segment_bytes)).total_bytes();
}

}  // namespace

Result<std::unique_ptr<Fabric>> Fabric::connect(Listener listener, int rank,
                                                const std::vector<PeerAddress>& peers,
                                                const std::string& secret, const Options& options,
                                                Lookout& lookout) {
  auto fabric = std::make_unique<Fabric>();
  const Deadline deadline = Deadline::after(options.connect_timeout);
  const MeshOptions mesh_options{options.connect_timeout, options.handshake_timeout,
                                 options.socket_buffer_bytes, options.silence_timeout};
  Result<Mesh> mesh = connect_mesh(listener, rank, peers, secret, mesh_options, &lookout);
  if (!mesh.ok()) return mesh.status();
  listener.close();
  const WaitPolicy guess = WaitPolicy::choose(static_cast<int>(peers.size()), options.spin_microseconds);
  fabric->strangers_ = mesh->strangers;
  fabric->data_ = std::move(mesh->data);
  fabric->messages_ = std::move(mesh->messages);
  fabric->control_ = std::make_unique<ControlPlane>(rank, std::move(mesh->control), guess);
  lookout.attach(fabric->control_.get());

  LocalityRequest request;
  request.transport = options.transport;
  request.host_id = peers[static_cast<size_t>(rank)].host_id;
  request.settings = settings_text(options);
  request.segment_bytes = segment_size;
  request.context = &options;
  request.arena_bytes = static_cast<size_t>(options.arena_bytes);
  Result<Locality> locality = agree_on_locality(*fabric->control_, request, deadline, &lookout);
  if (!locality.ok()) {
    const bool own = locality.status().code() == Code::interrupted;
    fabric->control_->send_abort(
        own ? Status(Code::aborted, "it was interrupted while ranks agreed on their hosts", rank)
            : locality.status());
    lookout.attach(nullptr);
    return locality.status();
  }
  const WaitPolicy policy = WaitPolicy::choose(locality->topology.local_size, options.spin_microseconds);
  fabric->build(std::move(*locality), options, policy, lookout);
  return fabric;
}

void Fabric::build(Locality locality, const Options& options, WaitPolicy policy, Lookout& lookout) {
  topology_ = locality.topology;
  segment_ = std::make_shared<const SharedSegment>(std::move(locality.segment));
  const auto segment_bytes = static_cast<size_t>(options.segment_bytes);
  const Topology& data = locality.data;
  // Whether a tensor is fused, or comes along with the exchange, depends on timing. So neither takes the
  // ring.
  const size_t ring_bytes =
      std::max(static_cast<size_t>(options.fusion_bytes), TcpExchange::payload_limit_of(topology_.size));
  const TcpTools tools{segment_bytes, ring_bytes, policy, &lookout};
  std::unique_ptr<ShmGroup> local;
  if (data.local_size > 1) {
    const ShmLayout layout(data.local_size, segment_bytes);
    const auto each = static_cast<size_t>(options.arena_bytes);
    if (segment_->spare() > 0) arena_ = std::make_shared<Arena>(segment_, each, data.local_rank);
    local = std::make_unique<ShmGroup>(segment_->data(), layout, data.local(), data.local_rank, policy,
                                       lookout, arena_.get());
  }
  if (topology_.size == 1) {
    transport_ = "self";
    group_ = std::make_unique<SelfGroup>();
  } else if (data.hosts.size() == 1) {
    transport_ = "shm";
    const ShmLayout layout(data.local_size, segment_bytes);
    exchange_ = std::make_unique<ShmExchange>(segment_->data(), layout, data.local(), data.local_rank, policy,
                                              lookout);
    group_ = std::move(local);
  } else if (locality.any_shared) {
    transport_ = "shm+tcp";
    group_ = std::make_unique<TwoLevelGroup>(data.hosts, topology_.rank, std::move(local), data_, tools);
  } else {
    transport_ = "tcp";
    std::vector<int> everybody(static_cast<size_t>(topology_.size));
    std::iota(everybody.begin(), everybody.end(), 0);
    group_ = std::make_unique<TcpGroup>(data_, everybody, topology_.rank, tools);
  }
  if (exchange_ == nullptr) exchange_ = std::make_unique<TcpExchange>(*control_, lookout);
}

void Fabric::drain_data(Deadline deadline) {
  auto unsent = [this] {
    for (const auto& socket : data_) {
      if (socket.valid() && socket.unsent_bytes() > 0) return true;
    }
    return false;
  };
  // Usually the last acknowledgement is only microseconds away, and a cycle of connect and close is short.
  std::chrono::microseconds pause{20};
  while (unsent() && !deadline.expired()) {
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::microseconds{1000});
  }
}

void Fabric::close() {
  control_->close();
  for (auto& socket : data_) socket.close();
  arena_ = nullptr;
  segment_ = nullptr;
}

}  // namespace ring
