//! Operators that a host registers, as a host in Rust sees them. Each test has operators of its own.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one call of the runtime on memory that the test owns"
)]

use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use outrigger_hooks::ops::{Call, OperatorId, Scalar, Tensor};
use outrigger_hooks::{
    CaptureMode, Code, CopyKind, DType, Device, ExecFlags, Place, PlaceEntry, Ref, Result, Stream,
    create_stream, operator_registrations, operator_report, register_operator, replace_operator,
    runtime, set_operator_timing, withdraw_operator,
};

/// Tests that look at counts or time calls.
static COUNTS: Mutex<()> = Mutex::new(());

const SIZES: [i64; 1] = [4];
const STRIDES: [i64; 1] = [1];
const BYTES: u64 = 16;

fn id(name: &CStr) -> OperatorId {
    OperatorId::find(name).unwrap()
}

fn device(index: u32) -> &'static Device {
    runtime().unwrap().device(index).unwrap()
}

/// A stream with memory of four floats on it.
struct Floats {
    stream: Ref<Stream>,
    address: u64,
}

impl Floats {
    fn on(device: u32, values: [f32; 4]) -> Self {
        let stream = create_stream(device, 0).unwrap();
        let address = stream.device().alloc(BYTES, stream.id()).unwrap();
        let floats = Self { stream, address };
        let source = values.as_ptr() as u64;
        unsafe { floats.copy(floats.address, source, CopyKind::HostToDevice) };
        floats
    }

    fn new() -> Self {
        Self::on(0, [1., 2., 3., 4.])
    }

    unsafe fn copy(&self, to: u64, from: u64, kind: CopyKind) {
        unsafe { self.stream.copy(to, from, BYTES, kind) }.unwrap();
        self.stream.synchronize().unwrap();
    }

    fn values(&self) -> [f32; 4] {
        let mut values = [0.; 4];
        let target = values.as_mut_ptr() as u64;
        unsafe { self.copy(target, self.address, CopyKind::DeviceToHost) };
        values
    }

    /// Calls an operator in place.
    fn call(&self, name: &CStr) -> Result<()> {
        in_place(&self.stream, id(name), self.address, &[])
    }
}

fn in_place(stream: &Stream, id: OperatorId, address: u64, scalars: &[Scalar]) -> Result<()> {
    let tensor = [Tensor::new(address, DType::F32, &SIZES, &STRIDES)];
    let call = Call {
        inputs: &tensor,
        outputs: &tensor,
        scalars,
        ..Call::default()
    };
    unsafe { stream.call(id, &call) }
}

/// Adds a number to each element, by an operator of the runtime.
fn add(stream: &Stream, call: &Call<'_>, number: f64) -> Result<()> {
    let added = Call {
        scalars: &[Scalar::F64(number)],
        ..*call
    };
    unsafe { stream.call(id(c"add"), &added) }
}

fn calls(name: &str) -> u64 {
    let report = operator_report();
    let of = report.iter().filter(|one| one.operator == name);
    of.map(|one| one.calls).sum()
}

#[test]
fn a_function_serves_the_calls_of_an_operator_until_it_is_withdrawn() {
    let name = c"served::add_ten";
    let floats = Floats::new();
    assert_eq!(floats.call(name).unwrap_err().code(), Code::UNSUPPORTED);
    assert!(!device(0).serves(id(name)));
    let registration = register_operator(name, None, "acme", move |stream, operator, call| {
        assert_eq!(operator, id(c"served::add_ten"));
        add(stream, call, 10.)
    })
    .unwrap();
    assert!(device(0).serves(id(name)) && device(1).serves(id(name)));
    floats.call(name).unwrap();
    floats.call(name).unwrap();
    assert_eq!(floats.values(), [21., 22., 23., 24.]);
    let list = operator_registrations();
    let one = list
        .iter()
        .find(|one| one.operator == "served::add_ten")
        .unwrap();
    assert_eq!((&*one.owner, one.device, one.calls), ("acme", None, 2));
    registration.withdraw().unwrap();
    assert_eq!(floats.call(name).unwrap_err().code(), Code::UNSUPPORTED);
    assert!(!device(0).serves(id(name)));
    assert_eq!(floats.values(), [21., 22., 23., 24.]);
}

