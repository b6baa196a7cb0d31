//! The soak: until the time is up, threads make random calls of the host contract, over drivers that
//! sometimes fail, with the layer `validate` in between. Every call has to return, with an outcome of
//! the contract. Memory in use has to keep its contents. At the end nothing may be left.
//!
//! The soak is a host like any other: it takes all functions from `otr_host_api`, and keeps the rules
//! that the contract leaves to the host. It breaks rules that the library checks on purpose, too. Each
//! scene (see [`scene`]) is a separate process, so that a crash is an outcome. The same seed with
//! `--threads 1` and `--steps` makes the same calls.

mod actions;
mod actor;
mod guest;
mod library;
mod report;
mod scene;
mod watch;
mod world;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Parser;

use crate::scene::{EXPORTED, FINDINGS, NO_RUNTIME, Play, SCENES, Scene};

/// Writes a line to standard error, at once.
macro_rules! tell {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

use tell;

/// Random calls of the host contract from many threads, with faults, until the time is up.
#[derive(Parser)]
struct Options {
    /// Seconds that all scenes take together.
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
    /// Number that all random numbers are made from; a new one each time by default.
    #[arg(long)]
    seed: Option<u64>,
    /// Threads that make calls.
    #[arg(long, default_value_t = 8)]
    threads: usize,
    /// Instead of the time: so many actions of each thread in each scene.
    #[arg(long)]
    steps: Option<u64>,
    /// Only these groups of actions, separated by commas.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// All but these groups of actions.
    #[arg(long, value_delimiter = ',')]
    without: Vec<String>,
    /// Only the scene of this name.
    #[arg(long)]
    scene: Option<String>,
    /// Instead of the scenes: one over this driver, whose first device is used beside one of the driver `host`.
    #[arg(long, conflicts_with = "scene")]
    driver: Option<String>,
    /// Leaves the faults out.
    #[arg(long)]
    no_faults: bool,
    /// Seconds that a call may take.
    #[arg(long, default_value_t = 60.0)]
    patience: f64,
    /// Plays a scene in this process; its files go to this folder.
    #[arg(long, hide = true)]
    inside: Option<String>,
    /// Exports memory to a scene.
    #[arg(long, hide = true)]
    export: bool,
}

fn main() -> anyhow::Result<ExitCode> {
    let options = Options::parse();
    if options.export {
        return scene::export().map(|()| ExitCode::SUCCESS);
    }
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..));
    let actions = actor::chosen(&options.only, &options.without);
    ensure!(!actions.is_empty(), "no group of actions is left");
    if let Some(folder) = &options.inside {
        let hook = |panic: &std::panic::PanicHookInfo<'_>| {
            let trace = std::backtrace::Backtrace::force_capture();
            library::problem(&format!("{panic}\n{trace}"));
        };
        std::panic::set_hook(Box::new(hook));
        watch::start(Duration::from_secs_f64(options.patience));
        let (seconds, threads, steps) = (options.seconds, options.threads, options.steps);
        let folder = Path::new(folder);
        scene::play(&Play {
            seconds,
            steps,
            threads,
            seed,
            folder,
            actions,
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let of_driver = options.driver.as_deref().map(Scene::of_driver);
    let scenes: Vec<&Scene> = of_driver
        .as_slice()
        .iter()
        .chain(SCENES.iter().filter(|_| of_driver.is_none()))
        .filter(|scene| {
            options
                .scene
                .as_deref()
                .is_none_or(|name| name == scene.name)
        })
        .collect();
    ensure!(!scenes.is_empty(), "there is no such scene");
    tell!(
        "seed {seed}: {} threads, {} seconds",
        options.threads,
        options.seconds
    );
    let (mut tally, mut bad) = (Vec::new(), 0);
    for scene in &scenes {
        match play(&options, scene, seed, options.seconds / scenes.len() as f64) {
            Ok((problems, calls)) => {
                report::add(&mut tally, &calls);
                bad += problems;
            }
            Err(error) => {
                tell!("the scene `{}` with seed {seed}: {error:#}", scene.name);
                bad += 1;
            }
        }
    }
    write!(std::io::stdout(), "{}", report::table(&tally))?;
    // An action that was left out on purpose is not missing.
    let whole = options.only.is_empty()
        && options.without.is_empty()
        && options.scene.is_none()
        && options.driver.is_none();
    if whole && bad == 0 {
        for missing in report::missing(&tally) {
            tell!("PROBLEM: {missing}");
            bad += 1;
        }
    }
    if bad == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    tell!("{bad} problems, with seed {seed}");
    Ok(ExitCode::FAILURE)
}

/// Plays a scene in a process of its own: the number of problems, and what was called.
fn play(
    options: &Options,
    scene: &Scene,
    seed: u64,
    seconds: f64,
) -> anyhow::Result<(u64, report::Tally)> {
    let name = format!(
        "outrigger-soak-{}-{}",
        std::process::id(),
        scene.name.replace(' ', "-")
    );
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&folder).context("no folder for the scene")?;
    let mut exporter = exporter(scene, &folder)?;
    let outcome = play_in(options, scene, seed, seconds, &folder);
    // The input of the exporter ends, and so does the exporter.
    drop(exporter.stdin.take());
    let _ = exporter.wait();
    let _ = std::fs::remove_dir_all(&folder);
    outcome
}

