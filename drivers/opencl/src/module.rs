//! Modules: source, SPIR-V and compiled code as programs of OpenCL, and their compiled form.

use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use outrigger_contract as c;
use outrigger_driver_kit::given::{self, Out, null};
use outrigger_driver_kit::handle::{self, Object};
use outrigger_driver_kit::{Fault, Result};
use parking_lot::Mutex;

use crate::cl::{self, Cl};
use crate::device::Device;
use crate::driver::{Open, get as get_driver};
use crate::kernel::{Kernel, Program};
use crate::launch::KernelHandle;

/// The option with which the compiler keeps what kernels need to know of their parameters.
const KEEP_PARAMETERS: &str = "-cl-kernel-arg-info";

/// The handle of a module.
pub(crate) struct Module {
    open: Arc<Open>,
    device: u32,
    program: Arc<Program>,
    /// The names of the kernels.
    names: Vec<String>,
    /// The kernels that the host has asked for, with their handles, which live as long as the module.
    kernels: Mutex<Vec<(usize, Given)>>,
}

/// The handle of a kernel that the host has.
#[derive(Clone, Copy)]
struct Given(*mut c::otr_drv_kernel);

// SAFETY: a handle may be used by any thread (R8).
unsafe impl Send for Given {}

impl Object for Module {
    type Raw = c::otr_drv_module;
    const KIND: u64 = 0x6f63_6c20_6d6f_6475;
    const NAME: &'static str = "the module";
}

/// The module behind a handle.
///
/// # Safety
/// R8: the handle is NULL, or one of this driver's that no other call destroys.
unsafe fn get<'a>(handle: *mut c::otr_drv_module) -> Result<&'a Module> {
    // SAFETY: this function's contract.
    unsafe { handle::get::<Module>(handle) }
}

/// # Safety
/// R8, R10.
pub(crate) unsafe fn load(
    handle: *mut c::otr_driver,
    device: u32,
    format: c::otr_code_format_t,
    code: *const c_void,
    size: usize,
    options: *const c_char,
    place: *mut *mut c::otr_drv_module,
) -> Result {
    // SAFETY: this function's contract.
    let open = unsafe { get_driver(handle)? };
    let of = open.device(device)?;
    let place = Out::new(place, "the place for the module")?;
    if !of.takes(format) {
        return Err(Fault::unsupported(format!(
            "code format {format} is not taken by device {device}: see code_formats in its properties"
        )));
    }
    if code.is_null() {
        return Err(null("the code"));
    }
    // SAFETY: NULL, or a text that lives through the call (R10).
    let options = unsafe { given::text(options, "the options of the compiler")? };
    let options = format!("{} {KEEP_PARAMETERS}", options.unwrap_or_default());
    // A text of the host ends at its NUL, so that there is none within.
    let options = CString::new(options.trim()).unwrap_or_default();
    // SAFETY: not NULL, so as many bytes, which live through the call (R10).
    let code = unsafe { std::slice::from_raw_parts(code.cast::<u8>(), size) };
    let program = Arc::new(match format {
        c::OTR_CODE_OPENCL_C => of_source(open.cl, of, code)?,
        c::OTR_CODE_SPIRV => of_il(open.cl, of, code)?,
        _ => of_binary(open.cl, of, code)?,
    });
    build(&program, of, &options)?;
    // SAFETY: a live program that was built; the size is that of the buffer.
    let names = cl::text(|size, to, got| unsafe {
        let what = cl::CL_PROGRAM_KERNEL_NAMES;
        (open.cl.clGetProgramInfo)(program.raw, what, size, to, got)
    });
    let names = names.unwrap_or_default();
    let names = names.split(';').filter(|name| !name.is_empty());
    open.modules.fetch_add(1, Ordering::Relaxed);
    place.give(handle::give(Module {
        open: Arc::clone(open),
        device,
        program,
        names: names.map(str::to_owned).collect(),
        kernels: Mutex::default(),
    }));
    Ok(())
}

fn of_source(cl: &'static Cl, device: &Device, code: &[u8]) -> Result<Program> {
    if let Some(at) = code.iter().position(|byte| *byte == 0) {
        return Err(Fault::argument(format!(
            "the source has a NUL at byte {at} of {}: `size` is that of the text without the NUL behind it",
            code.len()
        )));
    }
    if code.is_empty() {
        return Err(Fault::argument("the source is empty"));
    }
    let (mut text, length, mut status) = (code.as_ptr().cast(), code.len(), cl::CL_SUCCESS);
    // SAFETY: one text of this length, which OpenCL copies.
    let raw = unsafe {
        (cl.clCreateProgramWithSource)(device.context().raw, 1, &mut text, &length, &mut status)
    };
    cl::check(status, "clCreateProgramWithSource")?;
    Ok(Program { cl, raw })
}

