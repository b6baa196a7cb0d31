//! Recordings: the calls of a driver are replayed and compared, a recorded bug is found again and
//! shrunk, and the file of a process that was killed can be read.

use std::ffi::c_void;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use outrigger_device::{Code, CopyKind, Driver, Queue, Rows, sys};
use outrigger_layers::record::record;
use outrigger_layers::replay::{
    DifferenceKind, Recording, ReplayOptions, Run, compare, compare_runs, replay, shrink,
};
use outrigger_layers::{Entry, Layer, Next, layered};

fn host(face: &str) -> Driver {
    let text = format!("host?devices=1&memory=64M&virtual_memory=on&graphs=native&face={face}");
    Driver::open(&text.parse().unwrap()).unwrap()
}

/// A file of this test that goes when it is dropped.
struct TempFile(PathBuf);

impl TempFile {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("otr-{}-{name}.rec", std::process::id())))
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn recorded(driver: Driver, path: &Path) -> Driver {
    let layer = record(path, &driver).unwrap();
    layered(driver, layer).unwrap()
}

fn read(path: &Path) -> Recording {
    Recording::read(BufReader::new(File::open(path).unwrap())).unwrap()
}

/// Numbers that follow from a seed: the generator of Lehmer, with the modulus 2^31 - 1.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0 * 48271 % 0x7fff_ffff;
        self.0 % end
    }
}

unsafe extern "C" fn double(args: *const c_void, _size: u32, bias: i64) -> i32 {
    // SAFETY: launched with the address of at least 16 bytes.
    let address = unsafe { args.cast::<u64>().read_unaligned() };
    for at in 0..16 {
        // SAFETY: as above.
        let byte = unsafe { &mut *((address as i64 + bias) as *mut u8).add(at) };
        *byte = byte.wrapping_mul(2);
    }
    0
}

/// A program of many steps over two queues. Each buffer belongs to one of them.
fn program(driver: &Driver, seed: u64, steps: u32) {
    const SIZE: u64 = 4096;
    let mut numbers = Numbers(seed);
    let kernel = driver.host_kernel(0, double).unwrap().unwrap();
    let queues: Vec<Queue> = (0..2).map(|_| driver.queue_create(0, 0).unwrap()).collect();
    let events: Vec<_> = (0..2)
        .map(|_| driver.event_create(0, false).unwrap())
        .collect();
    let buffers: Vec<u64> = (0..6)
        .map(|_| driver.memory_alloc(0, SIZE).unwrap())
        .collect();
    let mut host = vec![0u8; SIZE as usize];
    for buffer in &buffers {
        // SAFETY: all memory lives until the queues were synchronized.
        unsafe { queues[0].fill(*buffer, SIZE, &[3]) }.unwrap();
    }
    events[0].record(&queues[0]).unwrap();
    queues[1].wait_event(&events[0]).unwrap();
    for _ in 0..steps {
        let at = numbers.below(2) as usize;
        let queue = &queues[at];
        let mut buffer = || buffers[numbers.below(3) as usize * 2 + at];
        let (to, from) = (buffer(), buffer());
        let size = 16 << numbers.below(8);
        // SAFETY: as above; ranges of one buffer do not overlap, and host memory is waited for.
        unsafe {
            match numbers.below(7) {
                0 | 1 => {
                    let value = numbers.below(200) as u8;
                    queue.fill(to, size, &[value]).unwrap();
                }
                2 if to != from => queue
                    .copy(to, from, size, CopyKind::DeviceToDevice)
                    .unwrap(),
                3 => {
                    host.fill(numbers.below(200) as u8);
                    let source = host.as_ptr() as u64;
                    queue
                        .copy(to, source, size, CopyKind::HostToDevice)
                        .unwrap();
                    queue.synchronize().unwrap();
                }
                4 => {
                    let target = host.as_mut_ptr() as u64;
                    queue
                        .copy(target, from, SIZE, CopyKind::DeviceToHost)
                        .unwrap();
                    queue.synchronize().unwrap();
                }
                5 => queue.host_call(|upstream| upstream).unwrap(),
                _ => {
                    let args = to.to_ne_bytes();
                    queue.launch(&kernel, &args, 0, c"double").unwrap();
                }
            }
        }
    }
    for (queue, event) in queues.iter().zip(&events) {
        event.record(queue).unwrap();
        event.synchronize().unwrap();
    }
    for queue in &queues {
        for buffer in &buffers {
            // SAFETY: as above.
            unsafe {
                let target = host.as_mut_ptr() as u64;
                queue
                    .copy(target, *buffer, SIZE, CopyKind::DeviceToHost)
                    .unwrap();
            }
            queue.synchronize().unwrap();
        }
    }
    for buffer in buffers {
        // SAFETY: all work has finished.
        unsafe { driver.memory_free(buffer) }.unwrap();
    }
}

