#include "lab/recording.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <unordered_map>
#include <vector>

#include "lab/error.hpp"
#include "lab/limits.hpp"

namespace weir::lab {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxDepth = 64;

// One request as it was read; what is not there is nullopt.
struct Fields {
  std::optional<std::string> user;
  std::optional<std::int64_t> time_ms;
  std::optional<std::int64_t> node;
  std::optional<std::int64_t> hits;
};

// Collects requests, and refuses what can't be one. `where` names the place: "line 7".
class Builder {
 public:
  void add(const Fields& fields, const std::string& where) {
    if (!fields.user) throw Error(fmt::format("{}: there is no user", where));
    if (!fields.time_ms) throw Error(fmt::format("{}: there is no time", where));
    if (fields.user->size() > kMaxUserBytes) {
      throw Error(fmt::format("{}: a user of more than {} bytes", where, kMaxUserBytes));
    }
    if (*fields.time_ms < 0 || *fields.time_ms > kMaxTimeMs) {
      throw Error(fmt::format("{}: the time must be Unix milliseconds from 0 to {}", where, kMaxTimeMs));
    }
    const std::int64_t node = fields.node.value_or(kAnyNode);
    if (node < kAnyNode || node >= kMaxNodes) {
      throw Error(fmt::format("{}: the node must be from 0 to {}", where, kMaxNodes - 1));
    }
    const std::int64_t hits = fields.hits.value_or(1);
    if (hits < 1 || hits > kMaxCapacity) throw Error(fmt::format("{}: hits must be from 1 to {}", where, kMaxCapacity));
    if (workload_.requests.size() >= kMaxRequests) throw Error(fmt::format("more than {} requests", kMaxRequests));
    workload_.requests.push_back({*fields.time_ms, user(*fields.user, where), static_cast<std::uint32_t>(hits),
                                  static_cast<std::int32_t>(node)});
  }

  Recording finish(const std::string& name) && {
    if (workload_.requests.empty()) throw Error("it holds no requests");
    Recording recording{std::move(workload_), false};
    recording.workload.name = name;
    recording.was_unsorted = sort_by_time(recording.workload.requests);
    const auto& requests = recording.workload.requests;
    if (requests.back().time_ms - requests.front().time_ms > kMaxDurationMs) {
      throw Error(fmt::format("it spans more than {} days", kMaxDurationMs / 86'400'000));
    }
    return recording;
  }

 private:
  std::uint32_t user(const std::string& name, const std::string& where) {
    const auto [found, is_new] = users_.try_emplace(name, static_cast<std::uint32_t>(workload_.users.size()));
    if (is_new) {
      if (workload_.users.size() >= kMaxUsers) throw Error(fmt::format("{}: more than {} users", where, kMaxUsers));
      workload_.users.push_back(name);
    }
    return found->second;
  }

  Workload workload_;
  std::unordered_map<std::string, std::uint32_t> users_;
};

// The requests of JSON as the parser finds them: objects at `depth` (1: the text is one, 2: it is an array of them).
// What lies deeper is passed over.
class JsonRequests : public nlohmann::json_sax<Json> {
 public:
  JsonRequests(Builder& builder, std::size_t depth, std::string line)
      : builder_(builder), depth_(depth), line_(std::move(line)) {}

  bool null() override { return value(); }
  bool boolean(bool) override { return value(); }
  bool number_integer(number_integer_t number) override { return integer(number); }
  bool number_unsigned(number_unsigned_t number) override {
    constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    return integer(static_cast<std::int64_t>(std::min(number, kMost)));
  }
  bool number_float(number_float_t, const string_t&) override { return value(); }
  bool binary(binary_t&) override { return value(); }
  bool string(string_t& text) override {
    if (here() && key_ == "user_id") {
      fields_.user = text;
      return true;
    }
    return value();
  }
  bool start_object(std::size_t) override {
    open(false);
    if (open_ == depth_) {
      fields_ = {};
      ++count_;
    }
    return true;
  }
  bool end_object() override {
    if (open_-- == depth_) builder_.add(fields_, where());
    return true;
  }
  bool start_array(std::size_t) override {
    open(true);
    return true;
  }
  bool end_array() override {
    --open_;
    return true;
  }
  bool key(string_t& name) override {
    if (here()) key_ = name;
    return true;
  }
  bool parse_error(std::size_t at, const std::string&, const Json::exception&) override {
    throw Error(line_.empty() ? fmt::format("request {} or after it: broken JSON at byte {}", count_, at)
                              : fmt::format("{}: broken JSON at byte {}", line_, at));
  }

