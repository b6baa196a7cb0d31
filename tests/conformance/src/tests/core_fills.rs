//! R7, R10, R25 and R28: fills with patterns of all sizes, and what is refused.

use outrigger_device::{Code, params, sys};

use super::core_copies::same;
use super::kit::{Bench, HostBytes, Log, block, fill, holds, note, pattern, read, write};
use super::raw::{Raw, call};
use crate::test::tests;
use crate::verdict::{answers, check, equal};
use crate::{Context, Gate, Verdict};

/// The first byte of a fill, and the number of patterns that are laid down.
const SMALL: &[(usize, usize)] = &[(0, 1), (0, 2), (0, 3), (64, 7), (128, 8), (0, 31)];
const ODD: &[(usize, usize)] = &[(1, 1), (3, 3), (7, 33), (13, 64), (63, 100), (5, 4099)];
const LARGE: &[(usize, usize)] = &[(0, 4096), (64, 5000), (0, 65_537), (1, 70_001)];

macro_rules! widths {
    ($($module:ident, $subject:literal, $width:literal, $text:literal;)*) => {$(
        pub(super) mod $module {
            use super::*;

            tests! { $subject:
                #[doc = $text]
                /// is repeated some times, and nothing around it is touched.
                some_times: R28, run |c| repeats(c, $width, SMALL);
                #[doc = $text]
                /// is repeated from odd addresses on, and nothing around it is touched.
                from_odd_addresses: R13 R28, run |c| repeats(c, $width, ODD);
                #[doc = $text]
                /// is repeated thousands of times, and nothing around it is touched.
                thousands_of_times: R28, run |c| repeats(c, $width, LARGE);
                #[doc = $text]
                /// fills 0 bytes: nothing is done, and the address is not looked at.
                no_times: R25 R28, run |c| nothing(c, $width);
                #[doc = $text]
                /// may be overwritten as soon as the call has returned.
                that_goes: R10 R28, run |c| goes(c, $width);
            }
        }
    )*};
}

widths! {
    of_1, "core.fill_1", 1, "A pattern of 1 byte";
    of_2, "core.fill_2", 2, "A pattern of 2 bytes";
    of_4, "core.fill_4", 4, "A pattern of 4 bytes";
    of_8, "core.fill_8", 8, "A pattern of 8 bytes";
    of_16, "core.fill_16", 16, "A pattern of 16 bytes";
}

tests! { "core.fill":
    /// Patterns of sizes that R28 does not name are refused.
    other_patterns_are_refused: R4 R7 R28;
    /// A pattern of no bytes is refused, also for no bytes of memory.
    an_empty_pattern_is_refused: R4 R7 R28;
    /// A size that is no multiple of the pattern is refused.
    a_broken_size_is_refused: R4 R7 R28;
    /// A fill of address 0 is refused.
    null_is_refused: R4 R7 R13, run |c| refused(c, |_| (0, 64));
    /// A fill of host memory is refused.
    host_memory_is_refused: R4 R7, run |c| refused(c, |_| (HostBytes::of(4096, 1).at(0), 64));
    /// A fill that reaches beyond all of a device's memory is refused.
    beyond_all_memory_is_refused: R4 R7, run |c| refused(c, |address| (address, 1 << 62));
    /// A fill around the end of all numbers is refused.
    around_the_numbers_is_refused: R4 R7, run |c| refused(c, |address| (address, u64::MAX - 15));
    /// A pattern is as it is in memory, whatever the byte order.
    a_pattern_is_bytes: R28;
    /// Each of many fills behind each other takes the last word.
    the_last_one_stays: R16 R28;
    /// A queue of another device fills memory of that device, and no other.
    on_another_device: R16, needs TwoDevices;
    /// All of a large allocation is filled, to its last byte.
    a_whole_allocation: R13 R28;
}

fn pattern_of(width: usize) -> Vec<u8> {
    (1..=width as u8)
        .map(|byte| byte.wrapping_mul(29))
        .collect()
}

