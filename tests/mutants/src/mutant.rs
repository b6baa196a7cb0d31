//! The type of a mutant, and the macros by which mutants are written. The macros give names and
//! signatures, but no behaviour.

use std::fmt;

use outrigger_layers::Layer;

/// A driver with one defect on purpose.
pub struct Mutant {
    /// The value of the option `mutant` that asks for this driver.
    pub name: &'static str,
    pub(crate) about: &'static str,
    /// The rules of the driver contract that it breaks, as `R20`. A suite that has tests for each of them
    /// catches it by one of those.
    pub rules: &'static [&'static str],
    pub(crate) make: fn() -> Box<dyn Layer>,
}

impl Mutant {
    /// The defect in one sentence.
    pub fn about(&self) -> &'static str {
        self.about.trim()
    }
}

impl fmt::Debug for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutant")
            .field("name", &self.name)
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}

/// The mutants of a module, as `MUTANTS`. Each reads
///
/// ```text
/// /// What is wrong.
/// name [R1 R2] (State) {
///     entry(self, next, its, arguments) { what it answers }
/// }
/// ```
///
/// with the state as `self.state`, made by `Default`; entries that are not named are those of `host`.
macro_rules! mutants {
    ($($(#[doc = $about:literal])+ $name:ident [$($rule:ident)+] ($state:ty) {
        $($entry:ident($($arg:ident),+) $body:block)+
    })+) => {
        /// The mutants of this module.
        pub(crate) const MUTANTS: &[$crate::Mutant] = &[$($crate::Mutant {
            name: stringify!($name),
            about: concat!($($about),+),
            rules: &[$(stringify!($rule)),+],
            make: || Box::new($name::default()),
        }),+];

        $(
            #[derive(Default)]
            #[allow(non_camel_case_types, reason = "named as the option names it")]
            struct $name {
                #[allow(dead_code, reason = "most mutants need to remember nothing")]
                state: $state,
            }

            impl outrigger_layers::Layer for $name {
                $($crate::mutant::entry! { $entry($($arg),+) $body })+
            }
        )+
    };
}
pub(crate) use mutants;

/// Types of the contract, short enough for the table below.
pub(crate) mod types {
    use std::ffi::{c_char, c_void};

    use outrigger_device::sys;

    pub(crate) type Driver = *mut sys::otr_driver;
    pub(crate) type Queue = *mut sys::otr_queue;
    pub(crate) type Event = *mut sys::otr_drv_event;
    pub(crate) type Outcome = *mut sys::otr_outcome;
    pub(crate) type Module = *mut sys::otr_drv_module;
    pub(crate) type Kernel = *mut sys::otr_drv_kernel;
    pub(crate) type Graph = *mut sys::otr_drv_graph;
    pub(crate) type Physical = *mut sys::otr_physical;
    pub(crate) type Operator = *mut sys::otr_operator;
    pub(crate) type Out<T> = *mut T;
    pub(crate) type In<T> = *const T;
    pub(crate) type Bytes = *const c_void;
    pub(crate) type Text = *const c_char;
    pub(crate) type Properties = *mut sys::otr_device_properties;
    pub(crate) type DeviceParams = *const sys::otr_device_params;
    pub(crate) type QueueParams = *const sys::otr_queue_params;
    pub(crate) type EventParams = *const sys::otr_event_params;
    pub(crate) type Launch = *const sys::otr_launch;
    pub(crate) type OperatorCall = *const sys::otr_operator_call;
    pub(crate) type Answer = sys::otr_operator_answer;
    pub(crate) type Names = *const *const std::ffi::c_char;
    pub(crate) type Handle = sys::otr_ipc_handle;
    pub(crate) type Imported = sys::otr_imported;
    pub(crate) type Fd = sys::otr_fd;
    pub(crate) type Semaphore = *mut sys::otr_drv_semaphore;
    pub(crate) type Comm = *mut sys::otr_drv_comm;
    pub(crate) type CommParams = *const sys::otr_comm_params;
    pub(crate) type Exchange = *const sys::otr_exchange;
}

