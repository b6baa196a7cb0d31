//! Pools that sleep, through the C ABI: contents and addresses come back, the device has the memory
//! meanwhile, and calls that use it are refused. The tests run on both faces of `host` with virtual
//! memory, and on a driver without it.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one call of the C ABI with pointers to locals or from the ABI itself"
)]

use std::ffi::CString;
use std::ptr::null_mut;
use std::sync::LazyLock;

use outrigger::ffi::*;
use outrigger::runtime::Code;
use outrigger_tests::abi::{
    add, alloc, begin, download, end, fails, instantiate, made, ok, replay, stream, synchronize,
    text, upload,
};
use outrigger_tests::within_limit;
use serial_test::serial;

const MIB: u64 = 1 << 20;

/// A device of each face with virtual memory, and one without.
static DEVICES: LazyLock<([u32; 2], u32)> = LazyLock::new(|| {
    let mut count = made(|out| unsafe { otr_device_count(out) });
    let template = outrigger_tests::c_driver();
    let specs = [
        "host?virtual_memory=on&devices=1&memory=1G",
        "host?virtual_memory=on&devices=1&memory=1G&face=discrete",
        template.to_str().expect("UTF-8"),
    ];
    let first = specs.map(|spec| {
        let spec = CString::new(spec).expect("no NUL");
        ok(unsafe { otr_driver_load(spec.as_ptr()) });
        let first = count;
        count = made(|out| unsafe { otr_device_count(out) });
        first
    });
    ([first[0], first[1]], first[2])
});

fn info(pool: u64) -> otr_pool_info_t {
    let mut info = otr_pool_info_t {
        struct_size: size_of::<otr_pool_info_t>(),
        ..Default::default()
    };
    ok(unsafe { otr_pool_info(pool, &mut info) });
    info
}

fn free_bytes(device: u32) -> u64 {
    let (mut free, mut total) = (0, 0);
    ok(unsafe { otr_memory_info(device, &mut free, &mut total) });
    free
}

fn pool_alloc(pool: u64, size: u64, stream: u64) -> u64 {
    made(|out| unsafe { otr_pool_alloc(pool, size, stream, out) })
}

fn sleep(pool: u64) -> u64 {
    made(|out| unsafe { otr_pool_sleep(pool, out) })
}

/// Numbers that are different everywhere.
fn pattern(count: usize, seed: u32) -> Vec<u32> {
    (0..count as u32)
        .map(|at| at.wrapping_mul(2_654_435_761) ^ seed)
        .collect()
}

