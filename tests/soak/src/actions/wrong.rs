//! Misuses every entry that can be misused: with invalid handles, with NULL where a pointer is needed,
//! and with numbers that mean nothing. Each of these calls must fail, and break nothing.

use std::ptr::{null, null_mut};

use super::{Action, action};
use crate::actor::Actor;
use crate::library::{Outcome, call, problem};

pub(crate) const ACTIONS: &[Action] = &[action("wrong", 20, misuse)];

/// A call that must fail. It is given a handle that is none.
type Misuse = (&'static str, fn(u64) -> Outcome);

/// A device that is not there.
const NOWHERE: u32 = 4_000_000;

macro_rules! misuses {
    ($($entry:ident = |$handle:ident| ($($arg:expr),*);)*) => {
        &[$((stringify!($entry), |$handle| {
            let _ = $handle;
            call!($entry($($arg),*))
        }),)*]
    };
}

const MISUSES: &[Misuse] = misuses! {
    host_kernel_launch = |h| (h, null());
    host_node = |h| (h, null());
    capture_begin = |h| (h, 0, 0);
    capture_end = |h| (h, null_mut());
    capture_abort = |h| (h, c"why".as_ptr());
    capture_partial = |h| (h, null_mut());
    capture_info = |h| (h, null_mut());
    capture_label = |h| (h, c"part".as_ptr());
    capture_conditional = |h| (h, 1, 8, 6, null(), 1);
    copy = |h| (h, 8, 8, 8, 3);
    copy_peer = |h| (h, 0, 8, NOWHERE, 16, 8);
    fill = |h| (h, 8, 8, null(), 1);
    host_call = |h| (h, None, null_mut());
    communicator_id = |h| (NOWHERE, null_mut());
    communicator_create = |h| (0, null(), null_mut());
    communicator_destroy = |h| (h);
    communicator_abort = |h| (h);
    communicator_query = |h| (h);
    all_reduce = |h| (h, h, 8, 8, 8, 12, 1);
    reduce = |h| (h, h, 8, 8, 8, 12, 1, 0);
    reduce_scatter = |h| (h, h, 8, 8, 8, 12, 1);
    broadcast = |h| (h, h, 8, 8, 0);
    all_gather = |h| (h, h, 8, 16, 8);
    exchange = |h| (h, h, null(), 0);
    trace_begin = |h| (null());
    event_create = |h| (0, 77, null_mut());
    event_destroy = |h| (h);
    event_record = |h| (h, h);
    event_query = |h| (h, null_mut());
    event_synchronize = |h| (h);
    event_elapsed = |h| (h, h, null_mut());
    fallback_begin = |h| (null(), null_mut());
    fallback_end = |h| (null(), 0, 0);
    fallback_set_mode = |h| (99);
    fallback_mode = |h| (null_mut());
    fallback_report = |h| (null_mut());
    fallback_set_policy = |h| (c"loud".as_ptr());
    fallback_policy = |h| (null_mut());
    operator_report = |h| (null_mut());
    operator_timing = |h| (2);
    operator_register = |h| (null(), null_mut());
    operator_withdraw = |h| (h);
    operator_list = |h| (null_mut());
    operator_offered = |h| (0, 0, null_mut());
    operator_keep_whole = |h| (0, null(), 1);
    generator_create = |h| (NOWHERE, null_mut());
    generator_default = |h| (0, null_mut());
    generator_destroy = |h| (h);
    generator_seed = |h| (h, 1);
    generator_state = |h| (h, null_mut(), null_mut());
    generator_set_state = |h| (h, 1, 1);
    generator_reserve = |h| (h, 1, null_mut(), null_mut());
    graph_create = |h| (0, h | 1 << 63, null_mut());
    graph_destroy = |h| (h);
    graph_info = |h| (h, null_mut());
    graph_dump = |h| (h, 1, null_mut());
    graph_name_buffer = |h| (h, null(), 8, 8);
    graph_name_scalar = |h| (h, null(), 0, 0);
    graph_add_host_kernel = |h| (h, null(), 1, null(), null_mut());
    graph_add_operator = |h| (h, null(), 0, 0, null(), null_mut());
    graph_add_copy = |h| (h, null(), 0, 8, 16, 8, 3, null_mut());
    graph_add_fill = |h| (h, null(), 0, 8, 8, null(), 1, null_mut());
    graph_add_host = |h| (h, null(), 0, null(), null_mut());
    graph_add_empty = |h| (h, null(), 3, null_mut());
    graph_add_child = |h| (h, null(), 0, h, null_mut());
    graph_add_conditional = |h| (h, null(), 0, 9, 8, 6, null(), 1, null_mut());
    graph_add_alloc = |h| (h, null(), 0, 8, null_mut(), null_mut());
    graph_add_free = |h| (h, null(), 0, 8, null_mut());
    graph_instantiate = |h| (h, 0, null_mut());
    graph_exec_destroy = |h| (h);
    graph_replay = |h| (h, h);
    graph_slot = |h| (h, null(), null_mut());
    graph_bind = |h| (h, 0, 8);
    graph_bind_scalar = |h| (h, 0, null());
    graph_update = |h| (h, h);
    graph_name_argument = |h| (h, null(), 0, 0);
    graph_bind_argument = |h| (h, 0, null(), 4);
    graph_add_kernel = |h| (h, null(), 0, h, null(), null_mut());
    module_load = |h| (0, null(), null_mut());
    module_query = |h| (h, null_mut());
    module_destroy = |h| (h);
    kernel_get = |h| (h, null(), null_mut());
    kernel_destroy = |h| (h);
    kernel_launch = |h| (h, h, null());
    graph_exec_info = |h| (h, null_mut());
    graph_profile = |h| (h, h, null_mut());
    graph_cost = |h| (h, h, null_mut());
    graph_check = |h| (h, h);
    memory_history_start = |h| (0, null());
    memory_history_stop = |h| (NOWHERE);
    memory_history_clear = |h| (NOWHERE);
    memory_label_push = |h| (null());
    memory_holders = |h| (NOWHERE, 1, null_mut());
    memory_trace_start = |h| (0, null());
    memory_trace_stop = |h| (NOWHERE);
    memory_trace_mark = |h| (NOWHERE, c"step".as_ptr());
    memory_alloc = |h| (0, 8, h, null_mut());
    memory_free = |h| (0, h | 1 << 63);
    memory_record_stream = |h| (NOWHERE, 8, h);
    memory_find = |h| (8, null_mut());
    memory_pointer_info = |h| (0, 8, null_mut());
    memory_export = |h| (0, 8, null_mut());
    memory_import = |h| (0, null(), null_mut(), null_mut());
    memory_close = |h| (0, 8);
    memory_empty_cache = |h| (NOWHERE);
    memory_trim = |h| (NOWHERE, 0, null_mut());
    memory_info = |h| (0, null_mut(), null_mut());
    memory_stats = |h| (0, null_mut());
    memory_reset_peak = |h| (NOWHERE);
    memory_reset_accumulated = |h| (NOWHERE);
    memory_set_limit = |h| (NOWHERE, 8);
    memory_limit = |h| (NOWHERE, null_mut());
    memory_set_fraction = |h| (0, -1.0);
    memory_fraction = |h| (NOWHERE, null_mut());
    memory_process_info = |h| (null_mut(), null_mut());
    memory_snapshot = |h| (NOWHERE, null_mut());
    observer_add = |h| (0, None, null_mut(), null_mut());
    observer_add_pressure = |h| (None, null_mut(), null_mut());
    observer_remove = |h| (h);
    profile_stop = |h| (None, null_mut());
    profile_correlate = |h| (h, null_mut());
    operator_find = |h| (null(), null_mut());
    operator_call = |h| (h, NOWHERE, null());
    host_alloc = |h| (8, null_mut());
    host_free = |h| (std::ptr::without_provenance_mut(8));
    host_record_stream = |h| (std::ptr::without_provenance_mut(8), h);
    host_is_pinned = |h| (null(), null_mut());
    host_stats = |h| (null_mut());
    pool_create = |h| (NOWHERE, null_mut());
    pool_destroy = |h| (h);
    pool_info = |h| (h, null_mut());
    pool_alloc = |h| (h, 8, h, null_mut());
    pool_begin_use = |h| (h, 0);
    pool_end_use = |h| (h);
    pool_set_limit = |h| (h, 8);
    pool_sleep = |h| (h, null_mut());
    pool_wake = |h| (h);
    pool_snapshot = |h| (h, null_mut());
    tune_choose = |h| (NOWHERE, null(), null_mut(), null_mut());
    store_get = |h| (null(), 1, null_mut(), 0, null_mut());
    store_put = |h| (null(), 1, null(), 0, null_mut());
    driver_default = |h| (null());
    driver_load = |h| (null());
    load_report = |h| (null_mut());
    device_count = |h| (null_mut());
    device_info = |h| (0, null_mut());
    device_current = |h| (null_mut());
    device_set_current = |h| (NOWHERE);
    device_synchronize = |h| (NOWHERE);
    stream_default = |h| (NOWHERE, null_mut());
    stream_from_pool = |h| (0, 0, null_mut());
    stream_create = |h| (0, 0, null_mut());
    stream_destroy = |h| (h);
    stream_device = |h| (h, null_mut());
    stream_priority = |h| (h, null_mut());
    stream_current = |h| (0, null_mut());
    stream_set_current = |h| (h);
    stream_query = |h| (h, null_mut());
    stream_synchronize = |h| (h);
    stream_flush = |h| (h);
    stream_wait_event = |h| (h, h);
};

fn misuse(actor: &mut Actor) {
    let Some((name, misuse)) = actor.rng.choice(MISUSES) else {
        return;
    };
    let handle = actor.garbage();
    // A use of a pool whose handle was given up goes on until it is ended by that.
    if actor.uses.iter().any(|pool| pool.id == handle) {
        return;
    }
    if misuse(handle).is_ok() {
        problem(&format!("{name}: succeeds with arguments that are none"));
    }
}
