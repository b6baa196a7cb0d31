//! The end of each stream's work on a device, also of streams that were destroyed while they were busy. The allocator
//! asks here whether memory that a stream used may be used by another stream or given back to the driver.

use std::collections::HashMap;
use std::sync::Arc;

use outrigger_device::Event;
use outrigger_graph::Stream;
use outrigger_locks::{Mutex, Rank, RwLock};

use crate::{Error, Result};

/// The timelines of all devices, because streams of one device may use memory of another.
static ALL: RwLock<Vec<Arc<Timelines>>> = RwLock::new(Rank::AllTimelines, Vec::new());

/// The timelines of a device's streams, by the id of the stream.
pub(crate) struct Timelines(Mutex<HashMap<u64, Timeline>>);

/// How the end of a stream's work is known.
#[derive(Clone)]
pub(crate) enum Timeline {
    /// By the stream: it lives, or its handle was destroyed during a call on it, which may still submit work.
    Stream(Arc<Stream>),
    /// By an event after its last work: nobody can submit any more.
    Ended(Arc<Event>),
}

impl Timeline {
    /// An event after all work that the stream was given.
    pub(crate) fn fence(&self) -> Result<Arc<Event>> {
        match self {
            Self::Stream(stream) => stream.tail().map_err(Error::from),
            Self::Ended(event) => Ok(Arc::clone(event)),
        }
    }
}

impl Timelines {
    /// The timelines of a new device, listed among those of all devices.
    pub(crate) fn of_new_device() -> Arc<Self> {
        let timelines = Arc::new(Self(Mutex::new(Rank::Timelines, HashMap::new())));
        ALL.write().push(Arc::clone(&timelines));
        timelines
    }

    pub(crate) fn add(&self, stream: &Arc<Stream>) {
        let timeline = Timeline::Stream(Arc::clone(stream));
        self.0.lock().insert(stream.id(), timeline);
    }

    /// Replaces each stream that was destroyed and is in no call by an event after its last work. Forgets the events
    /// that have passed.
    pub(crate) fn settle(&self) {
        let (mut unused, mut ended) = (Vec::new(), Vec::new());
        for (&id, timeline) in self.0.lock().iter() {
            match timeline {
                // This is the last reference. New ones come only from `find` and `live`, whose callers submit no work
                // of a host.
                Timeline::Stream(stream) if Arc::strong_count(stream) == 1 => {
                    unused.push(Arc::clone(stream));
                }
                Timeline::Stream(_) => {}
                Timeline::Ended(event) => ended.push((id, Arc::clone(event))),
            }
        }
        for stream in unused {
            // If the driver makes no event, the stream stays, and the next call tries again.
            let Ok(tail) = stream.tail() else { continue };
            let replaced = self.0.lock().insert(stream.id(), Timeline::Ended(tail));
            // Not under the lock: dropping the stream destroys its queue, which calls the driver.
            drop(replaced);
        }
        ended.retain(|(_, event)| event.is_over());
        if !ended.is_empty() {
            let mut timelines = self.0.lock();
            ended.iter().for_each(|(id, _)| drop(timelines.remove(id)));
        }
    }

    /// All streams that work may still be submitted to.
    pub(crate) fn live(&self) -> Vec<Arc<Stream>> {
        let timelines = self.0.lock();
        let streams = timelines.values().filter_map(|one| match one {
            Timeline::Stream(stream) => Some(Arc::clone(stream)),
            Timeline::Ended(_) => None,
        });
        streams.collect()
    }

    /// The timeline of a stream; `None` if its work is known to have finished, or it is of another device.
    pub(crate) fn find(&self, id: u64) -> Option<Timeline> {
        self.0.lock().get(&id).cloned()
    }

    /// An event after all work that a stream of the device was given; `None` if that work is known to have finished.
    pub(crate) fn fence(&self, id: u64) -> Result<Option<Arc<Event>>> {
        self.find(id).map(|one| one.fence()).transpose()
    }

    /// Events after all work that all streams of the device were given, also streams that were destroyed.
    pub(crate) fn fences(&self) -> Result<Vec<Arc<Event>>> {
        let all: Vec<_> = self.0.lock().values().cloned().collect();
        all.iter().map(Timeline::fence).collect()
    }
}

/// The timeline of a stream of any device; `None` if its work is known to have finished.
pub(crate) fn find(id: u64) -> Option<Timeline> {
    ALL.read().iter().find_map(|one| one.find(id))
}

/// Events after all work that all streams of all devices were given.
pub(crate) fn all_fences() -> Result<Vec<Arc<Event>>> {
    let all = ALL.read().clone();
    let mut fences = Vec::new();
    for one in &all {
        fences.extend(one.fences()?);
    }
    Ok(fences)
}
