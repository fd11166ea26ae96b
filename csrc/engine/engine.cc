#include "engine/engine.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <system_error>
#include <utility>

namespace ring {
namespace {

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", seconds);
  return text;
}

std::string this_size(const Operation& operation) {
  return operation.descriptor.title() + " (" + std::to_string(operation.bytes) + " bytes)";
}

Status own_trouble(int rank, const std::exception& error) {
  return Status(Code::aborted, "rank " + std::to_string(rank) + " could not go on: " + error.what(), rank);
}

constexpr double kCulpritPatience = 0.3;  // seconds to ask the others whom they wait for

}  // namespace

Result<std::unique_ptr<Engine>> Engine::connect(Listener listener, int rank,
                                                const std::vector<PeerAddress>& peers,
                                                const std::string& secret, const Options& options,
                                                const Lookout::Interrupt& interrupt) {
  const int size = static_cast<int>(peers.size());
  if (size < 1 || rank < 0 || rank >= size) {
    return Status(Code::config, "rank " + std::to_string(rank) + " of " + std::to_string(size) +
                                    " ranks is not possible: rank must be from 0 to size - 1");
  }
  if (secret.empty())
    return Status(Code::config, "the job's secret is empty; refusing to connect without one");
  std::unique_ptr<Engine> engine(new Engine(options));
  const std::lock_guard<std::mutex> lock(engine->progress_);
  engine->lookout_.set_interrupt(&interrupt);
  Result<std::unique_ptr<Fabric>> fabric =
      Fabric::connect(std::move(listener), rank, peers, secret, options, engine->lookout_);
  engine->lookout_.set_interrupt(nullptr);
  if (!fabric.ok()) {
    engine->closed_ = true;
    return fabric.status();
  }
  engine->fabric_ = std::move(*fabric);
  Fabric& made = *engine->fabric_;
  engine->topology_ = made.topology();
  engine->transport_ = made.transport();
  engine->strangers_ = made.strangers();
  engine->arena_ = made.arena();
  engine->courier_ = std::make_unique<Courier>(rank, made.take_messages(),
                                               [it = engine.get()](int q) { return it->look(q); });
  engine->agreement_ = std::make_unique<Agreement>(made.exchange(), made.control(), engine->lookout_, rank);
  engine->executor_ =
      std::make_unique<Executor>(made, engine->lookout_, static_cast<size_t>(options.fusion_bytes),
                                 engine->statistics_, engine->stalls_);
  if (options.autotune && size > 1) {
    const Choice largest{static_cast<size_t>(options.fusion_bytes),
                         static_cast<size_t>(options.segment_bytes)};
    auto tuning =
        std::make_unique<Tuning>(largest, [&made](size_t bytes) { made.group().set_segment(bytes); });
    if (rank == 0 && !options.autotune_log.empty()) {
      if (Status status = tuning->open_log(options.autotune_log); !status.ok()) return status;
    }
    engine->executor_->tune(std::move(tuning));
  }
  engine->lookout_.count_waits(size);
  engine->stalls_.attach(&made.exchange(), &made.control());
  engine->lookout_.inspect(&engine->stalls_);
  return engine;
}

Engine::~Engine() { close(); }

Status Engine::check_request(const Request& request) const {
  const bool rooted =
      request.kind == Kind::broadcast || request.kind == Kind::gather || request.kind == Kind::scatter;
  if (rooted && (request.root < 0 || request.root >= topology_.size)) {
    return Status(Code::config, "root " + std::to_string(request.root) +
                                    " is not a rank: the world size is " + std::to_string(topology_.size));
  }
  if (request.kind == Kind::allreduce || request.kind == Kind::reducescatter) {
    RING_TRY(check_reduction(request.dtype, request.op, request.prescale, request.postscale));
    if (request.kind == Kind::reducescatter && request.op == ReduceOp::adasum)
      return Status(Code::config, "adasum is an allreduce; there is no reducescatter of it");
  }
  const bool needs_rows = request.kind == Kind::reducescatter || request.kind == Kind::allgather ||
                          request.kind == Kind::gather || request.kind == Kind::alltoall ||
                          request.kind == Kind::scatter;
  if (needs_rows && !request.tensors.empty() && request.tensors[0].shape.empty()) {
    return Status(Code::config,
                  "a tensor without dimensions cannot be gathered or scattered along dimension 0; "
                  "reshape it to (1,)");
  }
  return check_splits(request);
}