fn repeats(context: &Context, width: usize, cases: &[(usize, usize)]) -> Verdict {
    const GUARD: usize = 128;
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    let most = cases
        .iter()
        .map(|(_, count)| count * width)
        .max()
        .unwrap_or(0);
    let room = most + 3 * GUARD;
    let (address, pattern_bytes) = (bench.memory(room as u64)?, pattern_of(width));
    for &(offset, count) in cases {
        let (start, size) = (GUARD + offset, count * width);
        let mut model = pattern(room, (offset * 77 + count) as u64);
        write(&queue, address, &model)?;
        fill(&queue, address + start as u64, size as u64, &pattern_bytes)?;
        for chunk in model[start..start + size].chunks_mut(width) {
            chunk.copy_from_slice(&pattern_bytes);
        }
        let what = format!("{count} times {width} bytes at offset {offset}");
        same(
            &read(&queue, address, room)?,
            &model,
            start..start + size,
            &what,
        )?;
    }
    bench.finish()
}

fn nothing(context: &Context, width: usize) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, address) = (bench.queue()?, bench.memory(64)?);
    let (log, pattern_bytes) = (Log::default(), pattern_of(width));
    fill(&queue, address, 64, &[4])?;
    note(&queue, &log, 1)?;
    for at in [address, address + 1, address + 64, 0, 3, u64::MAX] {
        fill(&queue, at, 0, &pattern_bytes)?;
    }
    note(&queue, &log, 2)?;
    holds(&queue, address, 64, 4, "memory that was not filled")?;
    equal!(log.values(), [1, 2], "calls around it");
    bench.finish()
}

fn goes(context: &Context, width: usize) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, address) = (bench.queue()?, bench.memory(256)?);
    let gate = Gate::new();
    block(&queue, &gate)?;
    let mut bytes = pattern_of(width);
    fill(&queue, address, 256, &bytes)?;
    bytes.fill(0xff);
    std::hint::black_box(&mut bytes);
    drop(bytes);
    gate.open();
    equal!(
        read(&queue, address, 256)?,
        pattern_of(width).repeat(256 / width),
        "filled after the pattern went"
    );
    bench.finish()
}

fn other_patterns_are_refused(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let (queue, address) = (raw.queue()?, raw.driver().memory_alloc(0, 4096)?);
    let bytes = [9u8; 64];
    for width in [3, 5, 6, 7, 9, 10, 12, 15, 17, 24, 32, 64, 1 << 31, u32::MAX] {
        let size = u64::from(width.min(64)) * 3;
        let answer = call!(
            raw.api(),
            fill,
            queue,
            &params::fill(address, size, bytes.as_ptr().cast(), width)
        );
        raw.refuses(
            answer,
            Code::INVALID_ARGUMENT,
            &format!("a fill with a pattern of {width} bytes"),
        )?;
        let answer = call!(
            raw.api(),
            fill,
            queue,
            &params::fill(address, 0, bytes.as_ptr().cast(), width)
        );
        raw.refuses(
            answer,
            Code::INVALID_ARGUMENT,
            &format!("an empty fill with a pattern of {width} bytes"),
        )?;
    }
    untouched(&raw, queue, address)
}

fn an_empty_pattern_is_refused(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let (queue, address) = (raw.queue()?, raw.driver().memory_alloc(0, 4096)?);
    for size in [0, 1, 64] {
        let answer = call!(
            raw.api(),
            fill,
            queue,
            &params::fill(address, size, [1u8].as_ptr().cast(), 0)
        );
        raw.refuses(
            answer,
            Code::INVALID_ARGUMENT,
            &format!("a fill of {size} bytes with no pattern"),
        )?;
    }
    untouched(&raw, queue, address)
}

