// report: a run as JSON, and the mean of several. The fields are described in `report.cpp` beside their names, and for
// users in doc/lab.md.
//
// Thread safety: pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#ifdef __linux__
#include "lab/real/driver.hpp"
#endif
#include "lab/simulation.hpp"
#include "lab/workload.hpp"

namespace weir::lab {

using Report = nlohmann::ordered_json;

Report report(const RunConfig& config, double refill, const std::string& workload, const Result& result);
#ifdef __linux__
// The same of real nodes, and what only they have.
Report report(const RunConfig& config, double refill, const std::string& workload, const RealResult& result);
#endif
// {"runs": [...], "mean": {...}}: of each number the mean over the runs in which it is not null; null if it always is.
// REQUIRES: at least one run.
Report report_runs(const std::vector<Report>& runs);
// For people: a line a field.
std::string as_text(const Report& report);

}  // namespace weir::lab
