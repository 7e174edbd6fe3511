#include "lab/real/node.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "lab/common/random.hpp"
#include "lab/error.hpp"

namespace weir::lab {
namespace {

constexpr Nanos kReportEvery{200'000'000};
constexpr std::size_t kPiece = 16'384;
// Datagrams that are read before requests and held frames get their turn.
constexpr int kReadMost = 256;

struct Head {
  std::uint32_t from;
  std::uint32_t frame;
  std::int64_t sent;
  std::uint32_t length;
  std::uint32_t at;
  std::uint8_t traffic;
};
constexpr std::size_t kHeadBytes = 25;

class Node {
 public:
  Node(const RunConfig& config, const NodePlace& place, Channel channel)
      : config_(config),
        place_(place),
        channel_(std::move(channel)),
        network_(config.network, config.nodes, config.seed),
        partial_(config.nodes) {
    // Each process draws for itself.
    network_.draw_from(Random::stream(machine_seed(config.seed, place.self, place.incarnation), 0x7265616c));
    for (std::uint32_t node = 0; node < config.nodes; ++node) members_.push_back({node});
    set_nonblocking(place.socket);
  }

  void run() {
    discard();
    channel_.send(Message(Tag::listening).put(std::uint16_t{0}));
    while (!channel_.closed()) {
      if (machine_ != nullptr) work();
      channel_.flush();
      wait();
    }
  }

 private:
  struct Held {
    Nanos until;
    std::uint64_t order;
    Nanos sent;
    std::uint32_t from;
    Traffic traffic;
    bool again;  // the second copy of a frame that came twice
    std::shared_ptr<const Bytes> frame;
  };
  // The one that is due first is on top of the heap.
  struct Later {
    bool operator()(const Held& a, const Held& b) const noexcept {
      return a.until != b.until ? a.until > b.until : a.order > b.order;
    }
  };
  struct Request {
    std::uint32_t index;
    Nanos due;
    KeyHash key;
    Tokens hits;
  };
  // A frame of which the pieces so far came in order.
  struct Partial {
    std::uint32_t frame = 0;
    Bytes bytes;
  };

  Nanos now() const noexcept { return place_.clock.now(); }
  // The node's own clock, which is off as the network says.
  Nanos local(Nanos time) const { return time + network_.skew(place_.self); }

  // -- the loop

  // As in simulated time: what arrived, what is due by the clock, then requests.
  void work() {
    while (!held_.empty() && held_.front().until <= now()) arrive();
    if (machine_->wake() <= local(now())) step(Tick{});
    while (!requests_.empty() && requests_.front().due <= now()) {
      const Request request = requests_.front();
      requests_.pop_front();
      step(Ask{request.index, {}, request.key, request.hits});
    }
    if (!machine_->quiet()) condition_.restless_at = now().v;
    if (now() >= report_at_) report();
    tell_answers();
  }

  void wait() {
    Nanos until = kNever;
    if (machine_ != nullptr) {
      until = report_at_;
      if (!held_.empty()) until = std::min(until, held_.front().until);
      if (!requests_.empty()) until = std::min(until, requests_.front().due);
      if (machine_->wake() != kNever) until = std::min(until, machine_->wake() - network_.skew(place_.self));
    }
    std::array<pollfd, 3> fds = {{{channel_.in(), POLLIN, 0},
                                  {place_.socket, POLLIN, 0},
                                  {channel_.waiting() ? channel_.out() : -1, POLLOUT, 0}}};
    const timespec most = until == kNever ? timespec{} : wait_until(until, now());
    if (ppoll(fds.data(), fds.size(), until == kNever ? nullptr : &most, nullptr) < 0 && errno != EINTR) {
      fail_with_errno("poll");
    }
    if (fds[0].revents != 0) listen();
    if (fds[1].revents != 0) receive();
  }

  // -- the driver

