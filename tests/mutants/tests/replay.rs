//! A driver that goes wrong somewhere in a long run, as a vendor looks into it: the run is recorded on the mutant,
//! replayed on the mutant and on a correct driver, and shrunk to the few calls that show the defect.

use std::ffi::CString;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::ptr::NonNull;

use outrigger_device::{Code, CopyKind, Driver, RawDriver, Result, sys};
use outrigger_layers::layered;
use outrigger_layers::record::record;
use outrigger_layers::replay::{
    Difference, Recording, ReplayOptions, compare_runs, replay, shrink,
};
use outrigger_mutants::otr_driver_get_api;

/// Opens a mutant as any loader does.
fn mutant(name: &str) -> Driver {
    let host = sys::otr_host_info {
        struct_size: size_of::<sys::otr_host_info>(),
        next: std::ptr::null(),
        api_major: sys::OTR_DRIVER_API_MAJOR,
        api_minor: sys::OTR_DRIVER_API_MINOR,
        version: c"test".as_ptr(),
        log: None,
    };
    let options = CString::new(format!("mutant={name},memory=16M,devices=1")).unwrap();
    let params = sys::otr_open_params {
        struct_size: size_of::<sys::otr_open_params>(),
        next: std::ptr::null(),
        options: options.as_ptr(),
    };
    let (mut api, mut handle) = (std::ptr::null(), std::ptr::null_mut());
    // SAFETY: structs and outputs live through the calls, and the table as long as the process.
    unsafe {
        assert_eq!(otr_driver_get_api(&host, &mut api), 0);
        assert_eq!((*api).open.unwrap()(&params, &mut handle), 0, "{name}");
        let raw = RawDriver::from_parts(api, NonNull::new(handle).unwrap(), None);
        Driver::from_raw(raw.unwrap()).unwrap()
    }
}

/// Numbers that follow from a seed: the generator of Lehmer, with the modulus 2^31 - 1.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0 * 48271 % 0x7fff_ffff;
        self.0 % end
    }
}

/// A long program on one queue, which goes on whatever the driver answers.
fn program(driver: &Driver) -> Result<()> {
    const SIZE: u64 = 1024;
    let mut numbers = Numbers(17);
    let queue = driver.queue_create(0, 0)?;
    let event = driver.event_create(0, false)?;
    let memory = [driver.memory_alloc(0, SIZE)?, driver.memory_alloc(0, SIZE)?];
    let source: Vec<u8> = (0..SIZE).map(|at| at as u8).collect();
    let mut back = vec![0u8; SIZE as usize];
    // SAFETY: all memory lives until the queue was synchronized, at the end and before host memory is used
    // again.
    unsafe {
        queue.fill(memory[0], SIZE, &[1])?;
        queue.fill(memory[1], SIZE, &[2])?;
        let graph = match driver.native_graphs() {
            Some(graphs) => {
                graphs.record_begin(&queue)?;
                queue.copy(memory[1], memory[0], SIZE / 2, CopyKind::DeviceToDevice)?;
                queue.fill(memory[0], SIZE / 2, &[7, 8])?;
                graphs.record_end(&queue).ok()
            }
            None => None,
        };
        for step in 0..250 {
            let at = numbers.below(2) as usize;
            let (to, from) = (memory[at], memory[1 - at]);
            let (offset, size) = (16 * numbers.below(32), 16 * (1 + numbers.below(32)));
            let _ = match numbers.below(9) {
                0 => queue.fill(to + offset, size, &[step as u8]),
                1 => queue.fill(to + offset, size, &[1, 2, 3, step as u8]),
                2 => queue.copy(to + offset, from, size, CopyKind::DeviceToDevice),
                3 => {
                    let source = source.as_ptr() as u64;
                    queue.copy(to + offset, source, size, CopyKind::HostToDevice)
                }
                4 => queue.host_call(|upstream| upstream),
                5 if step % 4 == 0 => queue
                    .host_call(|_| Err(Code::OUT_OF_RANGE))
                    .and_then(|()| queue.host_call(|upstream| upstream))
                    .and_then(|()| event.record(&queue))
                    .and_then(|()| event.synchronize()),
                6 => queue.copy(to, from, 0, CopyKind::DeviceToDevice),
                7 => graph
                    .as_ref()
                    .map_or(Ok(()), |graph| queue.launch_graph(graph)),
                _ => {
                    let target = back.as_mut_ptr() as u64;
                    let _ = queue.copy(target, from, SIZE, CopyKind::DeviceToHost);
                    queue.synchronize()
                }
            };
        }
        let _ = queue.synchronize();
        for memory in memory {
            driver.memory_free(memory)?;
        }
    }
    Ok(())
}

fn recording(name: &str, path: &Path) -> Recording {
    let driver = mutant(name);
    let layer = record(path, &driver).unwrap();
    program(&layered(driver, layer).unwrap()).unwrap();
    let recording = Recording::read(BufReader::new(File::open(path).unwrap())).unwrap();
    std::fs::remove_file(path).unwrap();
    recording
}

/// The first difference of the mutant from the driver without a defect.
fn difference(recording: &Recording, name: &str) -> Option<Difference> {
    let options = ReplayOptions {
        host_functions: false,
        define_memory: true,
    };
    let right = replay(recording, mutant("none"), options).unwrap();
    let wrong = replay(recording, mutant(name), options).unwrap();
    compare_runs(recording, &right, &wrong)
}

#[test]
fn a_defect_in_a_long_run_shrinks_to_at_most_ten_calls() {
    let folder = std::env::temp_dir();
    let mut sizes = Vec::new();
    for name in [
        "copy_short",
        "copy_ignores_offset",
        "copy_of_nothing_refused",
        "fill_long",
        "fill_by_bytes",
        "host_call_twice",
        "host_call_outcome_lost",
        "host_call_code_lost",
        "host_call_upstream_lost",
        "event_failure_lost",
        "graph_launch_lost",
        "graph_runs_twice",
    ] {
        let path = folder.join(format!("otr-mutant-{}-{name}.rec", std::process::id()));
        // Nobody survives a host call that is called twice: that one is found by a replay only.
        let recorded_on = if name == "host_call_twice" {
            "none"
        } else {
            name
        };
        let recording = recording(recorded_on, &path);
        assert!(recording.steps.len() > 250);
        let first = difference(&recording, name).unwrap_or_else(|| panic!("{name} is not seen"));
        let small = shrink(&recording, |part| {
            difference(part, name).is_some_and(|found| {
                found.entry == first.entry && found.kind.same_kind(&first.kind)
            })
        });
        assert!(difference(&small, name).is_some(), "{name}");
        let calls: Vec<_> = small.steps.iter().map(|step| step.entry.name()).collect();
        // Besides the device's opening, without which nothing runs.
        let needed = calls.iter().filter(|call| **call != "device_open");
        assert!(needed.count() <= 10, "{name}: {calls:?}");
        sizes.push((name, calls.len()));
    }
    // The driver without a defect differs from itself in nothing.
    let path = folder.join(format!("otr-mutant-{}-none.rec", std::process::id()));
    assert_eq!(difference(&recording("none", &path), "none"), None);
    assert_eq!(sizes.len(), 12);
}
