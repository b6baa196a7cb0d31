//! R7, R13, R25 and R26: copies of all kinds, sizes and offsets, and what is refused.

use std::ops::Range;

use outrigger_device::{Code, CopyKind, params};

use super::kit::{Bench, HostBytes, Log, copy, fill, note, pattern, read, write};
use super::raw::{Raw, call};
use crate::test::tests;
use crate::verdict::{answers, check, equal};
use crate::{Context, Verdict};

/// Sizes of copies, by the path that they are likely to take.
const BYTES: &[usize] = &[1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33];
const LINES: &[usize] = &[63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 513];
const PAGES: &[usize] = &[4095, 4096, 4097, 8191, 8192, 8193, 12345];
const LARGE: &[usize] = &[65535, 65536, 65537, 262_144, 1_000_003];
const HUGE: &[usize] = &[4 << 20, (4 << 20) + 1];

/// Offsets of destination and source.
const ALIGNED: &[(usize, usize)] = &[(0, 0), (64, 0), (0, 64), (256, 128)];
const ODD: &[(usize, usize)] = &[
    (1, 0),
    (0, 1),
    (1, 1),
    (3, 5),
    (7, 2),
    (63, 1),
    (8, 4),
    (13, 31),
];

macro_rules! sizes {
    ($module:ident, $subject:literal, $kind:ident, $text:literal) => {
        pub(super) mod $module {
            use super::*;

            tests! { $subject:
                #[doc = $text]
                /// of 1 to 33 bytes moves these bytes and no other.
                of_some_bytes: R13 R16, run |c| moves(c, CopyKind::$kind, BYTES, ALIGNED);
                #[doc = $text]
                /// of 1 to 33 bytes at odd addresses moves these bytes and no other.
                of_some_bytes_at_odd_addresses: R13 R16, run |c| moves(c, CopyKind::$kind, BYTES, ODD);
                #[doc = $text]
                /// around some cache lines moves these bytes and no other.
                of_some_lines: R13 R16, run |c| moves(c, CopyKind::$kind, LINES, ALIGNED);
                #[doc = $text]
                /// around some cache lines at odd addresses moves these bytes and no other.
                of_some_lines_at_odd_addresses: R13 R16, run |c| moves(c, CopyKind::$kind, LINES, ODD);
                #[doc = $text]
                /// around some pages moves these bytes and no other.
                of_some_pages: R13 R16, run |c| moves(c, CopyKind::$kind, PAGES, ODD);
                #[doc = $text]
                /// of up to a megabyte moves these bytes and no other.
                of_a_megabyte: R13 R16, run |c| moves(c, CopyKind::$kind, LARGE, &[(0, 0), (3, 1)]);
                #[doc = $text]
                /// of some megabytes moves these bytes and no other.
                of_some_megabytes: R13 R16, run |c| moves(c, CopyKind::$kind, HUGE, &[(0, 0), (1, 2)]);
                #[doc = $text]
                /// of 0 bytes does nothing, and its addresses are not looked at.
                of_nothing: R25, run |c| nothing(c, CopyKind::$kind);
                #[doc = $text]
                /// with a source at 0 is refused.
                from_null: R4 R7, run |c| refused(c, CopyKind::$kind, |dst, _| (dst, 0, 64));
                #[doc = $text]
                /// with a destination at 0 is refused.
                to_null: R4 R7, run |c| refused(c, CopyKind::$kind, |_, src| (0, src, 64));
            }
        }
    };
}

sizes!(
    h2d,
    "core.copy_h2d",
    HostToDevice,
    "A copy from the host to a device"
);
sizes!(
    d2h,
    "core.copy_d2h",
    DeviceToHost,
    "A copy from a device to the host"
);
sizes!(
    d2d,
    "core.copy_d2d",
    DeviceToDevice,
    "A copy within a device"
);
sizes!(
    h2h,
    "core.copy_h2h",
    HostToHost,
    "A copy between two places of the host"
);

pub(super) mod rows;

