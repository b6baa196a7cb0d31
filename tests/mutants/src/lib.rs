//! Drivers that are wrong on purpose. The library `liboutrigger_mutants.so` is the built-in driver
//! `host` with one defect. The option `mutant=NAME` chooses the defect; for defects of
//! `otr_driver_get_api`, the environment does. The conformance suite has to catch each mutant. A mutant
//! must have its one defect and no other; without a defect the library is a correct driver.
//!
//! The library has all groups that `host` can have: two discrete devices of 64 MiB with native graphs
//! and operators, and with virtual memory. It accepts the options of `host`, except those that change
//! the table.

mod calls;
mod collectives;
mod commands;
mod devices;
mod entry;
mod events;
mod external;
mod graphs;
mod host_calls;
mod ipc;
mod kernels;
mod memory;
mod mutant;
mod native_queues;
mod operators;
mod outcomes;
mod queues;
mod table;
mod threads;
mod virtual_memory;

use std::ffi::c_void;
use std::sync::OnceLock;

use outrigger_device::{Code, Driver, Error, RawDriver, Result, sys};
use outrigger_layers::{Layer, LayerTable, fail, open_with};

pub use entry::VARIABLE;
pub use mutant::Mutant;

/// The driver below, with each option that is not given otherwise.
const DEFAULTS: [(&str, &str); 6] = [
    ("devices", "2"),
    ("memory", "64M"),
    ("face", "discrete"),
    ("graphs", "native"),
    ("operators", "native"),
    ("virtual_memory", "on"),
];

/// All mutants; their names differ.
pub fn mutants() -> impl Iterator<Item = &'static Mutant> {
    [
        entry::MUTANTS,
        table::MUTANTS,
        devices::MUTANTS,
        threads::MUTANTS,
        memory::MUTANTS,
        commands::MUTANTS,
        host_calls::MUTANTS,
        native_queues::MUTANTS,
        external::MUTANTS,
        outcomes::MUTANTS,
        queues::MUTANTS,
        events::MUTANTS,
        kernels::MUTANTS,
        graphs::MUTANTS,
        virtual_memory::MUTANTS,
        ipc::MUTANTS,
        collectives::MUTANTS,
        operators::MUTANTS,
    ]
    .into_iter()
    .flatten()
}

/// The driver without a defect.
struct Faithful;
impl Layer for Faithful {}

fn below(options: &[(&str, &str)]) -> Result<RawDriver> {
    let given = |key: &str| options.iter().find(|(given, _)| *given == key);
    let defaults = DEFAULTS.iter().filter(|(key, _)| given(key).is_none());
    let words: Vec<_> = defaults
        .chain(options)
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let driver = Driver::open(&format!("host?{}", words.join("&")).parse()?)?;
    driver.into_raw().map_err(|_| {
        Error::new(
            Code::INTERNAL,
            "a driver that was just opened is used elsewhere",
        )
    })
}

fn make(options: &str) -> Result<(RawDriver, Box<dyn Layer>)> {
    let mut rest = Vec::new();
    let mut layer: Box<dyn Layer> = Box::new(Faithful);
    for option in options.split(',').filter(|option| !option.is_empty()) {
        match option.split_once('=').unwrap_or((option, "")) {
            ("mutant", "none") => {}
            ("mutant", name) => match mutants().find(|mutant| mutant.name == name) {
                Some(mutant) => layer = (mutant.make)(),
                None => {
                    return Err(Error::new(
                        Code::INVALID_ARGUMENT,
                        format!(
                            "there is no mutant `{name}`; `none` is the driver without a defect"
                        ),
                    ));
                }
            },
            pair => rest.push(pair),
        }
    }
    Ok((below(&rest)?, layer))
}

unsafe extern "C" fn open(
    params: *const sys::otr_open_params,
    driver: *mut *mut sys::otr_driver,
) -> i32 {
    // SAFETY: R1, R10: `params` is NULL or valid during the call, `driver` NULL or writable.
    unsafe { open_with(params, driver, make) }
}

/// The table, whose shape is that of a driver below: all are opened with the same groups.
fn table() -> Option<&'static LayerTable> {
    static TABLE: OnceLock<Option<LayerTable>> = OnceLock::new();
    // The driver is closed again at once: its strings are literals of this library.
    let made = || {
        below(&[])
            .ok()
            .map(|raw| LayerTable::over(&raw, |_, below| below, open))
    };
    TABLE.get_or_init(made).as_ref()
}

/// The entry of the contract.
///
/// # Safety
/// As in `driver.h`: `host` is NULL or a struct of the size that it states, `api` NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otr_driver_get_api(
    host: *const sys::otr_host_info,
    api: *mut *const sys::otr_driver_api,
) -> i32 {
    // SAFETY: NULL, or a struct of the size that it states (R1).
    let host = unsafe { host.as_ref() };
    let (Some(host), false) = (host, api.is_null()) else {
        return fail(Code::INVALID_ARGUMENT, "host or api is NULL");
    };
    let Some(table) = table() else {
        return fail(Code::INTERNAL, "the driver below cannot be opened");
    };
    // SAFETY: not NULL, so writable.
    unsafe { *api = table.as_ptr() };
    entry::answer(host)
}

/// A pointer of a host call, which may go to another thread (R27).
#[derive(Clone, Copy)]
pub(crate) struct Shared(pub(crate) *mut c_void);

// SAFETY: it is handed back to the host's own function only, which by R27 may run on any thread.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}
