//! outrigger-hooks
