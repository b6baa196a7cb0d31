// The start of a process that wants device code: how long until the driver is open, and how long until the code is loaded.
// The program starts itself for each.
#pragma once

#include <cstdlib>
#include <filesystem>

#include "../peers/raw_opencl.h"
#include "driver_kernels.h"
#include "outrigger.h"
#include "wire.h"

namespace bench {

// Nanoseconds that a started process prints: from its start to the open driver, and for the load of the kernels.
struct StartTimes {
  double open = 0;
  double load = 0;
};

// The body of a started process: `side` is "outrigger", or "raw" for one that only opens.
inline int start_once(const std::string& side, const std::string& kernels, double started) {
  if (side == "raw") {
    const RawOpenCl cl;
    std::printf("%.0f 0\n", now_ns() - started);
    return 0;
  }
  outrigger_version();
  const double opened = now_ns();
  const std::string source = read_text(kernels), options = kernel_options();
  const double start = now_ns();
  otr_module_params_t params{};
  params.struct_size = sizeof params;
  params.code = source.data();
  params.size = source.size();
  params.options = options.c_str();
  params.format = OTR_CODE_OPENCL_C;
  otr_module_t module = 0;
  ok(otr_module_load(0, &params, &module));
  for (const char* name : KERNELS) {
    otr_kernel_t kernel = 0;
    ok(otr_kernel_get(module, name, &kernel));
  }
  std::printf("%.0f %.0f\n", opened - started, now_ns() - start);
  return 0;
}

class Starts {
 public:
  Starts(std::string self, std::string kernels) : self_(std::move(self)), kernels_(std::move(kernels)) {
    std::string name = (std::filesystem::temp_directory_path() / "outrigger-bench-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("there is no folder for caches");
    folder_ = name;
  }
  ~Starts() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  Starts(const Starts&) = delete;
  Starts& operator=(const Starts&) = delete;

  std::vector<Measure> measures() {
    return {
        {"first_load", [this](int64_t n) { return sum(n, [this] { return start("outrigger", "first", true).load; }); }},
        {"second_load", [this](int64_t n) { return sum(n, [this] { return second().load; }); }},
        {"second_open", [this](int64_t n) { return sum(n, [this] { return second().open; }); }},
        {"raw_open", [this](int64_t n) { return sum(n, [this] { return start("raw", "raw", true).open; }); }},
    };
  }

 private:
  std::string self_, kernels_;
  std::filesystem::path folder_;

  static std::string quoted(const std::string& word) { return '\'' + word + '\''; }

  template <class Start>
  static double sum(int64_t repetitions, const Start& start) {
    double nanoseconds = 0;
    for (int64_t i = 0; i < repetitions; ++i) nanoseconds += start();
    return nanoseconds;
  }

  // A start with the store that another process has filled.
  StartTimes second() {
    if (!std::filesystem::exists(folder_ / "second")) start("outrigger", "second", true);
    return start("outrigger", "second", false);
  }

  // Starts a process over the store `store`. PoCL's own cache is empty each time, so that only the store can help.
  StartTimes start(const std::string& side, const std::string& store, bool empty) {
    const std::filesystem::path cache = folder_ / store, pocl = folder_ / "pocl";
    std::filesystem::remove_all(pocl);
    std::filesystem::create_directory(pocl);
    if (empty) std::filesystem::remove_all(cache);
    std::filesystem::create_directory(cache);
    const std::string command = "OUTRIGGER_CACHE=" + quoted(cache) + " POCL_CACHE_DIR=" + quoted(pocl) + " exec " +
        quoted(self_) + ' ' + side + ' ' + quoted(kernels_) + ' ' + std::to_string(now_ns());
    FILE* const said = popen(command.c_str(), "r");
    if (said == nullptr) throw std::runtime_error("the program cannot start itself");
    char line[1024] = "";
    if (std::fgets(line, sizeof line, said) == nullptr) line[0] = 0;
    const int status = pclose(said);
    StartTimes times;
    if (status != 0 || std::sscanf(line, "%lf %lf", &times.open, &times.load) != 2) {
      throw std::runtime_error(std::string("a process that was started failed: ") + line);
    }
    return times;
  }
};

}  // namespace bench
