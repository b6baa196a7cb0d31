//! The story: what happened to memory, in order. All inputs are read into this form, and the page is
//! made from it.
//!
//! Time is counted in operations of the input, from 1. Memory that was there before has operation 0. An
//! operation may cause several events. A story must never free what it has not allocated before.

use std::collections::{BTreeMap, HashMap};

use super::tape::Tape;

/// A block that was handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) address: u64,
    /// Bytes, rounded.
    pub(super) size: u64,
    /// Bytes asked for.
    pub(super) requested: u64,
    /// Of [`Story::labels`].
    pub(super) label: u32,
    /// Of [`Story::streams`].
    pub(super) stream: u32,
    /// Of [`Story::pools`].
    pub(super) pool: u32,
}

/// Addresses with memory behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) address: u64,
    pub(super) size: u64,
    /// The offset of the memory in the picture, in bytes.
    pub(super) place: u64,
    /// Of [`Story::streams`].
    pub(super) stream: u32,
    /// Of [`Story::pools`].
    pub(super) pool: u32,
    /// The memory has other addresses as well: it is counted there.
    pub(super) view: bool,
}

/// The effect of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// The next of [`Story::blocks`] is handed out.
    Alloc,
    /// The owner gives this block back, while something else may still use it.
    Freed(u32),
    /// This block may be used again.
    Done(u32),
    /// The next of [`Story::extents`] begins.
    Map,
    /// This extent ends.
    Unmap(u32),
    /// The next of [`Story::marks`].
    Mark,
    /// The next of [`Story::failures`].
    Failure,
}

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) op: u32,
    pub(super) what: What,
}

/// A request that could not be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) bytes: u64,
    /// Of [`Story::streams`].
    pub(super) stream: u32,
}

/// All that happened.
#[derive(Default)]
pub(super) struct Story {
    pub(super) title: String,
    /// Facts about the run, as pairs of name and value.
    pub(super) about: Vec<(String, String)>,
    /// Number of the last operation.
    pub(super) ops: u32,
    pub(super) events: Vec<Event>,
    pub(super) blocks: Vec<Block>,
    pub(super) extents: Vec<Extent>,
    /// Names of steps.
    pub(super) marks: Vec<String>,
    pub(super) failures: Vec<Failure>,
    /// Names that blocks belong to; the first is that of none.
    pub(super) labels: Vec<String>,
    /// The streams' own numbers.
    pub(super) streams: Vec<u64>,
    /// Names of pools; the first is what all share.
    pub(super) pools: Vec<String>,
    /// Microseconds of each operation since the first, if known.
    pub(super) times: Vec<u64>,
    /// Bytes of the picture.
    pub(super) tape: u64,
}

/// The figures of a story that are told in words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Figures {
    /// The most bytes handed out, as asked for.
    pub(super) peak_requested: u64,
    /// The most bytes held from the device.
    pub(super) peak_reserved: u64,
}

impl Story {
    /// Goes through the story once.
    pub(super) fn figures(&self) -> Figures {
        let (mut blocks, mut extents) = (self.blocks.iter(), self.extents.iter());
        let (mut requested, mut reserved) = (0, 0);
        let mut figures = Figures::default();
        let mut freed = vec![false; self.blocks.len()];
        for (index, event) in self.events.iter().enumerate() {
            match event.what {
                What::Alloc => requested += blocks.next().map_or(0, |block| block.requested),
                What::Freed(block) | What::Done(block) => {
                    if !std::mem::replace(&mut freed[block as usize], true) {
                        requested -= self.blocks[block as usize].requested;
                    }
                }
                What::Map => reserved += extents.next().map_or(0, Extent::own),
                What::Unmap(extent) => reserved -= self.extents[extent as usize].own(),
                What::Mark | What::Failure => {}
            }
            // Operation 0 is a state and no course: only its end counts.
            let next = self.events.get(index + 1);
            if event.op > 0 || next.is_none_or(|next| next.op > 0) {
                figures.peak_requested = figures.peak_requested.max(requested);
                figures.peak_reserved = figures.peak_reserved.max(reserved);
            }
        }
        figures
    }
}

impl Extent {
    /// Bytes that count as held from the device.
    fn own(&self) -> u64 {
        if self.view { 0 } else { self.size }
    }
}

/// Texts or numbers, each kept once.
#[derive(Default)]
pub(super) struct Names<T> {
    numbers: HashMap<T, u32>,
    all: Vec<T>,
}

impl<T: Clone + std::hash::Hash + Eq> Names<T> {
    /// The number of a name, which is new or not.
    pub(super) fn number(&mut self, name: T) -> u32 {
        *self.numbers.entry(name).or_insert_with_key(|name| {
            self.all.push(name.clone());
            (self.all.len() - 1) as u32
        })
    }
}

/// Writes a story down as it happens.
pub(super) struct Teller {
    story: Story,
    pub(super) labels: Names<String>,
    pub(super) streams: Names<u64>,
    pub(super) pools: Names<String>,
    blocks: HashMap<u64, (u32, bool)>, // live ones by address, and whether they are freed but not done
    extents: BTreeMap<u64, u32>,       // live ones by address
    tape: Tape,
}