tests! { "core.copy":
    /// A copy of a kind that does not exist is refused, and nothing is submitted.
    an_unknown_kind_is_refused: R4 R7;
    /// A copy from a device that reaches beyond all of its memory is refused.
    a_source_beyond_all_memory_is_refused: R4 R7, run |c| refused(c, CopyKind::DeviceToHost, |dst, src| (dst, src, 1 << 62));
    /// A copy to a device that reaches beyond all of its memory is refused.
    a_destination_beyond_all_memory_is_refused: R4 R7, run |c| refused(c, CopyKind::HostToDevice, |dst, src| (dst, src, 1 << 62));
    /// A size around the end of all numbers is refused.
    a_size_around_the_numbers_is_refused: R4 R7, run |c| refused(c, CopyKind::DeviceToDevice, |dst, src| (dst, src, u64::MAX));
    /// Host memory is no source of a copy within a device.
    host_memory_is_no_device_source: R4 R7, run |c| refused(c, CopyKind::DeviceToDevice, |dst, _| (dst, HostBytes::of(4096, 1).at(0), 64));
    /// Host memory is no destination of a copy to a device.
    host_memory_is_no_device_destination: R4 R7, run |c| refused(c, CopyKind::HostToDevice, |_, src| (HostBytes::of(4096, 1).at(0), src, 64));
    /// Halves of one allocation are copied onto each other.
    within_one_allocation: R13 R16;
    /// Ranges that touch and do not overlap are copied, in both directions.
    between_neighbours: R26;
    /// A copy from host memory that the host reads only, takes nothing but these bytes.
    the_source_stays: R26, run source_stays;
    /// A queue of another device copies memory of that device.
    on_another_device: R16, needs TwoDevices;
    /// Hundreds of small copies of all kinds in a queue move what each of them says.
    of_all_kinds_in_a_row: R16;
}

/// The two ends of a copy of a kind; filled with bytes.
struct Ends {
    dst: End,
    src: End,
}

enum End {
    Device(u64),
    Host(HostBytes),
}

impl End {
    fn new(bench: &Bench, device: bool, bytes: &[u8]) -> Verdict<Self> {
        if device {
            let address = bench.memory(bytes.len() as u64)?;
            let queue = bench.queue()?;
            write(&queue, address, bytes)?;
            queue.synchronize()?;
            Ok(Self::Device(address))
        } else {
            Ok(Self::Host(HostBytes::new(bytes.to_vec())))
        }
    }

    fn at(&self, offset: usize) -> u64 {
        match self {
            Self::Device(address) => address + offset as u64,
            Self::Host(bytes) => bytes.at(offset),
        }
    }

    fn get(&self, bench: &Bench, size: usize) -> Verdict<Vec<u8>> {
        match self {
            Self::Device(address) => read(&bench.queue()?, *address, size),
            Self::Host(bytes) => Ok(bytes.get()),
        }
    }
}

impl Ends {
    fn new(bench: &Bench, kind: CopyKind, dst: &[u8], src: &[u8]) -> Verdict<Self> {
        Ok(Self {
            dst: End::new(bench, kind.writes_device(), dst)?,
            src: End::new(bench, kind.reads_device(), src)?,
        })
    }
}

fn moves(
    context: &Context,
    kind: CopyKind,
    sizes: &[usize],
    offsets: &[(usize, usize)],
) -> Verdict {
    const GUARD: usize = 320;
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    let room = sizes.iter().max().map_or(0, |size| size + 2 * GUARD);
    let (mut model, source) = (pattern(room, 1), pattern(room, 2));
    let ends = Ends::new(&bench, kind, &model, &source)?;
    for &size in sizes {
        for &(to, from) in offsets {
            let (to, from) = (GUARD / 2 + to, GUARD / 4 + from);
            copy(
                &queue,
                ends.dst.at(to),
                ends.src.at(from),
                size as u64,
                kind,
            )?;
            model[to..to + size].copy_from_slice(&source[from..from + size]);
            queue.synchronize()?;
            let what = format!("{size} bytes from offset {from} to {to}");
            same(&ends.dst.get(&bench, room)?, &model, to..to + size, &what)?;
            // So that the next copy cannot pass by what this one left.
            let fresh = pattern(size, (size * 1000 + to * 10 + from) as u64);
            match &ends.dst {
                End::Device(address) => write(&queue, address + to as u64, &fresh)?,
                End::Host(bytes) => {
                    let mut all = bytes.get();
                    all[to..to + size].copy_from_slice(&fresh);
                    bytes.set(&all);
                }
            }
            queue.synchronize()?;
            model[to..to + size].copy_from_slice(&fresh);
        }
    }
    equal!(
        ends.src.get(&bench, room)?,
        source,
        "the source, which is only read"
    );
    bench.finish()
}

