//! What the calls of a communicator do, once it is their turn. Ranks meet: each shows a part of its bytes
//! in the memory that they share, all meet, and each takes what it needs. The room is used in turns of
//! two, so that one meeting for each part is enough: who comes to a meeting has finished with the part before.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Instant;

use super::comm::{Comm, Label, Turn};
use super::reduce::{Reduce, Reduction};
use super::region::{Failed, Region, STAGE, Why};
use crate::sys;

/// A call of a rank, as a command of a queue.
pub(in super::super) struct Call {
    pub(super) comm: Arc<Comm>,
    /// Of this rank's calls, from 0.
    pub(super) number: u64,
    pub(super) work: Work,
}

/// Elements that are combined.
#[derive(Clone, Copy)]
pub(super) struct Elements {
    pub(super) send: u64,
    pub(super) receive: u64,
    /// How many, for each rank.
    pub(super) count: u64,
    /// Bytes of one.
    pub(super) size: u64,
    pub(super) dtype: u32,
    pub(super) reduction: Reduction,
    pub(super) reduce: Reduce,
}

/// What a call does. Addresses are host pointers: the bias was added when it was submitted.
pub(super) enum Work {
    AllReduce(Elements),
    Reduce(Elements, u32),
    ReduceScatter(Elements),
    Broadcast { address: u64, size: u64, root: u32 },
    AllGather { send: u64, receive: u64, size: u64 },
    Exchange(Box<[sys::otr_transfer]>),
}

impl Work {
    pub(super) fn label(&self) -> Label {
        match self {
            Self::AllReduce(_) => c"all_reduce",
            Self::Reduce(..) => c"reduce",
            Self::ReduceScatter(_) => c"reduce_scatter",
            Self::Broadcast { .. } => c"broadcast",
            Self::AllGather { .. } => c"all_gather",
            Self::Exchange(_) => c"exchange",
        }
        .as_ptr()
    }

    /// What all ranks have to say alike.
    fn signature(&self) -> [u64; 5] {
        let combined = |kind, one: &Elements, root| {
            let how = one.reduction as u64;
            [kind, one.count, one.dtype.into(), how, root]
        };
        match self {
            Self::AllReduce(one) => combined(1, one, 0),
            Self::Reduce(one, root) => combined(2, one, (*root).into()),
            Self::ReduceScatter(one) => combined(3, one, 0),
            Self::Broadcast { size, root, .. } => [4, *size, 0, 0, (*root).into()],
            Self::AllGather { size, .. } => [5, *size, 0, 0, 0],
            Self::Exchange(_) => [6, 0, 0, 0, 0],
        }
    }

    /// Does it together with the other ranks.
    ///
    /// # Safety
    /// It is the rank's turn, and the memory that the work names is live (R12) and of the sizes that it
    /// says.
    pub(super) unsafe fn run(
        &self,
        region: &Region,
        turn: &mut Turn,
        until: Instant,
    ) -> Result<(), Failed> {
        if let Self::Exchange(transfers) = self {
            // SAFETY: this function's contract.
            return unsafe { exchange(region, transfers, until) };
        }
        turn.shared += 1;
        let mut what = turn.shared;
        for word in self.signature() {
            // The constant of FNV-1a: equal calls give equal numbers, and others hardly ever.
            what = (what ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
        }
        let mut ranks = Ranks {
            region,
            turn,
            until,
            what: Some(what),
        };
        // SAFETY: this function's contract.
        unsafe {
            match *self {
                Self::AllReduce(ref one) => ranks.all_reduce(one),
                Self::Reduce(ref one, root) => ranks.reduce(one, root),
                Self::ReduceScatter(ref one) => ranks.reduce_scatter(one),
                Self::Broadcast {
                    address,
                    size,
                    root,
                } => ranks.broadcast(address as *mut u8, size as usize, root),
                Self::AllGather {
                    send,
                    receive,
                    size,
                } => ranks.all_gather(send as *const u8, receive as *mut u8, size as usize),
                Self::Exchange(_) => Ok(()),
            }
        }
    }
}

/// A call that all ranks make.
struct Ranks<'a> {
    region: &'a Region,
    turn: &'a mut Turn,
    until: Instant,
    /// What the call is, until the first meeting has seen that it is the same for all.
    what: Option<u64>,
}

/// The parts of something that has so many elements, with the first one of each and how many it has.
fn parts(count: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..count)
        .step_by(most.max(1))
        .map(move |start| (start, most.min(count - start)))
}

