//! Random programs and their meaning: a list of acts on numbered buffers, which plain Rust runs one
//! after another. This module knows nothing of running streams or of graphs.

use std::collections::BTreeSet;

use outrigger::runtime::DType;
use proptest::collection::vec;
use proptest::prelude::*;

/// Numbers in each buffer.
pub(crate) const COUNT: usize = 16;
/// Streams of a program, and of each body at its depth.
pub(crate) const LANES: usize = 3;
/// Bodies within bodies.
pub(crate) const DEPTH: usize = 2;
/// Buffers of f32 that a program is given, before as many of i64; the last one of those holds
/// predicates.
pub(crate) const FLOATS: usize = 3;
/// All buffers that a program is given.
pub(crate) const GLOBALS: usize = 2 * FLOATS;
/// The buffer with the predicates.
pub(crate) const PREDICATES: usize = GLOBALS - 1;
/// Buffers that live within a block, by slot: the first half are of f32.
const SLOTS: usize = 4;

/// A buffer by its number: first those that the program is given, then each allocation anew.
pub(crate) type Buffer = usize;

/// The work of one command. All of it is exact, so that results are compared bit by bit.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// Numbers of a range become `value`.
    Fill {
        to: Buffer,
        range: Range,
        value: i64,
    },
    /// A range of one buffer to the same place in another one of its type.
    Copy {
        to: Buffer,
        from: Buffer,
        range: Range,
    },
    /// out = a + alpha * b; the one whose alpha may be bound is `named`.
    Add {
        out: Buffer,
        a: Buffer,
        b: Buffer,
        alpha: i64,
        named: bool,
    },
    /// to = 3 to + from + k, on i64, by a kernel of the test's own.
    Mix {
        to: Buffer,
        from: Buffer,
        k: i64,
        cost_ns: u32,
    },
    /// to = from modulo 1000, from i64 to f32.
    ToFloat {
        to: Buffer,
        from: Buffer,
        cost_ns: u32,
    },
    /// to += from, from f32 to i64.
    ToInteger {
        to: Buffer,
        from: Buffer,
        cost_ns: u32,
    },
    /// The same as `Mix`, by a host function.
    Host { to: Buffer, from: Buffer, k: i64 },
    /// One predicate is counted down.
    Down { place: usize },
    /// The host's numbers to a buffer of i64.
    Upload { to: Buffer },
    /// A buffer of i64 to the host.
    Download { from: Buffer },
}

/// A part of a buffer, in numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) first: usize,
    pub(crate) count: usize,
}

/// The way in which a predicate chooses among bodies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Choice {
    If,
    Switch,
    While,
}

/// One thing that a program does, on a lane.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    Work(usize, Work),
    Alloc(usize, Buffer, DType),
    /// Memory ends. Uses by other lanes are joined to its own first, or only noted.
    Free(Buffer, bool),
    /// The first lane waits for the second one.
    Wait(usize, usize),
    /// Bodies by the predicate at this place.
    Choose(usize, Choice, usize, Vec<Block>),
    /// A graph of its own within the graph.
    Child(Block),
}

/// Acts, and the buffers that are alive at their end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Block {
    pub(crate) acts: Vec<Act>,
    pub(crate) left: Vec<Buffer>,
}

/// A random act before it is resolved: numbers are taken modulo what there is.
#[derive(Clone, Debug)]
pub(crate) enum Draft {
    Fill(usize, usize, Range, i64),
    Copy(usize, usize, usize, Range),
    Add(usize, [usize; 3], i64),
    Mix(usize, [usize; 2], i64, u32),
    Convert(usize, [usize; 2], bool, u32),
    Host(usize, [usize; 2], i64),
    Move(usize, usize, bool),
    Alloc(usize, usize),
    Free(usize, bool),
    Wait(usize, usize),
    Choose(usize, Choice, i64, Vec<Vec<Draft>>),
    Child(Vec<Draft>),
}

