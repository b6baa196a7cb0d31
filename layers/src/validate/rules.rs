//! The layer `validate`: checks the calls of the host before they reach the driver, and the answers of
//! the driver before they reach the host. A call that would be undefined is refused; every other call
//! is passed on unchanged.

use std::ffi::{CStr, CString, c_void};
use std::sync::Arc;

use outrigger_device::{Code, Driver, NO_OUTCOME, Result, params, sys};
use parking_lot::Mutex;

use super::books::{Behind, Books, CallBook, Mapped, Memory, Queue, Used, Uses};
use super::calls::HostCalls;
use super::events::{Asked, Event};
use super::finding::{Finding, Side, Sink};
use super::threads::Threads;
use crate::entry::Gated;
use crate::{Layer, Next, fail};

/// The layer that checks the rules of the contract over a driver.
///
/// # Errors
/// Of the driver, when it is asked for its devices.
pub fn validate(driver: &Driver, sink: Sink) -> Result<impl Layer + use<>> {
    let devices = (0..driver.device_count())
        .map(|device| driver.properties(device).map(|p| p.address_alignment))
        .collect::<Result<Vec<_>>>()?;
    let (_, handle) = driver.raw();
    let driver = handle.addr();
    Ok(Gated {
        gate: Threads::new(driver, Arc::clone(&sink)),
        layer: Rules {
            driver,
            sink,
            alignments: devices,
            books: Mutex::default(),
            calls: HostCalls::default(),
        },
    })
}

struct Rules {
    driver: usize,
    sink: Sink,
    /// Of addresses, by device.
    alignments: Vec<u32>,
    books: Mutex<Books>,
    calls: HostCalls,
}

/// The state of a queue when a call begins.
struct Seen {
    number: u32,
    submitted: u64,
    behind: Behind,
    calls: u64,
    taken: u64,
    recording: bool,
    book: Arc<Mutex<CallBook>>,
}

impl Rules {
    fn report(&self, side: Side, rule: &'static str, text: String) {
        (self.sink)(&Finding { side, rule, text });
    }

    fn driver(&self, rule: &'static str, text: String) {
        self.report(Side::Driver, rule, text);
    }

    /// Refuses what would be undefined.
    fn refuse(&self, code: Code, rule: &'static str, text: String) -> i32 {
        let message = format!("{rule}: {text}");
        self.report(Side::Host, rule, text);
        fail(code, message)
    }

    /// The state of a queue now; `None` if the queue is not known.
    fn seen(&self, queue: usize) -> Option<Seen> {
        let order = Arc::clone(&self.books.lock().queues.get(&queue)?.order);
        let _order = order.lock();
        let books = self.books.lock();
        let known = books.queues.get(&queue)?;
        let book = Arc::clone(&known.calls);
        let open = book.lock();
        let (calls, taken) = (open.submitted, open.taken);
        drop(open);
        Some(Seen {
            number: known.number,
            submitted: known.submitted,
            behind: known.behind.clone(),
            calls,
            taken,
            recording: known.recording.is_some(),
            book,
        })
    }

    /// Passes work to the driver and counts it, with the memory that it uses.
    fn submit(
        &self,
        queue: usize,
        what: &str,
        ranges: &[(u64, u64)],
        work: impl FnOnce() -> i32,
    ) -> i32 {
        let what: Arc<str> = Arc::from(what);
        let used = ranges
            .iter()
            .map(|(address, size)| (Arc::clone(&what), *address, *size));
        let used: Vec<Used> = used.collect();
        self.submit_used(queue, Some(&used), work)
    }

    /// A command of a communicator, with the memory that it uses. How much of it, ranks decide together.
    unsafe fn with_ranks(
        &self,
        _next: &Next,
        queue: *mut sys::otr_queue,
        name: &str,
        addresses: &[u64],
        command: impl FnOnce() -> i32,
    ) -> i32 {
        let ranges: Vec<_> = addresses.iter().map(|address| (*address, 1)).collect();
        self.submit(queue.addr(), name, &ranges, command)
    }

    fn submit_used(&self, queue: usize, used: Option<&[Used]>, work: impl FnOnce() -> i32) -> i32 {
        let order = self
            .books
            .lock()
            .queues
            .get(&queue)
            .map(|q| Arc::clone(&q.order));
        let _order = order.as_ref().map(|order| order.lock());
        let code = work();
        if code == Code::OK.0 {
            self.books.lock().submit(queue, used);
        }
        code
    }

