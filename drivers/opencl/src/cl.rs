//! OpenCL as this driver sees it: the functions that it calls, looked up in `libOpenCL.so.1` once per process, and
//! what their codes mean. The library is never unloaded, since few of the runtimes below it bear that.

use std::ffi::c_void;
use std::sync::OnceLock;

use libloading::Library;
use opencl_sys::cl_function_types::*;
pub(crate) use opencl_sys::*;
use outrigger_contract as c;
use outrigger_driver_kit::{Fault, Result};

/// The loader of OpenCL's runtimes, by the name that its ABI has everywhere.
pub(crate) const LIBRARY: &str = "libOpenCL.so.1";

/// The type behind the `Option` that a function of OpenCL's headers is.
pub(crate) trait Present {
    type Function;
}

impl<F> Present for Option<F> {
    type Function = F;
}

macro_rules! functions {
    (required { $($name:ident: $type:ty,)* } optional { $($other:ident: $optional:ty,)* }) => {
        /// The functions of OpenCL.
        #[allow(non_snake_case, reason = "the names are those of OpenCL")]
        pub(crate) struct Cl {
            $(pub(crate) $name: <$type as Present>::Function,)*
            $(pub(crate) $other: $optional,)*
            _library: Library,
        }

        #[allow(non_snake_case, reason = "the names are those of OpenCL")]
        impl Cl {
            /// Loads a library.
            pub(crate) fn load(name: &str) -> Result<Self> {
                // SAFETY: this runs the initialisers of OpenCL's loader, which the user installed for that.
                let library = unsafe { Library::new(name) }.map_err(|error| {
                    let why = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
                    Fault::new(c::OTR_ERR_NOT_FOUND, format!(
                        "OpenCL is not installed: {name} could not be loaded ({why}); install an ICD loader, such as \
                         ocl-icd, and the OpenCL runtime of the device"
                    ))
                })?;
                $(
                    // SAFETY: the headers of OpenCL fix the type of each name.
                    let $name = unsafe { library.get::<<$type as Present>::Function>(stringify!($name)) };
                    let $name = *$name.map_err(|_| Fault::unsupported(format!(
                        "{name} has no function {}: an ICD loader for OpenCL 2.0 or later is needed", stringify!($name)
                    )))?;
                )*
                $(
                    // SAFETY: as above.
                    let $other = unsafe { library.get::<<$optional as Present>::Function>(stringify!($other)) };
                    let $other = $other.ok().map(|function| *function);
                )*
                Ok(Self { $($name,)* $($other,)* _library: library })
            }
        }
    };
}

functions! {
    required {
        clGetPlatformIDs: clGetPlatformIDs_t,
        clGetPlatformInfo: clGetPlatformInfo_t,
        clGetDeviceIDs: clGetDeviceIDs_t,
        clGetDeviceInfo: clGetDeviceInfo_t,
        clCreateContext: clCreateContext_t,
        clReleaseContext: clReleaseContext_t,
        clCreateCommandQueueWithProperties: clCreateCommandQueueWithProperties_t,
        clRetainCommandQueue: clRetainCommandQueue_t,
        clReleaseCommandQueue: clReleaseCommandQueue_t,
        clGetCommandQueueInfo: clGetCommandQueueInfo_t,
        clFlush: clFlush_t,
        clFinish: clFinish_t,
        clSVMAlloc: clSVMAlloc_t,
        clSVMFree: clSVMFree_t,
        clEnqueueSVMMemcpy: clEnqueueSVMMemcpy_t,
        clEnqueueSVMMemFill: clEnqueueSVMMemFill_t,
        clCreateBuffer: clCreateBuffer_t,
        clReleaseMemObject: clReleaseMemObject_t,
        clEnqueueMapBuffer: clEnqueueMapBuffer_t,
        clEnqueueUnmapMemObject: clEnqueueUnmapMemObject_t,
        clEnqueueMarkerWithWaitList: clEnqueueMarkerWithWaitList_t,
        clEnqueueBarrierWithWaitList: clEnqueueBarrierWithWaitList_t,
        clWaitForEvents: clWaitForEvents_t,
        clGetEventInfo: clGetEventInfo_t,
        clGetEventProfilingInfo: clGetEventProfilingInfo_t,
        clReleaseEvent: clReleaseEvent_t,
        clCreateProgramWithSource: clCreateProgramWithSource_t,
        clCreateProgramWithBinary: clCreateProgramWithBinary_t,
        clBuildProgram: clBuildProgram_t,
        clGetProgramInfo: clGetProgramInfo_t,
        clGetProgramBuildInfo: clGetProgramBuildInfo_t,
        clReleaseProgram: clReleaseProgram_t,
        clCreateKernel: clCreateKernel_t,
        clReleaseKernel: clReleaseKernel_t,
        clGetKernelInfo: clGetKernelInfo_t,
        clGetKernelArgInfo: clGetKernelArgInfo_t,
        clGetKernelWorkGroupInfo: clGetKernelWorkGroupInfo_t,
        clSetKernelArg: clSetKernelArg_t,
        clSetKernelArgSVMPointer: clSetKernelArgSVMPointer_t,
        clEnqueueNDRangeKernel: clEnqueueNDRangeKernel_t,
    }
    optional {
        clCreateProgramWithIL: clCreateProgramWithIL_t,
        clGetDeviceAndHostTimer: clGetDeviceAndHostTimer_t,
    }
}