  void listen() {
    channel_.fill();
    while (const auto message = channel_.next()) {
      Unpacker body(*message);
      switch (static_cast<Tag>(body.get<std::uint8_t>())) {
        case Tag::join:
          channel_.send(Message(Tag::ready));
          break;
        case Tag::start:
          start({body.get<std::int64_t>()});
          break;
        case Tag::requests:
          take(body);
          break;
        default:
          throw Error("the driver says what can't be understood");
      }
    }
  }

  void start(Nanos zero) {
    zero_ = zero;
    const std::uint32_t self = place_.self;
    machine_ = make(config_.strategy, config_.options,
                    {{self},
                     members_,
                     network_.neighbours(self),
                     machine_seed(config_.seed, self, place_.incarnation),
                     local(now()),
                     place_.incarnation});
    if (machine_ == nullptr) throw Error(fmt::format("unknown strategy \"{}\"", config_.strategy));
    report_at_ = now() + kReportEvery;
  }

  void take(Unpacker body) {
    while (body.more()) {
      Request request{};
      request.index = body.get<std::uint32_t>();
      request.due = zero_ + Nanos{body.get<std::int64_t>()};
      request.hits = {body.get<std::uint32_t>()};
      request.key = key_of(body.text(body.get<std::uint16_t>()));
      requests_.push_back(request);
    }
    if (!body.ok()) throw Error("the driver says what can't be understood");
  }

  void tell_answers() {
    if (answered_ == 0) return;
    channel_.send(answers_);
    answers_ = Message(Tag::answers);
    answered_ = 0;
  }

  void report() {
    const weir::Held held = machine_->held();
    condition_.at = now().v;
    condition_.held_state = held.state;
    condition_.held_fixed = held.fixed;
    condition_.quiet = machine_->quiet() && std::all_of(held_.begin(), held_.end(), [](const Held& frame) {
                         return frame.traffic == Traffic::heartbeat;
                       });
    channel_.send(condition_.pack());
    condition_.delays_us.clear();
    report_at_ = now() + kReportEvery;
  }

  // -- the machine

  void step(const Event& event) {
    effects_.clear();
    const Nanos at = now();
    machine_->step(event, local(at), effects_);
    for (const Answer& answer : effects_.answers) {
      answers_.put(static_cast<std::uint32_t>(answer.ticket)).put(at.v).put(static_cast<std::uint8_t>(answer.allowed));
      if (++answered_ == 1024) tell_answers();
    }
    for (const Send& send : effects_.sends) transmit(send.to.v, effects_.frames.at(send.frame), send.traffic);
  }

  // -- frames

  void transmit(std::uint32_t to, const Bytes& frame, Traffic traffic) {
    const auto kind = static_cast<std::size_t>(traffic);
    const std::uint32_t hops = network_.hops(place_.self, to);
    condition_.bytes[kind] += hops * frame.size();
    condition_.messages[kind] += hops;
    if (traffic != Traffic::heartbeat) condition_.restless_at = now().v;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(place_.ports.at(to));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ++sent_frames_;
    const std::int64_t sent = now().v;
    for (std::size_t at = 0; at == 0 || at < frame.size(); at += kPiece) {
      const std::size_t size = std::min(kPiece, frame.size() - at);
      std::array<std::byte, kHeadBytes + kPiece> piece{};
      write(piece.data(), {place_.self, sent_frames_, sent, static_cast<std::uint32_t>(frame.size()),
                           static_cast<std::uint32_t>(at), static_cast<std::uint8_t>(traffic)});
      std::copy_n(frame.data() + at, size, piece.data() + kHeadBytes);
      // A datagram that the kernel refuses is one that got lost.
      static_cast<void>(sendto(place_.socket, piece.data(), kHeadBytes + size, 0,
                               reinterpret_cast<const sockaddr*>(&address), sizeof address));
    }
  }

  static void write(std::byte* to, const Head& head) {
    const auto put = [&to](auto value) {
      std::memcpy(to, &value, sizeof value);
      to += sizeof value;
    };
    put(head.from);
    put(head.frame);
    put(head.sent);
    put(head.length);
    put(head.at);
    put(head.traffic);
  }

