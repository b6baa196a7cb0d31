//! The jobs of a test run: which jobs exist, what they need from the machine and read of the repository, and which run has which
//! jobs. This module runs nothing.

use std::collections::BTreeSet;

use clap::ValueEnum;

use super::sanitizers::{LOWER, Sanitizer, UPPER};
use super::seed::Seed;
use crate::setup::Need;

/// A suite of tests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Suite {
    /// Formatting
    Fmt,
    /// Clippy, with warnings denied
    Clippy,
    /// The committed generated sources equal a fresh generation
    Gen,
    /// The invariants of ARCHITECTURE.md
    Tidy,
    /// The binary interface of both contracts equals the baseline
    Abi,
    /// Everything in Rust, with hosts in C and C++
    Rust,
    /// The examples in the documentation of the crates
    Doc,
    /// The conformance suite on every driver that needs no hardware
    Conformance,
    /// The conformance suite on drivers that are wrong on purpose: each must be caught
    Mutants,
    /// The Rust tests of device, handles, allocator, graph and hooks under the thread and the address sanitizer
    Sanitizers,
    /// torch's own operator database on the device: two samples of each operator; with --all all samples, and seven
    /// dtypes on every kind of device
    Sweep,
    /// The PyTorch tests on every kind of device, and as MTIA
    Torch,
    /// The archive for C and C++ hosts: unpacked, its examples built and run; hosts under sanitizers
    Hosts,
    /// With --all: random input for every reader, and random calls of the C ABI
    Fuzz,
    /// Random calls of the host contract from eight threads with faults; for longer with --all
    Soak,
    /// With --all: programs with libraries, programs for CUDA, and libraries of Triton's kernels, in environments of their own
    Libraries,
    /// The pages of `outrigger memory` and `outrigger conformance`, in a headless browser
    Pages,
    /// The wheels: installed into an empty environment, with a vendor's package
    Wheels,
    /// With --all: the demo, which trains two models, on every kind of device
    Demo,
}

impl Suite {
    /// True if it needs the project's Python environment.
    pub(super) fn needs_environment(self) -> bool {
        self == Self::Gen || self.needs_shim()
    }

    /// True if it needs PyTorch with the device in it.
    pub(super) fn needs_shim(self) -> bool {
        matches!(
            self,
            Self::Sweep | Self::Torch | Self::Libraries | Self::Wheels | Self::Demo
        )
    }

    /// True if its outcome depends on a file of the repository other than through what was built of it.
    pub(super) fn reads(self, file: &str) -> bool {
        const PYTHON: [&str; 3] = ["frameworks/torch/", "demo/", "packaging/"];
        // Folders that the tests in Python read besides: drivers in C, the package of a vendor, headers, pages.
        const READ: [&str; 4] = ["docs/", "examples/", "include/", "tests/drivers/"];
        let below = |folders: &[&str]| folders.iter().any(|folder| file.starts_with(folder));
        match self {
            Self::Tidy => true,
            Self::Pages => file.starts_with("cli/"),
            _ if self.needs_shim() => below(&PYTHON) || below(&READ),
            _ => !below(&PYTHON),
        }
    }