fn of_il(cl: &'static Cl, device: &Device, code: &[u8]) -> Result<Program> {
    // The first word of every SPIR-V module, in either order of its bytes.
    const MAGIC: u32 = 0x0723_0203;
    let first = code.first_chunk().map(|word| u32::from_le_bytes(*word));
    let is_code = first == Some(MAGIC) || first == Some(MAGIC.swap_bytes());
    let (Some(create), true) = (cl.clCreateProgramWithIL, is_code) else {
        return Err(Fault::argument("the code is no SPIR-V"));
    };
    let mut status = cl::CL_SUCCESS;
    // SAFETY: as many bytes, which OpenCL copies.
    let raw = unsafe {
        create(
            device.context().raw,
            code.as_ptr().cast(),
            code.len(),
            &mut status,
        )
    };
    if status == cl::CL_INVALID_VALUE {
        return Err(Fault::argument("the runtime does not take this SPIR-V"));
    }
    cl::check(status, "clCreateProgramWithIL")?;
    Ok(Program { cl, raw })
}

fn of_binary(cl: &'static Cl, device: &Device, code: &[u8]) -> Result<Program> {
    let binary = unwrap(device, code)?;
    let (mut bytes, length) = (binary.as_ptr(), binary.len());
    let (mut state, mut status) = (cl::CL_SUCCESS, cl::CL_SUCCESS);
    // SAFETY: one device of the context, and one binary of this length, which OpenCL copies.
    let raw = unsafe {
        (cl.clCreateProgramWithBinary)(
            device.context().raw,
            1,
            &device.id,
            &length,
            &mut bytes,
            &mut state,
            &mut status,
        )
    };
    if status == cl::CL_INVALID_BINARY || state == cl::CL_INVALID_BINARY {
        return Err(Fault::argument(
            "the runtime does not take this compiled form",
        ));
    }
    cl::check(status, "clCreateProgramWithBinary")?;
    Ok(Program { cl, raw })
}

fn build(program: &Program, device: &Device, options: &CStr) -> Result {
    let cl = program.cl;
    let (id, data) = (device.id, std::ptr::null_mut());
    // SAFETY: a live program, one device of its context, a text, and no callback: the call waits.
    let status = unsafe { (cl.clBuildProgram)(program.raw, 1, &id, options.as_ptr(), None, data) };
    if status == cl::CL_SUCCESS {
        return Ok(());
    }
    // SAFETY: as above; the size is that of the buffer.
    let log = cl::text(|size, to, got| unsafe {
        let what = cl::CL_PROGRAM_BUILD_LOG;
        (cl.clGetProgramBuildInfo)(program.raw, id, what, size, to, got)
    });
    let log = log.unwrap_or_default();
    match status {
        cl::CL_OUT_OF_HOST_MEMORY | cl::CL_OUT_OF_RESOURCES => {
            Err(cl::fault(status, "clBuildProgram"))
        }
        _ => {
            let reason = cl::fault(status, "the code does not compile");
            Err(Fault::argument(format!("{}\n{log}", reason.text())))
        }
    }
}

/// # Safety
/// R8: no other call uses the module, and its last launch has finished.
pub(crate) unsafe fn unload(handle: *mut c::otr_drv_module) -> Result {
    // SAFETY: this function's contract.
    let module = unsafe { handle::take::<Module>(handle)? };
    for (_, given) in module.kernels.into_inner() {
        // SAFETY: made by `kernel_get`; a kernel lives as long as its module, which ends here.
        drop(unsafe { handle::take::<KernelHandle>(given.0)? });
    }
    module.open.modules.fetch_sub(1, Ordering::Relaxed);
    Ok(())
}

/// # Safety
/// R8, R10.
pub(crate) unsafe fn kernel_get(
    handle: *mut c::otr_drv_module,
    name: *const c_char,
    place: *mut *mut c::otr_drv_kernel,
) -> Result {
    // SAFETY: this function's contract.
    let module = unsafe { get(handle)? };
    let place = Out::new(place, "the place for the kernel")?;
    // SAFETY: NULL, or a text that lives through the call (R10).
    let name = unsafe { given::text(name, "the name of the kernel")? };
    let not_found = |what: String| {
        let names = module.names.join(", ");
        let text = format!("{what}; the module has: {names}");
        Fault::new(c::OTR_ERR_NOT_FOUND, text)
    };
    let index = match name {
        Some(name) => (module.names.iter().position(|one| one == name))
            .ok_or_else(|| not_found(format!("there is no kernel `{name}`")))?,
        None if module.names.len() == 1 => 0,
        None => return Err(not_found("a name is needed".to_owned())),
    };
    let mut kernels = module.kernels.lock();
    let found = kernels.iter().find(|(one, _)| *one == index);
    let given = match found {
        Some((_, given)) => *given,
        None => {
            let kernel = Kernel::new(
                &module.program,
                &module.open.devices[module.device as usize],
                &module.names[index],
            )?;
            let given = Given(handle::give(KernelHandle {
                open: Arc::clone(&module.open),
                device: module.device,
                kernel: Arc::new(kernel),
            }));
            kernels.push((index, given));
            given
        }
    };
    place.give(given.0);
    Ok(())
}

