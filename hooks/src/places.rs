//! Counts of where operators ran: on the device, as host kernels on the CPU over the device's bytes, or in the CPU
//! kernels of the framework. Each call is counted. A mode for each of the two fallbacks warns of it, or forbids it.
//!
//! Calls of operators that have a number are counted without a lock that threads share. Times are measured for calls of
//! the framework always, and for the others only while the host asks for it, because then each call is waited for.

use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use outrigger_device::Code;
use outrigger_locks::{Mutex, Rank};
use outrigger_ops::{OperatorId, SHARDS, shard};
use serde::Serialize;

use crate::current::current_device;
use crate::observer::{self, Observation, ObservationKinds};
use crate::{Error, Result};

/// The place where an operator ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u32)]
pub enum Place {
    /// An operator of the driver. On a device that is the CPU, host kernels count as this.
    Device = 0,
    /// A kernel of Outrigger, on the CPU.
    HostKernel = 1,
    /// A kernel of the framework, on the CPU.
    Framework = 2,
}

/// The choice of a host for operators that run elsewhere than on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum FallbackMode {
    /// The call is counted.
    Silent = 0,
    /// The call is counted, and the first time of each operator is worth a warning.
    Warn = 1,
    /// The call is refused.
    Error = 2,
}

impl FallbackMode {
    const ALL: [(Self, &str); 3] = [
        (Self::Silent, "silent"),
        (Self::Warn, "warn"),
        (Self::Error, "error"),
    ];

    /// The mode of a number of the C ABI.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for any other number than 0, 1 and 2.
    pub fn from_number(number: u32) -> Result<Self> {
        match Self::ALL.get(number as usize) {
            Some((mode, _)) => Ok(*mode),
            None => Err(Error::new(
                Code::INVALID_ARGUMENT,
                format!(
                    "fallback mode {number} is unknown: it is 0 (silent), 1 (warn) or 2 (error)"
                ),
            )),
        }
    }

    fn word(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// The mode of each fallback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FallbackPolicy {
    /// The mode for kernels of the framework.
    pub framework: FallbackMode,
    /// The mode for host kernels on a device that is not the CPU.
    pub host: FallbackMode,
}

impl FallbackPolicy {
    /// The same mode for both.
    pub fn of(mode: FallbackMode) -> Self {
        Self {
            framework: mode,
            host: mode,
        }
    }

    /// Reads the form of `OUTRIGGER_FALLBACK`: a mode for both, or `framework:MODE`, `host:MODE`, or both with a comma
    /// between them. What is not named is silent.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` that names the word that is unknown.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |word: &str| {
            Error::new(
                Code::INVALID_ARGUMENT,
                format!(
                    "OUTRIGGER_FALLBACK={text}: '{word}' is unknown. It is silent, warn or error, or one of them for \
                     each place, as in framework:error,host:warn"
                ),
            )
        };
        let mode = |word: &str| {
            let found = FallbackMode::ALL.iter().find(|(_, name)| *name == word);
            found.map(|(mode, _)| *mode).ok_or_else(|| wrong(word))
        };
        if !text.contains(':') {
            return Ok(Self::of(mode(text)?));
        }
        let mut policy = Self::of(FallbackMode::Silent);
        for part in text.split(',') {
            match part.trim().split_once(':') {
                Some(("framework", word)) => policy.framework = mode(word)?,
                Some(("host", word)) => policy.host = mode(word)?,
                _ => return Err(wrong(part)),
            }
        }
        Ok(policy)
    }
}

impl std::fmt::Display for FallbackPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.framework == self.host {
            return f.write_str(self.framework.word());
        }
        let (framework, host) = (self.framework.word(), self.host.word());
        write!(f, "framework:{framework},host:{host}")
    }
}

static FRAMEWORK: AtomicU32 = AtomicU32::new(FallbackMode::Silent as u32);
static HOST: AtomicU32 = AtomicU32::new(FallbackMode::Silent as u32);

fn load(mode: &AtomicU32) -> FallbackMode {
    match mode.load(Ordering::Relaxed) {
        0 => FallbackMode::Silent,
        1 => FallbackMode::Warn,
        _ => FallbackMode::Error,
    }
}

