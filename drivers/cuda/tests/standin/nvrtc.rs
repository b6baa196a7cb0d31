//! NVRTC's part of the stand-in.

use std::ffi::{CStr, c_char, c_int};

use crate::calls::{api, misuse};
use crate::code::{compiled, names, wrong_line};
use crate::streams::{add, attempt, live, remove};

pub(crate) struct Program {
    text: String,
    log: String,
    cubin: Vec<u8>,
    ptx: String,
}

/// # Safety
/// There is room for all of it.
unsafe fn give(bytes: &[u8], place: *mut c_char) -> c_int {
    // SAFETY: this function's contract.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place.cast(), bytes.len()) };
    0
}

/// The text of any status.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name is NVRTC's")]
pub(crate) extern "C" fn nvrtcGetErrorString(_status: c_int) -> *const c_char {
    c"the stand-in says so".as_ptr()
}

api! {
    fn nvrtcGetNumSupportedArchs(count: *mut c_int) {
        *count = 2;
        0
    }

    fn nvrtcGetSupportedArchs(places: *mut c_int) {
        *places = 80;
        *places.add(1) = 90;
        0
    }

    fn nvrtcCreateProgram(
        place: *mut *mut Program,
        text: *const c_char,
        _name: *const c_char,
        _count: c_int,
        _headers: *const *const c_char,
        _names: *const *const c_char,
    ) {
        let text = CStr::from_ptr(text).to_string_lossy().into_owned();
        *place = add(Program { text, log: String::new(), cubin: Vec::new(), ptx: String::new() });
        0
    }

    fn nvrtcDestroyProgram(place: *mut *mut Program) {
        attempt!(remove(*place, "a program"));
        0
    }

    fn nvrtcCompileProgram(program: *mut Program, count: c_int, options: *const *const c_char) {
        attempt!(live(program, "a program"));
        let program = &mut *program;
        let options: Vec<_> = (0..count as usize)
            .map(|at| CStr::from_ptr(*options.add(at)).to_string_lossy().into_owned())
            .collect();
        if let Some(option) = options.iter().find(|option| option.contains("unknown")) {
            program.log = format!("nvrtc: error: invalid value for --{option}\0");
            return 5;
        }
        if let Some(line) = wrong_line(&program.text) {
            program.log = format!("kernel.cu({line}): error: it is wrong\0");
            return 6;
        }
        let names = names(&program.text, "__global__ void");
        match options.first().map(String::as_str) {
            Some("--gpu-architecture=sm_80" | "--gpu-architecture=sm_90") => program.cubin = compiled(&names),
            Some("--gpu-architecture=compute_90") => {
                program.ptx = names.iter().map(|name| format!(".entry {name}()\n")).collect();
                program.ptx.push('\0');
            }
            other => return misuse(format!("NVRTC compiles for {other:?}")),
        }
        0
    }

    fn nvrtcGetProgramLogSize(program: *mut Program, size: *mut usize) {
        *size = attempt!(live(program, "a program")).log.len();
        0
    }

    fn nvrtcGetProgramLog(program: *mut Program, place: *mut c_char) {
        give(attempt!(live(program, "a program")).log.as_bytes(), place)
    }

    fn nvrtcGetCUBINSize(program: *mut Program, size: *mut usize) {
        *size = attempt!(live(program, "a program")).cubin.len();
        0
    }

    fn nvrtcGetCUBIN(program: *mut Program, place: *mut c_char) {
        give(&attempt!(live(program, "a program")).cubin, place)
    }

    fn nvrtcGetPTXSize(program: *mut Program, size: *mut usize) {
        *size = attempt!(live(program, "a program")).ptx.len();
        0
    }

    fn nvrtcGetPTX(program: *mut Program, place: *mut c_char) {
        give(attempt!(live(program, "a program")).ptx.as_bytes(), place)
    }
}
