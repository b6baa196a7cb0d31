//! The machinery of layers: a driver under layers behaves as it does without them, except for what a
//! layer changes, hides or breaks.

use std::ffi::{CStr, c_void};
use std::os::fd::AsFd;
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use outrigger_device::{Code, CopyKind, Driver, FdKind, NO_OUTCOME, RawDriver, find_record, sys};
use outrigger_layers::{Layer, Next, fail, layered};

fn host(options: &str) -> Driver {
    let text = format!("host?devices=2&memory=64M&virtual_memory=on&graphs=native{options}");
    Driver::open(&text.parse().unwrap()).unwrap()
}

/// Hands everything on.
struct Nothing;
impl Layer for Nothing {}

/// Adds one to each number of an `[u64 address, u64 count]` block.
unsafe extern "C" fn add_one(args: *const c_void, _size: u32, bias: i64) -> i32 {
    // SAFETY: launched with such a block only.
    let (address, count) = unsafe { args.cast::<(u64, u64)>().read_unaligned() };
    for at in 0..count {
        // SAFETY: the addresses are live memory of the device.
        unsafe { *((address as i64 + bias) as *mut u8).add(at as usize) += 1 };
    }
    0
}

fn block(address: u64, count: u64) -> Vec<u8> {
    [address.to_ne_bytes(), count.to_ne_bytes()].concat()
}

/// Uses queues, events, kernels, graphs, virtual memory and host calls, and gives what memory held.
fn work(driver: &Driver) -> Vec<u8> {
    let queue = driver.queue_create(0, 0).unwrap();
    let other = driver.queue_create(0, 0).unwrap();
    let event = driver.event_create(0, true).unwrap();
    let kernel = driver.host_kernel(0, add_one).unwrap().unwrap();
    let memory = driver.memory_alloc(0, 256).unwrap();
    let virtual_memory = driver.virtual_memory().unwrap();
    let granularity = virtual_memory.granularity(0).unwrap();
    let mapped = virtual_memory.reserve(0, 2 * granularity, 0).unwrap();
    let physical: Vec<_> = (0..2)
        .map(|_| virtual_memory.create(0, granularity).unwrap())
        .collect();
    let calls = Arc::new(AtomicU64::new(0));
    let mut back = vec![0; 16];
    // SAFETY: all memory is live until the queues were synchronized below.
    unsafe {
        virtual_memory.map(mapped, &physical).unwrap();
        queue.fill(memory, 256, &[5]).unwrap();
        queue
            .launch(&kernel, &block(memory, 8), 0, c"first")
            .unwrap();
        let border = mapped + granularity - 8;
        queue
            .copy(border, memory, 16, CopyKind::DeviceToDevice)
            .unwrap();
        event.record(&queue).unwrap();
        other.wait_event(&event).unwrap();
        let graphs = driver.native_graphs().unwrap();
        graphs.record_begin(&other).unwrap();
        other
            .launch(&kernel, &block(border, 4), 0, c"node")
            .unwrap();
        let graph = graphs.record_end(&other).unwrap();
        other.launch_graph(&graph).unwrap();
        other.launch_graph(&graph).unwrap();
        let counted = Arc::clone(&calls);
        other
            .host_call(move |upstream| {
                counted.fetch_add(1, Ordering::Relaxed);
                upstream
            })
            .unwrap();
        let host = back.as_mut_ptr() as u64;
        other
            .copy(host, border, 16, CopyKind::DeviceToHost)
            .unwrap();
        other.synchronize().unwrap();
        assert!(queue.query().unwrap() && event.query().unwrap());
        assert!(event.time_ns().unwrap().is_some());
        virtual_memory.unmap(mapped, 2 * granularity).unwrap();
        for physical in physical {
            virtual_memory.destroy(physical).unwrap();
        }
        virtual_memory.release(mapped, 2 * granularity).unwrap();
        driver.memory_free(memory).unwrap();
    }
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    back
}

