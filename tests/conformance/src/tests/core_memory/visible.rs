//! R15: device memory that is host memory, too.

use super::*;

tests! { "core.host_visible":
    /// Bytes that work wrote are there for the host once it has finished.
    the_host_reads_what_work_wrote: R15, needs HostVisible;
    /// Bytes that the host writes are there for work that is submitted later.
    work_reads_what_the_host_wrote: R15, needs HostVisible;
    /// The first and the last byte of an allocation are the host's, too.
    every_byte_is_the_hosts: R13 R15, needs HostVisible;
    /// A copy from host memory to a device address may be a copy within the device as well: both
    /// see one memory.
    both_sides_see_one_memory: R15 R16, needs HostVisible;
}

fn the_host_reads_what_work_wrote(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, address) = (bench.queue()?, bench.memory(65536)?);
    for round in 1..=20u8 {
        fill(&queue, address, 65536, &[round, round ^ 0xff])?;
        queue.synchronize()?;
        // SAFETY: host-visible memory (R15), and its work has finished.
        let bytes = unsafe { std::slice::from_raw_parts(address as *const u8, 65536) };
        check!(
            bytes.chunks(2).all(|pair| pair == [round, round ^ 0xff]),
            "the host sees round {round}"
        );
    }
    bench.finish()
}

fn work_reads_what_the_host_wrote(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, address) = (bench.queue()?, bench.memory(65536)?);
    for round in 1..=20u8 {
        // SAFETY: host-visible memory (R15), which no work uses now.
        unsafe { (address as *mut u8).write_bytes(round, 65536) };
        holds(&queue, address, 65536, round, "what the host wrote")?;
    }
    bench.finish()
}

fn every_byte_is_the_hosts(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    for size in [1usize, 63, 65, 4097, 100_001] {
        let address = bench.memory(size as u64)?;
        let expected = pattern(size, size as u64);
        // SAFETY: host-visible memory of this size (R15), which no work uses now.
        unsafe { (address as *mut u8).copy_from_nonoverlapping(expected.as_ptr(), size) };
        equal!(read(&queue, address, size)?, expected, "{size} bytes");
    }
    bench.finish()
}

fn both_sides_see_one_memory(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, address) = (bench.queue()?, bench.memory(8192)?);
    let bytes = HostBytes::new(pattern(4096, 3));
    copy(&queue, address, bytes.at(0), 4096, CopyKind::HostToDevice)?;
    // A device address as the host's end of a copy.
    copy(
        &queue,
        address + 4096,
        address,
        4096,
        CopyKind::HostToDevice,
    )?;
    equal!(
        read(&queue, address + 4096, 4096)?,
        pattern(4096, 3),
        "copied as host memory"
    );
    bench.finish()
}