    /// The needs from the machine, besides Rust and a linker.
    fn needs(self) -> &'static [Need] {
        match self {
            Self::Fmt => &[Need::Rustfmt],
            Self::Tidy => &[Need::Git],
            Self::Clippy => &[Need::Clippy, Need::Compiler],
            Self::Gen => &[Need::Compiler, Need::Python, Need::Venv, Need::Clang],
            Self::Rust => &[
                Need::Nextest,
                Need::Compiler,
                Need::Make,
                Need::Gcc,
                Need::Clang,
                Need::OpenClLoader,
                Need::OpenClPlatform,
            ],
            Self::Abi | Self::Doc | Self::Fuzz | Self::Soak => &[Need::Compiler],
            Self::Mutants => &[Need::Compiler, Need::Make],
            Self::Conformance => &[
                Need::Compiler,
                Need::Make,
                Need::OpenClLoader,
                Need::OpenClPlatform,
            ],
            Self::Sanitizers => &[Need::Nextest, Need::Compiler, Need::RustSource],
            Self::Sweep | Self::Torch | Self::Libraries | Self::Wheels | Self::Demo => &[
                Need::Compiler,
                Need::Make,
                Need::Python,
                Need::Venv,
                Need::PythonHeaders,
                Need::OpenClLoader,
                Need::OpenClPlatform,
            ],
            Self::Hosts => &[
                Need::Gcc,
                Need::Clang,
                Need::Make,
                Need::CMake,
                Need::PkgConfig,
            ],
            Self::Pages => &[Need::Compiler, Need::Python, Need::Venv, Need::Browser],
        }
    }
}

/// The driver in C that is there to be copied, by its folder.
pub(super) const C_DRIVER: &str = "examples/driver-c";

/// A driver that a vendor made of that one over an SDK, by its folder.
pub(super) const TRIAL_DRIVER: &str = "tests/trial";

/// The second driver in C, which is a single file.
pub(super) const SECOND_DRIVER: &str = "tests/drivers/dispatcher.c";

/// The driver with an operator library, by its folder.
pub(super) const LIBRARY_DRIVER: &str = "tests/library";

/// The driver for OpenCL, by its folder.
pub(super) const OPENCL_DRIVER: &str = "drivers/opencl";

/// The work of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Work {
    /// A Cargo command, which passes or fails as a whole.
    Check(&'static [&'static str]),
    Rust,
    Conformance {
        driver: &'static str,
        /// Filters of the command line; none for the whole suite.
        filters: &'static [&'static str],
    },
    /// The core tier on a driver of each version of the contract that is frozen.
    Frozen,
    Mutants {
        /// One part of them, by the seed; else all.
        in_part: bool,
    },
    Sanitizer {
        sanitizer: Sanitizer,
        packages: &'static [&'static str],
    },
    Sweep {
        driver: &'static str,
        device: &'static str,
        /// By their names in torch; each is a sweep of its own.
        dtypes: &'static [&'static str],
        /// The number of samples of each operator; all for None.
        samples: Option<u32>,
    },
    Torch {
        driver: &'static str,
        device: &'static str,
        /// Of these files, and with these options; of all files for none.
        options: &'static [&'static str],
        /// Only what depends on the driver, with a tenth of the rest by the seed.
        in_part: bool,
    },
    Libraries {
        driver: &'static str,
        /// Of `requirements-{packages}.txt`.
        packages: &'static str,
        files: &'static [&'static str],
    },
    Hosts,
    Fuzz {
        seconds: u32,
    },
    Soak {
        seconds: u32,
    },
    Pages,
    Wheels {
        /// The versions of torch that the wheel serves besides the project's. If there are some, each environment
        /// gets its torch from PyPI, as a user's does.
        others: &'static [&'static str],
    },
    Demo {
        driver: &'static str,
        device: &'static str,
    },
}

/// A job: one line of the summary.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Job {
    pub(super) suite: Suite,
    pub(super) name: &'static str,
    pub(super) work: Work,
    /// About how long it takes on two quiet cores, in seconds, without what is built for it.
    pub(super) seconds: u32,
    /// Whether the job keeps about one core busy: two of them run at a time.
    pub(super) narrow: bool,
    /// Operators of PyTorch have been compiled ahead of time; else the store on disk is empty, as at a user's first start.
    pub(super) compiled: bool,
    /// Once it has passed in this clone, the jobs of this group take turns.
    turns_again: Option<&'static str>,
    tier: Tier,
}

impl Job {
    const fn new(suite: Suite, name: &'static str, work: Work, seconds: u32) -> Self {
        Self {
            suite,
            name,
            work,
            seconds,
            narrow: false,
            compiled: false,
            turns_again: None,
            tier: Tier::Every,
        }
    }

