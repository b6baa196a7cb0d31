//! Graphs with operators of the driver: in bodies of conditional nodes, profiled, checked and compared with eager work.

use outrigger_device::{CopyKind, DType};
use outrigger_hooks::{
    ConditionalKind, Device, ExecFlags, ExecMode, Place, instantiate, operator_report,
    operator_reset, runtime,
};
use outrigger_ops::{Call, OperatorId, Scalar, Tensor};

/// A device whose driver has operators for everything.
fn device() -> &'static Device {
    let runtime = runtime().expect("the runtime starts");
    let mut driver = std::env::current_exe().expect("the test has a path");
    driver.set_file_name("liboutrigger_library_driver.so");
    let first = runtime.device_count();
    runtime
        .load(&format!("{}?devices=1", driver.display()))
        .expect("the driver is loaded");
    runtime.device(first).expect("the device is there")
}

/// An i32 on the device.
struct Number {
    device: &'static Device,
    address: u64,
}

impl Number {
    fn new(device: &'static Device, value: i32) -> Self {
        let address = device.alloc(4, device.default_stream().id()).unwrap();
        let number = Self { device, address };
        number.set(value);
        number
    }

    fn copy(&self, dst: u64, src: u64, kind: CopyKind) {
        let stream = self.device.default_stream();
        // SAFETY: the stream is waited for.
        unsafe { stream.copy(dst, src, 4, kind) }.unwrap();
        stream.synchronize().unwrap();
    }

    fn set(&self, value: i32) {
        self.copy(
            self.address,
            &raw const value as u64,
            CopyKind::HostToDevice,
        );
    }

    fn get(&self) -> i32 {
        let mut value = 0i32;
        self.copy(&raw mut value as u64, self.address, CopyKind::DeviceToHost);
        value
    }

    fn tensor(&self) -> Tensor<'static> {
        Tensor::new(self.address, DType::I32, &[1], &[1])
    }
}

/// Runs `with` on the call that adds `amount` to a number in place.
fn adding<R>(number: &Number, amount: i64, with: impl FnOnce(OperatorId, &Call<'_>) -> R) -> R {
    let operands = [number.tensor()];
    let call = Call {
        inputs: &operands,
        outputs: &operands,
        scalars: &[Scalar::I64(amount)],
        ..Call::default()
    };
    with(OperatorId::find(c"add").unwrap(), &call)
}

#[test]
fn operators_of_the_driver_stand_in_bodies() {
    let device = device();
    let stream = device.default_stream();
    let (left, sum, choice) = (
        Number::new(device, 3),
        Number::new(device, 0),
        Number::new(device, 1),
    );
    let body = |changes: &[(&Number, i64)]| {
        let graph = device.create_graph(None).unwrap();
        for (number, amount) in changes {
            adding(number, *amount, |id, call| {
                graph.add_operator(&[], id, call)
            })
            .unwrap();
        }
        graph
    };
    let graph = device.create_graph(None).unwrap();
    let counted = [body(&[(&left, -1), (&sum, 5)])];
    let before = graph
        .add_conditional(
            &[],
            ConditionalKind::While,
            left.address,
            DType::I32,
            &counted,
        )
        .unwrap();
    let either = [body(&[(&sum, 1000)]), body(&[(&sum, 2000)])];
    let last = graph
        .add_conditional(
            &[before],
            ConditionalKind::If,
            choice.address,
            DType::I32,
            &either,
        )
        .unwrap();
    adding(&sum, 7, |id, call| graph.add_operator(&[last], id, call)).unwrap();
    let exec = instantiate(&graph, ExecFlags::default()).unwrap();
    assert_eq!(exec.info().mode, ExecMode::Submit);

    operator_reset();
    exec.replay(stream).unwrap();
    assert_eq!((left.get(), sum.get()), (0, 15 + 1000 + 7));
    assert!(
        operator_report()
            .iter()
            .all(|row| row.place == Place::Device),
        "{:?}",
        operator_report()
    );
    // The other way, with other predicates.
    left.set(0);
    sum.set(0);
    choice.set(0);
    exec.replay(stream).unwrap();
    assert_eq!((left.get(), sum.get()), (0, 2000 + 7));

    // Both inspect without leaving a trace but one replay's.
    left.set(2);
    sum.set(0);
    choice.set(1);
    let profile = exec.profile(stream).unwrap();
    let nodes = profile["nodes"].as_array().unwrap();
    let labels: Vec<_> = nodes
        .iter()
        .map(|node| node["label"].as_str().unwrap())
        .collect();
    assert_eq!(labels, ["while", "if", "add"]);
    assert!(
        nodes.iter().all(|node| node["ns"].as_u64() > Some(0)),
        "{profile}"
    );
    assert_eq!((left.get(), sum.get()), (0, 10 + 1000 + 7));
    left.set(2);
    sum.set(0);
    exec.check(stream).unwrap();
    assert_eq!((left.get(), sum.get()), (0, 10 + 1000 + 7));
    left.set(2);
    sum.set(0);
    let cost = exec.cost(stream).unwrap();
    assert!(
        cost["replay_ns"].as_u64() > Some(0) && cost["node_by_node_ns"].as_u64() > Some(0),
        "{cost}"
    );
    assert_eq!((left.get(), sum.get()), (2, 0), "the memory is restored");
}
