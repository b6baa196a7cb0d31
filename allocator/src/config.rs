//! The policy's numbers: rounding, segment sizes, splitting, the limit; and their text form.
//!
//! Every decision that depends on a size is made here and is pure arithmetic. A `Config` is checked
//! when it is made: nothing behind it checks again.

use thiserror::Error;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The largest block that small segments serve.
pub(crate) const SMALL_MAX: u64 = MIB;
/// Segments that serve a single request are rounded up to this.
const OWN_SEGMENT_ROUNDING: u64 = 2 * MIB;
/// Chunks of physical memory are at least this, and at least this share of what is held, up to a limit:
/// smaller ones are idle more often, larger ones take fewer calls of the driver.
const CHUNK: u64 = 2 * MIB;
const CHUNK_SHARE: u64 = 4096;
const CHUNK_MAX: u64 = 32 * MIB;
/// A view must save this share of a request.
const LENDING_SHARE: u64 = 16;
/// No device is asked for more than this at once: 256 TiB, more than any has.
const REQUEST_MAX: u64 = 1 << 48;

/// Options of PyTorch's allocators that have no counterpart here: naming one is answered as such, not
/// as a misspelling.
const FOREIGN: [&str; 6] = [
    "backend",
    "garbage_collection_threshold",
    "pinned_max_cached_size_mb",
    "pinned_max_round_threshold_mb",
    "pinned_use_background_threads",
    "roundup_power2_divisions",
];

const OPTIONS: &str = "expandable_segments, limit_mb, max_split_size_mb, max_non_split_rounding_mb, \
                       small_segment_size_mb, large_segment_size_mb, rounding";

/// The allocator's policy. The default is PyTorch's: blocks are multiples of 512 bytes; blocks up to
/// 1 MiB are cut from 2 MiB segments, blocks below 10 MiB from 20 MiB segments, larger ones get a
/// segment of their own, a multiple of 2 MiB; every block may be split; no limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    rounding: u64,
    small_segment_size: u64,
    large_segment_size: u64,
    max_split_size: u64,
    max_non_split_rounding: u64,
    limit: u64,
    expandable: bool,
}

/// Why a configuration was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// An item without a colon.
    #[error("`{0}` is not of the form option:value")]
    NotAPair(String),
    /// No option has this name.
    #[error("no allocator option is called `{0}`; there are {OPTIONS}")]
    Unknown(String),
    /// PyTorch's allocators have this option, this one has not.
    #[error(
        "`{0}` is an option of PyTorch's allocators that Outrigger's does not have; it has {OPTIONS}"
    )]
    Foreign(String),
    /// A value outside of the option's range, or no number at all.
    #[error("{option} is `{value}`, but must be {expected}")]
    Value {
        /// The option's name.
        option: &'static str,
        /// What was given.
        value: String,
        /// What would be right.
        expected: &'static str,
    },
}

impl Default for Config {
    fn default() -> Self {
        Self {
            rounding: 512,
            small_segment_size: 2 * MIB,
            large_segment_size: 20 * MIB,
            max_split_size: u64::MAX,
            max_non_split_rounding: 20 * MIB,
            limit: u64::MAX,
            expandable: true,
        }
    }
}