    const fn narrow(self) -> Self {
        Self {
            narrow: true,
            ..self
        }
    }

    const fn compiled(self) -> Self {
        Self {
            compiled: true,
            ..self
        }
    }

    const fn in_turn_again(self, group: &'static str) -> Self {
        Self {
            turns_again: Some(group),
            ..self
        }
    }

    const fn only(self, tier: Tier) -> Self {
        Self { tier, ..self }
    }

    /// The driver that it runs on, if it is of one.
    pub(super) fn driver(&self) -> Option<&'static str> {
        match self.work {
            Work::Conformance { driver, .. }
            | Work::Sweep { driver, .. }
            | Work::Torch { driver, .. }
            | Work::Libraries { driver, .. }
            | Work::Demo { driver, .. } => Some(driver),
            _ => None,
        }
    }

    /// True if it belongs to a run of everything, or to the short one of a seed.
    fn is_of(&self, everything: bool, seed: Seed) -> bool {
        match self.tier {
            Tier::Every => true,
            Tier::Short => !everything,
            Tier::Everything => everything,
            Tier::InTurn => everything || self.has_its_turn(seed),
        }
    }

    /// True if it need not run again for a change while another one of its group does.
    pub(super) fn waits(&self, seed: Seed) -> bool {
        self.turns_again
            .is_some_and(|group| !self.is_chosen(seed, group, |job| job.turns_again == Some(group)))
    }

    /// True if it is the one of its suite whose turn it is.
    fn has_its_turn(&self, seed: Seed) -> bool {
        let takes_part = |job: &Job| job.suite == self.suite && job.tier == Tier::InTurn;
        self.is_chosen(seed, &format!("{:?}", self.suite), takes_part)
    }

    /// True if the choice by this name is for it, of those jobs that `takes_part` lets in.
    fn is_chosen(&self, seed: Seed, name: &str, takes_part: impl Fn(&Job) -> bool) -> bool {
        let turns: Vec<&Job> = JOBS.iter().filter(|job| takes_part(job)).collect();
        turns[seed.pick(name, turns.len())].name == self.name
    }
}

/// The runs that a job belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tier {
    /// All of them.
    Every,
    /// Runs without `--all`: a longer job takes its place there.
    Short,
    /// Runs with `--all`.
    Everything,
    /// Runs with `--all`; of the others, the seed chooses one job of each suite.
    InTurn,
}

const UNIFIED: &str = "host?face=unified";
const DISCRETE: &str = "host?face=discrete";
const LIBRARY: &str = "tests/library?devices=2";
/// The operators and graphs of `host` as those of a driver.
const NATIVE: &str = "host?face=discrete&operators=native&graphs=native";
/// Memory that only the driver reaches, and no host functions.
const SECOND: &str = "tests/drivers/dispatcher.c?devices=2&memory=1073741824";

/// PoCL, which runs on every CPU, as a device whose memory the host does not see.
const OPENCL: &str = "drivers/opencl?host_visible=0";

/// Intel's OpenCL for CPUs, which is fetched from PyPI.
const INTEL: &str = "drivers/opencl?platform=intel&host_visible=0";

/// The dtypes of the sweep, as torch names them.
const DTYPES: &[&str] = &[
    "float32",
    "float64",
    "bfloat16",
    "float16",
    "int64",
    "bool",
    "complex64",
];

/// All of the conformance suite but operators in other element types, and those that run all operators of a type at once.
const TWO_DTYPES: &[&str] = &[
    "core",
    "stream",
    "memory",
    "graph",
    "fault",
    "stress",
    "perf",
    "host-abi",
    "ops.call",
    "ops.launch",
    "ops.own",
    "ops.prepare",
    "ops.*.f32",
    "ops.*.i64",
];

const CLIPPY: &[&str] = &[
    "clippy",
    "--workspace",
    "--all-targets",
    "--",
    "--deny=warnings",
];