impl Ranks<'_> {
    /// Where a rank shows its bytes in this round.
    fn stage(&self, rank: u32) -> *mut u8 {
        self.region.stage(rank, self.turn.rounds)
    }

    fn own_stage(&self) -> *mut u8 {
        self.stage(self.region.rank)
    }

    fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let own = self.region.rank;
        (0..self.region.ranks).filter(move |rank| *rank != own)
    }

    /// The bytes of all ranks from an offset on.
    fn sources(&self, offset: usize) -> Vec<*const u8> {
        let ranks = 0..self.region.ranks;
        // SAFETY: the offset lies within the room that each rank has.
        ranks
            .map(|rank| unsafe { self.stage(rank).add(offset) }.cast_const())
            .collect()
    }

    fn meet(&mut self) -> Result<(), Failed> {
        self.turn.meetings += 1;
        let meeting = self.turn.meetings;
        let Some(what) = self.what.take() else {
            return self.region.meet(meeting, self.until);
        };
        self.region.announce(meeting, what);
        self.region.meet(meeting, self.until)?;
        match self.region.stranger(meeting, what) {
            None => Ok(()),
            Some(rank) => Err(self.region.fail(Why::Differs, rank)),
        }
    }

    /// # Safety
    /// As of [`Work::run`].
    unsafe fn all_reduce(&mut self, one: &Elements) -> Result<(), Failed> {
        let size = one.size as usize;
        let ranks = self.region.ranks as usize;
        for (start, count) in parts(one.count as usize, STAGE / size) {
            // Each rank combines a share of the part, and all take all shares.
            let share = |rank: usize| {
                let [from, to] = [rank, rank + 1].map(|rank| count * rank / ranks);
                (from * size, to - from)
            };
            let (offset, length) = share(self.region.rank as usize);
            // SAFETY: `count` elements from `start` on are the call's, and the stage has room for them. This
            // rank alone writes its share of its stage between the two meetings, and reads that of others.
            unsafe {
                copy(
                    one.send as *const u8,
                    start * size,
                    self.own_stage(),
                    count * size,
                );
                self.meet()?;
                let own = self.own_stage().add(offset);
                (one.reduce)(one.reduction, &self.sources(offset), own, length);
                self.meet()?;
                for rank in 0..ranks {
                    let (offset, length) = share(rank);
                    let to = (one.receive as *mut u8).add(start * size + offset);
                    copy(self.stage(rank as u32), offset, to, length * size);
                }
            }
            self.turn.rounds += 1;
        }
        Ok(())
    }

    /// # Safety
    /// As of [`Work::run`].
    unsafe fn reduce(&mut self, one: &Elements, root: u32) -> Result<(), Failed> {
        let size = one.size as usize;
        for (start, count) in parts(one.count as usize, STAGE / size) {
            // SAFETY: `count` elements from `start` on are the call's, and the stage has room for them.
            unsafe {
                copy(
                    one.send as *const u8,
                    start * size,
                    self.own_stage(),
                    count * size,
                );
                self.meet()?;
                if self.region.rank == root {
                    let to = (one.receive as *mut u8).add(start * size);
                    (one.reduce)(one.reduction, &self.sources(0), to, count);
                }
            }
            self.turn.rounds += 1;
        }
        Ok(())
    }

    /// # Safety
    /// As of [`Work::run`].
    unsafe fn reduce_scatter(&mut self, one: &Elements) -> Result<(), Failed> {
        let size = one.size as usize;
        let (ranks, whole) = (self.region.ranks as usize, one.count as usize);
        for (start, count) in parts(whole, STAGE / size / ranks) {
            // SAFETY: `count` elements from `start` on in each rank's part of `send` are the call's, and the
            // stage has room for them.
            unsafe {
                for rank in 0..ranks {
                    let to = self.own_stage().add(rank * count * size);
                    let from = (rank * whole + start) * size;
                    copy(one.send as *const u8, from, to, count * size);
                }
                self.meet()?;
                let sources = self.sources(self.region.rank as usize * count * size);
                let to = (one.receive as *mut u8).add(start * size);
                (one.reduce)(one.reduction, &sources, to, count);
            }
            self.turn.rounds += 1;
        }
        Ok(())
    }

    /// # Safety
    /// As of [`Work::run`].
    unsafe fn broadcast(&mut self, bytes: *mut u8, size: usize, root: u32) -> Result<(), Failed> {
        for (start, length) in parts(size, STAGE) {
            // SAFETY: `length` bytes from `start` on are the call's, and the stage has room for them.
            unsafe {
                if self.region.rank == root {
                    copy(bytes, start, self.own_stage(), length);
                }
                self.meet()?;
                if self.region.rank != root {
                    copy(self.stage(root), 0, bytes.add(start), length);
                }
            }
            self.turn.rounds += 1;
        }
        Ok(())
    }

    /// # Safety
    /// As of [`Work::run`].
    unsafe fn all_gather(
        &mut self,
        send: *const u8,
        receive: *mut u8,
        size: usize,
    ) -> Result<(), Failed> {
        // SAFETY: `receive` has `size` bytes for each rank; `send` are `size` bytes, which are apart from
        // these or this rank's own place (R50).
        unsafe {
            let own = receive.add(self.region.rank as usize * size);
            if !std::ptr::eq(own, send) {
                copy(send, 0, own, size);
            }
        }
        for (start, length) in parts(size, STAGE) {
            // SAFETY: as above, and the stage has room for a part.
            unsafe {
                copy(send, start, self.own_stage(), length);
                self.meet()?;
                for rank in self.others() {
                    let to = receive.add(rank as usize * size + start);
                    copy(self.stage(rank), 0, to, length);
                }
            }
            self.turn.rounds += 1;
        }
        Ok(())
    }
}

