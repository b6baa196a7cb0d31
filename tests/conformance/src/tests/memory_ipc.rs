//! R42 to R44: memory and events that two processes share. The other process reads commands from its
//! standard input, one per line, and answers on its standard output.

pub(super) mod events;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout};

use outrigger_device::{Code, Driver, Ipc, IpcHandle, Physical, VirtualMemory};

use super::kit::{Bench, fill, read, write};
use crate::test::tests;
use crate::verdict::{answers, check, equal};
use crate::{Context, Failure, Helper, Verdict};

tests! { "memory.ipc":
    /// An allocation is reached from another process, all of it, in both directions.
    an_allocation_is_shared: R42 R43, needs Ipc;
    /// A handle serves any number of imports, and an allocation may be exported again.
    handles_serve_many_times: R42, needs Ipc;
    /// An import of memory that was freed answers OTR_ERR_NOT_FOUND, also where its address is used again.
    freed_memory_is_not_found: R42, needs Ipc;
    /// Bytes that are no handle of the driver answer OTR_ERR_INVALID_HANDLE.
    bytes_of_nothing_are_refused: R42, needs Ipc;
    /// An address that is no allocation is not exported.
    what_is_no_allocation_is_not_exported: R4 R7 R42, needs Ipc;
    /// Imported memory does not count as used, is not freed by `memory_free`, and is closed once.
    an_import_is_closed: R43, needs Ipc;
    /// An exporter that ends leaves its importers usable, and closing succeeds.
    an_exporter_may_end: R44, needs Ipc;
    /// Two importers and the exporter see the same bytes.
    several_processes_share: R42 R43, needs Ipc;
    /// Physical memory is reached from another process, mapped there as any object.
    physical_memory_is_shared: R42 R43, needs Ipc IpcPhysical;
    /// A handle of one kind is none of the other.
    kinds_are_told_apart: R42, needs Ipc IpcPhysical;
    /// An import of a destroyed object answers OTR_ERR_NOT_FOUND.
    a_destroyed_object_is_not_found: R42 R44, needs Ipc IpcPhysical;
}

/// The names under which the other process is started.
pub(super) const HELPERS: &[Helper] = &[
    Helper {
        name: "ipc",
        run: |context| {
            let bench = Bench::new(context)?;
            serve(|words| memory(&bench, words))
        },
    },
    Helper {
        name: "ipc-events",
        run: events::help,
    },
];

const SIZE: u64 = 3 << 20;

fn ipc(driver: &Driver) -> Verdict<Ipc<'_>> {
    driver
        .ipc()
        .ok_or_else(|| Failure::new("the driver has the group ipc"))
}

fn virtual_memory(driver: &Driver) -> Verdict<VirtualMemory<'_>> {
    driver
        .virtual_memory()
        .ok_or_else(|| Failure::new("the driver has the group virtual_memory"))
}

/// Another process with the same driver. It ends with this value, at the latest when its input does.
pub(super) struct Other {
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Other {
    fn start(context: &Context) -> Verdict<Self> {
        Self::with(context, "ipc")
    }

    /// A process that does the work of the helper of this name.
    pub(super) fn with(context: &Context, helper: &str) -> Verdict<Self> {
        let mut process = context.helper(helper)?.spawn()?;
        let (input, output) = (process.stdin.take(), process.stdout.take());
        let output = output.ok_or_else(|| Failure::new("the other process has an output"))?;
        Ok(Self {
            process,
            input,
            output: BufReader::new(output),
        })
    }

    /// Tells the process one line, and gives the line that it answers.
    #[track_caller]
    pub(super) fn ask(&mut self, line: &str) -> Verdict<String> {
        let Some(input) = &mut self.input else {
            return Err(Failure::new("the other process has ended"));
        };
        writeln!(input, "{line}")?;
        let mut answer = String::new();
        self.output.read_line(&mut answer)?;
        check!(!answer.is_empty(), "the other process answers to {line:?}");
        Ok(answer.trim_end().to_owned())
    }

    /// Ends the process without a warning.
    #[track_caller]
    pub(super) fn kill(mut self) -> Verdict {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }

    #[track_caller]
    pub(super) fn end(mut self) -> Verdict {
        self.input = None;
        let status = self.process.wait()?;
        check!(status.success(), "the other process ended with {status}");
        Ok(())
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.input = None;
        // Already gone where the test has ended well.
        let _ = self.process.kill().and_then(|()| self.process.wait());
    }
}

/// The other process: one line in, one line out, until the input ends.
pub(super) fn serve(mut answer: impl FnMut(&[&str]) -> Verdict<String>) -> Verdict {
    let mut output = std::io::stdout().lock();
    for line in std::io::stdin().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        let answer = answer(&words).unwrap_or_else(|failure| format!("failed: {failure}"));
        writeln!(output, "{answer}")?;
        output.flush()?;
    }
    Ok(())
}