 private:
  bool here() const noexcept { return open_ == depth_; }
  std::string where() const { return line_.empty() ? fmt::format("request {}", count_) : line_; }

  void open(bool array) {
    if (++open_ > kMaxDepth) throw Error(fmt::format("{}: JSON nested deeper than {}", where(), kMaxDepth));
    const bool outer = open_ < depth_;
    if ((outer && !array) || (open_ == depth_ && array)) throw Error(fmt::format("{}: not a request", where()));
    if (open_ == depth_ + 1) not_expected();
  }
  bool integer(std::int64_t number) {
    if (!here()) return value();
    if (key_ == "time") {
      fields_.time_ms = number;
    } else if (key_ == "node") {
      fields_.node = number;
    } else if (key_ == "hits") {
      fields_.hits = number;
    } else if (key_ == "user_id") {
      fields_.user = std::to_string(number);
    }
    return true;
  }
  // A value that is nothing we know.
  bool value() {
    if (open_ < depth_) throw Error(fmt::format("{}: not a request", where()));
    if (here()) not_expected();
    return true;
  }
  void not_expected() const {
    if (key_ == "user_id") throw Error(fmt::format("{}: \"user_id\" must be a string", where()));
    for (const char* const number : {"time", "node", "hits"}) {
      if (key_ == number) throw Error(fmt::format("{}: \"{}\" must be a whole number", where(), number));
    }
  }

  Builder& builder_;
  std::size_t depth_;
  std::string line_;  // empty in an array
  std::size_t open_ = 0;
  std::size_t count_ = 0;
  std::string key_;
  Fields fields_;
};

// Calls `each` with every line that is not blank, and its place.
template <class Each>
void for_lines(std::string_view text, Each each) {
  std::size_t number = 0;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t") != std::string_view::npos) each(line, fmt::format("line {}", number));
  }
}

void parse_array(std::string_view text, Builder& builder) {
  JsonRequests requests(builder, 2, {});
  Json::sax_parse(text.begin(), text.end(), &requests);
}

void parse_lines(std::string_view text, Builder& builder) {
  for_lines(text, [&](std::string_view line, const std::string& where) {
    JsonRequests requests(builder, 1, where);
    Json::sax_parse(line.begin(), line.end(), &requests);
  });
}

void split(std::string_view line, const std::string& where, std::vector<std::string>& fields) {
  fields.assign(1, {});
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quoted) {
      if (c != '"') {
        fields.back() += c;
      } else if (i + 1 < line.size() && line[i + 1] == '"') {
        fields.back() += line[++i];
      } else {
        quoted = false;
      }
    } else if (c == ',') {
      fields.emplace_back();
    } else if (c == '"' && fields.back().empty()) {
      quoted = true;
    } else {
      fields.back() += c;
    }
  }
  if (quoted) throw Error(fmt::format("{}: a quote is not closed", where));
}

std::int64_t whole(const std::string& text, const char* column, const std::string& where) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) {
    throw Error(fmt::format("{}: {} must be a whole number", where, column));
  }
  return value;
}

