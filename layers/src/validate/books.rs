//! The state of a driver as `validate` knows it: which memory, queues and events are alive, which work
//! uses what, and how much of the work is known to have finished. This module makes no calls and judges
//! nothing.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;

use super::events::{Event, Recorded, State};

/// Host calls of one queue, by their numbers in it, from 0.
#[derive(Debug, Default)]
pub(super) struct CallBook {
    /// So many were submitted.
    pub(super) submitted: u64,
    /// All before this one have run.
    pub(super) ran: u64,
    /// The first failure that no synchronize has taken: of which host call, and its code.
    pub(super) failure: Option<(u64, i32)>,
    /// Synchronizes that run. One of them takes the failure, at a moment that nobody sees.
    pub(super) taking: u32,
    /// So many synchronizes have ended.
    pub(super) taken: u64,
    /// Host calls of other queues that the next host call comes after.
    pub(super) needs: Vec<Point>,
}

/// A point in the host calls of a queue: behind so many.
#[derive(Clone, Debug)]
pub(super) struct Point {
    pub(super) book: Arc<Mutex<CallBook>>,
    pub(super) calls: u64,
}

impl CallBook {
    /// The failure that is certain: none while more than `own` synchronizes run.
    pub(super) fn failure_beside(&self, own: u32) -> Option<(u64, i32)> {
        self.failure.filter(|_| self.taking <= own)
    }

    /// Lets later host calls come after a point.
    pub(super) fn need(&mut self, point: &Point) {
        let same = |other: &&mut Point| Arc::ptr_eq(&other.book, &point.book);
        match self.needs.iter_mut().find(same) {
            Some(other) => other.calls = other.calls.max(point.calls),
            None => self.needs.push(point.clone()),
        }
    }
}

#[derive(Debug)]
pub(super) struct Queue {
    pub(super) number: u32,
    pub(super) submitted: u64,
    /// Work up to here is known to have finished.
    pub(super) finished: u64,
    /// The work that the queue's next work comes after, by waits for events.
    pub(super) behind: Behind,
    /// The number of the recording that it began or has joined.
    pub(super) recording: Option<u32>,
    pub(super) calls: Arc<Mutex<CallBook>>,
    /// Held while work is passed to the driver, so that our order equals the driver's.
    pub(super) order: Arc<Mutex<()>>,
}

/// Work of other queues, by handle and number of the queue: up to which it is known to be over when something else
/// is.
pub(super) type Behind = HashMap<(usize, u32), u64>;

/// A use of memory: the name of the work, the first address, and the size.
pub(super) type Used = (Arc<str>, u64, u64);

/// The memory that a launch of a graph uses, for each of its commands.
pub(super) type Commands = Vec<Vec<Used>>;

/// A recording of a graph.
#[derive(Debug)]
pub(super) struct Recording {
    /// The handle of the queue that began it.
    queue: usize,
    commands: Commands,
}

/// Memory of any kind.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) number: u32,
    pub(super) size: u64,
    /// For messages: `memory`, `reservation`, ...
    pub(super) kind: &'static str,
    /// Whether work may touch it: a reservation is none by itself.
    pub(super) usable: bool,
    pub(super) uses: Uses,
}

/// For each queue, by its number, the last work that uses some memory.
pub(super) type Uses = HashMap<u32, Use>;

/// Work that uses some memory.
#[derive(Debug)]
pub(super) struct Use {
    /// The handle of the queue, which a later queue may have once this one is destroyed.
    queue: usize,
    /// The number of the work within the queue.
    work: u64,
    what: Arc<str>,
}

/// A physical object where it is mapped.
#[derive(Debug, Default)]
pub(super) struct Mapped {
    pub(super) size: u64,
    pub(super) uses: Uses,
}

#[derive(Debug, Default)]
pub(super) struct Books {
    pub(super) queues: HashMap<usize, Queue>,
    pub(super) events: HashMap<usize, Event>,
    /// Modules, graphs, operators, physical memory: kind, number, and size of physical memory.
    pub(super) others: HashMap<usize, (&'static str, u32, u64)>,
    /// By the handle of a graph.
    pub(super) graphs: HashMap<usize, Commands>,
    /// By where it begins.
    pub(super) memory: BTreeMap<u64, Memory>,
    /// By where it begins.
    pub(super) mapped: BTreeMap<u64, Mapped>,
    /// Recordings that go on, by number.
    pub(super) recordings: HashMap<u32, Recording>,
    pub(super) device_time: HashMap<u32, u64>,
    last: u32,
}

impl Books {
    pub(super) fn number(&mut self) -> u32 {
        self.last += 1;
        self.last
    }