/// A method of a layer, by the names that a mutant gives its arguments. The types are those of
/// `outrigger_layers::Layer`, against which the compiler checks them.
macro_rules! entry {
    (error_text($self:ident, $next:ident) $body:block) => {
        fn error_text(&$self, $next: &outrigger_layers::Next) -> Option<std::ffi::CString> $body
    };
    (close $args:tt $body:block) => { $crate::mutant::method! { close $args [Driver] $body } };
    (device_count $args:tt $body:block) => {
        $crate::mutant::method! { device_count $args [Driver, Out<u32>] $body }
    };
    (device_properties $args:tt $body:block) => {
        $crate::mutant::method! { device_properties $args [Driver, u32, Properties] $body }
    };
    (device_open $args:tt $body:block) => {
        $crate::mutant::method! { device_open $args [Driver, u32, DeviceParams] $body }
    };
    (device_close $args:tt $body:block) => {
        $crate::mutant::method! { device_close $args [Driver, u32] $body }
    };
    (memory_alloc $args:tt $body:block) => {
        $crate::mutant::given! { memory_alloc $args [Driver, u32, outrigger_device::sys::otr_memory_params, Out<u64>] $body }
    };
    (memory_free $args:tt $body:block) => {
        $crate::mutant::method! { memory_free $args [Driver, u64] $body }
    };
    (memory_info $args:tt $body:block) => {
        $crate::mutant::method! { memory_info $args [Driver, u32, Out<u64>, Out<u64>] $body }
    };
    (queue_create $args:tt $body:block) => {
        $crate::mutant::method! { queue_create $args [Driver, u32, QueueParams, Out<Queue>] $body }
    };
    (queue_destroy $args:tt $body:block) => {
        $crate::mutant::method! { queue_destroy $args [Queue] $body }
    };
    (queue_query $args:tt $body:block) => {
        $crate::mutant::method! { queue_query $args [Queue, Outcome] $body }
    };
    (queue_synchronize $args:tt $body:block) => {
        $crate::mutant::method! { queue_synchronize $args [Queue, Outcome] $body }
    };
    (native_handle $args:tt $body:block) => {
        $crate::mutant::method! { native_handle $args [Queue, Out<u64>] $body }
    };
    (native_adopt $args:tt $body:block) => {
        $crate::mutant::method! { native_adopt $args [Driver, u32, u64, Out<Queue>] $body }
    };
    (queue_flush $args:tt $body:block) => {
        $crate::mutant::method! { queue_flush $args [Queue] $body }
    };
    (queue_wait_event $args:tt $body:block) => {
        $crate::mutant::method! { queue_wait_event $args [Queue, Event] $body }
    };
    (event_create $args:tt $body:block) => {
        $crate::mutant::method! { event_create $args [Driver, u32, EventParams, Out<Event>] $body }
    };
    (event_destroy $args:tt $body:block) => {
        $crate::mutant::method! { event_destroy $args [Event] $body }
    };
    (event_record $args:tt $body:block) => {
        $crate::mutant::method! { event_record $args [Event, Queue] $body }
    };
    (event_query $args:tt $body:block) => {
        $crate::mutant::method! { event_query $args [Event, Outcome] $body }
    };
    (event_synchronize $args:tt $body:block) => {
        $crate::mutant::method! { event_synchronize $args [Event, Outcome] $body }
    };
    (event_time $args:tt $body:block) => {
        $crate::mutant::method! { event_time $args [Event, Outcome, Out<u64>] $body }
    };
    (device_time $args:tt $body:block) => {
        $crate::mutant::method! { device_time $args [Driver, u32, Out<u64>] $body }
    };
    (copy $args:tt $body:block) => {
        $crate::mutant::given! { copy $args [Queue, outrigger_device::sys::otr_copy] $body }
    };
    (fill $args:tt $body:block) => {
        $crate::mutant::given! { fill $args [Queue, outrigger_device::sys::otr_fill] $body }
    };
    (host_call $args:tt $body:block) => {
        $crate::mutant::given! { host_call $args [Queue, outrigger_device::sys::otr_host_call] $body }
    };
    (peer_copy $args:tt $body:block) => {
        $crate::mutant::given! { peer_copy $args [Queue, outrigger_device::sys::otr_copy] $body }
    };
    (kernel_launch $args:tt $body:block) => {
        $crate::mutant::method! { kernel_launch $args [Queue, Kernel, Launch] $body }
    };
    (module_load $args:tt $body:block) => {
        $crate::mutant::method! {
            module_load $args [Driver, u32, u32, Bytes, usize, Text, Out<Module>] $body
        }
    };
    (operator_names $args:tt $body:block) => {
        $crate::mutant::method! { operator_names $args [Driver, u32, Out<Names>, Out<u32>] $body }
    };
    (operator_prepare $args:tt $body:block) => {
        $crate::mutant::method! {
            operator_prepare $args [Driver, u32, OperatorCall, Out<Answer>, Out<Operator>] $body
        }
    };
    (operator_release $args:tt $body:block) => {
        $crate::mutant::method! { operator_release $args [Operator] $body }
    };
    (operator_launch $args:tt $body:block) => {
        $crate::mutant::method! { operator_launch $args [Queue, Operator, OperatorCall, u64] $body }
    };
    (graph_record_begin $args:tt $body:block) => {
        $crate::mutant::method! { graph_record_begin $args [Queue] $body }
    };
    (graph_record_end $args:tt $body:block) => {
        $crate::mutant::method! { graph_record_end $args [Queue, Out<Graph>] $body }
    };
    (graph_launch $args:tt $body:block) => {
        $crate::mutant::method! { graph_launch $args [Queue, Graph] $body }
    };
    (graph_update $args:tt $body:block) => {
        $crate::mutant::method! { graph_update $args [Graph, Graph] $body }
    };
    (graph_update_part $args:tt $body:block) => {
        $crate::mutant::method! { graph_update_part $args [Graph, u32, Graph] $body }
    };
    (graph_destroy $args:tt $body:block) => {
        $crate::mutant::method! { graph_destroy $args [Graph] $body }
    };
    (virtual_granularity $args:tt $body:block) => {
        $crate::mutant::method! { virtual_granularity $args [Driver, u32, Out<u64>] $body }
    };
    (virtual_reserve $args:tt $body:block) => {
        $crate::mutant::given! { virtual_reserve $args [Driver, u32, outrigger_device::sys::otr_reserve_params, Out<u64>] $body }
    };
    (virtual_release $args:tt $body:block) => {
        $crate::mutant::method! { virtual_release $args [Driver, u64, u64] $body }
    };
    (virtual_create $args:tt $body:block) => {
        $crate::mutant::given! { virtual_create $args [Driver, u32, outrigger_device::sys::otr_memory_params, Out<Physical>] $body }
    };
    (virtual_destroy $args:tt $body:block) => {
        $crate::mutant::method! { virtual_destroy $args [Driver, Physical] $body }
    };
    (virtual_map $args:tt $body:block) => {
        $crate::mutant::given! { virtual_map $args [Driver, outrigger_device::sys::otr_map_params] $body }
    };
    (virtual_unmap $args:tt $body:block) => {
        $crate::mutant::method! { virtual_unmap $args [Driver, u64, u64] $body }
    };
    (ipc_memory_import $args:tt $body:block) => {
        $crate::mutant::method! { ipc_memory_import $args [Driver, u32, In<Handle>, Out<Imported>] $body }
    };
    (ipc_physical_import $args:tt $body:block) => {
        $crate::mutant::method! {
            ipc_physical_import $args [Driver, u32, In<Handle>, Out<Imported>, Out<Physical>] $body
        }
    };
    (ipc_event_import $args:tt $body:block) => {
        $crate::mutant::method! { ipc_event_import $args [Driver, In<Handle>, Out<Event>] $body }
    };
    (ipc_memory_close $args:tt $body:block) => {
        $crate::mutant::method! { ipc_memory_close $args [Driver, u64] $body }
    };
    (external_memory_import $args:tt $body:block) => {
        $crate::mutant::method! { external_memory_import $args [Driver, u32, In<Fd>, Out<u64>] $body }
    };
    (external_signal $args:tt $body:block) => {
        $crate::mutant::method! { external_signal $args [Queue, Semaphore, u64] $body }
    };
    (external_wait $args:tt $body:block) => {
        $crate::mutant::method! { external_wait $args [Queue, Semaphore, u64] $body }
    };
    (comm_create $args:tt $body:block) => {
        $crate::mutant::method! { comm_create $args [Driver, u32, CommParams, Out<Comm>] $body }
    };
    (comm_destroy $args:tt $body:block) => {
        $crate::mutant::method! { comm_destroy $args [Comm] $body }
    };
    (comm_abort $args:tt $body:block) => {
        $crate::mutant::method! { comm_abort $args [Comm] $body }
    };
    (comm_query $args:tt $body:block) => {
        $crate::mutant::method! { comm_query $args [Comm, Outcome] $body }
    };
    (comm_all_reduce $args:tt $body:block) => {
        $crate::mutant::method! {
            comm_all_reduce $args [Queue, Comm, u64, u64, u64, u32, u32] $body
        }
    };
    (comm_reduce $args:tt $body:block) => {
        $crate::mutant::method! {
            comm_reduce $args [Queue, Comm, u64, u64, u64, u32, u32, u32] $body
        }
    };
    (comm_reduce_scatter $args:tt $body:block) => {
        $crate::mutant::method! {
            comm_reduce_scatter $args [Queue, Comm, u64, u64, u64, u32, u32] $body
        }
    };
    (comm_broadcast $args:tt $body:block) => {
        $crate::mutant::method! { comm_broadcast $args [Queue, Comm, u64, u64, u32] $body }
    };
    (comm_all_gather $args:tt $body:block) => {
        $crate::mutant::method! { comm_all_gather $args [Queue, Comm, u64, u64, u64] $body }
    };
    (comm_exchange $args:tt $body:block) => {
        $crate::mutant::method! { comm_exchange $args [Queue, Comm, Exchange] $body }
    };
}
pub(crate) use entry;

