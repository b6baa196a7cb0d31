//! The driver `cuda`: NVIDIA's devices as devices of Outrigger, over the CUDA driver API. A shared library that exports
//! `otr_driver_get_api` and nothing else. It loads on any machine; `open` says what is missing where there is no device.
//!
//! Each file has one job: `cuda` loads the API and knows its numbers, `device` says what devices are, `memory` has the
//! memory, `mapping` the virtual one, `lane` the streams, `queue` the commands, `calls` the host calls in streams, `staging` brings pageable memory to a
//! stream, `event` has events and clocks, `nvrtc` compiles, `module` has the code, `kernel` launches it, `driver` opens
//! and closes, and `table` is what the host gets. The order of work and its failures are the kit's.

mod calls;
mod cuda;
mod device;
mod driver;
mod event;
mod kernel;
mod lane;
mod mapping;
mod memory;
mod module;
mod nvrtc;
mod queue;
mod staging;
mod table;
