//! The memory that the ranks of a communicator share: who has come, how far each one is, why it failed,
//! and room for the bytes that go from rank to rank. It knows nothing of commands.
//!
//! There is no lock in it, since a rank may be killed at any time. Each word is written by one rank, but
//! for the words that ranks claim by an exchange, once.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};
use rustix::thread::futex;

use super::super::pages::{Pages, Part};

/// The most ranks of a communicator.
pub(super) const RANKS: u32 = 64;
/// What a rank shows the others at a time; it has room for two of these.
pub(super) const STAGE: usize = 256 << 10;
/// What is on its way from one rank to another at most.
const BOX: usize = 64 << 10;

/// How long a rank sleeps before it looks whether the others are there still.
const LOOK: Duration = Duration::from_millis(100);
/// How often a rank looks before it sleeps: about a microsecond.
const SPINS: u32 = 50;

/// What stands at the beginning; all zero before the first rank has come.
#[repr(C)]
struct Head {
    /// How many ranks there will be.
    ranks: AtomicU32,
    reserved: u32,
    /// Why the communicator has failed: a [`Failed`] as a number, or 0.
    failed: AtomicU64,
    cells: [Cell; RANKS as usize],
}

/// What a rank says of itself.
#[repr(C, align(64))]
struct Cell {
    /// The process of the rank; 0 before it has come.
    process: AtomicU32,
    /// Whether it has left for good.
    left: AtomicU32,
    /// Grows when another rank has something to say; the rank sleeps on it.
    bell: AtomicU32,
    reserved: u32,
    /// How many meetings it has come to.
    met: AtomicU64,
    /// What it is doing, for a meeting and for the one after.
    doing: [AtomicU64; 2],
}

/// The way from one rank to another.
#[repr(C, align(64))]
struct Mailbox {
    /// Bytes that the sender has put in since the beginning.
    written: AtomicU64,
    apart: [u64; 7],
    /// Bytes that the receiver has taken out.
    read: AtomicU64,
    bytes: [u8; BOX],
}

/// Why a communicator has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failed {
    pub(super) why: Why,
    /// The rank that it began with.
    pub(super) rank: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    Aborted = 1,
    /// Its queue had failed.
    Upstream = 2,
    /// Its process has ended, or it was destroyed.
    Ended = 3,
    Late = 4,
    /// It did something else than the others.
    Differs = 5,
}

impl Failed {
    fn pack(self) -> u64 {
        (self.why as u64) << 32 | u64::from(self.rank)
    }

    fn unpack(word: u64) -> Option<Self> {
        let why = match word >> 32 {
            1 => Why::Aborted,
            2 => Why::Upstream,
            3 => Why::Ended,
            4 => Why::Late,
            5 => Why::Differs,
            _ => return None,
        };
        Some(Self {
            why,
            rank: word as u32,
        })
    }
}

/// Why a rank could not come.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Another one has said that there are so many ranks.
    Count(u32),
    Taken,
    System(Errno),
}

/// The region as one rank sees it.
#[derive(Debug)]
pub(super) struct Region {
    start: NonNull<u8>,
    size: usize,
    pub(super) ranks: u32,
    pub(super) rank: u32,
    /// The processes of the other ranks, by rank; `None` for this one. Empty until all have come.
    watched: Box<[Option<OwnedFd>]>,
}

// SAFETY: the words are atomic, and the bytes are used by one rank at a time: see `stage` and `Mailbox`.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this size, and nobody has a reference into it any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.size) };
    }
}

/// Where things lie in a region of so many ranks.
const fn stages_at() -> usize {
    size_of::<Head>().next_multiple_of(4096)
}

const fn boxes_at(ranks: u32) -> usize {
    stages_at() + ranks as usize * 2 * STAGE
}

const fn size_for(ranks: u32) -> usize {
    boxes_at(ranks) + (ranks * ranks) as usize * size_of::<Mailbox>()
}

impl Region {
    /// The file of a region for any number of ranks. Only what is touched takes memory.
    pub(super) fn file() -> Result<Part, Errno> {
        let size = size_for(RANKS) as u64;
        Ok(Part {
            pages: Arc::new(Pages::small(size)?),
            offset: 0,
            size,
        })
    }

    /// Whether a part can be such a file.
    pub(super) fn is_file(part: &Part) -> bool {
        part.offset == 0 && part.size == size_for(RANKS) as u64
    }

