//! The memory API through the C ABI: pools in which a host allocates, limits, observers that release
//! memory, statistics; each with right and wrong use. The tests run on devices of each driver under
//! test.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one call of the C ABI with pointers to locals or from the ABI itself"
)]

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use outrigger::ffi::*;
use outrigger::runtime::Code;
use outrigger_tests::abi::*;
use serial_test::serial;

const MIB: u64 = 1 << 20;

/// JSON that a call hands out, parsed and freed.
fn json(make: impl FnOnce(*mut *mut c_char) -> *mut otr_status_t) -> serde_json::Value {
    let mut string = null_mut();
    ok(make(&mut string));
    let value = serde_json::from_str(&text(string)).expect("JSON");
    unsafe { otr_string_free(string) };
    value
}

fn info(address: u64) -> otr_pointer_info_t {
    let mut info: otr_pointer_info_t = unsafe { std::mem::zeroed() };
    info.struct_size = size_of::<otr_pointer_info_t>();
    ok(unsafe { otr_memory_pointer_info(address, &mut info) });
    info
}

fn pool_info(pool: u64) -> otr_pool_info_t {
    let mut info = otr_pool_info_t {
        struct_size: size_of::<otr_pool_info_t>(),
        ..Default::default()
    };
    ok(unsafe { otr_pool_info(pool, &mut info) });
    info
}

fn new_pool(device: u32) -> u64 {
    made(|out| unsafe { otr_pool_create(device, out) })
}

fn free(address: u64) {
    ok(unsafe { otr_memory_free(address) });
}

/// Another device.
fn other(device: u32) -> u32 {
    if device == DEVICES[0] {
        DEVICES[1]
    } else {
        DEVICES[0]
    }
}

/// Lifts the limits again, also where a test fails.
struct Unlimited(u32);

impl Drop for Unlimited {
    fn drop(&mut self) {
        ok(unsafe { otr_memory_set_limit(self.0, u64::MAX) });
        ok(unsafe { otr_memory_set_process_limit(u64::MAX) });
    }
}

fn memory_limit(device: u32) -> u64 {
    made(|out| unsafe { otr_memory_limit(device, out) })
}

fn held_by_process() -> u64 {
    let (mut held, mut limit) = (0, 0);
    ok(unsafe { otr_memory_process_info(&mut held, &mut limit) });
    held
}

#[test]
#[serial]
fn threads_allocate_into_the_pools_of_their_choice() {
    for &device in &*DEVICES {
        let (first, second) = (stream(device), stream(device));
        let (outer, inner) = (new_pool(device), new_pool(device));
        let pool_of_new = |stream| {
            let address = alloc(device, 3000, stream);
            let known = info(address);
            assert_eq!((known.base, known.requested), (address, 3000));
            assert!(known.pool == 0 || known.pool_number != 0);
            free(address);
            known.pool
        };
        assert_eq!(pool_of_new(first), 0);
        ok(unsafe { otr_pool_begin_use(outer, 0) });
        ok(unsafe { otr_pool_begin_use(inner, second) });
        assert_eq!(
            pool_of_new(first),
            outer,
            "the inner use is of another stream"
        );
        assert_eq!(pool_of_new(second), inner);
        // Another thread is not concerned, and neither is another device.
        std::thread::scope(|scope| {
            let other = scope.spawn(|| pool_of_new(second));
            assert_eq!(other.join().expect("no panic"), 0);
        });
        let neighbour = stream(other(device));
        let address = alloc(other(device), 100, neighbour);
        assert_eq!(info(address).pool, 0);
        free(address);
        // A graph's memory is of the graph's pool.
        begin(second);
        assert_eq!(pool_of_new(second), 0, "the pool of a graph has no handle");
        let graph = end(second);
        ok(unsafe { otr_graph_destroy(graph) });

        fails(
            unsafe { otr_pool_end_use(outer) },
            Code::INVALID_ARGUMENT,
            &["begun last", "reverse order"],
        );
        ok(unsafe { otr_pool_end_use(inner) });
        assert_eq!(pool_of_new(second), outer);
        ok(unsafe { otr_pool_end_use(outer) });
        fails(
            unsafe { otr_pool_end_use(outer) },
            Code::INVALID_ARGUMENT,
            &["uses no pool"],
        );
        fails(
            unsafe { otr_pool_begin_use(outer, neighbour) },
            Code::INVALID_ARGUMENT,
            &["another device", "stream of device"][1..],
        );
        fails(
            unsafe { otr_pool_begin_use(first, 0) },
            Code::INVALID_HANDLE,
            &["of a stream, not of a pool"],
        );
        assert_eq!(pool_of_new(first), 0, "a use that was refused is none");
        for pool in [outer, inner] {
            ok(unsafe { otr_pool_destroy(pool) });
        }
        fails(
            unsafe { otr_pool_begin_use(inner, 0) },
            Code::INVALID_HANDLE,
            &["destroyed"],
        );
    }
}

