// thesis: the strategies by name. See thesis.hpp.
#include "lab/thesis/thesis.hpp"

#include <array>
#include <utility>

#include "lab/thesis/machines.hpp"

namespace weir::thesis {
namespace {

using lab::Options;
using lab::Place;
using Make = std::unique_ptr<Machine> (*)(const Options&, const Place&);

// Alone, with nobody to tell.
Place alone(const Place& place) {
  Place only = place;
  only.neighbours.clear();
  return only;
}

constexpr std::array<std::pair<std::string_view, Make>, 11> kStrategies{{
    {"counter", make_counter},
    {"queue",
     [](const Options& o, const Place& p) {
       return make_queue({false, false, false}, o, p);
     }},
    {"queue+linf",
     [](const Options& o, const Place& p) {
       return make_queue({false, true, false}, o, p);
     }},
    {"queue+fa",
     [](const Options& o, const Place& p) {
       return make_queue({true, false, false}, o, p);
     }},
    {"queue+fa+linf",
     [](const Options& o, const Place& p) {
       return make_queue({true, true, false}, o, p);
     }},
    {"queue+fa+proactive",
     [](const Options& o, const Place& p) {
       return make_queue({true, false, true}, o, p);
     }},
    {"sliding-log", make_sliding_log},
    {"split", make_split},
    {"split+rebalance", make_rebalance},
    {"central-counter", [](const Options& o, const Place& p) { return make_counter(o, alone(p)); }},
    {"central-queue", [](const Options& o, const Place& p) { return make_queue({}, o, alone(p)); }},
}};

}  // namespace

std::vector<std::string> names() {
  std::vector<std::string> names;
  names.reserve(kStrategies.size());
  for (const auto& [name, make_it] : kStrategies) names.emplace_back(name);
  return names;
}

std::unique_ptr<Machine> make(std::string_view strategy, const lab::Options& options, const lab::Place& place) {
  for (const auto& [name, make_it] : kStrategies) {
    if (name == strategy) return make_it(options, place);
  }
  return nullptr;
}

}  // namespace weir::thesis
