//! Finds and opens drivers, and says for every candidate why it was taken or refused. A broken driver
//! is an entry of the report. It must never be a crash, or an empty list without a reason.

use std::ffi::{CStr, OsStr, c_char};
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library as UnixLibrary, RTLD_LOCAL, RTLD_NOW};

use crate::report::{Candidate, CandidateKind, LoadReport, Outcome};
use crate::spec::Target;
use crate::table::{Table, other_major, versions};
use crate::{Code, Driver, DriverSpec, Error, Result, elf, fork, host, sys};

/// The version of the driver contract that this library speaks.
pub(crate) const HOST_API: (u32, u32) = (sys::OTR_DRIVER_API_MAJOR, sys::OTR_DRIVER_API_MINOR);

/// The environment variable with the directories that are searched first, separated by colons.
const PATH_VARIABLE: &str = "OUTRIGGER_DRIVER_PATH";

/// What drivers get to know of this host.
struct HostInfo(sys::otr_host_info);

// SAFETY: never written; its pointers are to constants.
unsafe impl Sync for HostInfo {}

static HOST_INFO: HostInfo = HostInfo(sys::otr_host_info {
    struct_size: size_of::<sys::otr_host_info>(),
    next: std::ptr::null(),
    api_major: HOST_API.0,
    api_minor: HOST_API.1,
    version: concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast(),
    log: Some(log),
});

/// The driver's way to log: an event of target `outrigger::driver`.
///
/// # Safety
/// `message` is NULL or a NUL-terminated string.
unsafe extern "C" fn log(level: i32, message: *const c_char) {
    if message.is_null() {
        return;
    }
    // SAFETY: not NULL, so NUL-terminated.
    let message = unsafe { CStr::from_ptr(message) }.to_string_lossy();
    // A subscriber that panics must not unwind into the driver.
    let _ = std::panic::catch_unwind(|| match level {
        sys::OTR_LOG_ERROR => tracing::error!(target: "outrigger::driver", "{message}"),
        sys::OTR_LOG_WARN => tracing::warn!(target: "outrigger::driver", "{message}"),
        sys::OTR_LOG_INFO => tracing::info!(target: "outrigger::driver", "{message}"),
        _ => tracing::debug!(target: "outrigger::driver", "{message}"),
    });
}

/// Opens the drivers of a comma-separated list of specifications. Those that cannot be opened are in
/// the report only.
///
/// A path is opened as it is. A name is that of a built-in driver, or else of a library
/// `liboutrigger_NAME.so`, looked for in the directories of `search_path` and last by the system's
/// loader; the first file that exists decides. Loading a library runs its code: only name drivers that
/// you trust.
pub fn load(specs: &str, search_path: &[PathBuf]) -> (Vec<Driver>, LoadReport) {
    let mut drivers = Vec::new();
    let mut report = LoadReport::default();
    for (text, spec) in DriverSpec::split(specs) {
        match spec {
            Ok(spec) => drivers.extend(load_one(&spec, search_path, &mut report)),
            Err(error) => report.candidates.push(Candidate {
                spec: text.to_owned(),
                kind: CandidateKind::Specification,
                path: None,
                outcome: Outcome::refused(&error),
            }),
        }
    }
    (drivers, report)
}

/// The directories in which drivers are looked for by name: those of `OUTRIGGER_DRIVER_PATH`, then the
/// one that holds this library.
pub fn default_search_path() -> Vec<PathBuf> {
    let mut path: Vec<PathBuf> = std::env::var_os(PATH_VARIABLE)
        .map(|value| {
            std::env::split_paths(&value)
                .filter(|p| !p.as_os_str().is_empty())
                .collect()
        })
        .unwrap_or_default();
    path.extend(own_directory());
    path
}

impl Driver {
    /// Opens one driver, with the [default search path](default_search_path).
    ///
    /// # Errors
    /// The reason of the refusal; for a name that was searched for, the whole report as text.
    pub fn open(spec: &DriverSpec) -> Result<Self> {
        let mut report = LoadReport::default();
        if let Some(driver) = load_one(spec, &default_search_path(), &mut report) {
            return Ok(driver);
        }
        Err(match report.candidates.as_slice() {
            [
                Candidate {
                    outcome: Outcome::Refused { code, reason },
                    path,
                    ..
                },
            ] => {
                let place = path
                    .as_ref()
                    .map_or_else(String::new, |p| format!("{}: ", p.display()));
                Error::new(*code, format!("{place}{reason}"))
            }
            _ => Error::new(
                Code::LOAD,
                format!("the driver {spec} could not be loaded:\n{report}"),
            ),
        })
    }
}

