//! The Rust tests of the crates that threads share, under a sanitizer: the crates and their tests are
//! instrumented, with the stable compiler, in a build of their own. Std is not: what it alone is blamed for
//! stands in a file of suppressions.

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
const PACKAGES: [&str; 4] = [
    "outrigger-device",
    "outrigger-allocator",
    "outrigger-graph",
    "outrigger-hooks",
];

impl Sanitizer {
    /// Runs the tests; a report of the sanitizer ends a test program, and so is a failure.
    pub(super) fn suite(self, workspace: &Workspace, title: &str) -> anyhow::Result<Counts> {
        let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let mut command = workspace.cargo(&["test", "--no-fail-fast", "--lib", "--tests"]);
        command
            .args(PACKAGES.map(|package| format!("--package={package}")))
            // Named, so that build scripts and macros are not instrumented.
            .args(["--target", &triple])
            .arg("--target-dir")
            .arg(workspace.target("sanitizers").join(self.name()))
            .args(["--", "--show-output"])
            .env("RUSTC_BOOTSTRAP", "1")
            .env(
                "RUSTFLAGS",
                format!(
                    "-Zsanitizer={} -Cunsafe-allow-abi-mismatch=sanitizer",
                    self.name()
                ),
            );
        rust::run(workspace, title, &mut command, LIMIT)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Thread => "thread",
            Self::Address => "address",
        }
    }
}