    /// Asks or waits for work, and sees that the outcome is written where there is one and nowhere else (R19). Gives the
    /// outcome.
    ///
    /// # Safety
    /// `outcome` is NULL or readable.
    unsafe fn told(
        &self,
        entry: &str,
        outcome: *const sys::otr_outcome,
        ask: impl FnOnce() -> i32,
    ) -> (i32, Option<Code>) {
        // SAFETY: this function's contract.
        let look = || (!outcome.is_null()).then(|| Code(unsafe { (*outcome).code }));
        let before = look();
        let code = ask();
        let after = look();
        if code == Code::NOT_READY.0 {
            let text = format!("{entry} answered NOT_READY, which is an outcome and no answer");
            self.driver("R19", text);
        }
        if code == Code::OK.0 && after.is_none() {
            self.driver(
                "R7",
                format!("{entry} without a place for the outcome was not refused"),
            );
        }
        if code != Code::OK.0 && after != before {
            let text = format!("{entry} failed with {:?} and wrote an outcome", Code(code));
            self.driver("R4", text);
        }
        (code, after.filter(|_| code == Code::OK.0))
    }

    /// Waits for a queue, and sees whether that tells of what its host calls answered.
    ///
    /// # Safety
    /// `outcome` is NULL or readable.
    unsafe fn wait_for_queue(
        &self,
        queue: usize,
        outcome: *const sys::otr_outcome,
        wait: impl FnOnce() -> i32,
    ) -> i32 {
        const ENTRY: &str = "queue_synchronize";
        let seen = self.seen(queue);
        if let Some(seen) = &seen {
            seen.book.lock().taking += 1;
        }
        // SAFETY: this function's contract.
        let (code, told) = unsafe { self.told(ENTRY, outcome, wait) };
        let Some(seen) = seen else { return code };
        if !self.recording(ENTRY, &seen, code)
            && let Some(told) = told
        {
            if told == Code::NOT_READY {
                let text = format!("{ENTRY} of queue {} gave NOT_READY", seen.number);
                self.driver("R19", text);
            }
            self.finished(ENTRY, queue, &seen, 1, told);
            // The failure was told, and is gone now. One that is told here may be of a later call, too, which another
            // thread has made before the driver has looked.
            let mut book = seen.book.lock();
            let failed = told != Code::OK;
            if book
                .failure
                .is_some_and(|(at, _)| failed || at < seen.calls)
            {
                book.failure = None;
            }
        }
        let mut book = seen.book.lock();
        book.taking -= 1;
        book.taken += 1;
        code
    }

    /// Asks whether an event was reached.
    ///
    /// # Safety
    /// `outcome` is NULL or readable.
    unsafe fn ask_event(
        &self,
        event: usize,
        outcome: *const sys::otr_outcome,
        ask: impl FnOnce() -> i32,
    ) -> i32 {
        // SAFETY: this function's contract.
        let ask = || unsafe { self.told("event_query", outcome, ask) };
        let ((code, told), asked) = self.ask(event, ask);
        if let (Some(told), Some(asked)) = (told, asked) {
            // The outcome of an event that was never recorded, and is no point of a recording, is OK.
            let is_new = asked.recorded.is_none() && asked.recording.is_none();
            if told != Code::NOT_READY || is_new {
                self.reached("event_query", asked, told);
            }
        }
        code
    }

    /// Waits until an event is reached.
    ///
    /// # Safety
    /// `outcome` is NULL or readable.
    unsafe fn wait_for_event(
        &self,
        event: usize,
        outcome: *const sys::otr_outcome,
        wait: impl FnOnce() -> i32,
    ) -> i32 {
        const ENTRY: &str = "event_synchronize";
        // SAFETY: this function's contract.
        let wait = || unsafe { self.told(ENTRY, outcome, wait) };
        let ((code, told), asked) = self.ask(event, wait);
        if let (Some(told), Some(asked)) = (told, asked) {
            if told == Code::NOT_READY {
                let text = format!("{ENTRY} of event {} gave NOT_READY", asked.number);
                self.driver("R19", text);
            }
            self.reached(ENTRY, asked, told);
        }
        code
    }

    /// R33: what would wait is refused on a queue that records.
    fn recording(&self, entry: &str, seen: &Seen, code: i32) -> bool {
        if seen.recording && code != Code::CAPTURE.0 {
            let text = format!(
                "{entry} of queue {}, which records, answered {:?}",
                seen.number,
                Code(code)
            );
            self.driver("R33", text);
        }
        seen.recording || code == Code::CAPTURE.0
    }

