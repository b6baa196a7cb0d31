//! Finding devices: the options of `open`, the platforms and devices that they choose, and why a device cannot be
//! one. A device that lacks something is left out, with a message in the host's log; where no device remains, the
//! reasons are the error.

use std::time::{Duration, Instant};

use outrigger_contract as c;
use outrigger_driver_kit::options::Options;
use outrigger_driver_kit::{Fault, Result, table};
use parking_lot::Mutex;

use crate::cl::{self, Cl};

const KNOWN: [(&str, &str); 3] = [
    ("platform", "NAME|INDEX"),
    ("device", "INDEX|cpu|gpu|accelerator"),
    ("host_visible", "0|1"),
];

/// The platform and the devices that the options ask for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Choice {
    platform: Option<Platform>,
    device: Option<Pick>,
    /// Whether the host may reach the memory; without it, it may where it can.
    pub(crate) host_visible: Option<bool>,
}

#[derive(Debug, PartialEq, Eq)]
enum Platform {
    Index(usize),
    /// A part of the name, in lower case.
    Name(String),
}

#[derive(Debug, PartialEq, Eq)]
enum Pick {
    /// A number among the devices of the chosen platforms.
    Index(usize),
    Type(cl::cl_device_type),
}

impl Choice {
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let options = Options::parse(text, &KNOWN)?;
        let platform = options.get("platform").map(|value| {
            let name = || Platform::Name(value.to_lowercase());
            value.parse().map_or_else(|_| name(), Platform::Index)
        });
        let device = match options.get("device") {
            None => None,
            Some("cpu") => Some(Pick::Type(cl::CL_DEVICE_TYPE_CPU)),
            Some("gpu") => Some(Pick::Type(cl::CL_DEVICE_TYPE_GPU)),
            Some("accelerator") => Some(Pick::Type(cl::CL_DEVICE_TYPE_ACCELERATOR)),
            Some(value) => Some(Pick::Index(value.parse().map_err(|_| {
                Fault::argument(format!(
                    "device={value}: expected a number, cpu, gpu or accelerator"
                ))
            })?)),
        };
        Ok(Self {
            platform,
            device,
            host_visible: options.switch("host_visible")?,
        })
    }
}

/// A device that can be one of the driver's.
#[derive(Clone, Copy)]
pub(crate) struct Candidate {
    pub(crate) platform: cl::cl_platform_id,
    pub(crate) device: cl::cl_device_id,
    pub(crate) kind: cl::cl_device_type,
    /// Whether the host reaches the memory of the device.
    pub(crate) visible: bool,
    /// The bytes of memory in all, and of one allocation.
    pub(crate) memory: u64,
    pub(crate) largest: u64,
}

/// The devices that the options choose, by platform.
pub(crate) fn find(cl: &Cl, choice: &Choice) -> Result<Vec<Candidate>> {
    // PoCL answers 0 for the limits of a device while another thread makes it ready.
    static FINDING: Mutex<()> = Mutex::new(());
    let _finding = FINDING.lock();
    let platforms = platforms(cl)?;
    let chosen: Vec<_> = (platforms.iter().enumerate())
        .filter(|(index, (_, name))| match &choice.platform {
            None => true,
            Some(Platform::Index(wanted)) => index == wanted,
            Some(Platform::Name(part)) => name.to_lowercase().contains(part),
        })
        .map(|(_, platform)| platform)
        .collect();
    if chosen.is_empty() {
        let names: Vec<_> = (platforms.iter().enumerate())
            .map(|(index, (_, name))| format!("{index}: {name}"))
            .collect();
        let wanted = match &choice.platform {
            Some(Platform::Index(index)) => index.to_string(),
            Some(Platform::Name(name)) => name.clone(),
            None => String::new(),
        };
        return Err(not_found(format!(
            "there is no OpenCL platform `{wanted}`; there are: {}",
            names.join(", ")
        )));
    }
    let (mut found, mut reasons, mut index) = (Vec::new(), Vec::new(), 0);
    for (platform, name) in chosen {
        for device in devices(cl, *platform) {
            let candidate = examine(cl, *platform, device, choice);
            let wanted = match (&choice.device, &candidate) {
                (None, _) => true,
                (Some(Pick::Index(wanted)), _) => *wanted == index,
                (Some(Pick::Type(kind)), _) => kind_of(cl, device) & kind != 0,
            };
            index += 1;
            match candidate {
                _ if !wanted => {}
                Ok(candidate) => found.push(candidate),
                Err(why) => reasons.push(format!("{} of {name} {why}", device_name(cl, device))),
            }
        }
    }
    if !found.is_empty() {
        for reason in reasons {
            table::log(
                c::OTR_LOG_WARN,
                &format!("opencl: {reason}: it is left out"),
            );
        }
        return Ok(found);
    }
    if reasons.is_empty() {
        let which = match choice.device {
            None => "the chosen platforms have no device".to_owned(),
            Some(_) => {
                format!(
                    "the option device= chooses none of the devices of the chosen platforms, of which there are {index}"
                )
            }
        };
        return Err(not_found(which));
    }
    Err(Fault::unsupported(reasons.join("; ")))
}