/// The directory of the library (or program) that this code is part of.
pub fn own_directory() -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    // SAFETY: all fields are pointers, for which zero is valid.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    let here = own_directory as fn() -> Option<PathBuf>;
    // SAFETY: the address is that of a function, and `info` lives through the call.
    if unsafe { libc::dladdr(here as *const libc::c_void, &mut info) } == 0
        || info.dli_fname.is_null()
    {
        return None;
    }
    // SAFETY: dladdr gave a NUL-terminated path that lives as long as the library is loaded.
    let file = unsafe { CStr::from_ptr(info.dli_fname) };
    Path::new(OsStr::from_bytes(file.to_bytes()))
        .canonicalize()
        .ok()?
        .parent()
        .map(Path::to_owned)
}

fn load_one(spec: &DriverSpec, search_path: &[PathBuf], report: &mut LoadReport) -> Option<Driver> {
    let mut note = |kind, path: Option<&Path>, result: Result<Driver>| {
        report.candidates.push(Candidate {
            spec: spec.to_string(),
            kind,
            path: path.map(Path::to_owned),
            outcome: match &result {
                Ok(driver) => Outcome::taken(driver),
                Err(error) => Outcome::refused(error),
            },
        });
        result.ok()
    };
    if let Err(error) = fork::refuse_fork() {
        return note(CandidateKind::Specification, None, Err(error));
    }
    match spec.target() {
        Target::Path(path) => {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            note(CandidateKind::Path, Some(&path), open_file(&path, spec))
        }
        Target::Name(name) if name == host::NAME => {
            note(CandidateKind::Builtin, None, open_builtin(spec))
        }
        Target::Name(name) => {
            let file = format!("liboutrigger_{name}.so");
            for directory in search_path {
                let path = directory.join(&file);
                let path = std::path::absolute(&path).unwrap_or(path);
                let exists = path.exists();
                let driver = note(CandidateKind::Search, Some(&path), open_file(&path, spec));
                if exists {
                    return driver;
                }
            }
            let path = Path::new(&file);
            note(
                CandidateKind::Search,
                Some(path),
                open_by_system(path, spec),
            )
        }
    }
}

fn open_builtin(spec: &DriverSpec) -> Result<Driver> {
    fork::watch();
    let options = spec.driver_options().unwrap_or_default();
    let api = host::api(&options.to_string_lossy());
    // SAFETY: the table of the host driver, which keeps the contract and is part of this library.
    unsafe { Driver::from_table(Table::read(api)?, None, Some(&options), spec.to_string()) }
}

fn open_file(path: &Path, spec: &DriverSpec) -> Result<Driver> {
    match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::new(Code::NOT_FOUND, "there is no such file"));
        }
        Err(error) => {
            return Err(Error::new(
                Code::LOAD,
                format!("it cannot be read: {error}"),
            ));
        }
        Ok(data) if data.is_dir() => {
            return Err(Error::new(
                Code::LOAD,
                "it is a directory; name the shared library in it",
            ));
        }
        Ok(_) => {}
    }
    match open_library(path) {
        Ok(library) => open_driver(library, spec, spec.of_file(path)),
        Err(text) => {
            let reason = elf::problem(path)
                .unwrap_or_else(|| format!("the system's loader refused it: {text}"));
            Err(Error::new(Code::LOAD, reason))
        }
    }
}

fn open_by_system(file: &Path, spec: &DriverSpec) -> Result<Driver> {
    match open_library(file) {
        Ok(library) => open_driver(library, spec, spec.to_string()),
        Err(text) => Err(Error::new(
            Code::NOT_FOUND,
            format!(
                "the system's loader did not find it either ({text}); built-in drivers are: {}; add \
                 the directory of another to {PATH_VARIABLE}, or give its path",
                host::NAME
            ),
        )),
    }
}

/// Loads a library with local symbol scope, or gives the loader's text.
fn open_library(path: &Path) -> Result<libloading::Library, String> {
    // SAFETY: this runs the library's initialisers. The person who named the driver trusts its code.
    match unsafe { UnixLibrary::open(Some(path), RTLD_NOW | RTLD_LOCAL) } {
        Ok(library) => Ok(library.into()),
        Err(error) => Err(std::error::Error::source(&error)
            .map_or_else(|| error.to_string(), ToString::to_string)),
    }
}

type GetApi = unsafe extern "C" fn(
    *const sys::otr_host_info,
    *mut *const sys::otr_driver_api,
) -> sys::otr_code_t;

