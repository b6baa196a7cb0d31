//! The numbers of the policy (rounding, segment sizes, splitting, the limit) and their text form.
//!
//! Every decision that depends on a size is made here, by pure arithmetic. A `Config` is checked when
//! it is made; no later code checks it again.

use std::time::Duration;

use thiserror::Error;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The largest block that small segments serve.
pub(crate) const SMALL_MAX: u64 = MIB;
/// Segments that serve a single request are rounded up to this.
const OWN_SEGMENT_ROUNDING: u64 = 2 * MIB;
/// A chunk of physical memory has at least this size, and at least this share of what is held, up to a
/// limit. Smaller chunks are idle more often; larger ones need fewer calls of the driver.
const CHUNK: u64 = 2 * MIB;
const CHUNK_SHARE: u64 = 1024;
const CHUNK_MAX: u64 = 32 * MIB;
/// Growth may take more than is needed, up to this share of what is held.
const SURPLUS_SHARE: u64 = 128;
/// A view must save this share of a request.
const LENDING_SHARE: u64 = 16;
/// The largest request: 256 TiB, more than any device has.
const REQUEST_MAX: u64 = 1 << 48;

/// The fewest bytes that `roundup_power2_divisions` rounds, for each division.
const DIVIDED: u64 = 512;

/// Options of PyTorch's allocators that have no counterpart here. Their error says so, instead of
/// calling them misspelled.
const FOREIGN: [&str; 9] = [
    "backend",
    "graph_capture_record_stream_reuse",
    "pinned_max_cached_size_mb",
    "pinned_max_round_threshold_mb",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_use_background_threads",
    "pinned_use_cuda_host_register",
    "release_lock_on_cudamalloc",
];

const OPTIONS: &str = "expandable_segments, limit_mb, per_process_memory_fraction, max_split_size_mb, \
                       max_non_split_rounding_mb, garbage_collection_threshold, \
                       roundup_power2_divisions, small_segment_size_mb, large_segment_size_mb, rounding, \
                       stream_waits, lend_graph_pools, trim_after_ms";

/// The allocator's policy. The default is PyTorch's: blocks are multiples of 512 bytes; blocks up to
/// 1 MiB are cut from 2 MiB segments, blocks below 10 MiB from 20 MiB segments, larger ones get a
/// segment of their own, a multiple of 2 MiB; every block may be split; no limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    rounding: u64,
    small_segment_size: u64,
    large_segment_size: u64,
    max_split_size: u64,
    max_non_split_rounding: u64,
    limit: u64,
    fraction: f64,
    gc_threshold: f64,
    divisions: u64,
    expandable: bool,
    stream_waits: bool,
    lend_graph_pools: bool,
    trim_after: Option<Duration>,
}

/// The reason why a configuration was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// An item without a colon.
    #[error("`{0}` is not of the form option:value")]
    NotAPair(String),
    /// No option has this name.
    #[error("no allocator option is called `{0}`; there are {OPTIONS}")]
    Unknown(String),
    /// PyTorch's allocators have this option; this allocator has not.
    #[error(
        "`{0}` is an option of PyTorch's allocators that Outrigger's does not have; it has {OPTIONS}"
    )]
    Foreign(String),
    /// A value outside of the option's range, or no number at all.
    #[error("{option} is `{value}`, but must be {expected}")]
    Value {
        /// The option's name.
        option: &'static str,
        /// The value that was given.
        value: String,
        /// The values that would be right, in words.
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
            fraction: 1.0,
            gc_threshold: 1.0,
            divisions: 1,
            expandable: true,
            stream_waits: true,
            lend_graph_pools: true,
            trim_after: None,
        }
    }
}