/// # Safety
/// R8, R10: where `binary` is not NULL, it has room for as many bytes as `size` says.
pub(crate) unsafe fn binary(
    handle: *mut c::otr_drv_module,
    binary: *mut c_void,
    size: *mut u64,
) -> Result {
    // SAFETY: this function's contract.
    let module = unsafe { get(handle)? };
    let place = Out::new(size, "the place for the size")?;
    let device = &module.open.devices[module.device as usize];
    let bytes = wrap(device, &compiled(&module.program, device)?);
    if !binary.is_null() {
        // SAFETY: not NULL, as was checked.
        let room = unsafe { size.read() };
        if room < bytes.len() as u64 {
            return Err(Fault::argument(format!(
                "the compiled form has {} bytes, and there is room for {room}",
                bytes.len()
            )));
        }
        // SAFETY: this function's contract: room for as many.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), binary.cast(), bytes.len());
        }
    }
    place.give(bytes.len() as u64);
    Ok(())
}

/// The code that OpenCL compiled for a device.
fn compiled(program: &Program, device: &Device) -> Result<Vec<u8>> {
    let ask = |what| {
        // SAFETY: a live program; the sizes are those of the buffers.
        cl::bytes(|size, to, got| unsafe {
            (program.cl.clGetProgramInfo)(program.raw, what, size, to, got)
        })
    };
    let words = |bytes: Vec<u8>| -> Vec<usize> {
        let words = bytes.as_chunks().0.iter();
        words.map(|word| usize::from_ne_bytes(*word)).collect()
    };
    let none = || Fault::unsupported("the runtime tells no compiled form");
    let devices = words(ask(cl::CL_PROGRAM_DEVICES).ok_or_else(none)?);
    let sizes = words(ask(cl::CL_PROGRAM_BINARY_SIZES).ok_or_else(none)?);
    let at = devices.iter().position(|id| *id == device.id as usize);
    let (at, size) = at
        .and_then(|at| Some((at, *sizes.get(at)?)))
        .filter(|(_, size)| *size > 0)
        .ok_or_else(none)?;
    let mut binary = vec![0_u8; size];
    let mut places = vec![std::ptr::null_mut(); devices.len()];
    places[at] = binary.as_mut_ptr();
    // SAFETY: a place for each device, which is NULL or has room for its binary.
    let status = unsafe {
        (program.cl.clGetProgramInfo)(
            program.raw,
            cl::CL_PROGRAM_BINARIES,
            size_of_val(&places[..]),
            places.as_mut_ptr().cast(),
            std::ptr::null_mut(),
        )
    };
    cl::check(status, "clGetProgramInfo")?;
    Ok(binary)
}

/// Begins the compiled form. Runtimes trust what they are given, so that this driver finds out what is damaged or of
/// another device.
const MAGIC: &[u8; 8] = b"otr-ocl1";
const HEAD: usize = 32;

/// A hash that finds accidents (FNV-1a, 64 bits).
fn hash(parts: [&[u8]; 2]) -> u64 {
    let bytes = parts.iter().copied().flatten();
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The hash of all for which a compiled form is good: this version of the driver, the device and its runtime.
fn key(device: &Device) -> u64 {
    let version = env!("CARGO_PKG_VERSION").as_bytes();
    hash([version, device.version.as_bytes()])
}

fn wrap(device: &Device, binary: &[u8]) -> Vec<u8> {
    let numbers = [key(device), hash([binary, &[]]), binary.len() as u64];
    let mut bytes = MAGIC.to_vec();
    bytes.extend(numbers.into_iter().flat_map(u64::to_le_bytes));
    bytes.extend_from_slice(binary);
    bytes
}

fn unwrap<'a>(device: &Device, bytes: &'a [u8]) -> Result<&'a [u8]> {
    let head: Option<&[u8; HEAD]> = bytes.first_chunk();
    let Some(head) = head.filter(|head| head.starts_with(MAGIC)) else {
        return Err(Fault::argument(
            "these bytes are no compiled form of the driver opencl",
        ));
    };
    let (_, numbers) = head.split_at(MAGIC.len());
    let mut numbers = (numbers.as_chunks().0.iter()).map(|word| u64::from_le_bytes(*word));
    let mut number = || numbers.next().unwrap_or(0);
    let (good_for, sum, length) = (number(), number(), number());
    if good_for != key(device) {
        return Err(Fault::argument(format!(
            "the compiled form is for another device or another version of its runtime or of this driver; this one \
             is {}",
            device.version
        )));
    }
    let binary = &bytes[HEAD..];
    if length != binary.len() as u64 || sum != hash([binary, &[]]) {
        return Err(Fault::argument("the compiled form is damaged"));
    }
    Ok(binary)
}