    /// Comes as a rank.
    pub(super) fn join(part: &Part, ranks: u32, rank: u32) -> Result<Self, Refusal> {
        let size = size_for(ranks);
        // SAFETY: a new mapping at an address that the kernel chooses, of a file that has so many bytes.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                size,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                part.pages.file(),
                0,
            )
        }
        .map_err(Refusal::System)?;
        let region = Self {
            start: NonNull::new(start.cast()).ok_or(Refusal::System(Errno::FAULT))?,
            size,
            ranks,
            rank,
            watched: Box::default(),
        };
        let (head, order) = (region.head(), Ordering::SeqCst);
        if let Err(known) = head.ranks.compare_exchange(0, ranks, order, order)
            && known != ranks
        {
            return Err(Refusal::Count(known));
        }
        let process = getpid().as_raw_nonzero().get() as u32;
        let own = &region.cell(rank).process;
        if own.compare_exchange(0, process, order, order).is_err() {
            return Err(Refusal::Taken);
        }
        Ok(region)
    }

    /// Waits until all ranks have come.
    pub(super) fn gather(&mut self, until: Instant) -> Result<(), Failed> {
        let come = |region: &Self, rank| region.cell(rank).process.load(Ordering::SeqCst) != 0;
        if (0..self.ranks).all(|rank| come(self, rank)) {
            self.ring_all();
        }
        self.wait(until, |rank| !come(self, rank))?;
        let watched = (0..self.ranks).map(|rank| {
            let process = self.cell(rank).process.load(Ordering::SeqCst) as i32;
            if rank == self.rank || process == getpid().as_raw_nonzero().get() {
                return Ok(None);
            }
            let process = Pid::from_raw(process);
            let opened = process.and_then(|process| pidfd_open(process, PidfdFlags::empty()).ok());
            opened.map(Some).ok_or(Failed {
                why: Why::Ended,
                rank,
            })
        });
        let watched = watched.collect::<Result<_, _>>();
        self.watched = watched.map_err(|failed| self.fail(failed.why, failed.rank))?;
        Ok(())
    }

    fn head(&self) -> &Head {
        // SAFETY: mapped until this is dropped, aligned to a page, and made of words of which any value
        // is one.
        unsafe { self.start.cast().as_ref() }
    }

    fn cell(&self, rank: u32) -> &Cell {
        &self.head().cells[rank as usize]
    }

    // ---- Failures ------------------------------------------------------------------------------

    pub(super) fn failed(&self) -> Option<Failed> {
        Failed::unpack(self.head().failed.load(Ordering::SeqCst))
    }

    /// Makes the communicator fail, unless it has before, and gives the reason that counts.
    pub(super) fn fail(&self, why: Why, rank: u32) -> Failed {
        let new = Failed { why, rank };
        let word = &self.head().failed;
        let order = Ordering::SeqCst;
        let old = word.compare_exchange(0, new.pack(), order, order);
        self.ring_all();
        old.err().and_then(Failed::unpack).unwrap_or(new)
    }

    /// Says that this rank takes no more part.
    pub(super) fn leave(&self) {
        self.cell(self.rank).left.store(1, Ordering::SeqCst);
        self.ring_all();
    }

    /// Whether a rank can not come any more.
    fn is_gone(&self, rank: u32) -> bool {
        if self.cell(rank).left.load(Ordering::SeqCst) != 0 {
            return true;
        }
        let Some(Some(process)) = self.watched.get(rank as usize) else {
            return false;
        };
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
    }

    // ---- Waiting -------------------------------------------------------------------------------

    pub(super) fn ring(&self, rank: u32) {
        let bell = &self.cell(rank).bell;
        bell.fetch_add(1, Ordering::SeqCst);
        // Not private: the sleepers are other processes. Where it fails they look by themselves.
        let _ = futex::wake(bell, futex::Flags::empty(), u32::MAX >> 1);
    }

    fn ring_all(&self) {
        (0..self.ranks).for_each(|rank| self.ring(rank));
    }

    /// How often this rank's bell has rung, for [`sleep`](Self::sleep).
    pub(super) fn heard(&self) -> u32 {
        self.cell(self.rank).bell.load(Ordering::SeqCst)
    }

    /// Sleeps until the bell rings once more, and no longer than a look takes.
    fn sleep(&self, heard: u32, until: Instant) {
        let left = until.saturating_duration_since(Instant::now()).min(LOOK);
        let limit = futex::Timespec {
            tv_sec: 0,
            tv_nsec: left.subsec_nanos().into(),
        };
        let bell = &self.cell(self.rank).bell;
        // Whatever ends the sleep, the callers look themselves.
        let _ = futex::wait(bell, futex::Flags::empty(), heard, Some(&limit));
    }

    /// Sleeps while `missing` holds for a rank, and fails if one of these can not come, or does not in
    /// time.
    pub(super) fn wait(&self, until: Instant, missing: impl Fn(u32) -> bool) -> Result<(), Failed> {
        let all = || (0..self.ranks).find(|rank| missing(*rank));
        for _ in 0..SPINS {
            if all().is_none() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        loop {
            let heard = self.heard();
            if all().is_none() {
                return Ok(());
            }
            self.rest(heard, until, &missing)?;
        }
    }

    /// One look, with a sleep if the bell has not rung since it was heard.
    pub(super) fn rest(
        &self,
        heard: u32,
        until: Instant,
        missing: &impl Fn(u32) -> bool,
    ) -> Result<(), Failed> {
        if let Some(failed) = self.failed() {
            return Err(failed);
        }
        let gone = (0..self.ranks).find(|rank| missing(*rank) && self.is_gone(*rank));
        // What it has said before its end counts.
        if let Some(rank) = gone
            && missing(rank)
        {
            return Err(self.fail(Why::Ended, rank));
        }
        if Instant::now() >= until {
            return match (0..self.ranks).find(|rank| missing(*rank)) {
                Some(rank) => Err(self.fail(Why::Late, rank)),
                None => Ok(()),
            };
        }
        self.sleep(heard, until);
        Ok(())
    }

    /// Comes to the meeting of this number, and waits until all have. What a rank wrote before it came,
    /// all may read afterwards.
    pub(super) fn meet(&self, number: u64, until: Instant) -> Result<(), Failed> {
        self.cell(self.rank).met.store(number, Ordering::SeqCst);
        let missing = |rank: u32| self.cell(rank).met.load(Ordering::SeqCst) < number;
        if !(0..self.ranks).any(missing) {
            self.ring_all();
            return Ok(());
        }
        self.wait(until, missing)
    }

    /// Says what this rank comes to a meeting for.
    pub(super) fn announce(&self, meeting: u64, what: u64) {
        self.cell(self.rank).doing[(meeting % 2) as usize].store(what, Ordering::SeqCst);
    }

    /// A rank that came to a meeting, which has been, for something else than this one. The words of a
    /// meeting stay until the one after the next.
    pub(super) fn stranger(&self, meeting: u64, what: u64) -> Option<u32> {
        let said = |rank: u32| self.cell(rank).doing[(meeting % 2) as usize].load(Ordering::SeqCst);
        (0..self.ranks).find(|rank| said(*rank) != what)
    }

    // ---- Bytes ---------------------------------------------------------------------------------

    /// Where a rank shows its bytes in a round. A rank writes its own of round `n` after a meeting to
    /// which all came behind their use of round `n - 2`; the others read behind a later meeting.
    pub(super) fn stage(&self, rank: u32, round: u64) -> *mut u8 {
        let offset = stages_at() + (2 * rank as usize + (round % 2) as usize) * STAGE;
        // SAFETY: within the mapping, which has two of these for each rank.
        unsafe { self.start.as_ptr().add(offset) }
    }

    fn mailbox(&self, from: u32, to: u32) -> *mut Mailbox {
        let index = (to * self.ranks + from) as usize;
        let offset = boxes_at(self.ranks) + index * size_of::<Mailbox>();
        // SAFETY: within the mapping, which has one for each pair of ranks; all parts before it are
        // multiples of a page or of its size.
        unsafe { self.start.as_ptr().add(offset).cast() }
    }

    /// Puts bytes on the way to a rank, as many as there is room for.
    ///
    /// # Safety
    /// `size` bytes are readable at `from`; nobody else sends for this rank.
    pub(super) unsafe fn send(&self, to: u32, from: *const u8, size: usize) -> usize {
        let mailbox = self.mailbox(self.rank, to);
        // SAFETY: the words are atomic, of which any value is one, and are mapped.
        let (written, read) = unsafe { (&(*mailbox).written, &(*mailbox).read) };
        let start = written.load(Ordering::Relaxed);
        let waiting = start.wrapping_sub(read.load(Ordering::Acquire));
        let size = size.min(BOX.saturating_sub(waiting as usize));
        let mut done = 0;
        for part in parts(start, size) {
            // SAFETY: this room is the sender's until `written` is behind it; `from` has `size` bytes.
            unsafe {
                let room = (&raw mut (*mailbox).bytes).cast::<u8>().add(part.start);
                std::ptr::copy_nonoverlapping(from.add(done), room, part.len());
            }
            done += part.len();
        }
        if done > 0 {
            written.store(start + done as u64, Ordering::Release);
            self.ring(to);
        }
        done
    }

    /// Takes bytes that a rank has sent, as many as are there.
    ///
    /// # Safety
    /// `size` bytes are writable at `to`; nobody else receives for this rank.
    pub(super) unsafe fn receive(&self, from: u32, to: *mut u8, size: usize) -> usize {
        let mailbox = self.mailbox(from, self.rank);
        // SAFETY: the words are atomic, of which any value is one, and are mapped.
        let (written, read) = unsafe { (&(*mailbox).written, &(*mailbox).read) };
        let start = read.load(Ordering::Relaxed);
        let waiting = written.load(Ordering::Acquire).wrapping_sub(start);
        let size = size.min(BOX.min(waiting as usize));
        let mut done = 0;
        for part in parts(start, size) {
            // SAFETY: these bytes are the receiver's until `read` is behind them; `to` has `size` bytes.
            unsafe {
                let bytes = (&raw const (*mailbox).bytes).cast::<u8>().add(part.start);
                std::ptr::copy_nonoverlapping(bytes, to.add(done), part.len());
            }
            done += part.len();
        }
        if done > 0 {
            // The room is the sender's again.
            fence(Ordering::Release);
            read.store(start + done as u64, Ordering::Release);
            self.ring(from);
        }
        done
    }
}