/// OpenCL, which is loaded at the first call that succeeds.
///
/// # Errors
/// `OTR_ERR_NOT_FOUND` if it is not installed, `OTR_ERR_UNSUPPORTED` if it is too old.
pub(crate) fn load() -> Result<&'static Cl> {
    static LOADED: OnceLock<Cl> = OnceLock::new();
    if let Some(loaded) = LOADED.get() {
        return Ok(loaded);
    }
    let loaded = Cl::load(LIBRARY)?;
    Ok(LOADED.get_or_init(|| loaded))
}

/// The failure that a code of OpenCL is. `what` names the function or what it was for.
#[cold]
pub(crate) fn fault(status: cl_int, what: &str) -> Fault {
    let code = match status {
        // The driver holds its queues, so that one is invalid only if its context is lost.
        CL_DEVICE_NOT_AVAILABLE | CL_INVALID_COMMAND_QUEUE => c::OTR_ERR_DEVICE_LOST,
        CL_MEM_OBJECT_ALLOCATION_FAILURE => c::OTR_ERR_OUT_OF_MEMORY,
        CL_OUT_OF_RESOURCES | CL_OUT_OF_HOST_MEMORY => c::OTR_ERR_OUT_OF_HOST_MEMORY,
        CL_INVALID_VALUE
        | CL_INVALID_ARG_INDEX
        | CL_INVALID_ARG_VALUE
        | CL_INVALID_ARG_SIZE
        | CL_INVALID_KERNEL_ARGS
        | CL_INVALID_WORK_DIMENSION
        | CL_INVALID_WORK_GROUP_SIZE
        | CL_INVALID_WORK_ITEM_SIZE
        | CL_INVALID_GLOBAL_WORK_SIZE => c::OTR_ERR_INVALID_ARGUMENT,
        _ => c::OTR_ERR_EXECUTION,
    };
    Fault::new(code, format!("{what}: {} ({status})", name(status)))
}

/// Turns a code of OpenCL into a result.
#[inline]
pub(crate) fn check(status: cl_int, what: &str) -> Result {
    if status == CL_SUCCESS {
        return Ok(());
    }
    Err(fault(status, what))
}

