//! The compiler of CUDA C: NVRTC, a library of its own that may be there or not.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use outrigger_contract as c;
use outrigger_driver_kit::{Fault, Result};
use parking_lot::Mutex;

use crate::cuda::c_text;

type Program = *mut c_void;
type Function<A> = unsafe extern "C" fn(Program, A) -> c_int;

/// The functions of NVRTC.
pub(crate) struct Nvrtc {
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int,
    log_size: Function<*mut usize>,
    log: Function<*mut c_char>,
    cubin_size: Function<*mut usize>,
    cubin: Function<*mut c_char>,
    ptx_size: Function<*mut usize>,
    ptx: Function<*mut c_char>,
    arch_count: unsafe extern "C" fn(*mut c_int) -> c_int,
    archs: unsafe extern "C" fn(*mut c_int) -> c_int,
    error: unsafe extern "C" fn(c_int) -> *const c_char,
    _library: Library,
}

const ERROR_COMPILATION: c_int = 6;
const ERROR_INVALID_OPTION: c_int = 5;

/// The names by which the system's loader may find NVRTC, the newest first.
const LIBRARIES: [&str; 4] = [
    "libnvrtc.so.13",
    "libnvrtc.so.12",
    "libnvrtc.so.11.2",
    "libnvrtc.so",
];

/// Compiled CUDA C.
pub(crate) enum Compiled {
    /// Code for the device.
    Cubin(Vec<u8>),
    /// Code for an older device than this one, which is newer than the compiler.
    Ptx(Vec<u8>),
}

/// Loads NVRTC, once for each name. It stays loaded.
pub(crate) fn load(path: Option<&str>) -> Result<&'static Nvrtc> {
    static LOADED: Mutex<Option<HashMap<String, &'static Nvrtc>>> = Mutex::new(None);
    let mut loaded = LOADED.lock();
    let loaded = loaded.get_or_insert_default();
    let names = path.map_or_else(|| LIBRARIES.to_vec(), |path| vec![path]);
    let mut problem = String::new();
    for name in names {
        if let Some(nvrtc) = loaded.get(name) {
            return Ok(nvrtc);
        }
        // SAFETY: this runs the initialisers of NVIDIA's library, or of what an option of `open` names in its place.
        match unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) } {
            Ok(library) => {
                let nvrtc: &'static Nvrtc = Box::leak(Box::new(Nvrtc::of(library, name)?));
                loaded.insert(name.to_owned(), nvrtc);
                return Ok(nvrtc);
            }
            Err(error) => {
                let text = std::error::Error::source(&error);
                problem = text.map_or_else(|| error.to_string(), ToString::to_string);
            }
        }
    }
    Err(Fault::new(
        c::OTR_ERR_NOT_FOUND,
        format!("NVRTC cannot be loaded: {problem}"),
    ))
}

/// A program of NVRTC's, which ends when it is dropped.
struct Made<'a>(&'a Nvrtc, Program);

impl Drop for Made<'_> {
    fn drop(&mut self) {
        // SAFETY: a live program, which nobody uses afterwards.
        unsafe { (self.0.destroy)(&mut self.1) };
    }
}

impl Nvrtc {
    fn of(library: Library, name: &str) -> Result<Self> {
        macro_rules! find {
            ($symbol:literal) => {
                // SAFETY: nvrtc.h declares the function so.
                match unsafe { library.get($symbol) } {
                    Ok(function) => *function,
                    Err(_) => return Err(too_old(name, String::from_utf8_lossy($symbol).as_ref())),
                }
            };
        }
        Ok(Self {
            create: find!(b"nvrtcCreateProgram"),
            destroy: find!(b"nvrtcDestroyProgram"),
            compile: find!(b"nvrtcCompileProgram"),
            log_size: find!(b"nvrtcGetProgramLogSize"),
            log: find!(b"nvrtcGetProgramLog"),
            cubin_size: find!(b"nvrtcGetCUBINSize"),
            cubin: find!(b"nvrtcGetCUBIN"),
            ptx_size: find!(b"nvrtcGetPTXSize"),
            ptx: find!(b"nvrtcGetPTX"),
            arch_count: find!(b"nvrtcGetNumSupportedArchs"),
            archs: find!(b"nvrtcGetSupportedArchs"),
            error: find!(b"nvrtcGetErrorString"),
            _library: library,
        })
    }

