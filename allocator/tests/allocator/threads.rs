//! Threads that share one allocator, and what must go on while the device is slow.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use outrigger_allocator::{AllocError, Allocator, Backend, Config, PoolAllocError, StreamId};
use parking_lot::Mutex;

use crate::sim::{Piece, Sim};

const MIB: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

/// A sanitizer makes each step many times slower.
const SLOWER: usize = if cfg!(outrigger_sanitizer) { 20 } else { 1 };

/// Runs a test that may hang in a thread of its own, and fails in that case.
fn without_hanging(test: impl FnOnce() + Send + 'static) {
    let (done, finished) = mpsc::channel();
    let thread = thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    match finished.recv_timeout(PATIENCE) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("hangs"),
        _ => thread.join().unwrap(),
    }
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn peaks_are_exact_while_threads_use_up_their_credit_at_the_same_time() {
    const THREADS: u64 = 4;
    const PHASES: u64 = 60;
    without_hanging(|| {
        // Over virtual memory blocks have just the size that they are asked for.
        let allocator = Allocator::new(Sim::with_virtual_memory(900 * MIB), Config::default());
        let barrier = Barrier::new(THREADS as usize);
        // In a phase all rise together and nobody falls: what they hold at its end is its peak.
        let sizes = |thread: u64, phase: u64| {
            let mut state = 1 + thread * PHASES + phase;
            let size = |state: &mut u64| {
                512 * (1 + random(state) % [40, 3000][random(state) as usize % 2])
            };
            (0..30).map(move |_| size(&mut state)).collect::<Vec<u64>>()
        };
        let sum = |phase| {
            (0..THREADS)
                .flat_map(|thread| sizes(thread, phase))
                .sum::<u64>()
        };
        let work = |thread: u64| {
            let mut peak = 0;
            for phase in 0..PHASES {
                let blocks: Vec<u64> = sizes(thread, phase)
                    .into_iter()
                    .map(|size| allocator.alloc(size, StreamId(thread)).unwrap().address)
                    .collect();
                peak = sum(phase).max(peak);
                barrier.wait();
                for block in blocks {
                    allocator.free(block).unwrap();
                }
                // Asked for only now, since to ask is to count anew.
                let leads = barrier.wait().is_leader();
                if leads {
                    let all = allocator.stats().all;
                    let bytes = all.allocated_bytes;
                    assert_eq!((bytes.current, bytes.peak), (0, peak), "phase {phase}");
                    assert_eq!(all.allocations.peak, THREADS * 30);
                }
                if phase % 8 == 7 {
                    if leads {
                        allocator.reset_peak();
                        assert_eq!(allocator.stats().all.allocated_bytes.peak, 0);
                    }
                    peak = 0;
                }
                barrier.wait();
            }
        };
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let work = &work;
                scope.spawn(move || work(thread));
            }
        });
    });
}

#[test]
fn four_threads_never_share_a_byte() {
    four_threads(Sim::new, 20_000 / SLOWER);
}

#[test]
fn four_threads_never_share_a_byte_of_virtual_memory() {
    four_threads(Sim::with_virtual_memory, 4_000 / SLOWER);
}

