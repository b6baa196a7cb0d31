//! The tests, a module for each subject.

mod collectives;
mod core_absent;
mod core_copies;
mod core_devices;
mod core_errors;
mod core_fills;
mod core_host_calls;
mod core_lifetimes;
mod core_memory;
mod core_misuse;
mod core_open;
mod core_opening;
mod core_params;
mod core_table;
mod graph_launch;
mod graph_recording;
mod host;
mod kernels;
mod kit;
mod memory_fd;
mod memory_groups;
mod memory_ipc;
mod memory_virtual;
mod operators;
mod perf;
mod programs;
mod raw;
mod stream_code;
mod stream_events;
mod stream_failures;
mod stream_native;
mod stream_pairs;
mod stream_queues;
mod stream_timing;
mod stress;

use crate::{Helper, Test};

pub use host::use_library;

/// The tests of each module.
#[cfg(not(test))]
pub(crate) const MODULES: &[&[Test]] = &[
    core_table::TESTS,
    core_open::TESTS,
    core_open::close::TESTS,
    core_opening::TESTS,
    core_devices::TESTS,
    core_memory::TESTS,
    core_params::TESTS,
    core_memory::visible::TESTS,
    core_copies::TESTS,
    core_copies::h2d::TESTS,
    core_copies::d2h::TESTS,
    core_copies::d2d::TESTS,
    core_copies::h2h::TESTS,
    core_copies::rows::TESTS,
    core_fills::TESTS,
    core_fills::of_1::TESTS,
    core_fills::of_2::TESTS,
    core_fills::of_4::TESTS,
    core_fills::of_8::TESTS,
    core_fills::of_16::TESTS,
    core_host_calls::TESTS,
    core_host_calls::flag::TESTS,
    core_host_calls::outcome::TESTS,
    core_errors::TESTS,
    core_lifetimes::TESTS,
    core_lifetimes::concurrent::TESTS,
    memory_groups::TESTS,
    memory_groups::pinned::TESTS,
    memory_groups::peer::TESTS,
    memory_virtual::TESTS,
    memory_virtual::object::TESTS,
    memory_virtual::map::TESTS,
    memory_fd::TESTS,
    memory_ipc::TESTS,
    memory_ipc::events::TESTS,
    stream_pairs::ORDER,
    stream_pairs::KERNEL_ORDER,
    stream_pairs::CROSS,
    stream_pairs::KERNEL_CROSS,
    stream_code::TESTS,
    stream_queues::TESTS,
    stream_queues::flush::TESTS,
    stream_queues::apart::TESTS,
    stream_queues::pressure::TESTS,
    stream_events::TESTS,
    stream_events::wait::TESTS,
    stream_native::TESTS,
    memory_fd::semaphores::TESTS,
    stream_timing::TESTS,
    stream_failures::TESTS,
    stream_failures::event::TESTS,
    stream_failures::outcome::TESTS,
    collectives::TESTS,
    collectives::exchanges::TESTS,
    collectives::failures::TESTS,
    collectives::misuse::TESTS,
    collectives::processes::TESTS,
    graph_recording::TESTS,
    graph_recording::join::TESTS,
    graph_recording::refused::TESTS,
    graph_launch::TESTS,
    graph_launch::update::TESTS,
    graph_launch::lifetime::TESTS,
    host::arguments::TESTS,
    host::arguments::handle::TESTS,
    host::arguments::range::TESTS,
    host::arguments::values::TESTS,
    host::work::TESTS,
    host::work::memory::TESTS,
    host::graphs::TESTS,
    host::building::TESTS,
    host::code::TESTS,
    host::building::functions::TESTS,
    host::building::conditionals::TESTS,
    host::inspection::TESTS,
    host::inspection::replays::TESTS,
    host::accounting::TESTS,
    host::history::TESTS,
    host::observers::TESTS,
    host::registrations::TESTS,
    host::pools::TESTS,
    host::pools::asleep::TESTS,
    host::pinned::TESTS,
    host::sharing::TESTS,
    host::together::TESTS,
    host::drivers::TESTS,
    host::random::TESTS,
    host::tuning::TESTS,
    host::unwinding::TESTS,
    host::runtime::TESTS,
    host::faults::TESTS,
    host::faults::work::TESTS,
    host::faults::memory::TESTS,
    host::operators::TESTS,
    host::operators::own::TESTS,
    operators::FLOATS,
    operators::INTEGERS,
    operators::CASTS,
    operators::prepare::TESTS,
    operators::library::TESTS,
    operators::launch::TESTS,
    programs::TESTS,
    stress::TESTS,
    perf::TESTS,
    perf::operators::TESTS,
    perf::calls::TESTS,
    core_absent::TESTS,
    core_misuse::TESTS,
    core_misuse::range::TESTS,
];

/// Those that the tests of this crate's own logic name: with all of them, the suite would be compiled a second time.
#[cfg(test)]
pub(crate) const MODULES: &[&[Test]] = &[core_open::TESTS, stream_pairs::ORDER];

/// What second processes do.
pub(crate) const HELPERS: &[&[Helper]] = &[
    memory_fd::HELPERS,
    memory_ipc::HELPERS,
    collectives::processes::HELPERS,
    host::sharing::HELPERS,
    host::unwinding::HELPERS,
];