fn range() -> impl Strategy<Value = Range> {
    (0..COUNT, 1..=COUNT).prop_map(|(first, count)| Range {
        first,
        count: count.min(COUNT - first),
    })
}

/// Random acts, with blocks within them while `depth` lasts.
pub(crate) fn drafts(depth: usize, most: usize) -> BoxedStrategy<Vec<Draft>> {
    let lane = 0..LANES;
    let buffer = 0..8usize;
    let small = -4..5i64;
    // Most are costly, so that some levels of any 60 programs run in parallel.
    let cost = prop_oneof![1 => Just(0), 1 => Just(50u32), 6 => Just(80_000u32)];
    let alpha = proptest::sample::select(vec![1i64, -1, 2]);
    let two = [buffer.clone(), buffer.clone()];
    let plain = prop_oneof![
        2 => (lane.clone(), buffer.clone(), range(), small.clone()).prop_map(|(l, b, r, v)| Draft::Fill(l, b, r, v)),
        2 => (lane.clone(), two.clone(), range()).prop_map(|(l, [a, b], r)| Draft::Copy(l, a, b, r)),
        4 => (lane.clone(), [buffer.clone(), buffer.clone(), buffer.clone()], alpha).prop_map(|(l, b, a)| Draft::Add(l, b, a)),
        4 => (lane.clone(), two.clone(), small.clone(), cost.clone()).prop_map(|(l, b, k, c)| Draft::Mix(l, b, k, c)),
        3 => (lane.clone(), two.clone(), any::<bool>(), cost).prop_map(|(l, b, f, c)| Draft::Convert(l, b, f, c)),
        2 => (lane.clone(), two, small.clone()).prop_map(|(l, b, k)| Draft::Host(l, b, k)),
        1 => (lane.clone(), buffer.clone(), any::<bool>()).prop_map(|(l, b, up)| Draft::Move(l, b, up)),
        3 => (lane.clone(), 0..SLOTS).prop_map(|(l, s)| Draft::Alloc(l, s)),
        2 => (0..SLOTS, any::<bool>()).prop_map(|(s, join)| Draft::Free(s, join)),
        2 => (lane.clone(), lane.clone()).prop_map(|(l, on)| Draft::Wait(l, on)),
    ];
    if depth == 0 {
        return vec(plain, 0..=most).boxed();
    }
    let inner = || drafts(depth - 1, 5);
    let choice = prop_oneof![
        (Just(Choice::If), -1..2i64, vec(inner(), 1..3)),
        (Just(Choice::Switch), -1..4i64, vec(inner(), 1..4)),
        (Just(Choice::While), 0..4i64, vec(inner(), 1..2)),
    ];
    let nested = prop_oneof![
        3 => (lane, choice).prop_map(|(l, (kind, value, bodies))| Draft::Choose(l, kind, value, bodies)),
        1 => inner().prop_map(Draft::Child),
    ];
    vec(prop_oneof![9 => plain, 1 => nested], 0..=most).boxed()
}

/// Turns drafts into acts on buffers that are there.
#[derive(Debug)]
pub(crate) struct Resolver {
    next: Buffer,
    named: bool,
}

/// The buffers that are alive while a block is resolved.
#[derive(Clone)]
struct Scope {
    /// Buffers that are not of this block, by type: f32, i64.
    outer: [Vec<Buffer>; 2],
    slots: [Option<Buffer>; SLOTS],
    depth: usize,
}

impl Scope {
    fn visible(&self, float: bool) -> Vec<Buffer> {
        let own = match float {
            true => &self.slots[..SLOTS / 2],
            false => &self.slots[SLOTS / 2..],
        };
        let mut all = self.outer[usize::from(!float)].clone();
        all.extend(own.iter().flatten());
        all
    }

    fn pick(&self, float: bool, number: usize) -> Buffer {
        let all = self.visible(float);
        all[number % all.len()]
    }
}

