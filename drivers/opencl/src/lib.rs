//! The driver `opencl`: every OpenCL device with shared virtual memory as a device of Outrigger. A shared library that
//! exports `otr_driver_get_api` and nothing else.
//!
//! Each file has one job: `cl` loads OpenCL, `platform` finds devices, `device` has their properties, `driver` opens
//! and closes, `exit` sees to processes that do not close, `memory` and `pinned` have the memory, `queue` the commands,
//! `unseen` how they ended, `event` the events and clocks, `module` the code, `kernel` its kernels, `launch` starts
//! them, and `table` is what the host gets. The order of work and its failures are the kit's.

mod cl;
mod device;
mod driver;
mod event;
mod exit;
mod kernel;
mod launch;
mod memory;
mod module;
mod pinned;
mod platform;
mod queue;
mod table;
mod unseen;

#[cfg(test)]
mod tests;
