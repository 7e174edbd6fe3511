// beam: how a weir node on the BEAM is started for a real run.
//
// Thread safety: pure functions but for the file system.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lab/real/driver.hpp"

namespace weir::lab {

// Where things are: the folder of the compiled application (with ebin/ and priv/), and that of weir_lab_node.beam.
struct BeamPlaces {
  std::string app;
  std::string injector;
};
// Throws Error that says what to do when they are not there.
BeamPlaces find_beam(const RealConfig& real);

// Throws Error for options that only simulated nodes have.
void check_beam(const RunConfig& config);

// The command of a node; `ports[i]` is where it finds node i.
std::vector<std::string> beam_command(const RunConfig& config, const RealConfig& real, const BeamPlaces& places,
                                      const std::string& cookie, std::uint32_t self,
                                      const std::vector<std::uint16_t>& ports);

// Of the system's randomness.
std::string make_cookie();

}  // namespace weir::lab
