//! Notes who uses the memory of a private pool now: replays enter and leave, and between them the
//! pool's free memory may serve others.
//!
//! A gate is bookkeeping only. It must never call the device, and never wait; its lock is held for some
//! nanoseconds.

use std::sync::Arc;

use outrigger_locks::{Mutex, Rank};

use crate::{PoolId, StreamId};

/// The gate of a pool, for those who replay what was recorded with its memory. Clones are the same
/// gate.
#[derive(Clone, Debug)]
pub struct PoolGate {
    pool: PoolId,
    state: Arc<Mutex<GateState>>,
}

/// The part of a gate that its lock guards.
#[derive(Debug, Default)]
struct GateState {
    /// The pool's free memory may be lent while nobody is inside.
    open: bool,
    inside: u32,
    /// `lent`: memory may be lent now. `has_lent`: memory was lent at some time.
    lent: bool,
    has_lent: bool,
    users: Vec<PoolUser>,
    /// Streams that had borrowed memory and returned it. Later users wait for them.
    borrowers: Vec<StreamId>,
}

/// A stream that works on the pool's memory.
#[derive(Debug)]
struct PoolUser {
    stream: StreamId,
    /// Whether the stream was made to wait for all borrowers.
    ordered: bool,
}

impl PoolGate {
    pub(crate) fn new(pool: PoolId) -> Self {
        Self {
            pool,
            state: Arc::new(Mutex::new(Rank::Gate, GateState::default())),
        }
    }

    pub(crate) fn pool(&self) -> PoolId {
        self.pool
    }

    /// Allows the pool's free memory to be lent while nobody is inside.
    pub fn open(&self) {
        self.state.lock().open = true;
    }

    /// Enters; a stream is noted as one that works on the memory. Returns whether something must be
    /// done first: memory must come home, or borrowers must be waited for.
    pub(crate) fn enter(&self, stream: Option<StreamId>) -> bool {
        let mut state = self.state.lock();
        state.inside += 1;
        let behind = match stream {
            Some(stream) => state.note(stream),
            None => !state.borrowers.is_empty(),
        };
        state.lent || behind
    }

    /// Leaves. All work on the memory was submitted.
    pub fn leave(&self) {
        self.state.lock().inside -= 1;
    }

    /// Notes that a stream works on the memory. Returns whether it must wait for borrowers first.
    pub(crate) fn note(&self, stream: StreamId) -> bool {
        self.state.lock().note(stream)
    }

    /// Notes that memory is lent. Returns false, and notes nothing, if somebody is inside or the pool
    /// lends nothing.
    pub(crate) fn lend(&self) -> bool {
        let mut state = self.state.lock();
        let lends = state.open && state.inside == 0;
        state.lent |= lends;
        state.has_lent |= lends;
        lends
    }

    /// Whether memory may be lent now.
    pub(crate) fn is_lent(&self) -> bool {
        self.state.lock().lent
    }

    /// Whether other arenas may have mapped memory of the pool.
    pub(crate) fn has_lent(&self) -> bool {
        self.state.lock().has_lent
    }

    /// Whether graphs use the pool or are being recorded into it.
    pub(crate) fn is_of_graphs(&self) -> bool {
        let state = self.state.lock();
        state.open || state.inside > 0
    }

    /// Notes that memory is missing.
    pub(crate) fn lacks(&self) {
        self.state.lock().lent = true;
    }

    /// Notes that all memory is home.
    pub(crate) fn all_home(&self) {
        self.state.lock().lent = false;
    }

    /// Whether somebody other than the caller is inside.
    pub(crate) fn is_shared(&self) -> bool {
        self.state.lock().inside > 1
    }

    /// The streams that work on the memory.
    pub(crate) fn users(&self) -> Vec<StreamId> {
        self.state.lock().users().collect()
    }

    /// The streams that had borrowed memory and returned it.
    pub(crate) fn borrowers(&self) -> Vec<StreamId> {
        self.state.lock().borrowers.clone()
    }

    /// Notes that memory comes home from a borrower. Of the users, only those in `ordered` wait for its
    /// work.
    pub(crate) fn comes_from(&self, borrower: StreamId, ordered: &[StreamId]) {
        let mut state = self.state.lock();
        if !state.borrowers.contains(&borrower) {
            state.borrowers.push(borrower);
        }
        for user in &mut state.users {
            user.ordered &= ordered.contains(&user.stream);
        }
    }

    /// Notes that all borrowers have finished. The caller is inside, so there is no new borrower.
    pub(crate) fn no_borrowers(&self) {
        let mut state = self.state.lock();
        state.borrowers.clear();
        for user in &mut state.users {
            user.ordered = true;
        }
    }

    /// Notes that a stream waits for all borrowers.
    pub(crate) fn ordered(&self, stream: StreamId) {
        let mut state = self.state.lock();
        let mut users = state.users.iter_mut();
        if let Some(user) = users.find(|user| user.stream == stream) {
            user.ordered = true;
        }
    }

    /// Notes that these streams have finished their work. No memory comes home meanwhile, and nobody
    /// enters.
    pub(crate) fn finished(&self, streams: &[StreamId]) {
        let mut state = self.state.lock();
        state.borrowers.retain(|stream| !streams.contains(stream));
        state.users.retain(|user| !streams.contains(&user.stream));
    }
}

impl GateState {
    fn users(&self) -> impl Iterator<Item = StreamId> {
        self.users.iter().map(|user| user.stream)
    }

    fn note(&mut self, stream: StreamId) -> bool {
        if let Some(user) = self.users.iter().find(|user| user.stream == stream) {
            return !user.ordered;
        }
        let ordered = self.borrowers.is_empty();
        self.users.push(PoolUser { stream, ordered });
        !ordered
    }
}