/// # Safety
/// `size` bytes from `from` plus `offset` on are readable, and `to` is writable, apart from them.
unsafe fn copy(from: *const u8, offset: usize, to: *mut u8, size: usize) {
    // SAFETY: this function's contract.
    unsafe { std::ptr::copy_nonoverlapping(from.add(offset), to, size) };
}

// ---- Exchanges -----------------------------------------------------------------------------------

/// How far a transfer is. In a mailbox its size stands in front of its bytes.
struct Progress {
    done: usize,
    head: [u8; HEAD],
}

/// Bytes of a size.
const HEAD: usize = size_of::<u64>();

/// # Safety
/// As of [`Work::run`].
unsafe fn exchange(
    region: &Region,
    transfers: &[sys::otr_transfer],
    until: Instant,
) -> Result<(), Failed> {
    let mut all: Vec<(sys::otr_transfer, Progress)> = transfers
        .iter()
        .map(|one| {
            (
                *one,
                Progress {
                    done: 0,
                    head: [0; HEAD],
                },
            )
        })
        .collect();
    loop {
        let heard = region.heard();
        let mut moved = false;
        for at in 0..all.len() {
            let (earlier, rest) = all.split_at_mut(at);
            let (one, progress) = &mut rest[0];
            // Between two ranks, one behind the other.
            let before = earlier.iter().any(|(other, progress)| {
                (other.peer, other.direction) == (one.peer, one.direction) && progress.open(other)
            });
            if before || !progress.open(one) {
                continue;
            }
            let done = progress.done;
            // SAFETY: the transfer's memory is live and as large as it says.
            unsafe { progress.step(region, one)? };
            moved |= progress.done > done;
        }
        let open = || all.iter().filter(|(one, progress)| progress.open(one));
        if open().next().is_none() {
            return Ok(());
        }
        if !moved {
            let missing = |rank: u32| open().any(|(one, _)| one.peer == rank);
            region.rest(heard, until, &missing)?;
        }
    }
}

impl Progress {
    fn open(&self, one: &sys::otr_transfer) -> bool {
        self.done < HEAD + one.size as usize
    }

    /// Moves what can be moved now.
    ///
    /// # Safety
    /// The transfer's memory is live and as large as it says.
    unsafe fn step(&mut self, region: &Region, one: &sys::otr_transfer) -> Result<(), Failed> {
        let sends = one.direction == sys::OTR_TRANSFER_SEND;
        if self.done < HEAD {
            if sends {
                self.head = one.size.to_ne_bytes();
            }
            let place = self.head[self.done..].as_mut_ptr();
            // SAFETY: the rest of the head.
            self.done += unsafe { pass(region, one, place, HEAD - self.done) };
            if self.done < HEAD {
                return Ok(());
            }
            if u64::from_ne_bytes(self.head) != one.size {
                return Err(region.fail(Why::Differs, one.peer));
            }
        }
        let at = self.done - HEAD;
        let place = (one.address as *mut c_void).cast::<u8>().wrapping_add(at);
        // SAFETY: the rest of the transfer's memory.
        self.done += unsafe { pass(region, one, place, one.size as usize - at) };
        Ok(())
    }
}

/// Sends from a place, or receives there.
///
/// # Safety
/// `size` bytes are there, to be written if they are received.
unsafe fn pass(region: &Region, one: &sys::otr_transfer, place: *mut u8, size: usize) -> usize {
    // SAFETY: this function's contract; R49: the calls of a rank come one after the other.
    unsafe {
        if one.direction == sys::OTR_TRANSFER_SEND {
            region.send(one.peer, place, size)
        } else {
            region.receive(one.peer, place, size)
        }
    }
}
