//! The kernels as CUDA C: NVRTC compiles each text without a GPU, where it is installed.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};

use libloading::{Library, Symbol};
use outrigger_device::DType;
use outrigger_device_ops::with_kernels;
use outrigger_ops::catalog::samples::Sample;
use outrigger_ops::{OperatorId, with_raw};

/// The names of the library, with the versions that are known.
const NAMES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];

type Create = unsafe extern "C" fn(
    *mut *mut c_void,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Compile = unsafe extern "C" fn(*mut c_void, c_int, *const *const c_char) -> c_int;
type LogSize = unsafe extern "C" fn(*mut c_void, *mut usize) -> c_int;
type Log = unsafe extern "C" fn(*mut c_void, *mut c_char) -> c_int;
type Destroy = unsafe extern "C" fn(*mut *mut c_void) -> c_int;

/// All functions of the dialect.
const FUNCTIONS: &str = concat!(
    include_str!("../../../include/outrigger/dialect.h"),
    include_str!("../../../include/outrigger/dialect_functions.h"),
    include_str!("functions.c")
);

/// The library, if it is installed.
#[expect(clippy::print_stdout, reason = "what was skipped is said")]
fn nvrtc() -> Option<Library> {
    // SAFETY: a library of a vendor, whose initializers a CUDA program runs too.
    let open = |name| unsafe { Library::new(name) }.ok();
    let library = NAMES.into_iter().find_map(open);
    if library.is_none() {
        println!("skipped: no NVRTC");
    }
    library
}

/// The text of NVRTC for code that it refuses.
fn compile(library: &Library, text: &[u8], option: &CStr) -> Result<(), String> {
    let source = CString::new(text).unwrap();
    let option = option.as_ptr();
    // SAFETY: the functions have these types in all versions; strings and places live through the calls.
    unsafe {
        let create: Symbol<'_, Create> = library.get(b"nvrtcCreateProgram").unwrap();
        let compile: Symbol<'_, Compile> = library.get(b"nvrtcCompileProgram").unwrap();
        let log_size: Symbol<'_, LogSize> = library.get(b"nvrtcGetProgramLogSize").unwrap();
        let log: Symbol<'_, Log> = library.get(b"nvrtcGetProgramLog").unwrap();
        let destroy: Symbol<'_, Destroy> = library.get(b"nvrtcDestroyProgram").unwrap();
        let mut program = null_mut();
        let name = c"kernel.cu".as_ptr();
        assert_eq!(
            create(&mut program, source.as_ptr(), name, 0, null(), null()),
            0
        );
        let code = compile(program, 1, &option);
        let mut size = 0;
        log_size(program, &mut size);
        let mut bytes = vec![0_u8; size.max(1)];
        log(program, bytes.as_mut_ptr().cast());
        destroy(&mut program);
        let said = String::from_utf8_lossy(&bytes).into_owned();
        if code == 0 { Ok(()) } else { Err(said) }
    }
}

#[test]
fn every_function_is_cuda_c() {
    let Some(library) = nvrtc() else { return };
    for generation in [
        c"--gpu-architecture=compute_80",
        c"--gpu-architecture=compute_90",
    ] {
        compile(&library, FUNCTIONS.as_bytes(), generation).unwrap();
    }
}

#[test]
fn every_text_is_cuda_c() {
    let Some(library) = nvrtc() else { return };
    let folder = std::env::temp_dir().join(format!("otr-texts-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    // Texts for groups of many items, as a GPU gets them.
    let options = format!(
        "devices=1,memory=64M,sub_group=32,keep={}",
        folder.display()
    );
    let driver = with_kernels(outrigger_dialect_driver::driver(&options).unwrap()).unwrap();
    let operators = driver.operators().unwrap();
    for name in operators.names(0).unwrap() {
        let id = OperatorId::find(&name).unwrap();
        let dtype = if name.to_bytes().starts_with(b"bitwise") {
            DType::I64
        } else {
            DType::F32
        };
        let Some(sample) = Sample::new(id, dtype) else {
            continue;
        };
        // SAFETY: the raw call points to what lives in the closures.
        let made =
            sample.with(|call| with_raw(id, call, |raw| unsafe { operators.prepare(0, raw) }));
        assert!(made.unwrap().is_some(), "{name:?}");
    }
    let mut refused = Vec::new();
    let mut count = 0;
    for file in std::fs::read_dir(&folder).unwrap() {
        let text = std::fs::read(file.unwrap().path()).unwrap();
        count += 1;
        refused.extend(compile(&library, &text, c"--gpu-architecture=compute_80").err());
    }
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(
        refused.is_empty(),
        "{} of {count}: {}",
        refused.len(),
        refused[0]
    );
    assert!(count > 50, "{count} texts");
}