/// Where bytes lie in a mailbox that is written round and round.
fn parts(start: u64, size: usize) -> [Range<usize>; 2] {
    let start = (start % BOX as u64) as usize;
    let first = size.min(BOX - start);
    [start..start + first, 0..size - first]
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{BOX, Failed, Refusal, Region, Why};

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(30)
    }

    #[test]
    fn a_rank_comes_once_and_all_agree_on_their_number() {
        let file = Region::file().unwrap();
        assert!(Region::is_file(&file));
        let first = Region::join(&file, 3, 1).unwrap();
        assert_eq!(Region::join(&file, 3, 1).unwrap_err(), Refusal::Taken);
        assert_eq!(Region::join(&file, 2, 0).unwrap_err(), Refusal::Count(3));
        let late = first.wait(Instant::now(), |rank| rank == 2).unwrap_err();
        let failed = Failed {
            why: Why::Late,
            rank: 2,
        };
        assert_eq!(late, failed);
        // The first failure counts.
        assert_eq!(first.fail(Why::Aborted, 1), failed);
    }

    #[test]
    fn bytes_go_round_a_mailbox_and_stop_where_it_is_full() {
        let file = Region::file().unwrap();
        let [one, other] = [0, 1].map(|rank| Region::join(&file, 2, rank).unwrap());
        let bytes: Vec<u8> = (0..BOX).map(|at| at as u8 ^ (at >> 8) as u8).collect();
        for round in 0..5 {
            // SAFETY: both vectors have BOX bytes.
            unsafe {
                let sent = one.send(1, bytes.as_ptr(), BOX - 1000 - round);
                assert_eq!(sent, BOX - 1000 - round);
                assert_eq!(one.send(1, bytes.as_ptr().add(sent), BOX), 1000 + round);
                let mut back = vec![0; BOX];
                assert_eq!(other.receive(0, back.as_mut_ptr(), 7), 7);
                assert_eq!(other.receive(0, back.as_mut_ptr().add(7), BOX), BOX - 7);
                assert_eq!(back, bytes);
                assert_eq!(other.receive(0, back.as_mut_ptr(), 1), 0);
            }
        }
    }

    #[test]
    fn who_has_left_fails_those_that_need_him_and_nobody_else() {
        let file = Region::file().unwrap();
        let [one, other] = [0, 1].map(|rank| Region::join(&file, 2, rank).unwrap());
        other.leave();
        one.wait(soon(), |_| false).unwrap();
        assert_eq!(one.failed(), None);
        let failed = one.wait(soon(), |rank| rank == 1).unwrap_err();
        assert_eq!((failed.why, failed.rank), (Why::Ended, 1));
    }
}
