//! Host kernels on a device whose memory only the driver reaches: they run over copies, in stream order, eager and in
//! graphs, with the results of the same kernels on `host`. The tests have their own process because of their driver.

use std::ffi::c_void;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use outrigger::runtime::ops::{Call, OperatorId, Scalar, Tensor};
use outrigger::runtime::{
    AddressRange, CaptureMode, Code, CopyKind, DType, Device, ExecFlags, KernelCall, Place,
    destroy_graph, destroy_graph_exec, destroy_stream, host_memory, instantiate, operator_report,
    operator_reset, runtime,
};
use serial_test::serial;

/// The device `host`, and one of a driver that neither runs host functions nor shows its memory.
static DEVICES: LazyLock<[&Device; 2]> = LazyLock::new(|| {
    let runtime = runtime().expect("the runtime starts");
    let last = runtime.device_count();
    let [driver, _] = outrigger_tests::twin_drivers();
    let spec = format!("{}?devices=1", driver.display());
    runtime.load(&spec).expect("the driver is loaded");
    [0, last].map(|index| runtime.device(index).expect("the device is there"))
});

/// Memory of a device, with the same contents on each.
struct Memory {
    device: &'static Device,
    address: u64,
    bytes: usize,
}

impl Memory {
    fn new<T: Copy>(device: &'static Device, values: &[T]) -> Self {
        let bytes = size_of_val(values);
        let stream = device.default_stream();
        let address = device.alloc(bytes as u64, stream.id()).unwrap();
        let memory = Self {
            device,
            address,
            bytes,
        };
        memory.set(values);
        memory
    }

    fn copy(&self, dst: u64, src: u64, kind: CopyKind) {
        let stream = self.device.default_stream();
        // SAFETY: the stream is waited for.
        unsafe { stream.copy(dst, src, self.bytes as u64, kind) }.unwrap();
        stream.synchronize().unwrap();
    }

    fn set<T: Copy>(&self, values: &[T]) {
        assert_eq!(size_of_val(values), self.bytes);
        self.copy(self.address, values.as_ptr() as u64, CopyKind::HostToDevice);
    }

    fn get<T: Copy + Default>(&self) -> Vec<T> {
        let mut values = vec![T::default(); self.bytes / size_of::<T>()];
        self.copy(
            values.as_mut_ptr() as u64,
            self.address,
            CopyKind::DeviceToHost,
        );
        values
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.device.free(self.address).unwrap();
    }
}

fn numbers(count: usize) -> Vec<f32> {
    (0..count)
        .map(|index| (index * 37 % 19) as f32 - 7.5)
        .collect()
}

fn call(device: &Device, name: &std::ffi::CStr, call: &Call<'_>) -> outrigger::runtime::Result<()> {
    let id = OperatorId::find(name).expect("an operator");
    // SAFETY: the tests keep the memory of their operands until they have waited.
    unsafe { device.default_stream().call(id, call) }
}