#[test]
#[serial]
fn a_pools_memory_is_its_own_until_the_last_block_is_freed() {
    for &device in &*DEVICES {
        let before = held(device);
        let (stream, pool) = (stream(device), new_pool(device));
        let alloc_in = |size| made(|out| unsafe { otr_pool_alloc(pool, size, stream, out) });
        let (small, large) = (alloc_in(700), alloc_in(5 * MIB));
        assert_eq!(alloc_in(0), 0);
        let figures = pool_info(pool);
        assert!(figures.allocated_bytes >= 5 * MIB + 700, "{figures:?}");
        assert!(figures.reserved_bytes >= figures.allocated_bytes);
        assert_eq!(figures.peak_allocated_bytes, figures.allocated_bytes);
        assert!(figures.segments >= 1);
        assert_eq!((figures.device, figures.users), (device, 0));
        assert_eq!(info(large).pool_number, figures.number);

        // The cache keeps a live pool's memory, and nobody else gets it.
        free(large);
        assert!(held(device).0 > before.0);
        let shared = alloc(device, 5 * MIB, stream);
        assert_eq!(info(shared).pool, 0);
        free(shared);

        let snapshot = json(|out| unsafe { otr_pool_snapshot(pool, out) });
        let segments = snapshot["segments"].as_array().expect("a list");
        let total: u64 = segments
            .iter()
            .map(|one| one["total_size"].as_u64().expect("bytes"))
            .sum();
        assert_eq!(total, pool_info(pool).reserved_bytes);
        assert!(
            segments
                .iter()
                .all(|one| one["segment_pool_id"][1] == figures.number)
        );

        // A limit counts what is in use.
        ok(unsafe { otr_pool_set_limit(pool, pool_info(pool).allocated_bytes + MIB) });
        let (mut address, reserved) = (0, pool_info(pool).reserved_bytes);
        for much in [MIB + 1, 512 * MIB] {
            fails(
                unsafe { otr_pool_alloc(pool, much, stream, &mut address) },
                Code::OUT_OF_MEMORY,
                &["pool", &format!("{much} more")],
            );
        }
        assert_eq!(
            pool_info(pool).reserved_bytes,
            reserved,
            "nothing was taken for it"
        );
        free(alloc_in(MIB));
        free(alloc_in(MIB));
        ok(unsafe { otr_pool_set_limit(pool, u64::MAX) });
        assert_eq!(pool_info(pool).limit, u64::MAX);
        free(alloc_in(2 * MIB));

        // The handle goes before the memory does.
        ok(unsafe { otr_pool_begin_use(pool, 0) });
        assert_eq!(pool_info(pool).users, 1);
        ok(unsafe { otr_pool_destroy(pool) });
        let late = alloc(device, 900, stream);
        assert_eq!(info(late).pool_number, figures.number);
        assert_eq!(info(late).pool, 0, "its handle was given up");
        ok(unsafe { otr_pool_end_use(pool) });
        free(late);
        free(small);
        assert_eq!(held(device), before, "device {device}");

        let mut out = 7;
        fails(
            unsafe { otr_pool_alloc(pool, 1, stream, &mut out) },
            Code::INVALID_HANDLE,
            &["destroyed"],
        );
        let elsewhere = new_pool(other(device));
        fails(
            unsafe { otr_pool_alloc(elsewhere, 1, stream, &mut out) },
            Code::INVALID_ARGUMENT,
            &["cannot come from a pool of device"],
        );
        ok(unsafe { otr_pool_destroy(elsewhere) });
        assert_eq!(out, 7, "an output is written only on success");
    }
}