/// The answers of the other process about memory.
fn memory(bench: &Bench, words: &[&str]) -> Verdict<String> {
    match *words {
        ["memory", handle, size] => use_memory(bench, &parse(handle)?, size.parse()?),
        ["physical", handle, size] => use_physical(bench, &parse(handle)?, size.parse()?),
        ["export", size] => export(bench, size.parse()?),
        _ => Err(Failure::new(format!("the test said {words:?}"))),
    }
}

/// Imports an allocation twice, and uses it as [`exchange`] says.
fn use_memory(bench: &Bench, handle: &IpcHandle, size: u64) -> Verdict<String> {
    let (ipc, before) = (ipc(bench.driver())?, bench.memory_info(0)?);
    let (address, whole) = match ipc.memory_import(0, handle) {
        Ok(found) => (found.address, found.size),
        Err(error) => return Ok(refusal(error.code())),
    };
    check!(
        whole >= size,
        "R43: an import of {whole} bytes, of which {size} were asked for"
    );
    // The size that the import tells is there: the last byte can be read.
    read(&bench.queue()?, address + whole - 1, 1)?;
    let again = ipc.memory_import(0, handle)?;
    equal!(again.size, whole, "R43: the bytes of another import");
    let another = again.address;
    check!(address != another, "each import has an address of its own");
    equal!(
        bench.memory_info(0)?,
        before,
        "R43: free memory with an import"
    );
    // SAFETY: refused, since it is no allocation.
    let freed = unsafe { bench.memory_free(address) };
    answers!(freed, Code::INVALID_ARGUMENT, "memory_free of an import");
    let answer = exchange(bench, address, another, size)?;
    // SAFETY: the work has finished.
    unsafe {
        ipc.memory_close(address)?;
        ipc.memory_close(another)?;
        answers!(
            ipc.memory_close(address),
            Code::INVALID_ARGUMENT,
            "memory_close, again"
        );
    }
    equal!(bench.memory_info(0)?, before, "free memory afterwards");
    Ok(answer)
}

/// Imports physical memory, maps it twice, and uses it as [`exchange`] says.
fn use_physical(bench: &Bench, handle: &IpcHandle, size: u64) -> Verdict<String> {
    let (memory, before) = (virtual_memory(bench.driver())?, bench.memory_info(0)?);
    let (object, whole) = match ipc(bench.driver())?.physical_import(0, handle) {
        Ok(found) => found,
        Err(error) => return Ok(refusal(error.code())),
    };
    equal!(whole, size, "R43: the bytes of an imported object");
    let range = memory.reserve(0, 2 * size, 0)?;
    // SAFETY: a live object; the work has finished before it is unmapped.
    unsafe {
        memory.map(range, &[object, object])?;
        memory.destroy(object)?;
        equal!(
            bench.memory_info(0)?,
            before,
            "R43: free memory with an import"
        );
        let answer = exchange(bench, range, range + size, size)?;
        memory.unmap(range, 2 * size)?;
        memory.release(range, 2 * size)?;
        Ok(answer)
    }
}

/// Reads the first and last byte at one address, and writes one more at another of the same memory.
fn exchange(bench: &Bench, address: u64, another: u64, size: u64) -> Verdict<String> {
    let queue = bench.queue()?;
    let first = read(&queue, address, 1)?[0];
    let last = read(&queue, address + size - 1, 1)?[0];
    write(&queue, another, &[first + 1])?;
    write(&queue, another + size - 1, &[last + 1])?;
    queue.synchronize()?;
    Ok(format!("bytes {first} {last}"))
}

