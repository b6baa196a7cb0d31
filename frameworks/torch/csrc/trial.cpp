//! The fork in which a trial runs, and its parent, which waits. The fork must never return: it ends with its reply.

#include "trial.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <thread>
#include <utility>

namespace outrigger {
namespace {

using Clock = std::chrono::steady_clock;

/// Runs, at least and at most, and seconds of a run, at least.
constexpr size_t kFewest = 5, kMost = 1000;
constexpr double kLeastRun = 2e-4;

/// Milliseconds between two looks after a process that says nothing.
constexpr int kLook = 50;

/// The answer of the process, before its times.
struct Reply {
  bool has_run;
  otr_code_t code;
  uint32_t count;
};

double since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// A mapping that this process shares with others.
struct Shared {
  unsigned long begin, end, offset;
  dev_t device;
  ino_t inode;
};

/// Shared mappings that may be written to, all of them read before one is changed.
std::vector<Shared> shared_mappings(bool* known) {
  std::vector<Shared> found;
  std::ifstream maps("/proc/self/maps");
  *known = maps.is_open();
  for (std::string line; std::getline(maps, line);) {
    Shared one{};
    char flags[5] = "";
    unsigned int major = 0, minor = 0;
    unsigned long inode = 0;
    const int read =
        std::sscanf(line.c_str(), "%lx-%lx %4s %lx %x:%x %lu", &one.begin, &one.end, flags, &one.offset, &major, &minor, &inode);
    if (read == 7 && flags[1] == 'w' && flags[3] == 's') {
      one.device = makedev(major, minor);
      one.inode = inode;
      found.push_back(one);
    }
  }
  return found;
}

/// The open files of this process, by what they are.
std::map<std::pair<dev_t, ino_t>, int> open_files() {
  std::map<std::pair<dev_t, ino_t>, int> files;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int file = std::stoi(entry.path().filename());
    struct stat about {};
    if (fstat(file, &about) == 0) {
      files[{about.st_dev, about.st_ino}] = file;
    }
  }
  return files;
}

/// Has the forked process write to copies of memory that it shares with its parent, such as a device's. What has no file to be mapped
/// anew is only read. False if the memory is not known.
bool own_memory() {
  bool known = false;
  const auto mappings = shared_mappings(&known);
  const auto files = open_files();
  for (const Shared& one : mappings) {
    void* const begin = reinterpret_cast<void*>(one.begin);
    const size_t size = one.end - one.begin;
    const auto file = files.find({one.device, one.inode});
    const bool mapped =
        file != files.end() && mmap(begin, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, file->second,
                                    static_cast<off_t>(one.offset)) != MAP_FAILED;
    if (!mapped && mprotect(begin, size, PROT_READ) != 0) {
      return false;
    }
  }
  return known;
}

/// Bytes that are put back.
class Kept {
 public:
  explicit Kept(const std::vector<Trial::Bytes>& all) : all_(all) {
    for (const Trial::Bytes& one : all) {
      const char* first = at(one);
      copies_.emplace_back(first, first + one.size);
    }
  }

  void restore() const {
    for (size_t i = 0; i < all_.size(); ++i) {
      std::memcpy(at(all_[i]), copies_[i].data(), all_[i].size);
    }
  }

 private:
  static char* at(const Trial::Bytes& one) {
    return reinterpret_cast<char*>(static_cast<uintptr_t>(one.address));
  }