/// Compares, and says where a difference lies relative to what was to be written.
pub(super) fn same(found: &[u8], expected: &[u8], written: Range<usize>, what: &str) -> Verdict {
    let Some(at) = found.iter().zip(expected).position(|(a, b)| a != b) else {
        return Ok(());
    };
    let place = if at < written.start {
        format!("{} bytes before it", written.start - at)
    } else if at < written.end {
        format!("its byte {}", at - written.start)
    } else {
        format!("byte {} behind it", at - written.end)
    };
    equal!(found[at], expected[at], "{what}: {place}");
    Ok(())
}

fn nothing(context: &Context, kind: CopyKind) -> Verdict {
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    let bytes = pattern(256, 9);
    let ends = Ends::new(&bench, kind, &bytes, &pattern(256, 10))?;
    let log = Log::default();
    note(&queue, &log, 1)?;
    let (dst, src) = (ends.dst.at(0), ends.src.at(0));
    for (dst, src) in [
        (dst, src),
        (0, 0),
        (dst, 0),
        (0, src),
        (1, u64::MAX),
        (u64::MAX, 7),
        (dst, dst),
    ] {
        copy(&queue, dst, src, 0, kind)?;
    }
    note(&queue, &log, 2)?;
    queue.synchronize()?;
    equal!(log.values(), [1, 2], "calls around it");
    equal!(ends.dst.get(&bench, 256)?, bytes, "the destination");
    bench.finish()
}

type Wrong = fn(u64, u64) -> (u64, u64, u64);

/// Tries a copy that is refused, between otherwise right ends.
fn refused(context: &Context, kind: CopyKind, change: Wrong) -> Verdict {
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    let (to, from) = (pattern(4096, 1), pattern(4096, 2));
    let ends = Ends::new(&bench, kind, &to, &from)?;
    let (dst, src, size) = change(ends.dst.at(0), ends.src.at(0));
    // SAFETY: it is refused, so that nothing is executed.
    let answer = unsafe { queue.copy(dst, src, size, kind) };
    answers!(
        answer,
        Code::INVALID_ARGUMENT,
        "a copy of {size} bytes from {src:#x} to {dst:#x}"
    );
    check!(
        answer.is_err_and(|e| !e.message().is_empty()),
        "R5: it has a text"
    );
    check!(queue.query()?, "nothing was submitted");
    queue.synchronize()?;
    equal!(ends.dst.get(&bench, 4096)?, to, "the destination");
    copy(&queue, ends.dst.at(0), ends.src.at(0), 4096, kind)?;
    queue.synchronize()?;
    equal!(
        ends.dst.get(&bench, 4096)?,
        from,
        "a right copy, afterwards"
    );
    bench.finish()
}

fn an_unknown_kind_is_refused(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let queue = raw.queue()?;
    let address = raw.driver().memory_alloc(0, 4096)?;
    for kind in [0, 5, 6, 77, 0x8000_0001, u32::MAX] {
        let answer = call!(
            raw.api(),
            copy,
            queue,
            &params::copy(address, address + 64, 64, kind)
        );
        raw.refuses(
            answer,
            Code::INVALID_ARGUMENT,
            &format!("a copy of kind {kind}"),
        )?;
        answers!(
            raw.query(queue)?,
            Code::OK,
            "queue_query: nothing was submitted"
        );
    }
    raw.destroy(queue, std::ptr::null_mut())?;
    // SAFETY: nothing was submitted.
    unsafe { raw.driver().memory_free(address) }?;
    Ok(())
}

fn within_one_allocation(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, address) = (bench.queue()?, bench.memory(8192)?);
    let mut model = pattern(8192, 5);
    write(&queue, address, &model)?;
    for (to, from, size) in [
        (4096, 0, 4096),
        (1, 5000, 3000),
        (8000, 17, 192),
        (0, 8000, 100),
    ] {
        super::kit::within(
            &queue,
            address + to as u64,
            address + from as u64,
            size as u64,
        )?;
        model.copy_within(from..from + size, to);
        equal!(
            read(&queue, address, 8192)?,
            model,
            "{size} bytes from {from} to {to}"
        );
    }
    bench.finish()
}

