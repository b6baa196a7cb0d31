//! The guard behind operators: NaN and infinite elements are found where they come from, eager and replayed.

use outrigger_device::{CopyKind, DType};
use outrigger_hooks::{
    CaptureMode, Code, Device, Error, ExecFlags, NanGuard, instantiate, runtime, set_nan_guard,
};
use outrigger_ops::{Call, OperatorId, Tensor};

/// Four numbers of f32 on a device.
struct Four {
    device: &'static Device,
    address: u64,
}

impl Four {
    fn new(device: &'static Device, numbers: [f32; 4]) -> Self {
        let stream = device.default_stream();
        let address = device.alloc(16, stream.id()).unwrap();
        // SAFETY: the stream is waited for.
        unsafe { stream.copy(address, numbers.as_ptr() as u64, 16, CopyKind::HostToDevice) }
            .unwrap();
        stream.synchronize().unwrap();
        Self { device, address }
    }

    fn tensor(&self) -> Tensor<'static> {
        Tensor::new(self.address, DType::F32, &[2, 2], &[2, 1])
    }
}

/// Divides, and hands on what the call or the wait says.
fn divide(a: &Four, b: &Four, out: &Four) -> outrigger_hooks::Result<()> {
    let stream = a.device.default_stream();
    let call = Call {
        inputs: &[a.tensor(), b.tensor()],
        outputs: &[out.tensor()],
        ..Call::default()
    };
    // SAFETY: the operands live as long as the device.
    unsafe { stream.call(OperatorId::find(c"div").unwrap(), &call) }?;
    if stream.is_capturing() {
        return Ok(());
    }
    stream.synchronize()
}

fn is_about(error: &Error, parts: &[&str]) {
    assert_eq!(error.code(), Code::EXECUTION);
    let text = error.to_string();
    assert!(text.starts_with("div: "), "{text}");
    for part in parts {
        assert!(text.contains(part), "no '{part}' in: {text}");
    }
}

#[test]
fn what_is_not_finite_is_found_where_it_comes_from() {
    let runtime = runtime().expect("the runtime starts");
    let mut driver = std::env::current_exe().expect("the test has a path");
    driver.set_file_name("liboutrigger_library_driver.so");
    let first = runtime.device_count();
    runtime
        .load(&format!("{}?devices=1", driver.display()))
        .expect("the driver is loaded");
    for device in [0, first].map(|index| runtime.device(index).unwrap()) {
        let stream = device.default_stream();
        let [a, zeros, out] = [[1.0, 0.0, -3.0, 2.0], [0.0, 0.0, 1.0, 1.0], [0.0; 4]]
            .map(|numbers| Four::new(device, numbers));
        let ones = Four::new(device, [1.0; 4]);
        divide(&a, &zeros, &out).unwrap();

        set_nan_guard(NanGuard::NanAndInfinite);
        let found = divide(&a, &zeros, &out).unwrap_err();
        is_about(
            &found,
            &[
                "output 0 of f32 [2, 2] has 1 NaN and 1 infinite of 4 elements",
                "input 0 of f32 [2, 2] goes from -3 to 2",
                "input 1 of f32 [2, 2] goes from 0 to 1",
            ],
        );
        // The stream takes work again. What has a NaN already says so.
        divide(&a, &ones, &out).unwrap();
        let nan = Four::new(device, [f32::NAN, 1.0, 1.0, f32::INFINITY]);
        let found = divide(&ones, &nan, &nan).unwrap_err();
        is_about(
            &found,
            &[
                "1 NaN and 0 infinite",
                "input 1 of f32 [2, 2] was overwritten",
            ],
        );
        let nan = Four::new(device, [f32::NAN, 1.0, 1.0, f32::INFINITY]);
        let found = divide(&nan, &ones, &out).unwrap_err();
        is_about(&found, &["goes from 1 to 1, with 1 NaN and 1 infinite"]);

        // The second node of a graph.
        stream
            .capture_begin(CaptureMode::ThreadLocal, None)
            .unwrap();
        divide(&a, &ones, &out).unwrap();
        divide(&a, &zeros, &out).unwrap();
        let graph = stream.capture_end().unwrap();
        let exec = instantiate(&graph, ExecFlags::default()).unwrap();
        exec.replay(stream).unwrap();
        let found = stream.synchronize().unwrap_err();
        is_about(&found, &["node 2: output 0", "1 NaN and 1 infinite"]);

        set_nan_guard(NanGuard::Nan);
        let tens = Four::new(device, [1.0, 2.0, 0.0, 1.0]);
        divide(&ones, &tens, &out).unwrap();
        divide(&a, &zeros, &out).unwrap_err();
        set_nan_guard(NanGuard::Off);
        divide(&a, &zeros, &out).unwrap();
    }
}