impl Config {
    /// Reads `option:value,option:value`, where every option may be left out:
    ///
    /// | option | unit | default | meaning |
    /// |---|---|---|---|
    /// | `limit_mb` | MiB | none | bytes held from the device never exceed this |
    /// | `per_process_memory_fraction` | 0 to 1 | 1 | the same as a part of the device's memory; the lower of the two counts |
    /// | `garbage_collection_threshold` | 0 to 1 | 1 | where there is a limit, idle memory is given back before more than this part of it is held |
    /// | `roundup_power2_divisions` | a power of two | 1 | sizes are rounded up to one of so many steps between powers of two |
    /// | `stream_waits` | True or False | True | a stream may be made to wait for another, to use memory that the other has freed |
    /// | `lend_graph_pools` | True or False | True | what graphs have free may serve others between replays; False where other devices know its physical memory, as RDMA does |
    /// | `trim_after_ms` | milliseconds | none | memory that was idle for so long goes back to the device |
    /// | `expandable_segments` | True or False | True | where the device has virtual memory, memory is mapped into ranges of addresses |
    /// | `max_split_size_mb` | MiB | none | free blocks of this size and more are never split and never given to smaller requests; at least `large_segment_size_mb` |
    /// | `max_non_split_rounding_mb` | MiB | 20 | a request of `max_split_size_mb` or more takes a free block that is larger by less than this |
    /// | `small_segment_size_mb` | MiB | 2 | segments for blocks up to 1 MiB; at least 2 |
    /// | `large_segment_size_mb` | MiB | 20 | segments for blocks below half of it; at least 4 |
    /// | `rounding` | bytes | 512 | block sizes are multiples of this; a power of two from 64 to 65536 |
    ///
    /// An option that PyTorch has too means the same as in `PYTORCH_ALLOC_CONF`.
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

    /// The most bytes that may be held from the device.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// The policy for a device with `total` bytes of memory. Its limit is the lower one of the two
    /// limits.
    #[must_use]
    pub fn for_device(self, total: u64) -> Self {
        if self.fraction >= 1.0 {
            return self;
        }
        let part = (total as f64 * self.fraction) as u64;
        let limit = self.limit.min(part);
        self.with_limit(limit)
    }

    /// Whether a stream may be made to wait for another, to use memory that the other has freed.
    pub fn stream_waits(&self) -> bool {
        self.stream_waits
    }

    /// Whether the free memory of graphs' pools may serve others between replays.
    pub(crate) fn lends_graph_pools(&self) -> bool {
        self.lend_graph_pools
    }

    /// The time for which memory may be idle before it goes back to the device.
    pub fn trim_after(&self) -> Option<Duration> {
        self.trim_after
    }

    /// The bytes held from which on idle memory is given back; `None`: only when the limit is reached.
    pub(crate) fn collects_above(&self, limit: u64) -> Option<u64> {
        let part = (self.gc_threshold < 1.0 && limit != u64::MAX).then_some(self.gc_threshold);
        part.map(|part| (limit as f64 * part) as u64)
    }

    /// Block sizes are multiples of this many bytes, a power of two.
    pub fn rounding(&self) -> u64 {
        self.rounding
    }