/// Exports an allocation full of sevens, which lives until the process ends.
fn export(bench: &Bench, size: u64) -> Verdict<String> {
    let (memory, queue) = (bench.memory(size)?, bench.queue()?);
    fill(&queue, memory, size, &[7])?;
    queue.synchronize()?;
    match ipc(bench.driver())?.memory_export(memory) {
        Ok(handle) => Ok(format(&handle)),
        Err(error) => Ok(refusal(error.code())),
    }
}

fn format(handle: &IpcHandle) -> String {
    handle.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parse(text: &str) -> Verdict<IpcHandle> {
    let mut bytes = [0; IpcHandle::SIZE];
    equal!(text.len(), 2 * bytes.len(), "digits of a handle");
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16)?;
    }
    Ok(IpcHandle(bytes))
}

/// The words of the other process for a code.
fn refusal(code: Code) -> String {
    format!("code {}", code.0)
}

/// The handle of an allocation; `None` where the driver cannot share one (R42).
fn handle_of(context: &Context, bench: &Bench, memory: u64) -> Verdict<Option<IpcHandle>> {
    match ipc(bench.driver())?.memory_export(memory) {
        Ok(handle) => Ok(Some(handle)),
        Err(error) => {
            equal!(
                error.code(),
                Code::UNSUPPORTED,
                "why memory_export is refused"
            );
            context.note("allocations cannot be shared");
            Ok(None)
        }
    }
}

/// An allocation that begins with 40 and ends with 50, exported.
fn shared(context: &Context, bench: &Bench) -> Verdict<Option<(u64, String)>> {
    let queue = bench.queue()?;
    // Something in front of it, so that it does not begin where all memory does.
    bench.memory(100_000)?;
    let memory = bench.memory(SIZE)?;
    fill(&queue, memory, SIZE, &[40])?;
    write(&queue, memory + SIZE - 1, &[50])?;
    queue.synchronize()?;
    let handle = handle_of(context, bench, memory)?;
    Ok(handle.map(|handle| (memory, format!("memory {} {SIZE}", format(&handle)))))
}

fn an_allocation_is_shared(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let Some((memory, question)) = shared(context, &bench)? else {
        return bench.finish();
    };
    let mut other = Other::start(context)?;
    equal!(
        other.ask(&question)?,
        "bytes 40 50",
        "what the other process found"
    );
    let queue = bench.queue()?;
    equal!(
        read(&queue, memory, 2)?,
        [41, 40],
        "the first bytes, of which it wrote one"
    );
    equal!(
        read(&queue, memory + SIZE - 2, 2)?,
        [40, 51],
        "the last bytes, of which it wrote one"
    );
    other.end()?;
    bench.finish()
}

fn handles_serve_many_times(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let Some((memory, question)) = shared(context, &bench)? else {
        return bench.finish();
    };
    let mut other = Other::start(context)?;
    for round in 0..4 {
        equal!(
            other.ask(&question)?,
            format!("bytes {} {}", 40 + round, 50 + round),
            "import {round}"
        );
    }
    let again =
        handle_of(context, &bench, memory)?.ok_or_else(|| Failure::new("it is exported again"))?;
    let question = format!("memory {} {SIZE}", format(&again));
    equal!(
        other.ask(&question)?,
        "bytes 44 54",
        "what a second handle leads to"
    );
    other.end()?;
    bench.finish()
}

fn freed_memory_is_not_found(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let Some((memory, question)) = shared(context, &bench)? else {
        return bench.finish();
    };
    let mut other = Other::start(context)?;
    bench.give_back(memory)?;
    equal!(
        other.ask(&question)?,
        refusal(Code::NOT_FOUND),
        "an import of freed memory"
    );
    // Memory in the same place is other memory.
    let memory = bench.memory(SIZE)?;
    equal!(
        other.ask(&question)?,
        refusal(Code::NOT_FOUND),
        "an import by the handle of what was there before"
    );
    if let Some(handle) = handle_of(context, &bench, memory)? {
        check!(
            !question.contains(&format(&handle)),
            "new memory has a new handle"
        );
        equal!(
            other.ask(&question)?,
            refusal(Code::NOT_FOUND),
            "an import by the old handle"
        );
    }
    other.end()?;
    bench.finish()
}

