//! The memory of a queue's commands: a chain of segments that one thread writes and another reads. A
//! segment that was read is written again, so a queue in a steady state never allocates.
//!
//! This module has only the cursors. The queue decides who may move them and when a record may be read:
//! one writer at a time, one reader at a time, and the reader never past what was published to it.

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;

use super::command::Command;
use super::sync::{AtomicPtr, Handed, MODEL, Ordering};

/// Size of a usual segment in bytes. Two of them stay in a core's second cache.
const SEGMENT: usize = if MODEL {
    // One record with its arguments, and the jump.
    HEAD + 2 * RECORD + LINE
} else {
    64 << 10
};
/// What records are aligned to: a cache line, so that writer and reader share none.
const LINE: usize = 64;

/// The first line of a segment.
#[repr(C, align(64))]
struct Head {
    /// Of the whole segment, in bytes.
    size: usize,
    handed: Handed,
}

/// One command; the argument block of a launch follows it.
#[repr(C, align(64))]
pub(super) struct Record {
    pub(super) command: Command,
    /// The number of the submission in its queue, from 1; 0 for what the host did not submit.
    pub(super) submission: u64,
    args_size: u32,
    handed: Handed,
}

/// Sizes of the two in bytes: a line each.
const RECORD: usize = size_of::<Record>();
const HEAD: usize = size_of::<Head>();
const _: () = assert!(MODEL || (RECORD == LINE && HEAD == LINE));

impl Record {
    /// The argument block behind the record.
    pub(super) fn args(record: NonNull<Self>) -> (*const u8, u32) {
        // SAFETY: a record that the reader was given is initialised, and its arguments follow it.
        unsafe { (record.add(1).as_ptr().cast(), (*record.as_ptr()).args_size) }
    }
}

/// The one segment that is kept for the writer's next need; NULL if there is none.
pub(super) struct Spare(AtomicPtr<Head>);

/// Where the next record is written.
pub(super) struct Writer {
    at: NonNull<u8>,
    left: usize,
}

/// Where the next record is read.
pub(super) struct Reader {
    at: NonNull<Record>,
    segment: NonNull<Head>,
}

// SAFETY: the cursors own their positions; the memory behind them is handed from writer to reader by
// the queue's publication, and back through `Spare`.
unsafe impl Send for Writer {}
// SAFETY: as above.
unsafe impl Send for Reader {}

/// An empty chain, or `None` without memory.
pub(super) fn chain() -> Option<(Writer, Reader, Spare)> {
    let segment = allocate(SEGMENT)?;
    let writer = Writer::at_start(segment);
    let reader = Reader {
        at: writer.at.cast(),
        segment,
    };
    Some((writer, reader, Spare(AtomicPtr::new(std::ptr::null_mut()))))
}

fn layout(size: usize) -> Option<Layout> {
    Layout::from_size_align(size, LINE).ok()
}

fn allocate(size: usize) -> Option<NonNull<Head>> {
    // SAFETY: the size is at least that of a segment, so not 0.
    let head = NonNull::new(unsafe { alloc(layout(size)?) })?.cast::<Head>();
    // SAFETY: just allocated, aligned to a line, and larger than a head.
    unsafe {
        head.write(Head {
            size,
            handed: Handed::new(),
        });
    }
    Some(head)
}

impl Spare {
    /// Takes the spare segment or a new one.
    fn take(&self) -> Option<NonNull<Head>> {
        // Acquire: what the reader did with the segment lies before what the writer does.
        match NonNull::new(self.0.swap(std::ptr::null_mut(), Ordering::Acquire)) {
            Some(segment) => {
                // SAFETY: taken out of the only place that knew it.
                unsafe { segment.as_ref() }.handed.write();
                Some(segment)
            }
            None => allocate(SEGMENT),
        }
    }

    /// Keeps a segment that was read, in place of the one that was kept.
    fn give(&self, segment: NonNull<Head>) {
        // SAFETY: the reader has left the segment and is its only owner.
        let size = unsafe { segment.as_ref().size };
        let old = if size == SEGMENT {
            NonNull::new(self.0.swap(segment.as_ptr(), Ordering::AcqRel)).map(|old| (old, SEGMENT))
        } else {
            Some((segment, size))
        };
        if let Some((old, size)) = old
            && let Some(layout) = layout(size)
        {
            // SAFETY: allocated with this layout, and taken out of the only place that knew it.
            unsafe { dealloc(old.as_ptr().cast(), layout) };
        }
    }
}

impl Writer {
    fn at_start(segment: NonNull<Head>) -> Self {
        // SAFETY: a segment is larger than its head.
        unsafe {
            Self {
                at: segment.add(1).cast(),
                left: segment.as_ref().size - HEAD,
            }
        }
    }

