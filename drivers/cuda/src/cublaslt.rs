//! cuBLASLt, NVIDIA's library of matrix products, which may be there or not: its functions and numbers, and errors as codes of
//! the contract.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use outrigger_contract as c;
use outrigger_driver_kit::{Fault, Result};
use parking_lot::Mutex;

use crate::cuda;

pub(crate) type Handle = *mut c_void;
pub(crate) type Desc = *mut c_void;
pub(crate) type Layout = *mut c_void;
pub(crate) type Preference = *mut c_void;
type Status = c_int;
type Set = unsafe extern "C" fn(*mut c_void, c_int, *const c_void, usize) -> Status;
type Destroy = unsafe extern "C" fn(*mut c_void) -> Status;

/// `cublasLtMatmulAlgo_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Algorithm([u64; 8]);

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Found {
    pub(crate) algorithm: Algorithm,
    pub(crate) workspace: usize,
    pub(crate) state: Status,
    waves: f32,
    reserved: [c_int; 4],
}

impl Found {
    pub(crate) const NONE: Self = Self {
        algorithm: Algorithm([0; 8]),
        workspace: 0,
        state: NOT_SUPPORTED,
        waves: 0.0,
        reserved: [0; 4],
    };
}

// The layout of cublasLt.h.
const _: () = assert!(size_of::<Found>() == 96);

const ALLOC_FAILED: Status = 3;
const ARCH_MISMATCH: Status = 8;
const EXECUTION_FAILED: Status = 13;
const NOT_SUPPORTED: Status = 15;

/// `cudaDataType_t`.
pub(crate) const R_32F: c_int = 0;
pub(crate) const R_64F: c_int = 1;
pub(crate) const R_16F: c_int = 2;
pub(crate) const R_16BF: c_int = 14;
/// `cublasComputeType_t`. Both types round nothing on the way; TF32 has a number of its own.
pub(crate) const COMPUTE_32F: c_int = 68;
pub(crate) const COMPUTE_64F: c_int = 70;
/// Attributes of a product.
pub(crate) const DESC_TRANSPOSE_A: c_int = 3;
pub(crate) const DESC_TRANSPOSE_B: c_int = 4;
pub(crate) const DESC_EPILOGUE: c_int = 7;
pub(crate) const DESC_BIAS_POINTER: c_int = 8;
pub(crate) const TRANSPOSE: c_int = 1;
/// A vector with an element for each row of the result is added to each of its columns.
pub(crate) const EPILOGUE_BIAS: u32 = 4;
/// Attributes of a matrix.
pub(crate) const LAYOUT_BATCH_COUNT: c_int = 5;
pub(crate) const LAYOUT_BATCH_STRIDE: c_int = 6;
/// Attributes of what is preferred.
pub(crate) const PREFERENCE_WORKSPACE: c_int = 1;
pub(crate) const PREFERENCE_REDUCTION: c_int = 3;
/// The alignment of the first matrix; the other three follow.
pub(crate) const PREFERENCE_ALIGNMENT: c_int = 5;
/// Partial sums in place or in the type of the sums, never in the type of the result: half precision is rounded once.
pub(crate) const REDUCTION_EXACT: u32 = 1 | 2;

/// The names by which the system's loader may find cuBLASLt, the newest first.
const LIBRARIES: [&str; 4] = [
    "libcublasLt.so.13",
    "libcublasLt.so.12",
    "libcublasLt.so.11",
    "libcublasLt.so",
];

/// The functions of cuBLASLt.
pub(crate) struct Lt {
    pub(crate) create: unsafe extern "C" fn(*mut Handle) -> Status,
    pub(crate) destroy: Destroy,
    pub(crate) desc_create: unsafe extern "C" fn(*mut Desc, c_int, c_int) -> Status,
    pub(crate) desc_destroy: Destroy,
    pub(crate) desc_set: Set,
    pub(crate) layout_create: unsafe extern "C" fn(*mut Layout, c_int, u64, u64, i64) -> Status,
    pub(crate) layout_destroy: Destroy,
    pub(crate) layout_set: Set,
    pub(crate) preference_create: unsafe extern "C" fn(*mut Preference) -> Status,
    pub(crate) preference_destroy: Destroy,
    pub(crate) preference_set: Set,
    pub(crate) heuristic: unsafe extern "C" fn(
        Handle,
        Desc,
        Layout,
        Layout,
        Layout,
        Layout,
        Preference,
        c_int,
        *mut Found,
        *mut c_int,
    ) -> Status,
    pub(crate) matmul: unsafe extern "C" fn(
        Handle,
        Desc,
        *const c_void,
        u64,
        Layout,
        u64,
        Layout,
        *const c_void,
        u64,
        Layout,
        u64,
        Layout,
        *const Algorithm,
        u64,
        usize,
        cuda::Stream,
    ) -> Status,
    text: unsafe extern "C" fn(Status) -> *const c_char,
    _library: Library,
}