const fn check(suite: Suite, name: &'static str, args: &'static [&'static str], s: u32) -> Job {
    Job::new(suite, name, Work::Check(args), s)
}

const fn conformance(name: &'static str, driver: &'static str) -> Job {
    let filters = &[];
    let work = Work::Conformance { driver, filters };
    Job::new(Suite::Conformance, name, work, 40)
}

/// The suite over OpenCL, where each operator compiles its kernels: with operators in two element types or all.
const fn conformance_opencl(
    name: &'static str,
    driver: &'static str,
    filters: &'static [&'static str],
    tier: Tier,
) -> Job {
    let work = Work::Conformance { driver, filters };
    Job::new(Suite::Conformance, name, work, 120).only(tier)
}

const fn sanitizer(
    name: &'static str,
    sanitizer: Sanitizer,
    packages: &'static [&'static str],
) -> Job {
    let work = Work::Sanitizer {
        sanitizer,
        packages,
    };
    Job::new(Suite::Sanitizers, name, work, 120).only(Tier::InTurn)
}

/// A sweep of two samples of each case, which takes about half a minute for each dtype.
const fn sweep(
    name: &'static str,
    driver: &'static str,
    device: &'static str,
    dtypes: &'static [&'static str],
    tier: Tier,
) -> Job {
    let work = Work::Sweep {
        driver,
        device,
        dtypes,
        samples: Some(2),
    };
    Job::new(Suite::Sweep, name, work, 80 * dtypes.len() as u32).only(tier)
}

/// A sweep of all samples in float32.
const fn whole_sweep(name: &'static str, driver: &'static str) -> Job {
    let work = Work::Sweep {
        driver,
        device: "outrigger",
        dtypes: &["float32"],
        samples: None,
    };
    Job::new(Suite::Sweep, name, work, 240).only(Tier::Everything)
}

/// PyTorch tests of these files or with these options; all without any.
const fn torch(
    name: &'static str,
    driver: &'static str,
    device: &'static str,
    options: &'static [&'static str],
    seconds: u32,
) -> Job {
    let work = Work::Torch {
        driver,
        device,
        options,
        in_part: false,
    };
    Job::new(Suite::Torch, name, work, seconds)
}

/// All PyTorch tests, with `--all`.
const fn whole_torch(name: &'static str, driver: &'static str, device: &'static str) -> Job {
    torch(name, driver, device, &[], 120).only(Tier::Everything)
}

/// Tests that depend on the driver, and a tenth of the rest. With `--all` all tests run there.
const fn torch_in_part(name: &'static str, driver: &'static str, device: &'static str) -> Job {
    let work = Work::Torch {
        driver,
        device,
        options: &[],
        in_part: true,
    };
    Job::new(Suite::Torch, name, work, 30)
        .only(Tier::Short)
        .in_turn_again("drivers")
}

/// The tests of graphs, where each operator compiles its kernels. With `--all` all tests run there.
const fn graphs(name: &'static str, driver: &'static str) -> Job {
    torch(name, driver, "outrigger", &["test_graphs.py"], 20).only(Tier::InTurn)
}

/// Kernels of Triton in groups of many items, as on a GPU.
const fn in_groups(
    name: &'static str,
    driver: &'static str,
    options: &'static [&'static str],
) -> Job {
    torch(name, driver, "outrigger", options, 100).only(Tier::Everything)
}

/// All models of public libraries; every run has three of them on the unified face.
const fn models(name: &'static str, driver: &'static str) -> Job {
    let options = &["test_models.py", "--all"];
    torch(name, driver, "outrigger", options, 60).only(Tier::Everything)
}

const AS_CUDA: &[&str] = &["test_as_cuda.py"];
const KERNELS: &[&str] = &["test_triton_libraries.py"];

