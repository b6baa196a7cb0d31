//! The host contract from outside: the C ABI called as a C host calls it, on three drivers at once
//! (`host` unified, `host` discrete, the C template), in the right order and in every wrong one.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one call of the C ABI with pointers to locals, or with what the contract says is checked"
)]

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use outrigger::ffi::*;
use outrigger::runtime::{Code, CopyKind, DType};
use outrigger_device::sys::{otr_operator_call_t, otr_scalar_t, otr_tensor_t};
use outrigger_tests::abi::{hold_back, made};

/// A device of each driver under test. All live in one runtime.
static DEVICES: LazyLock<[u32; 3]> = LazyLock::new(|| {
    let mut count = 0;
    ok(unsafe { otr_device_count(&mut count) });
    assert_eq!(count, 2, "the built-in driver brings two devices");
    let c_driver = outrigger_tests::c_driver();
    for spec in ["host?face=discrete", c_driver.to_str().expect("UTF-8")] {
        let spec = CString::new(spec).expect("no NUL");
        ok(unsafe { otr_driver_load(spec.as_ptr()) });
    }
    ok(unsafe { otr_device_count(&mut count) });
    assert!(count >= 5);
    [0, 2, 4]
});

/// What a failed call said.
#[derive(Debug)]
struct Failure {
    code: Code,
    message: String,
    operator: Option<String>,
    stream: u64,
}

fn outcome(status: *mut otr_status_t) -> Result<(), Failure> {
    if status.is_null() {
        return Ok(());
    }
    let text = |pointer: *const c_char| {
        unsafe { CStr::from_ptr(pointer) }
            .to_str()
            .expect("UTF-8")
            .to_owned()
    };
    let operator = unsafe { otr_status_operator(status) };
    let failure = Failure {
        code: Code(unsafe { otr_status_code(status) }),
        message: text(unsafe { otr_status_message(status) }),
        operator: (!operator.is_null()).then(|| text(operator)),
        stream: unsafe { otr_status_stream(status) },
    };
    unsafe { otr_status_free(status) };
    assert!(!failure.message.is_empty(), "every failure has a text");
    Err(failure)
}

#[track_caller]
fn ok(status: *mut otr_status_t) {
    if let Err(failure) = outcome(status) {
        panic!("{failure:?}");
    }
}

/// The call must fail with this code and a text that names what matters.
#[track_caller]
fn fails(status: *mut otr_status_t, code: Code, needles: &[&str]) -> Failure {
    let failure = outcome(status).expect_err("the call must fail");
    assert_eq!(failure.code, code, "{failure:?}");
    for needle in needles {
        assert!(
            failure.message.contains(needle),
            "no {needle:?} in {failure:?}"
        );
    }
    failure
}

fn stream(device: u32) -> u64 {
    let mut stream = 0;
    ok(unsafe { otr_stream_create(device, 0, &mut stream) });
    stream
}

fn alloc(device: u32, size: u64, stream: u64) -> u64 {
    let mut address = 0;
    ok(unsafe { otr_memory_alloc(device, size, stream, &mut address) });
    address
}

fn event(device: u32) -> u64 {
    let mut event = 0;
    ok(unsafe { otr_event_create(device, 0, &mut event) });
    event
}

fn finished(stream: u64) -> bool {
    let mut finished = 7;
    ok(unsafe { otr_stream_query(stream, &mut finished) });
    finished == 1
}

fn upload<T: Copy>(stream: u64, to: u64, from: &[T]) {
    let kind = CopyKind::HostToDevice.raw();
    ok(unsafe {
        otr_copy(
            stream,
            to,
            from.as_ptr() as u64,
            size_of_val(from) as u64,
            kind,
        )
    });
    ok(unsafe { otr_stream_synchronize(stream) });
}

fn download<T: Copy + Default>(stream: u64, from: u64, count: usize) -> Vec<T> {
    let mut to = vec![T::default(); count];
    let size = (count * size_of::<T>()) as u64;
    let kind = CopyKind::DeviceToHost.raw();
    ok(unsafe { otr_copy(stream, to.as_mut_ptr() as u64, from, size, kind) });
    ok(unsafe { otr_stream_synchronize(stream) });
    to
}