fn four_threads(device: fn(u64) -> Sim, rounds: usize) {
    without_hanging(move || {
        const THREADS: usize = 4;
        let sim = device(64 * MIB); // little: memory runs out all the time
        let allocator = Arc::new(Allocator::new(sim.clone(), Config::default()));
        let in_use = Arc::new(Mutex::new(BTreeMap::<(u64, u64), u64>::new()));
        let barrier = Arc::new(Barrier::new(THREADS));
        let channels: Vec<(Sender<u64>, Receiver<u64>)> =
            (0..THREADS).map(|_| mpsc::channel()).collect();
        let (senders, receivers): (Vec<_>, Vec<_>) = channels.into_iter().unzip();
        let mut threads = Vec::new();
        for (me, received) in receivers.into_iter().enumerate() {
            let next = senders[(me + 1) % THREADS].clone();
            let (sim, allocator) = (sim.clone(), Arc::clone(&allocator));
            let (in_use, barrier) = (Arc::clone(&in_use), Arc::clone(&barrier));
            threads.push(thread::spawn(move || {
                let mut seed = 0x9E37_79B9 + me as u64;
                let free = |address: u64| {
                    let end = address + allocator.lookup(address).unwrap().size;
                    for piece in sim.0.lock().memory.pieces(&(address..end)) {
                        let known = in_use.lock().remove(&(piece.object, piece.start));
                        assert_eq!(known, Some(piece.end));
                    }
                    allocator.free(address).unwrap();
                };
                // Frees come from other threads, after releases and before.
                let mut pool = allocator.pool_create();
                barrier.wait();
                for _ in 0..rounds {
                    let dice = random(&mut seed);
                    let size = 1 + (dice >> 24) % (1 << (9 + dice % 15));
                    let stream = StreamId(dice >> 8 & 1);
                    let result = if dice & 0xc00 == 0 {
                        let result = allocator.alloc_in(pool, size, stream);
                        result.map_err(|error| match error {
                            PoolAllocError::Alloc(error) => error,
                            PoolAllocError::Pool(error) => panic!("{error}"),
                        })
                    } else {
                        allocator.alloc(size, stream)
                    };
                    if dice & 0x1f000 == 0 {
                        allocator.pool_release(pool).unwrap();
                        pool = allocator.pool_create();
                    }
                    match result {
                        Ok(block) => {
                            let end = block.address + block.size;
                            let pieces = sim.0.lock().memory.pieces(&(block.address..end));
                            for Piece { object, start, end } in pieces {
                                let mut in_use = in_use.lock();
                                let before = in_use.range(..(object, end)).next_back();
                                let shares = |(&(other, _), &before): (&(u64, u64), &u64)| {
                                    other == object && before > start
                                };
                                assert!(!before.is_some_and(shares));
                                in_use.insert((object, start), end);
                            }
                            if dice & 0x70 == 0 {
                                allocator.record_stream(block.address, StreamId(2)).unwrap();
                                sim.0.lock().submit(StreamId(2), block.address..end);
                            }
                            // Another thread frees it, while it is held now and then.
                            let held = dice & 0xe000 == 0;
                            if held {
                                assert_eq!(allocator.hold(end - 1), Ok(block.address));
                            }
                            next.send(block.address).unwrap();
                            if held {
                                allocator.unhold(block.address).unwrap();
                            }
                        }
                        Err(AllocError::OutOfMemory(_)) => received.try_iter().for_each(free),
                        Err(error) => panic!("{error:?}"),
                    }
                    if dice & 0x300 == 0 {
                        received.try_iter().take(4).for_each(free);
                    }
                    if dice & 0xff0_0000 == 0 {
                        allocator.empty_cache();
                    }
                }
                allocator.pool_release(pool).unwrap();
                barrier.wait(); // all have sent
                received.try_iter().for_each(free);
            }));
        }
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(in_use.lock().is_empty());
        allocator.empty_cache();
        let stats = allocator.stats();
        assert!(stats.alloc_retries > 0 && stats.sync_all_streams > 0);
        assert_eq!(
            (stats.all.reserved_bytes.current, stats.all.active.current),
            (0, 0)
        );
        let mut device = sim.0.lock();
        // Events are told with no lock held: another thread may have the address again by then.
        device
            .complaints
            .retain(|complaint| !complaint.starts_with("Event "));
        assert_eq!(device.complaints(), Vec::<String>::new());
        assert!(device.memory.used() == 0);
    });
}

/// A device that a test can keep waiting: in `segment_alloc` or in `fence_wait`.
#[derive(Default)]
struct Gate {
    sim: Sim,
    slow_alloc: AtomicBool,
    slow_wait: AtomicBool,
    entered: Mutex<Option<Sender<()>>>,
    leave: Mutex<Option<Receiver<()>>>,
}

