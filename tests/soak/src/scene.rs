//! A scene: drivers and faults, in a separate process. It consists of rounds: threads act on a world of
//! their own, then everything is given back, and nothing may be left.

use std::borrow::Cow;
use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use anyhow::Context;
use outrigger_device::Code;
use outrigger_ffi::{OTR_ALL_DEVICES, OTR_HOST_MEMORY, otr_memory_stats_t};

use crate::actions::{Action, diagnostics, registrations, sharing};
use crate::actor::Actor;
use crate::library::{NAMES, TALLY, call, filled, ignore, made, problem, problems, text};
use crate::world::World;

/// Drivers, and what goes wrong with them.
pub(crate) struct Scene {
    pub(crate) name: &'static str,
    /// The variable OUTRIGGER_DRIVER: two devices.
    pub(crate) drivers: Cow<'static, str>,
    /// The faults of the layer `fault`.
    pub(crate) faults: &'static str,
}

/// Faults that come and go, of calls and of work.
macro_rules! come_and_go {
    () => {
        "memory_alloc%2=call:OUT_OF_MEMORY&virtual_create%2=call:OUT_OF_MEMORY&pinned_alloc%2=call:OUT_OF_HOST_MEMORY\
         &virtual_map%1=call:OUT_OF_HOST_MEMORY&queue_create%1=call:OUT_OF_HOST_MEMORY\
         &event_create%1=call:OUT_OF_HOST_MEMORY&event_record%1=call:OUT_OF_HOST_MEMORY\
         &queue_wait_event%1=work:EXECUTION&copy%1=work:EXECUTION&copy%3=delay:1\
         &fill%1=call:OUT_OF_HOST_MEMORY&kernel_launch%1=work:OUT_OF_RANGE&host_call%1=call:OUT_OF_HOST_MEMORY\
         &peer_copy%2=work:EXECUTION&graph_launch%2=call:OUT_OF_HOST_MEMORY&graph_record_end%2=call:OUT_OF_HOST_MEMORY\
         &operator_launch%1=work:EXECUTION"
    };
}

/// All scenes, in the order in which they are played.
pub(crate) const SCENES: &[Scene] = &[
    Scene {
        name: "unified",
        drivers: Cow::Borrowed("host?memory=256M"),
        faults: come_and_go!(),
    },
    Scene {
        name: "discrete",
        drivers: Cow::Borrowed(
            "host?memory=256M&face=discrete&graphs=native&operators=native&virtual_memory=on",
        ),
        faults: come_and_go!(),
    },
    Scene {
        name: "two drivers",
        drivers: Cow::Borrowed(
            "host?memory=192M&devices=1&virtual_memory=on,host?memory=192M&devices=1&face=discrete",
        ),
        faults: come_and_go!(),
    },
    Scene {
        name: "lost",
        drivers: Cow::Borrowed("host?memory=256M&virtual_memory=on"),
        faults: "any@60000=lost",
    },
];

impl Scene {
    /// A driver of one's own, beside `host`.
    pub(crate) fn of_driver(driver: &str) -> Self {
        Self {
            name: "driver",
            drivers: Cow::Owned(format!("{driver},host?memory=192M&devices=1")),
            faults: come_and_go!(),
        }
    }
}

/// A scene that is played.
pub(crate) struct Play<'a> {
    pub(crate) seconds: f64,
    /// Instead of the time: so many actions of each thread.
    pub(crate) steps: Option<u64>,
    pub(crate) threads: usize,
    pub(crate) seed: u64,
    pub(crate) folder: &'a Path,
    pub(crate) actions: Vec<&'static Action>,
}

/// The most time that a round takes.
const ROUND: Duration = Duration::from_secs(4);

/// The files in which `validate` tells what it finds, and another process what it exports, in the folder of a scene.
pub(crate) const FINDINGS: &str = "findings";
pub(crate) const EXPORTED: &str = "exported";

/// The status of a process in which a fault has kept the runtime from being made, which is for good.
pub(crate) const NO_RUNTIME: i32 = 3;

