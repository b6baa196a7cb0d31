//! outrigger-allocator