fn between_neighbours(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, address) = (bench.queue()?, bench.memory(2048)?);
    for size in [1u64, 3, 64, 100, 1024] {
        for (to, from) in [(0, size), (size, 0)] {
            let mut model = pattern(2048, size + to);
            write(&queue, address, &model)?;
            super::kit::within(&queue, address + to, address + from, size)?;
            model.copy_within(from as usize..(from + size) as usize, to as usize);
            equal!(
                read(&queue, address, 2048)?,
                model,
                "{size} bytes from {from} to {to}"
            );
        }
    }
    let bytes = HostBytes::new(pattern(128, 1));
    copy(&queue, bytes.at(64), bytes.at(0), 64, CopyKind::HostToHost)?;
    queue.synchronize()?;
    equal!(
        bytes.get(),
        pattern(128, 1)[..64].repeat(2),
        "host memory next to itself"
    );
    bench.finish()
}

/// Pages that the process may not write to: a driver that touches its source for writing ends here.
fn source_stays(context: &Context) -> Verdict {
    static BYTES: [u8; 8192] = {
        let mut bytes = [0; 8192];
        let mut at = 0;
        while at < 8192 {
            bytes[at] = (at * 7 % 251) as u8;
            at += 1;
        }
        bytes
    };
    let bench = Bench::new(context)?;
    let (queue, address) = (bench.queue()?, bench.memory(8192)?);
    copy(
        &queue,
        address,
        BYTES.as_ptr() as u64,
        8192,
        CopyKind::HostToDevice,
    )?;
    equal!(
        read(&queue, address, 8192)?,
        BYTES,
        "read-only memory of the host, on the device"
    );
    bench.finish()
}

fn on_another_device(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, address) = (bench.queue_on(1)?, bench.memory_on(1, 8192)?);
    let bytes = pattern(4096, 8);
    write(&queue, address, &bytes)?;
    super::kit::within(&queue, address + 4096, address, 4096)?;
    fill(&queue, address, 4096, &[0])?;
    equal!(
        read(&queue, address + 4096, 4096)?,
        bytes,
        "memory of device 1"
    );
    bench.finish()
}

fn of_all_kinds_in_a_row(context: &Context) -> Verdict {
    const SIZE: usize = 1024;
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    let device = bench.memory(SIZE as u64)?;
    let host = HostBytes::new(pattern(SIZE, 1));
    let mut models = [pattern(SIZE, 2), host.get()];
    write(&queue, device, &models[0])?;
    let mut rng = context.rng();
    for _ in 0..600 {
        let (to, from) = (rng.bool(), rng.bool());
        let kind = match (to, from) {
            (true, true) => CopyKind::HostToHost,
            (true, false) => CopyKind::DeviceToHost,
            (false, true) => CopyKind::HostToDevice,
            (false, false) => CopyKind::DeviceToDevice,
        };
        let size = rng.usize(1..SIZE / 2);
        let (dst, src) = (
            rng.usize(..SIZE / 2 - size + 1),
            SIZE / 2 + rng.usize(..SIZE / 2 - size + 1),
        );
        let at = |host_side: bool, offset: usize| {
            if host_side {
                host.at(offset)
            } else {
                device + offset as u64
            }
        };
        copy(&queue, at(to, dst), at(from, src), size as u64, kind)?;
        let bytes = models[usize::from(from)][src..src + size].to_vec();
        models[usize::from(to)][dst..dst + size].copy_from_slice(&bytes);
        // The other half gets new bytes, from what was just written.
        let mirror = SIZE - size - dst % 7;
        copy(
            &queue,
            at(to, mirror.max(SIZE / 2)),
            at(to, dst),
            (size as u64).min((SIZE - mirror.max(SIZE / 2)) as u64),
            if to {
                CopyKind::HostToHost
            } else {
                CopyKind::DeviceToDevice
            },
        )?;
        let start = mirror.max(SIZE / 2);
        let count = size.min(SIZE - start);
        models[usize::from(to)].copy_within(dst..dst + count, start);
    }
    equal!(read(&queue, device, SIZE)?, models[0], "device memory");
    equal!(host.get(), models[1], "host memory");
    bench.finish()
}