/// Plays a scene in this process, and writes what was called to standard output.
pub(crate) fn play(play: &Play<'_>) -> anyhow::Result<()> {
    let end = Instant::now() + Duration::from_secs_f64(play.seconds);
    // The environment names drivers, so these are none that is loaded.
    let _ = call!(driver_default(c"host?devices=1".as_ptr()));
    if call!(runtime_init()).is_err() {
        std::process::exit(NO_RUNTIME);
    }
    let mut round = 0;
    while round == 0 || (play.steps.is_none() && Instant::now() < end) {
        let world = one_round(play, round, end);
        finish(world);
        round += 1;
    }
    let findings = std::fs::read_to_string(play.folder.join(FINDINGS)).unwrap_or_default();
    for finding in findings.lines() {
        problem(&format!("the layer validate: {finding}"));
    }
    let tally: Vec<Vec<u64>> = (0..NAMES.len())
        .map(|entry| {
            TALLY[entry]
                .iter()
                .map(|n| n.load(std::sync::atomic::Ordering::Relaxed))
                .collect()
        })
        .collect();
    let told = serde_json::json!({ "problems": problems(), "tally": tally });
    writeln!(std::io::stdout(), "{told}").context("the outcome cannot be told")
}

/// Lets threads act on a new world.
fn one_round(play: &Play<'_>, round: u64, end: Instant) -> &'static World {
    let exported = std::fs::read_to_string(play.folder.join(EXPORTED)).ok();
    let exported = exported.map(|text| text.trim_end().to_owned());
    let folder = play.folder.to_string_lossy().into_owned();
    // Observers and host functions may meet it as long as the process lives.
    let world: &'static World = Box::leak(Box::new(World::new(2, exported, folder)));
    let end = end.min(Instant::now() + ROUND);
    std::thread::scope(|scope| {
        for number in 0..play.threads {
            let seed = play.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ round << 32 ^ number as u64;
            let mut left = play.steps.unwrap_or(u64::MAX);
            let go_on = move || {
                left = left.wrapping_sub(1);
                left != u64::MAX && (left < u64::MAX / 2 || Instant::now() < end)
            };
            let actions = &play.actions;
            std::thread::Builder::new()
                .name(format!("thread {number}"))
                .spawn_scoped(scope, move || Actor::new(world, seed).run(actions, go_on))
                .expect("a thread");
        }
        if round == 0 {
            // A driver that comes while others are used; its device is not.
            let _ = call!(driver_load(c"host?devices=1&memory=16M".as_ptr()));
        }
    });
    world
}

/// Gives back everything that is left, and sees that nothing is in use then.
fn finish(world: &World) {
    for stream in world.chaos.take_all() {
        if let Ok(graph) = made(|out| call!(capture_end(stream.id, out))) {
            let _ = call!(graph_destroy(graph));
        }
        let _ = call!(stream_destroy(stream.id));
    }
    for observer in world.observers.take_all() {
        if call!(observer_remove(*observer)).is_err() {
            problem("observer_remove: an observer cannot be removed");
        }
    }
    registrations::end_all(world);
    let _ = call!(trace_end());
    for device in (0..world.devices).chain([OTR_HOST_MEMORY]) {
        let _ = call!(memory_history_stop(device));
        if device != OTR_HOST_MEMORY {
            let _ = call!(memory_trace_stop(device));
            let _ = call!(memory_set_limit(device, u64::MAX));
        }
    }
    let _ = call!(memory_set_process_limit(u64::MAX));
    let _ = call!(host_set_limit(u64::MAX));
    let _ = call!(set_parallel_for(None));
    let _ = call!(fallback_set_mode(0));
    settle(world);
    for import in world.imports.take_all() {
        let _ = call!(memory_close(import.device, import.address));
    }
    for block in world.blocks.take_all() {
        if let Err(code) = call!(memory_free(block.home.device, block.address)) {
            problem(&format!("memory_free: at the end of a round: {code}"));
        }
    }
    for pinned in world.pinned.take_all() {
        if call!(host_free(std::ptr::without_provenance_mut(pinned.address))).is_err() {
            problem("host_free: at the end of a round");
        }
    }
    world
        .execs
        .take_all()
        .iter()
        .for_each(|exec| ignore(call!(graph_exec_destroy(exec.id))));
    world
        .graphs
        .take_all()
        .iter()
        .for_each(|graph| ignore(call!(graph_destroy(graph.id))));
    world
        .pools
        .take_all()
        .iter()
        .for_each(|pool| ignore(call!(pool_destroy(pool.id))));
    let events = world
        .events
        .take_all()
        .into_iter()
        .chain(world.points.take_all());
    events.for_each(|event| ignore(call!(event_destroy(event.id))));
    for generator in world.generators.take_all() {
        let _ = generator.1.then(|| call!(generator_destroy(generator.0)));
    }
    let streams = world
        .plain
        .take_all()
        .into_iter()
        .filter(|stream| stream.owned);
    streams.for_each(|stream| ignore(call!(stream_destroy(stream.id))));
    // Of a device that is lost only closing is left: nobody can know when its work has ended.
    let lost = |device| call!(device_synchronize(device)) == Err(Code::DEVICE_LOST);
    if (0..world.devices).any(lost) {
        return;
    }
    // Memory of work in flight is given back when the work has ended, by other threads.
    let patience = Instant::now() + Duration::from_secs(20);
    while let Err(left) = nothing_left(world) {
        settle(world);
        // Memory that has waited for streams is looked after when somebody asks for memory, or gives it up.
        (0..world.devices).for_each(|device| ignore(call!(memory_empty_cache(device))));
        ignore(call!(host_empty_cache()));
        if Instant::now() > patience {
            problem(&left);
            break;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    for device in 0..world.devices {
        let _ = call!(memory_empty_cache(device));
    }
}

/// Waits for all devices, until no wait fails.
fn settle(world: &World) {
    let _ = (0..64).any(|_| world.synchronize(OTR_ALL_DEVICES));
}

/// The things that are still in use though all were given back.
fn nothing_left(world: &World) -> Result<(), String> {
    let whole = size_of::<otr_memory_stats_t>();
    for device in 0..world.devices {
        let stats = filled::<otr_memory_stats_t>(whole, |out| call!(memory_stats(device, out)));
        let stats = stats.ok_or("memory_stats fails")?;
        let (allocated, active) = (stats.allocated_bytes.current, stats.active_bytes.current);
        if allocated != 0 || active != 0 {
            return Err(format!(
                "device {device}: {allocated} bytes are allocated and {active} active at the end"
            ));
        }
    }
    let stats = filled::<otr_memory_stats_t>(whole, |out| call!(host_stats(out)));
    let pinned = stats.ok_or("host_stats fails")?.allocated_bytes.current;
    if pinned != 0 {
        return Err(format!(
            "{pinned} bytes of pinned memory are in use at the end"
        ));
    }
    let guests = world.guests.lock().unwrap_or_else(PoisonError::into_inner);
    let alive = guests.iter().filter(|guest| !guest.is_destroyed()).count();
    if alive != 0 {
        return Err(format!(
            "of {} host functions the data of {alive} is kept",
            guests.len()
        ));
    }
    match diagnostics::contexts() {
        0 => Ok(()),
        kept => Err(format!("{kept} contexts were not released")),
    }
}

/// Exports memory until standard input ends: the other process of a scene.
pub(crate) fn export() -> anyhow::Result<()> {
    let stream = made(|out| call!(stream_default(0, out)))
        .ok()
        .context("no stream")?;
    let address = made(|out| call!(memory_alloc(0, sharing::BYTES, stream, out)));
    let address = address.ok().context("no memory")?;
    let byte = sharing::BYTE;
    let pattern = (&raw const byte).cast();
    let filled = call!(fill(stream, address, sharing::BYTES, pattern, 1));
    let filled = filled.and_then(|()| call!(stream_synchronize(stream)));
    filled.ok().context("the memory cannot be filled")?;
    let exported =
        text(|out| call!(memory_export(0, address, out))).context("nothing is shared")?;
    writeln!(std::io::stdout(), "{exported}")?;
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    Ok(())
}