    /// A queue has finished what it was given before a call, which is `own` synchronizes, with this outcome.
    fn finished(&self, entry: &str, queue: usize, seen: &Seen, own: u32, told: Code) {
        self.books
            .lock()
            .finished(queue, seen.number, seen.submitted, &seen.behind);
        let book = seen.book.lock();
        // One that has ended since may have taken another failure than this call.
        let sure = book.taken == seen.taken;
        let (ran, failure) = (book.ran, book.failure_beside(own).filter(|_| sure));
        drop(book);
        let number = seen.number;
        if ran < seen.calls {
            let text = format!(
                "{entry} of queue {number} gave the outcome {told:?} before its host call {ran} had run"
            );
            self.driver("R19", text);
        }
        match failure {
            Some((at, first)) if at < seen.calls && told.0 != first => self.driver(
                "R20",
                format!(
                    "{entry} of queue {number} gave the outcome {told:?}, and the first failure was {:?}",
                    Code(first)
                ),
            ),
            _ => {}
        }
    }

    /// Asks the driver about an event. What the event was is `None` where another thread records it, too.
    fn ask<T>(&self, event: usize, ask: impl FnOnce() -> T) -> (T, Option<Asked>) {
        let asked = self.books.lock().events.get(&event).and_then(Event::asked);
        let answer = ask();
        let books = self.books.lock();
        let now = books.events.get(&event);
        let same = |asked: &Asked| now.is_some_and(|now| now.is_as(asked));
        (answer, asked.filter(same))
    }

    /// An event was reached, with this outcome.
    fn reached(&self, entry: &str, asked: Asked, told: Code) {
        let number = asked.number;
        let Some(recorded) = asked.recorded else {
            if told != Code::OK {
                let text = format!("{entry} of event {number}, never recorded, gave {told:?}");
                self.driver("R22", text);
            }
            return;
        };
        self.books.lock().finished(
            recorded.queue,
            recorded.number,
            recorded.submitted,
            &recorded.behind,
        );
        let book = recorded.point.book.lock();
        let (ran, failure) = (book.ran, book.failure_beside(0));
        drop(book);
        if ran < recorded.point.calls {
            let text = format!("{entry} of event {number} answered before host call {ran} had run");
            self.driver("R21", text);
        }
        if let Some((at, first)) = failure
            && at < recorded.point.calls
            && told.0 != first
        {
            let text = format!(
                "{entry} of event {number} gave the outcome {told:?}, and its work failed with {:?}",
                Code(first)
            );
            self.driver("R23", text);
        }
    }

