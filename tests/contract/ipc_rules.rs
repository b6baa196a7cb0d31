//! R42 to R44: memory that two processes share. The other process is this program once more: it opens
//! the same driver and does what it is told on its standard input.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use outrigger_device::{Code, Driver, IpcHandle, Physical};

use crate::support::{Memory, Target, fill, queue, read, write};

crate::cases! {
    Ipc:
        r42_an_allocation_is_reached_from_another_process,
        r42_handles_of_nothing_are_refused,
        r44_an_exporter_that_ends_leaves_its_importers_usable;
    IpcPhysical:
        r42_physical_memory_is_reached_from_another_process;
}

/// The first argument of a process that does what it is told.
pub(crate) const OTHER: &str = "--other-process";

/// Another process with the same driver, ended with this value.
struct Other {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Other {
    fn start(target: &Target) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args([OTHER, target.spec()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            input: process.stdin.take().unwrap(),
            output: BufReader::new(process.stdout.take().unwrap()),
            process,
        }
    }

    /// Tells the process one line, and gives the line that it answers.
    fn ask(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}").unwrap();
        let mut answer = String::new();
        self.output.read_line(&mut answer).unwrap();
        answer.trim_end().to_owned()
    }

    fn end(mut self) {
        drop(self.input);
        assert!(self.process.wait().unwrap().success());
    }
}

/// The other process: one line in, one line out, until the input ends.
pub(crate) fn serve(spec: &str) {
    let driver = Driver::open(&spec.parse().unwrap()).unwrap();
    let (mut output, mut exported) = (std::io::stdout().lock(), Vec::new());
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let answer = match words[..] {
            ["memory", handle, size] => use_memory(&driver, &parse(handle), size.parse().unwrap()),
            ["physical", handle, size] => {
                use_physical(&driver, &parse(handle), size.parse().unwrap())
            }
            ["export", size] => export(&driver, size.parse().unwrap(), &mut exported),
            _ => panic!("a test said {line:?}"),
        };
        let answer = answer.unwrap_or_else(|error| format!("code {}", error.code().0));
        writeln!(output, "{answer}").unwrap();
    }
}

/// Imports an allocation and uses it as [`exchange`] says.
fn use_memory(driver: &Driver, handle: &IpcHandle, size: u64) -> outrigger_device::Result<String> {
    let (ipc, before) = (driver.ipc().unwrap(), driver.memory_info(0)?);
    let address = ipc.memory_import(0, handle)?;
    let another = ipc.memory_import(0, handle)?;
    assert_ne!(address, another, "each import has an address");
    assert_eq!(
        driver.memory_info(0)?,
        before,
        "it does not count as used here"
    );
    // SAFETY: refused, since it is no allocation.
    let error = unsafe { driver.memory_free(address) }.unwrap_err();
    assert_eq!(error.code(), Code::INVALID_ARGUMENT);
    let answer = exchange(driver, address, another, size);
    // SAFETY: the work has finished.
    unsafe {
        ipc.memory_close(address)?;
        ipc.memory_close(another)?;
        let error = ipc.memory_close(address).unwrap_err();
        assert_eq!(error.code(), Code::INVALID_ARGUMENT);
    }
    Ok(answer)
}

/// Imports physical memory, maps it twice, and uses it as [`exchange`] says.
fn use_physical(
    driver: &Driver,
    handle: &IpcHandle,
    size: u64,
) -> outrigger_device::Result<String> {
    let (memory, before) = (driver.virtual_memory().unwrap(), driver.memory_info(0)?);
    let object = driver.ipc().unwrap().physical_import(0, handle)?;
    let range = memory.reserve(0, 2 * size, 0)?;
    // SAFETY: a live object; the work has finished before it is unmapped.
    unsafe {
        memory.map(range, &[object, object])?;
        memory.destroy(object)?;
        assert_eq!(
            driver.memory_info(0)?,
            before,
            "it does not count as used here"
        );
        let answer = exchange(driver, range, range + size, size);
        memory.unmap(range, 2 * size)?;
        memory.release(range, 2 * size)?;
        Ok(answer)
    }
}

/// Reads the first and last byte at one address, and writes others at another of the same memory.
fn exchange(driver: &Driver, address: u64, another: u64, size: u64) -> String {
    let queue = queue(driver);
    let first = read(&queue, address, 1)[0];
    let last = read(&queue, address + size - 1, 1)[0];
    write(&queue, another, &[first + 1]);
    write(&queue, another + size - 1, &[last + 1]);
    queue.synchronize().unwrap();
    format!("bytes {first} {last}")
}

/// Exports an allocation full of sevens, which lives until the process ends.
fn export(
    driver: &Driver,
    size: u64,
    exported: &mut Vec<Memory>,
) -> outrigger_device::Result<String> {
    let (memory, queue) = (Memory::new(driver, 0, size), queue(driver));
    fill(&queue, memory.address, size, &[7]);
    queue.synchronize()?;
    let handle = driver.ipc().unwrap().memory_export(memory.address)?;
    exported.push(memory);
    Ok(format(&handle))
}

fn format(handle: &IpcHandle) -> String {
    handle.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parse(text: &str) -> IpcHandle {
    let mut bytes = [0; IpcHandle::SIZE];
    assert_eq!(text.len(), 2 * bytes.len());
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap();
    }
    IpcHandle(bytes)
}

/// What the other process says of a code.
fn code(code: Code) -> String {
    format!("code {}", code.0)
}

