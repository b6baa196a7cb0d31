//! Where each stream of a device stands, also those that were destroyed while they were busy: the allocator asks when
//! memory that a stream used may be used by another one, or be given back.

use std::collections::HashMap;
use std::sync::Arc;

use outrigger_device::Event;
use outrigger_graph::Stream;
use outrigger_locks::{Mutex, Rank, RwLock};

use crate::{Error, Result};

/// The timelines of all devices: memory of one may be used by streams of another.
static ALL: RwLock<Vec<Arc<Timelines>>> = RwLock::new(Rank::AllTimelines, Vec::new());

/// The timelines of a device's streams, by the id of the stream.
pub(crate) struct Timelines(Mutex<HashMap<u64, Timeline>>);

/// Where a stream stands.
#[derive(Clone)]
pub(crate) enum Timeline {
    /// Also while its handle is destroyed, but a call on it is not over: that call may submit work yet.
    Stream(Arc<Stream>),
    /// Nobody can submit any more.
    Ended(Arc<Event>),
}

impl Timeline {
    /// An event after all work that the stream has been given.
    pub(crate) fn fence(&self) -> Result<Arc<Event>> {
        match self {
            Self::Stream(stream) => stream.tail().map_err(Error::from),
            Self::Ended(event) => Ok(Arc::clone(event)),
        }
    }
}

impl Timelines {
    /// Those of a new device.
    pub(crate) fn of_new_device() -> Arc<Self> {
        let timelines = Arc::new(Self(Mutex::new(Rank::Timelines, HashMap::new())));
        ALL.write().push(Arc::clone(&timelines));
        timelines
    }

    pub(crate) fn add(&self, stream: &Arc<Stream>) {
        let timeline = Timeline::Stream(Arc::clone(stream));
        self.0.lock().insert(stream.id(), timeline);
    }

    /// Keeps the end of their work in place of streams that were destroyed and that nobody uses any more, and
    /// forgets those ends that have passed.
    pub(crate) fn settle(&self) {
        let (mut unused, mut ended) = (Vec::new(), Vec::new());
        for (&id, timeline) in self.0.lock().iter() {
            match timeline {
                // The reference here is the last: others come to be only by `find` and `live`, whose users submit no
                // work of a host.
                Timeline::Stream(stream) if Arc::strong_count(stream) == 1 => {
                    unused.push(Arc::clone(stream));
                }
                Timeline::Stream(_) => {}
                Timeline::Ended(event) => ended.push((id, Arc::clone(event))),
            }
        }
        for stream in unused {
            // Where the driver gives no event for its end, it stays, and the next call tries again.
            let Ok(tail) = stream.tail() else { continue };
            let replaced = self.0.lock().insert(stream.id(), Timeline::Ended(tail));
            // The queue goes to the driver without the lock.
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

    /// Where a stream stands; `None` if its work is known to be done, or it is of another device.
    pub(crate) fn find(&self, id: u64) -> Option<Timeline> {
        self.0.lock().get(&id).cloned()
    }

    /// An event after all work that a stream of the device has been given; `None` if that work is known to be done.
    pub(crate) fn fence(&self, id: u64) -> Result<Option<Arc<Event>>> {
        self.find(id).map(|one| one.fence()).transpose()
    }

    /// Events after all work that all streams have been given, also those that were destroyed.
    pub(crate) fn fences(&self) -> Result<Vec<Arc<Event>>> {
        let all: Vec<_> = self.0.lock().values().cloned().collect();
        all.iter().map(Timeline::fence).collect()
    }
}

/// Where a stream of whichever device stands; `None` if its work is known to be done.
pub(crate) fn find(id: u64) -> Option<Timeline> {
    let all = ALL.read().clone();
    all.iter().find_map(|one| one.find(id))
}

/// Events after all work that all streams of all devices have been given.
pub(crate) fn all_fences() -> Result<Vec<Arc<Event>>> {
    let all = ALL.read().clone();
    let mut fences = Vec::new();
    for one in &all {
        fences.extend(one.fences()?);
    }
    Ok(fences)
}