  // What came for an earlier run of this node is lost.
  void discard() {
    std::byte any{};
    while (recv(place_.socket, &any, 1, 0) >= 0) continue;
  }

  void receive() {
    std::array<std::byte, kHeadBytes + kPiece> piece;
    for (int read = 0; read < kReadMost; ++read) {
      const ssize_t got = recv(place_.socket, piece.data(), piece.size(), 0);
      if (got < 0) return;
      if (machine_ == nullptr || got < static_cast<ssize_t>(kHeadBytes)) continue;
      Unpacker reader{std::span(piece).first(static_cast<std::size_t>(got))};
      Head head{};
      head.from = reader.get<std::uint32_t>();
      head.frame = reader.get<std::uint32_t>();
      head.sent = reader.get<std::int64_t>();
      head.length = reader.get<std::uint32_t>();
      head.at = reader.get<std::uint32_t>();
      head.traffic = reader.get<std::uint8_t>();
      put_together(head, std::span(piece).subspan(kHeadBytes, static_cast<std::size_t>(got) - kHeadBytes));
    }
  }

  // Datagrams of one sender come in order on loopback; where one is missing, the frame is.
  void put_together(const Head& head, std::span<const std::byte> bytes) {
    if (head.from >= config_.nodes || head.from == place_.self || head.traffic > 2 || head.length > kFrameBytesMax)
      return;
    Partial& partial = partial_[head.from];
    if (head.at == 0) partial = {head.frame, {}};
    if (partial.frame != head.frame || partial.bytes.size() != head.at) return;
    partial.bytes.insert(partial.bytes.end(), bytes.begin(), bytes.end());
    if (partial.bytes.size() != head.length) return;
    const auto frame = std::make_shared<const Bytes>(std::exchange(partial.bytes, {}));
    const Nanos sent{head.sent};
    const Network::Fate fate = network_.send(head.from, place_.self, sent - zero_);
    for (std::uint32_t copy = 0; copy < fate.copies && held_.size() < kHeldMax; ++copy) {
      held_.push_back(
          {sent + fate.delay[copy], ++order_, sent, head.from, static_cast<Traffic>(head.traffic), copy > 0, frame});
      std::push_heap(held_.begin(), held_.end(), Later());
    }
  }

  void arrive() {
    std::pop_heap(held_.begin(), held_.end(), Later());
    const Held held = std::move(held_.back());
    held_.pop_back();
    if (network_.cut(held.from, place_.self, held.until - zero_)) return;
    const Nanos at = now();
    if (!held.again) condition_.received += network_.hops(held.from, place_.self);
    if (held.traffic != Traffic::heartbeat) condition_.restless_at = at.v;
    if (condition_.delays_us.size() < kDelaysMax) {
      condition_.delays_us.push_back(static_cast<std::uint32_t>(std::max<std::int64_t>(0, (at - held.sent).v / 1000)));
    }
    step(Arrival{{held.from}, *held.frame});
  }

  const RunConfig& config_;
  const NodePlace& place_;
  Channel channel_;
  Network network_;
  std::vector<NodeId> members_;
  std::unique_ptr<Machine> machine_;  // null until the start
  Nanos zero_;
  Effects effects_;

  std::deque<Request> requests_;  // in order; the driver hands out a moment's worth
  Message answers_{Tag::answers};
  std::size_t answered_ = 0;

  std::vector<Partial> partial_;
  std::vector<Held> held_;  // a heap
  std::uint64_t order_ = 0;
  std::uint32_t sent_frames_ = 0;

  Condition condition_;
  Nanos report_at_ = kNever;
};

}  // namespace

std::uint64_t machine_seed(std::uint64_t seed, std::uint32_t node, std::uint32_t incarnation) noexcept {
  return mix(mix(seed, 0x6d616368696e6573), (std::uint64_t{incarnation} << 32U) | node);
}

void run_node(const RunConfig& config, const NodePlace& place, Channel channel) {
  Node(config, place, std::move(channel)).run();
}

}  // namespace weir::lab
