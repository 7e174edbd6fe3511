// strategy: the limiters that the lab compares, by name.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lab/common/options.hpp"
#include "weir/machine.hpp"

namespace weir::lab {

// The names that `make` knows, in the order in which help lists them.
std::vector<std::string> names();
// Null if there is no strategy of that name.
std::unique_ptr<Machine> make(std::string_view strategy, const Options& options, const Place& place);

}  // namespace weir::lab
