//! H1 to H12 and H30: how entries answer to NULL, to invalid ids, and to devices, flags and structs
//! that make no sense.

pub(in crate::tests) mod handle;
pub(in crate::tests) mod range;
pub(in crate::tests) mod values;

use std::ffi::CString;
use std::ptr::{null, null_mut};

use crate::tests::host::bindings::*;
use outrigger_device::sys::otr_scalar_t;
use outrigger_device::{Code, CopyKind, DType};

use super::tuning::{tune, tune_params};
use super::{
    Filled, Refused, alloc, event, fill, filled, json, library, made, otr, outcome, raw, refused,
    scalar, start, stream,
};
use crate::test::tests;
use crate::verdict::{check, equal};
use crate::{Context, Verdict};

/// A registration that is right.
pub(super) fn registration() -> otr_operator_registration_t {
    unsafe extern "C" fn serve(
        _: *mut std::ffi::c_void,
        _: otr_stream_t,
        _: otr_operator_id_t,
        _: *const outrigger_device::sys::otr_operator_call_t,
    ) -> *mut otr_status_t {
        null_mut()
    }
    otr_operator_registration_t {
        struct_size: size_of::<otr_operator_registration_t>(),
        next: null(),
        name: c"conformance::registered".as_ptr(),
        owner: c"conformance".as_ptr(),
        function: Some(serve),
        user: null_mut(),
        destroy: None,
        device: OTR_ALL_DEVICES,
        flags: 0,
    }
}