fn not_found(text: impl Into<String>) -> Fault {
    Fault::new(c::OTR_ERR_NOT_FOUND, text)
}

fn platforms(cl: &Cl) -> Result<Vec<(cl::cl_platform_id, String)>> {
    let mut count = 0;
    // SAFETY: asks for the number alone.
    let status = unsafe { (cl.clGetPlatformIDs)(0, std::ptr::null_mut(), &mut count) };
    if status == cl::CL_PLATFORM_NOT_FOUND_KHR || (status == cl::CL_SUCCESS && count == 0) {
        return Err(not_found(
            "there is no OpenCL platform: install the OpenCL runtime of the device",
        ));
    }
    cl::check(status, "clGetPlatformIDs")?;
    let mut platforms = vec![std::ptr::null_mut(); count as usize];
    // SAFETY: there is room for as many.
    let status = unsafe { (cl.clGetPlatformIDs)(count, platforms.as_mut_ptr(), &mut count) };
    cl::check(status, "clGetPlatformIDs")?;
    platforms.truncate(count as usize);
    let named = |platform| (platform, platform_text(cl, platform, cl::CL_PLATFORM_NAME));
    Ok(platforms.into_iter().map(named).collect())
}

/// A text of a platform; empty if there is none.
pub(crate) fn platform_text(
    cl: &Cl,
    platform: cl::cl_platform_id,
    what: cl::cl_platform_info,
) -> String {
    // SAFETY: a live platform; the sizes are those of the buffer.
    let text =
        cl::text(|size, to, got| unsafe { (cl.clGetPlatformInfo)(platform, what, size, to, got) });
    text.unwrap_or_default()
}

/// The devices of a platform. One that has none, or whose runtime fails, has none for us.
fn devices(cl: &Cl, platform: cl::cl_platform_id) -> Vec<cl::cl_device_id> {
    let (all, mut count) = (cl::CL_DEVICE_TYPE_ALL, 0);
    // SAFETY: a live platform; asks for the number alone.
    let status = unsafe { (cl.clGetDeviceIDs)(platform, all, 0, std::ptr::null_mut(), &mut count) };
    if status != cl::CL_SUCCESS {
        return Vec::new();
    }
    let mut devices = vec![std::ptr::null_mut(); count as usize];
    // SAFETY: as above, with room for as many.
    let status =
        unsafe { (cl.clGetDeviceIDs)(platform, all, count, devices.as_mut_ptr(), &mut count) };
    if status != cl::CL_SUCCESS {
        return Vec::new();
    }
    devices.truncate(count as usize);
    devices
}

/// A number that a device tells of itself.
pub(crate) fn ask<T: Default>(
    cl: &Cl,
    device: cl::cl_device_id,
    what: cl::cl_device_info,
) -> Option<T> {
    // SAFETY: a live device; the size is that of the place.
    cl::number(|size, to| unsafe {
        (cl.clGetDeviceInfo)(device, what, size, to, std::ptr::null_mut())
    })
}

