//! Modules: CUDA C, PTX and compiled code. All become compiled code for the device before they are loaded, so that each
//! module can tell its own.

use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use outrigger_contract as c;
use outrigger_driver_kit::given::{self, Out, null};
use outrigger_driver_kit::handle::{self, Object};
use outrigger_driver_kit::{Fault, Result};
use parking_lot::Mutex;

use crate::cuda::{self, c_text};
use crate::device::Device;
use crate::driver::{Open, get as get_driver};
use crate::kernel::Kernel;
use crate::nvrtc::Compiled;

/// The handle of a module.
pub(crate) struct Module {
    open: Arc<Open>,
    device: u32,
    raw: cuda::Module,
    binary: Vec<u8>,
    /// The handles of kernels that the host has asked for, which live as long as the module.
    kernels: Mutex<Vec<(CString, Given)>>,
}

// SAFETY: CUDA's modules may be used by any thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

/// The handle of a kernel.
#[derive(Clone, Copy)]
struct Given(*mut c::otr_drv_kernel);

// SAFETY: a handle may be used by any thread (R8).
unsafe impl Send for Given {}

impl Object for Module {
    type Raw = c::otr_drv_module;
    const KIND: u64 = 0x6375_6461_6d6f_6475;
    const NAME: &'static str = "the module";
}

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
    if code.is_null() || size == 0 {
        return Err(null("the code"));
    }
    // SAFETY: NULL, or a text that lives through the call (R10).
    let options = unsafe { given::text(options, "the options of the compiler")? };
    // SAFETY: not NULL, so as many bytes, which live through the call (R10).
    let code = unsafe { std::slice::from_raw_parts(code.cast::<u8>(), size) };
    let _entered = of.enter()?;
    let binary = match (format, open.nvrtc) {
        (c::OTR_CODE_CUDA_C, Some(nvrtc)) => {
            match nvrtc.compile(code, options.unwrap_or_default(), of.capability)? {
                Compiled::Cubin(binary) => binary,
                Compiled::Ptx(text) => link(of, &text)?,
            }
        }
        (c::OTR_CODE_PTX, _) => link(of, code)?,
        _ => code.to_vec(),
    };
    check_whole(&binary)?;
    let mut raw = std::ptr::null_mut();
    // SAFETY: a place for the module, and a whole file of compiled code.
    let loaded = unsafe { (of.cuda.module_load)(&mut raw, binary.as_ptr().cast()) };
    of.check(loaded, "cuModuleLoadData")?;
    of.live.modules.fetch_add(1, Ordering::Relaxed);
    place.give(handle::give(Module {
        open: Arc::clone(open),
        device,
        raw,
        binary,
        kernels: Mutex::default(),
    }));
    Ok(())
}

/// Compiled code of PTX; the context is entered.
fn link(device: &Device, text: &[u8]) -> Result<Vec<u8>> {
    /// The state of a link, which ends when it is dropped.
    struct State<'a>(&'a Device, cuda::LinkState);
    impl Drop for State<'_> {
        fn drop(&mut self) {
            // SAFETY: a live state, which nobody uses afterwards.
            unsafe { (self.0.cuda.link_destroy)(self.1) };
        }
    }

    const LOG: usize = 16 << 10;
    // CUDA asks for the NUL to be counted.
    let text = c_text(text);
    let text = text.as_bytes_with_nul();
    let mut log = vec![0_u8; LOG];
    let mut options = [
        cuda::JIT_ERROR_LOG_BUFFER,
        cuda::JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
    ];
    // The size is passed as a pointer's value, and what was written comes back in its place.
    let mut values = [
        log.as_mut_ptr().cast::<c_void>(),
        std::ptr::without_provenance_mut(LOG),
    ];
    let cuda = device.cuda;
    let mut state = std::ptr::null_mut();
    // SAFETY: two options with their values, which live as long as the state, and a place for it.
    let made =
        unsafe { (cuda.link_create)(2, options.as_mut_ptr(), values.as_mut_ptr(), &mut state) };
    device.check(made, "cuLinkCreate")?;
    let state = State(device, state);
    let (mut binary, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: a live state, a text with its size and a name; places for the result.
    let linked = unsafe {
        let (none, values) = (std::ptr::null_mut(), std::ptr::null_mut());
        let (name, data) = (c"kernel.ptx".as_ptr(), text.as_ptr().cast_mut().cast());
        match (cuda.link_add)(
            state.1,
            cuda::JIT_INPUT_PTX,
            data,
            text.len(),
            name,
            0,
            none,
            values,
        ) {
            cuda::SUCCESS => (cuda.link_complete)(state.1, &mut binary, &mut size),
            failed => failed,
        }
    };
    if let Err(fault) = device.check(linked, "cuLinkAddData") {
        let log = c_text(&log);
        let log = log.to_string_lossy();
        return Err(Fault::new(
            fault.code(),
            format!("{}\n{}", fault.text(), log.trim_end()),
        ));
    }
    // SAFETY: so many bytes belong to the state, which lives.
    Ok(unsafe { std::slice::from_raw_parts(binary.cast::<u8>(), size) }.to_vec())
}

