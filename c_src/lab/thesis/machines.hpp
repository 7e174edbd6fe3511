// machines: how the designs are made; thesis.cpp gives them their names.
#pragma once

#include <memory>

#include "lab/common/options.hpp"
#include "weir/machine.hpp"

namespace weir::thesis {

// What the names of the queue's strategies add to it.
struct QueueDesign {
  bool frequency_analysis = false;
  bool least_informed_first = false;
  bool proactive = false;
};

std::unique_ptr<Machine> make_counter(const lab::Options& options, const lab::Place& place);
std::unique_ptr<Machine> make_queue(const QueueDesign& design, const lab::Options& options, const lab::Place& place);
std::unique_ptr<Machine> make_sliding_log(const lab::Options& options, const lab::Place& place);
std::unique_ptr<Machine> make_split(const lab::Options& options, const lab::Place& place);
std::unique_ptr<Machine> make_rebalance(const lab::Options& options, const lab::Place& place);

}  // namespace weir::thesis