const OPTIONS: ReplayOptions = ReplayOptions {
    host_functions: true,
    define_memory: false,
};

#[test]
fn what_a_right_driver_did_is_what_it_does_again() {
    let file = TempFile::new("right");
    for (recorded_on, replayed_on) in [
        ("unified", "unified"),
        ("unified", "discrete"),
        ("discrete", "unified"),
    ] {
        program(&recorded(host(recorded_on), &file.0), 7, 300);
        let recording = read(&file.0);
        assert!(!recording.cut && recording.driver == "host");
        let run = replay(&recording, host(replayed_on), OPTIONS).unwrap();
        let replayed = run
            .results
            .iter()
            .filter(|result| result.code.is_some())
            .count();
        // All but the end.
        assert_eq!(replayed, recording.steps.len() - 1);
        let read = run
            .results
            .iter()
            .filter(|result| result.read.is_some())
            .count();
        assert!(read > 40, "{read} copies to host memory");
        assert_eq!(compare(&recording, &run), None);
    }
}

/// Fills leave out the last byte where they have 512 bytes or more.
struct ShortFill;

impl Layer for ShortFill {
    unsafe fn fill(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        fill: *const sys::otr_fill,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, with fewer bytes; the tests fill with parameters.
        unsafe {
            let mut fill = *fill;
            if fill.size >= 512 && fill.pattern_size == 1 {
                fill.size -= 1;
            }
            next.fill(queue, &fill)
        }
    }
}

#[test]
fn a_bug_that_was_recorded_is_found_again_and_shrunk() {
    let file = TempFile::new("bug");
    let broken = || layered(host("discrete"), ShortFill).unwrap();
    program(&recorded(broken(), &file.0), 11, 300);
    let recording = read(&file.0);
    assert!(recording.steps.len() > 400);
    // The recording on the driver that was recorded: the same once more.
    let run = replay(&recording, broken(), OPTIONS).unwrap();
    assert_eq!(compare(&recording, &run), None);
    // On a driver that is right what was read is another.
    let options = ReplayOptions {
        define_memory: true,
        ..OPTIONS
    };
    let both = |part: &Recording| -> (Run, Run) {
        (
            replay(part, host("discrete"), options).unwrap(),
            replay(part, broken(), options).unwrap(),
        )
    };
    let (right, wrong) = both(&recording);
    let first = compare_runs(&recording, &right, &wrong).unwrap();
    assert_eq!(first.entry, Entry::copy);
    assert!(
        matches!(first.kind, DifferenceKind::Bytes { .. }),
        "{first}"
    );
    let mut tries = 0;
    let small = shrink(&recording, |part| {
        tries += 1;
        let (right, wrong) = both(part);
        compare_runs(part, &right, &wrong)
            .is_some_and(|found| found.kind.same_kind(&first.kind) && found.entry == first.entry)
    });
    let entries: Vec<_> = small.steps.iter().map(|step| step.entry).collect();
    // A queue, memory, the fill, and a copy that shows it.
    assert!(
        entries.len() <= 10 && entries.contains(&Entry::fill),
        "{entries:?}"
    );
    assert!(tries < 300, "{tries} tries");
    // A recording that was shrunk can be written, read, and still shows the failure.
    small.write(File::create(&file.0).unwrap()).unwrap();
    let small = read(&file.0);
    let (right, wrong) = both(&small);
    assert!(compare_runs(&small, &right, &wrong).is_some());
}

