//! outrigger-device