/// The handle of an allocation; `None` where the driver cannot share one (R42).
fn handle_of(driver: &Driver, memory: &Memory) -> Option<IpcHandle> {
    match driver.ipc().unwrap().memory_export(memory.address) {
        Ok(handle) => Some(handle),
        Err(error) => {
            assert_eq!(error.code(), Code::UNSUPPORTED, "{error}");
            None
        }
    }
}

fn r42_an_allocation_is_reached_from_another_process(target: &Target) {
    const SIZE: u64 = 3 << 20;
    let driver = target.open();
    let queue = queue(&driver);
    let _before = Memory::new(&driver, 0, 100_000);
    let memory = Memory::new(&driver, 0, SIZE);
    let Some(handle) = handle_of(&driver, &memory) else {
        return;
    };
    fill(&queue, memory.address, SIZE, &[40]);
    write(&queue, memory.address + SIZE - 1, &[50]);
    queue.synchronize().unwrap();
    let mut other = Other::start(target);
    let question = format!("memory {} {SIZE}", format(&handle));
    assert_eq!(other.ask(&question), "bytes 40 50");
    assert_eq!(read(&queue, memory.address, 2), [41, 40]);
    assert_eq!(read(&queue, memory.address + SIZE - 2, 2), [40, 51]);
    // A handle serves any number of times, and its memory has one of them or another.
    assert_eq!(other.ask(&question), "bytes 41 51");
    let again = handle_of(&driver, &memory).unwrap();
    assert_eq!(
        other.ask(&format!("memory {} {SIZE}", format(&again))),
        "bytes 42 52"
    );
    drop(memory);
    assert_eq!(other.ask(&question), code(Code::NOT_FOUND));
    // The same addresses, and other memory.
    let _memory = Memory::new(&driver, 0, SIZE);
    assert_eq!(other.ask(&question), code(Code::NOT_FOUND));
    other.end();
}

fn r42_physical_memory_is_reached_from_another_process(target: &Target) {
    let driver = target.open();
    let (memory, ipc, queue) = (
        driver.virtual_memory().unwrap(),
        driver.ipc().unwrap(),
        queue(&driver),
    );
    let size = 2 * memory.granularity(0).unwrap();
    let objects: Vec<Physical> = (0..2).map(|_| memory.create(0, size).unwrap()).collect();
    let range = memory.reserve(0, 2 * size, 0).unwrap();
    // SAFETY: live objects; each handle is given back once, and nothing runs at an unmap.
    unsafe {
        memory.map(range, &objects).unwrap();
        fill(&queue, range, 2 * size, &[10]);
        fill(&queue, range + size, size, &[20]);
        queue.synchronize().unwrap();
        let handle = ipc.physical_export(objects[1]).unwrap();
        let mut other = Other::start(target);
        let question = format!("physical {} {size}", format(&handle));
        assert_eq!(other.ask(&question), "bytes 20 20");
        assert_eq!(read(&queue, range + size - 1, 3), [10, 21, 20]);
        assert_eq!(read(&queue, range + 2 * size - 2, 2), [20, 21]);
        assert_eq!(other.ask(&question), "bytes 21 21");
        // The one kind of handle is not the other.
        assert_eq!(
            other.ask(&format!("memory {} {size}", format(&handle))),
            code(Code::INVALID_HANDLE)
        );
        memory.unmap(range, 2 * size).unwrap();
        for object in objects {
            memory.destroy(object).unwrap();
        }
        assert_eq!(other.ask(&question), code(Code::NOT_FOUND));
        other.end();
        memory.release(range, 2 * size).unwrap();
    }
}

fn r42_handles_of_nothing_are_refused(target: &Target) {
    let driver = target.open();
    let ipc = driver.ipc().unwrap();
    let memory = Memory::new(&driver, 0, 4096);
    for address in [0, memory.address + 64, u64::MAX] {
        let error = ipc.memory_export(address).unwrap_err();
        assert_eq!(error.code(), Code::INVALID_ARGUMENT, "{error}");
    }
    let mut other = Other::start(target);
    for byte in [0x00, 0x5a, 0xff] {
        let nothing = format(&IpcHandle([byte; IpcHandle::SIZE]));
        assert_eq!(
            other.ask(&format!("memory {nothing} 4096")),
            code(Code::INVALID_HANDLE)
        );
    }
    other.end();
}

fn r44_an_exporter_that_ends_leaves_its_importers_usable(target: &Target) {
    const SIZE: u64 = 1 << 20;
    let driver = target.open();
    let (ipc, queue) = (driver.ipc().unwrap(), queue(&driver));
    let mut other = Other::start(target);
    let answer = other.ask(&format!("export {SIZE}"));
    if answer == code(Code::UNSUPPORTED) {
        return other.end();
    }
    let handle = parse(&answer);
    let address = ipc.memory_import(0, &handle).unwrap();
    assert_eq!(read(&queue, address + SIZE - 64, 64), [7; 64]);
    other.end();
    // SAFETY: no work uses it.
    unsafe { ipc.memory_close(address) }.unwrap();
    let error = ipc.memory_import(0, &handle).unwrap_err();
    assert_eq!(error.code(), Code::NOT_FOUND, "{error}");
    let memory = Memory::new(&driver, 0, SIZE);
    fill(&queue, memory.address, SIZE, &[1]);
    assert_eq!(read(&queue, memory.address, 8), [1; 8]);
}