#[test]
#[serial]
fn contents_and_addresses_come_back() {
    within_limit(|| {
        for device in DEVICES.0 {
            let (s, side) = (stream(device), stream(device));
            let pool = made(|out| unsafe { otr_pool_create(device, out) });
            let sizes = [4, 3000, 300_000, 3 * MIB, 9 * MIB + 4096, 513];
            let blocks: Vec<(u64, Vec<u32>)> = sizes
                .iter()
                .enumerate()
                .map(|(at, &size)| {
                    let owner = [s, side][at % 2];
                    let numbers = pattern(size as usize / 4, at as u32);
                    let address = pool_alloc(pool, size, owner);
                    upload(owner, address, &numbers);
                    (address, numbers)
                })
                .collect();
            // Work that is still under way is part of what comes back.
            let last = pool_alloc(pool, 4 * MIB, s);
            ok(unsafe { otr_fill(s, last, 4 * MIB, [7u8].as_ptr().cast(), 1) });

            ok(unsafe { otr_memory_empty_cache(device) });
            let (before, held) = (free_bytes(device), info(pool));
            let bytes = sleep(pool);
            assert_eq!(bytes, held.reserved_bytes);
            assert_eq!(free_bytes(device), before + bytes, "the device has them");
            let asleep = info(pool);
            assert_eq!((asleep.asleep, asleep.asleep_bytes), (1, bytes));
            assert_eq!((asleep.reserved_bytes, asleep.segments), (0, 0));
            assert_eq!(asleep.allocated_bytes, held.allocated_bytes);
            assert_eq!(sleep(pool), 0, "it sleeps already");
            // Others get the memory meanwhile, and write all over it.
            let other = alloc(device, bytes, s);
            ok(unsafe { otr_fill(s, other, bytes, [9u8].as_ptr().cast(), 1) });
            synchronize(s);
            ok(unsafe { otr_memory_free(other) });

            ok(unsafe { otr_pool_wake(pool) });
            ok(unsafe { otr_pool_wake(pool) });
            let awake = info(pool);
            assert_eq!((awake.asleep, awake.asleep_bytes), (0, 0));
            assert_eq!(awake.reserved_bytes, held.reserved_bytes);
            for (address, numbers) in &blocks {
                assert!(
                    download::<u32>(s, *address, numbers.len()) == *numbers,
                    "{address:#x}"
                );
            }
            let filled = download::<u8>(s, last, 4 * MIB as usize);
            assert!(filled.iter().all(|&byte| byte == 7));
            for (address, _) in blocks {
                ok(unsafe { otr_memory_free(address) });
            }
            ok(unsafe { otr_memory_free(last) });
            ok(unsafe { otr_pool_destroy(pool) });
            ok(unsafe { otr_stream_destroy(s) });
            ok(unsafe { otr_stream_destroy(side) });
        }
    });
}

#[test]
#[serial]
fn whoever_uses_a_sleeping_pool_is_refused() {
    within_limit(|| {
        for device in DEVICES.0 {
            let s = stream(device);
            let pool = made(|out| unsafe { otr_pool_create(device, out) });
            let (x, y) = (pool_alloc(pool, 64, s), alloc(device, 64, s));
            upload(s, x, &[3.0f32; 16]);
            upload(s, y, &[0.0f32; 16]);
            // One graph has its own memory in the pool, the other one uses the pool's by chance.
            ok(unsafe { otr_capture_begin(s, OTR_CAPTURE_GLOBAL, pool) });
            fails(
                unsafe { otr_pool_sleep(pool, null_mut()) },
                Code::CAPTURE,
                &[],
            );
            let t = alloc(device, 64, s);
            add(s, (t, y, y), 16, 1);
            add(s, (y, t, y), 16, 1);
            let inside = end(s);
            ok(unsafe { otr_capture_begin(s, OTR_CAPTURE_GLOBAL, 0) });
            add(s, (y, y, x), 16, 1);
            let user = end(s);
            let execs = [instantiate(inside, 0), instantiate(user, 0)];
            for exec in execs {
                replay(exec, s);
            }
            assert_eq!(download::<f32>(s, y, 16), [3.0; 16]);

            sleep(pool);
            for exec in execs {
                fails(
                    unsafe { otr_graph_replay(exec, s) },
                    Code::BUSY,
                    &["sleeps"],
                );
            }
            fails(
                unsafe { otr_pool_alloc(pool, 64, s, &mut 0) },
                Code::BUSY,
                &["sleeps"],
            );
            let kind = outrigger::runtime::CopyKind::DeviceToDevice.raw();
            fails(
                unsafe { otr_copy(s, y, x, 64, kind) },
                Code::BUSY,
                &["sleeps"],
            );
            let status = outrigger_tests::abi::with_add(
                outrigger::runtime::DType::F32,
                (y, y, x),
                16,
                1,
                |id, call| unsafe { otr_operator_call(s, id, call) },
            );
            fails(status, Code::BUSY, &["add", "sleeps"]);
            let mut json = null_mut();
            ok(unsafe { otr_pool_snapshot(pool, &mut json) });
            let snapshot: serde_json::Value = serde_json::from_str(&text(json)).unwrap();
            unsafe { otr_string_free(json) };
            assert_eq!(snapshot["segments"].as_array().unwrap().len(), 0);
            // What has nothing to do with the pool goes on.
            add(s, (y, y, y), 16, 1);
            assert_eq!(download::<f32>(s, y, 16), [6.0; 16]);

            ok(unsafe { otr_pool_wake(pool) });
            replay(execs[1], s);
            assert_eq!(download::<f32>(s, y, 16), [9.0; 16]);
            replay(execs[0], s);
            assert_eq!(download::<f32>(s, y, 16), [27.0; 16]);
            for exec in execs {
                ok(unsafe { otr_graph_exec_destroy(exec) });
            }
            for graph in [inside, user] {
                ok(unsafe { otr_graph_destroy(graph) });
            }
            // Memory in use outlives the handle, also of a pool that slept.
            upload(s, x, &[5.0f32; 16]);
            synchronize(s);
            sleep(pool);
            ok(unsafe { otr_device_synchronize(device) });
            ok(unsafe { otr_pool_destroy(pool) });
            assert_eq!(download::<f32>(s, x, 16), [5.0; 16]);
            for address in [x, y] {
                ok(unsafe { otr_memory_free(address) });
            }
        }
    });
}