    /// Compiles a text for devices of a compute capability.
    ///
    /// # Errors
    /// `OTR_ERR_INVALID_ARGUMENT` with the compiler's log.
    pub(crate) fn compile(
        &self,
        code: &[u8],
        options: &str,
        (major, minor): (u32, u32),
    ) -> Result<Compiled> {
        if code.contains(&0) {
            return Err(Fault::argument(
                "the source has a NUL within; `size` is that of the text without the NUL behind it",
            ));
        }
        let text = c_text(code);
        let wanted = (major * 10 + minor) as c_int;
        let known = self.known()?;
        let exact = known.contains(&wanted);
        let target = if exact {
            format!("--gpu-architecture=sm_{wanted}")
        } else {
            // Code for the newest device that the compiler knows is finished by the driver of this one.
            let older = known.iter().filter(|one| **one < wanted).max();
            let older = older.ok_or_else(|| {
                Fault::unsupported(format!(
                    "this NVRTC does not compile for devices of capability {major}.{minor}"
                ))
            })?;
            format!("--gpu-architecture=compute_{older}")
        };
        let options: Vec<CString> = std::iter::once(target.as_str())
            .chain(options.split_whitespace())
            .map(|option| c_text(option.as_bytes()))
            .collect();
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program = std::ptr::null_mut();
        let none = std::ptr::null();
        // SAFETY: a place for the program, and texts that live through the call; there are no headers.
        let made = unsafe {
            (self.create)(
                &mut program,
                text.as_ptr(),
                c"kernel.cu".as_ptr(),
                0,
                none,
                none,
            )
        };
        self.check(made, "nvrtcCreateProgram")?;
        let program = Made(self, program);
        // SAFETY: a live program, and as many options.
        let compiled =
            unsafe { (self.compile)(program.1, options.len() as c_int, options.as_ptr()) };
        if compiled == ERROR_COMPILATION || compiled == ERROR_INVALID_OPTION {
            let log = self.bytes(&program, (self.log_size, self.log), "nvrtcGetProgramLog")?;
            let log = c_text(&log);
            let log = log.to_string_lossy();
            return Err(Fault::argument(format!(
                "NVRTC refuses the source: {}",
                log.trim_end()
            )));
        }
        self.check(compiled, "nvrtcCompileProgram")?;
        if exact {
            let cubin = self.bytes(&program, (self.cubin_size, self.cubin), "nvrtcGetCUBIN")?;
            return Ok(Compiled::Cubin(cubin));
        }
        let ptx = self.bytes(&program, (self.ptx_size, self.ptx), "nvrtcGetPTX")?;
        Ok(Compiled::Ptx(ptx))
    }

    /// The capabilities that the compiler compiles for, as numbers like 80.
    fn known(&self) -> Result<Vec<c_int>> {
        let mut count = 0;
        // SAFETY: a place for the number.
        let told = unsafe { (self.arch_count)(&mut count) };
        self.check(told, "nvrtcGetNumSupportedArchs")?;
        let mut known = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: as many places.
        let told = unsafe { (self.archs)(known.as_mut_ptr()) };
        self.check(told, "nvrtcGetSupportedArchs")?;
        Ok(known)
    }

    fn bytes(
        &self,
        program: &Made<'_>,
        (size_of, tell): (Function<*mut usize>, Function<*mut c_char>),
        what: &str,
    ) -> Result<Vec<u8>> {
        let mut size = 0;
        // SAFETY: a live program, and a place for the size.
        self.check(unsafe { size_of(program.1, &mut size) }, what)?;
        let mut bytes = vec![0_u8; size];
        // SAFETY: as above, and as many bytes as were asked for.
        self.check(unsafe { tell(program.1, bytes.as_mut_ptr().cast()) }, what)?;
        Ok(bytes)
    }

    fn check(&self, status: c_int, what: &str) -> Result {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: any number may be asked for; the text is a constant.
        let text = unsafe { CStr::from_ptr((self.error)(status)) }.to_string_lossy();
        Err(Fault::new(
            c::OTR_ERR_INTERNAL,
            format!("{what} answered {status}: {text}"),
        ))
    }
}

#[cold]
fn too_old(name: &str, symbol: &str) -> Fault {
    Fault::new(
        c::OTR_ERR_LOAD,
        format!("{name} has no function {symbol}: NVRTC is too old; version 11.4 or later has it"),
    )
}
