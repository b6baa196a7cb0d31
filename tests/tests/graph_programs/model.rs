//! The model: runs a program one act after another, in plain Rust on vectors.

use std::collections::HashMap;

use outrigger::runtime::DType;

use super::program::{Act, Block, Buffer, COUNT, Choice, FLOATS, GLOBALS, PREDICATES, Range, Work};

/// The contents of a buffer.
#[derive(Clone, Debug)]
pub(crate) enum Data {
    Floats(Vec<f32>),
    Integers(Vec<i64>),
}

impl PartialEq for Data {
    /// Bit by bit; one NaN is as good as another.
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Integers(a), Self::Integers(b)) => a == b,
            (Self::Floats(a), Self::Floats(b)) => a
                .iter()
                .zip(b)
                .all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()),
            _ => false,
        }
    }
}

/// The numbers that the host sends to devices.
pub(crate) const SENT: [i64; COUNT] = [3, 1, 4, 1, 5, -9, 2, 6, 5, 3, -5, 8, 9, 7, 9, -3];

/// The two sets of buffers that programs run on, and what the host has received.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) sets: [Vec<Data>; 2],
    pub(crate) received: Vec<i64>,
}

impl State {
    pub(crate) fn new() -> Self {
        let set = |salt: i64| {
            (0..GLOBALS as i64)
                .map(|buffer| {
                    let number = |index: i64| (buffer * 5 + index * 3 + salt) % 11 - 4;
                    let numbers = (0..COUNT as i64).map(number);
                    match (buffer as usize) < FLOATS {
                        true => Data::Floats(numbers.map(|one| one as f32).collect()),
                        false => Data::Integers(numbers.collect()),
                    }
                })
                .collect()
        };
        Self {
            sets: [set(0), set(5)],
            received: vec![0; COUNT],
        }
    }

    /// Runs a program on the buffers that `map` says, with this alpha in its named addition.
    pub(crate) fn run(&mut self, block: &Block, map: &[usize; GLOBALS], alpha: Option<i64>) {
        let own = HashMap::new();
        Run {
            state: self,
            map,
            alpha,
            own,
        }
        .block(block);
    }
}

struct Run<'a> {
    state: &'a mut State,
    map: &'a [usize; GLOBALS],
    alpha: Option<i64>,
    own: HashMap<Buffer, Data>,
}

impl Run<'_> {
    fn data(&mut self, buffer: Buffer) -> &mut Data {
        if buffer < GLOBALS {
            &mut self.state.sets[self.map[buffer]][buffer]
        } else {
            self.own.get_mut(&buffer).expect("it is alive")
        }
    }

    fn floats(&mut self, buffer: Buffer) -> &mut Vec<f32> {
        match self.data(buffer) {
            Data::Floats(numbers) => numbers,
            Data::Integers(_) => panic!("buffer {buffer} is of integers"),
        }
    }

    fn integers(&mut self, buffer: Buffer) -> &mut Vec<i64> {
        match self.data(buffer) {
            Data::Integers(numbers) => numbers,
            Data::Floats(_) => panic!("buffer {buffer} is of floats"),
        }
    }

    fn block(&mut self, block: &Block) {
        for act in &block.acts {
            match act {
                Act::Work(_, work) => self.work(work),
                Act::Alloc(_, buffer, dtype) => {
                    let data = match *dtype == DType::F32 {
                        true => Data::Floats(vec![f32::NAN; COUNT]),
                        false => Data::Integers(vec![i64::MIN; COUNT]),
                    };
                    self.own.insert(*buffer, data);
                }
                Act::Free(buffer, _) => _ = self.own.remove(buffer),
                Act::Wait(..) => {}
                Act::Child(body) => self.block(body),
                Act::Choose(_, Choice::While, place, bodies) => {
                    while self.integers(PREDICATES)[*place] != 0 {
                        self.block(&bodies[0]);
                    }
                }
                Act::Choose(_, choice, place, bodies) => {
                    let value = self.integers(PREDICATES)[*place];
                    if let Some(body) = chosen(*choice, value).and_then(|index| bodies.get(index)) {
                        self.block(body);
                    }
                }
            }
        }
    }

    fn work(&mut self, work: &Work) {
        match *work {
            Work::Fill {
                to,
                range: Range { first, count },
                value,
            } => match self.data(to) {
                Data::Floats(to) => to[first..first + count].fill(value as f32),
                Data::Integers(to) => to[first..first + count].fill(value),
            },
            Work::Copy { to, from, range } => {
                let from = self.data(from).clone();
                let range = range.first..range.first + range.count;
                match (self.data(to), from) {
                    (Data::Floats(to), Data::Floats(from)) => {
                        to[range.clone()].copy_from_slice(&from[range]);
                    }
                    (Data::Integers(to), Data::Integers(from)) => {
                        to[range.clone()].copy_from_slice(&from[range]);
                    }
                    _ => panic!("a copy between types"),
                }
            }
            Work::Add {
                out,
                a,
                b,
                alpha,
                named,
            } => {
                let alpha = self.alpha.filter(|_| named).unwrap_or(alpha);
                let (a, b) = (self.data(a).clone(), self.data(b).clone());
                *self.data(out) = match (a, b) {
                    (Data::Floats(a), Data::Floats(b)) => {
                        let pairs = a.iter().zip(&b);
                        Data::Floats(pairs.map(|(a, b)| a + alpha as f32 * b).collect())
                    }
                    (Data::Integers(a), Data::Integers(b)) => {
                        let pairs = a.iter().zip(&b);
                        let sum = |(a, b): (&i64, &i64)| a.wrapping_add(b.wrapping_mul(alpha));
                        Data::Integers(pairs.map(sum).collect())
                    }
                    _ => panic!("an addition of two types"),
                };
            }
            Work::Mix { to, from, k, .. } | Work::Host { to, from, k } => {
                let from = self.integers(from).clone();
                for (to, from) in self.integers(to).iter_mut().zip(from) {
                    *to = mix(*to, from, k);
                }
            }
            Work::ToFloat { to, from, .. } => {
                let from = self.integers(from).clone();
                *self.floats(to) = from.into_iter().map(to_float).collect();
            }
            Work::ToInteger { to, from, .. } => {
                let from = self.floats(from).clone();
                for (to, from) in self.integers(to).iter_mut().zip(from) {
                    *to = to_integer(*to, from);
                }
            }
            Work::Down { place } => self.integers(PREDICATES)[place] -= 1,
            Work::Upload { to } => self.integers(to).copy_from_slice(&SENT),
            Work::Download { from } => {
                self.state.received = self.integers(from).clone();
            }
        }
    }
}

/// The number of the body that a predicate chooses, where it does so once.
pub(crate) fn chosen(choice: Choice, value: i64) -> Option<usize> {
    match choice {
        Choice::Switch => usize::try_from(value).ok(),
        Choice::If | Choice::While => Some(usize::from(value == 0)),
    }
}

/// The function that kernels and host functions of the test compute.
pub(crate) fn mix(to: i64, from: i64, k: i64) -> i64 {
    to.wrapping_mul(3).wrapping_add(from).wrapping_add(k)
}

pub(crate) fn to_float(from: i64) -> f32 {
    (from % 1000) as f32
}

pub(crate) fn to_integer(to: i64, from: f32) -> i64 {
    to.wrapping_add(from as i64)
}
