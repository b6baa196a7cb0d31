//! R59 and R60: memory by file descriptor. Another process gets a descriptor as it inherits it, which any kind of
//! descriptor allows, and commands on its standard input.

pub(super) mod semaphores;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{null, null_mut};

use outrigger_device::{Code, ExportedMemory, External, FdKind, FdMemory, params, sys};

use super::kit::{Bench, fill, free, holds, read, write};
use super::memory_ipc::{Other, serve};
use super::raw::{Raw, call};
use crate::test::tests;
use crate::verdict::{answers, check, equal};
use crate::{Context, Failure, Helper, Verdict};

tests! { "memory.fd":
    /// Memory is reached from another process by its descriptor, all of it, in both directions.
    memory_is_shared: R60, needs ExternalMemory;
    /// What an export gave stays the host's whatever an import answers, and each export gives another one.
    descriptors_stay_the_hosts: R59, needs ExternalMemory;
    /// The bytes stay where the exporter frees them and closes the descriptor, and new memory does not touch them.
    the_exporter_frees_first: R60, needs ExternalMemory;
    /// More bytes than there are, and none, are refused.
    sizes_are_checked: R4 R60, needs ExternalMemory;
    /// An import does not count as used, is not freed by `memory_free`, and is closed once.
    an_import_is_closed: R60, needs ExternalMemory;
    /// Kinds that nobody has are unsupported, and descriptors of nothing are none.
    what_is_no_memory_is_refused: R59, needs ExternalMemory;
    /// NULL, devices that do not exist and addresses of nothing are refused, and nothing is written.
    wrong_arguments_are_refused: R4 R7, needs ExternalMemory;
}

/// What the other process is started as.
pub(super) const HELPERS: &[Helper] = &[Helper {
    name: "fd",
    run: |context| {
        let bench = Bench::new(context)?;
        serve(|words| answer(&bench, words))
    },
}];

const SIZE: u64 = 3 << 20;

/// A kind that no vendor gives a meaning to.
const NOBODYS: FdKind = FdKind(0xffff_fff1);

fn external(bench: &Bench) -> Verdict<External<'_>> {
    Ok(bench.driver().external()?)
}

/// What the other process does: it imports the descriptor that it has inherited.
fn answer(bench: &Bench, words: &[&str]) -> Verdict<String> {
    let number = words.get(1).ok_or_else(|| Failure::new("a number"))?;
    // SAFETY: inherited, and closed by nobody.
    let fd = unsafe { BorrowedFd::borrow_raw(number.parse()?) };
    let (external, queue) = (external(bench)?, bench.queue()?);
    match *words {
        ["memory", _, offset, size] => {
            let (offset, size) = (offset.parse()?, size.parse()?);
            let kind = FdKind::OPAQUE;
            let memory = FdMemory {
                fd,
                kind,
                offset,
                size,
            };
            let address = external.memory_import(0, &memory)?;
            let ends = [address, address + SIZE - 1];
            let [first, last] = [read(&queue, ends[0], 1)?[0], read(&queue, ends[1], 1)?[0]];
            write(&queue, ends[0], &[first + 1])?;
            write(&queue, ends[1], &[last + 1])?;
            queue.synchronize()?;
            // SAFETY: the work has finished.
            unsafe { external.memory_close(address) }?;
            Ok(format!("bytes {first} {last}"))
        }
        ["signal", _, value] => {
            let semaphore = external.semaphore_import(0, fd, FdKind::OPAQUE)?;
            queue.signal(&semaphore, value.parse()?)?;
            queue.synchronize()?;
            Ok("signalled".to_owned())
        }
        ["wait", _, value] => {
            let semaphore = external.semaphore_import(0, fd, FdKind::OPAQUE)?;
            queue.wait_semaphore(&semaphore, value.parse()?)?;
            queue.synchronize()?;
            Ok("waited".to_owned())
        }
        _ => Err(Failure::new(format!("the test said {words:?}"))),
    }
}

/// A process that has inherited a descriptor, and the number of that.
fn heir(context: &Context, fd: &OwnedFd) -> Verdict<(Other, i32)> {
    // Without the flag that closes it.
    let inherited = rustix::io::dup(fd)?;
    Ok((Other::with(context, "fd")?, inherited.as_raw_fd()))
}

