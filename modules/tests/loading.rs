//! Loading of code over a stand-in for a driver with a compiler.

mod stand_in;

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use outrigger_device::{Code, Driver, sys};
use outrigger_modules::{Counts, Modules, Source};
use outrigger_store::{Settings, Store};
use stand_in::{Control, Make};

struct Bench {
    folder: tempfile::TempDir,
    driver: Driver,
    control: Arc<Control>,
    modules: Modules,
}

impl Bench {
    fn new() -> Self {
        Self::over(Make::default(), tempfile::tempdir().unwrap(), None)
    }

    fn over(make: Make, folder: tempfile::TempDir, threads: Option<usize>) -> Self {
        let (driver, control) = stand_in::driver(make);
        let modules = Modules::new(Store::open(Settings::at(folder.path())), threads);
        Self {
            folder,
            driver,
            control,
            modules,
        }
    }

    /// The same in another process: the folder is all that they share.
    fn again(self, make: Make) -> Self {
        Self::over(make, self.folder, None)
    }

    fn loads(&self, source: &Source) -> bool {
        self.modules.load(&self.driver, 0, source).is_ok()
    }

    fn entries(&self) -> u64 {
        let store = Store::open(Settings::at(self.folder.path()));
        store.usage().unwrap().entries
    }

    fn check(&self, found: u64, restored: u64, compiled: u64, failed: u64) {
        let expected = Counts {
            found,
            restored,
            compiled,
            failed,
        };
        assert_eq!(self.modules.counts(), expected);
        assert_eq!(self.control.compiled(), (compiled + failed) as u32);
        assert_eq!(self.control.loaded.load(SeqCst), restored as u32);
    }
}

fn source(text: &str) -> Source {
    Source::new(sys::OTR_CODE_OPENCL_C, text.as_bytes())
}

/// Waits for what another thread does.
fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(20), "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn code_is_compiled_once_and_lives_as_long_as_it_is_held() {
    let bench = Bench::new();
    let module = bench.modules.load(&bench.driver, 0, &source("f")).unwrap();
    let same = bench.modules.load(&bench.driver, 0, &source("f")).unwrap();
    bench.check(1, 0, 1, 0);
    drop(module);
    assert_eq!(bench.control.unloaded.load(SeqCst), 0);
    drop(same);
    assert_eq!(bench.control.unloaded.load(SeqCst), 1);
    assert!(bench.loads(&source("f")));
    bench.check(1, 1, 1, 0);
}

#[test]
fn another_process_finds_what_was_compiled() {
    let bench = Bench::new();
    assert!(bench.loads(&source("f")));
    let bench = bench.again(Make::default());
    assert!(bench.loads(&source("f")));
    bench.check(0, 1, 0, 0);
}

#[test]
fn what_is_only_to_be_restored_is_never_compiled() {
    let stored = |bench: &Bench, source: &Source| {
        let loaded = bench.modules.load_stored(&bench.driver, 0, source);
        loaded.map_err(|error| error.code())
    };
    let bench = Bench::new();
    assert_eq!(stored(&bench, &source("f")).unwrap_err(), Code::NOT_FOUND);
    bench.check(0, 0, 0, 0);
    let module = bench.modules.load(&bench.driver, 0, &source("f")).unwrap();
    let same = stored(&bench, &source("f")).unwrap();
    bench.check(1, 0, 1, 0);
    drop((module, same));
    let bench = bench.again(Make::default());
    let module = stored(&bench, &source("f")).unwrap();
    bench.check(0, 1, 0, 0);
    // The module is known from now on, to all who ask.
    assert!(bench.loads(&source("f")) && stored(&bench, &source("f")).is_ok());
    bench.check(2, 1, 0, 0);
    drop(module);
    assert_eq!(bench.control.unloaded.load(SeqCst), 1);
    // Code that a compiler has made already is there.
    let binary = Source::new(sys::OTR_CODE_ELF, &b"compiled by the stand-in:f"[..]);
    assert!(stored(&bench, &binary).is_ok());
}

#[test]
fn whatever_the_compiled_form_depends_on_makes_another_one() {
    let bench = Bench::new();
    let base = source("f");
    assert!(bench.loads(&base));
    let others = [
        source("g"),
        base.clone().with_options(c"-O3"),
        base.clone().with_options(c""),
        Source::new(sys::OTR_CODE_CUDA_C, &b"f"[..]),
    ];
    for other in &others {
        assert!(bench.loads(other));
    }
    bench.check(0, 0, 5, 0);
    for device in [1, 2] {
        let loaded = bench.modules.load(&bench.driver, device, &base);
        assert!(loaded.is_ok(), "device {device}");
    }
    bench.check(0, 0, 7, 0);
    let bench = bench.again(Make {
        version: c"1.1",
        ..Make::default()
    });
    assert!(bench.loads(&base));
    bench.check(0, 0, 1, 0);
    assert_eq!(bench.entries(), 8);
}

