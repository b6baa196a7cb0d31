//! outrigger-ffi