/// All tests of files with whole programs, on the unified face, in the environment with some packages.
const fn libraries(
    name: &'static str,
    packages: &'static str,
    files: &'static [&'static str],
    seconds: u32,
) -> Job {
    let driver = UNIFIED;
    Job::new(
        Suite::Libraries,
        name,
        Work::Libraries {
            driver,
            packages,
            files,
        },
        seconds,
    )
    .only(Tier::Everything)
}

/// Operators through torch.compile, and what else is compiled where there are more files.
const fn compiled(
    name: &'static str,
    driver: &'static str,
    options: &'static [&'static str],
) -> Job {
    torch(name, driver, "outrigger", options, 300).only(Tier::Everything)
}

const fn wheels(name: &'static str, others: &'static [&'static str], tier: Tier) -> Job {
    let seconds = 70 + 600 * others.len() as u32;
    Job::new(Suite::Wheels, name, Work::Wheels { others }, seconds).only(tier)
}

const fn soak(name: &'static str, seconds: u32, tier: Tier) -> Job {
    Job::new(Suite::Soak, name, Work::Soak { seconds }, seconds)
        .narrow()
        .only(tier)
}

const fn demo(name: &'static str, driver: &'static str, device: &'static str) -> Job {
    Job::new(Suite::Demo, name, Work::Demo { driver, device }, 120).only(Tier::Everything)
}

/// All jobs, in the order in which they run. Narrow ones stand together, the long ones first.
static JOBS: &[Job] = &[
    check(Suite::Fmt, "fmt", &["fmt", "--all", "--check"], 5),
    check(Suite::Tidy, "tidy", &["xtask", "tidy"], 5),
    check(Suite::Abi, "abi", &["xtask", "abi"], 5),
    Job::new(Suite::Rust, "rust", Work::Rust, 100),
    check(Suite::Doc, "doc", &["test", "--workspace", "--doc"], 5),
    check(Suite::Clippy, "clippy", CLIPPY, 60),
    check(Suite::Gen, "gen", &["xtask", "gen", "--check"], 20),
    conformance(
        "conf unified",
        "host?devices=2&memory=256M&face=unified&virtual_memory=on",
    ),
    Job::new(Suite::Conformance, "conf frozen", Work::Frozen, 20),
    conformance(
        "conf discrete",
        "host?devices=2&memory=256M&face=discrete&virtual_memory=on",
    )
    .only(Tier::InTurn),
    conformance(
        "conf native",
        "host?devices=2&memory=256M&face=discrete&graphs=native&operators=native&virtual_memory=off",
    )
    .only(Tier::InTurn),
    conformance(
        "conf driver-c",
        "examples/driver-c?devices=2&memory=268435456",
    )
    .only(Tier::InTurn),
    conformance(
        "conf second",
        "tests/drivers/dispatcher.c?devices=2&memory=268435456",
    )
    .only(Tier::InTurn),
    conformance("conf trial", "tests/trial?devices=2").only(Tier::InTurn),
    conformance_opencl("conf opencl", OPENCL, TWO_DTYPES, Tier::InTurn),
    conformance_opencl("conf intel", INTEL, TWO_DTYPES, Tier::InTurn),
    conformance_opencl("whole opencl", OPENCL, &[], Tier::Everything),
    conformance_opencl("whole intel", INTEL, &[], Tier::Everything),
    conformance_opencl(
        "conf opencl seen",
        "drivers/opencl?host_visible=1",
        &[],
        Tier::Everything,
    ),
    conformance_opencl(
        "conf intel seen",
        "drivers/opencl?platform=intel&host_visible=1",
        &[],
        Tier::Everything,
    ),
    sanitizer("threads below", Sanitizer::Thread, LOWER),
    sanitizer("threads above", Sanitizer::Thread, UPPER),
    sanitizer("addresses below", Sanitizer::Address, LOWER),
    sanitizer("addresses above", Sanitizer::Address, UPPER),
    Job::new(Suite::Mutants, "mutants in part", Work::Mutants { in_part: true }, 70)
        .only(Tier::Short),
    Job::new(Suite::Mutants, "mutants", Work::Mutants { in_part: false }, 300)
        .only(Tier::Everything),
    Job::new(Suite::Fuzz, "fuzz 60 s", Work::Fuzz { seconds: 60 }, 450).only(Tier::Everything),
    torch("torch unified", UNIFIED, "outrigger", &[], 200),
    torch_in_part("compiled in part", UNIFIED, "outrigger").compiled(),
    torch_in_part("discrete in part", DISCRETE, "outrigger"),
    torch_in_part("driver-c in part", C_DRIVER, "outrigger"),
    torch_in_part("library in part", LIBRARY, "outrigger"),
    torch_in_part("native in part", NATIVE, "outrigger"),
    torch_in_part("second in part", SECOND, "outrigger"),
    torch_in_part("mtia in part", UNIFIED, "mtia"),
    graphs("graphs opencl", OPENCL),
    graphs("graphs intel", INTEL),
    sweep("sweep f32", UNIFIED, "outrigger", &["float32"], Tier::Short)
        .compiled()
        .in_turn_again("sweeps"),
    sweep("sweep bf16", DISCRETE, "outrigger", &["bfloat16"], Tier::Short).in_turn_again("sweeps"),
    whole_torch("torch compiled", UNIFIED, "outrigger").compiled(),
    whole_torch("torch discrete", DISCRETE, "outrigger"),
    whole_torch("torch driver-c", C_DRIVER, "outrigger"),
    whole_torch("torch library", LIBRARY, "outrigger"),
    whole_torch("torch native", NATIVE, "outrigger"),
    whole_torch("torch second", SECOND, "outrigger"),
    whole_torch("torch opencl", OPENCL, "outrigger"),
    whole_torch("torch intel", INTEL, "outrigger"),
    whole_torch("torch mtia", UNIFIED, "mtia"),
    whole_torch("mtia discrete", DISCRETE, "mtia"),
    whole_torch("torch both", UNIFIED, "both"),
    // A process with both device types, of which torch's accelerator is the other one.
    torch("both as mtia", UNIFIED, "both", &["--device=mtia"], 120).only(Tier::Everything),
    in_groups(
        "triton groups",
        UNIFIED,
        &["test_triton.py", "test_triton_ops.py", "test_triton_numbers.py", "--items=32"],
    ),
    in_groups(
        "triton intel",
        INTEL,
        &["test_triton.py", "test_triton_ops.py", "test_triton_numbers.py", "--items=128"],
    ),
    models("models unified", UNIFIED),
    models("models discrete", DISCRETE),
    libraries(
        "libraries",
        "libraries",
        &["test_libraries.py", "test_library_programs.py", "test_library_ranks.py"],
        350,
    ),
    // Every run has one of them.
    libraries("programs for cuda", "libraries", AS_CUDA, 150),
    libraries("libraries of triton", "triton", KERNELS, 500),
    compiled(
        "compile operators",
        UNIFIED,
        &["test_compile_operators.py", "--compile-share=0/1"],
    ),
    compiled(
        "compile opencl",
        OPENCL,
        &[
            "test_compile.py",
            "test_compile_rules.py",
            "test_compile_autotune.py",
            "test_compile_branches.py",
            "test_compile_operators.py",
            "--compile-share=0/10",
        ],
    ),
    whole_sweep("sweep unified", UNIFIED),
    whole_sweep("sweep discrete", DISCRETE),
    whole_sweep("sweep library", LIBRARY),
    sweep("dtypes unified", UNIFIED, "outrigger", DTYPES, Tier::Everything),
    sweep("dtypes discrete", DISCRETE, "outrigger", DTYPES, Tier::Everything),
    sweep("dtypes driver-c", C_DRIVER, "outrigger", DTYPES, Tier::Everything),
    sweep("dtypes native", NATIVE, "outrigger", DTYPES, Tier::Everything),
    sweep("dtypes second", SECOND, "outrigger", DTYPES, Tier::Everything),
    sweep("dtypes mtia", UNIFIED, "mtia", DTYPES, Tier::Everything),
    sweep("mtia dtypes discrete", DISCRETE, "mtia", DTYPES, Tier::Everything),
    sweep("sweep opencl", OPENCL, "outrigger", &["float32"], Tier::Everything),
    sweep("sweep intel", INTEL, "outrigger", &["float32"], Tier::Everything),
    soak("soak 600 s", 600, Tier::Everything),
    wheels("wheels", &[], Tier::Short).in_turn_again("packages"),
    wheels("wheels of two", &["2.14.1"], Tier::Everything),
    Job::new(Suite::Hosts, "hosts", Work::Hosts, 60)
        .narrow()
        .in_turn_again("packages"),
    Job::new(Suite::Pages, "pages", Work::Pages, 40)
        .narrow()
        .in_turn_again("packages"),
    soak("soak 20 s", 20, Tier::Short),
    demo("demo unified", UNIFIED, "outrigger"),
    demo("demo discrete", DISCRETE, "outrigger"),
    demo("demo driver-c", C_DRIVER, "outrigger"),
    demo("demo native", NATIVE, "outrigger"),
    demo("demo second", SECOND, "outrigger"),
    demo("demo opencl", OPENCL, "outrigger"),
    demo("demo intel", INTEL, "outrigger"),
    demo("demo mtia", UNIFIED, "mtia"),
];

/// The jobs of these suites, of all if none is named: those of a run with this seed, or all there are.
pub(super) fn of(suites: &[Suite], everything: bool, seed: Seed) -> Vec<&'static Job> {
    JOBS.iter()
        .filter(|job| suites.is_empty() || suites.contains(&job.suite))
        .filter(|job| job.is_of(everything, seed))
        .collect()
}