  const std::vector<Trial::Bytes>& all_;
  std::vector<std::vector<char>> copies_;
};

/// Times the work. The first run of all is among the times only if it is long: it meets memory that nobody has touched.
otr_code_t timed(const Trial& trial, const std::function<otr_code_t()>& work, std::vector<double>* times) {
  const Kept kept(trial.restored);
  const auto once = [&](otr_code_t* code) {
    kept.restore();
    const auto begin = Clock::now();
    *code = work();
    return since(begin);
  };
  otr_code_t code = OTR_OK;
  const double first = once(&code);
  if (code != OTR_OK || first > trial.seconds) {
    times->push_back(first);
    return code;
  }
  const auto count = static_cast<size_t>(std::max(1.0, kLeastRun / std::max(std::min(first, once(&code)), 1e-7)));
  const auto begin = Clock::now();
  while (code == OTR_OK && times->size() < kMost && (times->size() < kFewest || since(begin) < trial.seconds)) {
    double sum = 0;
    const auto start = Clock::now();
    for (size_t i = 0; i < count && code == OTR_OK; ++i) {
      // The time to restore memory between runs does not count.
      trial.restored.empty() ? void(code = work()) : void(sum += once(&code));
    }
    times->push_back((trial.restored.empty() ? since(start) : sum) / static_cast<double>(count));
  }
  return code;
}

/// The life of the forked process.
[[noreturn]] void live(const Trial& trial, const std::function<otr_code_t()>& work, int output) {
  // If the process that has asked is killed, this one goes with it.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  // Handlers of the program, which say what it is doing, have nothing to say here.
  sigset_t all;
  sigemptyset(&all);
  for (const int number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTERM, SIGINT}) {
    std::signal(number, SIG_DFL);
    sigaddset(&all, number);
  }
  pthread_sigmask(SIG_UNBLOCK, &all, nullptr);
  std::vector<double> times;
  const bool owns = own_memory();
  const otr_code_t code = owns ? timed(trial, work, &times) : OTR_OK;
  const Reply reply{owns, code, static_cast<uint32_t>(times.size())};
  bool said = write(output, &reply, sizeof reply) == sizeof reply;
  const auto size = static_cast<ssize_t>(times.size() * sizeof(double));
  said = said && write(output, times.data(), times.size() * sizeof(double)) == size;
  // No destructor of the program runs.
  _exit(said ? 0 : 1);
}

/// The output of the process, up to its end or the limit. Another process may hold the pipe open, so its own end is
/// looked for too.
std::string heard(int input, pid_t child, double limit, bool* is_over, int* status) {
  std::string said;
  const auto begin = Clock::now();
  for (bool ended = false;;) {
    pollfd one{input, POLLIN, 0};
    const int ready = poll(&one, 1, ended ? 0 : kLook);
    if (ready > 0) {
      char bytes[4096];
      const ssize_t count = read(input, bytes, sizeof bytes);
      if (count > 0) {
        said.append(bytes, static_cast<size_t>(count));
        continue;
      }
    }
    if (ended) {
      return said;
    }
    const pid_t found = waitpid(child, status, WNOHANG);
    // Somebody else of the program may have taken the status.
    ended = found == child || (found < 0 && errno == ECHILD);
    *is_over = ended;
    if (!ended && since(begin) > limit) {
      kill(child, SIGKILL);
      waitpid(child, status, 0);
      return said;
    }
    if (ready > 0) {
      // The pipe is closed, and the process ends.
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

void in_a_fork(Trial* trial, const std::function<otr_code_t()>& work) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return;
  }
  const pid_t child = fork();
  if (child == 0) {
    live(*trial, work, ends[1]);
  }
  close(ends[1]);
  if (child > 0) {
    trial->has_run = true;
    bool is_over = false;
    int status = 0;
    const std::string said = heard(ends[0], child, trial->limit, &is_over, &status);
    Reply reply{true, OTR_OK, 0};
    std::memcpy(&reply, said.data(), std::min(sizeof reply, said.size()));
    const bool whole = said.size() == sizeof reply + reply.count * sizeof(double);
    if (!is_over) {
      char text[64];
      std::snprintf(text, sizeof text, "it took longer than %g s", trial->limit);
      trial->failure = text;
    } else if (WIFSIGNALED(status)) {
      trial->failure = std::string("it crashed: ") + strsignal(WTERMSIG(status));
    } else if (!whole) {
      trial->failure = "it crashed";
    } else if (!reply.has_run) {
      trial->has_run = false;
    } else if (reply.code != OTR_OK) {
      trial->failure = "a check of the kernel failed";
    } else {
      trial->times.resize(reply.count);
      std::memcpy(trial->times.data(), said.data() + sizeof reply, reply.count * sizeof(double));
    }
  }
  close(ends[0]);
}

}  // namespace

void Trial::run(const std::function<otr_code_t()>& work) noexcept {
  try {
    // A thread that has never shared work: one that has would wait in the fork for threads that are not there.
    std::thread(in_a_fork, this, std::cref(work)).join();
  } catch (const std::exception& error) {
    has_run = false;
  }
}

}  // namespace outrigger
