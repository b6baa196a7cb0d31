//! The end of each stream's work on a device, also of streams that were destroyed while they were busy. The allocator
//! asks here whether memory that a stream used may be used by another stream or given back to the driver.

use std::collections::HashMap;
use std::sync::Arc;

use outrigger_device::Tail;
use outrigger_graph::Stream;
use outrigger_locks::{Mutex, Rank, RwLock};

use crate::{Error, Result};

/// The ends of streams of all devices, because streams of one device may use memory of another.
static ALL: RwLock<Vec<Arc<Timelines>>> = RwLock::new(Rank::AllTimelines, Vec::new());

/// The end of each stream of a device, by the id of the stream.
pub(crate) struct Timelines(Mutex<HashMap<u64, StreamEnd>>);

/// The end of a stream's work, as far as it is known.
#[derive(Clone)]
pub(crate) enum StreamEnd {
    /// The stream: it lives, or its handle was destroyed during a call on it, which may still submit work.
    Stream(Arc<Stream>),
    /// The end of the stream's last work: nobody can submit any more.
    Ended(Arc<Tail>),
}

impl StreamEnd {
    /// The end of all work that the stream was given.
    pub(crate) fn fence(&self) -> Result<Arc<Tail>> {
        match self {
            Self::Stream(stream) => stream.tail().map_err(Error::from),
            Self::Ended(tail) => Ok(Arc::clone(tail)),
        }
    }

    /// Waits until all work that the stream was given is over.
    fn wait(&self) -> Result<()> {
        if let Self::Stream(stream) = self
            && matches!(stream.queue().query(), Ok(true))
        {
            return Ok(());
        }
        Ok(self.fence()?.wait()?)
    }
}

impl Timelines {
    /// The map of a new device, listed among those of all devices.
    pub(crate) fn of_new_device() -> Arc<Self> {
        let timelines = Arc::new(Self(Mutex::new(Rank::Timelines, HashMap::new())));
        ALL.write().push(Arc::clone(&timelines));
        timelines
    }

    pub(crate) fn add(&self, stream: &Arc<Stream>) {
        let end = StreamEnd::Stream(Arc::clone(stream));
        self.0.lock().insert(stream.id(), end);
    }

    /// Replaces each stream that was destroyed and is in no call by the end of its last work. Forgets those that are
    /// over.
    pub(crate) fn settle(&self) {
        let (mut unused, mut ended) = (Vec::new(), Vec::new());
        for (&id, end) in self.0.lock().iter() {
            match end {
                // The map has the last reference. New ones come only from `find` and `live`, whose callers submit no
                // work of a host.
                StreamEnd::Stream(stream) if Arc::strong_count(stream) == 1 => {
                    unused.push(Arc::clone(stream));
                }
                StreamEnd::Stream(_) => {}
                StreamEnd::Ended(tail) => ended.push((id, Arc::clone(tail))),
            }
        }
        for stream in unused {
            // If the driver makes no event, the stream stays, and the next call tries again.
            let Ok(tail) = stream.tail() else { continue };
            let replaced = self.0.lock().insert(stream.id(), StreamEnd::Ended(tail));
            // The map is not locked here: dropping the stream destroys its queue, which calls the driver.
            drop(replaced);
        }
        ended.retain(|(_, tail)| tail.is_over());
        if !ended.is_empty() {
            let mut timelines = self.0.lock();
            ended.iter().for_each(|(id, _)| drop(timelines.remove(id)));
        }
    }

    /// All streams that work may still be submitted to.
    pub(crate) fn live(&self) -> Vec<Arc<Stream>> {
        let timelines = self.0.lock();
        let streams = timelines.values().filter_map(|one| match one {
            StreamEnd::Stream(stream) => Some(Arc::clone(stream)),
            StreamEnd::Ended(_) => None,
        });
        streams.collect()
    }

    /// The end of a stream's work; `None` if its work is known to have finished, or it is of another device.
    pub(crate) fn find(&self, id: u64) -> Option<StreamEnd> {
        self.0.lock().get(&id).cloned()
    }

    /// The end of all work that a stream of the device was given; `None` if that work is known to have finished.
    pub(crate) fn fence(&self, id: u64) -> Result<Option<Arc<Tail>>> {
        self.find(id).map(|one| one.fence()).transpose()
    }

    /// The ends of all work that all streams of the device were given, also streams that were destroyed.
    pub(crate) fn fences(&self) -> Result<Vec<Arc<Tail>>> {
        self.all().iter().map(StreamEnd::fence).collect()
    }

    fn all(&self) -> Vec<StreamEnd> {
        self.0.lock().values().cloned().collect()
    }

    /// Waits until all work is over that all streams of the device were given: also of streams that were destroyed, and
    /// what streams that capture were given before. A failure of that work is reported to whoever waits for its stream.
    ///
    /// # Errors
    /// Why the work of a stream is not known to be over, after all were waited for. Memory that it may use stays.
    pub(crate) fn wait(&self) -> Result<()> {
        let all = self.all();
        let mut outcome = Ok(());
        for one in &all {
            outcome = outcome.and(one.wait());
        }
        outcome
    }
}

/// The end of the work of a stream of any device; `None` if its work is known to have finished.
pub(crate) fn find(id: u64) -> Option<StreamEnd> {
    ALL.read().iter().find_map(|one| one.find(id))
}

/// Does what [`Timelines::wait`] does for all devices, because streams of one device may use memory of another.
pub(crate) fn wait_for_all() -> Result<()> {
    let all = ALL.read().clone();
    let mut outcome = Ok(());
    for one in &all {
        outcome = outcome.and(one.wait());
    }
    outcome
}