/// The needs of `jobs` from the machine.
pub(super) fn needs(jobs: &[&Job]) -> Vec<Need> {
    let needs: BTreeSet<Need> = jobs
        .iter()
        .flat_map(|job| job.suite.needs())
        .copied()
        .collect();
    needs.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(jobs: &[&Job]) -> Vec<&'static str> {
        jobs.iter().map(|job| job.name).collect()
    }

    #[test]
    fn every_suite_has_a_job_and_every_job_a_name_of_its_own() {
        let everything = of(&[], true, Seed(0));
        for suite in Suite::value_variants() {
            assert!(
                everything.iter().any(|job| job.suite == *suite),
                "{suite:?}"
            );
        }
        let names: BTreeSet<_> = JOBS.iter().map(|job| job.name).collect();
        assert_eq!(names.len(), JOBS.len());
    }

    #[test]
    fn a_longer_job_takes_the_place_of_a_short_one() {
        assert_eq!(names(&of(&[Suite::Soak], false, Seed(0))), ["soak 20 s"]);
        assert_eq!(names(&of(&[Suite::Soak], true, Seed(0))), ["soak 600 s"]);
    }

    #[test]
    fn of_jobs_that_take_turns_a_run_has_one_of_each_suite() {
        let of_seed = |seed| names(&of(&[Suite::Conformance], false, Seed(seed)));
        let mut seen = BTreeSet::new();
        for seed in 0..100 {
            let jobs = of_seed(seed);
            assert_eq!((jobs.len(), jobs[0]), (3, "conf unified"));
            assert_eq!(jobs[1], "conf frozen");
            seen.insert(jobs[2]);
        }
        assert_eq!(seen.len(), 7, "{seen:?}");
        assert_eq!(of_seed(7), of_seed(7));
    }

    #[test]
    fn rust_needs_neither_python_nor_a_browser() {
        let needs = needs(&of(&[Suite::Rust], false, Seed(0)));
        assert!(needs.contains(&Need::Clang));
        assert!(!needs.contains(&Need::Browser) && !needs.contains(&Need::Python));
    }
}
