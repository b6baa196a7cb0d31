// The protocol between the harness and a program of benches/: the harness starts it, sends lines of the form
// `MEASURE REPETITIONS`, and reads one JSON line for each: {"ns": TOTAL} or {"error": TEXT}. The first line
// that the program writes says what it is: {"version": TEXT, "measures": [NAMES]}. Between two questions a
// program holds still, so that many of them can take turns.
//
// A program keeps no statistics: rounds, medians and comparisons are the harness's.
#pragma once

#include <time.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

namespace bench {

// Nanoseconds of a clock that only grows.
inline double now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return 1e9 * static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec);
}

// One thing that a program can measure. `run` repeats it and gives the nanoseconds of all repetitions,
// leaving out what it does before and after them. It throws if something went wrong.
struct Measure {
  std::string name;
  std::function<double(int64_t repetitions)> run;
};

// The nanoseconds of everything that `block` does.
inline std::function<double(int64_t)> timed(std::function<void(int64_t)> block) {
  return [block = std::move(block)](int64_t repetitions) {
    const double start = now_ns();
    block(repetitions);
    return now_ns() - start;
  };
}

inline std::string json_text(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return quoted + '"';
}

// Answers until the input ends.
inline int serve(const std::string& version, const std::vector<Measure>& measures) {
  std::string names;
  for (const Measure& measure : measures) {
    names += (names.empty() ? "" : ", ") + json_text(measure.name);
  }
  std::printf("{\"version\": %s, \"measures\": [%s]}\n", json_text(version).c_str(), names.c_str());
  std::fflush(stdout);
  std::string wanted;
  int64_t repetitions = 0;
  while (std::cin >> wanted >> repetitions) {
    try {
      const Measure* found = nullptr;
      for (const Measure& measure : measures) {
        if (measure.name == wanted) found = &measure;
      }
      if (found == nullptr) throw std::runtime_error("there is no measure " + wanted);
      std::printf("{\"ns\": %.1f}\n", found->run(repetitions));
    } catch (const std::exception& error) {
      std::printf("{\"error\": %s}\n", json_text(error.what()).c_str());
    }
    std::fflush(stdout);
  }
  return 0;
}

// Makes what is measured, and answers; a failure of the making is said in place of the first line.
inline int serve_or_say(const std::function<int()>& program) {
  try {
    return program();
  } catch (const std::exception& error) {
    std::printf("{\"error\": %s}\n", json_text(error.what()).c_str());
    return 1;
  }
}

}  // namespace bench