fn bytes_of_nothing_are_refused(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let mut other = Other::start(context)?;
    let mut rng = context.rng();
    let random = std::array::from_fn(|_| rng.u8(..));
    for bytes in [[0x00; IpcHandle::SIZE], [0x5a; _], [0xff; _], random] {
        let question = format!("memory {} 4096", format(&IpcHandle(bytes)));
        equal!(
            other.ask(&question)?,
            refusal(Code::INVALID_HANDLE),
            "an import of bytes that are no handle"
        );
    }
    other.end()?;
    bench.finish()
}

fn what_is_no_allocation_is_not_exported(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let memory = bench.memory(4096)?;
    if handle_of(context, &bench, memory)?.is_none() {
        return bench.finish();
    }
    for address in [0, memory + 64, u64::MAX] {
        let answer = ipc(bench.driver())?.memory_export(address);
        answers!(
            answer,
            Code::INVALID_ARGUMENT,
            "memory_export of {address:#x}"
        );
        check!(
            answer.is_err_and(|e| !e.message().is_empty()),
            "R5: it has a text"
        );
    }
    let answer = ipc(bench.driver())?.memory_import(0, &IpcHandle([1; IpcHandle::SIZE]));
    answers!(answer, Code::INVALID_HANDLE, "memory_import of no handle");
    bench.finish()
}

fn an_import_is_closed(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let mut other = Other::start(context)?;
    let answer = other.ask(&format!("export {SIZE}"))?;
    if answer == refusal(Code::UNSUPPORTED) {
        return other.end();
    }
    let (ipc, handle, before) = (ipc(bench.driver())?, parse(&answer)?, bench.memory_info(0)?);
    for _ in 0..20 {
        let address = ipc.memory_import(0, &handle)?.address;
        equal!(bench.memory_info(0)?, before, "free memory with an import");
        // SAFETY: refused, since it is no allocation.
        let freed = unsafe { bench.memory_free(address) };
        answers!(freed, Code::INVALID_ARGUMENT, "memory_free of an import");
        equal!(
            read(&bench.queue()?, address + SIZE - 64, 64)?,
            [7; 64],
            "its last bytes"
        );
        // SAFETY: no work uses it.
        let closed = unsafe { (ipc.memory_close(address), ipc.memory_close(address)) };
        answers!(closed.0, Code::OK, "memory_close");
        answers!(closed.1, Code::INVALID_ARGUMENT, "memory_close, again");
    }
    let own = bench.memory(4096)?;
    // SAFETY: refused, since it was not imported.
    let closed = unsafe { ipc.memory_close(own) };
    answers!(
        closed,
        Code::INVALID_ARGUMENT,
        "memory_close of an allocation"
    );
    other.end()?;
    bench.finish()
}

fn an_exporter_may_end(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    let mut other = Other::start(context)?;
    let answer = other.ask(&format!("export {SIZE}"))?;
    if answer == refusal(Code::UNSUPPORTED) {
        return other.end();
    }
    let handle = parse(&answer)?;
    let address = ipc(bench.driver())?.memory_import(0, &handle)?.address;
    equal!(
        read(&queue, address + SIZE - 64, 64)?,
        [7; 64],
        "imported bytes"
    );
    other.end()?;
    // SAFETY: no work uses it.
    unsafe { ipc(bench.driver())?.memory_close(address) }?;
    let answer = ipc(bench.driver())?.memory_import(0, &handle);
    answers!(
        answer,
        Code::NOT_FOUND,
        "an import from a process that has ended"
    );
    let memory = bench.memory(SIZE)?;
    fill(&queue, memory, SIZE, &[1])?;
    equal!(read(&queue, memory, 8)?, [1; 8], "the driver is usable");
    bench.finish()
}