void parse_csv(std::string_view text, Builder& builder) {
  constexpr std::size_t kNone = SIZE_MAX;
  std::size_t columns = 0;
  std::size_t time = kNone, user = kNone, node = kNone, hits = kNone;
  std::vector<std::string> fields;
  for_lines(text, [&](std::string_view line, const std::string& where) {
    split(line, where, fields);
    if (columns == 0) {
      const auto column = [&](const char* name) {
        const auto found = std::find(fields.begin(), fields.end(), name);
        return found == fields.end() ? kNone : static_cast<std::size_t>(found - fields.begin());
      };
      time = column("time_ms"), user = column("user"), node = column("node"), hits = column("hits");
      if (time == kNone || user == kNone) {
        throw Error(fmt::format("{}: neither JSON nor CSV with a header that names time_ms and user", where));
      }
      columns = fields.size();
      return;
    }
    if (fields.size() != columns) {
      throw Error(fmt::format("{}: {} fields where the header has {}", where, fields.size(), columns));
    }
    Fields request{fields[user], whole(fields[time], "time_ms", where), {}, {}};
    if (node != kNone && !fields[node].empty()) request.node = whole(fields[node], "node", where);
    if (hits != kNone && !fields[hits].empty()) request.hits = whole(fields[hits], "hits", where);
    builder.add(request, where);
  });
}

void write_json(const Workload& workload, bool lines, std::ostream& out) {
  const bool nodes = workload.has_nodes();
  const bool hits = workload.has_hits();
  const char* separator = lines ? "" : "[\n";
  for (const Request& request : workload.requests) {
    out << separator
        << "{\"user_id\": " << Json(workload.users[request.user]).dump(-1, ' ', false, Json::error_handler_t::replace)
        << ", \"time\": " << request.time_ms;
    if (nodes) out << ", \"node\": " << request.node;
    if (hits) out << ", \"hits\": " << request.hits;
    out << (lines ? "}\n" : "}");
    if (!lines) separator = ",\n";
  }
  if (!lines) out << "\n]\n";
}

void write_csv(const Workload& workload, std::ostream& out) {
  const bool nodes = workload.has_nodes();
  const bool hits = workload.has_hits();
  out << "time_ms,user" << (nodes ? ",node" : "") << (hits ? ",hits" : "") << '\n';
  for (const Request& request : workload.requests) {
    out << request.time_ms << ',' << csv_field(workload.users[request.user]);
    if (nodes) out << ',' << request.node;
    if (hits) out << ',' << request.hits;
    out << '\n';
  }
}

}  // namespace

Recording parse_recording(std::string_view text, const std::string& name) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) throw Error("it is empty");
  Builder builder;
  if (text[first] == '[') {
    parse_array(text, builder);
  } else if (text[first] == '{') {
    parse_lines(text, builder);
  } else {
    parse_csv(text, builder);
  }
  return std::move(builder).finish(name);
}

Recording read_recording(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  if (file) {
    std::vector<char> block(1 << 20);
    while (file.read(block.data(), static_cast<std::streamsize>(block.size())) || file.gcount() > 0) {
      text.append(block.data(), static_cast<std::size_t>(file.gcount()));
      if (text.size() > kMaxRecordingBytes)
        throw Error(fmt::format("{}: larger than {} bytes", path, kMaxRecordingBytes));
    }
  }
  if (!file.eof()) throw Error(fmt::format("{}: cannot be read", path));
  try {
    return parse_recording(text, path);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", path, error.what()));
  }
}

RecordingFormat format_of(std::string_view path) noexcept {
  if (path.ends_with(".csv")) return RecordingFormat::csv;
  return path.ends_with(".jsonl") || path.ends_with(".ndjson") ? RecordingFormat::lines : RecordingFormat::array;
}

void write_recording(const Workload& workload, RecordingFormat format, std::ostream& out) {
  if (format == RecordingFormat::csv) {
    write_csv(workload, out);
  } else {
    write_json(workload, format == RecordingFormat::lines, out);
  }
}

std::string csv_field(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string field = "\"";
  for (const char c : text) {
    if (c == '"') field += c;
    field += c;
  }
  return field + '"';
}

}  // namespace weir::lab