/// Starts the process that exports memory, and leaves its text in the folder.
fn exporter(scene: &Scene, folder: &Path) -> anyhow::Result<Child> {
    let mut exporter = Command::new(std::env::current_exe()?)
        .arg("--export")
        .env("OUTRIGGER_DRIVER", scene.drivers.as_ref())
        .env_remove("OUTRIGGER_LAYERS")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    let output = exporter.stdout.take().context("piped")?;
    BufReader::new(output).read_line(&mut line)?;
    if !line.is_empty() {
        std::fs::write(folder.join(EXPORTED), line)?;
    }
    Ok(exporter)
}

fn play_in(
    options: &Options,
    scene: &Scene,
    seed: u64,
    seconds: f64,
    folder: &Path,
) -> anyhow::Result<(u64, report::Tally)> {
    let findings = folder.join(FINDINGS);
    let mut layers = format!("validate:{}", findings.display());
    if !options.no_faults {
        layers += &format!(",fault:seed={seed}&{}", scene.faults);
    }
    tell!(
        "scene `{}`: OUTRIGGER_DRIVER='{}' OUTRIGGER_LAYERS='{layers}'",
        scene.name,
        scene.drivers
    );
    let mut command = Command::new(std::env::current_exe()?);
    command
        .env("OUTRIGGER_DRIVER", scene.drivers.as_ref())
        .env("OUTRIGGER_CACHE", folder.join("store"))
        .env("OUTRIGGER_LAYERS", layers);
    command.arg("--inside").arg(folder);
    command.args(["--seed".to_owned(), seed.to_string()]);
    command.args(["--seconds".to_owned(), seconds.to_string()]);
    command.args(["--threads".to_owned(), options.threads.to_string()]);
    command.args(["--patience".to_owned(), options.patience.to_string()]);
    for (name, groups) in [("--only", &options.only), ("--without", &options.without)] {
        if !groups.is_empty() {
            command.arg(name).arg(groups.join(","));
        }
    }
    if let Some(steps) = options.steps {
        command.args(["--steps".to_owned(), steps.to_string()]);
    }
    let mut process = command.stdout(Stdio::piped()).spawn()?;
    let output = process.stdout.take().context("piped")?;
    let told = std::thread::spawn(move || {
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).map(|_| line)
    });
    // The watchdog of the scene sees calls that do not return; this one sees that the process itself hangs.
    let late = Instant::now() + Duration::from_secs_f64(seconds + 3.0 * options.patience);
    let status = loop {
        if let Some(status) = process.try_wait()? {
            break status;
        }
        if options.steps.is_none() && Instant::now() > late {
            process.kill()?;
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    if status.code() == Some(NO_RUNTIME) && !options.no_faults {
        tell!(
            "scene `{}`: a fault has kept the runtime from being made",
            scene.name
        );
        return Ok((0, report::Tally::default()));
    }
    ensure!(status.success(), "its process ended with {status}");
    let told = told.join().ok().context("a thread that reads")??;
    let told: serde_json::Value = serde_json::from_str(&told).context("what it tells")?;
    let problems = told["problems"]
        .as_u64()
        .context("the number of problems")?;
    let tally = serde_json::from_value(told["tally"].clone()).context("what it has called")?;
    Ok((problems, tally))
}