unsafe extern "C" fn fail(_user: *mut c_void, _upstream: i32) -> i32 {
    Code::EXECUTION.0
}

#[test]
fn work_waits_its_turn_on_every_driver() {
    for &device in &*DEVICES {
        let stream = stream(device);
        let address = alloc(device, 64, stream);
        let mut seen = [0u32; 16];
        let source = [7u32; 16];
        let door = hold_back(stream);
        let copy = |dst, src, kind: CopyKind| unsafe { otr_copy(stream, dst, src, 64, kind.raw()) };
        ok(copy(
            address,
            source.as_ptr() as u64,
            CopyKind::HostToDevice,
        ));
        ok(unsafe { otr_fill(stream, address, 32, (&raw const device).cast(), 4) });
        ok(copy(
            seen.as_mut_ptr() as u64,
            address,
            CopyKind::DeviceToHost,
        ));
        std::thread::sleep(Duration::from_millis(20));
        assert!(
            !finished(stream),
            "device {device}: the held stream claims to be done"
        );
        assert_eq!(
            seen, [0; 16],
            "device {device}: a copy ran ahead of its stream"
        );
        door.store(true, Ordering::Release);
        ok(unsafe { otr_stream_synchronize(stream) });
        assert!(finished(stream));
        assert_eq!(seen[..8], [device; 8]);
        assert_eq!(seen[8..], [7; 8]);
        ok(unsafe { otr_memory_free(address) });
        ok(unsafe { otr_stream_destroy(stream) });
    }
}

#[test]
fn events_order_streams_of_one_and_of_two_drivers() {
    for (&first, &second) in [(&0, &1), (&0, &2), (&2, &4), (&4, &0)] {
        let _ = *DEVICES;
        let (a, b) = (stream(first), stream(second));
        let point = event(first);
        let order = AtomicU32::new(0);
        unsafe extern "C" fn mark(user: *mut c_void, _upstream: i32) -> i32 {
            let _ = unsafe { &*user.cast::<AtomicU32>() }.compare_exchange(
                0,
                1,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
            0
        }
        unsafe extern "C" fn check(user: *mut c_void, _upstream: i32) -> i32 {
            let before = unsafe { &*user.cast::<AtomicU32>() }.load(Ordering::Acquire);
            if before == 1 { 0 } else { Code::EXECUTION.0 }
        }
        let user = (&raw const order).cast_mut().cast();
        let door = hold_back(a);
        ok(unsafe { otr_host_call(a, Some(mark), user) });
        ok(unsafe { otr_event_record(point, a) });
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(10));
                door.store(true, Ordering::Release);
            });
            // Within a driver this returns at once; across drivers it waits.
            ok(unsafe { otr_stream_wait_event(b, point) });
            ok(unsafe { otr_host_call(b, Some(check), user) });
            ok(unsafe { otr_stream_synchronize(b) });
        });
        ok(unsafe { otr_stream_synchronize(a) });
        for stream in [a, b] {
            ok(unsafe { otr_stream_destroy(stream) });
        }
        ok(unsafe { otr_event_destroy(point) });
    }
}

#[test]
fn a_failed_event_fails_the_stream_that_waits_and_not_the_call() {
    unsafe extern "C" fn see(user: *mut c_void, upstream: i32) -> i32 {
        let seen = unsafe { &*user.cast::<AtomicU32>() };
        seen.store(upstream as u32, Ordering::Release);
        upstream
    }
    let _ = *DEVICES;
    // Two devices of one driver, and devices of two.
    for (first, second) in [(0, 1), (0, 2), (2, 4), (4, 0)] {
        let (a, b) = (stream(first), stream(second));
        let point = event(first);
        let seen = AtomicU32::new(0);
        ok(unsafe { otr_host_call(a, Some(fail), null_mut()) });
        ok(unsafe { otr_event_record(point, a) });
        ok(unsafe { otr_stream_wait_event(b, point) });
        ok(unsafe { otr_host_call(b, Some(see), (&raw const seen).cast_mut().cast()) });
        fails(unsafe { otr_stream_synchronize(b) }, Code::EXECUTION, &[]);
        assert_eq!(seen.load(Ordering::Acquire), Code::EXECUTION.0 as u32);
        // The failure was reported: the stream works again.
        ok(unsafe { otr_stream_synchronize(b) });
        fails(unsafe { otr_stream_synchronize(a) }, Code::EXECUTION, &[]);
        for stream in [a, b] {
            ok(unsafe { otr_stream_destroy(stream) });
        }
        ok(unsafe { otr_event_destroy(point) });
    }
}