#[test]
#[serial]
fn limits_hold_for_a_device_and_for_the_process() {
    let (device, beside) = (DEVICES[1], DEVICES[0]);
    let (stream, neighbour) = (stream(device), stream(beside));
    let _unlimited = Unlimited(device);
    let (mut free_bytes, mut total) = (0, 0);
    ok(unsafe { otr_memory_info(device, &mut free_bytes, &mut total) });
    assert!(free_bytes <= total);
    assert_eq!(memory_limit(device), u64::MAX);
    let fraction = || made::<f64>(|out| unsafe { otr_memory_fraction(device, out) });
    assert_eq!(fraction(), 1.0);
    for wrong in [-0.1, 1.1, f64::NAN] {
        fails(
            unsafe { otr_memory_set_fraction(device, wrong) },
            Code::INVALID_ARGUMENT,
            &["0 to 1"],
        );
    }
    ok(unsafe { otr_memory_set_fraction(device, 0.25) });
    assert_eq!(memory_limit(device), (total as f64 * 0.25) as u64);
    assert!((fraction() - 0.25).abs() < 1e-9);
    ok(unsafe { otr_memory_set_limit(device, held(device).0 + 8 * MIB) });
    let mut address = 0;
    fails(
        unsafe { otr_memory_alloc(device, 9 * MIB, stream, &mut address) },
        Code::OUT_OF_MEMORY,
        &["9.00 MiB", "limit"],
    );
    free(alloc(device, 8 * MIB, stream));
    ok(unsafe { otr_memory_set_limit(device, u64::MAX) });

    // What the neighbour has cached is given back when the process has no more room; what it uses stays.
    let empty_caches = || {
        for &device in &*DEVICES {
            held(device);
        }
    };
    empty_caches();
    let base = held_by_process();
    let used = alloc(beside, 32 * MIB, neighbour);
    free(alloc(beside, 96 * MIB, neighbour));
    assert!(held_by_process() >= base + 128 * MIB);
    let limit = base + 160 * MIB;
    ok(unsafe { otr_memory_set_process_limit(limit) });
    let large = alloc(device, 112 * MIB, stream);
    assert!(held_by_process() <= limit);
    fails(
        unsafe { otr_memory_alloc(device, 112 * MIB, stream, &mut address) },
        Code::OUT_OF_MEMORY,
        &["All devices of this process hold"],
    );
    for address in [used, large] {
        free(address);
    }
    empty_caches();
    assert_eq!(held_by_process(), base, "all that was taken was given back");
}

/// What an observer of a test holds and has seen.
#[derive(Default)]
struct Hoard {
    blocks: Mutex<Vec<u64>>,
    asked: AtomicUsize,
    needed: AtomicU64,
    heard: Mutex<Vec<String>>,
    stream: AtomicU64,
}

unsafe extern "C" fn release_one(user: *mut c_void, device: u32, needed: u64) -> u32 {
    let hoard = unsafe { &*user.cast::<Hoard>() };
    hoard.asked.fetch_add(1, Ordering::Relaxed);
    hoard.needed.store(needed, Ordering::Relaxed);
    // It may allocate. What cannot be had is an error here, and does not ask again.
    let mut address = 0;
    let stream = hoard.stream.load(Ordering::Relaxed);
    let status = unsafe { otr_memory_alloc(device, 1 << 60, stream, &mut address) };
    fails(status, Code::OUT_OF_MEMORY, &[]);
    match hoard.blocks.lock().expect("no panic").pop() {
        Some(block) => {
            free(block);
            1
        }
        None => 0,
    }
}

unsafe extern "C" fn hear(user: *mut c_void, seen: *const otr_observation_t) {
    let (hoard, seen) = unsafe { (&*user.cast::<Hoard>(), &*seen) };
    assert_eq!(seen.kind, OTR_OBSERVE_OUT_OF_MEMORY);
    assert!(seen.reserved_bytes >= seen.allocated_bytes);
    if seen.size < 1 << 60 {
        let text = unsafe { CStr::from_ptr(seen.text) };
        hoard
            .heard
            .lock()
            .expect("no panic")
            .push(text.to_string_lossy().into_owned());
    }
}