/// Refuses what is no whole ELF file: CUDA is not told where the bytes end, and would read on.
fn check_whole(binary: &[u8]) -> Result {
    if is_whole(binary) == Some(true) {
        return Ok(());
    }
    Err(Fault::argument(format!(
        "the {} bytes are no compiled code of CUDA's (a cubin, which is an ELF file of 64 bits), or not all of it",
        binary.len()
    )))
}

/// `None` if the file ends within its tables.
fn is_whole(file: &[u8]) -> Option<bool> {
    let half = |at: usize| {
        Some(u64::from(u16::from_le_bytes(
            *file.get(at..)?.first_chunk()?,
        )))
    };
    let word = |at: usize| {
        Some(u64::from(u32::from_le_bytes(
            *file.get(at..)?.first_chunk()?,
        )))
    };
    let long = |at: usize| Some(u64::from_le_bytes(*file.get(at..)?.first_chunk()?));
    /// A section without bytes in the file.
    const NO_BITS: u64 = 8;
    // 64 bits, the low byte first.
    if !file.starts_with(b"\x7fELF\x02\x01") {
        return Some(false);
    }
    let within = |start: u64, size: u64| {
        start
            .checked_add(size)
            .is_some_and(|end| end <= file.len() as u64)
    };
    let programs = within(long(0x20)?, half(0x36)? * half(0x38)?);
    let (sections, each, count) = (long(0x28)?, half(0x3a)?, half(0x3c)?);
    if !programs || !within(sections, each * count) {
        return Some(false);
    }
    for number in 0..count {
        let at = usize::try_from(sections + number * each).ok()?;
        let (kind, start, size) = (word(at + 4)?, long(at + 0x18)?, long(at + 0x20)?);
        if kind != NO_BITS && !within(start, size) {
            return Some(false);
        }
    }
    Some(true)
}

/// # Safety
/// R8: the last launch has finished, and no other call uses the module.
pub(crate) unsafe fn unload(handle: *mut c::otr_drv_module) -> Result {
    // SAFETY: this function's contract.
    let module = unsafe { handle::take::<Module>(handle)? };
    for (_, kernel) in module.kernels.into_inner() {
        // SAFETY: given by `kernel_get`, and no call uses it any more.
        drop(unsafe { handle::take::<Kernel>(kernel.0)? });
    }
    let device = &module.open.devices[module.device as usize];
    if let Ok(_entered) = device.enter() {
        // SAFETY: loaded by `load`, and none of its kernels runs.
        unsafe { (device.cuda.module_unload)(module.raw) };
    }
    device.live.modules.fetch_sub(1, Ordering::Relaxed);
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
    let device = &module.open.devices[module.device as usize];
    // SAFETY: NULL or NUL-terminated, and alive during the call (R10).
    let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) });
    let key = name.unwrap_or_default().to_owned();
    let mut kernels = module.kernels.lock();
    if let Some((_, given)) = kernels.iter().find(|(known, _)| *known == key) {
        place.give(given.0);
        return Ok(());
    }
    let _entered = device.enter()?;
    let function = match name {
        Some(name) => {
            let mut function = std::ptr::null_mut();
            // SAFETY: a place for the function, and a live module.
            let found =
                unsafe { (device.cuda.module_function)(&mut function, module.raw, name.as_ptr()) };
            if found == cuda::ERROR_NOT_FOUND {
                return Err(Fault::new(
                    c::OTR_ERR_NOT_FOUND,
                    format!(
                        "the module has no kernel {}; in CUDA C a name is what it says only with extern \"C\"",
                        name.to_string_lossy()
                    ),
                ));
            }
            device.check(found, "cuModuleGetFunction")?;
            function
        }
        None => only(device, module.raw)?,
    };
    let kernel = Kernel::new(&module.open, module.device, function)?;
    let given = handle::give(kernel);
    kernels.push((key, Given(given)));
    place.give(given);
    Ok(())
}

