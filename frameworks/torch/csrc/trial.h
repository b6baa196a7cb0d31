//! Runs work of the host in a process of its own, so that work that crashes, hangs or writes to wrong places costs itself alone.
//!
//! The process is a fork of this one: it has the contents of all memory at the same addresses, also where work follows addresses that
//! it finds in memory. What it writes is its own. It must never touch what has locks or threads: runtime, driver, Python, torch's
//! dispatcher.
#pragma once

#include <outrigger/outrigger.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace outrigger {

/// The task of a trial, and its findings.
struct Trial {
  struct Bytes {
    uint64_t address, size;
  };

  /// Memory that is restored before each run of the work.
  std::vector<Bytes> restored;
  /// Whether the work may use all of torch's threads.
  bool shared = false;
  /// For how long the work is timed, and what all of it may take.
  double seconds = 0.1, limit = 10;

  /// Whether the system gave a process.
  bool has_run = false;
  /// Seconds of the work in each run.
  std::vector<double> times;
  /// The reason why there are no times.
  std::string failure;

  /// Has a process run the work, first once and then for as long as it is timed. Waits for it, and never throws.
  void run(const std::function<otr_code_t()>& work) noexcept;
};

}  // namespace outrigger