/// The modes in force.
pub fn fallback_policy() -> FallbackPolicy {
    FallbackPolicy {
        framework: load(&FRAMEWORK),
        host: load(&HOST),
    }
}

/// Sets the modes for the whole process.
pub fn set_fallback_policy(policy: FallbackPolicy) {
    FRAMEWORK.store(policy.framework as u32, Ordering::Relaxed);
    HOST.store(policy.host as u32, Ordering::Relaxed);
}

/// Sets the same mode for both places.
pub fn set_fallback_mode(mode: FallbackMode) {
    set_fallback_policy(FallbackPolicy::of(mode));
}

/// The mode for kernels of the framework.
pub fn fallback_mode() -> FallbackMode {
    fallback_policy().framework
}

/// Figures of one operator at one place.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlaceEntry {
    /// The operator: a name of `docs/operators.md`, or as its framework calls it.
    pub operator: String,
    /// The place where it ran.
    pub place: Place,
    /// The number of calls. A replay counts for all operators of its graph.
    pub calls: u64,
    /// The number of calls that were timed.
    pub timed_calls: u64,
    /// The time of those, without the wait for work that was submitted before, and with staging.
    pub seconds: f64,
    /// Bytes copied between device and host for it.
    pub staged_bytes: u64,
}

/// The figures of an operator at one place.
#[derive(Clone, Copy, Default)]
struct Count {
    calls: u64,
    timed_calls: u64,
    nanoseconds: u64,
    staged_bytes: u64,
}

/// The figures of one thread: calls, timed calls, nanoseconds and staged bytes, on the device and as host kernels.
type Counts = Box<[[[AtomicU64; 4]; 2]]>;

/// The figures of each thread, by its number. The last ones are of all threads without a number.
static COUNTS: [OnceLock<Counts>; SHARDS + 1] = [const { OnceLock::new() }; SHARDS + 1];

/// Calls of the framework's kernels.
static FRAMEWORK_COUNTS: Mutex<Option<HashMap<String, Count>>> = Mutex::new(Rank::Fallbacks, None);

/// The operators and places of past warnings, so that a warning comes once for each of them.
static WARNED: Mutex<Option<HashSet<(String, Place)>>> = Mutex::new(Rank::Fallbacks, None);

/// The checks that run with each call, as bits.
static WATCHED: AtomicU32 = AtomicU32::new(0);
const TIMING: u32 = 1;
const NAN: u32 = 2;
const INFINITE: u32 = 4;

fn watch(bits: u32, on: bool) {
    if on {
        WATCHED.fetch_or(bits, Ordering::Relaxed);
    } else {
        WATCHED.fetch_and(!bits, Ordering::Relaxed);
    }
}

/// Whether calls are timed or guarded.
#[inline]
pub(crate) fn is_watched() -> bool {
    WATCHED.load(Ordering::Relaxed) != 0
}

/// Whether calls are timed: each one is waited for then.
pub(crate) fn is_timing() -> bool {
    WATCHED.load(Ordering::Relaxed) & TIMING != 0
}

/// Times each call from now on, or no longer. While calls are timed, a stream runs one at a time.
pub fn set_operator_timing(on: bool) {
    watch(TIMING, on);
}

/// The values that a guard behind each operator looks for in its outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NanGuard {
    /// There is no guard.
    Off,
    /// NaN.
    Nan,
    /// NaN, and elements that are infinite.
    NanAndInfinite,
}

impl NanGuard {
    /// Reads the form of `OUTRIGGER_NAN_GUARD`.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        match text {
            "0" => Ok(Self::Off),
            "nan" => Ok(Self::Nan),
            "1" => Ok(Self::NanAndInfinite),
            _ => Err(Error::new(
                Code::INVALID_ARGUMENT,
                format!(
                    "OUTRIGGER_NAN_GUARD={text} is unknown: it is 0, 1, or nan, which lets infinite elements pass"
                ),
            )),
        }
    }
}

/// The guard in force.
pub(crate) fn nan_guard() -> NanGuard {
    match WATCHED.load(Ordering::Relaxed) {
        bits if bits & INFINITE != 0 => NanGuard::NanAndInfinite,
        bits if bits & NAN != 0 => NanGuard::Nan,
        _ => NanGuard::Off,
    }
}