Status Engine::check_splits(const Request& request) const {
  if (request.tensors.empty()) return {};  // a scatter's receiver
  const size_t n = static_cast<size_t>(topology_.size);
  const bool needed = request.kind == Kind::scatter;
  if (request.splits.empty() && !needed) {
    if (request.kind != Kind::alltoall || request.tensors[0].shape[0] % topology_.size == 0) return {};
    return Status(Code::config, "an alltoall without splits needs as many rows for each of the " +
                                    std::to_string(n) + " ranks; " +
                                    std::to_string(request.tensors[0].shape[0]) + " rows cannot be divided");
  }
  int64_t total = 0;
  bool negative = false;
  for (const int64_t rows : request.splits) {
    negative = negative || rows < 0;
    negative = __builtin_add_overflow(total, rows, &total) || negative;
  }
  if (request.splits.size() != n || negative || total != request.tensors[0].shape[0]) {
    return Status(Code::config, "splits must be " + std::to_string(n) +
                                    " numbers of rows, one for each rank, that make up the " +
                                    std::to_string(request.tensors[0].shape[0]) +
                                    " rows of the tensor; found " + std::to_string(request.splits.size()) +
                                    " with the sum " + std::to_string(total) +
                                    (negative ? ", some of them negative or too large" : ""));
  }
  return {};
}

double Engine::timeout_of(const Request& request) const {
  return request.timeout >= 0 ? request.timeout : options_.collective_timeout;
}

Result<OperationPtr> Engine::accept(Request request, bool wake) {
  if (Status status = check_request(request); !status.ok()) return status;
  const double timeout = timeout_of(request);
  auto operation = std::make_shared<Operation>(std::move(request), Deadline::after(timeout));
  if (Status status = queue_.push(operation, wake); !status.ok()) return status;
  return operation;
}

Result<OperationPtr> Engine::submit(Request request) {
  RING_TRY(ensure_thread());  // first: once an operation is pending its memory is in use
  return accept(std::move(request), true);
}

Status Engine::run_now(Request request, const Lookout::Interrupt& interrupt) {
  if (Operation::in_callback()) {
    return Status(Code::config,
                  "a collective cannot be waited for inside a done-callback, which runs on the thread that "
                  "drives the ring; start it asynchronously instead");
  }
  Result<OperationPtr> accepted = accept(std::move(request), false);
  if (!accepted.ok()) return accepted.status();
  const OperationPtr operation = *accepted;
  bool raised = false;
  const Lookout::Interrupt ask = [&] { return raised = raised || interrupt(); };
  if (std::unique_lock<std::mutex> lock(progress_, std::try_to_lock); lock.owns_lock()) {
    lookout_.set_interrupt(&ask);
    drive(operation.get());
    lookout_.set_interrupt(nullptr);
    lock.unlock();
    if (!queue_.empty()) hand_over();  // somebody else's operations
  } else if (ensure_thread().ok()) {
    queue_.wake();
  } else {  // no thread can be had: this one waits for its turn
    lock.lock();
    lookout_.set_interrupt(&ask);
    drive(operation.get());
    lookout_.set_interrupt(nullptr);
  }
  while (!operation->wait(Deadline::after(0.1))) {
    if (ask()) abort("interrupted by a signal during " + operation->descriptor.title());
  }
  if (raised) return Status(Code::interrupted, "interrupted by a signal");
  return operation->status();
}

Status Engine::run_express(const Express& express, const Lookout::Interrupt& interrupt) {
  std::unique_lock<std::mutex> lock(progress_, std::defer_lock);
  const bool plain = express.bytes > 0 && express.op != ReduceOp::adasum && !Operation::in_callback();
  if (!plain || !lock.try_lock()) return run_now(express.request(), interrupt);
  std::optional<uint64_t> number;
  if (failure_.ok() && !closed_ && topology_.size > 1 && !executor_->timeline().on()) {
    RING_TRY(check_reduction(express.dtype, express.op, express.prescale, express.postscale));
    number = queue_.claim(Kind::allreduce, express.name);
  }
  if (!number) {
    lock.unlock();
    return run_now(express.request(), interrupt);
  }
  bool raised = false;
  const Lookout::Interrupt ask = [&] { return raised = raised || interrupt(); };
  lookout_.set_interrupt(&ask);
  const OperationPtr operation = take_short_road(express, *number);
  lookout_.set_interrupt(nullptr);
  lock.unlock();
  if (!queue_.empty()) hand_over();
  if (raised) return Status(Code::interrupted, "interrupted by a signal");
  return operation == nullptr ? Status() : operation->status();
}

