//! outrigger-ops