/// Puts a guard behind each operator from now on, eager or recorded. Where it finds something, the stream fails with
/// `EXECUTION`, and the text names the operator, the output, and what its inputs were.
pub fn set_nan_guard(guard: NanGuard) {
    watch(NAN, guard != NanGuard::Off);
    watch(INFINITE, guard == NanGuard::NanAndInfinite);
}

#[cold]
fn new_counts() -> Counts {
    // Zeroed pages that nobody writes to take no memory, and most operators are never called.
    let zeroed = Box::<[[[AtomicU64; 4]; 2]]>::new_zeroed_slice(OperatorId::MOST);
    // SAFETY: all bits 0 are the number 0.
    unsafe { zeroed.assume_init() }
}

/// Adds to numbers of an operator.
#[inline(always)] // with numbers that are known, most of it is left out
fn add(operator: OperatorId, place: Place, numbers: [u64; 4]) {
    let shard = shard();
    let counts = COUNTS[shard.unwrap_or(SHARDS)].get_or_init(new_counts);
    let sums = &counts[operator.index() as usize][place as usize & 1];
    for (sum, number) in sums.iter().zip(numbers) {
        if shard.is_none() {
            sum.fetch_add(number, Ordering::Relaxed);
        } else if number != 0 {
            // Nobody else writes to it, except for a reset, which a call at the same time may undo.
            sum.store(sum.load(Ordering::Relaxed) + number, Ordering::Relaxed);
        }
    }
}

/// Counts calls of an operator on the device or as host kernels.
#[inline]
pub(crate) fn count(operator: OperatorId, place: Place, calls: u64) {
    add(operator, place, [calls, 0, 0, 0]);
}

/// Counts a call that was timed.
#[cold]
pub(crate) fn count_timed(operator: OperatorId, place: Place, nanoseconds: u64) {
    add(operator, place, [1, 1, nanoseconds, 0]);
}

/// Counts bytes that were copied between device and host for a host kernel.
#[cold]
pub(crate) fn count_staged(operator: OperatorId, bytes: u64) {
    add(operator, Place::HostKernel, [0, 0, 0, bytes]);
}

fn warned(operator: &str, place: Place) -> bool {
    let mut all = WARNED.lock();
    let all = all.get_or_insert_default();
    !all.insert((operator.to_owned(), place))
}

/// Lets an operator run as a host kernel on a device that is not the CPU.
///
/// # Errors
/// `UNSUPPORTED` if the mode is to refuse that.
#[inline]
pub(crate) fn host_kernel_begin(operator: OperatorId) -> Result<()> {
    match load(&HOST) {
        FallbackMode::Silent => Ok(()),
        mode => host_kernel_noticed(operator, mode),
    }
}

#[cold]
fn host_kernel_noticed(operator: OperatorId, mode: FallbackMode) -> Result<()> {
    let name = operator.name().to_string_lossy();
    if mode == FallbackMode::Error {
        return Err(Error::new(
            Code::UNSUPPORTED,
            "the driver has no operator for these arguments, and OUTRIGGER_FALLBACK=host:error forbids a kernel of \
             Outrigger on the CPU (host:warn and host:silent allow it)",
        )
        .in_operator(name));
    }
    if !warned(&name, Place::HostKernel) {
        tracing::warn!(
            target: "outrigger::fallback",
            operator = &*name,
            "the driver has no operator for these arguments, so a host kernel runs on the CPU"
        );
        observer::observe(&Observation {
            kind: ObservationKinds::HOST_KERNEL,
            device: current_device(),
            name: &name,
            ..Observation::default()
        });
    }
    Ok(())
}

/// Asks for permission to run `operator` in a kernel of the framework. Returns true if the caller should warn: in mode
/// `Warn`, the first time for this operator.
///
/// # Errors
/// `UNSUPPORTED` in mode `Error`.
pub fn fallback_begin(operator: &str) -> Result<bool> {
    match load(&FRAMEWORK) {
        FallbackMode::Silent => Ok(false),
        FallbackMode::Warn => Ok(!warned(operator, Place::Framework)),
        FallbackMode::Error => Err(Error::new(
            Code::UNSUPPORTED,
            "the device has no kernel for this operator with these arguments, and \
             OUTRIGGER_FALLBACK=error forbids running it on the CPU (warn and silent allow it)",
        )
        .in_operator(operator)),
    }
}

