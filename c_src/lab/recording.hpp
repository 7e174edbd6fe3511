// recording: requests as files. Three formats, told apart by their first character:
//
//   [   the thesis' JSON   [{"user_id": "deadbeef", "time": 1612345678901}, ...]
//   {   the same as lines  {"user_id": "deadbeef", "time": 1612345678901}
//   else CSV, by its header: time_ms,user[,node][,hits] in any order, further columns are passed over; fields may be
//       in double quotes (a quote inside is doubled)
//
// "time" is Unix milliseconds, "user_id" any string (or whole number). JSON too may hold "node" and "hits"; a node of
// -1 or an empty field is "any". Requests that are not in the order of their times are sorted.
//
// Bytes from outside: everything is checked against limits.hpp, and whatever is wrong is one Error that names the line
// (or, in an array, the request). Thread safety: pure functions. Complexity: linear, n log n when unsorted. Memory: the
// text and 24 bytes a request.
#pragma once

#include <iosfwd>
#include <string>
#include <string_view>

#include "lab/workload.hpp"

namespace weir::lab {

struct Recording {
  Workload workload;
  bool was_unsorted = false;
};

// Throws Error. The workload's name is `name`.
Recording parse_recording(std::string_view text, const std::string& name);
// Throws Error: unreadable, too large, or broken.
Recording read_recording(const std::string& path);

enum class RecordingFormat : std::uint8_t { array, lines, csv };
// By the path's ending: .csv, .jsonl and .ndjson (lines), else an array.
RecordingFormat format_of(std::string_view path) noexcept;
void write_recording(const Workload& workload, RecordingFormat format, std::ostream& out);

// A field of CSV, in quotes when it needs them.
std::string csv_field(std::string_view text);

}  // namespace weir::lab
