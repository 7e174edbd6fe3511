// Recordings: the three formats there and back, and one clear error for whatever is none of them.
#include <algorithm>
#include <initializer_list>
#include <sstream>
#include <string>
#include <vector>

#include "catch.hpp"
#include "lab/calibrate.hpp"
#include "lab/error.hpp"
#include "lab/limits.hpp"
#include "lab/recording.hpp"

namespace weir::lab {
namespace {

// The message of the error; "" if there is none.
std::string error_of(const std::string& text) {
  try {
    parse_recording(text, "rec");
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

bool contains(const std::string& text, std::initializer_list<const char*> parts) {
  INFO(text);
  return std::all_of(parts.begin(), parts.end(),
                     [&](const char* part) { return text.find(part) != std::string::npos; });
}

std::string written(const Workload& workload, RecordingFormat format) {
  std::ostringstream out;
  write_recording(workload, format, out);
  return out.str();
}

const std::vector<Request> kTwo = {{1'612'345'678'901, 0, 1, kAnyNode}, {1'612'345'678'905, 1, 1, kAnyNode}};

TEST_CASE("the thesis' JSON, as an array and as lines", "[lab]") {
  const std::string array = R"([
    {"user_id": "deadbeef", "time": 1612345678901},
    {"time": 1612345678905, "country": {"of": ["x", {"time": 1}]}, "user_id": "cafe"}
  ])";
  const Recording recording = parse_recording(array, "rec");
  CHECK(recording.workload.name == "rec");
  CHECK(recording.workload.users == std::vector<std::string>{"deadbeef", "cafe"});
  CHECK(recording.workload.requests == kTwo);
  CHECK(!recording.was_unsorted);

  const std::string lines =
      "\n{\"user_id\": \"deadbeef\", \"time\": 1612345678901}\r\n\n{\"user_id\": \"cafe\", \"time\": 1612345678905}";
  CHECK(parse_recording(lines, "rec").workload.requests == kTwo);
  CHECK(parse_recording("\xef\xbb\xbf" + lines, "rec").workload.requests == kTwo);
  CHECK(parse_recording(R"({"user_id": 17, "time": 5})", "rec").workload.users.front() == "17");
}

TEST_CASE("CSV by its header, quoted where it must be", "[lab]") {
  CHECK(parse_recording("time_ms,user\n1612345678901,a\n1612345678905,b\n", "rec").workload.requests == kTwo);
  const Workload workload = parse_recording(
                                "user,hits,extra,node,time_ms\r\n"
                                "\"a,\"\"b\"\"\",3,x,7,10\r\n"
                                "c,,,-1,11\r\n"
                                "\"a,\"\"b\"\"\",1,,,12\r\n",
                                "rec")
                                .workload;
  CHECK(workload.users == std::vector<std::string>{"a,\"b\"", "c"});
  CHECK(workload.requests == std::vector<Request>{{10, 0, 3, 7}, {11, 1, 1, kAnyNode}, {12, 0, 1, kAnyNode}});
  CHECK(csv_field("plain") == "plain");
  CHECK(csv_field("a,\"b\"") == "\"a,\"\"b\"\"\"");
}

TEST_CASE("requests out of order are sorted, those of one time stay as they are", "[lab]") {
  const Recording recording = parse_recording("time_ms,user\n5,a\n3,b\n5,c\n3,d\n", "rec");
  CHECK(recording.was_unsorted);
  std::string order;
  for (const Request& request : recording.workload.requests) order += recording.workload.users[request.user];
  CHECK(order == "bdac");
}

TEST_CASE("what is written can be read again", "[lab]") {
  Workload workload;
  workload.name = "rec";
  workload.users = {"a", "b,\"c\"", "\xc3\xa9", "back\\slash"};
  workload.requests = {{1, 0, 1, kAnyNode}, {1, 1, 1, kAnyNode}, {2, 2, 1, kAnyNode}, {3, 3, 1, kAnyNode}};
  for (const auto format : {RecordingFormat::array, RecordingFormat::lines, RecordingFormat::csv}) {
    for (const bool more : {false, true}) {
      if (more) {
        workload.requests[1].hits = 4;
        workload.requests[2].node = 29;
      }
      const Workload again = parse_recording(written(workload, format), "rec").workload;
      CHECK(again.requests == workload.requests);
      CHECK(again.users == workload.users);
    }
  }
  CHECK(format_of("x.csv") == RecordingFormat::csv);
  CHECK(format_of("x.jsonl") == RecordingFormat::lines);
  CHECK(format_of("x.ndjson") == RecordingFormat::lines);
  CHECK(format_of("x") == RecordingFormat::array);
}

TEST_CASE("broken recordings are refused, and the place is named", "[lab]") {
  CHECK(contains(error_of(""), {"empty"}));
  CHECK(contains(error_of(" \n\t"), {"empty"}));
  CHECK(contains(error_of("hello"), {"line 1", "header"}));
  CHECK(contains(error_of("time_ms,user\n"), {"no requests"}));
  CHECK(contains(error_of("[]"), {"no requests"}));
  CHECK(contains(error_of("time_ms,user\n1,a\n2\n"), {"line 3", "1 fields"}));
  CHECK(contains(error_of("time_ms,user\n1,a\nx,a\n"), {"line 3", "time_ms"}));
  CHECK(contains(error_of("time_ms,user\n1.5,a\n"), {"line 2"}));
  CHECK(contains(error_of("time_ms,user\n1,\"a\n"), {"line 2", "quote"}));
  CHECK(contains(error_of("time_ms,user,node\n1,a,1024\n"), {"node"}));
  CHECK(contains(error_of("time_ms,user,node\n1,a,-2\n"), {"node"}));
  CHECK(contains(error_of("time_ms,user,hits\n1,a,0\n"), {"hits"}));
  CHECK(contains(error_of("time_ms,user\n-1,a\n"), {"line 2", "time"}));
  CHECK(contains(error_of("time_ms,user\n99999999999999999999,a\n"), {"whole number"}));
  CHECK(contains(error_of("time_ms,user\n4000000000001,a\n"), {"time"}));
  CHECK(contains(error_of("time_ms,user\n0,a\n4000000000000,a\n"), {"31 days"}));
  CHECK(contains(error_of("time_ms,user\n0," + std::string(kMaxUserBytes + 1, 'x')), {"user"}));

  CHECK(contains(error_of(R"([{"user_id": "a", "time": 1}, {"time": 2}])"), {"request 2"}));
  CHECK(contains(error_of(R"([{"user_id": "a"}])"), {"no time"}));
  CHECK(contains(error_of(R"([{"user_id": "a", "time": "13:47"}])"), {"\"time\""}));
  CHECK(contains(error_of(R"([{"user_id": "a", "time": 1.5}])"), {"\"time\""}));
  CHECK(contains(error_of(R"([{"user_id": "a", "time": [1]}])"), {"\"time\""}));
  CHECK(contains(error_of(R"([{"user_id": null, "time": 1}])"), {"\"user_id\""}));
  CHECK(contains(error_of(R"([{"user_id": "a", "time": 18446744073709551615}])"), {"time"}));
  CHECK(contains(error_of(R"([1, 2])"), {"not a request"}));
  CHECK(contains(error_of(R"([[{"user_id": "a", "time": 1}]])"), {"not a request"}));
  CHECK(contains(error_of(R"([{"user_id": "a", "time": 1}] x)"), {"broken JSON"}));
  CHECK(contains(error_of("{\"user_id\": \"a\", \"time\": 1}\n[]\n"), {"line 2"}));
  CHECK(contains(error_of("{\"user_id\": \"a\", \"time\": 1}\n{\"user_id\n"), {"line 2: broken JSON"}));
  CHECK(contains(error_of("{\"user_id\": \"a\", \"time\": 1, \"x\": " + std::string(1000, '[')), {"deeper"}));
}

TEST_CASE("a recording that was cut off is never taken for a whole one", "[lab]") {
  const std::string array = R"([{"user_id": "a", "time": 1}, {"user_id": "b", "time": 2}])";
  REQUIRE(error_of(array).empty());
  for (std::size_t size = 0; size < array.size(); ++size) {
    INFO(array.substr(0, size));
    CHECK(!error_of(array.substr(0, size)).empty());
  }
}

TEST_CASE("files that are not there or no files are refused by name", "[lab]") {
  for (const char* const path : {"/nonexistent/recording.json", "/"}) {
    try {
      read_recording(path);
      FAIL("it was read");
    } catch (const Error& error) {
      CHECK(contains(error.what(), {path}));
    }
  }
}

TEST_CASE("calibration: the mean of users' mean periods in windows, without pauses and limited users", "[lab]") {
  Workload workload;
  workload.users = {"even", "pauses", "limited", "few"};
  // even: a request each second: windows of 2 gaps, period 1000 ms, 3 of them.
  for (std::int64_t i = 0; i < 5; ++i) workload.requests.push_back({i * 1000, 0, 1, kAnyNode});
  // pauses: 0, 2 s, 4 s, then 60 s of nothing, 64 s: periods 2000, and 30,000, 30,000 that are discarded.
  for (const std::int64_t time : {0, 2000, 4000, 62'000, 64'000}) workload.requests.push_back({time, 1, 1, kAnyNode});
  for (std::int64_t i = 0; i < 9; ++i) workload.requests.push_back({i * 10, 2, 1, kAnyNode});
  workload.requests.push_back({70'000, 3, 1, kAnyNode});
  std::vector<std::uint8_t> admitted(workload.requests.size(), 1);
  admitted[15] = 0;
  REQUIRE(workload.requests[15].user == 2);

  CalibrateConfig config;
  config.window = 2;
  const Calibration found = calibrate(config, workload, admitted);
  CHECK(found.users == 4);
  CHECK(found.limited == 1);
  CHECK(found.looked_at == 3);
  CHECK(found.without_windows == 1);
  CHECK(found.windows == 6);
  CHECK(found.discarded == 2);
  REQUIRE(found.mean_ms.has_value());
  CHECK(*found.mean_ms == 1500);
  CHECK(found.threshold_ms == 1500);

  config.top = 1;
  CHECK(calibrate(config, workload, admitted).threshold_ms == 1000);
  config.window = 50;
  CHECK(!calibrate(config, workload, admitted).threshold_ms.has_value());
}

}  // namespace
}  // namespace weir::lab
