//! H7 to H12 and H30: devices, flags, strings and structs that make no sense, and the ownership of
//! results.

use outrigger_device::sys::{OTR_EXT_OPERATOR_ARGS, otr_ext};

use super::*;

tests! { "host-abi.range":
    /// A device behind the last is OTR_ERR_INVALID_DEVICE, wherever a device is named.
    devices: H2 H8;
    /// Flags, modes and kinds that are not documented are refused.
    flags: H2 H8;
    /// Strings that are not UTF-8 are refused.
    strings: H7;
    /// A struct that is too small for its version 1.0 is refused, and one that is smaller than the
    /// library's is filled no further.
    struct_sizes: H9;
    /// `reserved` that is not 0 and `next` that is not NULL are refused.
    reserved_fields: H10;
    /// Default streams, streams of the pool and default generators are not destroyed.
    what_is_the_runtimes: H12;
    /// The table of functions is as large as it says, and each of its entries is the exported one.
    the_table: H30;
    /// Strings that are handed out are the caller's, and valid JSON where they say so.
    strings_that_are_handed_out: H7 H11;
    /// A status is read and freed by another thread.
    a_status_on_another_thread: H1 H14;
    /// Outputs of failed calls are left as they were.
    outputs_of_failed_calls: H2;
}

fn devices(context: &Context) -> Verdict {
    start(context)?;
    let count = made(|out| otr!(device_count, out))?;
    let mut info = otr_device_info_t::sized(size_of::<otr_device_info_t>());
    let mut stats = otr_memory_stats_t::sized(size_of::<otr_memory_stats_t>());
    let mut known = otr_pointer_info_t::sized(size_of::<otr_pointer_info_t>());
    let address = alloc(64, stream()?)?;
    let (text, options) = (c"nowhere".as_ptr(), super::super::history::options(1));
    for device in [count, count + 1, 1 << 20, OTR_HOST_MEMORY - 1] {
        let (mut id, mut bytes, mut fraction) = (0x5a, 0x5a, 0.5);
        let mut yes = 0x5a;
        let mut string = null_mut();
        let all = [
            otr!(device_info, device, &mut info),
            otr!(device_set_current, device),
            otr!(device_synchronize, device),
            otr!(stream_create, device, 0, &mut id),
            otr!(stream_from_native, device, 0, &mut id),
            otr!(device_can_access_peer, device, 0, &mut yes),
            otr!(device_can_access_peer, 0, device, &mut yes),
            otr!(tune_choose, device, &tune_params(), &mut yes, null_mut()),
            otr!(stream_default, device, &mut id),
            otr!(stream_current, device, &mut id),
            otr!(event_create, device, 0, &mut id),
            otr!(memory_alloc, device, 64, stream()?, &mut id),
            otr!(memory_info, device, &mut bytes, &mut id),
            otr!(memory_empty_cache, device),
            otr!(pool_create, device, &mut id),
            otr!(generator_create, device, &mut id),
            otr!(graph_create, device, 0, &mut id),
            otr!(stream_from_pool, device, 0, &mut id),
            otr!(generator_default, device, &mut id),
            otr!(memory_stats, device, &mut stats),
            otr!(memory_reset_peak, device),
            otr!(memory_reset_accumulated, device),
            otr!(memory_trim, device, 0, &mut bytes),
            otr!(memory_set_limit, device, 1),
            otr!(memory_limit, device, &mut bytes),
            otr!(memory_set_fraction, device, 0.5),
            otr!(memory_fraction, device, &mut fraction),
            otr!(memory_history_start, device, &options),
            otr!(memory_history_stop, device),
            otr!(memory_history_clear, device),
            otr!(memory_holders, device, 1, &mut string),
            otr!(memory_trace_start, device, text),
            otr!(memory_trace_stop, device),
            otr!(memory_trace_mark, device, text),
            otr!(memory_snapshot, device, &mut string),
            otr!(memory_import, device, text, &mut bytes, &mut id),
            otr!(memory_close, device, 64),
            otr!(memory_free, device, 64),
            otr!(memory_record_stream, device, 64, stream()?),
            otr!(memory_pointer_info, device, 64, &mut known),
            otr!(memory_export, device, 64, &mut string),
            otr!(copy_peer, stream()?, device, 64, 0, 64, 8),
            otr!(copy_peer, stream()?, 0, address, device, 64, 8),
            otr!(copy_peer, stream()?, 0, address, device, 64, 0),
        ];
        for (at, answer) in all.into_iter().enumerate() {
            refused(
                answer,
                Code::INVALID_DEVICE,
                &format!("call {at} on device {device}"),
            )?;
        }
        equal!(
            (id, bytes, fraction, string),
            (0x5a, 0x5a, 0.5, null_mut()),
            "H2: outputs of failed calls"
        );
        equal!(
            (info.total_memory, stats.device_allocs),
            (0, 0),
            "H2: structs of failed calls"
        );
    }
    check!(
        !std::path::Path::new("nowhere").exists(),
        "H2: a trace that was refused has left a file"
    );
    Ok(())
}

