//! Questions and their answers, as they are kept, exported and pinned.

use std::collections::BTreeMap;
use std::fmt;

use outrigger_store::{Key, Kind};
use serde::{Deserialize, Serialize};

/// Tuned choices. The version changes with what is stored, and with the parts of the key.
pub(crate) const KIND: Kind = Kind::new("tuned", 1);

/// A choice stays with the default unless another candidate takes at most this part of its time: the rest is noise.
const GAIN: (u64, u64) = (97, 100);

/// Candidates that take at most this part of the least time are near to the best one.
const NEAR: (u64, u64) = (110, 100);

/// As many of those are measured again, at most.
const MOST_NEAR: usize = 3;

/// A kernel, a class of sizes and a device, for which one variant is the best. All of it is text for people and part of
/// the key.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// The driver and its version.
    pub driver: String,
    /// The device: its name, and what tells it from others of that name.
    pub device: String,
    /// The operator that is computed.
    pub operator: String,
    /// The class of sizes and layouts.
    pub class: String,
    /// The element type.
    pub dtype: String,
    /// A hash of the code ([`hash`]).
    pub code: String,
    /// The version of the library.
    pub version: String,
}

impl Question {
    pub(crate) fn key(&self) -> Key {
        let parts = [
            ("driver", &self.driver),
            ("device", &self.device),
            ("operator", &self.operator),
            ("class", &self.class),
            ("dtype", &self.dtype),
            ("code", &self.code),
            ("version", &self.version),
        ];
        let begin = KIND.key();
        let key = parts
            .iter()
            .fold(begin, |key, (name, value)| key.part(name, value.as_bytes()));
        key.finish()
    }
}

/// A part of a time. A worker may say any number.
fn part(time: u64, part: u64) -> u128 {
    u128::from(time) * u128::from(part)
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            operator,
            class,
            dtype,
            device,
            ..
        } = self;
        write!(f, "{operator} {class} {dtype} on {device}")
    }
}

/// A hash of the code that a question is about.
pub fn hash(code: &[&str]) -> String {
    let key = code
        .iter()
        .fold(KIND.key(), |key, text| key.part("code", text.as_bytes()));
    key.finish().name()
}

/// The answer to a question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Choice {
    /// The question that the choice answers.
    pub question: Question,
    /// The candidate.
    pub chosen: String,
    /// Whether a person has chosen it.
    #[serde(default)]
    pub pinned: bool,
    /// The time of each candidate in nanoseconds; none for one that failed.
    #[serde(default)]
    pub measured: BTreeMap<String, Option<u64>>,
}

impl Choice {
    pub(crate) fn new(question: Question) -> Self {
        Self {
            question,
            chosen: String::new(),
            pinned: false,
            measured: BTreeMap::new(),
        }
    }

    /// The time of a candidate in nanoseconds; none if it failed or was not measured.
    pub(crate) fn time(&self, name: &str) -> Option<u64> {
        self.measured.get(name).copied().flatten()
    }

    /// The candidate that its times speak for, of which the first one is the default; none if all have failed.
    pub(crate) fn best<'a>(&self, candidates: &'a [String]) -> Option<&'a String> {
        let times = candidates
            .iter()
            .filter_map(|name| Some((self.time(name)?, name)));
        let (least, best) = times.min_by_key(|(time, _)| *time)?;
        let default = candidates.first().filter(|name| {
            self.time(name)
                .is_some_and(|time| part(least, GAIN.1) > part(time, GAIN.0))
        });
        Some(default.unwrap_or(best))
    }

    /// The candidates between which one look does not decide, in their order: the default, and those that are near to the best.
    pub(crate) fn undecided<'a>(&self, candidates: &'a [String]) -> Vec<&'a String> {
        let mut works: Vec<(u64, usize)> = candidates
            .iter()
            .enumerate()
            .filter_map(|(place, name)| Some((self.time(name)?, place)))
            .collect();
        works.sort_unstable();
        let least = works.first().map_or(0, |(time, _)| *time);
        let near = works
            .iter()
            .take(MOST_NEAR)
            .filter(|(time, _)| part(*time, NEAR.1) <= part(least, NEAR.0));
        let default = works.iter().filter(|(_, place)| *place == 0);
        let mut places: Vec<usize> = near.chain(default).map(|(_, place)| *place).collect();
        places.sort_unstable();
        places.dedup();
        places.iter().map(|place| &candidates[*place]).collect()
    }

    pub(crate) fn read(value: &[u8]) -> Option<Self> {
        serde_json::from_slice(value).ok()
    }

    pub(crate) fn write(&self) -> Option<Vec<u8>> {
        serde_json::to_vec(self).ok()
    }
}