/// Memory that begins with 40 and ends with 50, exported.
fn shared(bench: &Bench) -> Verdict<(u64, ExportedMemory)> {
    let (external, queue) = (external(bench)?, bench.queue()?);
    // Something in front of it, so that it does not begin where all memory does.
    bench.memory(100_000)?;
    let memory = external.memory_alloc(0, SIZE)?;
    bench.keep(memory);
    fill(&queue, memory, SIZE, &[40])?;
    write(&queue, memory + SIZE - 1, &[50])?;
    queue.synchronize()?;
    let exported = external.memory_export(memory, FdKind::OPAQUE)?;
    check!(
        exported.size >= SIZE,
        "an export of {} bytes, of which {SIZE} were asked for",
        exported.size
    );
    Ok((memory, exported))
}

fn whole(exported: &ExportedMemory) -> FdMemory<'_> {
    FdMemory {
        fd: exported.fd.as_fd(),
        kind: FdKind::OPAQUE,
        offset: exported.offset,
        size: exported.size,
    }
}

fn memory_is_shared(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (memory, exported) = shared(&bench)?;
    let (mut other, number) = heir(context, &exported.fd)?;
    let queue = bench.queue()?;
    for round in 0..3 {
        let question = format!("memory {number} {} {}", exported.offset, exported.size);
        equal!(
            other.ask(&question)?,
            format!("bytes {} {}", 40 + round, 50 + round),
            "what the other process found"
        );
        equal!(
            read(&queue, memory, 2)?,
            [41 + round, 40],
            "the first bytes, of which it wrote one"
        );
        equal!(
            read(&queue, memory + SIZE - 2, 2)?,
            [40, 51 + round],
            "the last bytes, of which it wrote one"
        );
    }
    other.end()?;
    bench.finish()
}

fn descriptors_stay_the_hosts(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let external = external(&bench)?;
    let (memory, exported) = shared(&bench)?;
    let again = external.memory_export(memory, FdKind::OPAQUE)?;
    check!(
        again.fd.as_raw_fd() != exported.fd.as_raw_fd(),
        "another export gives another descriptor"
    );
    drop(again);
    for _ in 0..3 {
        let refused = external.memory_import(
            0,
            &FdMemory {
                size: 0,
                ..whole(&exported)
            },
        );
        answers!(refused, Code::INVALID_ARGUMENT, "an import of 0 bytes");
        let address = external.memory_import(0, &whole(&exported))?;
        equal!(
            read(&bench.queue()?, address + SIZE - 1, 1)?,
            [50],
            "the last byte"
        );
        // SAFETY: the work has finished.
        unsafe { external.memory_close(address) }?;
        check!(
            rustix::io::fcntl_getfd(&exported.fd).is_ok(),
            "the descriptor is open after an import"
        );
    }
    bench.finish()
}

fn the_exporter_frees_first(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (external, queue) = (external(&bench)?, bench.queue()?);
    let (memory, exported) = shared(&bench)?;
    bench.give_back(memory)?;
    let address = external.memory_import(0, &whole(&exported))?;
    drop(exported);
    // The same addresses, and other memory.
    let next = bench.memory(SIZE)?;
    fill(&queue, next, SIZE, &[7])?;
    holds(&queue, address, SIZE as usize - 1, 40, "the bytes")?;
    equal!(read(&queue, address + SIZE - 1, 1)?, [50], "the last byte");
    fill(&queue, address, SIZE, &[8])?;
    holds(&queue, next, SIZE as usize, 7, "the new memory")?;
    queue.synchronize()?;
    // SAFETY: the work has finished.
    unsafe { external.memory_close(address) }?;
    bench.finish()
}

fn sizes_are_checked(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let external = external(&bench)?;
    let (_, exported) = shared(&bench)?;
    let (offset, size) = (exported.offset, exported.size);
    for (offset, size) in [
        (offset, 0),
        (offset, size + 1),
        (offset, u64::MAX - offset),
        (offset + size, 4096),
        (u64::MAX - 4095, size),
    ] {
        let memory = FdMemory {
            offset,
            size,
            ..whole(&exported)
        };
        answers!(
            external.memory_import(0, &memory),
            Code::INVALID_ARGUMENT,
            "an import of {size} bytes at {offset}"
        );
    }
    bench.finish()
}

