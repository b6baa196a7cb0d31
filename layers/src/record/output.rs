//! The file of a recording, as the calls of the host and the work that runs later write to it.

use std::cell::Cell;
use std::fs::File;

use parking_lot::Mutex;

use super::format::{PIECE, Record, Value, Writer};
use crate::Entry;

thread_local! {
    /// The number of the call that this thread is in.
    pub(super) static CALL: Cell<u64> = const { Cell::new(0) };
}

/// The part of the output that work which runs later writes to as well.
pub(super) struct Shared {
    file: Mutex<Output>,
}

struct Output {
    /// `None` after a write that failed: later records would have no beginning.
    writer: Option<Writer<File>>,
    calls: u64,
}

impl Shared {
    pub(super) fn new(writer: Writer<File>) -> Self {
        Self {
            file: Mutex::new(Output {
                writer: Some(writer),
                calls: 0,
            }),
        }
    }

    pub(super) fn write(&self, record: &Record) {
        self.file.lock().write(record);
    }

    /// Writes that a call begins, and gives its number.
    pub(super) fn begin(&self, entry: Entry, arguments: Vec<Value>) -> u64 {
        let mut file = self.file.lock();
        let number = file.calls;
        file.calls += 1;
        file.write(&Record::Call {
            number,
            entry,
            arguments,
        });
        number
    }

    /// Writes memory in pieces: its rows one behind the other, without what lies between them.
    ///
    /// # Safety
    /// Each row can be read.
    pub(super) unsafe fn data(&self, number: u64, destination: bool, memory: &Memory) {
        let mut offset = 0;
        for row in 0..memory.rows {
            let start = memory.start + row * memory.pitch;
            // SAFETY: this function's contract.
            let bytes = unsafe {
                std::slice::from_raw_parts(
                    std::ptr::with_exposed_provenance::<u8>(start as usize),
                    memory.size as usize,
                )
            };
            for bytes in bytes.chunks(PIECE) {
                self.write(&Record::Data {
                    number,
                    destination,
                    offset,
                    bytes: bytes.to_vec(),
                });
                offset += bytes.len() as u64;
            }
        }
    }
}

/// Host memory of a copy.
pub(super) struct Memory {
    pub(super) start: u64,
    /// The bytes of a row.
    pub(super) size: u64,
    pub(super) rows: u64,
    /// The bytes from a row to the next.
    pub(super) pitch: u64,
}

impl Output {
    fn write(&mut self, record: &Record) {
        let Some(writer) = &mut self.writer else {
            return;
        };
        if let Err(error) = writer.write(record) {
            tracing::error!(target: "outrigger::record", %error, "the recording ends here");
            self.writer = None;
        }
    }
}