/// Both devices give the same bytes after `work`, which gets the device and 64 numbers.
#[track_caller]
fn same(what: &str, work: impl Fn(&'static Device, u64)) {
    let [expected, found] = DEVICES.map(|device| {
        let memory = Memory::new(device, &numbers(64));
        work(device, memory.address);
        device.default_stream().synchronize().unwrap();
        memory.get::<u32>()
    });
    assert_eq!(found, expected, "{what}");
}

#[test]
#[serial]
fn results_are_those_of_the_same_kernels_on_host() {
    let f32 = |address, sizes, strides| Tensor::new(address, DType::F32, sizes, strides);
    operator_reset();
    same("in place, over overlapping operands", |device, at| {
        let (sizes, strides) = (&[4, 4][..], &[8, 1][..]);
        let inputs = [f32(at, sizes, strides), f32(at + 16, sizes, strides)];
        let outputs = [f32(at, sizes, strides)];
        let scalars = [Scalar::I64(3)];
        let add = Call {
            inputs: &inputs,
            outputs: &outputs,
            scalars: &scalars,
            ..Call::default()
        };
        call(device, c"add", &add).unwrap();
    });
    same("transposed operands", |device, at| {
        let inputs = [f32(at, &[4, 6], &[1, 4]), f32(at + 96, &[6, 2], &[2, 1])];
        let outputs = [f32(at + 160, &[4, 2], &[1, 4])];
        let mm = Call {
            inputs: &inputs,
            outputs: &outputs,
            ..Call::default()
        };
        call(device, c"mm", &mm).unwrap();
    });
    same("a column of the output, backwards", |device, at| {
        let inputs = [f32(at + 28, &[4], &[-2])];
        let outputs = [f32(at + 128, &[4], &[4])];
        let neg = Call {
            inputs: &inputs,
            outputs: &outputs,
            ..Call::default()
        };
        call(device, c"neg", &neg).unwrap();
    });
    same("nothing", |device, at| {
        let inputs = [f32(at, &[0], &[1])];
        let neg = Call {
            inputs: &inputs,
            outputs: &inputs,
            ..Call::default()
        };
        call(device, c"neg", &neg).unwrap();
    });
    let report = operator_report();
    let mm = |place| {
        report
            .iter()
            .find(|one| (one.operator.as_str(), one.place) == ("mm", place))
    };
    assert_eq!(
        mm(Place::Device).map(|one| (one.calls, one.staged_bytes)),
        Some((1, 0))
    );
    let staged = (24 + 12 + 8 + 8) * 4;
    assert_eq!(
        mm(Place::HostKernel).map(|one| (one.calls, one.staged_bytes)),
        Some((1, staged))
    );
}

/// Another thread makes calls on a stream that begins and ends captures: each capture has a number of whole calls.
fn whole_calls(device: &'static Device, name: &std::ffi::CStr, one: &(dyn Fn(u64) + Sync)) {
    const CAPTURES: u32 = 200;
    let stream = device.create_stream(0).unwrap();
    let captured = |during: &dyn Fn()| {
        stream.capture_begin(CaptureMode::Relaxed, None).unwrap();
        during();
        let graph = stream.capture_end().unwrap();
        let nodes = graph.info().nodes;
        destroy_graph(graph.id()).unwrap();
        nodes
    };
    let nodes = captured(&|| one(stream.id()));
    assert!(nodes > 1, "{name:?} is several steps");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                one(stream.id());
            }
        });
        let torn = (0..CAPTURES).find_map(|_| {
            let found = captured(&|| std::thread::sleep(Duration::from_micros(30)));
            (found % nodes != 0).then_some(found)
        });
        stop.store(true, Ordering::Relaxed);
        assert_eq!(torn, None, "{name:?}: a call is {nodes} nodes");
    });
    stream.synchronize().unwrap();
    destroy_stream(stream.id()).unwrap();
}

#[test]
#[serial]
fn a_capture_has_the_calls_beside_it_as_a_whole() {
    let [_, device] = *DEVICES;
    let memory = Memory::new(device, &numbers(64));
    let f32 = |at, sizes| Tensor::new(memory.address + at, DType::F32, sizes, &[1]);
    // Over copies in host memory: in, the kernel, and back.
    whole_calls(device, c"neg", &|stream| {
        let row = [f32(0, &[8])];
        let neg = Call {
            inputs: &row,
            outputs: &row,
            ..Call::default()
        };
        call_on(stream, c"neg", &neg);
    });
    // Made of parts, which are copies within the device.
    whole_calls(device, c"cat", &|stream| {
        let inputs = [f32(0, &[8]), f32(32, &[8])];
        let outputs = [f32(64, &[16])];
        let cat = Call {
            inputs: &inputs,
            outputs: &outputs,
            scalars: &[Scalar::I64(0)],
            ..Call::default()
        };
        call_on(stream, c"cat", &cat);
    });
}

fn call_on(stream: u64, name: &std::ffi::CStr, call: &Call<'_>) {
    let id = OperatorId::find(name).expect("an operator");
    let stream = outrigger::runtime::stream(stream).unwrap();
    // SAFETY: the tests keep the memory of their operands until they have waited.
    unsafe { stream.call(id, call) }.unwrap();
}