    /// Notes new memory, and what is wrong with where it lies.
    ///
    /// # Safety
    /// `address` is NULL or readable.
    unsafe fn made_memory(
        &self,
        (kind, usable): (&'static str, bool),
        device: u32,
        size: u64,
        alignment: u64,
        address: *const u64,
    ) {
        if address.is_null() {
            self.driver("R7", format!("{kind} with NULL as output was not refused"));
            return;
        }
        // SAFETY: not NULL, so readable.
        let address = unsafe { *address };
        if address == 0 {
            self.driver("R13", format!("{kind} at the address 0"));
            return;
        }
        let least = self.alignments.get(device as usize).copied().unwrap_or(1);
        let alignment = alignment.max(u64::from(least.max(1)));
        if ![PINNED, IMPORTED].contains(&kind) && !address.is_multiple_of(alignment) {
            let text = format!("{kind} at {address:#x}, which is not aligned to {alignment} bytes");
            self.driver(if usable { "R14" } else { "R37" }, text);
        }
        let mut books = self.books.lock();
        let overlap = books.overlap(address, size).map(|other| {
            format!(
                "{kind} of {size} bytes at {address:#x} overlaps {} {}",
                other.kind, other.number
            )
        });
        let number = books.number();
        books.memory.insert(
            address,
            Memory {
                number,
                size,
                kind,
                usable,
                uses: Uses::new(),
            },
        );
        drop(books);
        if let Some(text) = overlap {
            self.driver("R13", text);
        }
    }

    /// Refuses where work is still in the way (R12).
    fn unused(&self, next: &Next, what: &str, unfinished: Vec<(usize, String)>) -> Result<(), i32> {
        for (queue, work) in unfinished {
            let handle = std::ptr::with_exposed_provenance_mut(queue);
            let mut outcome = NO_OUTCOME;
            // SAFETY: a queue that is alive. Its host may know by other means that it has finished.
            let code = unsafe { next.queue_query(handle, &mut outcome) };
            if code == Code::OK.0 && outcome.code == Code::NOT_READY.0 {
                let text = format!("{what}, while {work} has not finished");
                return Err(self.refuse(Code::BUSY, "R12", text));
            }
        }
        Ok(())
    }

    fn forget_memory(&self, address: u64) -> Option<Memory> {
        self.books.lock().memory.remove(&address)
    }

    fn restore_memory(&self, address: u64, memory: Option<Memory>) {
        if let Some(memory) = memory {
            self.books.lock().memory.insert(address, memory);
        }
    }

    /// Takes memory back through the driver, if no work uses it.
    fn give_back(&self, next: &Next, what: &str, address: u64, give: impl FnOnce() -> i32) -> i32 {
        let unfinished = self.books.lock().unfinished(address);
        let what = format!("{what} at {address:#x}");
        if let Err(code) = self.unused(next, &what, unfinished) {
            return code;
        }
        // Forgotten before: the address may be given out again at once.
        let memory = self.forget_memory(address);
        let code = give();
        if code != Code::OK.0 {
            self.restore_memory(address, memory);
        }
        code
    }

    /// Notes a new object.
    ///
    /// # Safety
    /// `place` is NULL or readable.
    unsafe fn made<T>(&self, kind: &'static str, size: u64, place: *mut *mut T) {
        // SAFETY: NULL or readable.
        let Some(handle) = (unsafe { place.as_ref() }).map(|handle| handle.addr()) else {
            self.driver("R7", format!("{kind} with NULL as output was not refused"));
            return;
        };
        if handle == 0 {
            self.driver(
                "R4",
                format!("{kind} is NULL although it was created with OK"),
            );
            return;
        }
        let mut books = self.books.lock();
        let number = books.number();
        let twice = books.others.insert(handle, (kind, number, size)).is_some();
        drop(books);
        if twice {
            self.driver("R10", format!("{kind} has the handle of a live one"));
        }
    }

    fn forget<T>(&self, handle: *mut T, destroy: impl FnOnce() -> i32) -> i32 {
        let known = self.books.lock().others.remove(&handle.addr());
        let code = destroy();
        if let (true, Some(known)) = (code != Code::OK.0, known) {
            self.books.lock().others.insert(handle.addr(), known);
        }
        code
    }

    /// Lets the driver write a struct, and checks that it writes no further than the size in it (R1).
    ///
    /// # Safety
    /// NULL, or a struct that begins with its size.
    unsafe fn within_struct(
        &self,
        properties: *mut sys::otr_device_properties,
        write: impl FnOnce(*mut sys::otr_device_properties) -> i32,
    ) -> i32 {
        const BEHIND: usize = 64;
        const MARK: u8 = 0xA7;
        // SAFETY: NULL, or a struct that begins with its size (R1).
        let size = match unsafe { properties.cast::<usize>().as_ref() } {
            Some(size) if *size >= size_of::<usize>() && *size <= 1 << 16 => *size,
            _ => return write(properties),
        };
        let mut copy = vec![[MARK; 16]; (size + BEHIND).div_ceil(16)];
        let start = copy.as_mut_ptr().cast::<u8>();
        // SAFETY: the struct has so many bytes, and the copy more, aligned as any struct. What was written
        // within the size goes back.
        let code = unsafe {
            start.copy_from_nonoverlapping(properties.cast(), size);
            let code = write(start.cast());
            properties
                .cast::<u8>()
                .copy_from_nonoverlapping(start, size);
            code
        };
        if copy.as_flattened()[size..].iter().any(|byte| *byte != MARK) {
            let text = format!("device_properties wrote behind the {size} bytes of the struct");
            self.driver("R1", text);
        }
        code
    }

    /// Notes objects that were mapped one behind the other.
    fn mapped(&self, address: u64, objects: &[*mut sys::otr_physical]) {
        let mut books = self.books.lock();
        let mut at = address;
        let mut twice = false;
        for object in objects {
            let known = books.others.get(&object.addr());
            let Some((_, _, size)) = known.copied() else {
                break;
            };
            let uses = Uses::new();
            twice |= books.mapped.insert(at, Mapped { size, uses }).is_some();
            at += size;
        }
        let inside = books
            .overlap(address, 1)
            .is_some_and(|memory| !memory.usable);
        drop(books);
        if twice {
            self.driver(
                "R39",
                format!("map at {address:#x}, where something is mapped, succeeded"),
            );
        }
        if !inside {
            self.driver(
                "R39",
                format!("map at {address:#x}, in no reservation, succeeded"),
            );
        }
    }

    /// R13: the device ends of a copy or fill lie in memory of the driver.
    fn in_memory(&self, entry: &str, address: u64, size: u64) -> Result<(), i32> {
        if size == 0 || address == 0 || self.books.lock().is_usable(address, size) {
            return Ok(()); // NULL is for the driver to refuse (R7)
        }
        let text = format!("{entry} of {size} bytes at {address:#x}, which is not in live memory");
        Err(self.refuse(Code::INVALID_ARGUMENT, "R13", text))
    }

    /// R25: a size of 0 succeeds.
    fn zero(&self, entry: &str, size: u64, code: i32) {
        if size == 0
            && !matches!(
                Code(code),
                Code::OK | Code::OUT_OF_HOST_MEMORY | Code::DEVICE_LOST
            )
        {
            self.driver(
                "R25",
                format!("{entry} of 0 bytes answered {:?}", Code(code)),
            );
        }
    }
}

/// The label of a launch, and each word of its arguments, which may be an address.
///
/// # Safety
/// NULL, or the struct with its arguments and its label.
unsafe fn launched(launch: *const sys::otr_launch) -> (String, Vec<(u64, u64)>) {
    let (mut what, mut ranges) = ("a kernel".to_owned(), Vec::new());
    // SAFETY: NULL, or a struct that is valid during the call (R10).
    let Some(launch) = (unsafe { launch.as_ref() }) else {
        return (what, ranges);
    };
    if !launch.label.is_null() {
        // SAFETY: a string that lives as long as the process.
        what = unsafe { CStr::from_ptr(launch.label) }
            .to_string_lossy()
            .into_owned();
    }
    if !launch.args.is_null() {
        let (start, size) = (launch.args.cast::<u8>(), launch.args_size as usize);
        // SAFETY: as many bytes as are counted.
        let bytes = unsafe { std::slice::from_raw_parts(start, size) };
        let word = |bytes: &[u8]| bytes.first_chunk().map(|w| u64::from_ne_bytes(*w));
        let words = bytes.chunks(8).filter_map(word);
        ranges.extend(words.map(|word| (word, 1)));
    }
    (what, ranges)
}

/// The name of an operator, and where the memory of its operands and its workspace begins.
///
/// # Safety
/// `call` is NULL or valid.
unsafe fn operands(
    call: *const sys::otr_operator_call,
    workspace: u64,
) -> (String, Vec<(u64, u64)>) {
    // SAFETY: this function's contract.
    let Some(call) = (unsafe { call.as_ref() }) else {
        return ("an operator".to_owned(), Vec::new());
    };
    let what = if call.name.is_null() {
        "an operator".to_owned()
    } else {
        // SAFETY: a string that is valid during the call.
        let name = unsafe { CStr::from_ptr(call.name) };
        name.to_string_lossy().into_owned()
    };
    let mut ranges = vec![(workspace, 1)];
    let inputs = (call.inputs, call.input_count);
    for (tensors, count) in [inputs, (call.outputs, call.output_count)] {
        if !tensors.is_null() {
            // SAFETY: as many tensors as are counted, valid during the call.
            let tensors = unsafe { std::slice::from_raw_parts(tensors, count as usize) };
            ranges.extend(tensors.iter().map(|one| (one.address, 1)));
        }
    }
    (what, ranges)
}

const PINNED: &str = "pinned memory";
const IMPORTED: &str = "imported memory";

/// Host memory of an output, as it was before a call that may fail (R4).
///
/// # Safety
/// `place` is NULL or readable.
unsafe fn before<T: Copy>(place: *const T) -> Option<T> {
    // SAFETY: NULL or readable.
    unsafe { place.as_ref() }.copied()
}

/// Hands a call on, and sees that a failed one has left its output alone (R4).
///
/// # Safety
/// `place` is NULL or readable.
unsafe fn checked<T: Copy + PartialEq>(
    rules: &Rules,
    entry: &str,
    place: *const T,
    call: impl FnOnce() -> i32,
) -> i32 {
    // SAFETY: `place` is NULL or readable.
    let was = unsafe { before(place) };
    let code = call();
    // SAFETY: as above.
    if code != Code::OK.0 && unsafe { before(place) } != was {
        rules.driver(
            "R4",
            format!("{entry} failed with {:?} and wrote its output", Code(code)),
        );
    }
    code
}

mod commands;
mod entries;
mod external;