#[test]
#[serial]
fn what_a_graph_keeps_of_a_sleeping_pool_outlives_its_handle() {
    within_limit(|| {
        for device in DEVICES.0 {
            for lost in [false, true] {
                let s = stream(device);
                let pool = made(|out| unsafe { otr_pool_create(device, out) });
                let (x, y) = (pool_alloc(pool, 8 * MIB, s), alloc(device, 64, s));
                upload(s, x, &[3.0f32; 16]);
                upload(s, y, &[0.0f32; 16]);
                begin(s);
                add(s, (y, y, x), 16, 1);
                let graph = end(s);
                let exec = instantiate(graph, 0);
                ok(unsafe { otr_memory_free(x) }); // the graph keeps it
                synchronize(s);
                ok(unsafe { otr_memory_empty_cache(device) });
                sleep(pool);
                if lost {
                    ok(unsafe { otr_memory_set_limit(device, 4 * MIB) });
                }
                ok(unsafe { otr_pool_destroy(pool) });
                ok(unsafe { otr_memory_set_limit(device, u64::MAX) });
                if lost {
                    let status = unsafe { otr_graph_replay(exec, s) };
                    fails(status, Code::BUSY, &["sleeps"]);
                } else {
                    replay(exec, s);
                    assert_eq!(download::<f32>(s, y, 16), [3.0; 16]);
                }
                ok(unsafe { otr_graph_exec_destroy(exec) });
                ok(unsafe { otr_graph_destroy(graph) });
                ok(unsafe { otr_memory_free(y) });
            }
        }
    });
}

#[test]
#[serial]
fn a_pool_that_cannot_be_woken_sleeps_on() {
    within_limit(|| {
        for device in DEVICES.0 {
            let s = stream(device);
            let pool = made(|out| unsafe { otr_pool_create(device, out) });
            let x = pool_alloc(pool, 8 * MIB, s);
            let numbers = pattern(2 * MIB as usize, 77);
            upload(s, x, &numbers);
            ok(unsafe { otr_memory_empty_cache(device) });
            sleep(pool);
            ok(unsafe { otr_memory_set_limit(device, 4 * MIB) });
            for _ in 0..2 {
                fails(
                    unsafe { otr_pool_wake(pool) },
                    Code::OUT_OF_MEMORY,
                    &["limit"],
                );
                assert_eq!(info(pool).asleep, 1);
            }
            ok(unsafe { otr_memory_set_limit(device, u64::MAX) });
            ok(unsafe { otr_pool_wake(pool) });
            assert!(download::<u32>(s, x, numbers.len()) == numbers);
            ok(unsafe { otr_memory_free(x) });
            ok(unsafe { otr_pool_destroy(pool) });
        }
        let without = DEVICES.1;
        let pool = made(|out| unsafe { otr_pool_create(without, out) });
        let s = stream(without);
        let x = pool_alloc(pool, 4096, s);
        fails(
            unsafe { otr_pool_sleep(pool, null_mut()) },
            Code::UNSUPPORTED,
            &["virtual memory"],
        );
        upload(s, x, &[1u32; 1024]);
        assert_eq!(download::<u32>(s, x, 1024), [1; 1024]);
        ok(unsafe { otr_memory_free(x) });
        ok(unsafe { otr_pool_destroy(pool) });
    });
}