/// Graphs, virtual memory, failures and what is refused.
fn special(driver: &Driver) {
    let queue = driver.queue_create(0, 0).unwrap();
    let virtual_memory = driver.virtual_memory().unwrap();
    let size = virtual_memory.granularity(0).unwrap();
    let range = virtual_memory.reserve(0, size, 0).unwrap();
    let physical = virtual_memory.create(0, size).unwrap();
    let mut back = vec![0u8; 64];
    // SAFETY: all memory lives until the queue was synchronized.
    unsafe {
        virtual_memory.map(range, &[physical]).unwrap();
        let graphs = driver.native_graphs().unwrap();
        graphs.record_begin(&queue).unwrap();
        queue.fill(range, 64, &[4, 2]).unwrap();
        let target = back.as_mut_ptr() as u64;
        queue
            .copy(target, range, 64, CopyKind::DeviceToHost)
            .unwrap();
        queue.host_call(|upstream| upstream).unwrap();
        assert_eq!(queue.synchronize().unwrap_err().code(), Code::CAPTURE);
        let graph = graphs.record_end(&queue).unwrap();
        for _ in 0..3 {
            queue.launch_graph(&graph).unwrap();
        }
        queue.synchronize().unwrap();
        assert_eq!(back[..4], [4, 2, 4, 2]);
        queue.host_call(|_| Err(Code::OUT_OF_RANGE)).unwrap();
        assert_eq!(queue.synchronize().unwrap_err().code(), Code::OUT_OF_RANGE);
        assert_eq!(
            queue.fill(range, 3, &[4, 2]).unwrap_err().code(),
            Code::INVALID_ARGUMENT
        );
        assert!(driver.memory_alloc(0, 1 << 40).is_err());
        virtual_memory.unmap(range, size).unwrap();
        virtual_memory.destroy(physical).unwrap();
        virtual_memory.release(range, size).unwrap();
    }
}

#[test]
fn rows_of_host_memory_are_recorded_without_what_lies_between() {
    let file = TempFile::new("rows");
    let driver = recorded(host("discrete"), &file.0);
    let queue = driver.queue_create(0, 0).unwrap();
    let memory = driver.memory_alloc(0, 64).unwrap();
    let (from, mut to) = (*b"ab..cd..ef..", *b"________________");
    let rows = |dst, src, dst_pitch, src_pitch| Rows {
        dst,
        src,
        size: 2,
        count: 3,
        dst_pitch,
        src_pitch,
    };
    // SAFETY: all memory lives until the queue was synchronized.
    unsafe {
        queue.fill(memory, 64, b"-").unwrap();
        let source = from.as_ptr() as u64;
        let up = rows(memory, source, 5, 4);
        queue.copy_rows(&up, CopyKind::HostToDevice).unwrap();
        let target = to.as_mut_ptr() as u64;
        let down = rows(target, memory, 7, 5);
        queue.copy_rows(&down, CopyKind::DeviceToHost).unwrap();
        queue.synchronize().unwrap();
        assert_eq!(&to, b"ab_____cd_____ef");
        driver.memory_free(memory).unwrap();
    }
    drop((queue, driver));
    let recording = read(&file.0);
    let copies = recording
        .steps
        .iter()
        .filter(|step| step.entry == Entry::copy);
    let copies: Vec<_> = copies.collect();
    assert_eq!(copies.len(), 2);
    assert_eq!(copies[0].source, [b"abcdef".to_vec()]);
    assert_eq!(copies[1].destination, [b"abcdef".to_vec()]);
    let run = replay(&recording, host("unified"), OPTIONS).unwrap();
    assert_eq!(compare(&recording, &run), None);
    let read: Vec<_> = run
        .results
        .iter()
        .filter_map(|one| one.read.clone())
        .collect();
    assert_eq!(read, [b"abcdef".to_vec()]);
}