#[test]
fn a_failure_is_reported_with_its_stream_and_then_the_stream_works_again() {
    for &device in &*DEVICES {
        let stream = stream(device);
        let (before, after) = (event(device), event(device));
        ok(unsafe { otr_event_record(before, stream) });
        ok(unsafe { otr_host_call(stream, Some(fail), null_mut()) });
        ok(unsafe { otr_event_record(after, stream) });
        let failure = fails(
            unsafe { otr_stream_synchronize(stream) },
            Code::EXECUTION,
            &[],
        );
        assert_eq!(failure.stream, stream);
        ok(unsafe { otr_event_synchronize(before) });
        fails(
            unsafe { otr_event_synchronize(after) },
            Code::EXECUTION,
            &[],
        );
        ok(unsafe { otr_stream_synchronize(stream) });
        let address = alloc(device, 4, stream);
        upload(stream, address, &[5u32]);
        assert_eq!(download::<u32>(stream, address, 1), [5]);
        ok(unsafe { otr_memory_free(address) });
    }
}

#[test]
fn operators_run_in_stream_order_or_say_that_they_cannot() {
    let mut add = 0;
    ok(unsafe { otr_operator_find(c"add".as_ptr(), &mut add) });
    for &device in &*DEVICES {
        let stream = stream(device);
        let address = alloc(device, 3 * 1024, stream);
        upload(stream, address, &[1.5f32; 8]);
        upload(stream, address + 1024, &[2.0f32; 8]);
        let (sizes, strides) = ([8i64], [1i64]);
        let tensor = |address, dtype: DType| otr_tensor_t {
            address,
            dtype: dtype.0,
            rank: 1,
            sizes: sizes.as_ptr(),
            strides: strides.as_ptr(),
        };
        let call = |inputs: &[otr_tensor_t], output: &otr_tensor_t, operator| {
            let mut alpha: otr_scalar_t = unsafe { std::mem::zeroed() };
            alpha.dtype = DType::F64.0;
            alpha.value.f64_ = 2.0;
            let mut call: otr_operator_call_t = unsafe { std::mem::zeroed() };
            call.struct_size = size_of::<otr_operator_call_t>();
            call.inputs = inputs.as_ptr();
            call.input_count = inputs.len() as u32;
            call.outputs = output;
            call.output_count = 1;
            call.scalars = &alpha;
            call.scalar_count = 1;
            unsafe { otr_operator_call(stream, operator, &call) }
        };
        let f32s = [
            tensor(address, DType::F32),
            tensor(address + 1024, DType::F32),
        ];
        let output = tensor(address + 2048, DType::F32);
        ok(call(&f32s, &output, add));
        assert_eq!(download::<f32>(stream, address + 2048, 8), [5.5f32; 8]);
        fails(
            call(&f32s, &output, u32::MAX),
            Code::NOT_FOUND,
            &["operator"],
        );
        fails(call(&f32s[..0], &output, add), Code::INVALID_ARGUMENT, &[]);
        let mut broken = f32s;
        broken[0].sizes = null();
        fails(
            call(&broken, &output, add),
            Code::INVALID_ARGUMENT,
            &["sizes", "NULL"],
        );
        fails(
            call(&[tensor(address, DType(99)); 2], &output, add),
            Code::UNSUPPORTED,
            &[],
        );
        ok(unsafe { otr_memory_free(address) });
    }
    let mut none = 0;
    fails(
        unsafe { otr_operator_find(c"frobnicate".as_ptr(), &mut none) },
        Code::NOT_FOUND,
        &["frobnicate"],
    );
}