/// What a child of the last test says at its end.
const FAULT_BETWEEN: i32 = 3;
const NO_FAULT_BETWEEN: i32 = 4;

/// Tries again what a single fault has broken.
fn twice<T>(call: impl Fn() -> T) -> T {
    let first = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&call));
    first.unwrap_or_else(|_| call())
}

/// Puts a pool to sleep and wakes it on a driver of which one call fails, whichever.
#[test]
#[ignore = "a child of `whatever_the_driver_refuses_nothing_is_lost`"]
fn with_a_fault() {
    let numbers = [pattern(300_000, 1), pattern(1 << 20, 2)];
    // Failures on the way to the pool are other tests' business.
    let made = std::panic::catch_unwind(|| {
        let s = stream(0);
        let pool = made(|out| unsafe { otr_pool_create(0, out) });
        let blocks = numbers.each_ref().map(|numbers| {
            let address = pool_alloc(pool, 4 * numbers.len() as u64, s);
            upload(s, address, numbers);
            address
        });
        (s, pool, blocks)
    });
    let Ok((s, pool, blocks)) = made else {
        std::process::exit(NO_FAULT_BETWEEN);
    };
    let works = |status| match outrigger_tests::abi::outcome(status) {
        // A driver that could not tell its granularity is used without virtual memory.
        Err((Code::UNSUPPORTED, _)) => std::process::exit(NO_FAULT_BETWEEN),
        outcome => outcome.is_ok(),
    };
    let check = || {
        for (address, numbers) in blocks.into_iter().zip(&numbers) {
            assert!(twice(|| download::<u32>(s, address, numbers.len())) == *numbers);
        }
    };
    let mut failures = 0;
    while !works(unsafe { otr_pool_sleep(pool, null_mut()) }) {
        failures += 1;
        assert!(failures < 2, "one call fails, and no more");
        assert_eq!(
            info(pool).asleep,
            0,
            "what could not be put to sleep is awake"
        );
        check();
    }
    assert_eq!(info(pool).asleep, 1);
    while !works(unsafe { otr_pool_wake(pool) }) {
        failures += 1;
        assert!(failures < 2, "one call fails, and no more");
        assert_eq!(info(pool).asleep, 1, "what could not be woken sleeps");
    }
    assert_eq!(info(pool).asleep, 0);
    check();
    std::process::exit(if failures > 0 {
        FAULT_BETWEEN
    } else {
        NO_FAULT_BETWEEN
    });
}

#[test]
fn whatever_the_driver_refuses_nothing_is_lost() {
    let mut met = 0;
    for call in 1..=120 {
        let code = ["EXECUTION", "OUT_OF_MEMORY"][call % 2];
        let output = std::process::Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "with_a_fault", "--ignored", "--nocapture"])
            .env("OUTRIGGER_DRIVER", "host?virtual_memory=on&devices=1")
            .env("OUTRIGGER_LAYERS", format!("fault:any@{call}={code}"))
            .output()
            .expect("this program again");
        match output.status.code() {
            Some(FAULT_BETWEEN) => met += 1,
            Some(NO_FAULT_BETWEEN) => {}
            other => panic!(
                "call {call}: {other:?}\n{}",
                String::from_utf8_lossy(&output.stderr)
            ),
        }
    }
    assert!(met >= 8, "only {met} calls between sleep and wake");
}