macro_rules! null {
    ($($(#[doc = $about:literal])+ $name:ident: $call:expr;)*) => {
        tests! { "host-abi.null": $(
            $(#[doc = $about])+
            $name: H2 H3 H6, run |context| {
                start(context)?;
                let call: fn() -> Verdict<Result<(), Refused>> = $call;
                let told = refused(call()?, Code::INVALID_ARGUMENT, stringify!($name))?;
                check!(told.text.contains("NULL"), "H3: the text says what is NULL: {}", told.text);
                // The runtime is as usable as before.
                let stream = stream()?;
                Ok(otr!(stream_synchronize, stream)?)
            }
        ;)* }
    };
}

null! {
    /// The number of devices needs a place.
    device_count: || Ok(otr!(device_count, null_mut()));
    /// Facts of a device need a place.
    device_info: || Ok(otr!(device_info, 0, null_mut()));
    /// The current device needs a place.
    device_current: || Ok(otr!(device_current, null_mut()));
    /// A new stream needs a place.
    stream_create: || Ok(otr!(stream_create, 0, 0, null_mut()));
    /// A stream over a native queue needs a place.
    stream_from_native: || Ok(otr!(stream_from_native, 0, 0, null_mut()));
    /// The native queue of a stream needs a place.
    stream_native: || Ok(otr!(stream_native, stream()?, null_mut()));
    /// A chosen variant needs a place.
    tune_choose: || Ok(tune(&tune_params(), null_mut()));
    /// A choice needs a question.
    tune_choose_nothing: || Ok(otr!(tune_choose, 0, null(), &mut 0, null_mut()));
    /// The size of a kept value needs a place.
    store_get: || Ok(otr!(store_get, c"k".as_ptr().cast(), 1, null_mut(), 0, null_mut()));
    /// A kept value needs a place where there is room for it.
    store_get_value: || Ok(otr!(store_get, c"k".as_ptr().cast(), 1, null_mut(), 1, &mut 0));
    /// A kept value has a key.
    store_get_key: || Ok(otr!(store_get, null(), 1, null_mut(), 0, &mut 0));
    /// Whether a value was kept needs a place.
    store_put: || Ok(otr!(store_put, c"k".as_ptr().cast(), 1, c"v".as_ptr().cast(), 1, null_mut()));
    /// A value to keep is there.
    store_put_value: || Ok(otr!(store_put, c"k".as_ptr().cast(), 1, null(), 1, &mut 0));
    /// A value to keep has a key.
    store_put_key: || Ok(otr!(store_put, null(), 1, c"v".as_ptr().cast(), 1, &mut 0));
    /// Whether a device reaches another needs a place.
    device_can_access_peer: || Ok(otr!(device_can_access_peer, 0, 0, null_mut()));
    /// The default stream needs a place.
    stream_default: || Ok(otr!(stream_default, 0, null_mut()));
    /// A stream of the pool needs a place.
    stream_from_pool: || Ok(otr!(stream_from_pool, 0, 0, null_mut()));
    /// The current stream needs a place.
    stream_current: || Ok(otr!(stream_current, 0, null_mut()));
    /// The answer to a query needs a place.
    stream_query: || Ok(otr!(stream_query, stream()?, null_mut()));
    /// A new event needs a place.
    event_create: || Ok(otr!(event_create, 0, 0, null_mut()));
    /// The answer to a query of an event needs a place.
    event_query: || Ok(otr!(event_query, event()?, null_mut()));
    /// New memory needs a place for its address.
    memory_alloc: || Ok(otr!(memory_alloc, 0, 64, stream()?, null_mut()));
    /// Free bytes need a place.
    memory_info: || Ok(otr!(memory_info, 0, null_mut(), &mut 0));
    /// Statistics need a place.
    memory_stats: || Ok(otr!(memory_stats, 0, null_mut()));
    /// Facts of an address need a place.
    memory_pointer_info: || Ok(otr!(memory_pointer_info, 0, alloc(64, stream()?)?, null_mut()));
    /// The device of an address needs a place.
    memory_find: || Ok(otr!(memory_find, alloc(64, stream()?)?, null_mut()));
    /// A snapshot needs a place.
    memory_snapshot: || Ok(otr!(memory_snapshot, 0, null_mut()));
    /// Host memory needs a place.
    host_alloc: || Ok(otr!(host_alloc, 64, null_mut()));
    /// A new pool needs a place.
    pool_create: || Ok(otr!(pool_create, 0, null_mut()));
    /// A new generator needs a place.
    generator_create: || Ok(otr!(generator_create, 0, null_mut()));
    /// The default generator needs a place.
    generator_default: || Ok(otr!(generator_default, 0, null_mut()));
    /// A new graph needs a place.
    graph_create: || Ok(otr!(graph_create, 0, 0, null_mut()));
    /// The end of a capture needs a place for the graph.
    capture_end: || {
        let stream = stream()?;
        otr!(capture_begin, stream, OTR_CAPTURE_GLOBAL, 0)?;
        let answer = otr!(capture_end, stream, null_mut());
        otr!(capture_abort, stream, c"the test is over".as_ptr())?;
        Ok(answer)
    };
    /// An operator needs a name.
    operator_find_name: || Ok(otr!(operator_find, null(), &mut 0));
    /// An operator needs a place.
    operator_find_output: || Ok(otr!(operator_find, c"add".as_ptr(), null_mut()));
    /// A registration needs its struct.
    operator_register: || Ok(otr!(operator_register, null(), &mut 0));
    /// A registration needs a place, a name, an owner and a function.
    operator_register_members: || {
        let whole = registration();
        let none = otr_operator_registration_t { name: null(), ..whole };
        let nobody = otr_operator_registration_t { owner: null(), ..whole };
        let nothing = otr_operator_registration_t { function: None, ..whole };
        for params in [&none, &nobody, &nothing] {
            let answer = otr!(operator_register, params, &mut 0);
            refused(answer, Code::INVALID_ARGUMENT, "a registration without a member")?;
        }
        Ok(otr!(operator_register, &whole, null_mut()))
    };
    /// The list of registrations needs a place.
    operator_list: || Ok(otr!(operator_list, null_mut()));
    /// A call of an operator needs its operands.
    operator_call: || {
        let add = made(|out| otr!(operator_find, c"add".as_ptr(), out))?;
        Ok(otr!(operator_call, stream()?, add, null()))
    };
    /// A fill needs a pattern.
    fill_pattern: || {
        let stream = stream()?;
        Ok(otr!(fill, stream, alloc(64, stream)?, 64, null(), 4))
    };
    /// A host call needs a function.
    host_call: || Ok(otr!(host_call, stream()?, None, null_mut()));
    /// Default drivers need names.
    driver_default: || Ok(otr!(driver_default, null()));
    /// A driver needs a name.
    driver_load: || Ok(otr!(driver_load, null()));
    /// A trace needs a file.
    trace_begin: || Ok(otr!(trace_begin, null()));
    /// The priority of a stream needs a place.
    stream_priority: || Ok(otr!(stream_priority, stream()?, null_mut()));
    /// The time between two events needs a place.
    event_elapsed: || Ok(otr!(event_elapsed, event()?, event()?, null_mut()));
    /// The state of a generator needs two places.
    generator_state: || {
        let generator = made(|out| otr!(generator_default, 0, out))?;
        Ok(otr!(generator_state, generator, &mut 0, null_mut()))
    };
    /// A reservation of a generator's outputs needs two places, and nothing is drawn without.
    generator_reserve: || {
        let generator = made(|out| otr!(generator_default, 0, out))?;
        let answer = otr!(generator_reserve, generator, 9, null_mut(), &mut 0);
        let (mut seed, mut offset) = (0, 7);
        otr!(generator_state, generator, &mut seed, &mut offset)?;
        equal!(offset, 0, "what was drawn");
        Ok(answer)
    };
    /// Leave to fall back needs an operator.
    fallback_begin_name: || Ok(otr!(fallback_begin, null(), &mut 0));
    /// The answer whether to warn needs a place.
    fallback_begin_output: || Ok(otr!(fallback_begin, c"add".as_ptr(), null_mut()));
    /// A fallback that has run needs an operator.
    fallback_end: || Ok(otr!(fallback_end, null(), 1, 1));
    /// The mode of fallbacks needs a place.
    fallback_mode: || Ok(otr!(fallback_mode, null_mut()));
    /// A policy for fallbacks needs its text.
    fallback_set_policy: || Ok(otr!(fallback_set_policy, null()));
    /// The policy for fallbacks needs a place.
    fallback_policy: || Ok(otr!(fallback_policy, null_mut()));
    /// A report of operators needs a place.
    operator_report: || Ok(otr!(operator_report, null_mut()));
    /// Operators that are kept whole need a list.
    operator_keep_whole: || Ok(otr!(operator_keep_whole, 0, null(), 1));
    /// Whether an operator is offered needs a place.
    operator_offered: || {
        let add = made(|out| otr!(operator_find, c"add".as_ptr(), out))?;
        Ok(otr!(operator_offered, 0, add, null_mut()))
    };
    /// A history needs its options.
    history_start: || Ok(otr!(memory_history_start, 0, null()));
    /// A label needs a text.
    label_push: || Ok(otr!(memory_label_push, null()));
    /// Holders need a place.
    memory_holders: || Ok(otr!(memory_holders, 0, 9, null_mut()));
    /// A trace of memory needs a file.
    memory_trace_start: || Ok(otr!(memory_trace_start, 0, null()));
    /// A mark needs a text.
    memory_trace_mark: || Ok(otr!(memory_trace_mark, 0, null()));
    /// Exported memory needs a place for its text.
    memory_export: || Ok(otr!(memory_export, 0, alloc(64, stream()?)?, null_mut()));
    /// Imported memory needs its text.
    memory_import: || Ok(otr!(memory_import, 0, null(), &mut 0, &mut 0));
    /// Imported memory needs a place for its size.
    memory_import_size: || Ok(otr!(memory_import, 0, c"".as_ptr(), &mut 0, null_mut()));
    /// The limit of a device needs a place.
    memory_limit: || Ok(otr!(memory_limit, 0, null_mut()));
    /// The fraction of a device needs a place.
    memory_fraction: || Ok(otr!(memory_fraction, 0, null_mut()));
    /// The figures of the process need two places.
    memory_process_info: || Ok(otr!(memory_process_info, &mut 0, null_mut()));
    /// An observer needs a function.
    observer_add: || Ok(otr!(observer_add, OTR_OBSERVE_ALLOC, None, null_mut(), &mut 0));
    /// An observer of pressure needs a function.
    observer_add_pressure: || Ok(otr!(observer_add_pressure, None, null_mut(), &mut 0));
    /// The end of a profile needs a function.
    profile_stop: || Ok(otr!(profile_stop, None, null_mut()));
    /// The number of a profile before another one needs a place.
    profile_correlate: || Ok(otr!(profile_correlate, 1, null_mut()));
    /// Whether memory is pinned needs a place.
    host_is_pinned: || Ok(otr!(host_is_pinned, null(), null_mut()));
    /// Statistics of pinned memory need a place.
    host_stats: || Ok(otr!(host_stats, null_mut()));
    /// Memory of a pool needs a place for its address.
    pool_alloc: || Ok(otr!(pool_alloc, pool()?, 64, stream()?, null_mut()));
    /// The figures of a pool need a place.
    pool_info: || Ok(otr!(pool_info, pool()?, null_mut()));
    /// A snapshot of a pool needs a place.
    pool_snapshot: || Ok(otr!(pool_snapshot, pool()?, null_mut()));
    /// The state of a capture needs a place.
    capture_info: || Ok(otr!(capture_info, stream()?, null_mut()));
    /// The graph of what was recorded so far needs a place.
    capture_partial: || Ok(otr!(capture_partial, stream()?, null_mut()));
    /// A capture is given up for a reason.
    capture_abort: || Ok(otr!(capture_abort, stream()?, null()));
    /// A launch needs its kernel.
    host_kernel_launch: || Ok(otr!(host_kernel_launch, stream()?, null()));
    /// A launch needs a function.
    kernel_function: || {
        let call = otr_host_kernel_call_t { function: None, ..super::graphs::kernel() };
        Ok(otr!(host_kernel_launch, stream()?, &call))
    };
    /// A host function needs its struct.
    host_node: || Ok(otr!(host_node, stream()?, null()));
    /// A host function needs a function.
    host_node_function: || {
        let node = otr_host_node_t { function: None, ..super::building::functions::host_node(null_mut()) };
        Ok(otr!(host_node, stream()?, &node))
    };
    /// Figures of a graph need a place.
    graph_info: || Ok(otr!(graph_info, graph()?, null_mut()));
    /// A graph as text needs a place.
    graph_dump: || Ok(otr!(graph_dump, graph()?, OTR_GRAPH_JSON, null_mut()));
    /// A named buffer needs a name.
    graph_name_buffer: || Ok(otr!(graph_name_buffer, graph()?, null(), alloc(64, stream()?)?, 64));
    /// A named number needs a name.
    graph_name_scalar: || Ok(otr!(graph_name_scalar, graph()?, null(), 0, 0));
    /// A new executable graph needs a place.
    graph_instantiate: || Ok(otr!(graph_instantiate, graph()?, 0, null_mut()));
    /// The slot of a name needs the name.
    graph_slot: || Ok(otr!(graph_slot, executable()?, null(), &mut 0));
    /// A number that is bound is there.
    graph_bind_scalar: || Ok(otr!(graph_bind_scalar, executable()?, 0, null()));
    /// Figures of an executable graph need a place.
    graph_exec_info: || Ok(otr!(graph_exec_info, executable()?, null_mut()));
    /// A profile needs a place.
    graph_profile: || Ok(otr!(graph_profile, executable()?, stream()?, null_mut()));
    /// Costs need a place.
    graph_cost: || Ok(otr!(graph_cost, executable()?, stream()?, null_mut()));
    /// A report of what was loaded needs a place.
    load_report: || Ok(otr!(load_report, null_mut()));
    /// A report of fallbacks needs a place.
    fallback_report: || Ok(otr!(fallback_report, null_mut()));
    /// The device of a stream needs a place.
    stream_device: || Ok(otr!(stream_device, stream()?, null_mut()));
    /// A new node needs a place for its number, and nodes to run after are there if any are counted.
    graph_nodes: || {
        let graph = graph()?;
        let answer = otr!(graph_add_empty, graph, null(), 0, null_mut());
        refused(
            otr!(graph_add_empty, graph, null(), 1, &mut 0),
            Code::INVALID_ARGUMENT,
            "a list of one node at NULL",
        )?;
        let info: otr_graph_info_t = filled(|out| otr!(graph_info, graph, out))?;
        equal!(info.nodes, 0, "nodes that were added");
        Ok(answer)
    };
}

fn pool() -> Verdict<u64> {
    made(|out| otr!(pool_create, 0, out))
}

fn graph() -> Verdict<u64> {
    made(|out| otr!(graph_create, 0, 0, out))
}

fn executable() -> Verdict<u64> {
    super::executable(graph()?)
}
