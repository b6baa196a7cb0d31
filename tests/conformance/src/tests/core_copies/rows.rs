//! R25: copies of rows that lie apart. Where a driver refuses them, the library above it copies row by row.

use std::ptr::null_mut;

use outrigger_device::{Rows, sys};

use super::*;

/// Bytes of a row, rows, and the pitches of destination and source.
const SHAPES: &[(u64, u32, u64, u64)] = &[
    (1, 1, 1, 1),
    (9, 1, 0, 0),
    (1, 5, 3, 2),
    (7, 13, 11, 7),
    (64, 4, 64, 64),
    (64, 3, 192, 64),
    (100, 33, 129, 257),
    (1000, 5, 1000, 1333),
    (4095, 3, 4097, 5001),
];

tests! { "core.rows":
    /// A copy of rows to a device moves these bytes and none between them.
    to_a_device: R25 R16, run |c| rows_move(c, CopyKind::HostToDevice);
    /// A copy of rows from a device moves these bytes and none between them.
    from_a_device: R25 R16, run |c| rows_move(c, CopyKind::DeviceToHost);
    /// A copy of rows within a device moves these bytes and none between them.
    within_a_device: R25 R16, run |c| rows_move(c, CopyKind::DeviceToDevice);
    /// A copy of rows between two places of the host moves these bytes and none between them.
    on_the_host: R25 R16, run |c| rows_move(c, CopyKind::HostToHost);
    /// A copy of rows comes behind the work before it, and before the work behind it.
    keep_the_order: R16 R25;
    /// A driver copies several rows, or refuses them and has moved none.
    all_or_none: R4 R25;
    /// A number of rows of 0 is one row, whose pitches are not looked at.
    none_is_one: R25;
    /// A pitch that is less than a row is refused, and nothing is moved.
    a_short_pitch_is_refused: R4 R7 R25;
    /// Rows that reach beyond all memory are refused, and nothing is moved.
    beyond_all_memory_is_refused: R4 R7 R25;
}

/// The last byte of the rows, and one more.
fn span(size: u64, count: u32, pitch: u64) -> usize {
    (u64::from(count - 1) * pitch + size) as usize
}

fn rows_move(context: &Context, kind: CopyKind) -> Verdict {
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    for &(size, count, dst_pitch, src_pitch) in SHAPES {
        for (to, from) in [(0, 0), (3, 1)] {
            let before = pattern(to + span(size, count, dst_pitch) + 5, 21);
            let source = pattern(from + span(size, count, src_pitch) + 5, 22);
            let ends = Ends::new(&bench, kind, &before, &source)?;
            let rows = Rows {
                dst: ends.dst.at(to),
                src: ends.src.at(from),
                size,
                count,
                dst_pitch,
                src_pitch,
            };
            // SAFETY: all rows lie within the ends, which live until the copy has finished.
            unsafe { queue.copy_rows(&rows, kind) }?;
            queue.synchronize()?;
            let mut expected = before;
            for row in 0..count as usize {
                let at = |start, pitch: u64| start + row * pitch as usize;
                let (dst, src) = (at(to, dst_pitch), at(from, src_pitch));
                expected[dst..dst + size as usize]
                    .copy_from_slice(&source[src..src + size as usize]);
            }
            let found = ends.dst.get(&bench, expected.len())?;
            let whole = to..to + span(size, count, dst_pitch);
            let what = format!("{count} rows of {size} bytes, {dst_pitch} from {src_pitch} apart");
            same(&found, &expected, whole, &what)?;
        }
    }
    bench.finish()
}

fn keep_the_order(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, address) = (bench.queue()?, bench.memory(8192)?);
    fill(&queue, address, 8192, &[1])?;
    fill(&queue, address + 4096, 4096, &[2])?;
    let rows = Rows {
        dst: address,
        src: address + 4096,
        size: 16,
        count: 64,
        dst_pitch: 64,
        src_pitch: 32,
    };
    // SAFETY: all rows lie within the memory, which is freed after the work.
    unsafe { queue.copy_rows(&rows, CopyKind::DeviceToDevice) }?;
    fill(&queue, address + 4096, 4096, &[3])?;
    let found = read(&queue, address, 4096)?;
    for (at, byte) in found.into_iter().enumerate() {
        equal!(byte, 1 + u8::from(at % 64 < 16), "byte {at}");
    }
    bench.finish()
}