/// Loads the library of a name, or one of those that the system's loader may find, once for each name. It stays loaded.
pub(crate) fn load(path: Option<&str>) -> Result<&'static Lt> {
    static LOADED: Mutex<Option<HashMap<String, &'static Lt>>> = Mutex::new(None);
    let mut loaded = LOADED.lock();
    let loaded = loaded.get_or_insert_default();
    let names = path.map_or_else(|| LIBRARIES.to_vec(), |path| vec![path]);
    let mut problem = String::new();
    for name in names {
        if let Some(lt) = loaded.get(name) {
            return Ok(lt);
        }
        // SAFETY: this runs the initialisers of NVIDIA's library, or of what an option of `open` names in its place.
        match unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) } {
            Ok(library) => {
                let lt: &'static Lt = Box::leak(Box::new(Lt::of(library, name)?));
                loaded.insert(name.to_owned(), lt);
                return Ok(lt);
            }
            Err(error) => {
                let text = std::error::Error::source(&error);
                problem = text.map_or_else(|| error.to_string(), ToString::to_string);
            }
        }
    }
    Err(Fault::new(
        c::OTR_ERR_NOT_FOUND,
        format!("cuBLASLt cannot be loaded: {problem}"),
    ))
}

impl Lt {
    fn of(library: Library, name: &str) -> Result<Self> {
        macro_rules! find {
            ($symbol:literal) => {
                // SAFETY: cublasLt.h declares the function so.
                match unsafe { library.get($symbol.as_bytes()) } {
                    Ok(function) => *function,
                    Err(_) => {
                        let text = format!(
                            "{name} has no function {}: version 11.4 or later of cuBLASLt has it",
                            $symbol
                        );
                        return Err(Fault::new(c::OTR_ERR_LOAD, text));
                    }
                }
            };
        }
        Ok(Self {
            create: find!("cublasLtCreate"),
            destroy: find!("cublasLtDestroy"),
            desc_create: find!("cublasLtMatmulDescCreate"),
            desc_destroy: find!("cublasLtMatmulDescDestroy"),
            desc_set: find!("cublasLtMatmulDescSetAttribute"),
            layout_create: find!("cublasLtMatrixLayoutCreate"),
            layout_destroy: find!("cublasLtMatrixLayoutDestroy"),
            layout_set: find!("cublasLtMatrixLayoutSetAttribute"),
            preference_create: find!("cublasLtMatmulPreferenceCreate"),
            preference_destroy: find!("cublasLtMatmulPreferenceDestroy"),
            preference_set: find!("cublasLtMatmulPreferenceSetAttribute"),
            heuristic: find!("cublasLtMatmulAlgoGetHeuristic"),
            matmul: find!("cublasLtMatmul"),
            text: find!("cublasLtGetStatusString"),
            _library: library,
        })
    }

    /// The answer of a function as a result; `what` is its name.
    #[inline]
    pub(crate) fn check(&self, status: Status, what: &str) -> Result {
        if status == 0 {
            return Ok(());
        }
        let code = match status {
            ALLOC_FAILED => c::OTR_ERR_OUT_OF_MEMORY,
            ARCH_MISMATCH | NOT_SUPPORTED => c::OTR_ERR_UNSUPPORTED,
            EXECUTION_FAILED => c::OTR_ERR_EXECUTION,
            _ => c::OTR_ERR_INTERNAL,
        };
        // SAFETY: any number may be asked for; the text is a constant.
        let text = unsafe { CStr::from_ptr((self.text)(status)) }.to_string_lossy();
        Err(Fault::new(
            code,
            format!("{what} answered {status}: {text}"),
        ))
    }
}