#[test]
fn memory_is_checked_counted_and_given_back() {
    for &device in &*DEVICES {
        let stream = stream(device);
        let address = alloc(device, 1000, stream);
        let mut info: otr_pointer_info_t = unsafe { std::mem::zeroed() };
        fails(
            unsafe { otr_memory_pointer_info(address, &mut info) },
            Code::INVALID_ARGUMENT,
            &["struct_size"],
        );
        info.struct_size = size_of::<otr_pointer_info_t>();
        ok(unsafe { otr_memory_pointer_info(address + 999, &mut info) });
        assert_eq!(
            (info.base, info.device, info.stream),
            (address, device, stream)
        );
        let kind = CopyKind::HostToDevice.raw();
        let source = [0u8; 4096];
        let from = source.as_ptr() as u64;
        fails(
            unsafe { otr_copy(stream, address, from, 4096, kind) },
            Code::INVALID_ARGUMENT,
            &["4096 bytes", "overruns"],
        );
        fails(
            unsafe { otr_copy(stream, address, from, 1, 99) },
            Code::INVALID_ARGUMENT,
            &["99"],
        );
        fails(
            unsafe { otr_fill(stream, address, 10, source.as_ptr().cast(), 4) },
            Code::INVALID_ARGUMENT,
            &["multiple"],
        );
        ok(unsafe { otr_memory_free(address) });
        fails(
            unsafe { otr_memory_free(address) },
            Code::INVALID_ARGUMENT,
            &["already free"],
        );
        fails(
            unsafe { otr_copy(stream, address, from, 1, kind) },
            Code::INVALID_ARGUMENT,
            &["freed"],
        );
        fails(
            unsafe { otr_memory_free(0x1234) },
            Code::INVALID_ARGUMENT,
            &["0x1234"],
        );
        fails(
            unsafe { otr_memory_pointer_info(0x1234, &mut info) },
            Code::NOT_FOUND,
            &["0x1234"],
        );
        ok(unsafe { otr_memory_free(0) });
        assert_eq!(alloc(device, 0, stream), 0);

        let mut out = 0;
        let failure = fails(
            unsafe { otr_memory_alloc(device, 1 << 60, stream, &mut out) },
            Code::OUT_OF_MEMORY,
            &["1.00 EiB"],
        );
        assert!(
            failure.message.contains(&format!("device {device}")),
            "{failure:?}"
        );
        assert_eq!(out, 0, "an output is written only on success");
        ok(unsafe { otr_memory_free(alloc(device, 64, stream)) }); // still usable

        ok(unsafe { otr_stream_synchronize(stream) });
        ok(unsafe { otr_memory_empty_cache(device) });
        let mut stats: otr_memory_stats_t = unsafe { std::mem::zeroed() };
        stats.struct_size = size_of::<otr_memory_stats_t>();
        ok(unsafe { otr_memory_stats(device, &mut stats) });
        assert!(stats.ooms >= 1);
        assert!(stats.allocated_bytes.peak >= 1000);
    }
}