impl Gate {
    fn stop_if(&self, flag: &AtomicBool) {
        if flag.swap(false, Ordering::SeqCst) {
            self.entered.lock().as_ref().unwrap().send(()).unwrap();
            self.leave
                .lock()
                .as_ref()
                .unwrap()
                .recv_timeout(PATIENCE)
                .unwrap();
        }
    }
}

impl Backend for Gate {
    type Error = <Sim as Backend>::Error;
    type Fence = <Sim as Backend>::Fence;

    fn segment_alloc(&self, size: u64) -> Result<u64, Self::Error> {
        self.stop_if(&self.slow_alloc);
        self.sim.segment_alloc(size)
    }

    fn segment_free(&self, address: u64) {
        self.sim.segment_free(address);
    }

    fn is_out_of_memory(&self, error: &Self::Error) -> bool {
        self.sim.is_out_of_memory(error)
    }

    fn fence(&self, stream: StreamId) -> Result<Self::Fence, Self::Error> {
        self.sim.fence(stream)
    }

    fn fence_done(&self, fence: &Self::Fence) -> bool {
        self.sim.fence_done(fence)
    }

    fn fence_wait(&self, fence: &Self::Fence) -> Result<(), Self::Error> {
        self.stop_if(&self.slow_wait);
        self.sim.fence_wait(fence)
    }
}

/// Runs `slow` in a thread until the device keeps it waiting, `meanwhile` here, and lets go.
fn while_waiting(
    flag: fn(&Gate) -> &AtomicBool,
    slow: impl FnOnce(&Allocator<Gate>) + Send + 'static,
    meanwhile: impl FnOnce(&Allocator<Gate>) + Send + 'static,
) {
    let allocator = gated();
    let cached = allocator.alloc(4096, StreamId(0)).unwrap();
    allocator.free(cached.address).unwrap();
    while_it_waits(allocator, flag, slow, meanwhile);
}

fn gated() -> Arc<Allocator<Gate>> {
    let gate = Gate {
        sim: Sim::new(u64::MAX),
        ..Gate::default()
    };
    Arc::new(Allocator::new(gate, Config::default()))
}

/// [`while_waiting`], for an allocator that has been used.
fn while_it_waits(
    allocator: Arc<Allocator<Gate>>,
    flag: fn(&Gate) -> &AtomicBool,
    slow: impl FnOnce(&Allocator<Gate>) + Send + 'static,
    meanwhile: impl FnOnce(&Allocator<Gate>) + Send + 'static,
) {
    without_hanging(move || {
        let (entered, has_entered) = mpsc::channel();
        let (let_go, leave) = mpsc::channel();
        *allocator.backend().entered.lock() = Some(entered);
        *allocator.backend().leave.lock() = Some(leave);
        flag(allocator.backend()).store(true, Ordering::SeqCst);
        let thread = thread::spawn({
            let allocator = Arc::clone(&allocator);
            move || slow(&allocator)
        });
        has_entered.recv_timeout(PATIENCE).unwrap();
        meanwhile(&allocator);
        let_go.send(()).unwrap();
        thread.join().unwrap();
    });
}

#[test]
fn the_cache_serves_while_the_device_allocates() {
    while_waiting(
        |gate| &gate.slow_alloc,
        |allocator| {
            allocator.alloc(50 * MIB, StreamId(0)).unwrap();
        },
        |allocator| {
            let block = allocator.alloc(4096, StreamId(0)).unwrap();
            allocator.record_stream(block.address, StreamId(1)).unwrap();
            allocator.free(block.address).unwrap();
            assert_eq!(allocator.stats().all.segments.current, 1);
        },
    );
}

#[test]
fn everything_goes_on_while_a_stream_is_waited_for() {
    while_waiting(
        |gate| &gate.slow_wait,
        |allocator| {
            // Something to wait for.
            allocator.backend().sim.0.lock().submit(StreamId(0), 0..1);
            assert_eq!(allocator.empty_cache(), 2 * MIB);
        },
        |allocator| {
            allocator.alloc(4096, StreamId(0)).unwrap();
            allocator.alloc(50 * MIB, StreamId(1)).unwrap();
        },
    );
}

