#include "lab/real/process.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <utility>

#include "lab/real/clock.hpp"

namespace weir::lab {
namespace {

constexpr int kIn = 3;
constexpr int kOut = 4;
// Above those, so that moving one doesn't close the other.
constexpr int kAside = 10;

struct Pipe {
  Fd read;
  Fd write;
};

Pipe make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) fail_with_errno("a pipe");
  return {Fd(ends[0]), Fd(ends[1])};
}

pid_t fork_bound() {
  const pid_t pid = fork();
  if (pid < 0) fail_with_errno("a process");
  if (pid == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
  return pid;
}

// In the new process, between fork and exec: system calls only.
[[noreturn]] void execute(const std::vector<char*>& words, int in, int out) {
  const int nothing = open("/dev/null", O_RDONLY);
  const int from = fcntl(in, F_DUPFD, kAside);
  const int to = fcntl(out, F_DUPFD, kAside);
  const bool moved = nothing >= 0 && dup2(nothing, STDIN_FILENO) >= 0 && dup2(STDERR_FILENO, STDOUT_FILENO) >= 0 &&
                     dup2(from, kIn) >= 0 && dup2(to, kOut) >= 0;
  close(from);
  close(to);
  if (moved) execvp(words.front(), words.data());
  const char* const why = strerrordesc_np(errno);
  for (const char* part : {static_cast<const char*>(words.front()), ": ", why == nullptr ? "can't be run" : why, "\n"})
    if (write(STDERR_FILENO, part, std::strlen(part)) < 0) break;
  _exit(127);
}

}  // namespace

Process::Process(pid_t pid, Channel channel)
    : pid_(pid), owner_(getpid()), channel_(std::make_unique<Channel>(std::move(channel))) {}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)), owner_(other.owner_), channel_(std::move(other.channel_)) {}

Process::~Process() { kill(); }

Process Process::forked(const std::function<void()>& forget, const std::function<void(Channel)>& body) {
  Pipe down = make_pipe();
  Pipe up = make_pipe();
  const pid_t pid = fork_bound();
  if (pid == 0) {
    try {
      down.write.reset();
      up.read.reset();
      forget();
      body(Channel(std::move(down.read), std::move(up.write)));
      _exit(0);
    } catch (const std::exception& error) {
      static_cast<void>(std::fprintf(stderr, "weir-lab: a node: %s\n", error.what()));
    }
    _exit(1);
  }
  return {pid, Channel(std::move(up.read), std::move(down.write))};
}

Process Process::program(const std::vector<std::string>& line) {
  Pipe down = make_pipe();
  Pipe up = make_pipe();
  std::vector<char*> words;
  words.reserve(line.size() + 1);
  for (const std::string& word : line) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const pid_t pid = fork_bound();
  if (pid == 0) execute(words, down.read.get(), up.write.get());
  return {pid, Channel(std::move(up.read), std::move(down.write))};
}

void Process::kill() noexcept {
  if (pid_ == 0 || getpid() != owner_) return;
  ::kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) continue;
  pid_ = 0;
}

std::optional<Nanos> Process::cpu() const noexcept {
  clockid_t id{};
  if (pid_ == 0 || clock_getcpuclockid(pid_, &id) != 0) return std::nullopt;
  return Clock::read(id);
}

std::uint64_t Process::resident_bytes() const {
  std::ifstream file("/proc/" + std::to_string(pid_) + "/statm");
  std::uint64_t pages = 0;
  file >> pages >> pages;
  return file ? pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)) : 0;
}

}  // namespace weir::lab