    /// Memory or a reservation that a new range of addresses runs into.
    pub(super) fn overlap(&self, address: u64, size: u64) -> Option<&Memory> {
        let end = address.saturating_add(size);
        let (start, memory) = self.memory.range(..end).next_back()?;
        (start.saturating_add(memory.size) > address).then_some(memory)
    }

    /// The end of the memory that work may use from an address on.
    fn usable_end(&self, address: u64) -> Option<u64> {
        let memory = self.memory.range(..=address).next_back();
        if let Some((start, memory)) = memory
            && memory.usable
            && address - start < memory.size
        {
            return Some(start + memory.size);
        }
        let (start, mapped) = self.mapped.range(..=address).next_back()?;
        (address - start < mapped.size).then(|| start + mapped.size)
    }

    /// Whether all of a range is memory that work may use.
    pub(super) fn is_usable(&self, address: u64, size: u64) -> bool {
        let Some(end) = address.checked_add(size) else {
            return false;
        };
        let mut at = address;
        while at < end {
            match self.usable_end(at) {
                Some(next) => at = next,
                None => return false,
            }
        }
        true
    }

    /// Counts work of a queue, and notes the memory that it uses; `None` is a mark, which uses none. What a queue
    /// records runs later: its graph keeps that.
    pub(super) fn submit(&mut self, queue: usize, used: Option<&[Used]>) {
        let Some(entry) = self.queues.get_mut(&queue) else {
            return;
        };
        if let Some(recording) = entry.recording {
            if let (Some(recording), Some(used)) = (self.recordings.get_mut(&recording), used) {
                recording.commands.push(used.to_vec());
            }
            return;
        }
        entry.submitted += 1;
        let (number, work) = (entry.number, entry.submitted);
        for (what, address, size) in used.unwrap_or_default() {
            let note = |uses: &mut Uses| {
                let what = Arc::clone(what);
                uses.insert(number, Use { queue, work, what })
            };
            if let Some((start, memory)) = self.memory.range_mut(..=*address).next_back()
                && *address - *start < memory.size
            {
                note(&mut memory.uses);
            }
            let end = address.saturating_add((*size).max(1));
            for (start, mapped) in self.mapped.range_mut(..end).rev() {
                if start.saturating_add(mapped.size) <= *address {
                    break;
                }
                note(&mut mapped.uses);
            }
        }
    }

    /// A queue begins a recording. False if it records already.
    pub(super) fn record_begin(&mut self, queue: usize) -> bool {
        let number = self.number();
        let Some(entry) = self.queues.get_mut(&queue) else {
            return true;
        };
        let twice = entry.recording.replace(number).is_some();
        let commands = Vec::new();
        self.recordings
            .insert(number, Recording { queue, commands });
        !twice
    }

    /// A queue that does not record joins a recording, if that goes on.
    pub(super) fn join(&mut self, queue: usize, recording: u32) {
        if self.recordings.contains_key(&recording)
            && let Some(queue) = self.queues.get_mut(&queue)
        {
            queue.recording.get_or_insert(recording);
        }
    }

    /// The recording that a queue began ends, for all who joined it.
    pub(super) fn record_end(&mut self, queue: usize) -> Option<Commands> {
        let mut recordings = self.recordings.iter();
        let (&number, _) = recordings.find(|(_, one)| one.queue == queue)?;
        let members = self.queues.values_mut();
        for member in members.filter(|member| member.recording == Some(number)) {
            member.recording = None;
        }
        self.recordings.remove(&number).map(|one| one.commands)
    }

    /// Commands of a graph, from number `first` on, use what those of another graph do.
    pub(super) fn update(&mut self, graph: usize, first: usize, from: usize) {
        let from = self.graphs.get(&from).cloned().unwrap_or_default();
        if let Some(commands) = self.graphs.get_mut(&graph) {
            for (old, new) in commands.iter_mut().skip(first).zip(from) {
                *old = new;
            }
        }
    }

    /// Work of a queue, if it is alive, is known to have finished up to here, with what it comes after.
    pub(super) fn finished(&mut self, queue: usize, number: u32, submitted: u64, behind: &Behind) {
        let own = ((queue, number), submitted);
        let others = behind.iter().map(|(&queue, &submitted)| (queue, submitted));
        for ((queue, number), submitted) in others.chain([own]) {
            let queue = self.queues.get_mut(&queue);
            if let Some(queue) = queue.filter(|queue| queue.number == number) {
                queue.finished = queue.finished.max(submitted);
            }
        }
    }

