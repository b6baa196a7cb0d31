//! The shim's part while a graph is recorded: it asks whether a stream records, refuses a call that cannot be recorded,
//! and keeps host memory alive as long as the graph that uses it. It must never record device work itself, except the
//! one node that owns such memory.
#pragma once

#include "runtime.h"

#include <memory>

namespace outrigger {

/// Whether work of a stream is recorded into a graph instead of being run. A stream whose capture has
/// failed counts too: what it is given until the end of the capture does not run either.
bool is_capturing(otr_stream_t stream);

/// Refuses an operator that a graph cannot contain. Throws NotImplementedError naming the operator and
/// `reason`, which says what to do; the capture of the stream fails with the same text.
[[noreturn]] void refuse_capture(otr_stream_t stream, const char* name, const std::string& reason);

/// Refuses an operator whose result the host needs at once, if the stream records.
void refuse_wait_in_capture(otr_stream_t stream, const char* name);

/// Keeps an object until the graph that the stream records into, and all made from it, are gone.
void keep_in_capture(otr_stream_t stream, std::shared_ptr<const void> object);

/// The same for a copyable object, such as a storage.
template <class T>
void keep_copy_in_capture(otr_stream_t stream, const T& object) {
  keep_in_capture(stream, std::make_shared<T>(object));
}

}  // namespace outrigger