OperationPtr Engine::take_short_road(const Express& express, uint64_t number) {
  const Deadline deadline =
      Deadline::after(express.timeout >= 0 ? express.timeout : options_.collective_timeout);
  const int64_t begun = now_us();
  const Began began{begun, lookout_.waited_us(), begun};
  // As an ordinary operation: for those who look on while it waits too long, and for the general road.
  const auto ordinary = [&] {
    auto operation = std::make_shared<Operation>(express.request(), deadline, begun);
    describe(*operation, number);
    return operation;
  };
  const StallInspector::Describe told = ordinary;
  bool alike = false;
  Status status;
  try {
    Statistics::add(statistics_.rounds, 1);
    stalls_.agreeing(told);
    status = agreement_->show(express.hash(number), express.in, express.bytes, deadline, &alike);
    if (status.ok() && alike) {
      stalls_.moving(told);
      const int64_t start = now_us();
      status = executor_->run(express, agreement_->incoming(), began, deadline);
      if (status.ok()) {
        Statistics::add(statistics_.busy_us, static_cast<uint64_t>(now_us() - start));
        Statistics::add(statistics_.operations, 1);
        Statistics::add(statistics_.bytes, express.bytes);
        stalls_.idle();
        queue_.release();
        return nullptr;
      }
    }
  } catch (const std::exception& error) {
    status = own_trouble(topology_.rank, error);
  }
  stalls_.idle();
  const OperationPtr operation = ordinary();
  queue_.replace(operation);
  if (!status.ok()) fail(std::move(status), operation);
  drive(operation.get(), true);
  return operation;
}

void Engine::hand_over() {
  if (ensure_thread().ok()) queue_.wake();
}

Status Engine::start(const MessagePtr& message) {
  if (message->peer < 0 || message->peer >= topology_.size) {
    return Status(Code::config, message->title() + ": " + std::to_string(message->peer) +
                                    " is not a rank: the world size is " + std::to_string(topology_.size));
  }
  return courier_->start(message);
}

Status Engine::look(int peer) {
  const std::unique_lock<std::mutex> lock(progress_, std::try_to_lock);
  if (!lock.owns_lock()) return {};  // whoever drives learns it, and fail() tells the courier
  if (!failure_.ok()) return failure_;
  if (closed_ || fabric_ == nullptr) return {};
  Status status = peer < 0 ? lookout_.check_stream(-1) : lookout_.check(peer);
  if (!fabric_->control().failure().ok()) record(fabric_->control().failure(), false);
  return status;
}

Status Engine::ensure_thread() {
  if (started_.load(std::memory_order_acquire)) return {};
  const std::lock_guard<std::mutex> lock(thread_mutex_);
  if (started_.load(std::memory_order_relaxed)) return {};
  try {
    thread_ = std::thread([this] { thread_main(); });
  } catch (const std::system_error& error) {
    return Status(Code::aborted,
                  std::string("the thread that drives asynchronous operations cannot be started: ") +
                      error.code().message() + "; raise the limit of processes (ulimit -u)",
                  topology_.rank);
  }
  started_.store(true, std::memory_order_release);
  return {};
}

void Engine::thread_main() {
  while (queue_.wait_for_work()) {
    const std::lock_guard<std::mutex> lock(progress_);
    Statistics::add(statistics_.wakeups, 1);
    drive(nullptr);
  }
}

void Engine::drive(const Operation* until, bool shown) {
  std::vector<OperationPtr> pending;
  while (until == nullptr || !until->done()) {
    const uint64_t version = queue_.snapshot(&pending);
    if (pending.empty()) return;
    OperationPtr blamed = pending[0];
    Status status = failure_;
    if (status.ok()) {
      try {
        status = round(pending, version, std::exchange(shown, false), &blamed);
      } catch (const std::exception& error) {  // out of memory, most likely; this thread must not die of it
        status = own_trouble(topology_.rank, error);
      }
    }
    if (!status.ok()) fail(std::move(status), blamed);
  }
}

