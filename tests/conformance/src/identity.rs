//! The identity of the suite (its hash) and of the driver (its file, its devices and what it declares).
//! A separate process inspects the driver, because it may crash when it is opened.

use std::fs::File;
use std::path::{Path, PathBuf};

use outrigger_device::{DeviceProperties, Driver, sys};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::seal::hex;
use crate::{Failure, Need, Verdict, rules, test};

/// The suite that made a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Suite {
    /// The version of the suite.
    pub version: String,
    /// The contract it tests, as `1.0`.
    pub contract: String,
    /// A hash over the ids, rules, needs and limits of all tests, the texts of the rules, and the sources
    /// of the suite.
    pub hash: String,
    /// The number of tests in the suite.
    pub tests: u32,
}

impl Suite {
    /// The suite of this program.
    pub fn current() -> Self {
        let mut hash = Sha256::new();
        let mut add = |text: &str| {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        };
        let contract = format!(
            "{}.{}",
            sys::OTR_DRIVER_API_MAJOR,
            sys::OTR_DRIVER_API_MINOR
        );
        add(env!("CARGO_PKG_VERSION"));
        add(&contract);
        add(env!("OUTRIGGER_SUITE_SOURCES"));
        for rule in rules::all() {
            add(&rule.name);
            add(&rule.text);
        }
        let tests = test::all();
        for test in &tests {
            add(test.id);
            add(&format!(
                "{:?} {:?} {:?} {}",
                test.rules, test.needs, test.absent, test.limit
            ));
        }
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            contract,
            hash: hex(&hash.finalize()),
            tests: tests.len() as u32,
        }
    }
}

/// The driver that a report is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriverFacts {
    /// The driver as it was asked for.
    pub spec: String,
    /// The short name of the driver.
    pub name: String,
    /// The maker of the driver.
    pub vendor: String,
    /// The version of the driver.
    pub version: String,
    /// The version of the contract that it was compiled with, as `1.0`.
    pub contract: String,
    /// The file that its functions lie in; for a built-in driver the program.
    pub file: PathBuf,
    /// The hash of that file (SHA-256).
    pub file_sha256: String,
    /// The parts that a driver may leave out and this one declares.
    pub capabilities: Vec<Need>,
    /// The devices of the driver.
    pub devices: Vec<DeviceFacts>,
}

/// A device of the driver that a report is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceFacts {
    /// The name of the device.
    pub name: String,
    /// The maker of the device.
    pub vendor: String,
    /// The number of the device across processes, as hexadecimal digits; empty if it has none.
    pub uuid: String,
    /// The memory of the device in bytes.
    pub total_memory: u64,
    /// The alignment of allocations, in bytes.
    pub address_alignment: u32,
    /// The parallel units of the device; 0 if unknown.
    pub compute_units: u32,
    /// Peak bandwidth in bytes per second; 0 if unknown.
    pub peak_bytes_per_second: u64,
    /// Peak rate of f32 operations per second; 0 if unknown.
    pub peak_flops_f32: u64,
    /// Peak rate of f16 operations per second; 0 if unknown.
    pub peak_flops_f16: u64,
}

impl DriverFacts {
    /// Opens a driver and writes down what it says of itself.
    pub(crate) fn read(spec: &str) -> Verdict<Self> {
        let driver = outrigger_device_ops::with_kernels(Driver::open(&spec.parse()?)?)?;
        let file = file_of(&driver)?;
        let (major, minor) = driver.api_version();
        let devices = (0..driver.device_count())
            .map(|device| Ok(DeviceFacts::of(&driver.properties(device)?)))
            .collect::<Verdict<_>>()?;
        let declared = |need: &Need| need.declared(&driver, spec);
        Ok(Self {
            spec: spec.to_owned(),
            name: driver.name().to_owned(),
            vendor: driver.vendor().to_owned(),
            version: driver.version().to_owned(),
            contract: format!("{major}.{minor}"),
            file_sha256: hash_file(&file)?,
            file,
            capabilities: Need::ALL.into_iter().filter(declared).collect(),
            devices,
        })
    }
}

impl DeviceFacts {
    fn of(properties: &DeviceProperties) -> Self {
        let uuid = match properties.uuid {
            [0, ..] if properties.uuid == [0; 16] => String::new(),
            uuid => hex(&uuid),
        };
        Self {
            name: properties.name.clone(),
            vendor: properties.vendor.clone(),
            uuid,
            total_memory: properties.total_memory,
            address_alignment: properties.address_alignment,
            compute_units: properties.compute_units,
            peak_bytes_per_second: properties.peak_bytes_per_second,
            peak_flops_f32: properties.peak_flops_f32,
            peak_flops_f16: properties.peak_flops_f16,
        }
    }
}

/// The SHA-256 of a file.
///
/// # Errors
/// If it cannot be read.
pub fn hash_file(path: &Path) -> std::io::Result<String> {
    let mut hash = Sha256::new();
    std::io::copy(&mut File::open(path)?, &mut Hasher(&mut hash))?;
    Ok(hex(&hash.finalize()))
}

/// Takes bytes into a hash.
struct Hasher<'a>(&'a mut Sha256);

impl std::io::Write for Hasher<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The file that a driver's functions lie in.
fn file_of(driver: &Driver) -> Verdict<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let unknown = || Failure::new("the system does not say in which file the driver lies");
    let open = driver.raw().0.open.ok_or_else(unknown)?;
    // SAFETY: all fields are pointers, for which zero is valid.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the address is only looked up, and `info` lives through the call.
    let found = unsafe { libc::dladdr(open as *const libc::c_void, &mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return Err(unknown());
    }
    // SAFETY: dladdr gave a NUL-terminated path that lives as long as the library is loaded.
    let name = unsafe { std::ffi::CStr::from_ptr(info.dli_fname) };
    let path = Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()));
    Ok(path.canonicalize()?)
}