#[test]
#[serial]
fn observers_release_memory_before_an_allocation_fails() {
    for &device in &*DEVICES {
        let hoard = Box::leak(Box::<Hoard>::default());
        let user = std::ptr::from_ref(hoard).cast_mut().cast::<c_void>();
        let stream = stream(device);
        hoard.stream.store(stream, Ordering::Relaxed);
        let limit = held(device).0 + 64 * MIB;
        let _unlimited = Unlimited(device);
        ok(unsafe { otr_memory_set_limit(device, limit) });
        *hoard.blocks.lock().expect("no panic") = vec![
            alloc(device, 24 * MIB, stream),
            alloc(device, 24 * MIB, stream),
        ];
        let releases =
            made(|out| unsafe { otr_observer_add_pressure(Some(release_one), user, out) });
        let hears = made(|out| unsafe {
            otr_observer_add(OTR_OBSERVE_OUT_OF_MEMORY, Some(hear), user, out)
        });

        let served = alloc(device, 30 * MIB, stream);
        assert_eq!(
            hoard.asked.load(Ordering::Relaxed),
            1,
            "one block was enough"
        );
        assert_eq!(hoard.needed.load(Ordering::Relaxed), 30 * MIB);
        assert!(
            hoard.heard.lock().expect("no panic").is_empty(),
            "nothing failed"
        );

        // Too much for all that can be released.
        let mut address = 0;
        fails(
            unsafe { otr_memory_alloc(device, 63 * MIB, stream, &mut address) },
            Code::OUT_OF_MEMORY,
            &["63.00 MiB"],
        );
        let heard = hoard.heard.lock().expect("no panic").clone();
        assert_eq!(heard.len(), 1);
        assert!(
            heard[0].contains("tried to allocate 63.00 MiB"),
            "{heard:?}"
        );
        assert!(hoard.blocks.lock().expect("no panic").is_empty());

        for observer in [releases, hears] {
            ok(unsafe { otr_observer_remove(observer) });
        }
        let asked = hoard.asked.load(Ordering::Relaxed);
        fails(
            unsafe { otr_memory_alloc(device, 63 * MIB, stream, &mut address) },
            Code::OUT_OF_MEMORY,
            &[],
        );
        assert_eq!(hoard.asked.load(Ordering::Relaxed), asked, "it was removed");
        free(served);
    }
    let mut observer = 0;
    fails(
        unsafe { otr_observer_add_pressure(None, null_mut(), &mut observer) },
        Code::INVALID_ARGUMENT,
        &["function is NULL"],
    );
}

#[test]
#[serial]
fn a_cache_is_trimmed_to_what_is_to_stay() {
    for &device in &*DEVICES {
        let (stream, before) = (stream(device), held(device));
        let blocks: [u64; 6] = std::array::from_fn(|_| alloc(device, 40 * MIB, stream));
        blocks.into_iter().skip(1).for_each(free);
        let reserved = || {
            let value = json(|out| unsafe { otr_memory_stats_json(device, out) });
            value["reserved_bytes.all.current"].as_u64().expect("bytes")
        };
        let full = reserved();
        assert!(full >= before.0 + 240 * MIB);
        let trim = |keep| made(|out: *mut u64| unsafe { otr_memory_trim(device, keep, out) });
        assert_eq!(trim(1 << 40), 0, "so much is not cached");
        let released = trim(100 * MIB);
        assert_eq!(reserved(), full - released);
        // As little as can be: pieces of memory go whole.
        assert!(
            (90 * MIB..150 * MIB).contains(&released),
            "{} MiB",
            released / MIB
        );
        ok(unsafe { otr_memory_trim(device, 0, null_mut()) });
        assert!(reserved() <= before.0 + 40 * MIB + 32 * MIB);
        free(blocks[0]);
        assert_eq!(held(device), before);
    }
}

