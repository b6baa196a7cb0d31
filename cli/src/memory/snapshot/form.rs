//! The fields of a snapshot that matter here, read from JSON or from a pickle.
//!
//! Missing fields have a default; unknown fields are skipped. Of a captured stack only the frame that
//! names the block is kept, because a history holds millions of frames. This module must never decide
//! what the fields mean together.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// A snapshot: all devices.
#[derive(Debug, Deserialize)]
pub(in crate::memory) struct Snapshot {
    pub(super) segments: Vec<Segment>,
    #[serde(default)]
    pub(super) device_traces: Vec<Vec<Entry>>,
    #[serde(default)]
    pub(super) allocator_settings: BTreeMap<String, Setting>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Segment {
    #[serde(default)]
    pub(super) device: Number,
    pub(super) address: u64,
    pub(super) total_size: u64,
    #[serde(default)]
    pub(super) stream: Number,
    segment_pool_id: Option<(Number, Number)>,
    #[serde(default)]
    pub(super) blocks: Vec<HeldBlock>,
}

impl Segment {
    /// The pool of the segment; (0, 0) is the one that all share.
    pub(super) fn pool(&self) -> (u64, u64) {
        pool(self.segment_pool_id.as_ref())
    }
}

fn pool(id: Option<&(Number, Number)>) -> (u64, u64) {
    id.map_or((0, 0), |(high, low)| (high.0, low.0))
}

/// A number of 64 bits: handles are written with a sign or without, and mean their bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Number(pub(super) u64);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = Number;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number of 64 bits")
            }

            fn visit_u64<E>(self, value: u64) -> Result<Number, E> {
                Ok(Number(value))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Number, E> {
                Ok(Number(value.cast_unsigned()))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct HeldBlock {
    pub(super) address: Option<u64>,
    pub(super) size: u64,
    pub(super) requested_size: Option<u64>,
    pub(super) state: String,
    #[serde(default)]
    pub(super) label: Option<String>,
    #[serde(default)]
    pub(super) frames: Named,
}

/// An event of the history.
#[derive(Debug, Deserialize)]
pub(super) struct Entry {
    pub(super) action: String,
    #[serde(default)]
    pub(super) addr: u64,
    #[serde(default)]
    pub(super) size: u64,
    pub(super) requested_size: Option<u64>,
    #[serde(default)]
    pub(super) stream: Number,
    pool_id: Option<(Number, Number)>,
    #[serde(default)]
    pub(super) time_us: i64,
    #[serde(default)]
    pub(super) label: Option<String>,
    #[serde(default)]
    pub(super) frames: Named,
}

impl Entry {
    /// The pool that it is about, if the writer tells; (0, 0) is what all share.
    pub(super) fn pool(&self) -> (u64, u64) {
        pool(self.pool_id.as_ref())
    }
}

/// A captured stack, as the name of its most telling frame: the innermost one of the user's own Python
/// code, else of any Python code, else the innermost that has a name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Named(pub(super) Option<String>);

#[derive(Deserialize)]
struct Frame {
    #[serde(default)]
    filename: String,
    #[serde(default)]
    line: i64,
    #[serde(default)]
    name: String,
}

impl Frame {
    /// The worth of the frame as a name of the block: the user's own Python code tells most.
    fn rank(&self) -> u8 {
        let python = self.filename.ends_with(".py");
        let own = !self.filename.contains("/torch/") && !self.filename.contains("<frozen");
        match (python, own) {
            (true, true) => 3,
            (true, false) => 2,
            (false, _) if !self.name.is_empty() && self.name != "??" => 1,
            (false, _) => 0,
        }
    }

    fn text(&self) -> String {
        let file = self.filename.rsplit('/').next().unwrap_or_default();
        if file.is_empty() || file == "??" {
            return self.name.clone();
        }
        format!("{} ({file}:{})", self.name, self.line)
    }
}

impl<'de> Deserialize<'de> for Named {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Frames;
        impl<'de> Visitor<'de> for Frames {
            type Value = Named;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of frames")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut frames: A) -> Result<Named, A::Error> {
                let mut best: Option<Frame> = None;
                while let Some(frame) = frames.next_element::<Frame>()? {
                    let rank = best.as_ref().map_or(0, Frame::rank);
                    if frame.rank() > rank {
                        best = Some(frame);
                    }
                }
                Ok(Named(best.map(|frame| frame.text())))
            }

            fn visit_unit<E>(self) -> Result<Named, E> {
                Ok(Named(None))
            }

            fn visit_none<E>(self) -> Result<Named, E> {
                Ok(Named(None))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Named, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Named(None))
            }
        }
        deserializer.deserialize_any(Frames)
    }
}

/// A setting as text, if it is one that a line can hold and says something.
#[derive(Debug, Default)]
pub(super) struct Setting(pub(super) Option<String>);

impl<'de> Deserialize<'de> for Setting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Shown;
        impl<'de> Visitor<'de> for Shown {
            type Value = Setting;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a setting")
            }

            fn visit_str<E>(self, text: &str) -> Result<Setting, E> {
                Ok(Setting((!text.is_empty()).then(|| text.to_owned())))
            }

            fn visit_bool<E>(self, value: bool) -> Result<Setting, E> {
                Ok(Setting(Some(value.to_string())))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Setting, E> {
                Ok(Setting(Some(value.to_string())))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Setting, E> {
                Ok(Setting(Some(value.to_string())))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Setting, E> {
                Ok(Setting(Some(value.to_string())))
            }

            fn visit_unit<E>(self) -> Result<Setting, E> {
                Ok(Setting(None))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Setting, A::Error> {
                while items.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Setting(None))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Setting, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Setting(None))
            }
        }
        deserializer.deserialize_any(Shown)
    }
}