impl Config {
    /// Reads `option:value,option:value`, where every option may be left out:
    ///
    /// | option | unit | default | meaning |
    /// |---|---|---|---|
    /// | `limit_mb` | MiB | none | bytes held from the device never exceed this |
    /// | `expandable_segments` | True or False | True | where the device has virtual memory, memory is mapped into ranges of addresses |
    /// | `max_split_size_mb` | MiB | none | free blocks of this size and more are never split and never given to smaller requests; at least `large_segment_size_mb` |
    /// | `max_non_split_rounding_mb` | MiB | 20 | a request of `max_split_size_mb` or more takes a free block that is larger by less than this |
    /// | `small_segment_size_mb` | MiB | 2 | segments for blocks up to 1 MiB; at least 2 |
    /// | `large_segment_size_mb` | MiB | 20 | segments for blocks below half of it; at least 4 |
    /// | `rounding` | bytes | 512 | block sizes are multiples of this; a power of two from 64 to 65536 |
    ///
    /// The first three and `large_segment_size_mb` mean what they mean in `PYTORCH_ALLOC_CONF`, where
    /// PyTorch has them.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        for item in text
            .split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty())
        {
            let (option, value) = item
                .split_once(':')
                .ok_or_else(|| ConfigError::NotAPair(item.to_owned()))?;
            config.set(option.trim(), value.trim())?;
        }
        if config.max_split_size < config.large_segment_size {
            return Err(ConfigError::Value {
                option: "max_split_size_mb",
                value: (config.max_split_size / MIB).to_string(),
                expected: "at least large_segment_size_mb",
            });
        }
        Ok(config)
    }

    /// The same policy with another limit, in bytes: memory held from the device never exceeds it.
    /// `u64::MAX` is no limit.
    #[must_use]
    pub fn with_limit(self, bytes: u64) -> Self {
        Self {
            limit: bytes,
            ..self
        }
    }

    /// Whether spans of addresses are used where the device has virtual memory.
    pub(crate) fn expandable(&self) -> bool {
        self.expandable
    }

    /// The limit in bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Block sizes are multiples of this many bytes, a power of two.
    pub fn rounding(&self) -> u64 {
        self.rounding
    }

    fn set(&mut self, option: &str, value: &str) -> Result<(), ConfigError> {
        match option {
            "limit_mb" => self.limit = mib("limit_mb", value, 1, "a number of MiB, at least 1")?,
            "expandable_segments" => {
                self.expandable = match value {
                    "True" | "true" | "1" => true,
                    "False" | "false" | "0" => false,
                    _ => {
                        return Err(ConfigError::Value {
                            option: "expandable_segments",
                            value: value.to_owned(),
                            expected: "True or False",
                        });
                    }
                };
            }
            "max_split_size_mb" => {
                self.max_split_size =
                    mib("max_split_size_mb", value, 4, "a number of MiB, at least 4")?;
            }
            "max_non_split_rounding_mb" => {
                self.max_non_split_rounding = mib(
                    "max_non_split_rounding_mb",
                    value,
                    2,
                    "a number of MiB, at least 2",
                )?;
            }
            "small_segment_size_mb" => {
                self.small_segment_size = mib(
                    "small_segment_size_mb",
                    value,
                    2,
                    "a number of MiB, at least 2",
                )?;
            }
            "large_segment_size_mb" => {
                self.large_segment_size = mib(
                    "large_segment_size_mb",
                    value,
                    4,
                    "a number of MiB, at least 4",
                )?;
            }
            "rounding" => {
                self.rounding = value
                    .parse()
                    .ok()
                    .filter(|n: &u64| n.is_power_of_two() && (64..=64 * KIB).contains(n))
                    .ok_or_else(|| ConfigError::Value {
                        option: "rounding",
                        value: value.to_owned(),
                        expected: "a power of two from 64 to 65536 (bytes)",
                    })?;
            }
            foreign if FOREIGN.contains(&foreign) => {
                return Err(ConfigError::Foreign(foreign.to_owned()));
            }
            unknown => return Err(ConfigError::Unknown(unknown.to_owned())),
        }
        Ok(())
    }

    /// What a request of `size` bytes becomes; `None` if no device could serve it.
    #[inline]
    pub(crate) fn request(&self, size: u64) -> Option<Request> {
        if size > REQUEST_MAX {
            return None;
        }
        let rounded = (size.max(1) + self.rounding - 1) & !(self.rounding - 1);
        let class = if rounded <= SMALL_MAX {
            Class::Small
        } else {
            Class::Large
        };
        Some(Request {
            requested: size,
            size: rounded,
            class,
        })
    }

    /// The sizes of a new segment for this request, in the order in which to try them: the one that
    /// leaves room for others, then one that just fits, for a device that has not more to give.
    pub(crate) fn segment_sizes(&self, request: &Request) -> [u64; 2] {
        let roomy = match request.class {
            Class::Small => self.small_segment_size,
            Class::Large if request.size < self.large_segment_size / 2 => self.large_segment_size,
            Class::Large => request
                .size
                .checked_next_multiple_of(OWN_SEGMENT_ROUNDING)
                .unwrap_or(request.size),
        };
        [roomy, request.size]
    }

    /// Whether a free block of `found` bytes may serve this request, which it can hold.
    #[inline]
    pub(crate) fn accepts(&self, request: &Request, found: u64) -> bool {
        if request.size < self.max_split_size {
            found < self.max_split_size
        } else {
            found - request.size < self.max_non_split_rounding
        }
    }

    /// Whether the `rest` of a block that serves this request becomes a block of its own. `fixed`: it
    /// lies in a segment that the device gave whole.
    #[inline]
    pub(crate) fn splits(&self, request: &Request, rest: u64, fixed: bool) -> bool {
        match request.class {
            Class::Large if request.size >= self.max_split_size => false,
            // A smaller rest could serve no other request of this class.
            Class::Large if fixed => rest > SMALL_MAX,
            _ => rest >= self.rounding,
        }
    }

    /// How many bytes idle chunks must save a request of `size` bytes for that to pay. `tight`: the
    /// device has refused before.
    pub(crate) fn saving(&self, size: u64, tight: bool) -> u64 {
        if tight {
            1
        } else {
            (size / LENDING_SHARE).max(1)
        }
    }

    /// The sizes of chunks that make up `bytes`, a multiple of the granularity, where `reserved` are
    /// held already.
    pub(crate) fn chunks(&self, bytes: u64, reserved: u64, granularity: u64) -> Vec<u64> {
        let share = (reserved + bytes) / CHUNK_SHARE;
        let most = share.clamp(CHUNK, CHUNK_MAX).next_multiple_of(granularity);
        let whole = (bytes / most) as usize;
        let mut sizes = vec![most; whole];
        sizes.extend(Some(bytes % most).filter(|&rest| rest > 0));
        sizes
    }
}