#[test]
fn a_driver_under_layers_does_what_it_does_without() {
    for face in ["&face=unified", "&face=discrete"] {
        let expected = work(&host(face));
        assert_eq!(expected[..5], [8, 8, 8, 8, 6]);
        let mut driver = host(face);
        for _ in 0..3 {
            driver = layered(driver, Nothing).unwrap();
        }
        assert_eq!(work(&driver), expected);
        assert_eq!(driver.name(), "host");
        assert_eq!(
            driver.memory_info(0).unwrap(),
            host(face).memory_info(0).unwrap()
        );
    }
}

unsafe extern "C" fn break_down(_args: *const c_void, _size: u32, _bias: i64) -> i32 {
    Code::OUT_OF_RANGE.0
}

#[test]
fn a_failure_comes_through_with_label_and_number() {
    let driver = layered(layered(host(""), Nothing).unwrap(), Nothing).unwrap();
    let queue = driver.queue_create(0, 0).unwrap();
    let kernel = driver.host_kernel(0, break_down).unwrap().unwrap();
    // SAFETY: the kernel looks at no memory.
    unsafe { queue.launch(&kernel, &[], 0, c"gather") }.unwrap();
    let error = queue.synchronize().unwrap_err();
    assert_eq!(error.code(), Code::OUT_OF_RANGE);
    assert_eq!(error.label(), Some("gather"), "{error}");
    assert_eq!(error.submission(), Some(1));
    let error = driver.memory_alloc(0, 1 << 40).unwrap_err();
    assert_eq!(error.code(), Code::OUT_OF_MEMORY);
    let bare = host("").memory_alloc(0, 1 << 40).unwrap_err();
    assert_eq!(error.message(), bare.message());
}

/// Refuses to fill, panics in copies, has no graphs, and loses the text of what it frees.
struct Broken;

impl Layer for Broken {
    fn offers(&self, what: &str, below: bool) -> bool {
        below && what != "graph" && what != "queue_flush"
    }

    unsafe fn fill(
        &self,
        _next: &Next,
        _queue: *mut sys::otr_queue,
        _fill: *const sys::otr_fill,
    ) -> i32 {
        fail(Code::CANCELLED, "no colour is left")
    }

    unsafe fn copy(
        &self,
        _next: &Next,
        _queue: *mut sys::otr_queue,
        _copy: *const sys::otr_copy,
    ) -> i32 {
        panic!("a test of a panic")
    }
}

#[test]
fn what_a_layer_answers_is_what_the_host_gets() {
    // A layer above hands the text of the one below on.
    let driver = layered(layered(host(""), Broken).unwrap(), Nothing).unwrap();
    let queue = driver.queue_create(0, 0).unwrap();
    assert!(driver.native_graphs().is_none());
    assert!(driver.raw().0.queue_flush.is_none());
    // SAFETY: neither reaches the driver.
    let (fill, copy) = unsafe {
        (
            queue.fill(4096, 4, &[1]).unwrap_err(),
            queue
                .copy(4096, 4096, 1, CopyKind::DeviceToDevice)
                .unwrap_err(),
        )
    };
    assert_eq!(
        (fill.code(), fill.message()),
        (Code::CANCELLED, "no colour is left")
    );
    assert_eq!(copy.code(), Code::INTERNAL);
    assert!(copy.message().contains("panicked"), "{copy}");
    queue.synchronize().unwrap();
}