unsafe extern "C" fn unheard(_: *mut std::ffi::c_void, _: *const otr_observation_t) {}

fn flags(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let address = alloc(128, stream)?;
    let graph = made(|out| otr!(graph_create, 0, 0, out))?;
    let mut id = 0x5a;
    let all = [
        ("event flags", otr!(event_create, 0, 0x8000_0000, &mut id)),
        ("a capture mode", otr!(capture_begin, stream, 77, 0)),
        (
            "a copy kind",
            otr!(copy, stream, address, address + 64, 64, 77),
        ),
        (
            "flags of an executable graph",
            otr!(graph_instantiate, graph, 0x8000_0000, &mut id),
        ),
        ("a fallback mode", otr!(fallback_set_mode, 77)),
        ("flags of a registration", {
            let params = otr_operator_registration_t {
                flags: 2,
                ..registration()
            };
            otr!(operator_register, &params, &mut id)
        }),
        (
            "no kind of observation",
            otr!(observer_add, 0, Some(unheard), null_mut(), &mut id),
        ),
        (
            "an unknown kind of observation",
            otr!(observer_add, 128, Some(unheard), null_mut(), &mut id),
        ),
        (
            "a format of graphs",
            otr!(graph_dump, graph, 77, &mut null_mut()),
        ),
        (
            "a kind of conditional",
            otr!(
                graph_add_conditional,
                graph,
                null(),
                0,
                77,
                address,
                DType::I64.0,
                &graph,
                1,
                &mut 0
            ),
        ),
        (
            "a pattern of 3 bytes",
            otr!(fill, stream, address, 63, [1u8; 3].as_ptr().cast(), 3),
        ),
    ];
    for (what, answer) in all {
        refused(answer, Code::INVALID_ARGUMENT, what)?;
    }
    equal!(id, 0x5a, "H2: outputs of failed calls");
    Ok(())
}

fn strings(context: &Context) -> Verdict {
    start(context)?;
    let broken = CString::new(vec![b'a', 0xff, 0xfe])?;
    let broken = broken.as_ptr();
    refused(
        otr!(operator_find, broken, &mut 0),
        Code::INVALID_ARGUMENT,
        "the name of an operator",
    )?;
    refused(
        otr!(driver_default, broken),
        Code::INVALID_ARGUMENT,
        "default drivers",
    )?;
    refused(
        otr!(driver_load, broken),
        Code::INVALID_ARGUMENT,
        "a driver",
    )?;
    let stream = stream()?;
    let (graph, exec) = (graph()?, executable()?);
    let address = alloc(64, stream)?;
    let node = otr_host_node_t {
        label: broken,
        ..super::super::building::functions::host_node(null_mut())
    };
    let all = [
        ("a label", otr!(memory_label_push, broken)),
        ("a file", otr!(trace_begin, broken)),
        ("a file of memory", otr!(memory_trace_start, 0, broken)),
        ("a mark", otr!(memory_trace_mark, 0, broken)),
        (
            "exported memory",
            otr!(memory_import, 0, broken, &mut 0, &mut 0),
        ),
        (
            "an operator that falls back",
            otr!(fallback_begin, broken, &mut 0),
        ),
        (
            "an operator that fell back",
            otr!(fallback_end, broken, 1, 1),
        ),
        ("a reason", otr!(capture_abort, stream, broken)),
        ("a label of nodes", otr!(capture_label, stream, broken)),
        (
            "a buffer's name",
            otr!(graph_name_buffer, graph, broken, address, 64),
        ),
        (
            "a number's name",
            otr!(graph_name_scalar, graph, broken, 0, 0),
        ),
        ("a name to look for", otr!(graph_slot, exec, broken, &mut 0)),
        ("a host function's label", otr!(host_node, stream, &node)),
    ];
    for (what, answer) in all {
        refused(answer, Code::INVALID_ARGUMENT, what)?;
    }
    refused(
        otr!(operator_find, c"no_such_operator".as_ptr(), &mut 0),
        Code::NOT_FOUND,
        "an operator that does not exist",
    )?;
    Ok(())
}