fn mib(
    option: &'static str,
    value: &str,
    least: u64,
    expected: &'static str,
) -> Result<u64, ConfigError> {
    value
        .parse::<u64>()
        .ok()
        .filter(|&number| number >= least)
        .and_then(|number| number.checked_mul(MIB))
        .ok_or_else(|| ConfigError::Value {
            option,
            value: value.to_owned(),
            expected,
        })
}

/// Which kind of segment a block is cut from. Small and large blocks never share a segment, so that a
/// long-lived small block cannot keep a large segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Small = 0,
    Large = 1,
}

/// A request after rounding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// Bytes that the caller asked for.
    pub(crate) requested: u64,
    /// Bytes that it gets.
    pub(crate) size: u64,
    pub(crate) class: Class,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_bad_ones_named() {
        let config = Config::parse(" max_split_size_mb:64, limit_mb:512,rounding:1024 ,").unwrap();
        assert_eq!(
            (config.max_split_size, config.limit, config.rounding),
            (64 * MIB, 512 * MIB, 1024)
        );
        assert_eq!(Config::parse("").unwrap(), Config::default());
        for (text, part) in [
            (
                "max_split_size:64",
                "no allocator option is called `max_split_size`",
            ),
            ("roundup_power2_divisions:4", "an option of PyTorch's"),
            (
                "max_split_size_mb:10",
                "must be at least large_segment_size_mb",
            ),
            ("rounding:500", "a power of two"),
            ("limit_mb:-1", "a number of MiB"),
            ("limit_mb:99999999999999999", "a number of MiB"),
            ("limit_mb", "not of the form"),
        ] {
            let error = Config::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn sizes_follow_the_documented_classes() {
        let config = Config::default();
        let plan = |size| {
            let request = config.request(size).unwrap();
            (request.size, config.segment_sizes(&request)[0])
        };
        assert_eq!(plan(1), (512, 2 * MIB));
        assert_eq!(plan(MIB), (MIB, 2 * MIB));
        assert_eq!(plan(MIB + 1), (MIB + 512, 20 * MIB));
        assert_eq!(plan(10 * MIB - 512), (10 * MIB - 512, 20 * MIB));
        assert_eq!(plan(10 * MIB), (10 * MIB, 10 * MIB));
        assert_eq!(plan(21 * MIB), (21 * MIB, 22 * MIB));
        assert!(config.request(u64::MAX).is_none());
        assert_eq!(plan(1 << 48).0, 1 << 48);
    }
}