impl Teller {
    /// A story that begins with nothing.
    pub(super) fn new() -> Self {
        let mut teller = Self {
            story: Story::default(),
            labels: Names::default(),
            streams: Names::default(),
            pools: Names::default(),
            blocks: HashMap::new(),
            extents: BTreeMap::new(),
            tape: Tape::default(),
        };
        teller.labels.number(String::new());
        teller.pools.number(String::new());
        teller
    }

    /// The next operation begins; `false` if the page could not count on.
    pub(super) fn operation(&mut self) -> bool {
        self.story.ops += 1;
        self.story.ops < u32::MAX
    }

    /// The present operation happened at this time.
    pub(super) fn time(&mut self, microseconds: u64) {
        self.story.times.push(microseconds);
    }

    /// A block is handed out. One that was at this address is over: the input lacks its end.
    pub(super) fn alloc(&mut self, block: Block) {
        self.done(block.address);
        let number = self.story.blocks.len() as u32;
        self.blocks.insert(block.address, (number, false));
        self.story.blocks.push(block);
        self.event(What::Alloc);
    }

    /// The owner gives the block at this address back; `false` if there is none.
    pub(super) fn freed(&mut self, address: u64) -> bool {
        match self.blocks.get_mut(&address) {
            Some((number, freed)) if !*freed => {
                *freed = true;
                let number = *number;
                self.event(What::Freed(number));
                true
            }
            _ => false,
        }
    }

    /// The block at this address may be used again; `false` if there is none.
    pub(super) fn done(&mut self, address: u64) -> bool {
        let Some((number, _)) = self.blocks.remove(&address) else {
            return false;
        };
        // An event that says that it was freed in the same operation says nothing more.
        let freed = Event {
            op: self.story.ops,
            what: What::Freed(number),
        };
        if self.story.events.last() == Some(&freed) {
            self.story.events.pop();
        }
        self.event(What::Done(number));
        true
    }

    /// Memory of its own comes to these addresses. Returns its place in the picture.
    pub(super) fn map(&mut self, address: u64, size: u64, stream: u32, pool: u32) -> u64 {
        let before = self.extents.range(..address).next_back();
        let wish = before.and_then(|(_, &number)| {
            let extent = &self.story.extents[number as usize];
            (extent.address + extent.size == address).then_some(extent.place + extent.size)
        });
        let place = self.tape.take(size, wish);
        self.add(Extent {
            address,
            size,
            place,
            stream,
            pool,
            view: false,
        });
        place
    }

    /// Memory that has a place already comes to these addresses, too.
    pub(super) fn view(&mut self, address: u64, size: u64, place: u64) {
        self.add(Extent {
            address,
            size,
            place,
            stream: 0,
            pool: 0,
            view: true,
        });
    }

    fn add(&mut self, extent: Extent) {
        self.extents
            .insert(extent.address, self.story.extents.len() as u32);
        self.story.extents.push(extent);
        self.event(What::Map);
    }

    /// Memory leaves the addresses from `start` to `start + size`; what it leaves half stays half.
    pub(super) fn unmap(&mut self, start: u64, size: u64) {
        let stop = start.saturating_add(size);
        let mut hit: Vec<(u64, u32)> = Vec::new();
        for (&address, &number) in self.extents.range(..stop).rev() {
            let extent = &self.story.extents[number as usize];
            if address + extent.size <= start {
                break;
            }
            hit.push((address, number));
        }
        for (address, number) in hit {
            self.extents.remove(&address);
            self.event(What::Unmap(number));
            let extent = self.story.extents[number as usize];
            let end = address + extent.size;
            let mut keep = |from: u64, to: u64| {
                let place = extent.place + (from - address);
                let part = Extent {
                    address: from,
                    size: to - from,
                    place,
                    ..extent
                };
                self.add(part);
            };
            if address < start {
                keep(address, start);
            }
            if stop < end {
                keep(stop, end);
            }
            if !extent.view {
                let (from, to) = (address.max(start), end.min(stop));
                self.tape
                    .give_back(extent.place + (from - address), to - from);
            }
        }
    }

    /// A step begins.
    pub(super) fn mark(&mut self, name: &str) {
        self.story.marks.push(name.to_owned());
        self.event(What::Mark);
    }

    /// A request was refused.
    pub(super) fn failure(&mut self, bytes: u64, stream: u32) {
        self.story.failures.push(Failure { bytes, stream });
        self.event(What::Failure);
    }

    /// Ends the story.
    pub(super) fn end(mut self, title: String, about: Vec<(String, String)>) -> Story {
        self.story.title = title;
        self.story.about = about;
        self.story.labels = self.labels.all;
        self.story.streams = self.streams.all;
        self.story.pools = self.pools.all;
        self.story.tape = self.tape.longest();
        self.story
    }

    fn event(&mut self, what: What) {
        let op = self.story.ops;
        self.story.events.push(Event { op, what });
    }
}
