//! Calls of the C ABI from Python: without the GIL. Failures are thrown when the GIL is held again.
#pragma once

#include <Python.h>

#include "runtime.h"

namespace outrigger {

/// Lets other Python threads run for as long as it lives.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    PyEval_RestoreThread(state_);
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

/// Makes a call of the C ABI without the GIL and throws unless it succeeded. `body` must not throw.
template <class Body>
void call(const Body& body) {
  otr_status_t* status = nullptr;
  {
    const WithoutGil released;
    status = body();
  }
  check(status);
}

}  // namespace outrigger