    /// Writes a record, or answers `false` without memory and with nothing changed.
    #[inline(always)] // so that `command` is
    pub(super) fn push(
        &mut self,
        spare: &Spare,
        command: impl FnOnce() -> Command,
        submission: u64,
        args: &[u8],
    ) -> bool {
        let needed = RECORD + args.len().next_multiple_of(LINE);
        // There is always room left for the jump to the next segment.
        if needed + RECORD > self.left && !self.jump(spare, needed) {
            return false;
        }
        let record = self.at.cast::<Record>().as_ptr();
        // SAFETY: `left` bytes from `at` belong to the writer, which is more than `needed`; `at` is
        // aligned to a line as all sizes are multiples of it. The fields are written one by one, and
        // the command is made here: moved, it would be stored in one width and loaded in another, which
        // stalls for longer than the rest of a launch takes.
        unsafe {
            (&raw mut (*record).command).write(command());
            (&raw mut (*record).submission).write(submission);
            // An argument block has at most u32::MAX bytes: its size comes from a u32.
            (&raw mut (*record).args_size).write(args.len() as u32);
            (&raw mut (*record).handed).write(Handed::new());
            let behind = self.at.add(RECORD);
            std::ptr::copy_nonoverlapping(args.as_ptr(), behind.as_ptr(), args.len());
            self.at = self.at.add(needed);
        }
        self.left -= needed;
        true
    }

    #[cold]
    fn jump(&mut self, spare: &Spare, needed: usize) -> bool {
        // The head of the next segment, the record, and its own jump.
        let size = needed + HEAD + RECORD;
        let segment = if size <= SEGMENT {
            spare.take()
        } else {
            allocate(size)
        };
        let Some(segment) = segment else { return false };
        let jump = Record {
            command: Command::Jump {
                segment: segment.cast(),
            },
            submission: 0,
            args_size: 0,
            handed: Handed::new(),
        };
        // SAFETY: room for it is always left, see `push`.
        unsafe { self.at.cast::<Record>().write(jump) };
        *self = Self::at_start(segment);
        true
    }
}

impl Reader {
    /// The next record.
    ///
    /// # Safety
    /// A record behind those that were passed has been published to this thread.
    #[inline]
    pub(super) unsafe fn peek(&mut self, spare: &Spare) -> NonNull<Record> {
        // SAFETY: published: either the record itself or the jump before it is here.
        while let Command::Jump { segment } = unsafe { self.read() } {
            let next = segment.cast::<Head>();
            spare.give(self.segment);
            self.segment = next;
            self.at = Writer::at_start(next).at.cast();
        }
        self.at
    }

    /// The command at the cursor.
    ///
    /// # Safety
    /// It has been published to this thread.
    #[inline]
    unsafe fn read(&self) -> &Command {
        // SAFETY: the command was published to this thread; the segment lives until the reader leaves it.
        unsafe {
            let record = self.at.as_ref();
            self.segment.as_ref().handed.read();
            record.handed.read();
            &record.command
        }
    }

    /// Goes behind the record that `peek` gave. Its memory may be written again from here on.
    ///
    /// # Safety
    /// `peek` has given a record since the last call.
    #[inline]
    pub(super) unsafe fn pass(&mut self) {
        // SAFETY: the record is initialised and its arguments follow it in the same segment.
        unsafe {
            let args = (self.at.as_ref().args_size as usize).next_multiple_of(LINE);
            self.at = self.at.byte_add(RECORD + args);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::command::Command;
    use super::{Record, SEGMENT, chain};

    #[test]
    fn records_come_out_as_they_went_in_over_many_segments() {
        let (mut writer, mut reader, spare) = chain().unwrap();
        let sizes = [0, 1, 63, 64, 65, 500, 9000, SEGMENT, 3 * SEGMENT + 1];
        let (mut written, mut read) = (0u64, 0u64);
        for round in 0..400 {
            for _ in 0..=round % 7 {
                written += 1;
                let args = vec![written as u8; sizes[written as usize % sizes.len()]];
                assert!(writer.push(&spare, || Command::Nop, written, &args));
            }
            while read < written {
                read += 1;
                // SAFETY: fewer were read than written, on this thread.
                let record = unsafe { reader.peek(&spare) };
                let (args, size) = Record::args(record);
                // SAFETY: the record that was just given, with its arguments.
                let args = unsafe {
                    assert_eq!((*record.as_ptr()).submission, read);
                    std::slice::from_raw_parts(args, size as usize)
                };
                assert_eq!(args.len(), sizes[read as usize % sizes.len()]);
                assert!(args.iter().all(|&byte| byte == read as u8));
                // SAFETY: given above.
                unsafe { reader.pass() };
            }
        }
    }
}
