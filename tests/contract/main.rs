//! The driver contract, rule by rule, on every driver at hand: `host` with both faces, with graphs of its
//! own and without virtual memory, the C template, and the library that `OUTRIGGER_TEST_DRIVER` names (`PATH?OPTIONS`). Each test
//! is made once for each driver and is named `DRIVER::RULE_what_it_checks`. A test that needs an optional
//! group is ignored on a driver that does not declare it, and never on one that does.

mod command_rules;
mod event_rules;
mod failure_rules;
mod graph_rules;
mod ipc_rules;
mod memory_rules;
mod program;
mod queue_rules;
mod support;
mod table_rules;
mod virtual_memory_rules;

use libtest_mimic::{Arguments, Failed, Trial};
use outrigger_device::Driver;
use outrigger_tests::{c_driver, within_limit};
use support::Target;

/// What a test needs of a driver beyond the mandatory part.
#[derive(Clone, Copy)]
enum Needs {
    Nothing,
    TwoDevices,
    HostVisible,
    MemoryInfo,
    Pinned,
    Peer,
    Timing,
    HostKernels,
    Graphs,
    GraphUpdate,
    VirtualMemory,
    VirtualMemoryAndHostKernels,
    Ipc,
    IpcPhysical,
    TwoDevicesWithGraphs,
    /// A library: its table can be called without the wrappers of this project.
    Library,
}

/// A test: the rules it checks are the start of its name.
struct Case {
    name: &'static str,
    needs: Needs,
    run: fn(&Target),
}

/// Makes the list of a module's tests; each is a function of the same name.
macro_rules! cases {
    ($($needs:ident: $($name:ident),+ $(,)?;)*) => {
        pub(crate) const CASES: &[$crate::Case] = &[$($($crate::Case {
            name: stringify!($name),
            needs: $crate::Needs::$needs,
            run: $name,
        }),+),*];
    };
}
pub(crate) use cases;

fn main() {
    let mut words = std::env::args().skip(1);
    if let (Some(ipc_rules::OTHER), Some(spec)) = (words.next().as_deref(), words.next()) {
        return ipc_rules::serve(&spec);
    }
    let arguments = Arguments::from_args();
    let mut targets = vec![
        Target::new(
            "host_unified",
            "host?devices=2&memory=64M&face=unified&virtual_memory=on",
        ),
        Target::new(
            "host_discrete",
            "host?devices=2&memory=64M&face=discrete&virtual_memory=on",
        ),
        Target::new(
            "host_graphs",
            "host?devices=2&memory=64M&face=discrete&graphs=native&virtual_memory=off",
        ),
        Target::new(
            "c",
            &format!("{}?devices=2&memory=67108864", c_driver().display()),
        ),
    ];
    if let Ok(spec) = std::env::var("OUTRIGGER_TEST_DRIVER") {
        targets.push(Target::new("given", &spec));
    }
    let all = [
        table_rules::CASES,
        memory_rules::CASES,
        virtual_memory_rules::CASES,
        ipc_rules::CASES,
        queue_rules::CASES,
        event_rules::CASES,
        failure_rules::CASES,
        command_rules::CASES,
        graph_rules::CASES,
        program::CASES,
    ];
    let mut trials = Vec::new();
    for target in targets {
        // A driver that does not open fails each of its tests, with the reason.
        let driver = target.try_open();
        for case in all.iter().copied().flatten() {
            let able = driver
                .as_ref()
                .map_or(true, |driver| has(driver, &target, case.needs));
            let (run, target) = (case.run, target.clone());
            let name = format!("{}::{}", target.name, case.name);
            let trial = Trial::test(name, move || {
                std::panic::catch_unwind(|| within_limit(move || run(&target))).map_err(|payload| {
                    let text = payload.downcast_ref::<String>().map(String::as_str);
                    Failed::from(
                        text.or(payload.downcast_ref::<&str>().copied())
                            .unwrap_or("it panicked"),
                    )
                })
            });
            trials.push(trial.with_ignored_flag(!able));
        }
    }
    libtest_mimic::run(&arguments, trials).exit();
}

fn has(driver: &Driver, target: &Target, needs: Needs) -> bool {
    match needs {
        Needs::Nothing => true,
        Needs::TwoDevices => driver.device_count() > 1,
        Needs::HostVisible => driver.properties(0).is_ok_and(|p| p.host_visible()),
        Needs::MemoryInfo => !matches!(driver.memory_info(0), Ok(None)),
        Needs::Pinned => driver.pinned().is_some(),
        Needs::Peer => driver.peer().is_some() && driver.device_count() > 1,
        Needs::Timing => !matches!(driver.device_time_ns(0), Ok(None)),
        Needs::HostKernels => !matches!(driver.host_kernel(0, support::count_kernel), Ok(None)),
        Needs::Graphs => driver.native_graphs().is_some(),
        Needs::GraphUpdate => driver
            .native_graphs()
            .is_some_and(|graphs| graphs.can_update()),
        Needs::VirtualMemory => driver.virtual_memory().is_some(),
        Needs::VirtualMemoryAndHostKernels => {
            driver.virtual_memory().is_some() && has(driver, target, Needs::HostKernels)
        }
        Needs::Ipc => driver.ipc().is_some(),
        Needs::IpcPhysical => {
            driver.virtual_memory().is_some()
                && driver.ipc().is_some_and(|ipc| ipc.shares_physical())
        }
        Needs::TwoDevicesWithGraphs => {
            driver.native_graphs().is_some() && driver.device_count() > 1
        }
        Needs::Library => target.library().is_some(),
    }
}
