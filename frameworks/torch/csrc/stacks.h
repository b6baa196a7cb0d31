//! Stacks of Python (and C++) frames: the places where memory was allocated. They must never keep the
//! interpreter from ending, and never be turned into text under a lock of the runtime.
#pragma once

#include "runtime.h"

namespace outrigger {

/// The frames of a stack that are kept.
enum class Stacks { kNone, kPython, kAll };

/// Options of a memory history that keeps these stacks.
otr_history_options_t history_options(uint64_t entries, Stacks stacks, bool of_frees);

}  // namespace outrigger