    fn set(&mut self, option: &str, value: &str) -> Result<(), ConfigError> {
        match option {
            "limit_mb" => self.limit = mib("limit_mb", value, 1, "a number of MiB, at least 1")?,
            "expandable_segments" => self.expandable = truth("expandable_segments", value)?,
            "stream_waits" => self.stream_waits = truth("stream_waits", value)?,
            "lend_graph_pools" => self.lend_graph_pools = truth("lend_graph_pools", value)?,
            "per_process_memory_fraction" => {
                self.fraction = part("per_process_memory_fraction", value)?;
            }
            "garbage_collection_threshold" => {
                self.gc_threshold = part("garbage_collection_threshold", value)?;
            }
            "roundup_power2_divisions" => {
                self.divisions = value
                    .parse()
                    .ok()
                    .filter(|n: &u64| n.is_power_of_two() && *n <= 64)
                    .ok_or_else(|| ConfigError::Value {
                        option: "roundup_power2_divisions",
                        value: value.to_owned(),
                        expected: "a power of two from 1 to 64, one for all sizes",
                    })?;
            }
            "trim_after_ms" => {
                let after = value.parse().ok().filter(|&after| after > 0);
                let after = after.ok_or_else(|| ConfigError::Value {
                    option: "trim_after_ms",
                    value: value.to_owned(),
                    expected: "a number of milliseconds, at least 1",
                })?;
                self.trim_after = Some(Duration::from_millis(after));
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

    /// The size and class of a request of `size` bytes after rounding; `None` if no device could serve
    /// it.
    #[inline]
    pub(crate) fn request(&self, requested: u64) -> Option<Request> {
        if requested > REQUEST_MAX {
            return None;
        }
        let size = self.divide(requested);
        let rounded = (size.max(1) + self.rounding - 1) & !(self.rounding - 1);
        let class = if rounded <= SMALL_MAX {
            Class::Small
        } else {
            Class::Large
        };
        Some(Request {
            requested,
            size: rounded,
            class,
        })
    }

    /// A size as `roundup_power2_divisions` wants it.
    #[inline]
    fn divide(&self, size: u64) -> u64 {
        if self.divisions == 1 || size <= DIVIDED * self.divisions {
            return size;
        }
        size.next_multiple_of((1 << size.ilog2()) / self.divisions)
    }

    /// The sizes of a new segment for this request, in the order in which to try them: first one that
    /// leaves room for other requests, then one that just fits, for a device that has no more.
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

    /// The bytes that idle chunks must save for a request of `size` bytes, for lending to pay. `tight`:
    /// the device has refused before.
    pub(crate) fn saving(&self, size: u64, tight: bool) -> u64 {
        if tight {
            1
        } else {
            (size / LENDING_SHARE).max(1)
        }
    }

    /// The size of chunks of a class while `reserved` bytes are held.
    fn chunk(class: Class, reserved: u64, granularity: u64) -> u64 {
        let least = match class {
            Class::Small => CHUNK,
            Class::Large => 2 * CHUNK,
        };
        let share = reserved / CHUNK_SHARE / CHUNK * CHUNK;
        share.clamp(least, CHUNK_MAX).next_multiple_of(granularity)
    }

    /// The bytes of as many whole chunks as hold `bytes`.
    pub(crate) fn whole_chunks(class: Class, bytes: u64, reserved: u64, granularity: u64) -> u64 {
        bytes.next_multiple_of(Self::chunk(class, reserved + bytes, granularity))
    }

    /// Whether `bytes` that nobody asked for may be held beside `reserved` bytes.
    pub(crate) fn is_little(bytes: u64, reserved: u64) -> bool {
        bytes <= reserved / SURPLUS_SHARE
    }

    /// The sizes of the chunks that make up `bytes`, a multiple of the granularity, while `reserved`
    /// bytes are held.
    pub(crate) fn chunks(class: Class, bytes: u64, reserved: u64, granularity: u64) -> Vec<u64> {
        let most = Self::chunk(class, reserved + bytes, granularity);
        let whole = (bytes / most) as usize;
        let mut sizes = vec![most; whole];
        sizes.extend(Some(bytes % most).filter(|&rest| rest > 0));
        sizes
    }
}

fn truth(option: &'static str, value: &str) -> Result<bool, ConfigError> {
    match value {
        "True" | "true" | "1" => Ok(true),
        "False" | "false" | "0" => Ok(false),
        _ => Err(ConfigError::Value {
            option,
            value: value.to_owned(),
            expected: "True or False",
        }),
    }
}

fn part(option: &'static str, value: &str) -> Result<f64, ConfigError> {
    let part = value.parse().ok().filter(|part| (0.0..=1.0).contains(part));
    part.ok_or_else(|| ConfigError::Value {
        option,
        value: value.to_owned(),
        expected: "a number from 0 to 1",
    })
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

/// The size class of a block. Small and large blocks never share a segment, so that a small block that
/// lives long cannot keep a large segment.
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
    /// The bytes that the caller gets.
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
            ("backend:native", "an option of PyTorch's"),
            ("roundup_power2_divisions:[256:1]", "a power of two"),
            ("garbage_collection_threshold:1.5", "from 0 to 1"),
            ("per_process_memory_fraction:half", "from 0 to 1"),
            ("stream_waits:maybe", "True or False"),
            ("lend_graph_pools:2", "True or False"),
            ("trim_after_ms:0", "at least 1"),
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
    fn parts_of_the_device_and_of_powers_of_two_are_reckoned_as_pytorch_does() {
        let config = Config::parse("per_process_memory_fraction:0.5,limit_mb:100").unwrap();
        assert_eq!(config.clone().for_device(120 * MIB).limit(), 60 * MIB);
        assert_eq!(config.for_device(400 * MIB).limit(), 100 * MIB);
        let config = Config::parse("garbage_collection_threshold:0.5").unwrap();
        assert_eq!(config.collects_above(u64::MAX), None);
        assert_eq!(config.collects_above(10), Some(5));
        let config = Config::parse("roundup_power2_divisions:4").unwrap();
        let size = |size| config.request(size).unwrap().size;
        assert_eq!(
            [size(2048), size(2049)],
            [2048, 2560],
            "below, only blocks are rounded"
        );
        assert_eq!([size(4097), size(5120), size(5121)], [5120, 5120, 6144]);
        assert_eq!(size(1200 * KIB), 1280 * KIB);
        assert_eq!(config.request(4097).unwrap().requested, 4097);
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
