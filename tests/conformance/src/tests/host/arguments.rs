//! H1 to H12 and H30: what entries answer to NULL, to ids that are none, to devices, flags and structs that
//! make no sense.

use std::ffi::CString;
use std::ptr::{null, null_mut};

use outrigger_device::Code;
use outrigger_ffi::*;

use super::{Refused, alloc, event, fill, made, otr, refused, start, stream};
use crate::test::tests;
use crate::verdict::{check, equal};
use crate::{Context, Verdict};

macro_rules! null {
    ($($(#[doc = $about:literal])+ $name:ident: $call:expr;)*) => {
        tests! { "host-abi.null": $(
            $(#[doc = $about])+
            $name: H2 H3 H6, run |context| {
                start(context)?;
                let call: fn() -> Verdict<Result<(), Refused>> = $call;
                refused(call()?, Code::INVALID_ARGUMENT, stringify!($name))?;
                // The runtime is as usable as before.
                let stream = stream()?;
                Ok(otr!(otr_stream_synchronize, stream)?)
            }
        ;)* }
    };
}

null! {
    /// The number of devices needs a place.
    device_count: || Ok(otr!(otr_device_count, null_mut()));
    /// Facts of a device need a place.
    device_info: || Ok(otr!(otr_device_info, 0, null_mut()));
    /// The current device needs a place.
    device_current: || Ok(otr!(otr_device_current, null_mut()));
    /// A new stream needs a place.
    stream_create: || Ok(otr!(otr_stream_create, 0, 0, null_mut()));
    /// The default stream needs a place.
    stream_default: || Ok(otr!(otr_stream_default, 0, null_mut()));
    /// A stream of the pool needs a place.
    stream_from_pool: || Ok(otr!(otr_stream_from_pool, 0, 0, null_mut()));
    /// The current stream needs a place.
    stream_current: || Ok(otr!(otr_stream_current, 0, null_mut()));
    /// The answer to a query needs a place.
    stream_query: || Ok(otr!(otr_stream_query, stream()?, null_mut()));
    /// A new event needs a place.
    event_create: || Ok(otr!(otr_event_create, 0, 0, null_mut()));
    /// The answer to a query of an event needs a place.
    event_query: || Ok(otr!(otr_event_query, event()?, null_mut()));
    /// New memory needs a place for its address.
    memory_alloc: || Ok(otr!(otr_memory_alloc, 0, 64, stream()?, null_mut()));
    /// Free bytes need a place.
    memory_info: || Ok(otr!(otr_memory_info, 0, null_mut(), &mut 0));
    /// Statistics need a place.
    memory_stats: || Ok(otr!(otr_memory_stats, 0, null_mut()));
    /// Facts of an address need a place.
    memory_pointer_info: || Ok(otr!(otr_memory_pointer_info, alloc(64, stream()?)?, null_mut()));
    /// A snapshot needs a place.
    memory_snapshot: || Ok(otr!(otr_memory_snapshot, 0, null_mut()));
    /// Host memory needs a place.
    host_alloc: || Ok(otr!(otr_host_alloc, 64, null_mut()));
    /// A new pool needs a place.
    pool_create: || Ok(otr!(otr_pool_create, 0, null_mut()));
    /// A new generator needs a place.
    generator_create: || Ok(otr!(otr_generator_create, 0, null_mut()));
    /// The default generator needs a place.
    generator_default: || Ok(otr!(otr_generator_default, 0, null_mut()));
    /// A new graph needs a place.
    graph_create: || Ok(otr!(otr_graph_create, 0, 0, null_mut()));
    /// The end of a capture needs a place for the graph.
    capture_end: || {
        let stream = stream()?;
        otr!(otr_capture_begin, stream, OTR_CAPTURE_GLOBAL, 0)?;
        let answer = otr!(otr_capture_end, stream, null_mut());
        otr!(otr_capture_abort, stream, c"the test is over".as_ptr())?;
        Ok(answer)
    };
    /// An operator needs a name.
    operator_find_name: || Ok(otr!(otr_operator_find, null(), &mut 0));
    /// An operator needs a place.
    operator_find_output: || Ok(otr!(otr_operator_find, c"add".as_ptr(), null_mut()));
    /// A call of an operator needs its operands.
    operator_call: || {
        let add = made(|out| otr!(otr_operator_find, c"add".as_ptr(), out))?;
        Ok(otr!(otr_operator_call, stream()?, add, null()))
    };
    /// A fill needs a pattern.
    fill_pattern: || {
        let stream = stream()?;
        Ok(otr!(otr_fill, stream, alloc(64, stream)?, 64, null(), 4))
    };
    /// A host call needs a function.
    host_call: || Ok(otr!(otr_host_call, stream()?, None, null_mut()));
    /// A driver needs a name.
    driver_load: || Ok(otr!(otr_driver_load, null()));
    /// A trace needs a file.
    trace_begin: || Ok(otr!(otr_trace_begin, null()));
}

pub(in crate::tests) mod handle {
    use super::*;

    macro_rules! handles {
        ($($(#[doc = $about:literal])+ $name:ident: $kind:ident, $call:expr;)*) => {
            tests! { "host-abi.handle": $(
                $(#[doc = $about])+
                $name: H3 H5, run |context| {
                    start(context)?;
                    let call: fn(u64) -> Verdict<Result<(), Refused>> = $call;
                    for (what, id) in wrong(Kind::$kind)? {
                        refused(call(id)?, Code::INVALID_HANDLE, what)?;
                    }
                    Ok(())
                }
            ;)* }
        };
    }

    handles! {
        /// A stream that is none is not destroyed.
        stream_destroy: Stream, |id| Ok(otr!(otr_stream_destroy, id));
        /// A stream that is none is not queried.
        stream_query: Stream, |id| Ok(otr!(otr_stream_query, id, &mut 0));
        /// A stream that is none is not waited for.
        stream_synchronize: Stream, |id| Ok(otr!(otr_stream_synchronize, id));
        /// A stream that is none is not flushed.
        stream_flush: Stream, |id| Ok(otr!(otr_stream_flush, id));
        /// A stream that is none has no device.
        stream_device: Stream, |id| Ok(otr!(otr_stream_device, id, &mut 0));
        /// A stream that is none does not become the current one.
        stream_set_current: Stream, |id| Ok(otr!(otr_stream_set_current, id));
        /// A stream that is none does not wait.
        stream_wait_event: Stream, |id| Ok(otr!(otr_stream_wait_event, id, event()?));
        /// A stream does not wait for an event that is none.
        stream_wait_no_event: Event, |id| Ok(otr!(otr_stream_wait_event, stream()?, id));
        /// A stream that is none takes no fill.
        fill: Stream, |id| {
            let stream = stream()?;
            let address = alloc(64, stream)?;
            Ok(otr!(otr_fill, id, address, 64, [1u8].as_ptr().cast(), 1))
        };
        /// A stream that is none takes no host call.
        host_call: Stream, |id| Ok(otr!(otr_host_call, id, Some(never), null_mut()));
        /// A stream that is none allocates nothing.
        memory_alloc: Stream, |id| Ok(otr!(otr_memory_alloc, 0, 64, id, &mut 0));
        /// A stream that is none does not capture.
        capture_begin: Stream, |id| Ok(otr!(otr_capture_begin, id, OTR_CAPTURE_GLOBAL, 0));
        /// A stream that is none calls no operator.
        operator_call: Stream, |id| {
            let add = made(|out| otr!(otr_operator_find, c"add".as_ptr(), out))?;
            let call = super::super::operators::empty_call();
            Ok(otr!(otr_operator_call, id, add, &call))
        };
        /// An event that is none is not destroyed.
        event_destroy: Event, |id| Ok(otr!(otr_event_destroy, id));
        /// An event that is none is not recorded.
        event_record: Event, |id| Ok(otr!(otr_event_record, id, stream()?));
        /// An event that is none is not queried.
        event_query: Event, |id| Ok(otr!(otr_event_query, id, &mut 0));
        /// An event that is none is not waited for.
        event_synchronize: Event, |id| Ok(otr!(otr_event_synchronize, id));
        /// A generator that is none is not destroyed.
        generator_destroy: Generator, |id| Ok(otr!(otr_generator_destroy, id));
        /// A generator that is none is not seeded.
        generator_seed: Generator, |id| Ok(otr!(otr_generator_seed, id, 1));
        /// A pool that is none is not destroyed.
        pool_destroy: Pool, |id| Ok(otr!(otr_pool_destroy, id));
        /// A pool that is none has no memory.
        pool_alloc: Pool, |id| Ok(otr!(otr_pool_alloc, id, 64, stream()?, &mut 0));
        /// A graph that is none is not destroyed.
        graph_destroy: Graph, |id| Ok(otr!(otr_graph_destroy, id));
        /// A graph that is none is not instantiated.
        graph_instantiate: Graph, |id| Ok(otr!(otr_graph_instantiate, id, 0, &mut 0));
        /// An executable graph that is none is not destroyed.
        graph_exec_destroy: Exec, |id| Ok(otr!(otr_graph_exec_destroy, id));
        /// An executable graph that is none is not replayed.
        graph_replay: Exec, |id| Ok(otr!(otr_graph_replay, id, stream()?));
        /// An observer that is none is not removed.
        observer_remove: Observer, |id| Ok(otr!(otr_observer_remove, id));
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
    }

    unsafe extern "C" fn never(_: *mut std::ffi::c_void, _: i32) -> i32 {
        std::process::abort()
    }

    fn make(kind: Kind) -> Verdict<u64> {
        match kind {
            Kind::Stream => stream(),
            Kind::Event => event(),
            Kind::Generator => made(|out| otr!(otr_generator_create, 0, out)),
            Kind::Pool => made(|out| otr!(otr_pool_create, 0, out)),
            Kind::Graph => made(|out| otr!(otr_graph_create, 0, 0, out)),
            Kind::Exec => {
                let graph = make(Kind::Graph)?;
                made(|out| otr!(otr_graph_instantiate, graph, 0, out))
            }
            Kind::Observer => {
                unsafe extern "C" fn ignore(_: *mut std::ffi::c_void, _: *const otr_observation_t) {
                }
                made(|out| {
                    otr!(
                        otr_observer_add,
                        OTR_OBSERVE_ALLOC,
                        Some(ignore),
                        null_mut(),
                        out
                    )
                })
            }
        }
    }

    fn unmake(kind: Kind, id: u64) -> Result<(), Refused> {
        match kind {
            Kind::Stream => otr!(otr_stream_destroy, id),
            Kind::Event => otr!(otr_event_destroy, id),
            Kind::Generator => otr!(otr_generator_destroy, id),
            Kind::Pool => otr!(otr_pool_destroy, id),
            Kind::Graph => otr!(otr_graph_destroy, id),
            Kind::Exec => otr!(otr_graph_exec_destroy, id),
            Kind::Observer => otr!(otr_observer_remove, id),
        }
    }

    /// Ids that are none of a kind.
    fn wrong(kind: Kind) -> Verdict<Vec<(&'static str, u64)>> {
        let stale = make(kind)?;
        check!(
            stale != 0 && stale >> 63 == 0,
            "H5: an id is not 0, and its top bit is not set: {stale:#x}"
        );
        unmake(kind, stale)?;
        // What takes its place has another id.
        let next = make(kind)?;
        check!(next != stale, "H5: an id is never used again");
        let other = make(if kind == Kind::Event {
            Kind::Stream
        } else {
            Kind::Event
        })?;
        Ok(vec![
            ("0", 0),
            ("a stale id", stale),
            ("an id of another kind", other),
            ("garbage", 0x5a5a_5a5a_5a5a_5a5a),
            ("all ones", u64::MAX),
            ("a small number", 1),
            ("a live id with its top bit set", next | 1 << 63),
        ])
    }
}

pub(in crate::tests) mod range {
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

    fn device_info(struct_size: usize) -> otr_device_info_t {
        // SAFETY: integers and characters, for all of which zero is valid.
        let mut info: otr_device_info_t = unsafe { std::mem::zeroed() };
        info.struct_size = struct_size;
        info
    }

    fn devices(context: &Context) -> Verdict {
        start(context)?;
        let count = made(|out| otr!(otr_device_count, out))?;
        let mut info = device_info(size_of::<otr_device_info_t>());
        for device in [count, count + 1, 1 << 20, u32::MAX - 1] {
            let (mut id, mut bytes) = (0x5a, 0x5a);
            let all = [
                otr!(otr_device_info, device, &mut info),
                otr!(otr_device_set_current, device),
                otr!(otr_device_synchronize, device),
                otr!(otr_stream_create, device, 0, &mut id),
                otr!(otr_stream_default, device, &mut id),
                otr!(otr_stream_current, device, &mut id),
                otr!(otr_event_create, device, 0, &mut id),
                otr!(otr_memory_alloc, device, 64, stream()?, &mut id),
                otr!(otr_memory_info, device, &mut bytes, &mut id),
                otr!(otr_memory_empty_cache, device),
                otr!(otr_pool_create, device, &mut id),
                otr!(otr_generator_create, device, &mut id),
                otr!(otr_graph_create, device, 0, &mut id),
            ];
            for (at, answer) in all.into_iter().enumerate() {
                refused(
                    answer,
                    Code::INVALID_DEVICE,
                    &format!("call {at} on device {device}"),
                )?;
            }
            equal!((id, bytes), (0x5a, 0x5a), "H2: outputs of failed calls");
        }
        Ok(())
    }

    fn flags(context: &Context) -> Verdict {
        start(context)?;
        let stream = stream()?;
        let address = alloc(128, stream)?;
        let graph = made(|out| otr!(otr_graph_create, 0, 0, out))?;
        let mut id = 0x5a;
        let all = [
            (
                "event flags",
                otr!(otr_event_create, 0, 0x8000_0000, &mut id),
            ),
            ("a capture mode", otr!(otr_capture_begin, stream, 77, 0)),
            (
                "a copy kind",
                otr!(otr_copy, stream, address, address + 64, 64, 77),
            ),
            (
                "flags of an executable graph",
                otr!(otr_graph_instantiate, graph, 0x8000_0000, &mut id),
            ),
            ("a fallback mode", otr!(otr_fallback_set_mode, 77)),
            (
                "a pattern of 3 bytes",
                otr!(otr_fill, stream, address, 63, [1u8; 3].as_ptr().cast(), 3),
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
            otr!(otr_operator_find, broken, &mut 0),
            Code::INVALID_ARGUMENT,
            "the name of an operator",
        )?;
        refused(
            otr!(otr_driver_load, broken),
            Code::INVALID_ARGUMENT,
            "a driver",
        )?;
        refused(
            otr!(otr_memory_label_push, broken),
            Code::INVALID_ARGUMENT,
            "a label",
        )?;
        refused(
            otr!(otr_operator_find, c"no_such_operator".as_ptr(), &mut 0),
            Code::NOT_FOUND,
            "an operator that does not exist",
        )?;
        Ok(())
    }

    fn struct_sizes(context: &Context) -> Verdict {
        start(context)?;
        let whole = size_of::<otr_device_info_t>();
        let mut info = device_info(0);
        refused(
            otr!(otr_device_info, 0, &mut info),
            Code::INVALID_ARGUMENT,
            "a struct of 0 bytes",
        )?;
        info.struct_size = whole;
        otr!(otr_device_info, 0, &mut info)?;
        equal!(info.struct_size, whole, "the caller's size");
        // A caller that knows a part gets this part.
        let mut bytes = vec![0xa5u8; whole];
        let part = whole / 2 / 8 * 8;
        bytes[..8].copy_from_slice(&part.to_ne_bytes());
        otr!(otr_device_info, 0, bytes.as_mut_ptr().cast())?;
        check!(
            bytes[part..].iter().all(|b| *b == 0xa5),
            "no byte behind {part} is written"
        );
        equal!(bytes[..8], part.to_ne_bytes(), "the caller's size");
        let call = otr_kernel_call_t {
            struct_size: 16,
            ..super::super::graphs::kernel()
        };
        refused(
            otr!(otr_kernel_launch, stream()?, &call),
            Code::INVALID_ARGUMENT,
            "a kernel call of 16 bytes",
        )?;
        Ok(())
    }

    fn reserved_fields(context: &Context) -> Verdict {
        start(context)?;
        let stream = stream()?;
        let add = made(|out| otr!(otr_operator_find, c"add".as_ptr(), out))?;
        let call = super::super::operators::empty_call();
        let mut wrong = call;
        wrong.reserved = 1;
        refused(
            otr!(otr_operator_call, stream, add, &wrong),
            Code::INVALID_ARGUMENT,
            "`reserved` of an operator call",
        )?;
        let mut wrong = call;
        wrong.next = std::ptr::from_ref(&call).cast();
        refused(
            otr!(otr_operator_call, stream, add, &wrong),
            Code::INVALID_ARGUMENT,
            "`next` of an operator call",
        )?;
        let wrong = otr_kernel_call_t {
            reserved: 1,
            ..super::super::graphs::kernel()
        };
        refused(
            otr!(otr_kernel_launch, stream, &wrong),
            Code::INVALID_ARGUMENT,
            "`reserved` of a kernel call",
        )?;
        Ok(())
    }

    fn what_is_the_runtimes(context: &Context) -> Verdict {
        start(context)?;
        let default = made(|out| otr!(otr_stream_default, 0, out))?;
        let pooled = made(|out| otr!(otr_stream_from_pool, 0, 0, out))?;
        for stream in [default, pooled] {
            refused(
                otr!(otr_stream_destroy, stream),
                Code::INVALID_ARGUMENT,
                "to destroy a stream of the runtime",
            )?;
            otr!(otr_stream_synchronize, stream)?;
        }
        let generator = made(|out| otr!(otr_generator_default, 0, out))?;
        refused(
            otr!(otr_generator_destroy, generator),
            Code::INVALID_ARGUMENT,
            "to destroy the default generator",
        )?;
        otr!(otr_generator_seed, generator, 1)?;
        Ok(())
    }

    fn the_table(context: &Context) -> Verdict {
        start(context)?;
        // SAFETY: never NULL, and lives as long as the library.
        let table = unsafe { &*otr_host_api() };
        equal!(table.struct_size, size_of::<otr_host_api_t>(), "its size");
        equal!(table.api_major, OTR_HOST_API_MAJOR, "the major number");
        check!(
            std::ptr::eq(table, otr_host_api()),
            "it is the same each time"
        );
        let mut count = 0;
        // SAFETY: the place lives through the call.
        outcome_of(unsafe { (table.device_count)(&mut count) })?;
        check!(count > 0, "a call through the table");
        // SAFETY: 0 is no stream, which is checked.
        let answer = super::super::outcome(unsafe { (table.stream_synchronize)(0) });
        refused(
            answer,
            Code::INVALID_HANDLE,
            "a wrong call through the table",
        )?;
        Ok(())
    }

    fn outcome_of(status: *mut otr_status_t) -> Verdict {
        Ok(super::super::outcome(status)?)
    }

    fn strings_that_are_handed_out(context: &Context) -> Verdict {
        start(context)?;
        let stream = stream()?;
        alloc(4096, stream)?;
        type Get = unsafe extern "C" fn(*mut *mut std::ffi::c_char) -> *mut otr_status_t;
        let gets: [(&str, Get); 2] = [
            ("otr_load_report", otr_load_report),
            ("otr_fallback_report", otr_fallback_report),
        ];
        for (what, get) in gets {
            let mut json = null_mut();
            // SAFETY: the place lives through the call.
            outcome_of(unsafe { get(&mut json) })?;
            let text = super::super::text(json).unwrap_or_default();
            serde_json::from_str::<serde_json::Value>(&text)
                .map_err(|e| crate::Failure::from(e).context(what))?;
            // SAFETY: handed out just now, and freed once.
            unsafe { otr_string_free(json) };
        }
        let mut json = null_mut();
        otr!(otr_memory_snapshot, 0, &mut json)?;
        let text = super::super::text(json).unwrap_or_default();
        // SAFETY: as above.
        unsafe { otr_string_free(json) };
        serde_json::from_str::<serde_json::Value>(&text)?;
        Ok(())
    }

    fn a_status_on_another_thread(context: &Context) -> Verdict {
        start(context)?;
        // SAFETY: 0 is no stream, which is checked.
        let status = unsafe { otr_stream_synchronize(0) };
        check!(!status.is_null(), "the call fails");
        let address = status.expose_provenance();
        crate::tests::kit::threads(1, |_| {
            let answer = super::super::outcome(std::ptr::with_exposed_provenance_mut(address));
            refused(answer, Code::INVALID_HANDLE, "a status of another thread")?;
            Ok(())
        })
    }

    fn outputs_of_failed_calls(context: &Context) -> Verdict {
        start(context)?;
        let stream = stream()?;
        let mut out = 0x5a5a;
        refused(
            otr!(otr_memory_alloc, 0, u64::MAX, stream, &mut out),
            Code::OUT_OF_MEMORY,
            "too much memory",
        )?;
        refused(
            otr!(otr_graph_instantiate, 7, 0, &mut out),
            Code::INVALID_HANDLE,
            "no graph",
        )?;
        refused(
            otr!(otr_capture_end, stream, &mut out),
            Code::INVALID_ARGUMENT,
            "no capture",
        )?;
        equal!(out, 0x5a5a, "the output");
        fill(stream, alloc(64, stream)?, 64, &[1])?;
        Ok(otr!(otr_stream_synchronize, stream)?)
    }
}