#[test]
fn handles_that_are_null_foreign_or_stale_are_refused() {
    let driver = layered(host(""), Nothing).unwrap();
    let (api, handle) = driver.raw();
    let refused = Code::INVALID_HANDLE.0;
    let (mut queue, mut event) = (null_mut(), null_mut());
    // SAFETY: outputs live through the calls, and misused handles are what is tested: a table's own
    // promise is to look at no more than their first word.
    unsafe {
        assert_eq!(api.device_open.unwrap()(handle, 0, null()), 0);
        assert_eq!(api.queue_create.unwrap()(handle, 0, null(), &mut queue), 0);
        assert_eq!(
            api.event_create.unwrap()(handle, 0, std::ptr::null(), &mut event),
            0
        );
        let mut told = NO_OUTCOME;
        assert_eq!(api.queue_query.unwrap()(null_mut(), &mut told), refused);
        assert_eq!(api.queue_query.unwrap()(event.cast(), &mut told), refused);
        assert_eq!(api.queue_wait_event.unwrap()(queue, null_mut()), refused);
        assert_eq!(api.close.unwrap()(queue.cast()), refused);
        assert_eq!(
            api.queue_create.unwrap()(handle, 9, null(), &mut queue.clone()),
            Code::INVALID_DEVICE.0
        );
        assert_eq!(
            api.queue_create.unwrap()(handle, 0, null(), null_mut()),
            Code::INVALID_ARGUMENT.0
        );
        assert_eq!(api.event_destroy.unwrap()(event), 0);
        assert_eq!(api.event_query.unwrap()(event, &mut told), refused);
        let text = CStr::from_ptr(api.last_error.unwrap()()).to_str().unwrap();
        assert!(text.contains("event"), "{text}");
        // While an object lives the driver is busy, and stays as usable as before.
        assert_eq!(api.close.unwrap()(handle), Code::BUSY.0);
        assert_eq!(api.queue_destroy.unwrap()(queue), 0);
        assert_eq!(api.queue_destroy.unwrap()(queue), refused);
    }
    assert_eq!(driver.device_count(), 2);
}

#[test]
fn a_layer_is_put_over_a_driver_that_nobody_uses_yet() {
    let driver = host("");
    let clone = driver.clone();
    let error = layered(driver, Nothing).unwrap_err();
    assert_eq!(error.code(), Code::BUSY);
    work(&layered(clone, Nothing).unwrap());
}

#[test]
fn chained_tables_are_wrapped_and_unknown_records_left_out() {
    let below = host("").into_raw().unwrap();
    let handle = std::ptr::NonNull::new(below.handle()).unwrap();
    let unknown = sys::otr_ext {
        struct_size: size_of::<sys::otr_ext>(),
        type_: 0x8000_0001,
        reserved: 0,
        next: below.api().next,
    };
    let api = sys::otr_driver_api {
        next: &raw const unknown,
        ..*below.api()
    };
    below.set_closed();
    // SAFETY: the table of the host driver, which outlives what is made of it here, and its handle, which nobody else
    // closes any more.
    let driver = unsafe { RawDriver::from_parts(&api, handle, None) }.unwrap();
    let driver = layered(Driver::from_raw(driver).unwrap(), Nothing).unwrap();
    let (table, _) = driver.raw();
    let record = |type_| {
        // SAFETY: the table of a layer, whose chain is whole.
        unsafe { find_record(table.next, type_) }.unwrap()
    };
    assert_eq!(record(unknown.type_), None);
    assert!(
        record(sys::OTR_EXT_COLLECTIVES).is_some() && record(sys::OTR_EXT_NATIVE_QUEUE).is_some()
    );
    let queue = driver.queue_create(0, 0).unwrap();
    let native = queue.native().unwrap();
    // SAFETY: a queue of this driver, which lives as long.
    let adopted = unsafe { driver.queue_adopt(0, native) }.unwrap();
    assert_eq!(adopted.native().unwrap(), native);
    let external = driver.external().unwrap();
    let semaphore = external.semaphore_create(0, 3).unwrap();
    let fd = semaphore.export(FdKind::OPAQUE).unwrap();
    let again = external
        .semaphore_import(0, fd.as_fd(), FdKind::OPAQUE)
        .unwrap();
    queue.wait_semaphore(&again, 4).unwrap();
    driver
        .queue_create(0, 0)
        .unwrap()
        .signal(&semaphore, 4)
        .unwrap();
    queue.synchronize().unwrap();
}

#[test]
fn a_chained_table_that_a_layer_hides_is_not_in_the_chain() {
    struct Alone;
    impl Layer for Alone {
        fn offers(&self, what: &str, below: bool) -> bool {
            below && what != "collectives"
        }
    }
    let driver = layered(host(""), Alone).unwrap();
    assert!(driver.collectives().is_none() && driver.shares_native_queues());
}