/// The only kernel of a module.
fn only(device: &Device, module: cuda::Module) -> Result<cuda::Function> {
    let (Some(count), Some(list)) = (
        device.cuda.module_function_count,
        device.cuda.module_functions,
    ) else {
        let text = "CUDA lists the kernels of a module from 12.4 on: give the name of the kernel";
        return Err(Fault::unsupported(text));
    };
    let mut found = 0;
    // SAFETY: a place for the number, and a live module.
    let told = unsafe { count(&mut found, module) };
    device.check(told, "cuModuleGetFunctionCount")?;
    if found != 1 {
        let text = format!("the module has {found} kernels: give a name");
        return Err(Fault::new(c::OTR_ERR_NOT_FOUND, text));
    }
    let mut function = std::ptr::null_mut();
    // SAFETY: a place for one function.
    let told = unsafe { list(&mut function, 1, module) };
    device.check(told, "cuModuleEnumerateFunctions")?;
    Ok(function)
}

/// # Safety
/// R8, R10: `binary` is NULL or has room for `*size` bytes.
pub(crate) unsafe fn binary(
    handle: *mut c::otr_drv_module,
    binary: *mut c_void,
    size: *mut u64,
) -> Result {
    // SAFETY: this function's contract.
    let module = unsafe { get(handle)? };
    let bytes = &module.binary;
    if size.is_null() {
        return Err(null("the place for the size"));
    }
    let mut room = u64::MAX;
    if !binary.is_null() {
        // SAFETY: not NULL, so a number of the host's.
        room = unsafe { size.read() };
    }
    if room < bytes.len() as u64 {
        let text = format!(
            "there is room for {room} bytes, and the binary has {}",
            bytes.len()
        );
        return Err(Fault::argument(text));
    }
    // SAFETY: there is room for as many bytes, and for the number.
    unsafe {
        if !binary.is_null() {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), binary.cast(), bytes.len());
        }
        size.write(bytes.len() as u64);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::is_whole;

    /// A file of two sections, the second of which has no bytes in it.
    fn file() -> Vec<u8> {
        let mut file = vec![0_u8; 64 + 2 * 64 + 16];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[0x28..0x30].copy_from_slice(&64_u64.to_le_bytes());
        file[0x3a..0x3c].copy_from_slice(&64_u16.to_le_bytes());
        file[0x3c..0x3e].copy_from_slice(&2_u16.to_le_bytes());
        let mut section = |at: usize, kind: u32, start: u64, size: u64| {
            file[at + 4..at + 8].copy_from_slice(&kind.to_le_bytes());
            file[at + 0x18..at + 0x20].copy_from_slice(&start.to_le_bytes());
            file[at + 0x20..at + 0x28].copy_from_slice(&size.to_le_bytes());
        };
        section(64, 1, 192, 16);
        section(128, 8, 192, 1 << 40);
        file
    }

    #[test]
    fn a_file_that_was_cut_is_never_read() {
        let whole = file();
        assert_eq!(is_whole(&whole), Some(true));
        for length in 0..whole.len() {
            assert_ne!(is_whole(&whole[..length]), Some(true), "{length} bytes");
        }
        assert_eq!(is_whole(b"#!/bin/sh"), Some(false));
        let mut far = file();
        far[0x28..0x30].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_ne!(is_whole(&far), Some(true));
    }
}