Status Engine::round(const std::vector<OperationPtr>& pending, uint64_t version, bool shown,
                     OperationPtr* blamed) {
  Deadline deadline = pending[0]->deadline;
  for (const auto& one : pending) {
    if (one->deadline < deadline) {
      deadline = one->deadline;
      *blamed = one;
    }
  }
  // A rank that has joined waits as long as the others go on: its time starts anew with every round.
  if ((*blamed)->request.kind == Kind::join) deadline = Deadline::after(timeout_of((*blamed)->request));
  Decision decision;
  const Began began{now_us(), lookout_.waited_us(), now_us()};
  const int64_t begun_ns = executor_->timeline().on() ? now_ns() : 0;
  stalls_.agreeing(pending);
  if (shown) {
    RING_TRY(agreement_->reconsider(pending, deadline, &decision));
  } else {
    Statistics::add(statistics_.rounds, 1);
    RING_TRY(agreement_->decide(pending, deadline, &decision));
  }
  for (const Descriptor& one : decision.absent) queue_.count_absent(one);
  if (decision.compared) stalls_.different(std::move(decision.lonely), agreement_->stuck_story());
  for (auto& [operation, status] : decision.mismatched) end(operation, status);
  stalls_.idle();
  if (decision.stuck) return wait_for_news(pending, version, deadline);
  if (decision.run.empty()) return {};
  if (begun_ns > 0) record_agreement(executor_->timeline(), pending, decision.run, begun_ns, now_ns());
  const int64_t start = now_us();
  Status status = executor_->run(
      decision, agreement_->incoming(), began, [this](const OperationPtr& one) { end(one, {}); }, blamed);
  Statistics::add(statistics_.busy_us, static_cast<uint64_t>(now_us() - start));
  stalls_.idle();
  if (executor_->timeline().on()) executor_->timeline().breathe();
  return status;
}

// Nothing is common to all ranks. A new round begins when this rank has something new, or another one has.
Status Engine::wait_for_news(const std::vector<OperationPtr>& pending, uint64_t version, Deadline deadline) {
  (void)pending;
  while (queue_.version() == version && !fabric_->exchange().peer_ahead()) {
    RING_TRY(lookout_.check(-1));
    if (deadline.expired()) return Status(Code::timeout, "deadline passed");
    queue_.wait_newer(version, 1);
  }
  return {};
}

void Engine::end(const OperationPtr& operation, Status status) {
  if (status.ok()) {
    Statistics::add(statistics_.operations, 1);
    Statistics::add(statistics_.bytes, operation->bytes);
  }
  queue_.remove(operation);
  operation->finish(std::move(status));
}

Status Engine::explain_timeout(const Status& status, const Operation& operation) {
  int culprit = status.rank();
  if (culprit >= 0) culprit = fabric_->control().find_culprit(culprit, kCulpritPatience);
  if (!fabric_->control().failure().ok()) return fabric_->control().failure();
  std::string message;
  if (stalls_.aborted()) {
    message = "waited " + seconds_text(options_.stall_abort_seconds) + " (stall_abort_seconds) ";
  } else {
    message = "waited " + seconds_text(timeout_of(operation.request)) + " (collective_timeout) ";
  }
  if (culprit >= 0) {
    message += "for rank " + std::to_string(culprit) + ", which did not take part";
  } else {
    message += "but ranks wait for different operations: " + agreement_->stuck_story();
  }
  return Status(Code::timeout, message, culprit);
}

void Engine::fail(Status status, const OperationPtr& blamed) {
  if (failure_.ok()) {
    if (status.code() == Code::timeout) status = explain_timeout(status, *blamed);
    stalls_.clear();
    if (status.operation().empty()) status = status.with(status.message(), blamed->descriptor.title());
    // What is this rank's own doing is an abort to everybody else, and to this rank's other operations.
    const bool own = status.code() == Code::interrupted || status.code() == Code::closed ||
                     (status.code() == Code::aborted && status.rank() == topology_.rank);
    if (own) status = Status(Code::aborted, status.message(), topology_.rank, status.operation());
    record(status, own);
  }
  std::vector<OperationPtr> pending;
  queue_.snapshot(&pending);
  for (const auto& one : pending) {
    const std::string title = one->descriptor.title();
    end(one, status.with(this_size(*one) + ": " + status.message(), title));
  }
}