#[test]
fn a_second_registration_is_refused_and_names_both_owners() {
    let name = c"twice::served";
    let first = register_operator(name, None, "first", |stream, _, call| add(stream, call, 1.));
    let first = first.unwrap();
    let dropped = Arc::new(());
    let kept = Arc::clone(&dropped);
    let error = register_operator(name, None, "second", move |stream, _, call| {
        let _ = &kept;
        add(stream, call, 2.)
    })
    .unwrap_err();
    assert_eq!(error.code(), Code::BUSY);
    for word in ["twice::served", "first", "second", "all devices"] {
        assert!(error.to_string().contains(word), "{error}");
    }
    assert_eq!(Arc::strong_count(&dropped), 1, "a refused function is gone");
    // Another scope is another place, and is asked first.
    let other = register_operator(name, Some(device(1)), "second", |stream, _, call| {
        add(stream, call, 100.)
    })
    .unwrap();
    for (device, expected) in [(0, 1.), (1, 100.)] {
        let floats = Floats::on(device, [0.; 4]);
        floats.call(name).unwrap();
        assert_eq!(floats.values(), [expected; 4]);
    }
    drop(other);
    let floats = Floats::on(1, [0.; 4]);
    floats.call(name).unwrap();
    assert_eq!(floats.values(), [1.; 4]);
    drop(first);
    for (owner, name, code) in [
        ("", name, Code::INVALID_ARGUMENT),
        ("acme", c"no_operator_of_this_name", Code::NOT_FOUND),
    ] {
        let error = register_operator(name, None, owner, |_, _, _| Ok(())).unwrap_err();
        assert_eq!(error.code(), code);
    }
}

#[test]
fn a_registration_is_replaced_where_the_host_says_so() {
    let name = c"replaced::served";
    let first = register_operator(name, None, "first", |stream, _, call| add(stream, call, 1.));
    let first = first.unwrap();
    let second = replace_operator(name, None, "second", |stream, _, call| {
        add(stream, call, 2.)
    });
    let second = second.unwrap();
    let floats = Floats::on(0, [0.; 4]);
    floats.call(name).unwrap();
    assert_eq!(floats.values(), [2.; 4]);
    let list = operator_registrations();
    let list: Vec<_> = list
        .iter()
        .filter(|one| one.operator == "replaced::served")
        .collect();
    assert_eq!(list.len(), 1);
    assert_eq!(
        (&*list[0].owner, list[0].replaced.as_deref()),
        ("second", Some("first"))
    );
    let first = first.keep();
    assert_eq!(
        withdraw_operator(first).unwrap_err().code(),
        Code::INVALID_HANDLE
    );
    floats.call(name).unwrap();
    assert_eq!(
        floats.values(),
        [4.; 4],
        "the end of the first does not end the second"
    );
    second.withdraw().unwrap();
    assert_eq!(floats.call(name).unwrap_err().code(), Code::UNSUPPORTED);
}