#[test]
fn memory_on_its_way_to_the_device_is_not_handed_out() {
    while_waiting(
        |gate| &gate.slow_wait,
        |allocator| {
            // Something to wait for.
            allocator.backend().sim.0.lock().submit(StreamId(0), 0..1);
            assert_eq!(allocator.empty_cache(), 2 * MIB);
        },
        |allocator| {
            let block = allocator.alloc(4096, StreamId(0)).unwrap();
            let bytes = block.address..block.address + block.size;
            allocator.backend().sim.0.lock().submit(StreamId(0), bytes);
            allocator.free(block.address).unwrap();
            assert_eq!(allocator.stats().device_allocs, 2);
        },
    );
}

#[test]
fn a_pool_released_during_its_growth_is_there_for_the_new_segment() {
    let (told, pool) = mpsc::channel();
    while_waiting(
        |gate| &gate.slow_alloc,
        move |allocator| {
            let pool = allocator.pool_create();
            told.send(pool).unwrap();
            let block = allocator.alloc_in(pool, 4096, StreamId(0)).unwrap();
            assert_eq!(allocator.pool_stats(pool).unwrap().segments, 1);
            assert!(allocator.alloc_in(pool, 4096, StreamId(0)).is_err());
            allocator.free(block.address).unwrap();
            assert_eq!(allocator.pool_stats(pool), None);
        },
        move |allocator| {
            let pool = pool.recv_timeout(PATIENCE).unwrap();
            allocator.pool_release(pool).unwrap();
            assert_eq!(allocator.pool_stats(pool).unwrap().references, 0);
            assert!(allocator.pool_retain(pool).is_err());
        },
    );
}

#[test]
fn a_segment_that_becomes_idle_while_the_device_allocates_is_not_forgotten() {
    let allocator = gated();
    let pool = allocator.pool_create();
    let block = allocator.alloc_in(pool, 4096, StreamId(0)).unwrap();
    allocator.pool_release(pool).unwrap();
    while_it_waits(
        Arc::clone(&allocator),
        |gate| &gate.slow_alloc,
        |allocator| {
            allocator.alloc(50 * MIB, StreamId(0)).unwrap();
        },
        move |allocator| {
            allocator.free(block.address).unwrap();
            assert_eq!(allocator.pool_stats(pool).unwrap().segments, 1);
        },
    );
    assert_eq!(allocator.empty_cache(), 2 * MIB);
    assert_eq!(allocator.pool_stats(pool), None);
}

#[test]
fn a_block_is_freed_while_another_thread_gives_its_hold_back() {
    without_hanging(|| {
        const ROUNDS: u64 = 2_000;
        let allocator = Allocator::new(Sim::new(64 * MIB), Config::default());
        let (block, stream) = (AtomicU64::new(0), StreamId(1));
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let held = loop {
                        match block.swap(0, Ordering::AcqRel) {
                            0 => thread::yield_now(),
                            held => break held,
                        }
                    };
                    allocator.unhold(held).unwrap();
                }
            });
            for _ in 0..ROUNDS {
                let held = allocator.alloc(4096, stream).unwrap().address;
                allocator.hold(held).unwrap();
                block.store(held, Ordering::Release);
                allocator.free(held).unwrap();
                // The block is free once, whichever thread let it go.
                let others = [(); 2].map(|()| allocator.alloc(4096, stream).unwrap().address);
                assert_ne!(others[0], others[1], "one block was handed out twice");
                for other in others {
                    allocator.free(other).unwrap();
                }
                while block.load(Ordering::Acquire) != 0 {
                    thread::yield_now();
                }
            }
        });
        assert_eq!(allocator.stats().all.allocated_bytes.current, 0);
    });
}
