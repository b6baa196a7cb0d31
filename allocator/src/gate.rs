//! Who uses the memory of a private pool at which moment: replays come and go, and between them what is free
//! there may serve others.
//!
//! This is bookkeeping alone: it must never call the device nor wait, and its lock is held for some
//! nanoseconds.

use std::sync::Arc;

use outrigger_locks::{Mutex, Rank};

use crate::{PoolId, StreamId};

/// A pool, as those know it who replay what was recorded with its memory. Clones are the same gate.
#[derive(Clone, Debug)]
pub struct PoolGate {
    pool: PoolId,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// Its free memory may be lent while nobody is inside.
    open: bool,
    inside: u32,
    /// Memory may be lent now, or was once.
    lent: bool,
    has_lent: bool,
    users: Vec<User>,
    /// Streams that memory has come home from, which later users wait for.
    borrowers: Vec<StreamId>,
}

/// A stream that works on the pool's memory.
#[derive(Debug)]
struct User {
    stream: StreamId,
    /// Behind all borrowers.
    ordered: bool,
}

impl PoolGate {
    pub(crate) fn new(pool: PoolId) -> Self {
        Self {
            pool,
            state: Arc::new(Mutex::new(Rank::Gate, State::default())),
        }
    }

    pub(crate) fn pool(&self) -> PoolId {
        self.pool
    }

    /// From now on what is free in the pool may be lent while nobody is inside.
    pub fn open(&self) {
        self.state.lock().open = true;
    }

    /// Goes inside; with a stream, as one that works on the memory. Whether something must be done before
    /// that: memory must come home, or borrowers be waited for.
    pub(crate) fn enter(&self, stream: Option<StreamId>) -> bool {
        let mut state = self.state.lock();
        state.inside += 1;
        let behind = match stream {
            Some(stream) => state.note(stream),
            None => !state.borrowers.is_empty(),
        };
        state.lent || behind
    }

    /// Leaves: whatever works on the memory was submitted.
    pub fn leave(&self) {
        self.state.lock().inside -= 1;
    }

    /// Notes that a stream works on the memory. Whether it must wait for borrowers first.
    pub(crate) fn note(&self, stream: StreamId) -> bool {
        self.state.lock().note(stream)
    }

    /// Lends from now on, unless somebody is inside or the pool lends nothing.
    pub(crate) fn lend(&self) -> bool {
        let mut state = self.state.lock();
        let lends = state.open && state.inside == 0;
        state.lent |= lends;
        state.has_lent |= lends;
        lends
    }

    /// Whether it may be that memory is lent.
    pub(crate) fn is_lent(&self) -> bool {
        self.state.lock().lent
    }

    /// Whether others may have mapped memory of it.
    pub(crate) fn has_lent(&self) -> bool {
        self.state.lock().has_lent
    }

    /// Whether graphs use it or are being recorded with it.
    pub(crate) fn is_of_graphs(&self) -> bool {
        let state = self.state.lock();
        state.open || state.inside > 0
    }

    /// Memory is missing.
    pub(crate) fn lacks(&self) {
        self.state.lock().lent = true;
    }

    /// All memory is home.
    pub(crate) fn all_home(&self) {
        self.state.lock().lent = false;
    }

    /// Whether somebody is inside beside the one who asks.
    pub(crate) fn is_shared(&self) -> bool {
        self.state.lock().inside > 1
    }

    /// The streams that work on the memory.
    pub(crate) fn users(&self) -> Vec<StreamId> {
        self.state.lock().users().collect()
    }

    /// The streams that memory has come home from.
    pub(crate) fn borrowers(&self) -> Vec<StreamId> {
        self.state.lock().borrowers.clone()
    }

    /// Memory comes home from this stream, behind whose work only these users are.
    pub(crate) fn comes_from(&self, borrower: StreamId, ordered: &[StreamId]) {
        let mut state = self.state.lock();
        if !state.borrowers.contains(&borrower) {
            state.borrowers.push(borrower);
        }
        for user in &mut state.users {
            user.ordered &= ordered.contains(&user.stream);
        }
    }

    /// All borrowers have finished; whoever says so is inside, so that none came since.
    pub(crate) fn no_borrowers(&self) {
        let mut state = self.state.lock();
        state.borrowers.clear();
        for user in &mut state.users {
            user.ordered = true;
        }
    }

    /// A stream waits for all borrowers.
    pub(crate) fn ordered(&self, stream: StreamId) {
        let mut state = self.state.lock();
        let mut users = state.users.iter_mut();
        if let Some(user) = users.find(|user| user.stream == stream) {
            user.ordered = true;
        }
    }

    /// These streams have finished what they were given; nothing comes home meanwhile, and nobody goes
    /// inside.
    pub(crate) fn finished(&self, streams: &[StreamId]) {
        let mut state = self.state.lock();
        state.borrowers.retain(|stream| !streams.contains(stream));
        state.users.retain(|user| !streams.contains(&user.stream));
    }
}

impl State {
    fn users(&self) -> impl Iterator<Item = StreamId> {
        self.users.iter().map(|user| user.stream)
    }

    fn note(&mut self, stream: StreamId) -> bool {
        if let Some(user) = self.users.iter().find(|user| user.stream == stream) {
            return !user.ordered;
        }
        let ordered = self.borrowers.is_empty();
        self.users.push(User { stream, ordered });
        !ordered
    }
}
