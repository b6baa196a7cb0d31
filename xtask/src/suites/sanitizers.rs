//! The Rust tests of the crates that threads share, under a sanitizer, with the stable compiler and in
//! a separate build. The thread sanitizer also instruments std; otherwise it would report std's own
//! locks. Nothing is suppressed.

use super::counts::Counts;
use super::rust;
use crate::workspace::Workspace;

/// A sanitizer of the compiler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sanitizer {
    /// Finds races.
    Thread,
    /// Finds accesses outside of what was allocated, or after it was freed.
    Address,
}

/// The crates whose tests run, from the ground up: a run without `--all` has those of the first or of the second half.
pub(super) const LOWER: &[&str] = &[
    "--package=outrigger-device",
    "--package=outrigger-handles",
    "--package=outrigger-allocator",
];

/// See [`LOWER`].
pub(super) const UPPER: &[&str] = &["--package=outrigger-graph", "--package=outrigger-hooks"];

/// Tests that only the plain suite runs: loom switches stacks, which no sanitizer follows, and the property tests
/// of the allocator's arithmetic have one thread and no unsafe code.
const LEFT_OUT: &str = "not test(model::)";

impl Sanitizer {
    /// Runs the tests of some crates. A report gives the test program a failing exit status.
    pub(super) fn suite(
        self,
        workspace: &Workspace,
        title: &str,
        packages: &[&str],
    ) -> anyhow::Result<Counts> {
        let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let mut command = workspace.cargo(&["nextest", "run", "--lib", "--tests"]);
        command
            .args(packages)
            .args(["--filterset", LEFT_OUT])
            // Named, so that build scripts and macros are not instrumented.
            .args(["--target", &triple])
            .arg("--target-dir")
            .arg(workspace.target("sanitizers").join(self.name()));
        let mut flags = format!("-Zsanitizer={} --cfg=outrigger_sanitizer", self.name());
        match self {
            Self::Thread => {
                command.arg("-Zbuild-std");
                flags.push_str(" --cfg=outrigger_tsan");
            }
            Self::Address => flags.push_str(" -Cunsafe-allow-abi-mismatch=sanitizer"),
        }
        command
            .env("RUSTFLAGS", flags)
            .env("RUSTC_BOOTSTRAP", "1")
            // The build takes minutes and the tests seconds.
            .env("CARGO_PROFILE_DEV_OPT_LEVEL", "0")
            .env("TSAN_OPTIONS", "halt_on_error=0 exitcode=66")
            // Tests leave threads that hang, and what those use, behind on purpose.
            .env("ASAN_OPTIONS", "detect_leaks=0");
        rust::run(workspace, title, &mut command)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Thread => "thread",
            Self::Address => "address",
        }
    }
}