impl Resolver {
    /// The acts of a whole program.
    pub(crate) fn program(drafts: &[Draft]) -> Block {
        let outer = [
            (0..FLOATS).collect(),
            (FLOATS..PREDICATES).collect::<Vec<_>>(),
        ];
        let mut resolver = Self {
            next: GLOBALS,
            named: false,
        };
        resolver.block(drafts, outer, 0)
    }

    fn block(&mut self, drafts: &[Draft], outer: [Vec<Buffer>; 2], depth: usize) -> Block {
        let mut scope = Scope {
            outer,
            slots: [None; SLOTS],
            depth,
        };
        let mut acts = Vec::new();
        for draft in drafts {
            self.act(draft, &mut scope, &mut acts);
        }
        let left = scope.slots.iter().flatten().copied();
        Block {
            acts,
            left: left.collect(),
        }
    }

    fn act(&mut self, draft: &Draft, scope: &mut Scope, acts: &mut Vec<Act>) {
        let mut work = |lane: usize, work: Work| acts.push(Act::Work(lane, work));
        match *draft {
            Draft::Fill(lane, to, range, value) => {
                let to = scope.pick(to.is_multiple_of(2), to / 2);
                work(lane, Work::Fill { to, range, value });
            }
            Draft::Copy(lane, to, from, range) => {
                let float = to.is_multiple_of(2);
                let (to, from) = (scope.pick(float, to / 2), scope.pick(float, from / 2));
                if to != from {
                    work(lane, Work::Copy { to, from, range });
                }
            }
            Draft::Add(lane, [out, a, b], alpha) => {
                let float = out.is_multiple_of(2);
                let [out, a, b] = [out, a, b].map(|one| scope.pick(float, one / 2));
                let named = scope.depth == 0 && !std::mem::replace(&mut self.named, true);
                work(
                    lane,
                    Work::Add {
                        out,
                        a,
                        b,
                        alpha,
                        named,
                    },
                );
            }
            Draft::Mix(lane, two, k, cost_ns) => {
                let [to, from] = two.map(|one| scope.pick(false, one));
                work(
                    lane,
                    Work::Mix {
                        to,
                        from,
                        k,
                        cost_ns,
                    },
                );
            }
            Draft::Convert(lane, [to, from], to_float, cost_ns) => {
                let (to, from) = (scope.pick(to_float, to), scope.pick(!to_float, from));
                work(
                    lane,
                    match to_float {
                        true => Work::ToFloat { to, from, cost_ns },
                        false => Work::ToInteger { to, from, cost_ns },
                    },
                );
            }
            Draft::Host(lane, two, k) => {
                let [to, from] = two.map(|one| scope.pick(false, one));
                work(lane, Work::Host { to, from, k });
            }
            Draft::Move(lane, buffer, true) => {
                let to = scope.pick(false, buffer);
                work(lane, Work::Upload { to });
            }
            Draft::Move(lane, buffer, false) => {
                let from = scope.pick(false, buffer);
                work(lane, Work::Download { from });
            }
            Draft::Alloc(lane, slot) if scope.slots[slot].is_none() => {
                let buffer = self.next;
                self.next += 1;
                scope.slots[slot] = Some(buffer);
                let dtype = match slot < SLOTS / 2 {
                    true => DType::F32,
                    false => DType::I64,
                };
                acts.push(Act::Alloc(lane, buffer, dtype));
                // New memory holds anything.
                let all = Range {
                    first: 0,
                    count: COUNT,
                };
                acts.push(Act::Work(
                    lane,
                    Work::Fill {
                        to: buffer,
                        range: all,
                        value: 7,
                    },
                ));
            }
            Draft::Free(slot, join) => {
                if let Some(buffer) = scope.slots[slot].take() {
                    acts.push(Act::Free(buffer, join));
                }
            }
            Draft::Alloc(..) => {}
            Draft::Wait(lane, on) => acts.push(Act::Wait(lane, on)),
            Draft::Choose(lane, kind, value, ref bodies) => {
                let place = scope.depth;
                let range = Range {
                    first: place,
                    count: 1,
                };
                work(
                    lane,
                    Work::Fill {
                        to: PREDICATES,
                        range,
                        value,
                    },
                );
                let outer = [scope.visible(true), scope.visible(false)];
                let depth = scope.depth + 1;
                let bodies = bodies
                    .iter()
                    .map(|body| self.block(body, outer.clone(), depth));
                let mut bodies: Vec<_> = bodies.collect();
                if kind == Choice::While {
                    // Down by one; nothing else writes there.
                    let down = Act::Work(0, Work::Down { place });
                    bodies
                        .iter_mut()
                        .for_each(|body| body.acts.push(down.clone()));
                }
                acts.push(Act::Choose(lane, kind, place, bodies));
            }
            Draft::Child(ref body) => {
                let outer = [scope.visible(true), scope.visible(false)];
                let body = self.block(body, outer, scope.depth + 1);
                acts.push(Act::Child(body));
            }
        }
    }
}