fn open_driver(library: libloading::Library, spec: &DriverSpec, origin: String) -> Result<Driver> {
    fork::watch();
    // SAFETY: the contract fixes the type of this symbol.
    let get_api = unsafe { library.get::<GetApi>(c"otr_driver_get_api") };
    let Ok(get_api) = get_api else {
        return Err(Error::new(
            Code::LOAD,
            "it exports no symbol `otr_driver_get_api`; a driver exports it with C linkage and default \
             visibility (OTR_DRIVER_EXPORT)",
        ));
    };
    let mut api = std::ptr::null();
    // SAFETY: the host's description is static and `api` lives through the call.
    let code = Code(unsafe { get_api(&HOST_INFO.0, &mut api) });
    if code != Code::OK {
        // SAFETY: NULL, or a table with its size in front, by the contract.
        return Err(match (code, unsafe { versions(api) }) {
            (Code::VERSION, Some((major, minor))) => other_major(major, minor),
            _ => Error::new(
                code,
                format!(
                    "its otr_driver_get_api failed ({code}, code {}) for a host of version {}.{}",
                    code.0, HOST_API.0, HOST_API.1
                ),
            ),
        });
    }
    // SAFETY: R1: the table is as large as its `struct_size` says; it is valid while its library is loaded.
    let table = unsafe { Table::read(api)? };
    // SAFETY: functions of a driver keep the contract, and lie in the library that goes with them.
    unsafe {
        Driver::from_table(
            table,
            Some(Box::new(library)),
            spec.driver_options().as_deref(),
            origin,
        )
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::load;
    use crate::report::Outcome;
    use crate::{Code, Driver, DriverSpec};

    fn refusal(specs: &str, path: &[PathBuf]) -> (Code, String) {
        let (drivers, report) = load(specs, path);
        assert!(drivers.is_empty());
        match &report.candidates.last().unwrap().outcome {
            Outcome::Refused { code, reason } => (*code, reason.clone()),
            Outcome::Taken { .. } => panic!("taken: {report}"),
        }
    }

    #[test]
    fn the_built_in_driver_is_taken_and_the_rest_is_refused_with_reasons() {
        let (drivers, report) = load("host?devices=3&memory=1M, nosuch ,host?x", &[]);
        assert_eq!(drivers.len(), 1);
        assert_eq!(drivers[0].device_count(), 3);
        assert_eq!(report.candidates.len(), 3);
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        let outcome = |at: usize| &json["candidates"][at]["outcome"];
        assert_eq!(outcome(0)["taken"]["devices"].as_array().unwrap().len(), 3);
        assert_eq!(outcome(1)["refused"]["code"], "NOT_FOUND");
        assert_eq!(json["candidates"][2]["kind"], "specification");
        let text = report.to_string();
        assert!(
            text.contains("host?devices=3&memory=1M (built in): taken"),
            "{text}"
        );
    }

    #[test]
    fn files_that_are_no_driver_are_refused_by_what_they_are() {
        let directory = std::env::temp_dir().join(format!("otr-loader-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let text = directory.join("liboutrigger_text.so");
        std::fs::write(&text, "not a library").unwrap();
        let path = text.to_str().unwrap();
        assert!(refusal(path, &[]).1.contains("not an ELF file"));
        let (code, reason) = refusal("text", std::slice::from_ref(&directory));
        assert!(
            code == Code::LOAD && reason.contains("not an ELF file"),
            "{reason}"
        );
        let missing = directory.join("none.so");
        assert_eq!(refusal(missing.to_str().unwrap(), &[]).0, Code::NOT_FOUND);
        assert!(
            refusal(&format!("{}/", directory.display()), &[])
                .1
                .contains("directory")
        );
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_library_without_the_symbol_is_refused() {
        let (code, reason) = refusal("libm.so.6/../libm.so", &[]);
        assert_eq!(code, Code::NOT_FOUND, "{reason}");
        // A real library that is on every system with this test: the C library itself.
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let libc = maps
            .split_whitespace()
            .find(|word| word.contains("/libc.so"))
            .unwrap();
        let (code, reason) = refusal(libc, &[]);
        assert_eq!(code, Code::LOAD);
        assert!(reason.contains("`otr_driver_get_api`"), "{reason}");
    }

    #[test]
    fn opening_one_driver_gives_the_reason_of_its_refusal() {
        let spec: DriverSpec = "host?colour=red".parse().unwrap();
        let error = Driver::open(&spec).unwrap_err();
        assert_eq!(error.code(), Code::INVALID_ARGUMENT);
        assert!(
            error.message().contains("colour") && error.message().contains("face"),
            "{error}"
        );
    }
}