    /// The state of an event that was recorded on a queue just now, whose order is held.
    pub(super) fn recorded_on(&self, queue: usize) -> State {
        let Some(known) = self.queues.get(&queue) else {
            return State::Unknown;
        };
        if let Some(recording) = known.recording {
            return State::Point(recording);
        }
        State::On(Recorded {
            queue,
            number: known.number,
            submitted: known.submitted,
            behind: known.behind.clone(),
            point: Point {
                calls: known.calls.lock().submitted,
                book: Arc::clone(&known.calls),
            },
        })
    }

    /// Later work of a queue comes after what an event was recorded behind.
    pub(super) fn comes_behind(&mut self, queue: usize, recorded: &Recorded) {
        let own = ((recorded.queue, recorded.number), recorded.submitted);
        let others = recorded.behind.iter().map(|(&queue, &work)| (queue, work));
        let mut all: Vec<_> = others.chain([own]).collect();
        // Work that is over need not be remembered, nor queues that are gone.
        all.retain(|((queue, number), work)| {
            let queue = self.queues.get(queue);
            queue.is_some_and(|queue| queue.number == *number && queue.finished < *work)
        });
        if let Some(queue) = self.queues.get_mut(&queue) {
            for (other, work) in all {
                let known = queue.behind.entry(other).or_default();
                *known = work.max(*known);
            }
        }
    }

    /// Uses of memory that are not known to have finished: the queue, and what the work was.
    pub(super) fn unfinished(&self, address: u64) -> Vec<(usize, String)> {
        let memory = self.memory.get(&address);
        memory.map_or_else(Vec::new, |memory| self.still(&memory.uses))
    }

    /// The same for what is mapped in a range.
    pub(super) fn unfinished_mapped(&self, address: u64, size: u64) -> Vec<(usize, String)> {
        let range = address..address.saturating_add(size);
        let pieces = self.mapped.range(range);
        pieces
            .flat_map(|(_, piece)| self.still(&piece.uses))
            .collect()
    }

    fn still(&self, uses: &Uses) -> Vec<(usize, String)> {
        let still = |(number, last): (&u32, &Use)| {
            let live = self.queues.get(&last.queue)?;
            let unfinished = live.number == *number && live.finished < last.work;
            unfinished.then(|| (last.queue, format!("{} on queue {number}", last.what)))
        };
        uses.iter().filter_map(still).collect()
    }

    /// All that is alive, in words.
    pub(super) fn alive(&self) -> Vec<String> {
        let mut alive = Vec::new();
        alive.extend(self.queues.values().map(|q| format!("queue {}", q.number)));
        alive.extend(self.events.values().map(|e| format!("event {}", e.number)));
        let others = self.others.values();
        alive.extend(others.map(|(kind, number, _)| format!("{kind} {number}")));
        alive.extend(self.memory.values().map(|memory| {
            let last = memory.uses.values().max_by_key(|last| last.work);
            let last =
                last.map_or_else(String::new, |last| format!(", last used by {}", last.what));
            format!(
                "{} {} of {} bytes{last}",
                memory.kind, memory.number, memory.size
            )
        }));
        alive.sort();
        alive
    }
}

#[cfg(test)]
mod tests {
    use super::{Behind, Books, Mapped, Memory, Queue};

    fn memory(size: u64, usable: bool) -> Memory {
        Memory {
            number: 1,
            size,
            kind: "memory",
            usable,
            uses: Default::default(),
        }
    }

    #[test]
    fn work_of_an_earlier_queue_says_nothing_of_a_later_one_with_its_handle() {
        let mut books = Books::default();
        let later = Queue {
            number: 2,
            submitted: 5,
            finished: 0,
            behind: Behind::new(),
            recording: None,
            calls: Default::default(),
            order: Default::default(),
        };
        books.queues.insert(7, later);
        for (number, finished) in [(1, 0), (2, 5)] {
            books.finished(7, number, 5, &Behind::new());
            assert_eq!(books.queues[&7].finished, finished);
        }
    }

    #[test]
    fn ranges_are_usable_across_borders_of_mappings_and_nowhere_else() {
        let mut books = Books::default();
        books.memory.insert(1000, memory(100, true));
        books.memory.insert(2000, memory(1000, false));
        for start in [2000, 2200] {
            let uses = Default::default();
            books.mapped.insert(start, Mapped { size: 200, uses });
        }
        for (address, size, usable) in [
            (1000, 100, true),
            (1001, 100, false),
            (2100, 300, true),
            (2100, 301, false),
            (2400, 1, false),
            (1050, 0, true),
            (u64::MAX, 2, false),
        ] {
            assert_eq!(books.is_usable(address, size), usable, "{address} {size}");
        }
        assert!(books.overlap(1099, 1).is_some() && books.overlap(1100, 10).is_none());
        assert!(books.overlap(900, 101).is_some() && books.overlap(2999, 1).is_some());
    }
}