fn a_broken_size_is_refused(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let (queue, address) = (raw.queue()?, raw.driver().memory_alloc(0, 4096)?);
    for (width, size) in [
        (2, 1),
        (2, 63),
        (4, 2),
        (4, 6),
        (4, 63),
        (8, 4),
        (8, 12),
        (8, 65),
        (16, 8),
        (16, 24),
        (16, 100),
    ] {
        let answer = call!(
            raw.api(),
            fill,
            queue,
            &params::fill(address, size, [1u8; 16].as_ptr().cast(), width)
        );
        raw.refuses(
            answer,
            Code::INVALID_ARGUMENT,
            &format!("{size} bytes with a pattern of {width}"),
        )?;
    }
    untouched(&raw, queue, address)
}

/// The queue is idle, and works.
fn untouched(raw: &Raw, queue: *mut sys::otr_queue, address: u64) -> Verdict {
    answers!(
        raw.query(queue)?,
        Code::OK,
        "queue_query: nothing was submitted"
    );
    raw.takes(
        call!(
            raw.api(),
            fill,
            queue,
            &params::fill(address, 4096, [1u8].as_ptr().cast(), 1)
        ),
        "a right fill",
    )?;
    raw.synchronize(queue)?;
    let checker = raw.driver().queue_create(0, 0)?;
    holds(&checker, address, 4096, 1, "a right fill, afterwards")?;
    raw.destroy(queue, std::ptr::null_mut())?;
    // SAFETY: all work has finished.
    unsafe { raw.driver().memory_free(address) }?;
    Ok(())
}

fn refused(context: &Context, change: fn(u64) -> (u64, u64)) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, address) = (bench.queue()?, bench.memory(1 << 16)?);
    fill(&queue, address, 1 << 16, &[2])?;
    queue.synchronize()?;
    let (at, size) = change(address);
    for width in [1, 16] {
        // SAFETY: it is refused, so that nothing is executed.
        let answer = unsafe { queue.fill(at, size, &[9; 16][..width]) };
        answers!(
            answer,
            Code::INVALID_ARGUMENT,
            "a fill of {size} bytes at {at:#x}"
        );
        check!(
            answer.is_err_and(|e| !e.message().is_empty()),
            "R5: it has a text"
        );
    }
    check!(queue.query()?, "nothing was submitted");
    holds(&queue, address, 1 << 16, 2, "memory")?;
    bench.finish()
}

fn a_pattern_is_bytes(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, address) = (bench.queue()?, bench.memory(64)?);
    let number = 0x0102_0304_0506_0708u64;
    fill(&queue, address, 64, &number.to_ne_bytes())?;
    equal!(
        read(&queue, address, 64)?,
        number.to_ne_bytes().repeat(8),
        "a 64-bit number"
    );
    fill(&queue, address, 64, &(-1.5f32).to_ne_bytes())?;
    equal!(
        read(&queue, address, 64)?,
        (-1.5f32).to_ne_bytes().repeat(16),
        "a float"
    );
    bench.finish()
}

fn the_last_one_stays(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, address) = (bench.queue()?, bench.memory(4096)?);
    for round in 0..50u8 {
        for value in 0..20 {
            fill(&queue, address, 4096, &[value])?;
            fill(&queue, address + 1024, 1024, &[value, round])?;
        }
        let mut expected = vec![19; 4096];
        for pair in expected[1024..2048].chunks_mut(2) {
            pair[1] = round;
        }
        equal!(read(&queue, address, 4096)?, expected, "round {round}");
    }
    bench.finish()
}

fn on_another_device(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (near, far) = (bench.queue_on(0)?, bench.queue_on(1)?);
    let (here, there) = (bench.memory_on(0, 4096)?, bench.memory_on(1, 4096)?);
    fill(&near, here, 4096, &[1])?;
    fill(&far, there, 4096, &[2])?;
    far.synchronize()?;
    holds(&near, here, 4096, 1, "memory of device 0")?;
    holds(&far, there, 4096, 2, "memory of device 1")?;
    bench.finish()
}

fn a_whole_allocation(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    for size in [1u64, 65, 4097, (3 << 20) + 5] {
        let address = bench.memory(size)?;
        fill(&queue, address, size, &[0x77])?;
        holds(&queue, address, size as usize, 0x77, "a whole allocation")?;
    }
    bench.finish()
}