#[test]
fn graphs_virtual_memory_and_failures_are_replayed() {
    let file = TempFile::new("special");
    special(&recorded(host("discrete"), &file.0));
    let recording = read(&file.0);
    let calls = |entry| {
        recording
            .steps
            .iter()
            .filter(move |step| step.entry == entry)
    };
    assert_eq!(calls(Entry::host_call).next().unwrap().ran.len(), 3);
    assert_eq!(calls(Entry::copy).next().unwrap().destination.len(), 3);
    let run = replay(&recording, host("unified"), OPTIONS).unwrap();
    assert_eq!(compare(&recording, &run), None);
    let reads = run.results.iter().filter_map(|result| result.read.as_ref());
    assert_eq!(
        reads.map(|bytes| bytes[..4].to_vec()).collect::<Vec<_>>(),
        [[4, 2, 4, 2]]
    );
}

/// Set for the process that is killed: the file that it records.
const KILLED: &str = "OUTRIGGER_TEST_KILLED";

#[test]
fn what_was_recorded_before_a_kill_is_read() {
    if let Some(path) = std::env::var_os(KILLED) {
        let driver = recorded(host("unified"), Path::new(&path));
        for seed in 1.. {
            program(&driver, seed, 50);
        }
    }
    let file = TempFile::new("killed");
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "what_was_recorded_before_a_kill_is_read"])
        .env(KILLED, &file.0)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let start = std::time::Instant::now();
    while std::fs::metadata(&file.0).map_or(0, |data| data.len()) < 200_000 {
        assert!(start.elapsed().as_secs() < 60 && child.try_wait().unwrap().is_none());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let recording = read(&file.0);
    assert!(recording.steps.len() > 100);
    let run = replay(&recording, host("unified"), OPTIONS).unwrap();
    assert_eq!(compare(&recording, &run), None);
}

/// Holds the first fill back until another one has passed it, or until it seems that none will.
struct Overtaken {
    began: mpsc::Sender<()>,
    passed: Mutex<Option<mpsc::Receiver<()>>>,
    pass: mpsc::Sender<()>,
}

impl Layer for Overtaken {
    unsafe fn fill(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        fill: *const sys::otr_fill,
    ) -> i32 {
        let first = self.passed.lock().unwrap().take();
        if let Some(passed) = &first {
            let _ = self.began.send(());
            let _ = passed.recv_timeout(Duration::from_millis(300));
        }
        // SAFETY: R7: the host's own arguments, handed on.
        let code = unsafe { next.fill(queue, fill) };
        let _ = self.pass.send(());
        code
    }
}

#[test]
fn calls_of_two_threads_are_recorded_in_the_order_in_which_they_took_effect() {
    let file = TempFile::new("threads");
    let ((began, has_begun), (pass, passed)) = (mpsc::channel(), mpsc::channel());
    let layer = Overtaken {
        began,
        passed: Mutex::new(Some(passed)),
        pass,
    };
    let driver = recorded(layered(host("discrete"), layer).unwrap(), &file.0);
    let queue = driver.queue_create(0, 0).unwrap();
    let memory = driver.memory_alloc(0, 16).unwrap();
    let mut back = [0u8; 16];
    // SAFETY: all memory lives until the queue was synchronized.
    unsafe {
        std::thread::scope(|scope| {
            scope.spawn(|| queue.fill(memory, 16, &[1]).unwrap());
            has_begun.recv().unwrap();
            queue.fill(memory, 16, &[2]).unwrap();
        });
        let target = back.as_mut_ptr() as u64;
        queue
            .copy(target, memory, 16, CopyKind::DeviceToHost)
            .unwrap();
        queue.synchronize().unwrap();
        driver.memory_free(memory).unwrap();
    }
    drop(queue);
    drop(driver);
    let recording = read(&file.0);
    let run = replay(&recording, host("discrete"), OPTIONS).unwrap();
    assert_eq!(compare(&recording, &run), None);
}