#[test]
fn two_drivers_have_modules_of_their_own() {
    let bench = Bench::new();
    let (other, _) = stand_in::driver(Make::default());
    let first = bench.modules.load(&bench.driver, 0, &source("f")).unwrap();
    let second = bench.modules.load(&other, 0, &source("f")).unwrap();
    assert!(first.driver().same_as(&bench.driver) && second.driver().same_as(&other));
}

#[test]
fn a_binary_that_the_driver_refuses_is_compiled_anew() {
    let bench = Bench::new();
    assert!(bench.loads(&source("f")));
    bench
        .control
        .refusal
        .store(sys::OTR_ERR_INVALID_ARGUMENT as u32, SeqCst);
    assert!(bench.loads(&source("f")));
    bench.check(0, 0, 2, 0);
    bench.control.refusal.store(0, SeqCst);
    assert!(bench.loads(&source("f")));
    bench.check(0, 1, 2, 0);
}

#[test]
fn a_binary_that_the_driver_refuses_is_dropped() {
    let bench = Bench::new();
    assert!(bench.loads(&source("f")));
    // A driver that tells no binary puts none in its place.
    let bench = bench.again(Make {
        binaries: false,
        ..Make::default()
    });
    let refusal = sys::OTR_ERR_INVALID_ARGUMENT as u32;
    bench.control.refusal.store(refusal, SeqCst);
    assert!(bench.loads(&source("f")));
    assert_eq!(bench.entries(), 0);
}

#[test]
fn a_binary_is_not_blamed_for_a_device_without_memory() {
    let bench = Bench::new();
    assert!(bench.loads(&source("f")));
    bench
        .control
        .refusal
        .store(sys::OTR_ERR_OUT_OF_MEMORY as u32, SeqCst);
    let error = bench
        .modules
        .load(&bench.driver, 0, &source("f"))
        .unwrap_err();
    assert_eq!(error.code(), Code::OUT_OF_MEMORY);
    assert_eq!(bench.control.compiled(), 1);
    bench.control.refusal.store(0, SeqCst);
    assert!(bench.loads(&source("f")));
    assert_eq!(bench.control.compiled(), 1);
}

#[test]
fn a_driver_that_tells_no_binary_compiles_in_each_process() {
    let make = || Make {
        binaries: false,
        ..Make::default()
    };
    let bench = Bench::over(make(), tempfile::tempdir().unwrap(), None);
    let kept = bench.modules.load(&bench.driver, 0, &source("f")).unwrap();
    assert!(bench.loads(&source("f")));
    bench.check(1, 0, 1, 0);
    drop(kept);
    assert_eq!(bench.entries(), 0);
    let bench = bench.again(make());
    assert!(bench.loads(&source("f")));
    bench.check(0, 0, 1, 0);
}

#[test]
fn a_binary_that_is_handed_in_is_not_kept_once_more() {
    let bench = Bench::new();
    let binary = b"compiled by the stand-in:f";
    let _module = bench
        .modules
        .load(
            &bench.driver,
            0,
            &Source::new(sys::OTR_CODE_ELF, &binary[..]),
        )
        .unwrap();
    assert_eq!(bench.entries(), 0);
}

#[test]
fn without_a_store_all_is_compiled() {
    let (driver, control) = stand_in::driver(Make::default());
    let modules = Modules::new(Store::open(Settings::off("for a test")), None);
    for _ in 0..2 {
        assert!(modules.load(&driver, 0, &source("f")).is_ok());
    }
    assert_eq!(control.compiled(), 2);
}

#[test]
fn an_error_shows_the_lines_that_the_log_names_and_is_not_remembered() {
    let bench = Bench::new();
    let text = "first\nsecond\tis wrong\n";
    for _ in 0..2 {
        let error = bench
            .modules
            .load(&bench.driver, 0, &source(text))
            .unwrap_err();
        assert_eq!(error.code(), Code::INVALID_ARGUMENT);
        assert_eq!(
            error.message(),
            "<kernel>:2:11: error: it is wrong\n2 | second\tis wrong\n  |       \t   ^"
        );
    }
    bench.check(0, 0, 0, 2);
    assert_eq!(bench.entries(), 0);
    let refused = Source::new(sys::OTR_CODE_SPIRV, &b"f"[..]);
    let error = bench.modules.load(&bench.driver, 0, &refused).unwrap_err();
    assert_eq!(error.code(), Code::UNSUPPORTED);
    let error = bench
        .modules
        .load(&bench.driver, 9, &source("f"))
        .unwrap_err();
    assert_eq!(error.code(), Code::INVALID_DEVICE);
}