/// Checks that a call fills no more of a struct than its `struct_size` says, and refuses one without room
/// for that.
fn partly_filled<T: Filled>(what: &str, fill: impl Fn(*mut T) -> Result<(), Refused>) -> Verdict {
    let whole = size_of::<T>();
    let mut words = vec![0; whole.div_ceil(8) + 1];
    let mut filled = |size: usize| {
        words.fill(u64::from_ne_bytes([0xa5; 8]));
        words[0] = size as u64;
        let answer = fill(words.as_mut_ptr().cast());
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        (answer, bytes)
    };
    for size in [0, 7] {
        let (answer, bytes) = filled(size);
        refused(answer, Code::INVALID_ARGUMENT, what)?;
        check!(
            bytes[8..].iter().all(|byte| *byte == 0xa5),
            "H2: {what} of {size} bytes is not written"
        );
    }
    // A caller that knows a part gets this part, and one that knows more than the library the whole.
    for size in [8, whole / 2, whole - 4, whole, whole + 8] {
        let (answer, bytes) = filled(size);
        answer?;
        equal!(bytes[..8], size.to_ne_bytes(), "the size of {what}");
        check!(
            bytes[size.min(whole)..].iter().all(|byte| *byte == 0xa5),
            "H9: no byte of {what} behind {size} is written"
        );
    }
    Ok(())
}

fn struct_sizes(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let address = alloc(64, stream)?;
    let (pool, graph, exec) = (pool()?, graph()?, executable()?);
    let (kernel, node) = (
        super::super::graphs::kernel(),
        super::super::building::functions::host_node(null_mut()),
    );
    partly_filled::<otr_device_info_t>("facts of a device", |out| otr!(device_info, 0, out))?;
    partly_filled::<otr_pointer_info_t>("facts of an address", |out| {
        otr!(memory_pointer_info, 0, address, out)
    })?;
    partly_filled::<otr_memory_stats_t>("statistics", |out| otr!(memory_stats, 0, out))?;
    partly_filled::<otr_memory_stats_t>("statistics of pinned memory", |out| {
        otr!(host_stats, out)
    })?;
    partly_filled::<otr_pool_info_t>("figures of a pool", |out| otr!(pool_info, pool, out))?;
    partly_filled::<otr_capture_info_t>("facts of a capture", |out| {
        otr!(capture_info, stream, out)
    })?;
    partly_filled::<otr_graph_info_t>("figures of a graph", |out| otr!(graph_info, graph, out))?;
    partly_filled::<otr_graph_exec_info_t>("figures of an executable graph", |out| {
        otr!(graph_exec_info, exec, out)
    })?;
    // A struct that the library reads has all of version 1.0.
    let kernel = otr_host_kernel_call_t {
        struct_size: size_of::<otr_host_kernel_call_t>() - 1,
        ..kernel
    };
    let node = otr_host_node_t {
        struct_size: size_of::<otr_host_node_t>() - 1,
        ..node
    };
    let options = otr_history_options_t {
        struct_size: size_of::<otr_history_options_t>() - 1,
        ..super::super::history::options(1)
    };
    let mut call = super::super::operators::empty_call();
    call.struct_size -= 1;
    let add = made(|out| otr!(operator_find, c"add".as_ptr(), out))?;
    let all = [
        (
            "a short kernel call",
            otr!(host_kernel_launch, stream, &kernel),
        ),
        (
            "a short kernel call of a graph",
            otr!(graph_add_host_kernel, graph, null(), 0, &kernel, &mut 0),
        ),
        ("a short host function", otr!(host_node, stream, &node)),
        (
            "a short host function of a graph",
            otr!(graph_add_host, graph, null(), 0, &node, &mut 0),
        ),
        (
            "short options of a history",
            otr!(memory_history_start, 0, &options),
        ),
        (
            "a short operator call",
            otr!(operator_call, stream, add, &call),
        ),
        (
            "a short operator call of a graph",
            otr!(graph_add_operator, graph, null(), 0, add, &call, &mut 0),
        ),
    ];
    for (what, answer) in all {
        refused(answer, Code::INVALID_ARGUMENT, what)?;
    }
    Ok(())
}

