//! The type of a test, and the list of all tests. The macro `tests!` makes a module's part of the list.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Context, Need, Verdict};

/// A group of tests. `core` is what every driver passes; the others follow what a driver declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tier {
    /// The mandatory entries, alone and with wrong arguments.
    Core,
    /// Order, events and failures over several queues.
    Stream,
    /// Memory of all kinds.
    Memory,
    /// Native graphs.
    Graph,
    /// Operators against references in f64.
    Ops,
    /// The C ABI of the host side, over this driver.
    HostAbi,
    /// Many threads, many queues, little memory, long runs.
    Stress,
    /// The parts above the driver, while the driver is made to fail.
    Fault,
    /// Figures; nothing fails for being slow.
    Perf,
}

impl Tier {
    /// All tiers, in the order in which they run.
    pub const ALL: [Self; 9] = [
        Self::Core,
        Self::Stream,
        Self::Memory,
        Self::Graph,
        Self::Ops,
        Self::HostAbi,
        Self::Stress,
        Self::Fault,
        Self::Perf,
    ];

    /// The name, which is the first part of the ids of its tests.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Core => "core",
            Self::Stream => "stream",
            Self::Memory => "memory",
            Self::Graph => "graph",
            Self::Ops => "ops",
            Self::HostAbi => "host-abi",
            Self::Stress => "stress",
            Self::Fault => "fault",
            Self::Perf => "perf",
        }
    }

    /// The tier of an id or of its first part.
    pub fn of(id: &str) -> Option<Self> {
        let name = id.split('.').next()?;
        Self::ALL.into_iter().find(|tier| tier.name() == name)
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The seconds that a test may take if it says nothing else. Far more than it needs on a busy machine.
pub(crate) const DEFAULT_LIMIT: u64 = 30;

/// A test of the suite.
#[derive(Debug)]
pub struct Test {
    /// `tier.subject.what`: unique, and never changed once it was published.
    pub id: &'static str,
    /// The rules that it checks, as `R16` or `H3`. At least one.
    pub rules: &'static [&'static str],
    /// The capabilities that the driver must declare for the test. A test whose needs are declared always runs.
    pub needs: &'static [Need],
    /// Capabilities of which this is the test that they fail cleanly where they are not declared. It
    /// runs on every driver and asks [`Context::has`].
    pub absent: &'static [Need],
    /// One sentence that says what a right driver does.
    pub about: &'static str,
    /// Whether it has code compiled that is broken: what the compiler of an SDK prints then is not the driver's fault
    /// (R6).
    pub compiler_prints: bool,
    /// Seconds after which it is killed.
    pub limit: u64,
    /// The test.
    pub run: fn(&Context) -> Verdict,
}

impl Test {
    /// The tier of the test.
    ///
    /// # Panics
    /// If the id starts with none; a test of this crate sees to it that all do.
    pub fn tier(&self) -> Tier {
        Tier::of(self.id).expect("every id starts with the name of a tier")
    }

    /// The time after which the test is killed.
    pub fn limit(&self) -> Duration {
        Duration::from_secs(self.limit)
    }

    /// The sentence that says what a right driver does, as one line.
    pub fn about(&self) -> String {
        self.about.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

/// The work of a second process for a test, found by its name: see [`Context::helper`].
pub struct Helper {
    /// The name by which tests ask for it.
    pub name: &'static str,
    /// The function of the helper. Standard input and output are pipes to the test.
    pub run: fn(&Context) -> Verdict,
}

/// Makes the `TESTS` of a module. Each test is a function of the module with the name of the last part
/// of its id, or the expression behind `run`; the doc comment says what a right driver does:
///
/// ```ignore
/// tests! { "stream.order":
///     /// A copy sees what the fill before it wrote.
///     copy_after_fill: R16;
///     /// A wait holds a queue of another device.
///     wait_over_devices: R24 R17, needs TwoDevices Timing, limit 60;
///     /// A pattern of two bytes is repeated.
///     fill_of_two: R28, run |context| fill(context, 2);
/// }
/// ```
///
/// `absent CAPABILITY` marks the test that the capability fails cleanly where it is not declared, and `lets compiler print`
/// one that has broken code compiled.
macro_rules! tests {
    ($subject:literal: $(
        $(#[doc = $about:literal])+
        $name:ident: $($rule:ident)+
        $(, needs $($need:ident)+)?
        $(, absent $($absent:ident)+)?
        $(, lets $who:ident print)?
        $(, limit $limit:literal)?
        $(, run $run:expr)?
    ;)+) => {
        pub(crate) const TESTS: &[$crate::Test] = &[$($crate::Test {
            id: concat!($subject, ".", stringify!($name)),
            rules: &[$(stringify!($rule)),+],
            needs: &[$($($crate::Need::$need),+)?],
            absent: &[$($($crate::Need::$absent),+)?],
            about: concat!($($about, " "),+),
            compiler_prints: $crate::test::tests!(@prints $($who)?),
            limit: $crate::test::tests!(@limit $($limit)?),
            run: $crate::test::tests!(@run $name $($run)?),
        }),+];
    };
    (@prints) => { false };
    (@prints compiler) => { true };
    (@limit) => { $crate::test::DEFAULT_LIMIT };
    (@limit $limit:literal) => { $limit };
    (@run $name:ident) => { $name };
    (@run $name:ident $run:expr) => { $run };
}
pub(crate) use tests;

/// All tests, in the order of tiers and within them of modules.
pub fn all() -> Vec<&'static Test> {
    let mut all: Vec<&Test> = crate::tests::MODULES.iter().copied().flatten().collect();
    all.sort_by_key(|test| test.tier());
    all
}

/// The test of an id.
pub fn find(id: &str) -> Option<&'static Test> {
    let mut tests = crate::tests::MODULES.iter().copied().flatten();
    tests.find(|test| test.id == id)
}

/// The helper of a name.
pub fn helper(name: &str) -> Option<&'static Helper> {
    let mut helpers = crate::tests::HELPERS.iter().copied().flatten();
    helpers.find(|helper| helper.name == name)
}