/// The host's side of a download, among the buffers that acts use.
pub(crate) const HOST: Buffer = usize::MAX;

/// The buffers that an act reads and writes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Uses {
    pub(crate) reads: BTreeSet<Buffer>,
    pub(crate) writes: BTreeSet<Buffer>,
    /// Buffers whose addresses a host function keeps.
    pub(crate) fixed: BTreeSet<Buffer>,
}

impl Uses {
    fn add(&mut self, other: Self) {
        self.reads.extend(other.reads);
        self.writes.extend(other.writes);
        self.fixed.extend(other.fixed);
    }
}

impl Work {
    pub(crate) fn uses(&self) -> Uses {
        let (reads, write): (&[Buffer], Buffer) = match *self {
            Self::Fill { to, .. } | Self::Upload { to } => (&[], to),
            Self::Copy { to, from, .. } | Self::ToFloat { to, from, .. } => (&[from], to),
            Self::Add { out, a, b, .. } => (&[a, b], out),
            Self::Mix { to, from, .. } | Self::ToInteger { to, from, .. } => (&[to, from], to),
            Self::Host { to, from, .. } => (&[to, from], to),
            Self::Down { .. } => (&[PREDICATES], PREDICATES),
            Self::Download { from } => (&[from], HOST),
        };
        Uses {
            reads: reads.iter().copied().collect(),
            writes: BTreeSet::from([write]),
            fixed: match *self {
                Self::Host { to, from, .. } => BTreeSet::from([to, from]),
                _ => BTreeSet::new(),
            },
        }
    }
}

impl Act {
    pub(crate) fn uses(&self) -> Uses {
        let mut uses = Uses::default();
        match self {
            Self::Work(_, work) => uses = work.uses(),
            Self::Choose(_, _, _, bodies) => {
                uses.reads.insert(PREDICATES);
                bodies.iter().for_each(|body| uses.add(body.uses()));
            }
            Self::Child(body) => uses = body.uses(),
            Self::Alloc(..) | Self::Free(..) | Self::Wait(..) => {}
        }
        uses
    }
}

impl Block {
    /// The buffers that the acts of the block read and write, without those that live only within it.
    pub(crate) fn uses(&self) -> Uses {
        let mut uses = Uses::default();
        self.acts.iter().for_each(|act| uses.add(act.uses()));
        for act in &self.acts {
            if let Act::Alloc(_, buffer, _) = act {
                uses.reads.remove(buffer);
                uses.writes.remove(buffer);
                uses.fixed.remove(buffer);
            }
        }
        uses
    }

    /// Whether there are predicates.
    pub(crate) fn chooses(&self) -> bool {
        self.acts.iter().any(|act| match act {
            Act::Choose(..) => true,
            Act::Child(body) => body.chooses(),
            _ => false,
        })
    }
}