fn reserved_fields(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let add = made(|out| otr!(operator_find, c"add".as_ptr(), out))?;
    let call = super::super::operators::empty_call();
    let mut wrong = call;
    wrong.flags = 1 << 31;
    refused(
        otr!(operator_call, stream, add, &wrong),
        Code::INVALID_ARGUMENT,
        "`flags` of an operator call",
    )?;
    let mut wrong = call;
    let short = otr_ext {
        struct_size: size_of::<otr_ext>(),
        type_: OTR_EXT_OPERATOR_ARGS,
        reserved: 0,
        next: std::ptr::null(),
    };
    wrong.next = &raw const short;
    refused(
        otr!(operator_call, stream, add, &wrong),
        Code::INVALID_ARGUMENT,
        "arguments of an operator call that are cut off",
    )?;
    let wrong = otr_host_kernel_call_t {
        reserved: 1,
        ..super::super::graphs::kernel()
    };
    refused(
        otr!(host_kernel_launch, stream, &wrong),
        Code::INVALID_ARGUMENT,
        "`reserved` of a kernel call",
    )?;
    let (kernel, node) = (
        super::super::graphs::kernel(),
        super::super::building::functions::host_node(null_mut()),
    );
    let next = std::ptr::from_ref(&call).cast();
    let kernel = otr_host_kernel_call_t { next, ..kernel };
    let [reserved, extended] = [
        otr_host_node_t {
            reserved: 1,
            ..node
        },
        otr_host_node_t { next, ..node },
    ];
    let history = otr_history_options_t {
        reserved: 1,
        ..super::super::history::options(1)
    };
    let number = otr_scalar_t {
        reserved: 1,
        ..scalar(DType::I64, 1)
    };
    let all = [
        (
            "`next` of a kernel call",
            otr!(host_kernel_launch, stream, &kernel),
        ),
        (
            "`reserved` of a host function",
            otr!(host_node, stream, &reserved),
        ),
        (
            "`next` of a host function",
            otr!(host_node, stream, &extended),
        ),
        (
            "`reserved` of a history",
            otr!(memory_history_start, 0, &history),
        ),
        (
            "`reserved` of a number",
            otr!(graph_bind_scalar, executable()?, 0, &number),
        ),
    ];
    for (what, answer) in all {
        refused(answer, Code::INVALID_ARGUMENT, what)?;
    }
    Ok(())
}

fn what_is_the_runtimes(context: &Context) -> Verdict {
    start(context)?;
    let default = made(|out| otr!(stream_default, 0, out))?;
    let pooled = made(|out| otr!(stream_from_pool, 0, 0, out))?;
    for stream in [default, pooled] {
        refused(
            otr!(stream_destroy, stream),
            Code::INVALID_ARGUMENT,
            "to destroy a stream of the runtime",
        )?;
        otr!(stream_synchronize, stream)?;
    }
    let generator = made(|out| otr!(generator_default, 0, out))?;
    refused(
        otr!(generator_destroy, generator),
        Code::INVALID_ARGUMENT,
        "to destroy the default generator",
    )?;
    otr!(generator_seed, generator, 1)?;
    Ok(())
}

fn the_table(context: &Context) -> Verdict {
    start(context)?;
    let table = library();
    equal!(table.struct_size, size_of::<otr_host_api_t>(), "its size");
    equal!(table.api_major, OTR_HOST_API_MAJOR, "the major number");
    let mut count = 0;
    otr!(device_count, &mut count)?;
    check!(count > 0, "a call through the table");
    refused(
        otr!(stream_synchronize, 0),
        Code::INVALID_HANDLE,
        "a wrong call through the table",
    )?;
    Ok(())
}

fn strings_that_are_handed_out(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    alloc(4096, stream)?;
    let (pool, graph) = (pool()?, graph()?);
    json(|out| otr!(load_report, out))?;
    json(|out| otr!(fallback_report, out))?;
    json(|out| otr!(memory_snapshot, 0, out))?;
    json(|out| otr!(memory_holders, 0, 5, out))?;
    json(|out| otr!(pool_snapshot, pool, out))?;
    json(|out| otr!(graph_dump, graph, OTR_GRAPH_JSON, out))?;
    // SAFETY: NULL is ignored.
    unsafe { raw!(string_free, null_mut()) };
    Ok(())
}

fn a_status_on_another_thread(context: &Context) -> Verdict {
    start(context)?;
    // SAFETY: 0 is no stream, which is checked.
    let status = unsafe { raw!(stream_synchronize, 0) };
    check!(!status.is_null(), "the call fails");
    let address = status.expose_provenance();
    crate::tests::kit::threads(1, |_| {
        let answer = outcome(std::ptr::with_exposed_provenance_mut(address));
        refused(answer, Code::INVALID_HANDLE, "a status of another thread")?;
        Ok(())
    })
}

fn outputs_of_failed_calls(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let mut out = 0x5a5a;
    refused(
        otr!(memory_alloc, 0, u64::MAX, stream, &mut out),
        Code::OUT_OF_MEMORY,
        "too much memory",
    )?;
    refused(
        otr!(graph_instantiate, 7, 0, &mut out),
        Code::INVALID_HANDLE,
        "no graph",
    )?;
    refused(
        otr!(capture_end, stream, &mut out),
        Code::INVALID_ARGUMENT,
        "no capture",
    )?;
    equal!(out, 0x5a5a, "the output");
    fill(stream, alloc(64, stream)?, 64, &[1])?;
    Ok(otr!(stream_synchronize, stream)?)
}