/// A text that a device tells of itself.
pub(crate) fn ask_text(cl: &Cl, device: cl::cl_device_id, what: cl::cl_device_info) -> String {
    // SAFETY: a live device; the size is that of the buffer.
    let text =
        cl::text(|size, to, got| unsafe { (cl.clGetDeviceInfo)(device, what, size, to, got) });
    text.unwrap_or_default()
}

fn device_name(cl: &Cl, device: cl::cl_device_id) -> String {
    ask_text(cl, device, cl::CL_DEVICE_NAME)
}

fn kind_of(cl: &Cl, device: cl::cl_device_id) -> cl::cl_device_type {
    ask(cl, device, cl::CL_DEVICE_TYPE).unwrap_or(0)
}

/// Whether a device has what the driver needs, or what it lacks.
fn examine(
    cl: &Cl,
    platform: cl::cl_platform_id,
    device: cl::cl_device_id,
    choice: &Choice,
) -> Result<Candidate, String> {
    if ask::<cl::cl_bool>(cl, device, cl::CL_DEVICE_AVAILABLE) != Some(cl::CL_TRUE) {
        return Err("is not available".to_owned());
    }
    // A runtime of OpenCL 1.x does not know the question.
    let svm: cl::cl_device_svm_capabilities =
        ask(cl, device, cl::CL_DEVICE_SVM_CAPABILITIES).unwrap_or(0);
    if svm & cl::CL_DEVICE_SVM_COARSE_GRAIN_BUFFER == 0 {
        return Err(
            "has no shared virtual memory (SVM of OpenCL 2.0 or later), without which its memory has no addresses"
                .to_owned(),
        );
    }
    let fine = svm & cl::CL_DEVICE_SVM_FINE_GRAIN_BUFFER != 0;
    if choice.host_visible == Some(true) && !fine {
        return Err("has no fine-grain SVM, which host_visible=1 takes".to_owned());
    }
    let limit = |what| settled(|| ask::<u64>(cl, device, what).filter(|bytes| *bytes > 0));
    let memory = limit(cl::CL_DEVICE_GLOBAL_MEM_SIZE)
        .ok_or_else(|| "does not tell how much memory it has".to_owned())?;
    Ok(Candidate {
        platform,
        device,
        kind: kind_of(cl, device),
        visible: choice.host_visible.unwrap_or(fine),
        memory,
        largest: limit(cl::CL_DEVICE_MAX_MEM_ALLOC_SIZE).map_or(memory, |most| most.min(memory)),
    })
}

/// An answer that may take a while, since a library elsewhere in the process may be making the device ready.
fn settled<T>(answer: impl Fn() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        let given = answer();
        if given.is_some() || start.elapsed() > Duration::from_secs(1) {
            return given;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::{Choice, Pick, Platform};
    use crate::cl;

    #[test]
    fn options_are_read() {
        let choice =
            Choice::parse("platform=Portable Computing,device=gpu,host_visible=0").unwrap();
        let name = "portable computing".to_owned();
        assert_eq!(
            choice,
            Choice {
                platform: Some(Platform::Name(name)),
                device: Some(Pick::Type(cl::CL_DEVICE_TYPE_GPU)),
                host_visible: Some(false),
            }
        );
        let choice = Choice::parse("platform=2,device=1").unwrap();
        assert_eq!(choice.platform, Some(Platform::Index(2)));
        assert_eq!(choice.device, Some(Pick::Index(1)));
        assert_eq!(Choice::parse("").unwrap(), Choice::default());
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, wrong, right) in [
            ("colour=red", "`colour`", "platform=NAME|INDEX"),
            ("device=tpu", "device=tpu", "cpu, gpu or accelerator"),
            ("host_visible=yes", "host_visible=yes", "0 or 1"),
        ] {
            let fault = Choice::parse(text).unwrap_err();
            assert!(
                fault.text().contains(wrong) && fault.text().contains(right),
                "{fault:?}"
            );
        }
    }
}
