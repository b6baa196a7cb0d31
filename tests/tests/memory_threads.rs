//! Threads that share devices for a long time: their memory keeps its contents, and the memory of the
//! devices does not grow. `OUTRIGGER_TEST_SECONDS` says for how long, 2 by default.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one call of the C ABI with pointers to locals or from the ABI itself"
)]

use std::ffi::CString;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use outrigger::ffi::*;
use outrigger_tests::abi::{alloc, download, held, made, ok, stats, stream};

const THREADS: u64 = 8;
/// Blocks that a thread holds at a time.
const LIVE: usize = 24;

/// The time of the test is cut into so many.
const PERIODS: u32 = 5;

/// Numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    /// Mostly small, now and then some MiB.
    fn size(&mut self) -> u64 {
        match self.below(10) {
            0 => (1 << 20) + self.below(3 << 20),
            1..4 => 1 + self.below(1 << 20),
            _ => 1 + self.below(8192),
        }
    }
}

/// A block, with the byte that its first and last one have.
type Block = (u64, u64, u8);

fn fill(stream: u64, (address, size, byte): Block) {
    ok(unsafe { otr_fill(stream, address, size, [byte].as_ptr().cast(), 1) });
}

fn check(stream: u64, (address, size, byte): Block) {
    for at in [address, address + size - 1] {
        assert_eq!(
            download::<u8>(stream, at, 1),
            [byte],
            "{size} bytes at {address:#x}"
        );
    }
}

fn reserved_peak(device: u32) -> u64 {
    stats(device).reserved_bytes.peak
}

#[test]
fn eight_threads_on_two_devices_take_no_more_as_time_goes_by() {
    let seconds = std::env::var("OUTRIGGER_TEST_SECONDS");
    let seconds: f64 = seconds.map_or(2.0, |text| {
        text.parse().expect("OUTRIGGER_TEST_SECONDS is a number")
    });
    let period = Duration::from_secs_f64(seconds / f64::from(PERIODS));
    let devices = [
        "host?virtual_memory=on&devices=1",
        "host?virtual_memory=off&devices=1",
    ]
    .map(|spec| {
        let count: u32 = made(|out| unsafe { otr_device_count(out) });
        let spec = CString::new(spec).expect("no NUL");
        ok(unsafe { otr_driver_load(spec.as_ptr()) });
        count
    });
    let (barrier, rounds) = (Barrier::new(THREADS as usize), AtomicU64::new(0));
    let peaks = std::thread::scope(|scope| {
        let work = |thread: u64| {
            let streams = devices.map(|device| [stream(device), stream(device)]);
            let mut random = Random(thread);
            let mut live: [Vec<Block>; 2] = [Vec::new(), Vec::new()];
            let mut peaks = Vec::new();
            for number in 0..PERIODS {
                let end = Instant::now() + period;
                while Instant::now() < end {
                    let which = random.below(2) as usize;
                    let [main, side] = streams[which];
                    if live[which].len() >= LIVE {
                        let at = random.below(LIVE as u64) as usize;
                        let block = live[which].swap_remove(at);
                        check(main, block);
                        if random.below(4) == 0 {
                            // Still in use elsewhere when it is freed.
                            ok(unsafe { otr_memory_record_stream(devices[which], block.0, side) });
                            fill(side, (block.0, block.1, 0));
                        }
                        ok(unsafe { otr_memory_free(devices[which], block.0) });
                    }
                    let size = random.size();
                    let byte = 1 + random.below(255) as u8;
                    let block = (alloc(devices[which], size, main), size, byte);
                    fill(main, block);
                    live[which].push(block);
                    if random.below(2000) == 0 {
                        ok(unsafe { otr_memory_empty_cache(devices[which]) });
                    }
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
                if barrier.wait().is_leader() {
                    peaks.push((number, devices.map(reserved_peak)));
                    for device in devices {
                        ok(unsafe { otr_memory_reset_peak(device) });
                    }
                }
                barrier.wait();
            }
            for (which, blocks) in live.into_iter().enumerate() {
                for block in blocks {
                    check(streams[which][0], block);
                    ok(unsafe { otr_memory_free(devices[which], block.0) });
                }
            }
            for stream in streams.into_iter().flatten() {
                ok(unsafe { otr_stream_destroy(stream) });
            }
            peaks
        };
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || work(thread)))
            .collect();
        let peaks = threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"));
        let mut peaks: Vec<(u32, [u64; 2])> = peaks.flatten().collect();
        peaks.sort_unstable();
        peaks
    });
    let done = rounds.load(Ordering::Relaxed);
    assert!(done > 100 * THREADS, "only {done} rounds");
    // Peaks of random use differ, by up to two times on a busy machine; what grows with each period is as many times as large
    // in the last one.
    for (which, &device) in devices.iter().enumerate() {
        let of = |period: &(u32, [u64; 2])| period.1[which];
        let (first, last) = (peaks.first().map_or(0, of), peaks.last().map_or(0, of));
        assert!(last <= first * 3, "{peaks:?} after {done} rounds");
        assert_eq!(held(device), (0, 0), "all of it is the device's again");
    }
}