#[test]
#[serial]
fn a_call_takes_its_turn_and_its_failure_is_named() {
    let [_, device] = *DEVICES;
    let memory = Memory::new(device, &numbers(8));
    let index = Memory::new(device, &[1i64, 9]);
    let stream = device.default_stream();
    let row = [Tensor::new(memory.address, DType::F32, &[8], &[1])];
    let neg = Call {
        inputs: &row,
        outputs: &row,
        ..Call::default()
    };
    let gate = outrigger_tests::Gate::new();
    let held = gate.waiter();
    stream
        .host_call(move |_| {
            held();
            Ok(())
        })
        .unwrap();
    call(device, c"neg", &neg).unwrap();
    assert!(!stream.query().unwrap(), "the call has not waited");
    gate.open();
    let negated: Vec<f32> = numbers(8).iter().map(|one| -one).collect();
    assert_eq!(memory.get::<f32>(), negated);

    let inputs = [row[0], Tensor::new(index.address, DType::I64, &[2], &[1])];
    let outputs = [Tensor::new(memory.address, DType::F32, &[2], &[1])];
    let scalars = [Scalar::I64(0)];
    let select = Call {
        inputs: &inputs,
        outputs: &outputs,
        scalars: &scalars,
        ..Call::default()
    };
    call(device, c"index_select", &select).unwrap();
    let error = stream.synchronize().unwrap_err();
    assert_eq!(error.code(), Code::OUT_OF_RANGE);
    assert!(error.to_string().contains("index_select"), "{error}");
    assert_eq!(memory.get::<f32>(), negated, "nothing was copied back");
}

#[test]
#[serial]
fn a_graph_works_on_what_its_memory_holds_at_each_replay() {
    let [_, device] = *DEVICES;
    let stream = device.default_stream();
    let (x, y) = (
        Memory::new(device, &[1f32, 2.0]),
        Memory::new(device, &[0f32; 2]),
    );
    let of = |memory: &Memory| Tensor::new(memory.address, DType::F32, &[2], &[1]);
    let (inputs, outputs) = ([of(&x), of(&x)], [of(&y)]);
    let mul = Call {
        inputs: &inputs,
        outputs: &outputs,
        ..Call::default()
    };
    let neg = Call {
        inputs: &outputs,
        outputs: &outputs,
        ..Call::default()
    };
    for flags in [
        ExecFlags::default(),
        ExecFlags {
            serial: true,
            ..ExecFlags::default()
        },
    ] {
        stream
            .capture_begin(CaptureMode::ThreadLocal, None)
            .unwrap();
        call(device, c"mul", &mul).unwrap();
        call(device, c"neg", &neg).unwrap();
        let graph = stream.capture_end().unwrap();
        let exec = instantiate(&graph, flags).unwrap();
        destroy_graph(graph.id()).unwrap();
        for value in [3f32, 4.0] {
            x.set(&[value, 10.0]);
            exec.replay(stream).unwrap();
            assert_eq!(y.get::<f32>(), [-value * value, -100.0]);
        }
        exec.check(stream).unwrap();
        destroy_graph_exec(exec.id()).unwrap();
    }
    no_copies_are_left(device);
}

/// Checks that calls and graphs that are over have left no copies.
#[track_caller]
fn no_copies_are_left(device: &Device) {
    // An event may pass a moment later than the work before it.
    let start = Instant::now();
    loop {
        device.synchronize().unwrap();
        let kept = host_memory().unwrap().stats().all.allocated_bytes.current;
        if kept == 0 {
            break;
        }
        assert!(
            start.elapsed() < outrigger_tests::LIMIT,
            "{kept} bytes of host memory are kept"
        );
        std::thread::yield_now();
    }
}

#[test]
#[serial]
fn a_call_on_a_stream_that_another_thread_destroys_leaves_no_copies() {
    let [_, device] = *DEVICES;
    let memory = Memory::new(device, &numbers(8));
    let row = [Tensor::new(memory.address, DType::F32, &[8], &[1])];
    let neg = Call {
        inputs: &row,
        outputs: &row,
        ..Call::default()
    };
    let id = OperatorId::find(c"neg").expect("an operator");
    // The stream is held as by a call that another thread overtakes.
    let stream = device.create_stream(0).unwrap();
    destroy_stream(stream.id()).unwrap();
    // SAFETY: the memory lives until it was waited for.
    unsafe { stream.call(id, &neg) }.unwrap();
    stream.synchronize().unwrap();
    let negated: Vec<f32> = numbers(8).iter().map(|one| -one).collect();
    assert_eq!(memory.get::<f32>(), negated);
    drop(stream);
    no_copies_are_left(device);
}