fn several_processes_share(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let Some((memory, question)) = shared(context, &bench)? else {
        return bench.finish();
    };
    let mut others = [Other::start(context)?, Other::start(context)?];
    let queue = bench.queue()?;
    for round in 0..6u8 {
        let expected = format!("bytes {} {}", 40 + round, 50 + round);
        equal!(
            others[usize::from(round) % 2].ask(&question)?,
            expected,
            "process {} of two",
            round % 2
        );
        equal!(
            read(&queue, memory, 1)?,
            [41 + round],
            "what the exporter sees"
        );
    }
    for other in others {
        other.end()?;
    }
    bench.finish()
}

/// Two exported objects behind each other, full of 10 and 20.
struct Objects {
    objects: Vec<Physical>,
    range: u64,
    size: u64,
    question: String,
    handle: IpcHandle,
}

impl Objects {
    fn new(bench: &Bench) -> Verdict<Self> {
        let (memory, queue) = (virtual_memory(bench.driver())?, bench.queue()?);
        let size = 2 * memory.granularity(0)?;
        let objects = vec![memory.create(0, size)?, memory.create(0, size)?];
        let range = memory.reserve(0, 2 * size, 0)?;
        // SAFETY: live objects.
        unsafe { memory.map(range, &objects) }?;
        fill(&queue, range, size, &[10])?;
        fill(&queue, range + size, size, &[20])?;
        queue.synchronize()?;
        // SAFETY: a live object.
        let handle = unsafe { ipc(bench.driver())?.physical_export(objects[1]) }?;
        Ok(Self {
            objects,
            range,
            size,
            question: format!("physical {} {size}", format(&handle)),
            handle,
        })
    }

    fn end(self, bench: &Bench) -> Verdict {
        let memory = virtual_memory(bench.driver())?;
        // SAFETY: the work is over, and each handle is given back once.
        unsafe {
            memory.unmap(self.range, 2 * self.size)?;
            for object in self.objects {
                memory.destroy(object)?;
            }
        }
        memory.release(self.range, 2 * self.size)?;
        Ok(())
    }
}

fn physical_memory_is_shared(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (objects, queue) = (Objects::new(&bench)?, bench.queue()?);
    let mut other = Other::start(context)?;
    equal!(
        other.ask(&objects.question)?,
        "bytes 20 20",
        "what the other process found"
    );
    let (range, size) = (objects.range, objects.size);
    equal!(
        read(&queue, range + size - 1, 3)?,
        [10, 21, 20],
        "the bytes around the border"
    );
    equal!(
        read(&queue, range + 2 * size - 2, 2)?,
        [20, 21],
        "the last bytes"
    );
    equal!(
        other.ask(&objects.question)?,
        "bytes 21 21",
        "what it found the second time"
    );
    other.end()?;
    objects.end(&bench)?;
    bench.finish()
}

fn kinds_are_told_apart(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let objects = Objects::new(&bench)?;
    let mut other = Other::start(context)?;
    let question = format!("memory {} {}", format(&objects.handle), objects.size);
    equal!(
        other.ask(&question)?,
        refusal(Code::INVALID_HANDLE),
        "an object's handle for an allocation's"
    );
    let memory = bench.memory(SIZE)?;
    if let Some(handle) = handle_of(context, &bench, memory)? {
        let question = format!("physical {} {SIZE}", format(&handle));
        equal!(
            other.ask(&question)?,
            refusal(Code::INVALID_HANDLE),
            "an allocation's handle for an object's"
        );
    }
    other.end()?;
    objects.end(&bench)?;
    bench.finish()
}

fn a_destroyed_object_is_not_found(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let objects = Objects::new(&bench)?;
    let question = objects.question.clone();
    let mut other = Other::start(context)?;
    equal!(
        other.ask(&question)?,
        "bytes 20 20",
        "what the other process found"
    );
    objects.end(&bench)?;
    equal!(
        other.ask(&question)?,
        refusal(Code::NOT_FOUND),
        "an import of a destroyed object"
    );
    other.end()?;
    bench.finish()
}
