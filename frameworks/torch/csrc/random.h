//! The bounds of a dtype's random numbers.
#pragma once

#include <c10/core/ScalarType.h>

namespace outrigger {

/// One more than the largest whole number up to which a dtype holds all exactly; 0 for int64, whose limit is that of the
/// numbers themselves, and for what holds no random whole numbers.
int64_t limit_of(c10::ScalarType dtype);

}  // namespace outrigger