// The first failure: kept, told to the other ranks if they may not know it, and to whatever comes later.
void Engine::record(const Status& failure, bool own) {
  failure_ = failure;
  ControlPlane& control = fabric_->control();
  if (own || control.failure().ok() || control.discovered()) tell(failure);
  const std::string since = failure.operation().empty() ? "" : " since " + failure.operation() + " failed";
  const Status later(failure.code(),
                     "the communicator cannot be used any more" + since + ": " + failure.message(),
                     failure.rank());
  queue_.shut(later);
  retire_arena(later);
  courier_->fail(later);
}

void Engine::tell(const Status& failure) {
  fabric_->control().send_abort(failure);
  told_ = true;
}

void Engine::abort(const std::string& reason) {
  const Status why(Code::aborted, reason, topology_.rank, "abort");
  queue_.shut(Status(Code::aborted, "this rank gave up: " + reason, topology_.rank));
  lookout_.stop(why);
  const std::lock_guard<std::mutex> lock(progress_);
  if (closed_ || !failure_.ok()) return;
  failure_ = why;
  tell(why);
  const Status later(Code::aborted, "this rank gave up: " + reason, topology_.rank);
  retire_arena(later);
  courier_->fail(later);
  std::vector<OperationPtr> pending;
  queue_.snapshot(&pending);
  for (const auto& one : pending) {
    end(one, why.with(this_size(*one) + ": this rank gave up: " + reason, one->descriptor.title()));
  }
}

void Engine::close() {
  const Status closed(Code::closed, "the communicator is closed");
  queue_.shut(closed);
  retire_arena(closed);
  const Deadline deadline = Deadline::after(options_.close_timeout);
  const bool drained = queue_.wait_empty(deadline);
  if (!drained) {
    lookout_.stop(Status(Code::closed, "rank " + std::to_string(topology_.rank) +
                                           " closed its communicator while operations were pending"));
  }
  queue_.stop();
  {
    const std::lock_guard<std::mutex> lock(thread_mutex_);
    if (thread_.joinable()) thread_.join();
  }
  if (courier_ != nullptr) {
    bool in_good_order;
    {
      const std::lock_guard<std::mutex> lock(progress_);
      in_good_order = failure_.ok();
      // Who sees this rank's connections end has to know why, also if it has not heard of the failure yet.
      if (!in_good_order && !closed_ && fabric_ != nullptr && !told_) tell(failure_);
    }
    courier_->close(Deadline::after(options_.close_timeout), in_good_order);
  }
  const std::lock_guard<std::mutex> lock(progress_);
  if (closed_ || fabric_ == nullptr) return;
  closed_ = true;
  std::vector<OperationPtr> pending;
  queue_.snapshot(&pending);
  if (!pending.empty()) fail(Status(Code::closed, "the communicator was closed"), pending[0]);
  if (failure_.ok()) {
    const Deadline farewell = Deadline::after(options_.close_timeout);
    fabric_->control().send_goodbye(farewell);
    fabric_->drain_data(farewell);
  }
  lookout_.attach(nullptr);
  stop_timeline();
  fabric_->close();
  const std::lock_guard<std::mutex> arena_lock(arena_mutex_);
  arena_ = nullptr;  // its blocks live on
}

Result<std::shared_ptr<std::byte>> Engine::shared_memory(size_t bytes) {
  std::shared_ptr<Arena> arena;
  {
    const std::lock_guard<std::mutex> lock(arena_mutex_);
    if (!retired_.ok()) return retired_;
    arena = arena_;
  }
  if (arena == nullptr || bytes == 0) return std::shared_ptr<std::byte>();
  Result<std::byte*> taken = arena->take(bytes);
  if (!taken.ok()) return taken.status();
  return std::shared_ptr<std::byte>(*taken, [arena](std::byte* data) { arena->give_back(data); });
}

void Engine::retire_arena(const Status& why) {
  const std::lock_guard<std::mutex> lock(arena_mutex_);
  if (retired_.ok()) retired_ = why;
  if (arena_ != nullptr) arena_->retire(why);
}

}  // namespace ring