/// The name of a code.
fn name(status: cl_int) -> &'static str {
    macro_rules! names {
        ($($name:ident)*) => {
            match status { $($name => stringify!($name),)* _ => "an unknown code of OpenCL" }
        };
    }
    names! {
        CL_DEVICE_NOT_FOUND CL_DEVICE_NOT_AVAILABLE CL_COMPILER_NOT_AVAILABLE CL_MEM_OBJECT_ALLOCATION_FAILURE
        CL_OUT_OF_RESOURCES CL_OUT_OF_HOST_MEMORY CL_PROFILING_INFO_NOT_AVAILABLE CL_MEM_COPY_OVERLAP
        CL_BUILD_PROGRAM_FAILURE CL_MAP_FAILURE CL_MISALIGNED_SUB_BUFFER_OFFSET
        CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST CL_COMPILE_PROGRAM_FAILURE CL_LINKER_NOT_AVAILABLE
        CL_LINK_PROGRAM_FAILURE CL_KERNEL_ARG_INFO_NOT_AVAILABLE CL_INVALID_VALUE CL_INVALID_DEVICE_TYPE
        CL_INVALID_PLATFORM CL_INVALID_DEVICE CL_INVALID_CONTEXT CL_INVALID_QUEUE_PROPERTIES CL_INVALID_COMMAND_QUEUE
        CL_INVALID_HOST_PTR CL_INVALID_MEM_OBJECT CL_INVALID_BINARY CL_INVALID_BUILD_OPTIONS CL_INVALID_PROGRAM
        CL_INVALID_PROGRAM_EXECUTABLE CL_INVALID_KERNEL_NAME CL_INVALID_KERNEL_DEFINITION CL_INVALID_KERNEL
        CL_INVALID_ARG_INDEX CL_INVALID_ARG_VALUE CL_INVALID_ARG_SIZE CL_INVALID_KERNEL_ARGS
        CL_INVALID_WORK_DIMENSION CL_INVALID_WORK_GROUP_SIZE CL_INVALID_WORK_ITEM_SIZE CL_INVALID_GLOBAL_OFFSET
        CL_INVALID_EVENT_WAIT_LIST CL_INVALID_EVENT CL_INVALID_OPERATION CL_INVALID_BUFFER_SIZE
        CL_INVALID_GLOBAL_WORK_SIZE CL_INVALID_PROPERTY CL_INVALID_COMPILER_OPTIONS CL_INVALID_LINKER_OPTIONS
        CL_PLATFORM_NOT_FOUND_KHR
    }
}

/// A number that one of OpenCL's `clGet...Info` functions gives; `None` if it does not.
pub(crate) fn number<T: Default>(get: impl FnOnce(usize, *mut c_void) -> cl_int) -> Option<T> {
    let mut value = T::default();
    let status = get(size_of::<T>(), (&raw mut value).cast());
    (status == CL_SUCCESS).then_some(value)
}

/// Bytes of any number that one of OpenCL's `clGet...Info` functions gives: first it is asked how many there are.
pub(crate) fn bytes(get: impl Fn(usize, *mut c_void, *mut usize) -> cl_int) -> Option<Vec<u8>> {
    let mut size = 0;
    if get(0, std::ptr::null_mut(), &mut size) != CL_SUCCESS {
        return None;
    }
    let mut bytes = vec![0; size];
    let status = get(size, bytes.as_mut_ptr().cast(), std::ptr::null_mut());
    (status == CL_SUCCESS).then_some(bytes)
}

/// A text that one of OpenCL's `clGet...Info` functions gives.
pub(crate) fn text(get: impl Fn(usize, *mut c_void, *mut usize) -> cl_int) -> Option<String> {
    let bytes = bytes(get)?;
    let end = bytes.iter().position(|byte| *byte == 0);
    let text = String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]);
    Some(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::{CL_INVALID_ARG_SIZE, Cl, fault};
    use outrigger_contract as c;

    #[test]
    fn a_missing_library_is_a_reason() {
        let fault = Cl::load("libOpenCL-that-nobody-has.so").err().unwrap();
        assert_eq!(fault.code(), c::OTR_ERR_NOT_FOUND);
        assert!(
            fault.text().contains("OpenCL is not installed"),
            "{fault:?}"
        );
        let other = Cl::load("libc.so.6").err().unwrap();
        assert!(other.text().contains("clGetPlatformIDs"), "{other:?}");
    }

    #[test]
    fn codes_have_names() {
        let known = fault(CL_INVALID_ARG_SIZE, "clSetKernelArg");
        assert_eq!(known.code(), c::OTR_ERR_INVALID_ARGUMENT);
        assert!(known.text().contains("CL_INVALID_ARG_SIZE (-51)"));
        assert!(fault(-9999, "it").text().contains("-9999"));
    }
}