#[test]
fn many_threads_that_ask_for_one_code_compile_it_once() {
    let bench = Bench::new();
    bench.control.close();
    let all = std::thread::scope(|scope| {
        let ask = |text: &'static str| {
            let bench = &bench;
            move || bench.modules.load(&bench.driver, 0, &source(text))
        };
        let good: Vec<_> = (0..8).map(|_| scope.spawn(ask("f"))).collect();
        let bad: Vec<_> = (0..8).map(|_| scope.spawn(ask("wrong"))).collect();
        until("both are compiled", || {
            bench.control.running.load(SeqCst) == 2
        });
        std::thread::sleep(Duration::from_millis(50));
        bench.control.open();
        let join = |threads: Vec<std::thread::ScopedJoinHandle<'_, _>>| -> Vec<_> {
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        };
        (join(good), join(bad))
    });
    assert!(all.0.iter().all(Result::is_ok) && all.0.len() == 8);
    for result in &all.1 {
        assert!(result.as_ref().unwrap_err().message().contains("1 | wrong"));
    }
    // One that asks after a failure tries once more, and this is not to be seen from when a thread came.
    assert!(bench.control.compiled() >= 2);
    assert_eq!(bench.modules.counts().compiled, 1);
}

#[test]
fn the_background_compiles_with_no_more_threads_than_allowed() {
    let bench = Bench::over(Make::default(), tempfile::tempdir().unwrap(), Some(2));
    bench.control.close();
    let texts: Vec<String> = (0..20).map(|number| format!("f{number}")).collect();
    let begin = |text| {
        bench
            .modules
            .load_async(&bench.driver, 0, &source(text))
            .unwrap()
    };
    let pending: Vec<_> = texts.iter().map(|text| begin(text)).collect();
    until("two are compiled", || {
        bench.control.running.load(SeqCst) == 2
    });
    assert!(pending.iter().all(|one| one.poll().is_none()));
    // A caller that asks for one of them again gets the same.
    let same = begin("f7");
    bench.control.open();
    until("all are compiled", || {
        pending.iter().all(|one| one.poll().is_some())
    });
    assert!(pending.iter().all(|one| one.poll().unwrap().is_ok()));
    assert!(same.poll().unwrap().is_ok());
    bench.check(0, 0, 20, 0);
    assert_eq!(bench.control.most.load(SeqCst), 2);
    assert!(
        begin("f3").poll().unwrap().is_ok(),
        "what is loaded is there at once"
    );
}

#[test]
fn what_is_needed_now_does_not_wait_for_the_background() {
    let bench = Bench::over(Make::default(), tempfile::tempdir().unwrap(), Some(1));
    bench.control.close();
    let first = bench
        .modules
        .load_async(&bench.driver, 0, &source("first"))
        .unwrap();
    until("the first is compiled", || {
        bench.control.running.load(SeqCst) == 1
    });
    let begin = |text| {
        bench
            .modules
            .load_async(&bench.driver, 0, &source(text))
            .unwrap()
    };
    let (second, third) = (begin("second"), begin("third"));
    std::thread::scope(|scope| {
        let load = scope.spawn(|| bench.modules.load(&bench.driver, 0, &source("second")));
        let wait = scope.spawn(|| third.wait());
        until("three are compiled", || {
            bench.control.running.load(SeqCst) == 3
        });
        bench.control.open();
        assert!(load.join().unwrap().is_ok() && wait.join().unwrap().is_ok());
    });
    assert!(second.poll().unwrap().is_ok() && first.wait().is_ok());
    bench.check(0, 0, 3, 0);
}

#[test]
fn modules_that_are_dropped_give_up_what_has_not_begun_and_wait_for_the_rest() {
    let bench = Bench::over(Make::default(), tempfile::tempdir().unwrap(), Some(1));
    bench.control.close();
    let begin = |text| {
        bench
            .modules
            .load_async(&bench.driver, 0, &source(text))
            .unwrap()
    };
    let first = begin("first");
    until("the first is compiled", || {
        bench.control.running.load(SeqCst) == 1
    });
    let second = begin("second");
    let Bench {
        modules, control, ..
    } = bench;
    std::thread::scope(|scope| {
        let dropped = scope.spawn(move || drop(modules));
        until("the second is given up", || second.poll().is_some());
        assert!(!dropped.is_finished());
        assert!(first.poll().is_none());
        control.open();
        dropped.join().unwrap();
    });
    assert!(first.poll().unwrap().is_ok());
    assert_eq!(second.wait().unwrap_err().code(), Code::CANCELLED);
    assert_eq!(control.compiled(), 1);
}

#[test]
fn threads_come_again_after_all_was_done() {
    let make = Make {
        binaries: false,
        ..Make::default()
    };
    let bench = Bench::over(make, tempfile::tempdir().unwrap(), Some(1));
    for number in 0..200 {
        let text = format!("f{number}");
        let pending = bench
            .modules
            .load_async(&bench.driver, 0, &source(&text))
            .unwrap();
        until("it is compiled", || pending.poll().is_some());
    }
    bench.check(0, 0, 200, 0);
}
