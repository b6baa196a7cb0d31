//! Work that torch's threads share, as many of them as the thread has that asks.

#pragma once

#include <ATen/Parallel.h>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace outrigger {

/// Lets the thread keep its number of threads when it shares work first. Torch's headers set that number once for each thread and
/// library: here it would be what any thread has set last, and the one that pins memory for a DataLoader has set 1.
inline void keep_number_of_threads() {
#ifdef _OPENMP
  thread_local bool is_kept = false;
  if (C10_UNLIKELY(!is_kept)) {
    const int number = at::get_num_threads();
    at::internal::lazy_init_num_threads();
    omp_set_num_threads(number);
    is_kept = true;
  }
#endif
}

/// Calls `f` with parts of a range, on torch's threads.
template <typename F>
void share_work(int64_t begin, int64_t end, int64_t grain, const F& f) {
  keep_number_of_threads();
  at::parallel_for(begin, end, grain, f);
}

}  // namespace outrigger