/// Counts a call of the framework's kernel that has run.
pub fn fallback_end(operator: &str, nanoseconds: u64, staged_bytes: u64) {
    {
        let mut counts = FRAMEWORK_COUNTS.lock();
        let counts = counts.get_or_insert_default();
        let count = match counts.get_mut(operator) {
            Some(count) => count,
            None => counts.entry(operator.to_owned()).or_default(),
        };
        count.calls += 1;
        count.timed_calls += 1;
        count.nanoseconds += nanoseconds;
        count.staged_bytes += staged_bytes;
    }
    tracing::trace!(target: "outrigger::fallback", operator, nanoseconds, staged_bytes);
    if observer::listening(ObservationKinds::FALLBACK) {
        observer::observe(&Observation {
            kind: ObservationKinds::FALLBACK,
            device: current_device(),
            size: staged_bytes,
            name: operator,
            nanoseconds,
            ..Observation::default()
        });
    }
}

/// All operators that ran, by place; within a place the most expensive first.
pub fn operator_report() -> Vec<PlaceEntry> {
    let entry = |operator: String, place, count: Count| PlaceEntry {
        operator,
        place,
        calls: count.calls,
        timed_calls: count.timed_calls,
        seconds: count.nanoseconds as f64 * 1e-9,
        staged_bytes: count.staged_bytes,
    };
    let mut entries = Vec::new();
    for index in 0..OperatorId::MOST as u32 {
        let Some(id) = OperatorId::from_index(index) else {
            break;
        };
        for place in [Place::Device, Place::HostKernel] {
            let mut sum = Count::default();
            for counts in COUNTS.iter().filter_map(OnceLock::get) {
                let [calls, timed, nanoseconds, staged] = &counts[index as usize][place as usize];
                sum.calls += calls.load(Ordering::Relaxed);
                sum.timed_calls += timed.load(Ordering::Relaxed);
                sum.nanoseconds += nanoseconds.load(Ordering::Relaxed);
                sum.staged_bytes += staged.load(Ordering::Relaxed);
            }
            if sum.calls > 0 {
                entries.push(entry(id.name().to_string_lossy().into_owned(), place, sum));
            }
        }
    }
    let framework = FRAMEWORK_COUNTS.lock();
    let calls = framework.iter().flatten();
    entries.extend(calls.map(|(name, count)| entry(name.clone(), Place::Framework, *count)));
    drop(framework);
    entries.sort_by(|a, b| {
        let by_cost = b.seconds.total_cmp(&a.seconds).then(b.calls.cmp(&a.calls));
        let place = a.place.cmp(&b.place);
        place
            .then(by_cost)
            .then_with(|| a.operator.cmp(&b.operator))
    });
    entries
}

/// Operators that ran in kernels of the framework, the most expensive first.
pub fn fallback_report() -> Vec<PlaceEntry> {
    let mut entries = operator_report();
    entries.retain(|entry| entry.place == Place::Framework);
    entries
}

/// Forgets all counts and warnings.
pub fn operator_reset() {
    for numbers in COUNTS
        .iter()
        .filter_map(OnceLock::get)
        .flatten()
        .flatten()
        .flatten()
    {
        numbers.store(0, Ordering::Relaxed);
    }
    *FRAMEWORK_COUNTS.lock() = None;
    *WARNED.lock() = None;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_a_mode_for_both_places_or_one_for_each() {
        use FallbackMode::{Error, Silent, Warn};
        let read = |text| FallbackPolicy::parse(text).map(|policy| (policy.framework, policy.host));
        assert_eq!(read("warn").unwrap(), (Warn, Warn));
        assert_eq!(read("framework:error,host:warn").unwrap(), (Error, Warn));
        assert_eq!(read("host:error").unwrap(), (Silent, Error));
        for text in ["silent", "error", "framework:error,host:warn"] {
            assert_eq!(FallbackPolicy::parse(text).unwrap().to_string(), text);
        }
        for (text, word) in [
            ("loud", "loud"),
            ("host:loud", "loud"),
            ("cpu:warn", "cpu:warn"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(&format!("'{word}' is unknown")), "{error}");
        }
    }
}