#[test]
#[serial]
fn statistics_have_pytorchs_names() {
    for &device in &*DEVICES {
        let stream = stream(device);
        held(device);
        ok(unsafe { otr_memory_reset_peak(device) });
        ok(unsafe { otr_memory_reset_accumulated(device) });
        let figures = || -> BTreeMap<String, u64> {
            let value = json(|out| unsafe { otr_memory_stats_json(device, out) });
            serde_json::from_value(value).expect("numbers by name")
        };
        let before = figures();
        let kept = alloc(device, 3000, stream);
        free(alloc(device, 3 * MIB, stream));
        let after = figures();
        let grown = |name: &str| after[name] - before[name];
        assert_eq!(grown("allocation.all.current"), 1);
        assert_eq!(grown("requested_bytes.all.current"), 3000);
        assert_eq!(grown("requested_bytes.small_pool.current"), 3000);
        assert_eq!(grown("requested_bytes.large_pool.current"), 0);
        assert_eq!(grown("requested_bytes.large_pool.allocated"), 3 * MIB);
        assert_eq!(grown("allocation.all.allocated"), 2);
        assert_eq!(grown("allocation.all.freed"), 1);
        assert!(grown("allocated_bytes.all.peak") >= 3 * MIB);
        assert!(grown("reserved_bytes.all.current") >= 3000 + 3 * MIB);
        for name in [
            "num_ooms",
            "num_alloc_retries",
            "num_device_alloc",
            "num_sync_all_streams",
        ] {
            assert!(after.contains_key(name), "no {name} in {after:?}");
        }
        free(kept);
    }
    // Pinned memory has the same.
    ok(unsafe { otr_host_reset_accumulated() });
    let pointer: u64 = made(|out: *mut u64| unsafe { otr_host_alloc(5000, out.cast()) });
    let host = json(|out| unsafe { otr_host_stats_json(out) });
    assert_eq!(host["allocation.all.allocated"], 1);
    let mut stats = otr_memory_stats_t {
        struct_size: size_of::<otr_memory_stats_t>(),
        ..Default::default()
    };
    ok(unsafe { otr_host_stats(&mut stats) });
    assert!(stats.requested_bytes.current >= 5000);
    ok(unsafe { otr_host_free(pointer as *mut c_void) });
    ok(unsafe { otr_host_reset_peak() });
    ok(unsafe { otr_host_stats(&mut stats) });
    assert_eq!(stats.allocated_bytes.peak, stats.allocated_bytes.current);
    ok(unsafe { otr_host_set_limit(stats.reserved_bytes.current) });
    let mut pointer = null_mut();
    let huge = stats.reserved_bytes.current + 1;
    fails(
        unsafe { otr_host_alloc(huge, &mut pointer) },
        Code::OUT_OF_HOST_MEMORY,
        &["pinned memory"],
    );
    ok(unsafe { otr_host_set_limit(u64::MAX) });
}

#[test]
fn wrong_arguments_are_named() {
    let device = DEVICES[0];
    let missing = |status, name: &str| fails(status, Code::INVALID_ARGUMENT, &[name, "NULL"]);
    missing(unsafe { otr_memory_snapshot(device, null_mut()) }, "json");
    missing(unsafe { otr_memory_stats_json(device, null_mut()) }, "json");
    missing(unsafe { otr_memory_holders(device, 3, null_mut()) }, "json");
    missing(unsafe { otr_memory_limit(device, null_mut()) }, "bytes");
    missing(
        unsafe { otr_memory_history_start(device, null()) },
        "options",
    );
    missing(unsafe { otr_memory_label_push(null()) }, "label");
    missing(unsafe { otr_memory_trace_start(device, null()) }, "path");
    missing(unsafe { otr_host_stats(null_mut()) }, "stats");
    let mut string = null_mut();
    for status in unsafe {
        [
            otr_memory_snapshot(99, &mut string),
            otr_memory_stats_json(99, &mut string),
            otr_memory_holders(99, 1, &mut string),
            otr_memory_history_stop(99),
            otr_memory_trace_stop(99),
            otr_memory_set_fraction(99, 0.5),
        ]
    } {
        fails(status, Code::INVALID_DEVICE, &["99"]);
    }
    assert!(string.is_null(), "an output is written only on success");
}
