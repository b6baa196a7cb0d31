//! The driver `cuda`: NVIDIA's devices as devices of Outrigger, over the CUDA driver API. A shared library that exports
//! `otr_driver_get_api` and nothing else. It loads on any machine; `open` says what is missing where there is no device.
//!
//! Each file has one job: `cuda` loads the API and knows its numbers, `nvrtc` compiles, `cublaslt`, `library` and
//! `product` multiply matrices, of which `call` reads what the host wants; `device` has the properties of devices,
//! `clock` their time; `pinned` and `ranges` know host memory and virtual memory, `staging` brings pageable memory to a
//! stream, `calls` makes host calls in it, `launch` puts kernels into it; `driver` opens and closes; `commands` are
//! what a queue is given, `nodes` what they are in a graph of CUDA's, `body` what a graph is; `lane` has the streams;
//! `memory`, `mapping`, `queue`, `event`, `kernel`, `module`, `graph` and `operator` have the entries of the table, and
//! `table` is what the host gets. The order of work and its failures are the kit's.

mod body;
mod call;
mod calls;
mod clock;
mod commands;
mod cublaslt;
mod cuda;
mod device;
mod driver;
mod event;
mod graph;
mod kernel;
mod lane;
mod launch;
mod library;
mod mapping;
mod memory;
mod module;
mod nodes;
mod nvrtc;
mod operator;
mod pinned;
mod product;
mod queue;
mod ranges;
mod staging;
mod table;
