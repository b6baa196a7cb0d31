//! The order of all locks.

/// Declares the ranks, and the list that a set of ranks is read with.
macro_rules! ranks {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// The place of a lock in the order of all. A thread that holds a lock takes only those that stand below it in
        /// this list.
        ///
        /// The list is in the order of nesting: the lock that is held longest stands first. A rank has the name of
        /// what its lock guards.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Rank {
            $($(#[doc = $doc])* $name,)*
        }

        #[cfg(debug_assertions)]
        const ORDER: &[Rank] = &[$(Rank::$name),*];
    };
}

ranks! {
    // Turns: also held over calls of the driver that may wait.
    /// Drivers are loaded.
    Loading,
    /// Replays, bindings and updates of one executable graph.
    ExecTurn,
    /// Variants of a kernel are measured, in another process.
    Tuning,
    /// An allocator takes memory from its device, or gives it back.
    Growth,
    /// A queue is given a command and the events that time it.
    ProfiledQueue,

    // Locks: held for as long as it takes to read or change what they guard.
    /// The drivers that are loaded if no others are named.
    DefaultDrivers,
    /// The drivers that were tried and taken when drivers were loaded.
    LoadReport,
    /// Variants that were chosen.
    TunedChoices,
    /// Modules that are loaded or being compiled.
    Modules,
    /// The jobs of threads that compile.
    CompileThreads,
    /// Whether a module has been compiled.
    Compilation,
    /// The figures of an executable graph that can be asked for at any time.
    Exec,
    /// The nodes that a capture has recorded.
    Capture,
    /// The nodes of a graph.
    Graph,
    /// A stream's place in a capture.
    CapturePlace,
    /// The nodes that come before the next node of each lane of a capture.
    CapturePasts,
    /// The captures of a device.
    Captures,
    /// An event's point in a capture.
    CapturedMark,
    /// Whether a pool sleeps, and what it has held.
    PoolSleep,
    /// The handles of pools.
    PoolHandles,
    /// Memory and functions that a graph keeps.
    Resources,
    /// The observers of memory and of fallbacks.
    Observers,
    /// Names of kernels.
    KernelNames,
    /// Operators that a host has registered.
    Registrations,
    /// The number of calls of an observer that are running.
    ObserverCalls,
    /// The timelines of all devices.
    AllTimelines,
    /// Streams of a device, where their work ends.
    Timelines,
    /// The caches that count for the process.
    Caches,
    /// Streams of a device's pool.
    PoolStreams,
    /// Objects that are kept until work has finished.
    Retired,
    /// The driver's answers about operators.
    DriverOperators,
    /// Operators of the driver that nobody can launch any more.
    EndedOperators,
    /// Operators that ran on the CPU.
    Fallbacks,
    /// Numbers of threads that have ended.
    Shards,
    /// Names of operators of frameworks.
    OperatorNames,
    /// A generator's state.
    Generator,
    /// Events between two lives.
    FreeEvents,
    /// The first operator that failed on a stream.
    FailedOperator,
    /// The reasons why host kernels failed.
    Reasons,
    /// The first node that failed in a replay.
    FailedNode,
    /// Memory of other processes.
    Imports,
    /// Bytes that count for the process.
    HeldBytes,
    /// Pinned pages of the process.
    PinnedPages,
    /// An allocator's figures.
    Ledger,
    /// The streams and pools that the arenas of an allocator serve.
    ArenaNames,
    /// An arena's blocks.
    Arena,
    /// Addresses and the arenas that they belong to.
    Routes,
    /// An allocator's private pools.
    Pools,
    /// The users of a pool's memory.
    Gate,
    /// An allocator's pending frees.
    Pending,
    /// The histories of all memory.
    Histories,
    /// The record of an allocator's life.
    History,
    /// The names of labels.
    Labels,
    /// The queues of the profile that runs.
    ProfiledQueues,
    /// Free slots of a table of handles.
    FreeSlots,
    /// The point of an event that was recorded on a queue that holds.
    HeldEvent,
    /// The launches of a driver's graph that queues hold.
    HeldGraph,
    /// The last call of a communicator that a queue holds.
    HeldCollective,
    /// What a queue holds.
    HeldWork,
    /// The threads that run what queues hold.
    HeldThreads,
}

#[cfg(debug_assertions)]
impl Rank {
    /// Whether it may be held over a call of the driver.
    pub(crate) fn is_turn(self) -> bool {
        self <= Self::ProfiledQueue
    }

    /// The bit of this rank in a set of ranks.
    pub(crate) fn bit(self) -> u64 {
        const {
            assert!(
                ORDER.len() <= u64::BITS as usize,
                "a set of ranks is 64 bits"
            )
        };
        1 << self as u8
    }

    /// The one of a set that comes last.
    pub(crate) fn last_of(set: u64) -> Option<Self> {
        ORDER.get(set.checked_ilog2()? as usize).copied()
    }
}