/// A copy of a queue may not overlap itself (R26).
#[test]
#[serial]
fn what_an_operator_copies_over_itself_is_no_copy_of_a_queue() {
    let [_, device] = *DEVICES;
    let stream = device.default_stream();
    let memory = Memory::new(device, &numbers(16));
    let f32 = |at, sizes| Tensor::new(memory.address + at, DType::F32, sizes, &[1]);
    let nodes = |name, call: &Call<'_>| {
        stream.capture_begin(CaptureMode::Relaxed, None).unwrap();
        call_on(stream.id(), name, call);
        let graph = stream.capture_end().unwrap();
        let nodes = graph.info().nodes;
        destroy_graph(graph.id()).unwrap();
        nodes
    };
    let whole = [f32(0, &[16])];
    let copy = Call {
        inputs: &whole,
        outputs: &whole,
        ..Call::default()
    };
    call(device, c"copy", &copy).unwrap();
    assert_eq!(nodes(c"copy", &copy), 0);
    let cat = Call {
        inputs: &[f32(0, &[8]), f32(0, &[8])],
        outputs: &whole,
        scalars: &[Scalar::I64(0)],
        ..Call::default()
    };
    assert_eq!(nodes(c"cat", &cat), 1, "the second half alone");
    call(device, c"cat", &cat).unwrap();
    let twice = [&numbers(8)[..], &numbers(8)].concat();
    assert_eq!(memory.get::<f32>(), twice);
}

/// Adds 1 to each of two numbers whose addresses the block has; the second one gets the sum.
unsafe extern "C" fn sum(args: *const c_void, size: u32, bias: i64) -> i32 {
    assert_eq!((size, bias), (16, 0));
    // SAFETY: the block of `KernelCall` below: the addresses of two numbers.
    unsafe {
        let [from, to] = args.cast::<[*mut i32; 2]>().read_unaligned();
        to.write(to.read() + from.read());
    }
    Code::OK.0
}

#[test]
#[serial]
fn a_kernel_that_says_what_it_uses_runs_over_copies() {
    let [_, device] = *DEVICES;
    let stream = device.default_stream();
    let (from, to) = (Memory::new(device, &[5i32]), Memory::new(device, &[1i32]));
    let args: Vec<u8> = [from.address, to.address]
        .iter()
        .flat_map(|one| one.to_ne_bytes())
        .collect();
    let range = |written| AddressRange { bytes: 4, written };
    let ranges = [range(false), range(true)];
    let kernel = KernelCall {
        function: sum,
        args: &args,
        cost_ns: 0,
        label: c"sum",
        address_offsets: &[0, 8],
        ranges: &ranges,
    };
    // SAFETY: the block is the kernel's, and its memory lives until the end of the test.
    let launch = |kernel| unsafe { stream.launch_host_kernel(kernel) };
    launch(&kernel).unwrap();
    assert_eq!((from.get(), to.get()), (vec![5i32], vec![6i32]));
    stream
        .capture_begin(CaptureMode::ThreadLocal, None)
        .unwrap();
    launch(&kernel).unwrap();
    let graph = stream.capture_end().unwrap();
    let exec = instantiate(&graph, ExecFlags::default()).unwrap();
    exec.replay(stream).unwrap();
    exec.replay(stream).unwrap();
    assert_eq!(to.get::<i32>(), [16]);
    destroy_graph_exec(exec.id()).unwrap();
    destroy_graph(graph.id()).unwrap();

    let blind = KernelCall {
        ranges: &[],
        ..kernel
    };
    assert_eq!(launch(&blind).unwrap_err().code(), Code::UNSUPPORTED);
    let short = KernelCall {
        ranges: &ranges[..1],
        ..kernel
    };
    let error = launch(&short).unwrap_err();
    assert_eq!(error.code(), Code::INVALID_ARGUMENT);
    assert!(
        error.to_string().contains("2 addresses and 1 ranges"),
        "{error}"
    );
}
