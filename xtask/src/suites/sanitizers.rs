//! The Rust tests of the crates that threads share, under a sanitizer, with the stable compiler and in
//! a separate build. The thread sanitizer also instruments std; otherwise it would report std's own
//! locks. Nothing is suppressed.

use super::LIMIT;
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

/// The crates whose tests run.
const PACKAGES: [&str; 5] = [
    "--package=outrigger-device",
    "--package=outrigger-handles",
    "--package=outrigger-allocator",
    "--package=outrigger-graph",
    "--package=outrigger-hooks",
];

/// What only the plain suite runs: loom switches stacks, which no sanitizer follows, and the property tests
/// of the allocator's arithmetic have one thread and no unsafe code.
const LEFT_OUT: &str = "model::";

impl Sanitizer {
    /// Runs the tests. A report gives the test program a failing exit status.
    pub(super) fn suite(self, workspace: &Workspace, title: &str) -> anyhow::Result<Counts> {
        let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let mut command = workspace.cargo(&["test", "--no-fail-fast", "--lib", "--tests"]);
        command
            .args(PACKAGES)
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
            .args(["--", "--show-output", "--skip", LEFT_OUT])
            .env("RUSTFLAGS", flags)
            .env("RUSTC_BOOTSTRAP", "1")
            // The build takes minutes and the tests seconds.
            .env("CARGO_PROFILE_DEV_OPT_LEVEL", "0")
            .env("TSAN_OPTIONS", "halt_on_error=0 exitcode=66")
            // Tests leave threads that hang, and what those use, behind on purpose.
            .env("ASAN_OPTIONS", "detect_leaks=0");
        rust::run(workspace, title, &mut command, LIMIT)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Thread => "thread",
            Self::Address => "address",
        }
    }
}