#[test]
fn a_function_that_is_withdrawn_while_it_runs_is_dropped_when_its_last_call_ends() {
    struct Ends(Arc<AtomicU32>);
    impl Drop for Ends {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let name = c"running::served";
    let ended = Arc::new(AtomicU32::new(0));
    let ends = Ends(Arc::clone(&ended));
    let (begun, begins) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel::<()>();
    let goes_on = Mutex::new(goes_on);
    let registration = register_operator(name, None, "acme", move |stream, _, call| {
        let _ = &ends;
        begun.send(()).unwrap();
        goes_on.lock().unwrap().recv().unwrap();
        add(stream, call, 5.)
    })
    .unwrap();
    let thread = std::thread::spawn(|| {
        let floats = Floats::on(0, [0.; 4]);
        floats.call(c"running::served").unwrap();
        floats.values()
    });
    begins.recv().unwrap();
    registration.withdraw().unwrap();
    let floats = Floats::new();
    assert_eq!(floats.call(name).unwrap_err().code(), Code::UNSUPPORTED);
    assert_eq!(ended.load(Ordering::SeqCst), 0);
    go_on.send(()).unwrap();
    assert_eq!(thread.join().unwrap(), [5.; 4]);
    assert_eq!(ended.load(Ordering::SeqCst), 1);
}

#[test]
fn a_function_that_calls_its_own_operator_reaches_the_next_one() {
    // The functions that follow a function: the one for all devices, and then the host kernel.
    let name = c"neg";
    let on_device = register_operator(name, Some(device(1)), "inner", |stream, operator, call| {
        unsafe { stream.call(operator, call) }?;
        add(stream, call, 1.)
    })
    .unwrap();
    let on_all = register_operator(name, None, "outer", |stream, operator, call| {
        unsafe { stream.call(operator, call) }?;
        add(stream, call, 10.)
    })
    .unwrap();
    for (device, expected) in [(0, 9.), (1, 10.)] {
        let floats = Floats::on(device, [1.; 4]);
        floats.call(name).unwrap();
        assert_eq!(floats.values(), [expected; 4]);
    }
    drop((on_device, on_all));
    let floats = Floats::on(1, [1.; 4]);
    floats.call(name).unwrap();
    assert_eq!(floats.values(), [-1.; 4]);
}

#[test]
fn after_unsupported_the_next_one_is_asked() {
    let name = c"abs";
    let asked = Arc::new(AtomicU32::new(0));
    let counts = Arc::clone(&asked);
    let _declines = register_operator(name, None, "acme", move |_, _, _| {
        counts.fetch_add(1, Ordering::SeqCst);
        Err(outrigger_hooks::Error::new(Code::UNSUPPORTED, "not today"))
    })
    .unwrap();
    let floats = Floats::on(0, [-1.; 4]);
    floats.call(name).unwrap();
    assert_eq!(floats.values(), [1.; 4]);
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    let list = operator_registrations();
    let one = list.iter().find(|one| one.operator == "abs").unwrap();
    assert_eq!(one.calls, 0, "a call that was not served does not count");
}

#[test]
fn errors_and_panics_are_errors_of_the_call() {
    let name = c"failing::served";
    let fails = register_operator(name, None, "acme", |_, _, call| {
        assert!(call.scalars.is_empty(), "the roof is on fire");
        Err(outrigger_hooks::Error::new(
            Code::OUT_OF_RANGE,
            "row 7 of 3",
        ))
    })
    .unwrap();
    let floats = Floats::new();
    let error = floats.call(name).unwrap_err();
    assert_eq!(error.code(), Code::OUT_OF_RANGE);
    assert_eq!(
        error.to_string(),
        "failing::served: row 7 of 3 (registered by acme)"
    );
    assert_eq!(error.stream(), Some(floats.stream.id()));
    let scalars = [Scalar::I64(1)];
    let error = in_place(&floats.stream, id(name), floats.address, &scalars).unwrap_err();
    assert_eq!(error.code(), Code::EXECUTION);
    let text = "failing::served: the function that acme registered panicked: the roof is on fire";
    assert_eq!(error.to_string(), text);
    // The thread is in no function any more.
    fails.withdraw().unwrap();
    let before = calls("failing::served");
    assert_eq!(floats.call(name).unwrap_err().code(), Code::UNSUPPORTED);
    assert_eq!(calls("failing::served"), before);
}

#[test]
fn operands_are_checked_before_a_function_sees_them() {
    let name = c"checked::served";
    let _never = register_operator(name, None, "acme", |_, _, _| unreachable!()).unwrap();
    let stream = create_stream(0, 0).unwrap();
    let tensor = [Tensor::new(0x1000, DType::F32, &[-3], &STRIDES)];
    let call = Call {
        inputs: &tensor,
        ..Call::default()
    };
    let error = unsafe { stream.call(id(name), &call) }.unwrap_err();
    assert_eq!(error.code(), Code::INVALID_ARGUMENT);
}

#[test]
fn a_composed_operator_counts_once_and_its_parts_do_not() {
    let _alone = COUNTS.lock().unwrap();
    let name = c"counted::served";
    let _served = register_operator(name, None, "acme", |stream, _, call| {
        add(stream, call, 1.)?;
        add(stream, call, 1.)
    })
    .unwrap();
    let floats = Floats::on(0, [0.; 4]);
    let entry = || -> Option<PlaceEntry> {
        let report = operator_report();
        report
            .into_iter()
            .find(|one| one.operator == "counted::served")
    };
    floats.call(name).unwrap();
    let one = entry().unwrap();
    assert_eq!(
        (one.place, one.calls, one.timed_calls),
        (Place::Device, 1, 0)
    );
    let adds = calls("add");
    set_operator_timing(true);
    floats.call(name).unwrap();
    set_operator_timing(false);
    let one = entry().unwrap();
    assert_eq!((one.calls, one.timed_calls), (2, 1));
    assert_eq!(calls("add"), adds);
    assert_eq!(floats.values(), [4.; 4]);
    add_alone(&floats);
    assert_eq!(calls("add"), adds + 1, "a call of its own counts");
}

fn add_alone(floats: &Floats) {
    in_place(
        &floats.stream,
        id(c"add"),
        floats.address,
        &[Scalar::F64(1.)],
    )
    .unwrap();
}

#[test]
fn a_capture_records_what_a_function_submits() {
    let _alone = COUNTS.lock().unwrap();
    let name = c"captured::served";
    let asked = Arc::new(AtomicU32::new(0));
    let counts = Arc::clone(&asked);
    let served = register_operator(name, None, "acme", move |stream, _, call| {
        counts.fetch_add(1, Ordering::SeqCst);
        add(stream, call, 1.)
    })
    .unwrap();
    let floats = Floats::on(0, [0.; 4]);
    floats
        .stream
        .capture_begin(CaptureMode::Global, None)
        .unwrap();
    floats.call(name).unwrap();
    let graph = floats.stream.capture_end().unwrap();
    assert_eq!(floats.values(), [0.; 4]);
    served.withdraw().unwrap();
    let exec = graph.instantiate(ExecFlags::default()).unwrap();
    let adds = calls("add");
    for _ in 0..3 {
        exec.replay(&floats.stream).unwrap();
    }
    assert_eq!(floats.values(), [3.; 4]);
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    assert_eq!(
        calls("add"),
        adds + 3,
        "a graph has only the parts, and replays count them"
    );
    assert_eq!(calls("captured::served"), 0);

    let _fails = register_operator(name, None, "acme", |_, _, _| {
        Err(outrigger_hooks::Error::new(Code::EXECUTION, "no more"))
    })
    .unwrap();
    floats
        .stream
        .capture_begin(CaptureMode::Global, None)
        .unwrap();
    floats.call(name).unwrap_err();
    let error = floats.stream.capture_end().unwrap_err();
    assert!(error.to_string().contains("no more"), "{error}");
}