/// Gives the driver a copy of rows as it is, between two parts of memory of 4096 bytes that hold 1 and 2. Gives the code, and
/// the bytes of the destination.
fn given(context: &Context, change: impl FnOnce(&mut sys::otr_copy)) -> Verdict<(Code, Vec<u8>)> {
    let raw = Raw::open(context)?;
    let bench = Bench::of(raw.driver().clone())?;
    let (near, address) = (bench.queue()?, bench.memory(8192)?);
    fill(&near, address, 4096, &[1])?;
    fill(&near, address + 4096, 4096, &[2])?;
    near.synchronize()?;
    let queue = raw.queue()?;
    let mut copy = sys::otr_copy {
        rows: 8,
        dst_pitch: 100,
        src_pitch: 50,
        ..params::copy(address, address + 4096, 10, CopyKind::DeviceToDevice.raw())
    };
    change(&mut copy);
    let answer = call!(raw.api(), copy, queue, &copy);
    if answer != Code::OK.0 {
        check!(!raw.text()?.is_empty(), "R5: the refused copy has a text");
        answers!(raw.query(queue)?, Code::OK, "R4: nothing was submitted");
    }
    raw.synchronize(queue)?;
    let found = read(&near, address, 4096)?;
    raw.destroy(queue, null_mut())?;
    drop(near);
    bench.finish()?;
    Ok((Code(answer), found))
}

fn all_or_none(context: &Context) -> Verdict {
    let (answer, found) = given(context, |_| ())?;
    let rows = match answer {
        Code::OK => 8,
        _ => {
            answers!(answer.0, Code::UNSUPPORTED, "a copy of 8 rows");
            0
        }
    };
    for (at, byte) in found.into_iter().enumerate() {
        let moved = at / 100 < rows && at % 100 < 10;
        equal!(
            byte,
            1 + u8::from(moved),
            "byte {at}, where the driver answered {answer:?}"
        );
    }
    Ok(())
}

fn none_is_one(context: &Context) -> Verdict {
    let (answer, found) = given(context, |copy| {
        (copy.rows, copy.dst_pitch, copy.src_pitch) = (0, 1, u64::MAX);
    })?;
    answers!(answer.0, Code::OK, "a copy of one row");
    for (at, byte) in found.into_iter().enumerate() {
        equal!(byte, 1 + u8::from(at < 10), "byte {at}");
    }
    Ok(())
}

/// A copy is refused as a wrong one, or since the driver has no such copies; nothing is moved.
fn refused_rows(context: &Context, what: &str, change: fn(&mut sys::otr_copy)) -> Verdict {
    let (answer, found) = given(context, change)?;
    check!(
        matches!(answer, Code::INVALID_ARGUMENT | Code::UNSUPPORTED),
        "{what} is refused, and not answered with {answer:?}"
    );
    equal!(found, vec![1; 4096], "R4: the destination of {what}");
    Ok(())
}

fn a_short_pitch_is_refused(context: &Context) -> Verdict {
    refused_rows(context, "a short pitch of the destination", |copy| {
        copy.dst_pitch = 9;
    })?;
    refused_rows(context, "a short pitch of the source", |copy| {
        copy.src_pitch = 9;
    })?;
    // Above the table it is a wrong argument, whatever the driver has.
    let bench = Bench::new(context)?;
    let (queue, address) = (bench.queue()?, bench.memory(8192)?);
    let rows = Rows {
        dst: address,
        src: address + 4096,
        size: 10,
        count: 2,
        dst_pitch: 10,
        src_pitch: 9,
    };
    // SAFETY: it is refused, so that nothing is executed.
    let answer = unsafe { queue.copy_rows(&rows, CopyKind::DeviceToDevice) };
    answers!(
        answer,
        Code::INVALID_ARGUMENT,
        "rows that run into each other"
    );
    bench.finish()
}

fn beyond_all_memory_is_refused(context: &Context) -> Verdict {
    refused_rows(context, "a destination beyond all memory", |copy| {
        copy.dst_pitch = 1 << 60;
    })?;
    refused_rows(context, "a source around the numbers", |copy| {
        (copy.rows, copy.src_pitch) = (u32::MAX, u64::MAX);
    })
}
