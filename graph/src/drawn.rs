//! The generators that a graph draws from. While a graph is recorded nobody knows where they are: each replay begins
//! where the generator is then. So a token stands in place of the seed, and offsets count from the beginning of a replay. A
//! host may read such a state, and set it later in the same recording: the recording goes on from that place.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use outrigger_device::Code;

use crate::{Error, Result};

/// A state of a generator: the seed or a token, and the offset of the next 128-bit output.
pub(crate) type DrawState = (u64, u64);

/// A source of random numbers.
pub trait Generator: fmt::Debug + Send + Sync {
    /// The id of the generator in the C ABI.
    fn id(&self) -> u64;

    /// Takes the next `count` 128-bit outputs. Returns the seed, and the offset of the first one.
    fn reserve_now(&self, count: u64) -> (u64, u64);

    /// Sets the seed, and the offset of the next output.
    fn set_now(&self, seed: u64, offset: u64);
}

/// A generator of a graph.
#[derive(Clone, Debug)]
pub(crate) struct Drawn {
    pub(crate) generator: Arc<dyn Generator>,
    /// The number that stands in place of the seed while the graph is recorded.
    pub(crate) token: u64,
    /// The state after what has been recorded so far.
    pub(crate) at: DrawState,
}

impl Drawn {
    pub(crate) fn new(generator: Arc<dyn Generator>, token: u64) -> Self {
        let at = (token, 0);
        Self {
            generator,
            token,
            at,
        }
    }
}

/// A sequence that each replay draws from its beginning, for numbers whose seed the graph itself has set. Its token is the
/// seed.
#[derive(Debug)]
struct Seeded(u64);

impl Generator for Seeded {
    fn id(&self) -> u64 {
        0
    }

    fn reserve_now(&self, _: u64) -> (u64, u64) {
        (self.0, 0)
    }

    fn set_now(&self, _: u64, _: u64) {}
}

/// The generators of a graph.
#[derive(Clone, Debug, Default)]
pub(crate) struct Generators(Vec<Drawn>);

impl Generators {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The index of the generator with this token.
    pub(crate) fn find(&self, token: u64) -> Option<u32> {
        let index = self.0.iter().position(|one| one.token == token)?;
        Some(index as u32)
    }

    /// The generator with this id. If it is new here, `make` makes it.
    pub(crate) fn get(
        &mut self,
        id: u64,
        make: impl FnOnce(u64) -> Option<Drawn>,
    ) -> Option<&mut Drawn> {
        let index = match self.0.iter().position(|one| one.generator.id() == id) {
            Some(index) => index,
            None => {
                self.0.push(make(self.0.len() as u64)?);
                self.0.len() - 1
            }
        };
        self.0.get_mut(index)
    }

    /// The index of a sequence that begins with this seed at each replay.
    pub(crate) fn seeded(&mut self, seed: u64) -> u32 {
        self.find(seed).unwrap_or_else(|| {
            self.0.push(Drawn::new(Arc::new(Seeded(seed)), seed));
            self.0.len() as u32 - 1
        })
    }

    /// Begins a replay: moves all generators on. Returns where each of them was before.
    pub(crate) fn begin(&self) -> Vec<DrawState> {
        let taken = |one: &Drawn| if one.at.0 == one.token { one.at.1 } else { 0 };
        let all = || self.0.iter();
        let starts: Vec<_> = all()
            .map(|one| one.generator.reserve_now(taken(one)))
            .collect();
        for one in all().filter(|one| one.at.0 != one.token) {
            let (seed, offset) = self.after(one.at, &starts);
            one.generator.set_now(seed, offset);
        }
        starts
    }

    /// Adds the draws of a child graph, which come after all draws here. Returns the states of the child's generators
    /// before them.
    pub(crate) fn adopt(&mut self, child: &Self) -> Vec<DrawState> {
        let mut places = Vec::with_capacity(child.0.len());
        for one in &child.0 {
            let same = |other: &Drawn| match one.generator.id() {
                0 => other.token == one.token,
                id => other.generator.id() == id,
            };
            places.push(self.0.iter().position(same).unwrap_or_else(|| {
                self.0
                    .push(Drawn::new(Arc::clone(&one.generator), one.token));
                self.0.len() - 1
            }));
        }
        let before: Vec<_> = places.iter().map(|&place| self.0[place].at).collect();
        for (one, &place) in child.0.iter().zip(&places) {
            self.0[place].at = child.after(one.at, &before);
        }
        before
    }

    /// The state that a recorded state becomes if the generators begin at `starts`.
    fn after(&self, (seed, offset): DrawState, starts: &[DrawState]) -> DrawState {
        match self.find(seed) {
            Some(index) => {
                let start = starts[index as usize];
                (start.0, start.1.wrapping_add(offset))
            }
            None => (seed, offset),
        }
    }
}

/// The number of captures so far.
static CAPTURES: AtomicU64 = AtomicU64::new(0);

/// The number of a new capture, from 1.
pub(crate) fn next_capture() -> u64 {
    CAPTURES.fetch_add(1, Ordering::Relaxed) + 1
}

/// The bits of a token before it is mixed that count the generators of a capture.
const INDEX_BITS: u32 = 20;
const FIRST: u64 = 0x9e37_79b9_7f4a_7c15;
const SECOND: u64 = 0xbf58_476d_1ce4_e5b9;

/// The token of a generator: a number that is very unlikely to be a seed.
pub(crate) fn token(capture: u64, index: u64) -> u64 {
    let mixed = (capture << INDEX_BITS | index).wrapping_mul(FIRST);
    (mixed ^ mixed >> 29).wrapping_mul(SECOND)
}

/// The number of the capture that a token is of. For a seed that is no token, it is the number of no capture so far.
fn capture_of(seed: u64) -> u64 {
    let mixed = seed.wrapping_mul(inverse(SECOND));
    let mixed = mixed ^ mixed >> 29 ^ mixed >> 58;
    mixed.wrapping_mul(inverse(FIRST)) >> INDEX_BITS
}

/// The inverse of an odd number modulo 2^64. Each step doubles the low bits that are right, of which 3 are at first.
const fn inverse(odd: u64) -> u64 {
    let mut found = odd;
    let mut step = 0;
    while step < 5 {
        found = found.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(found)));
        step += 1;
    }
    found
}

/// Refuses the state of a recording, which says nothing outside of it.
///
/// # Errors
/// `CAPTURE` if `seed` is a token.
pub fn refuse_recorded_state(seed: u64) -> Result<()> {
    let capture = capture_of(seed);
    if capture == 0 || capture > CAPTURES.load(Ordering::Relaxed) {
        return Ok(());
    }
    Err(Error::new(
        Code::CAPTURE,
        "this state of a generator was read within a capture, where it stands for the state of each replay: set it \
         within that capture, or read and set the state outside of captures",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_told_from_seeds() {
        let capture = next_capture();
        for index in [0, 1, 255, (1 << INDEX_BITS) - 1] {
            assert_eq!(capture_of(token(capture, index)), capture);
        }
        let error = refuse_recorded_state(token(capture, 3)).expect_err("a token");
        assert_eq!(error.code(), Code::CAPTURE);
        for seed in [0, 1, 42, 67_280_421_310_721, u64::MAX] {
            refuse_recorded_state(seed).expect("a seed");
        }
    }
}
