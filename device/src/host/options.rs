//! The options of `open`. All of them are parsed before anything is reserved, so that a typing error is
//! reported instead of giving a device that nobody asked for.

use super::fault::Fault;
use super::memory::GRANULE;
use super::pages::{Huge, huge_pages};

/// What the host may see of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Face {
    /// Device addresses are host pointers.
    Unified,
    /// A host access to a device address faults.
    Discrete,
}

/// The options with their defaults applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) devices: u32,
    /// Bytes of each device.
    pub(super) memory: u64,
    pub(super) face: Face,
    /// Whether the driver has the group `graph`.
    pub(super) native_graphs: bool,
    /// Whether the driver has the group `operators`.
    pub(super) native_operators: bool,
    /// Whether the driver has the group `virtual_memory`.
    pub(super) virtual_memory: bool,
}

/// A limit that keeps device indices small; far above what a test asks for.
const MOST_DEVICES: u32 = 64;
/// Below the 47 bits of address space that a process has, all devices together.
const MOST_MEMORY: u64 = 1 << 46;

const KNOWN: &str = "known are devices=N, memory=BYTES (with K, M or G), face=unified|discrete, \
                     graphs=none|native, operators=none|native and virtual_memory=auto|on|off";

impl Options {
    /// Parses `key=value,key=value`.
    pub(super) fn parse(text: &str) -> Result<Self, Fault> {
        let mut options = Self {
            devices: 2,
            memory: half_of_physical_memory(),
            face: Face::Unified,
            native_graphs: false,
            native_operators: false,
            virtual_memory: huge_pages() != Huge::Never,
        };
        for pair in text.split(',').filter(|pair| !pair.is_empty()) {
            let Some((key, value)) = pair.split_once('=') else {
                return Err(Fault::argument(format!(
                    "the option `{pair}` has no value; {KNOWN}"
                )));
            };
            match key {
                "devices" => options.devices = devices(value)?,
                "memory" => options.memory = memory(value)?,
                "face" => options.face = face(value)?,
                "virtual_memory" => options.virtual_memory = virtual_memory(value)?,
                "graphs" => options.native_graphs = native(key, value)?,
                "operators" => options.native_operators = native(key, value)?,
                _ => {
                    return Err(Fault::argument(format!(
                        "there is no option `{key}`; {KNOWN}"
                    )));
                }
            }
        }
        if options.memory.saturating_mul(u64::from(options.devices)) > MOST_MEMORY {
            return Err(Fault::argument(format!(
                "{} devices of {} bytes are more than the {MOST_MEMORY} bytes that a process can map",
                options.devices, options.memory
            )));
        }
        Ok(options)
    }
}

fn devices(value: &str) -> Result<u32, Fault> {
    value
        .parse()
        .ok()
        .filter(|count| (1..=MOST_DEVICES).contains(count))
        .ok_or_else(|| {
            Fault::argument(format!(
                "devices={value}: expected a number from 1 to {MOST_DEVICES}"
            ))
        })
}

fn face(value: &str) -> Result<Face, Fault> {
    match value {
        "unified" => Ok(Face::Unified),
        "discrete" => Ok(Face::Discrete),
        _ => Err(Fault::argument(format!(
            "face={value}: expected unified or discrete"
        ))),
    }
}

/// Whether the driver brings a group that Outrigger can do without.
fn native(key: &str, value: &str) -> Result<bool, Fault> {
    match value {
        "none" => Ok(false),
        "native" => Ok(true),
        _ => Err(Fault::argument(format!(
            "{key}={value}: expected none or native"
        ))),
    }
}

/// `auto`: where mapped memory is as fast as allocated.
fn virtual_memory(value: &str) -> Result<bool, Fault> {
    match value {
        "auto" => Ok(huge_pages() != Huge::Never),
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(Fault::argument(format!(
            "virtual_memory={value}: expected auto, on or off"
        ))),
    }
}

fn memory(value: &str) -> Result<u64, Fault> {
    let (digits, shift) = match value.as_bytes().last() {
        Some(b'K' | b'k') => (&value[..value.len() - 1], 10),
        Some(b'M' | b'm') => (&value[..value.len() - 1], 20),
        Some(b'G' | b'g') => (&value[..value.len() - 1], 30),
        _ => (value, 0),
    };
    digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(1 << shift))
        .filter(|bytes| (GRANULE..=MOST_MEMORY).contains(bytes))
        .ok_or_else(|| {
            Fault::argument(format!(
                "memory={value}: expected a number of bytes from {GRANULE} to {MOST_MEMORY}, which may \
                 end in K, M or G"
            ))
        })
}

fn half_of_physical_memory() -> u64 {
    // SAFETY: takes a number and gives a number.
    let (pages, size) = unsafe {
        (
            libc::sysconf(libc::_SC_PHYS_PAGES),
            libc::sysconf(libc::_SC_PAGESIZE),
        )
    };
    let bytes = u64::try_from(pages).unwrap_or(0) * u64::try_from(size).unwrap_or(0) / 2;
    // A system that does not tell gets a modest device rather than none.
    if bytes < GRANULE {
        1 << 30
    } else {
        bytes.min(MOST_MEMORY / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::{Face, Options};

    #[test]
    fn defaults_and_suffixes() {
        let options = Options::parse("").unwrap();
        assert_eq!((options.devices, options.face), (2, Face::Unified));
        assert!(options.memory >= 1 << 16);
        assert!(!options.native_graphs && !options.native_operators);
        let options = Options::parse(
            "memory=3M,face=discrete,devices=1,graphs=native,operators=native,virtual_memory=on",
        )
        .unwrap();
        assert_eq!(
            options,
            Options {
                devices: 1,
                memory: 3 << 20,
                face: Face::Discrete,
                native_graphs: true,
                native_operators: true,
                virtual_memory: true,
            }
        );
        let options = Options::parse("virtual_memory=off").unwrap();
        assert!(!options.virtual_memory);
    }

    #[test]
    fn what_is_wrong_is_named_with_what_would_be_right() {
        for (text, wrong, right) in [
            ("colour=red", "`colour`", "face=unified|discrete"),
            ("devices", "`devices`", "devices=N"),
            ("devices=0", "devices=0", "1 to 64"),
            ("devices=-1", "devices=-1", "1 to 64"),
            ("memory=1", "memory=1", "65536"),
            ("memory=G", "memory=G", "65536"),
            ("memory=99999999999999999999", "memory=9999", "K, M or G"),
            ("memory=17179869184G", "memory=1717", "K, M or G"),
            ("memory=60000G,devices=4", "4 devices", "can map"),
            ("face=round", "face=round", "unified or discrete"),
            ("graphs=1", "graphs=1", "none or native"),
            ("operators=on", "operators=on", "none or native"),
            ("virtual_memory=1", "virtual_memory=1", "auto, on or off"),
        ] {
            let fault = format!("{:?}", Options::parse(text).unwrap_err());
            assert!(
                fault.contains(wrong) && fault.contains(right),
                "{text}: {fault}"
            );
        }
    }
}
