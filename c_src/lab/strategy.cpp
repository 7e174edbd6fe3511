// strategy: see strategy.hpp.
#include "lab/strategy.hpp"

#include "lab/thesis/thesis.hpp"
#include "weir/replica.hpp"

namespace weir::lab {
namespace {

std::unique_ptr<Machine> make_interval(const Options& options, const Place& place) {
  ReplicaConfig config;
  config.self = place.self;
  config.incarnation = place.incarnation;
  config.members = place.members;
  config.neighbours = place.neighbours;
  config.joining = place.incarnation > 1;
  config.seed = place.seed;
  config.start = place.start;
  config.gossip_interval = options.gossip_interval;
  config.heartbeat_interval = options.heartbeat;
  config.peer_timeout = options.peer_timeout;
  config.coalesce_most = options.coalesce;
  auto replica = std::make_unique<Replica>(config);
  ReplicatedTerms terms;
  terms.policy = options.policy;
  terms.partition = options.partition;
  terms.large_hits = options.large_hits;
  terms.flush_after = options.flush_after;
  Effects none;
  replica->put_limiter(LimiterId{0}, terms, place.start, none);
  return replica;
}

}  // namespace

std::vector<std::string> names() {
  std::vector<std::string> all = thesis::names();
  all.emplace_back("interval");
  return all;
}

std::unique_ptr<Machine> make(std::string_view strategy, const Options& options, const Place& place) {
  if (strategy == "interval") return make_interval(options, place);
  return thesis::make(strategy, options, place);
}

}  // namespace weir::lab
