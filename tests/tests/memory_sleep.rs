//! A pool falls asleep and wakes on a driver of which one call fails, whichever: nothing of it is lost. Each call fails in a
//! process of its own.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one call of the C ABI with pointers to locals or from the ABI itself"
)]

use std::ptr::null_mut;

use outrigger::ffi::*;
use outrigger::runtime::Code;
use outrigger_tests::abi::{download, made, ok, outcome, stream, upload};

fn info(pool: u64) -> otr_pool_info_t {
    let mut info = otr_pool_info_t {
        struct_size: size_of::<otr_pool_info_t>(),
        ..Default::default()
    };
    ok(unsafe { otr_pool_info(pool, &mut info) });
    info
}

fn pool_alloc(pool: u64, size: u64, stream: u64) -> u64 {
    made(|out| unsafe { otr_pool_alloc(pool, size, stream, out) })
}

/// Numbers that are different everywhere.
fn pattern(count: usize, seed: u32) -> Vec<u32> {
    (0..count as u32)
        .map(|at| at.wrapping_mul(2_654_435_761) ^ seed)
        .collect()
}

/// The exit codes by which a child of the last test says how it ended.
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
    let works = |status| match outcome(status) {
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
    for (call, code) in (1..=60).flat_map(|call| [(call, "EXECUTION"), (call, "OUT_OF_MEMORY")]) {
        let output = std::process::Command::new(std::env::current_exe().expect("this program"))
            .args([
                "--exact",
                "memory_sleep::with_a_fault",
                "--ignored",
                "--nocapture",
            ])
            .env("OUTRIGGER_DRIVER", "host?virtual_memory=on&devices=1")
            .env("OUTRIGGER_LAYERS", format!("fault:any@{call}=call:{code}"))
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