/// The same for an entry with parameters, to which the body gets a reference. The driver below refuses NULL.
macro_rules! given {
    ($entry:ident ($self:ident, $next:ident, $queue:ident, $given:ident) [$first:ty, $of:ty] $body:block) => {
        unsafe fn $entry(&$self, $next: &outrigger_layers::Next, $queue: $first, $given: *const $of) -> i32 {
            // SAFETY: as of `method`; R10: the parameters are NULL, or valid during the call.
            unsafe {
                let Some($given) = $given.as_ref() else {
                    return $next.$entry($queue, $given);
                };
                $body
            }
        }
    };
    ($entry:ident ($self:ident, $next:ident, $driver:ident, $device:ident, $given:ident, $out:ident)
        [$first:ty, $second:ty, $of:ty, $last:ty] $body:block) => {
        unsafe fn $entry(
            &$self,
            $next: &outrigger_layers::Next,
            $driver: $first,
            $device: $second,
            $given: *const $of,
            $out: $last,
        ) -> i32 {
            // SAFETY: as above.
            unsafe {
                let Some($given) = $given.as_ref() else {
                    return $next.$entry($driver, $device, $given, $out);
                };
                $body
            }
        }
    };
}
pub(crate) use given;

/// Puts names and types together.
macro_rules! method {
    ($entry:ident ($self:ident, $next:ident, $($arg:ident),+) [$($ty:ty),+] $body:block) => {
        #[allow(clippy::too_many_arguments, reason = "the arguments are those of the contract")]
        #[allow(unused_unsafe, reason = "some answer without the driver below")]
        unsafe fn $entry(&$self, $next: &outrigger_layers::Next, $($arg: $ty),+) -> i32 {
            // SAFETY: the arguments are those of a host that keeps the contract, and a mutant hands on
            // what they cover or less; what it does beyond that is said at its place.
            unsafe { $body }
        }
    };
}
pub(crate) use method;
