//! Hosts that are wrong on purpose: the table of the real library with one defect in it. Each entry in
//! this file replaces the real one, and calls it.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use outrigger_device::sys::{otr_host_fn, otr_operator_call_t};
use outrigger_device::{Code, Foreign};
use outrigger_ffi::*;
use parking_lot::Mutex;

/// A host with one defect on purpose.
pub(crate) struct Host {
    /// The word that asks for the host in the environment.
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// The rules of the host contract that it breaks, as `H19`.
    pub(crate) rules: &'static [&'static str],
    /// Puts the defect into a table.
    break_it: fn(&mut otr_host_api_t),
}

type Status = *mut otr_status_t;

/// The table of a host, for the life of the process; `none` is the one without a defect.
pub(crate) fn table(name: &str) -> Option<&'static otr_host_api_t> {
    let host = hosts().find(|host| host.name == name);
    // SAFETY: never NULL; a table is numbers and functions, of which a copy is as good.
    let mut table = unsafe { otr_host_api().read() };
    match host {
        Some(host) => (host.break_it)(&mut table),
        None if name == "none" => {}
        None => return None,
    }
    Some(Box::leak(Box::new(table)))
}

/// A status with another code than the one that a call gave, where it gave that one.
///
/// # Safety
/// `status` is NULL or live; it is the function's.
unsafe fn instead(status: Status, of: Code, other: fn() -> Status) -> Status {
    // SAFETY: `status` is NULL or live, and this function frees it once (H1).
    unsafe {
        if otr_status_code(status) != of.0 {
            return status;
        }
        otr_status_free(status);
    }
    other()
}

fn success() -> Status {
    null_mut()
}

/// A failure with INVALID_ARGUMENT.
fn wrong_argument() -> Status {
    // SAFETY: NULL is refused.
    unsafe { otr_device_count(null_mut()) }
}

macro_rules! hosts {
    ($($(#[doc = $about:literal])+ $name:ident [$($rule:ident)+] {
        $($entry:ident($($arg:ident: $type:ty),*) $(-> $answer:ty)? $body:block)+
    })+) => {
        /// Hosts with a defect of an entry.
        const HOSTS: &[Host] = &[$(Host {
            name: stringify!($name),
            about: concat!($($about),+),
            rules: &[$(stringify!($rule)),+],
            break_it: |table| {$(
                #[allow(unused_unsafe, reason = "some answer without the real library")]
                unsafe extern "C" fn $entry($($arg: $type),*) -> hosts!(@answer $($answer)?) {
                    // SAFETY: the arguments are those of a host that keeps the contract, and are handed on.
                    unsafe { $body }
                }
                table.$entry = $entry;
            )+},
        }),+];
    };
    (@answer) => { Status };
    (@answer $answer:ty) => { $answer };
}

thread_local! {
    /// Whether an observer runs on this thread.
    static OBSERVING: Cell<bool> = const { Cell::new(false) };
}

/// The host's function and pointer, for an observer in between.
struct Observer {
    function: otr_observer_fn,
    user: *mut c_void,
}

/// Calls the host's observer and says so meanwhile.
unsafe extern "C" fn observe(observer: *mut c_void, seen: *const otr_observation_t) {
    // SAFETY: a struct that was leaked for this function.
    let observer = unsafe { &*observer.cast::<Observer>() };
    OBSERVING.set(true);
    if let Some(function) = observer.function {
        // SAFETY: the host's function with its pointer.
        unsafe { function(observer.user, seen) };
    }
    OBSERVING.set(false);
}

/// Calls the host's observer, whatever becomes of it.
unsafe extern "C" fn swallow(observer: *mut c_void, seen: *const otr_observation_t) {
    // SAFETY: a struct that was leaked for this function.
    let observer = unsafe { &*observer.cast::<Observer>() };
    if let Some(function) = observer.function {
        // SAFETY: the host's function with its pointer.
        let call = || unsafe { function.unwinding()(observer.user, seen) };
        drop(catch_unwind(AssertUnwindSafe(call)));
    }
}

