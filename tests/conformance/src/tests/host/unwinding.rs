//! H4: a panic that leaves a function of the host ends the process where the library called the
//! function. Each test lets a panic out of one function, in its own process. The call must not return
//! to the caller, with an outcome or with a panic.

use std::ffi::c_void;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Stdio;
use std::ptr::null_mut;

use crate::tests::host::bindings::*;
use outrigger_device::sys::otr_host_fn;

use super::building::functions::host_node;
use super::{add, alloc, begin, end, executable, history, otr, start, stream};
use crate::test::tests;
use crate::verdict::equal;
use crate::{Context, Helper, Verdict};

/// A test for each function, and the helper that lets a panic out of it.
macro_rules! escapes {
    ($($(#[doc = $about:literal])+ $name:ident $helper:literal $(, needs $($need:ident)+)?;)+) => {
        tests! { "host-abi.unwinding": $(
            $(#[doc = $about])+
            $name: H4 $(, needs $($need)+)?, run |context| ends(context, $helper)
       ;)+ }

        /// The work of the other processes.
        pub(in crate::tests) const HELPERS: &[Helper] = &[$(Helper {
            name: $helper,
            run: |context| caught(context, $name),
        }),+];
    };
}

escapes! {
    /// An observer of memory ends the process.
    observer "unwinding-observer";
    /// An observer of fallbacks ends the process.
    observer_of_fallbacks "unwinding-fallback";
    /// An observer that is asked to release memory ends the process.
    pressure "unwinding-pressure";
    /// A function that tells where an allocation comes from ends the process.
    context_capture "unwinding-capture";
    /// A function that is given a context back ends the process.
    context_release "unwinding-release";
    /// A function that tells the frames of a context ends the process.
    context_frames "unwinding-frames";
    /// A host function of a stream ends the process.
    node_of_a_stream "unwinding-node";
    /// A host function of a graph ends the process.
    node_of_a_graph "unwinding-graph-node";
    /// A host call of a graph ends the process.
    call_of_a_graph "unwinding-graph-call";
    /// A function that is given user data back ends the process.
    destroy_of_a_stream "unwinding-destroy";
    /// A function that is given user data back by a graph ends the process.
    destroy_of_a_graph "unwinding-graph-destroy";
    /// A function that is told what a profile has noted ends the process.
    profiled "unwinding-profile";
    /// A registered operator ends the process.
    registered "unwinding-registered";
    /// A lent executor ends the process.
    executor "unwinding-executor", needs OwnOperators;
}

/// Starts the other process, which has to end by SIGABRT.
fn ends(context: &Context, helper: &str) -> Verdict {
    let mut command = context.helper(helper)?;
    let status = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    equal!(
        (status.signal(), status.code()),
        (Some(libc::SIGABRT), None),
        "how a process ends out of whose function something unwinds"
    );
    Ok(())
}

/// The other process: a panic that comes through the library is caught, so that it is none of ours that
/// ends the process.
fn caught(context: &Context, escape: fn() -> Verdict) -> Verdict {
    start(context)?;
    catch_unwind(AssertUnwindSafe(escape)).unwrap_or(Ok(()))
}

/// A function of the host out of which a panic unwinds, under the type that the contract has for it.
macro_rules! unwinding {
    (($($type:ty),*) $(-> $answer:ty)?) => {{
        unsafe extern "C-unwind" fn escape($(_: $type),*) $(-> $answer)? {
            panic!("a function of the host failed")
        }
        type Escape = unsafe extern "C-unwind" fn($($type),*) $(-> $answer)?;
        type Plain = unsafe extern "C" fn($($type),*) $(-> $answer)?;
        // SAFETY: the two types differ only in whether the function may unwind, which is what is tested.
        unsafe { std::mem::transmute::<Escape, Plain>(escape) }
    }};
}

fn observe(kinds: u32) -> Verdict {
    let function = unwinding!((*mut c_void, *const otr_observation_t));
    otr!(observer_add, kinds, Some(function), null_mut(), &mut 0)?;
    Ok(())
}

fn observer() -> Verdict {
    let stream = stream()?;
    observe(OTR_OBSERVE_ALLOC)?;
    alloc(4096, stream).map(drop)
}

fn observer_of_fallbacks() -> Verdict {
    observe(OTR_OBSERVE_FALLBACK)?;
    let name = c"nothing".as_ptr();
    otr!(fallback_begin, name, &mut 0)?;
    Ok(otr!(fallback_end, name, 1, 1)?)
}

fn profiled() -> Verdict {
    static ZERO: u8 = 0;
    let function = unwinding!((*mut c_void, *const otr_profiled_work_t));
    let stream = stream()?;
    otr!(profile_start)?;
    let address = alloc(4096, stream)?;
    let pattern = &raw const ZERO;
    otr!(fill, stream, address, 4096, pattern.cast(), 1)?;
    Ok(otr!(profile_stop, Some(function), null_mut())?)
}

fn registered() -> Verdict {
    type Call = outrigger_device::sys::otr_operator_call_t;
    let mut params = super::arguments::registration();
    params.function = Some(unwinding!(
        (*mut c_void, otr_stream_t, otr_operator_id_t, *const Call) -> *mut otr_status_t
    ));
    otr!(operator_register, &params, &mut 0)?;
    let mut id = 0;
    otr!(operator_find, params.name, &mut id)?;
    let call = super::operators::empty_call();
    Ok(otr!(operator_call, stream()?, id, &call)?)
}

fn pressure() -> Verdict {
    let function = unwinding!((*mut c_void, u32, u64) -> u32);
    otr!(observer_add_pressure, Some(function), null_mut(), &mut 0)?;
    let stream = stream()?;
    otr!(memory_set_limit, 0, 1 << 20)?;
    alloc(4 << 20, stream).map(drop)
}

fn keep(options: otr_history_options_t) -> Verdict {
    Ok(otr!(memory_history_start, 0, &options)?)
}

unsafe extern "C" fn seven(_: *mut c_void) -> u64 {
    7
}

fn context_capture() -> Verdict {
    let stream = stream()?;
    keep(otr_history_options_t {
        capture: Some(unwinding!((*mut c_void) -> u64)),
        ..history::options(8)
    })?;
    alloc(4096, stream).map(drop)
}

fn context_release() -> Verdict {
    let stream = stream()?;
    keep(otr_history_options_t {
        capture: Some(seven),
        release: Some(unwinding!((*mut c_void, u64))),
        ..history::options(8)
    })?;
    otr!(memory_free, 0, alloc(4096, stream)?)?;
    Ok(otr!(memory_history_stop, 0)?)
}

fn context_frames() -> Verdict {
    let stream = stream()?;
    keep(otr_history_options_t {
        capture: Some(seven),
        frames: Some(unwinding!((*mut c_void, u64, otr_frame_fn, *mut c_void))),
        ..history::options(8)
    })?;
    alloc(4096, stream)?;
    Ok(otr!(memory_snapshot, 0, &mut null_mut())?)
}

/// A host function that fails to stay within itself.
fn escaping_node() -> otr_host_node_t {
    otr_host_node_t {
        function: Some(unwinding!((*mut c_void, i64, i32) -> i32)),
        ..host_node(null_mut())
    }
}

unsafe extern "C" fn passes(_: *mut c_void, _: i64, upstream: i32) -> i32 {
    upstream
}

/// A host function whose data is given back so.
fn escaping_destroy() -> otr_host_node_t {
    otr_host_node_t {
        function: Some(passes),
        destroy: Some(unwinding!((*mut c_void))),
        ..host_node(null_mut())
    }
}

fn of_a_stream(node: &otr_host_node_t) -> Verdict {
    let stream = stream()?;
    otr!(host_node, stream, node)?;
    Ok(otr!(stream_synchronize, stream)?)
}

fn node_of_a_stream() -> Verdict {
    of_a_stream(&escaping_node())
}

fn destroy_of_a_stream() -> Verdict {
    of_a_stream(&escaping_destroy())
}

/// Replays what is captured, and gives it back.
fn replayed(capture: impl FnOnce(u64) -> Verdict) -> Verdict {
    let stream = stream()?;
    begin(stream)?;
    capture(stream)?;
    let graph = end(stream)?;
    let exec = executable(graph)?;
    otr!(graph_destroy, graph)?;
    otr!(graph_replay, exec, stream)?;
    otr!(stream_synchronize, stream)?;
    Ok(otr!(graph_exec_destroy, exec)?)
}

fn node_of_a_graph() -> Verdict {
    replayed(|stream| Ok(otr!(host_node, stream, &escaping_node())?))
}

fn call_of_a_graph() -> Verdict {
    let function: otr_host_fn = Some(unwinding!((*mut c_void, i32) -> i32));
    replayed(|stream| Ok(otr!(host_call, stream, function, null_mut())?))
}

fn destroy_of_a_graph() -> Verdict {
    replayed(|stream| Ok(otr!(host_node, stream, &escaping_destroy())?))?;
    // Data that a graph keeps goes when the driver says that the replay is over, and a call that waits sees that.
    Ok(otr!(device_synchronize, 0)?)
}

/// An executor has a type that is not unsafe.
type Executor = extern "C" fn(i64, i64, i64, otr_parallel_body_fn, *mut c_void);

fn executor() -> Verdict {
    const COUNT: i64 = 1 << 20;
    let function = unwinding!((i64, i64, i64, otr_parallel_body_fn, *mut c_void));
    // SAFETY: the same function; it asks nothing of its caller.
    let function = unsafe { std::mem::transmute::<*const (), Executor>(function as *const ()) };
    otr!(set_threads, 4)?;
    otr!(set_parallel_for, Some(function))?;
    let stream = stream()?;
    let address = alloc(4 * COUNT as u64, stream)?;
    add(stream, (address, address, address), COUNT, 1)?;
    Ok(otr!(stream_synchronize, stream)?)
}