fn an_import_is_closed(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let external = external(&bench)?;
    let (memory, exported) = shared(&bench)?;
    let before = free(bench.driver())?;
    for _ in 0..20 {
        let address = external.memory_import(0, &whole(&exported))?;
        equal!(free(bench.driver())?, before, "free memory with an import");
        // SAFETY: refused, since it is no allocation.
        let freed = unsafe { bench.memory_free(address) };
        answers!(freed, Code::INVALID_ARGUMENT, "memory_free of an import");
        // SAFETY: no work uses it.
        let closed = unsafe {
            (
                external.memory_close(address),
                external.memory_close(address),
                external.memory_close(memory),
            )
        };
        answers!(closed.0, Code::OK, "memory_close");
        answers!(closed.1, Code::INVALID_ARGUMENT, "memory_close, again");
        answers!(
            closed.2,
            Code::INVALID_ARGUMENT,
            "memory_close of an allocation"
        );
    }
    bench.finish()
}

/// Descriptors of nothing that a driver could take.
fn nothings() -> Verdict<Vec<OwnedFd>> {
    let (end, other) = std::io::pipe()?;
    Ok(vec![
        std::fs::File::open("/dev/null")?.into(),
        end.into(),
        other.into(),
    ])
}

fn what_is_no_memory_is_refused(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let external = external(&bench)?;
    let (memory, exported) = shared(&bench)?;
    answers!(
        external.memory_export(memory, NOBODYS),
        Code::UNSUPPORTED,
        "an export of a kind that nobody has"
    );
    let unknown = FdMemory {
        kind: NOBODYS,
        ..whole(&exported)
    };
    answers!(
        external.memory_import(0, &unknown),
        Code::UNSUPPORTED,
        "an import of a kind that nobody has"
    );
    for fd in &nothings()? {
        let nothing = FdMemory {
            fd: fd.as_fd(),
            offset: 0,
            size: 4096,
            ..whole(&exported)
        };
        answers!(
            external.memory_import(0, &nothing),
            Code::INVALID_HANDLE,
            "an import of a descriptor of nothing"
        );
    }
    bench.finish()
}

fn wrong_arguments_are_refused(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (memory, exported) = shared(&bench)?;
    let raw = Raw::of(bench.driver());
    let (group, driver) = (raw.external()?, raw.handle());
    let count = raw.driver().device_count();
    let (mut address, known) = (0x5a5a, 0x5a5a);
    let fd = sys::otr_fd {
        offset: exported.offset,
        size: exported.size,
        ..params::fd(exported.fd.as_raw_fd(), sys::OTR_FD_OPAQUE)
    };
    let none = params::fd(-1, sys::OTR_FD_OPAQUE);
    for (code, expected, what) in [
        (
            call!(group, memory_import, null_mut(), 0, &fd, &mut address),
            Code::INVALID_HANDLE,
            "memory_import without a driver",
        ),
        (
            call!(group, memory_import, driver, count, &fd, &mut address),
            Code::INVALID_DEVICE,
            "memory_import for no device",
        ),
        (
            call!(group, memory_import, driver, 0, null(), &mut address),
            Code::INVALID_ARGUMENT,
            "memory_import of NULL",
        ),
        (
            call!(group, memory_import, driver, 0, &fd, null_mut()),
            Code::INVALID_ARGUMENT,
            "memory_import without a place",
        ),
        (
            call!(group, memory_import, driver, 0, &none, &mut address),
            Code::INVALID_HANDLE,
            "memory_import of -1",
        ),
        (
            call!(group, memory_close, driver, 64),
            Code::INVALID_ARGUMENT,
            "memory_close of nothing",
        ),
        (
            call!(group, memory_export, driver, memory, null_mut()),
            Code::INVALID_ARGUMENT,
            "memory_export without a place",
        ),
    ] {
        raw.refuses(code, expected, what)?;
    }
    for base in [0, memory + 64, u64::MAX] {
        let mut place = params::fd(-77, sys::OTR_FD_OPAQUE);
        raw.refuses(
            call!(group, memory_export, driver, base, &mut place),
            Code::INVALID_ARGUMENT,
            "memory_export of no allocation",
        )?;
        equal!(place.fd, -77, "R4: the output of the failed call");
    }
    equal!(address, known, "R4: the output of failed calls");
    bench.finish()
}