hosts! {
    /// The runtime is made ready once, and a second call for it fails.
    second_start_fails [H1] {
        runtime_init() {
            static STARTED: AtomicBool = AtomicBool::new(false);
            if STARTED.swap(true, Ordering::SeqCst) { wrong_argument() } else { otr_runtime_init() }
        }
    }

    /// An allocation that fails writes an address.
    output_on_failure [H2] {
        memory_alloc(device: u32, size: u64, stream: u64, address: *mut u64) {
            let status = otr_memory_alloc(device, size, stream, address);
            if !status.is_null() && !address.is_null() {
                *address = 0xdead_0000;
            }
            status
        }
    }

    /// A status has no text.
    text_empty [H3] {
        status_message(_status: *const otr_status_t) -> *const c_char { c"".as_ptr() }
    }

    /// A status does not tell the stream whose work has failed.
    stream_not_told [H3] {
        status_stream(_status: *const otr_status_t) -> u64 { 0 }
    }

    /// An exception or a panic that leaves an observer goes no further, and nobody hears of it.
    escape_swallowed [H4] {
        observer_add(kinds: u32, function: otr_observer_fn, user: *mut c_void, observer: *mut u64) {
            if function.is_none() {
                return otr_observer_add(kinds, function, user, observer);
            }
            let user = Box::leak(Box::new(Observer { function, user }));
            otr_observer_add(kinds, Some(swallow), (&raw mut *user).cast(), observer)
        }
    }

    /// A stream that is none is destroyed with success.
    stale_stream_destroyed [H5] {
        stream_destroy(stream: u64) {
            instead(otr_stream_destroy(stream), Code::INVALID_HANDLE, success)
        }
    }

    /// A NULL output is taken.
    null_output_taken [H6] {
        device_count(count: *mut u32) {
            if count.is_null() { null_mut() } else { otr_device_count(count) }
        }
    }

    /// A label that is not UTF-8 is taken.
    any_bytes_taken [H7] {
        memory_label_push(label: *const c_char) {
            if !label.is_null() && CStr::from_ptr(label).to_str().is_err() {
                return otr_memory_label_push(c"?".as_ptr());
            }
            otr_memory_label_push(label)
        }
    }

    /// A device that does not exist is answered with the code of a wrong argument.
    wrong_code_for_device [H8] {
        device_info(device: u32, info: *mut otr_device_info_t) {
            instead(otr_device_info(device, info), Code::INVALID_DEVICE, wrong_argument)
        }
    }

    /// Unknown flags of an event are taken.
    unknown_flag_taken [H8] {
        event_create(device: u32, flags: u32, event: *mut u64) {
            otr_event_create(device, flags & OTR_EVENT_TIMED, event)
        }
    }

    /// A struct is filled as a whole, beyond the size that the host states.
    struct_filled_too_far [H9] {
        pool_info(pool: u64, info: *mut otr_pool_info_t) {
            if info.is_null() || (*info).struct_size < size_of::<usize>() {
                return otr_pool_info(pool, info);
            }
            let stated = (*info).struct_size;
            let mut whole = otr_pool_info_t { struct_size: size_of::<otr_pool_info_t>(), ..std::mem::zeroed() };
            let status = otr_pool_info(pool, &mut whole);
            if status.is_null() {
                whole.struct_size = stated;
                info.write(whole);
            }
            status
        }
    }

    /// The reserved field of a host function is not looked at.
    reserved_ignored [H10] {
        host_node(stream: u64, node: *const otr_host_node_t) {
            if node.is_null() || (*node).struct_size < size_of::<otr_host_node_t>() {
                return otr_host_node(stream, node);
            }
            otr_host_node(stream, &otr_host_node_t { reserved: 0, next: null(), ..*node })
        }
    }

    /// A string that is handed out stays the library's.
    string_not_handed_out [H11] {
        load_report(json: *mut *mut c_char) {
            let status = otr_load_report(json);
            if status.is_null() {
                otr_string_free(*json);
                *json = c"[]".as_ptr().cast_mut();
            }
            status
        }
    }

    /// A stream of the runtime is destroyed with success, and stays.
    stream_of_the_runtime_destroyed [H12] {
        stream_destroy(stream: u64) {
            instead(otr_stream_destroy(stream), Code::INVALID_ARGUMENT, success)
        }
    }

    /// Destroying a stream waits for its work.
    destroy_waits [H13] {
        stream_destroy(stream: u64) {
            otr_status_free(otr_stream_synchronize(stream));
            otr_stream_destroy(stream)
        }
    }

    /// A host call is lost where two threads submit one at the same time.
    host_call_lost_in_a_race [H14] {
        host_call(stream: u64, function: otr_host_fn, user: *mut c_void) {
            static BUSY: AtomicBool = AtomicBool::new(false);
            if BUSY.swap(true, Ordering::AcqRel) {
                return null_mut();
            }
            // Widens the window, so that the race is met within a test.
            std::thread::sleep(Duration::from_micros(20));
            let status = otr_host_call(stream, function, user);
            BUSY.store(false, Ordering::Release);
            status
        }
    }

    /// Removing an observer does not wait for its last call.
    remove_does_not_wait [H14] {
        observer_add(kinds: u32, function: otr_observer_fn, user: *mut c_void, observer: *mut u64) {
            let status = otr_observer_add(kinds, function, user, observer);
            if status.is_null() {
                OBSERVERS.lock().get_or_insert_default().insert(*observer, true);
            }
            status
        }
        observer_remove(observer: u64) {
            match OBSERVERS.lock().get_or_insert_default().get_mut(&observer) {
                Some(added) if *added => *added = false,
                // A second time it is no observer any more.
                Some(_) => return otr_observer_remove(0),
                None => return otr_observer_remove(observer),
            }
            std::thread::spawn(move || otr_status_free(otr_observer_remove(observer)));
            null_mut()
        }
    }

    /// The current device is that of all threads.
    device_of_all_threads [H15] {
        device_set_current(device: u32) {
            let status = otr_device_set_current(device);
            if status.is_null() {
                CURRENT.store(device, Ordering::SeqCst);
            }
            status
        }
        device_current(device: *mut u32) {
            let status = otr_device_current(device);
            if status.is_null() {
                *device = CURRENT.load(Ordering::SeqCst);
            }
            status
        }
    }

    /// An observer cannot allocate.
    observers_may_not_call [H16] {
        observer_add(kinds: u32, function: otr_observer_fn, user: *mut c_void, observer: *mut u64) {
            if function.is_none() {
                return otr_observer_add(kinds, function, user, observer);
            }
            let user = Box::leak(Box::new(Observer { function, user }));
            otr_observer_add(kinds, Some(observe), (&raw mut *user).cast(), observer)
        }
        memory_alloc(device: u32, size: u64, stream: u64, address: *mut u64) {
            if OBSERVING.get() {
                return wrong_argument();
            }
            otr_memory_alloc(device, size, stream, address)
        }
    }

    /// A forked child is handed memory.
    fork_not_noticed [H17] {
        memory_alloc(device: u32, size: u64, stream: u64, address: *mut u64) {
            instead(otr_memory_alloc(device, size, stream, address), Code::FORKED, success)
        }
    }

    /// Fills run in the order of the default stream.
    fill_on_another_stream [H18] {
        fill(stream: u64, dst: u64, size: u64, pattern: *const c_void, width: u32) {
            let (mut device, mut other) = (0, stream);
            otr_status_free(otr_stream_device(stream, &mut device));
            otr_status_free(otr_stream_default(device, &mut other));
            otr_fill(other, dst, size, pattern, width)
        }
    }

    /// A submission waits for the work before it.
    submission_waits [H18] {
        host_call(stream: u64, function: otr_host_fn, user: *mut c_void) {
            let status = otr_host_call(stream, function, user);
            otr_status_free(otr_stream_synchronize(stream));
            status
        }
    }

    /// A stream whose work has failed reports success.
    failure_lost [H19] {
        stream_synchronize(stream: u64) {
            instead(otr_stream_synchronize(stream), Code::EXECUTION, success)
        }
    }

    /// A stream that has failed once fails for ever.
    failure_stays [H19] {
        stream_synchronize(stream: u64) {
            static FAILED: Mutex<Option<HashSet<u64>>> = Mutex::new(None);
            let status = otr_stream_synchronize(stream);
            let failed = &mut *FAILED.lock();
            let failed = failed.get_or_insert_default();
            if otr_status_code(status) == Code::EXECUTION.0 {
                failed.insert(stream);
            }
            if status.is_null() && failed.contains(&stream) { wrong_argument() } else { status }
        }
    }

    /// An event does not carry the failure of the work before it.
    event_failure_lost [H20] {
        event_synchronize(event: u64) {
            instead(otr_event_synchronize(event), Code::EXECUTION, success)
        }
    }

    /// An event that was never recorded has not passed.
    event_not_passed_at_first [H20] {
        event_create(device: u32, flags: u32, event: *mut u64) {
            let status = otr_event_create(device, flags, event);
            if status.is_null() {
                NEW_EVENTS.lock().get_or_insert_default().insert(*event);
            }
            status
        }
        event_record(event: u64, stream: u64) {
            NEW_EVENTS.lock().get_or_insert_default().remove(&event);
            otr_event_record(event, stream)
        }
        event_query(event: u64, passed: *mut u32) {
            let status = otr_event_query(event, passed);
            if status.is_null() && NEW_EVENTS.lock().get_or_insert_default().contains(&event) {
                *passed = 0;
            }
            status
        }
    }

    /// No bytes have an address.
    nothing_has_an_address [H21] {
        memory_alloc(device: u32, size: u64, stream: u64, address: *mut u64) {
            otr_memory_alloc(device, size.max(1), stream, address)
        }
    }

    /// An address is freed on whichever device has it.
    device_of_an_address_ignored [H21] {
        memory_free(device: u32, address: u64) {
            let mut owner = device;
            otr_status_free(otr_memory_find(address, &mut owner));
            otr_memory_free(owner, address)
        }
    }

    /// A number is taken for an address of the first device.
    number_of_the_first_device [H21] {
        memory_find(address: u64, device: *mut u32) {
            let status = otr_memory_find(address, device);
            if status.is_null() {
                *device = 0;
            }
            status
        }
    }

    /// A fill of a range that is no memory succeeds.
    ranges_unchecked [H22] {
        fill(stream: u64, dst: u64, size: u64, pattern: *const c_void, width: u32) {
            instead(otr_fill(stream, dst, size, pattern, width), Code::INVALID_ARGUMENT, success)
        }
    }

    /// The streams that use memory are forgotten.
    streams_forgotten [H23] {
        memory_record_stream(_device: u32, _address: u64, _stream: u64) { null_mut() }
    }

    /// After the first time that memory ran out, nothing can be allocated any more.
    out_of_memory_for_good [H24] {
        memory_alloc(device: u32, size: u64, stream: u64, address: *mut u64) {
            static OUT: AtomicBool = AtomicBool::new(false);
            let size = if OUT.load(Ordering::SeqCst) { u64::MAX } else { size };
            let status = otr_memory_alloc(device, size, stream, address);
            if otr_status_code(status) == Code::OUT_OF_MEMORY.0 {
                OUT.store(true, Ordering::SeqCst);
            }
            status
        }
    }

    /// Captured work also runs at once.
    capture_runs [H25] {
        fill(stream: u64, dst: u64, size: u64, pattern: *const c_void, width: u32) {
            let mut info = otr_capture_info_t { struct_size: size_of::<otr_capture_info_t>(), ..std::mem::zeroed() };
            otr_status_free(otr_capture_info(stream, &mut info));
            let mut other = 0;
            if info.status == OTR_CAPTURE_ACTIVE && otr_stream_default(0, &mut other).is_null() {
                otr_status_free(otr_fill(other, dst, size, pattern, width));
                otr_status_free(otr_stream_synchronize(other));
            }
            otr_fill(stream, dst, size, pattern, width)
        }
    }

    /// Waiting for a stream that captures succeeds.
    capture_is_idle [H26] {
        stream_synchronize(stream: u64) {
            instead(otr_stream_synchronize(stream), Code::CAPTURE, success)
        }
    }

    /// A graph that is destroyed takes with it what was instantiated from it.
    graph_takes_its_executables [H27] {
        graph_instantiate(graph: u64, flags: u32, exec: *mut u64) {
            let status = otr_graph_instantiate(graph, flags, exec);
            if status.is_null() {
                EXECUTABLES.lock().get_or_insert_default().entry(graph).or_default().push(*exec);
            }
            status
        }
        graph_destroy(graph: u64) {
            let gone = EXECUTABLES.lock().get_or_insert_default().remove(&graph);
            for exec in gone.into_iter().flatten() {
                otr_status_free(otr_graph_exec_destroy(exec));
            }
            otr_graph_destroy(graph)
        }
    }

    /// A binding is taken and does nothing.
    binding_lost [H28] {
        graph_bind(exec: u64, slot: u32, address: u64) {
            let mut info = otr_pointer_info_t { struct_size: size_of::<otr_pointer_info_t>(), ..std::mem::zeroed() };
            let known = otr_memory_pointer_info(0, address, &mut info);
            if known.is_null() {
                return null_mut();
            }
            otr_status_free(known);
            otr_graph_bind(exec, slot, address)
        }
    }

    /// A registration stays in force after its end.
    withdraws_nothing [H5 H11] {
        operator_withdraw(_registration: u64) {
            success()
        }
    }

    /// A second registration takes the place of the first without being asked to.
    registers_over_another [H2] {
        operator_register(params: *const otr_operator_registration_t, registration: *mut u64) {
            let Some(params) = params.as_ref() else {
                return otr_operator_register(params, registration);
            };
            let flags = params.flags | OTR_REGISTER_REPLACE;
            otr_operator_register(&otr_operator_registration_t { flags, ..*params }, registration)
        }
    }

    /// A call for which there is no kernel counts as a wrong one.
    unsupported_is_wrong [H29] {
        operator_call(stream: u64, operator: u32, call: *const otr_operator_call_t) {
            instead(otr_operator_call(stream, operator, call), Code::UNSUPPORTED, wrong_argument)
        }
    }

    /// A fallback begins although fallbacks are refused.
    refused_fallback_begins [H29] {
        fallback_begin(operator: *const c_char, warning: *mut u32) {
            instead(otr_fallback_begin(operator, warning), Code::UNSUPPORTED, success)
        }
    }
}

/// A defect of the table itself.
const TOO_SHORT: Host = Host {
    name: "table_too_short",
    about: " The table says that it ends before its last entry.",
    rules: &["H30"],
    break_it: |table| table.struct_size -= size_of::<usize>(),
};

/// All hosts with a defect; their names differ.
pub(crate) fn hosts() -> impl Iterator<Item = &'static Host> {
    HOSTS.iter().chain([&TOO_SHORT])
}

/// The device that all threads share.
static CURRENT: AtomicU32 = AtomicU32::new(0);

/// Observers, and whether they were not removed yet.
static OBSERVERS: Mutex<Option<HashMap<u64, bool>>> = Mutex::new(None);

/// Events that were never recorded.
static NEW_EVENTS: Mutex<Option<HashSet<u64>>> = Mutex::new(None);

/// Executable graphs, by the graph that they come from.
static EXECUTABLES: Mutex<Option<HashMap<u64, Vec<u64>>>> = Mutex::new(None);