#[test]
fn memory_is_not_reused_while_another_stream_still_reads_it() {
    for &device in &*DEVICES {
        let (owner, reader) = (stream(device), stream(device));
        let address = alloc(device, 1 << 20, owner);
        let door = hold_back(reader);
        // Any address within the allocation stands for it.
        ok(unsafe { otr_memory_record_stream(address + 1000, reader) });
        ok(unsafe { otr_memory_free(address) });
        let other = alloc(device, 1 << 20, owner);
        assert_ne!(
            other, address,
            "handed out while the reader may still touch it"
        );
        // A destroyed stream's work still counts.
        ok(unsafe { otr_stream_destroy(reader) });
        let third = alloc(device, 1 << 20, owner);
        if third == address {
            // Then the owner's work waits for the reader's, on the device.
            ok(unsafe { otr_fill(owner, third, 1 << 20, [0u8].as_ptr().cast(), 1) });
            let mut finished = 1;
            for _ in 0..20 {
                ok(unsafe { otr_stream_flush(owner) });
                ok(unsafe { otr_stream_query(owner, &mut finished) });
                assert_eq!(finished, 0, "used while the destroyed reader still runs");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        door.store(true, Ordering::Release);
        ok(unsafe { otr_device_synchronize(device) });
        for address in [other, third] {
            ok(unsafe { otr_memory_free(address) });
        }
    }
}

#[test]
fn handles_are_checked() {
    for &device in &*DEVICES {
        let (gone, live, point) = (stream(device), stream(device), event(device));
        ok(unsafe { otr_stream_destroy(gone) });
        let mut number = 0;
        let mut address = 0;
        for (handle, text) in [
            (gone, "destroyed"),
            (0, "NULL"),
            (point, "of an event"),
            (12345, "not a handle"),
        ] {
            let calls = [
                unsafe { otr_stream_query(handle, &mut number) },
                unsafe { otr_stream_synchronize(handle) },
                unsafe { otr_stream_flush(handle) },
                unsafe { otr_stream_destroy(handle) },
                unsafe { otr_stream_set_current(handle) },
                unsafe { otr_stream_wait_event(handle, point) },
                unsafe { otr_event_record(point, handle) },
                unsafe { otr_memory_alloc(device, 8, handle, &mut address) },
                unsafe { otr_host_call(handle, Some(fail), null_mut()) },
                unsafe { otr_fill(handle, 0, 0, (&raw const number).cast(), 4) },
            ];
            for status in calls {
                fails(status, Code::INVALID_HANDLE, &[text]);
            }
        }
        fails(
            unsafe { otr_event_query(live, &mut number) },
            Code::INVALID_HANDLE,
            &["of a stream"],
        );
        fails(
            unsafe { otr_event_synchronize(0) },
            Code::INVALID_HANDLE,
            &["NULL"],
        );
        ok(unsafe { otr_event_destroy(point) });
        fails(
            unsafe { otr_event_destroy(point) },
            Code::INVALID_HANDLE,
            &["destroyed"],
        );
        let mut default = 0;
        ok(unsafe { otr_stream_default(device, &mut default) });
        fails(
            unsafe { otr_stream_destroy(default) },
            Code::INVALID_ARGUMENT,
            &["runtime"],
        );
        let elsewhere = stream(1);
        let here = event(device);
        if device != 1 {
            fails(
                unsafe { otr_event_record(here, elsewhere) },
                Code::INVALID_ARGUMENT,
                &["device"],
            );
            fails(
                unsafe { otr_memory_alloc(device, 8, elsewhere, &mut address) },
                Code::INVALID_ARGUMENT,
                &["device"],
            );
        }
    }
    let mut number = 0;
    fails(
        unsafe { otr_device_set_current(99) },
        Code::INVALID_DEVICE,
        &["99", "there are 0 to"],
    );
    fails(
        unsafe { otr_stream_default(99, &mut 0) },
        Code::INVALID_DEVICE,
        &["99"],
    );
    fails(
        unsafe { otr_device_count(null_mut()) },
        Code::INVALID_ARGUMENT,
        &["count is NULL"],
    );
    fails(
        unsafe { otr_driver_load(null()) },
        Code::INVALID_ARGUMENT,
        &["spec is NULL"],
    );
    fails(
        unsafe { otr_event_create(0, 99, &mut 0) },
        Code::INVALID_ARGUMENT,
        &["0x63"],
    );
    fails(
        unsafe { otr_fallback_set_mode(9) },
        Code::INVALID_ARGUMENT,
        &["9"],
    );
    fails(
        unsafe { otr_host_call(0, None, null_mut()) },
        Code::INVALID_ARGUMENT,
        &["function is NULL"],
    );
    fails(
        unsafe { otr_observer_add(1, None, null_mut(), &mut 0) },
        Code::INVALID_ARGUMENT,
        &["function"],
    );
    ok(unsafe { otr_fallback_mode(&mut number) });
    unsafe { otr_status_free(null_mut()) };
    assert_eq!(unsafe { otr_status_code(null()) }, 0);
}

#[test]
fn a_driver_that_cannot_be_loaded_leaves_the_others_alone() {
    let _ = *DEVICES;
    let (mut before, mut after) = (0, 0);
    ok(unsafe { otr_device_count(&mut before) });
    let failure = fails(
        unsafe { otr_driver_load(c"/nowhere/libacme.so".as_ptr()) },
        Code::LOAD,
        &["/nowhere/libacme.so"],
    );
    assert!(failure.operator.is_none());
    fails(
        unsafe { otr_driver_load(c"host?face=sideways".as_ptr()) },
        Code::LOAD,
        &["sideways", "unified", "discrete"],
    );
    ok(unsafe { otr_device_count(&mut after) });
    assert_eq!(before, after);
    let mut json = null_mut();
    ok(unsafe { otr_load_report(&mut json) });
    let report = unsafe { CStr::from_ptr(json) }
        .to_str()
        .expect("UTF-8")
        .to_owned();
    unsafe { otr_string_free(json) };
    for needle in ["/nowhere/libacme.so", "sideways", "host"] {
        assert!(report.contains(needle), "{report}");
    }
}

#[test]
fn observers_see_memory_until_they_are_removed() {
    static SEEN: AtomicU32 = AtomicU32::new(0);
    unsafe extern "C" fn see(user: *mut c_void, seen: *const otr_observation_t) {
        let seen = unsafe { &*seen };
        assert_eq!(user as usize, 42);
        if seen.size >= 5_000_000 && seen.size < 6_000_000 {
            SEEN.fetch_or(seen.kind, Ordering::Relaxed);
        }
    }
    let mut observer = 0;
    ok(unsafe {
        otr_observer_add(
            OTR_OBSERVE_ALLOC | OTR_OBSERVE_FREE,
            Some(see),
            42 as *mut c_void,
            &mut observer,
        )
    });
    let stream = stream(1);
    let round = || ok(unsafe { otr_memory_free(alloc(1, 5_000_000, stream)) });
    round();
    assert_eq!(
        SEEN.swap(0, Ordering::Relaxed),
        OTR_OBSERVE_ALLOC | OTR_OBSERVE_FREE
    );
    ok(unsafe { otr_observer_remove(observer) });
    fails(
        unsafe { otr_observer_remove(observer) },
        Code::INVALID_HANDLE,
        &["destroyed"],
    );
    round();
    assert_eq!(SEEN.load(Ordering::Relaxed), 0);
}

#[test]
fn generators_count_what_is_drawn() {
    let (mut one, mut seed, mut offset) = (0, 0, 0);
    ok(unsafe { otr_generator_create(0, &mut one) });
    ok(unsafe { otr_generator_seed(one, 99) });
    ok(unsafe { otr_generator_reserve(one, 10, &mut seed, &mut offset) });
    assert_eq!((seed, offset), (99, 0));
    ok(unsafe { otr_generator_reserve(one, 1, &mut seed, &mut offset) });
    assert_eq!((seed, offset), (99, 10));
    ok(unsafe { otr_generator_set_state(one, 1, 2) });
    ok(unsafe { otr_generator_state(one, &mut seed, &mut offset) });
    assert_eq!((seed, offset), (1, 2));
    ok(unsafe { otr_generator_destroy(one) });
    fails(
        unsafe { otr_generator_seed(one, 1) },
        Code::INVALID_HANDLE,
        &["destroyed"],
    );
    ok(unsafe { otr_generator_default(0, &mut one) });
    fails(
        unsafe { otr_generator_destroy(one) },
        Code::INVALID_ARGUMENT,
        &["runtime"],
    );
}

#[test]
fn copies_between_devices_of_any_drivers() {
    let _ = *DEVICES;
    for (from, to) in [(0, 1), (2, 3), (0, 2), (2, 4), (4, 0)] {
        let (source, target) = (stream(from), stream(to));
        let (a, b) = (alloc(from, 4096, source), alloc(to, 4096, target));
        let data: Vec<u32> = (0..1024).map(|index| index ^ (from << 16)).collect();
        upload(source, a, &data);
        ok(unsafe { otr_copy_peer(source, b, a, 4096) });
        ok(unsafe { otr_stream_synchronize(source) });
        assert_eq!(download::<u32>(target, b, 1024), data, "{from} to {to}");
        fails(
            unsafe { otr_copy_peer(source, b, a, 1 << 30) },
            Code::INVALID_ARGUMENT,
            &["overruns"],
        );
        let third = stream(if from == 1 || to == 1 { 2 } else { 1 });
        fails(
            unsafe { otr_copy_peer(third, b, a, 16) },
            Code::INVALID_ARGUMENT,
            &["stream of device"],
        );
    }
}

#[test]
fn threads_have_their_own_current_device_and_stream() {
    let _ = *DEVICES;
    let mine = stream(1);
    ok(unsafe { otr_stream_set_current(mine) });
    ok(unsafe { otr_device_set_current(1) });
    std::thread::spawn(move || {
        let (mut device, mut current, mut default) = (9, 0, 0);
        ok(unsafe { otr_device_current(&mut device) });
        ok(unsafe { otr_stream_current(1, &mut current) });
        ok(unsafe { otr_stream_default(1, &mut default) });
        assert_eq!((device, current), (0, default));
    })
    .join()
    .expect("no panic");
    let mut current = 0;
    ok(unsafe { otr_stream_current(1, &mut current) });
    assert_eq!(current, mine);
}

/// Calls of every kind: with a device, with a handle, with neither, and those that destroy.
fn calls_of_a_child(
    stream: u64,
    point: u64,
    generator: u64,
    address: u64,
) -> Vec<*mut otr_status_t> {
    let (mut number, mut handle, mut text) = (0, 0, null_mut());
    let one = [1_u8];
    unsafe {
        vec![
            otr_device_count(&mut number),
            otr_device_current(&mut number),
            otr_stream_device(stream, &mut number),
            otr_stream_query(stream, &mut number),
            otr_stream_synchronize(stream),
            otr_stream_set_current(stream),
            otr_stream_wait_event(stream, point),
            otr_event_query(point, &mut number),
            otr_event_record(point, stream),
            otr_fill(stream, address, 0, one.as_ptr().cast(), 1),
            otr_host_call(stream, Some(fail), null_mut()),
            otr_memory_alloc(0, 0, stream, &mut handle),
            otr_memory_free(0),
            otr_memory_free(address),
            otr_memory_label_push(c"child".as_ptr()),
            otr_memory_set_process_limit(1 << 30),
            otr_host_is_pinned(one.as_ptr().cast(), &mut number),
            otr_host_free(null_mut()),
            otr_generator_seed(generator, 1),
            otr_generator_destroy(generator),
            otr_capture_begin(stream, OTR_CAPTURE_RELAXED, 0),
            otr_fallback_report(&mut text),
            otr_runtime_init(),
            otr_event_destroy(point),
            otr_stream_destroy(stream),
        ]
    }
}

#[test]
fn a_forked_child_is_told_so() {
    let _ = *DEVICES;
    let (stream, point) = (stream(0), event(0));
    ok(unsafe { otr_event_record(point, stream) });
    let generator = made(|out| unsafe { otr_generator_create(0, out) });
    let address = alloc(0, 64, stream);
    ok(unsafe { otr_stream_synchronize(stream) });
    // SAFETY: the child only makes calls that must not touch locks, and leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // The number of the first call that answers something else, from 1.
        let statuses = calls_of_a_child(stream, point, generator, address);
        let mut codes = statuses
            .into_iter()
            .map(|one| unsafe { otr_status_code(one) });
        let wrong = codes.position(|code| code != Code::FORKED.0);
        unsafe { libc::_exit(wrong.map_or(0, |at| at as i32 + 1)) };
    }
    let mut status = 0;
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
        "status {status:#x}"
    );
    // The parent goes on with all of it.
    ok(unsafe { otr_memory_free(address) });
    ok(unsafe { otr_generator_destroy(generator) });
    ok(unsafe { otr_event_destroy(point) });
    ok(unsafe { otr_stream_destroy(stream) });
}
