//! Drivers of five kinds in one process: each device says whose it is, memory and order reach across drivers, and where
//! one driver dies, the devices of the others go on. OpenCL is one of them, twice, where the environment names its driver. The test has
//! its own process because of its drivers and its layer.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one call of the C ABI with pointers to locals or from the ABI itself"
)]
#![expect(clippy::print_stdout, reason = "what was skipped is said")]

use std::ffi::CString;

use outrigger::ffi::*;
use outrigger::runtime::Code;
use outrigger_tests::abi::*;
use outrigger_tests::within_limit;

const COUNT: usize = 10_000;
const SIZE: u64 = COUNT as u64 * 4;

/// A device, with a stream and memory of its own.
struct Member {
    device: u32,
    driver: &'static str,
    stream: u64,
    address: u64,
}

impl Member {
    /// The first device of a driver that is loaded now.
    fn load(spec: &str, driver: &'static str) -> Self {
        let device = made(|out| unsafe { otr_device_count(out) });
        let text = CString::new(spec).expect("no NUL");
        ok(unsafe { otr_driver_load(text.as_ptr()) });
        Self::of(device, driver)
    }

    fn of(device: u32, driver: &'static str) -> Self {
        let stream = stream(device);
        Self {
            device,
            driver,
            stream,
            address: alloc(device, SIZE, stream),
        }
    }

    /// The driver that the device says it is of.
    fn says(&self) -> String {
        let mut info: otr_device_info_t = unsafe { std::mem::zeroed() };
        info.struct_size = size_of::<otr_device_info_t>();
        ok(unsafe { otr_device_info(self.device, &mut info) });
        text(info.driver.as_ptr())
    }

    /// Doubles its numbers in a replay of a graph.
    fn double_in_a_graph(&self) {
        begin(self.stream);
        let operands = (self.address, self.address, self.address);
        add(self.stream, operands, COUNT as i64, 1);
        let graph = end(self.stream);
        // Node by node: whether a graph of the driver is cheaper is measured with fills, which are the end of a driver here.
        let exec = instantiate(graph, OTR_GRAPH_SUBMIT);
        replay(exec, self.stream);
        synchronize(self.stream);
        ok(unsafe { otr_graph_exec_destroy(exec) });
        ok(unsafe { otr_graph_destroy(graph) });
    }
}

/// Copies all numbers.
fn copy(stream: u64, to: &Member, from: &Member) -> *mut otr_status_t {
    unsafe {
        otr_copy_peer(
            stream,
            to.device,
            to.address,
            from.device,
            from.address,
            SIZE,
        )
    }
}

fn numbers(first: usize) -> Vec<f32> {
    (first..first + COUNT).map(|number| number as f32).collect()
}

/// Numbers go round: each device gets those of the one before it and adds them to themselves, in order of events only.
fn go_round(members: &[Member], first: usize) {
    upload(members[0].stream, members[0].address, &numbers(first));
    for (round, pair) in members.windows(2).enumerate() {
        let [from, to] = pair else { unreachable!() };
        let operands = (from.address, from.address, from.address);
        add(from.stream, operands, COUNT as i64, 1);
        // The copy is in order of one of the two, and an event puts it into that of the other.
        let (before, copier) = match round % 2 {
            0 => (from, to),
            _ => (to, from),
        };
        let ready = event(before.device);
        ok(unsafe { otr_event_record(ready, before.stream) });
        ok(unsafe { otr_stream_wait_event(copier.stream, ready) });
        ok(copy(copier.stream, to, from));
        let copied = event(copier.device);
        ok(unsafe { otr_event_record(copied, copier.stream) });
        ok(unsafe { otr_stream_wait_event(to.stream, copied) });
        ok(unsafe { otr_stream_wait_event(from.stream, copied) });
        for event in [ready, copied] {
            ok(unsafe { otr_event_destroy(event) });
        }
    }
    let last = members.last().expect("there are several");
    let factor = (1_u32 << (members.len() - 1)) as f32;
    let expected: Vec<f32> = numbers(first).iter().map(|one| one * factor).collect();
    assert_eq!(
        download::<f32>(last.stream, last.address, COUNT),
        expected,
        "{}",
        last.driver
    );
}

/// The driver for OpenCL that the environment names, as one whose memory the host does not see, and as one that shows it.
fn opencl() -> Vec<Member> {
    let Ok(path) = std::env::var("OUTRIGGER_TEST_OPENCL") else {
        println!("in part skipped: OUTRIGGER_TEST_OPENCL names no driver for OpenCL");
        return Vec::new();
    };
    let faces = ["host_visible=0", "host_visible=1"].into_iter();
    faces
        .map(|face| Member::load(&format!("{path}?device=0&{face}"), "opencl"))
        .collect()
}

#[test]
fn one_dies_and_the_others_go_on() {
    within_limit(|| {
        // The first fill of a driver is its end. Each driver has a layer of its own, and only victims are filled.
        // SAFETY: this is the only test of the program, and no other thread reads the environment yet.
        unsafe { std::env::set_var("OUTRIGGER_LAYERS", "fault:fill@1=lost") };
        let [one, two] = outrigger_tests::twin_drivers();
        let c_driver = outrigger_tests::c_driver();
        let specs = [
            ("host?face=discrete&devices=1".to_owned(), "host"),
            (format!("{}?devices=1", c_driver.display()), "example"),
            (format!("{}?devices=1", one.display()), "dispatcher"),
            (format!("{}?devices=1", two.display()), "dispatcher"),
        ];
        let mut members = vec![Member::of(0, "host")];
        for (spec, driver) in specs {
            members.push(Member::load(&spec, driver));
        }
        members.extend(opencl());
        for member in &members {
            assert_eq!(member.says(), member.driver, "device {}", member.device);
        }
        go_round(&members, 1);

        // Each driver but the first dies in turn, and takes nobody with it.
        while members.len() > 2 {
            let victim = members.remove(1);
            let name = format!("device {}", victim.device);
            let fill = || unsafe {
                otr_fill(
                    victim.stream,
                    victim.address,
                    SIZE,
                    [0_u8].as_ptr().cast(),
                    1,
                )
            };
            fails(fill(), Code::DEVICE_LOST, &[]);
            fails(fill(), Code::DEVICE_LOST, &[]);
            fails(
                unsafe { otr_stream_synchronize(victim.stream) },
                Code::DEVICE_LOST,
                &[],
            );
            let other = &members[0];
            for stream in [victim.stream, other.stream] {
                fails(copy(stream, other, &victim), Code::DEVICE_LOST, &[]);
            }
            go_round(&members, victim.device as usize);
            for member in &members {
                upload(member.stream, member.address, &numbers(7));
                member.double_in_a_graph();
                let doubled: Vec<f32> = numbers(7).iter().map(|one| one * 2.0).collect();
                let found = download::<f32>(member.stream, member.address, COUNT);
                assert_eq!(found, doubled, "{} after the end of {name}", member.driver);
            }
            // The memory and the stream of the dead driver are given back without an error.
            ok(unsafe { otr_memory_free(victim.device, victim.address) });
            ok(unsafe { otr_stream_destroy(victim.stream) });
        }
    });
}
