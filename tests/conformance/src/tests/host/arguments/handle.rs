//! H5: invalid ids: 0, stale ids, ids of another kind, and garbage.

use super::*;

macro_rules! handles {
    ($($(#[doc = $about:literal])+ $name:ident: $kind:ident, $call:expr;)*) => {
        tests! { "host-abi.handle": $(
            $(#[doc = $about])+
            $name: H3 H5, run |context| {
                start(context)?;
                let call: fn(u64) -> Verdict<Result<(), Refused>> = $call;
                for (what, id, says) in wrong(Kind::$kind)? {
                    let told = refused(call(id)?, Code::INVALID_HANDLE, what)?;
                    check!(told.text.contains(says), "H3: {says:?} in {:?}", told.text);
                }
                Ok(())
            }
        ;)* }
    };
}

handles! {
    /// A stream that is none is not destroyed.
    stream_destroy: Stream, |id| Ok(otr!(stream_destroy, id));
    /// A stream that is none is not queried.
    stream_query: Stream, |id| Ok(otr!(stream_query, id, &mut 0));
    /// A stream that is none is not waited for.
    stream_synchronize: Stream, |id| Ok(otr!(stream_synchronize, id));
    /// A stream that is none is not flushed.
    stream_flush: Stream, |id| Ok(otr!(stream_flush, id));
    /// A stream that is none has no native queue.
    stream_native: Stream, |id| Ok(otr!(stream_native, id, &mut 0));
    /// A stream that is none has no device.
    stream_device: Stream, |id| Ok(otr!(stream_device, id, &mut 0));
    /// A stream that is none does not become the current one.
    stream_set_current: Stream, |id| Ok(otr!(stream_set_current, id));
    /// A stream that is none does not wait.
    stream_wait_event: Stream, |id| Ok(otr!(stream_wait_event, id, event()?));
    /// A stream does not wait for an event that is none.
    stream_wait_no_event: Event, |id| Ok(otr!(stream_wait_event, stream()?, id));
    /// A stream that is none takes no fill.
    fill: Stream, |id| {
        let stream = stream()?;
        let address = alloc(64, stream)?;
        Ok(otr!(fill, id, address, 64, [1u8].as_ptr().cast(), 1))
    };
    /// A stream that is none takes no host call.
    host_call: Stream, |id| Ok(otr!(host_call, id, Some(never), null_mut()));
    /// A stream that is none allocates nothing.
    memory_alloc: Stream, |id| Ok(otr!(memory_alloc, 0, 64, id, &mut 0));
    /// A stream that is none does not capture.
    capture_begin: Stream, |id| Ok(otr!(capture_begin, id, OTR_CAPTURE_GLOBAL, 0));
    /// A stream that is none calls no operator.
    operator_call: Stream, |id| {
        let add = made(|out| otr!(operator_find, c"add".as_ptr(), out))?;
        let call = super::super::operators::empty_call();
        Ok(otr!(operator_call, id, add, &call))
    };
    /// A registration that is none is not withdrawn.
    operator_withdraw: Registration, |id| Ok(otr!(operator_withdraw, id));
    /// An event that is none is not destroyed.
    event_destroy: Event, |id| Ok(otr!(event_destroy, id));
    /// An event that is none is not recorded.
    event_record: Event, |id| Ok(otr!(event_record, id, stream()?));
    /// An event that is none is not queried.
    event_query: Event, |id| Ok(otr!(event_query, id, &mut 0));
    /// An event that is none is not waited for.
    event_synchronize: Event, |id| Ok(otr!(event_synchronize, id));
    /// A generator that is none is not destroyed.
    generator_destroy: Generator, |id| Ok(otr!(generator_destroy, id));
    /// A generator that is none is not seeded.
    generator_seed: Generator, |id| Ok(otr!(generator_seed, id, 1));
    /// A pool that is none is not destroyed.
    pool_destroy: Pool, |id| Ok(otr!(pool_destroy, id));
    /// A pool that is none has no memory.
    pool_alloc: Pool, |id| Ok(otr!(pool_alloc, id, 64, stream()?, &mut 0));
    /// A graph that is none is not destroyed.
    graph_destroy: Graph, |id| Ok(otr!(graph_destroy, id));
    /// A graph that is none is not instantiated.
    graph_instantiate: Graph, |id| Ok(otr!(graph_instantiate, id, 0, &mut 0));
    /// An executable graph that is none is not destroyed.
    graph_exec_destroy: Exec, |id| Ok(otr!(graph_exec_destroy, id));
    /// An executable graph that is none is not replayed.
    graph_replay: Exec, |id| Ok(otr!(graph_replay, id, stream()?));
    /// An observer that is none is not removed.
    observer_remove: Observer, |id| Ok(otr!(observer_remove, id));
    /// A stream that is none has no priority.
    stream_priority: Stream, |id| Ok(otr!(stream_priority, id, &mut 0));
    /// A stream that is none takes no copy.
    copy: Stream, |id| {
        let address = alloc(64, stream()?)?;
        let kind = CopyKind::DeviceToDevice.raw();
        Ok(otr!(copy, id, address, address + 32, 32, kind))
    };
    /// A stream that is none takes no copy between devices.
    copy_peer: Stream, |id| {
        let address = alloc(64, stream()?)?;
        Ok(otr!(copy_peer, id, 0, address, 0, address + 32, 32))
    };
    /// A stream that is none launches nothing.
    host_kernel_launch: Stream, |id| Ok(otr!(host_kernel_launch, id, &super::super::graphs::kernel()));
    /// A stream that is none takes no host function, which is not given back either.
    host_node: Stream, |id| {
        let node = super::super::building::functions::host_node(null_mut());
        Ok(otr!(host_node, id, &otr_host_node_t { destroy: Some(lost), ..node }))
    };
    /// An event is not recorded on a stream that is none.
    event_record_stream: Stream, |id| Ok(otr!(event_record, event()?, id));
    /// Memory is not said to be used by a stream that is none.
    memory_record_stream: Stream, |id| Ok(otr!(memory_record_stream, 0, alloc(64, stream()?)?, id));
    /// Pinned memory is not said to be used by a stream that is none.
    host_record_stream: Stream, |id| {
        let pointer = super::super::pinned::pinned(64)?;
        Ok(otr!(host_record_stream, pointer, id))
    };
    /// The time of an event that is none is not told.
    event_elapsed: Event, |id| Ok(otr!(event_elapsed, id, event()?, &mut 0.0));
    /// A generator that is none has no state.
    generator_state: Generator, |id| Ok(otr!(generator_state, id, &mut 0, &mut 0));
    /// The state of a generator that is none is not set.
    generator_set_state: Generator, |id| Ok(otr!(generator_set_state, id, 1, 2));
    /// A generator that is none draws nothing.
    generator_reserve: Generator, |id| Ok(otr!(generator_reserve, id, 1, &mut 0, &mut 0));
    /// A pool that is none holds nothing.
    pool_info: Pool, |id| {
        let info = &mut otr_pool_info_t::sized(size_of::<otr_pool_info_t>());
        Ok(otr!(pool_info, id, info))
    };
    /// A pool that is none is not used.
    pool_begin_use: Pool, |id| Ok(otr!(pool_begin_use, id, 0));
    /// The use of a pool that is none does not end.
    pool_end_use: Pool, |id| Ok(otr!(pool_end_use, id));
    /// A pool that is none has no limit.
    pool_set_limit: Pool, |id| Ok(otr!(pool_set_limit, id, 1));
    /// A pool that is none does not sleep.
    pool_sleep: Pool, |id| Ok(otr!(pool_sleep, id, null_mut()));
    /// A pool that is none is not woken.
    pool_wake: Pool, |id| Ok(otr!(pool_wake, id));
    /// A pool that is none has no segments.
    pool_snapshot: Pool, |id| Ok(otr!(pool_snapshot, id, &mut null_mut()));
    /// A stream that is none captures nothing that could be ended, given up, told of or labelled.
    capture: Stream, |id| {
        let info = &mut otr_capture_info_t::sized(size_of::<otr_capture_info_t>());
        let body = make(Kind::Graph)?;
        let predicate = alloc(64, stream()?)?;
        let all = [
            ("an end", otr!(capture_end, id, &mut 0)),
            ("an abort", otr!(capture_abort, id, c"why".as_ptr())),
            ("what was recorded", otr!(capture_partial, id, &mut 0)),
            ("a label", otr!(capture_label, id, c"part".as_ptr())),
            ("a conditional", otr!(
                capture_conditional, id, OTR_GRAPH_IF, predicate, DType::I64.0, &body, 1,
            )),
        ];
        for (what, answer) in all {
            refused(answer, Code::INVALID_HANDLE, what)?;
        }
        Ok(otr!(capture_info, id, info))
    };
    /// A graph that is none is neither looked at nor named in.
    graph_looked_at: Graph, |id| {
        let info = &mut otr_graph_info_t::sized(size_of::<otr_graph_info_t>());
        let address = alloc(64, stream()?)?;
        let name = c"x".as_ptr();
        let all = [
            ("a text", otr!(graph_dump, id, OTR_GRAPH_DOT, &mut null_mut())),
            ("a buffer's name", otr!(graph_name_buffer, id, name, address, 64)),
            ("a number's name", otr!(graph_name_scalar, id, name, 0, 0)),
        ];
        for (what, answer) in all {
            refused(answer, Code::INVALID_HANDLE, what)?;
        }
        Ok(otr!(graph_info, id, info))
    };
    /// Nothing is added to a graph that is none.
    graph_added_to: Graph, |id| {
        let (address, body, node) = (alloc(64, stream()?)?, make(Kind::Graph)?, &mut 0);
        let d2d = CopyKind::DeviceToDevice.raw();
        let pattern = [1u8];
        let kernel = super::super::graphs::kernel();
        let host = super::super::building::functions::host_node(null_mut());
        let host = otr_host_node_t { destroy: Some(lost), ..host };
        let operator = made(|out| otr!(operator_find, c"add".as_ptr(), out))?;
        let call = super::super::operators::empty_call();
        let all = [
            ("a kernel", otr!(graph_add_host_kernel, id, null(), 0, &kernel, node)),
            ("an operator", otr!(graph_add_operator, id, null(), 0, operator, &call, node)),
            ("a copy", otr!(graph_add_copy, id, null(), 0, address, address + 32, 32, d2d, node)),
            ("a fill", otr!(
                graph_add_fill, id, null(), 0, address, 64, pattern.as_ptr().cast(), 1, node,
            )),
            ("a host function", otr!(graph_add_host, id, null(), 0, &host, node)),
            ("a child", otr!(graph_add_child, id, null(), 0, body, node)),
            ("a child that is none", otr!(graph_add_child, body, null(), 0, id, node)),
            ("a conditional", otr!(
                graph_add_conditional, id, null(), 0, OTR_GRAPH_IF, address, DType::I64.0, &body, 1,
                node,
            )),
            ("a body that is none", otr!(
                graph_add_conditional, body, null(), 0, OTR_GRAPH_IF, address, DType::I64.0, &id, 1,
                node,
            )),
            ("an allocation", otr!(graph_add_alloc, id, null(), 0, 64, &mut 0, node)),
            ("a free", otr!(graph_add_free, id, null(), 0, address, node)),
        ];
        for (what, answer) in all {
            refused(answer, Code::INVALID_HANDLE, what)?;
        }
        Ok(otr!(graph_add_empty, id, null(), 0, node))
    };
    /// An executable graph that is none is not looked at, bound, updated, timed or checked.
    graph_exec_used: Exec, |id| {
        let (stream, number) = (stream()?, scalar(DType::I64, 1));
        let info = &mut otr_graph_exec_info_t::sized(size_of::<otr_graph_exec_info_t>());
        let all = [
            ("a slot", otr!(graph_slot, id, c"x".as_ptr(), &mut 0)),
            ("a bound buffer", otr!(graph_bind, id, 0, alloc(64, stream)?)),
            ("a bound number", otr!(graph_bind_scalar, id, 0, &number)),
            ("an update", otr!(graph_update, id, make(Kind::Graph)?)),
            ("a profile", otr!(graph_profile, id, stream, &mut null_mut())),
            ("a cost", otr!(graph_cost, id, stream, &mut null_mut())),
            ("a check", otr!(graph_check, id, stream)),
        ];
        for (what, answer) in all {
            refused(answer, Code::INVALID_HANDLE, what)?;
        }
        Ok(otr!(graph_exec_info, id, info))
    };
    /// A graph is not replayed, timed or checked on a stream that is none.
    graph_replay_stream: Stream, |id| {
        let exec = make(Kind::Exec)?;
        let all = [
            ("a profile", otr!(graph_profile, exec, id, &mut null_mut())),
            ("a cost", otr!(graph_cost, exec, id, &mut null_mut())),
            ("a check", otr!(graph_check, exec, id)),
        ];
        for (what, answer) in all {
            refused(answer, Code::INVALID_HANDLE, what)?;
        }
        Ok(otr!(graph_replay, exec, id))
    };
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Stream,
    Event,
    Generator,
    Pool,
    Graph,
    Exec,
    Observer,
    Registration,
}

unsafe extern "C" fn never(_: *mut std::ffi::c_void, _: i32) -> i32 {
    std::process::abort()
}

/// The `destroy` of data that a failed call was given, which must not be called.
unsafe extern "C" fn lost(_: *mut std::ffi::c_void) {
    std::process::abort()
}

fn make(kind: Kind) -> Verdict<u64> {
    match kind {
        Kind::Stream => stream(),
        Kind::Event => event(),
        Kind::Generator => made(|out| otr!(generator_create, 0, out)),
        Kind::Pool => made(|out| otr!(pool_create, 0, out)),
        Kind::Graph => made(|out| otr!(graph_create, 0, 0, out)),
        Kind::Exec => {
            let graph = make(Kind::Graph)?;
            made(|out| otr!(graph_instantiate, graph, 0, out))
        }
        Kind::Observer => {
            unsafe extern "C" fn ignore(_: *mut std::ffi::c_void, _: *const otr_observation_t) {}
            made(|out| {
                otr!(
                    observer_add,
                    OTR_OBSERVE_ALLOC,
                    Some(ignore),
                    null_mut(),
                    out
                )
            })
        }
        Kind::Registration => {
            // One that is there makes way.
            let params = otr_operator_registration_t {
                flags: OTR_REGISTER_REPLACE,
                ..registration()
            };
            made(|out| otr!(operator_register, &params, out))
        }
    }
}

fn unmake(kind: Kind, id: u64) -> Result<(), Refused> {
    match kind {
        Kind::Stream => otr!(stream_destroy, id),
        Kind::Event => otr!(event_destroy, id),
        Kind::Generator => otr!(generator_destroy, id),
        Kind::Pool => otr!(pool_destroy, id),
        Kind::Graph => otr!(graph_destroy, id),
        Kind::Exec => otr!(graph_exec_destroy, id),
        Kind::Observer => otr!(observer_remove, id),
        Kind::Registration => otr!(operator_withdraw, id),
    }
}

/// Ids that are none of a kind, with what the text says of them.
fn wrong(kind: Kind) -> Verdict<Vec<(&'static str, u64, &'static str)>> {
    let stale = make(kind)?;
    check!(
        stale != 0 && stale >> 63 == 0,
        "H5: an id is not 0, and its top bit is not set: {stale:#x}"
    );
    unmake(kind, stale)?;
    // An object that takes the place of the old one has another id.
    let next = make(kind)?;
    check!(next != stale, "H5: an id is never used again");
    let (other, of_other) = match kind {
        Kind::Event => (make(Kind::Stream)?, "of a stream"),
        _ => (make(Kind::Event)?, "of an event"),
    };
    Ok(vec![
        ("0", 0, "NULL"),
        ("a stale id", stale, "destroyed"),
        ("an id of another kind", other, of_other),
        ("garbage", 0x5a5a_5a5a_5a5a_5a5a, ""),
        ("all ones", u64::MAX, "not a handle"),
        ("a small number", 1, "not a handle"),
        ("a live id with its top bit set", next | 1 << 63, ""),
    ])
}
