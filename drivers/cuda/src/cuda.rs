//! The CUDA driver API: its functions, looked up in `libcuda` when the driver is opened, and its numbers. Codes of errors
//! become codes of the contract here, and nowhere else.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use outrigger_contract as c;
use outrigger_driver_kit::{Fault, Result};
use parking_lot::Mutex;

pub(crate) type Status = c_int;
pub(crate) type Device = c_int;
pub(crate) type Context = *mut c_void;
pub(crate) type Stream = *mut c_void;
pub(crate) type Event = *mut c_void;
pub(crate) type Module = *mut c_void;
pub(crate) type Function = *mut c_void;
pub(crate) type LinkState = *mut c_void;
pub(crate) type Graph = *mut c_void;
pub(crate) type GraphNode = *mut c_void;
pub(crate) type GraphExec = *mut c_void;
pub(crate) type Physical = u64;
pub(crate) type WaitValue = unsafe extern "C" fn(Stream, u64, u32, c_uint) -> Status;
pub(crate) type HostFunction = unsafe extern "C" fn(*mut c_void);

/// The 16 bytes of a `CUuuid`.
#[repr(C)]
pub(crate) struct Uuid(pub(crate) [u8; 16]);

/// A place for memory: `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Location {
    pub(crate) kind: c_int,
    pub(crate) id: c_int,
}

/// `CUmemAllocationProp`.
#[repr(C)]
pub(crate) struct AllocationProperties {
    pub(crate) kind: c_int,
    pub(crate) handle_types: c_int,
    pub(crate) location: Location,
    pub(crate) security: *mut c_void,
    pub(crate) compression: u8,
    pub(crate) rdma: u8,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 4],
}

/// `CUmemAccessDesc`.
#[repr(C)]
pub(crate) struct Access {
    pub(crate) location: Location,
    pub(crate) flags: c_int,
}

/// `CUDA_KERNEL_NODE_PARAMS_v1`.
#[repr(C)]
pub(crate) struct KernelNode {
    pub(crate) function: Function,
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    pub(crate) shared: c_uint,
    pub(crate) parameters: *mut *mut c_void,
    pub(crate) extra: *mut *mut c_void,
}

/// `CUDA_MEMSET_NODE_PARAMS_v1`.
#[repr(C)]
pub(crate) struct FillNode {
    pub(crate) dst: u64,
    pub(crate) pitch: usize,
    pub(crate) value: c_uint,
    /// Bytes of a word.
    pub(crate) word: c_uint,
    /// Words of a row.
    pub(crate) width: usize,
    pub(crate) height: usize,
}

/// `CUDA_MEMCPY3D_v2`.
#[repr(C)]
pub(crate) struct Copy3d {
    pub(crate) src: CopySide,
    pub(crate) dst: CopySide,
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
}

/// One of the two sides of `CUDA_MEMCPY3D_v2`.
#[repr(C)]
pub(crate) struct CopySide {
    x: usize,
    y: usize,
    z: usize,
    level: usize,
    kind: c_int,
    host: *mut c_void,
    device: u64,
    array: *mut c_void,
    reserved: *mut c_void,
    pitch: usize,
    height: usize,
}

impl CopySide {
    /// One row of host memory or of a device's. Pitch and height are of no use to it, and 0 says so: sizes are not held
    /// to the largest pitch.
    pub(crate) fn row(is_host: bool, address: u64) -> Self {
        let (kind, host, device) = if is_host {
            (MEMORY_HOST, address as *mut c_void, 0)
        } else {
            (MEMORY_DEVICE, std::ptr::null_mut(), address)
        };
        let none = std::ptr::null_mut();
        Self {
            x: 0,
            y: 0,
            z: 0,
            level: 0,
            kind,
            host,
            device,
            array: none,
            reserved: none,
            pitch: 0,
            height: 0,
        }
    }
}

// The layouts of cuda.h, which the driver and libcuda have to agree on.
const _: () = assert!(size_of::<AllocationProperties>() == 32 && size_of::<Access>() == 12);
const _: () = assert!(size_of::<KernelNode>() == 56 && size_of::<FillNode>() == 40);
const _: () = assert!(size_of::<CopySide>() == 88 && size_of::<Copy3d>() == 200);

macro_rules! numbers {
    ($($name:ident = $value:expr;)*) => { $(pub(crate) const $name: c_int = $value;)* };
}

numbers! {
    SUCCESS = 0;
    ERROR_INVALID_VALUE = 1;
    ERROR_OUT_OF_MEMORY = 2;
    ERROR_DEINITIALIZED = 4;
    ERROR_STUB_LIBRARY = 34;
    ERROR_NO_DEVICE = 100;
    ERROR_INVALID_DEVICE = 101;
    ERROR_INVALID_IMAGE = 200;
    ERROR_NO_BINARY_FOR_GPU = 209;
    ERROR_ECC_UNCORRECTABLE = 214;
    ERROR_INVALID_PTX = 218;
    ERROR_NVLINK_UNCORRECTABLE = 220;
    ERROR_UNSUPPORTED_PTX_VERSION = 222;
    ERROR_CONTAINED = 226;
    ERROR_INVALID_SOURCE = 300;
    ERROR_NOT_FOUND = 500;
    ERROR_NOT_READY = 600;
    ERROR_ILLEGAL_ADDRESS = 700;
    ERROR_LAUNCH_OUT_OF_RESOURCES = 701;
    ERROR_LAUNCH_TIMEOUT = 702;
    ERROR_PEER_ACCESS_ALREADY_ENABLED = 704;
    ERROR_CONTEXT_IS_DESTROYED = 709;
    ERROR_ASSERT = 710;
    ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712;
    ERROR_HARDWARE_STACK_ERROR = 714;
    ERROR_LAUNCH_FAILED = 719;
    ERROR_TENSOR_MEMORY_LEAK = 721;
    ERROR_NOT_SUPPORTED = 801;
    ERROR_SYSTEM_DRIVER_MISMATCH = 803;

    MAX_THREADS_PER_BLOCK = 1;
    MAX_BLOCK_DIM_X = 2;
    MAX_BLOCK_DIM_Y = 3;
    MAX_BLOCK_DIM_Z = 4;
    MAX_SHARED_MEMORY_PER_BLOCK = 8;
    WARP_SIZE = 10;
    CLOCK_RATE = 13;
    MULTIPROCESSOR_COUNT = 16;
    PCI_BUS_ID = 33;
    PCI_DEVICE_ID = 34;
    MEMORY_CLOCK_RATE = 36;
    GLOBAL_MEMORY_BUS_WIDTH = 37;
    PCI_DOMAIN_ID = 50;
    COMPUTE_CAPABILITY_MAJOR = 75;
    COMPUTE_CAPABILITY_MINOR = 76;
    MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97;
    VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102;

    FUNCTION_MAX_THREADS_PER_BLOCK = 0;
    FUNCTION_SHARED_SIZE_BYTES = 1;
    FUNCTION_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8;

    JIT_ERROR_LOG_BUFFER = 5;
    JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6;
    JIT_INPUT_PTX = 1;

    CAPTURE_RELAXED = 2;

    MEMORY_HOST = 1;
    MEMORY_DEVICE = 2;

    LOCATION_DEVICE = 1;
    ALLOCATION_PINNED = 1;
    ACCESS_READ_WRITE = 3;
    GRANULARITY_RECOMMENDED = 1;
}

pub(crate) const STREAM_NON_BLOCKING: c_uint = 1;
/// Until the word is the value, or beyond it.
pub(crate) const WAIT_VALUE_GEQ: c_uint = 0;
pub(crate) const EVENT_DEFAULT: c_uint = 0;
pub(crate) const EVENT_DISABLE_TIMING: c_uint = 2;
pub(crate) const HOST_ALLOC_PORTABLE: c_uint = 1;
pub(crate) const HOST_REGISTER_PORTABLE: c_uint = 1;
/// The first of three words: behind it stand a block of arguments, its size, and an end of 0.
pub(crate) const LAUNCH_PARAM_BUFFER_POINTER: *mut c_void = std::ptr::without_provenance_mut(1);
pub(crate) const LAUNCH_PARAM_BUFFER_SIZE: *mut c_void = std::ptr::without_provenance_mut(2);
pub(crate) const LAUNCH_PARAM_END: *mut c_void = std::ptr::null_mut();

/// Declares the table of functions, and how it is filled.
macro_rules! functions {
    (
        needed { $($name:ident = $symbol:literal ($($argument:ty),*);)* }
        optional { $($maybe:ident = $maybe_symbol:literal ($($maybe_argument:ty),*);)* }
    ) => {
        /// The functions of `libcuda`.
        pub(crate) struct Cuda {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) -> Status,)*
            $(pub(crate) $maybe: Option<unsafe extern "C" fn($($maybe_argument),*) -> Status>,)*
            _library: Library,
        }

        impl Cuda {
            fn of(library: Library, path: &str) -> Result<Self> {
                Ok(Self {
                    $($name: {
                        // SAFETY: cuda.h declares the function so.
                        let function = unsafe { library.get($symbol.as_bytes()) };
                        *function.map_err(|_| too_old(path, $symbol))?
                    },)*
                    $($maybe: {
                        // SAFETY: as above.
                        let function = unsafe { library.get($maybe_symbol.as_bytes()) };
                        function.ok().map(|function| *function)
                    },)*
                    _library: library,
                })
            }
        }
    };
}

functions! {
    needed {
        init = "cuInit" (c_uint);
        driver_version = "cuDriverGetVersion" (*mut c_int);
        error_name = "cuGetErrorName" (Status, *mut *const c_char);
        error_string = "cuGetErrorString" (Status, *mut *const c_char);
        device_count = "cuDeviceGetCount" (*mut c_int);
        device_get = "cuDeviceGet" (*mut Device, c_int);
        device_name = "cuDeviceGetName" (*mut c_char, c_int, Device);
        device_uuid = "cuDeviceGetUuid" (*mut Uuid, Device);
        device_total = "cuDeviceTotalMem_v2" (*mut usize, Device);
        device_attribute = "cuDeviceGetAttribute" (*mut c_int, c_int, Device);
        can_access_peer = "cuDeviceCanAccessPeer" (*mut c_int, Device, Device);
        enable_peer = "cuCtxEnablePeerAccess" (Context, c_uint);
        context_retain = "cuDevicePrimaryCtxRetain" (*mut Context, Device);
        context_release = "cuDevicePrimaryCtxRelease_v2" (Device);
        context_current = "cuCtxGetCurrent" (*mut Context);
        context_push = "cuCtxPushCurrent_v2" (Context);
        context_pop = "cuCtxPopCurrent_v2" (*mut Context);
        priority_range = "cuCtxGetStreamPriorityRange" (*mut c_int, *mut c_int);
        memory_info = "cuMemGetInfo_v2" (*mut usize, *mut usize);
        memory_alloc = "cuMemAlloc_v2" (*mut u64, usize);
        memory_free = "cuMemFree_v2" (u64);
        host_alloc = "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
        host_free = "cuMemFreeHost" (*mut c_void);
        host_register = "cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
        host_unregister = "cuMemHostUnregister" (*mut c_void);
        copy_to_device = "cuMemcpyHtoDAsync_v2" (u64, *const c_void, usize, Stream);
        copy_to_host = "cuMemcpyDtoHAsync_v2" (*mut c_void, u64, usize, Stream);
        copy_within = "cuMemcpyDtoDAsync_v2" (u64, u64, usize, Stream);
        copy_peer = "cuMemcpyPeerAsync" (u64, Context, u64, Context, usize, Stream);
        set_8 = "cuMemsetD8Async" (u64, u8, usize, Stream);
        set_16 = "cuMemsetD16Async" (u64, u16, usize, Stream);
        set_32 = "cuMemsetD32Async" (u64, c_uint, usize, Stream);
        set_rows_8 = "cuMemsetD2D8Async" (u64, usize, u8, usize, usize, Stream);
        set_rows_16 = "cuMemsetD2D16Async" (u64, usize, u16, usize, usize, Stream);
        set_rows_32 = "cuMemsetD2D32Async" (u64, usize, c_uint, usize, usize, Stream);
        stream_create = "cuStreamCreateWithPriority" (*mut Stream, c_uint, c_int);
        stream_destroy = "cuStreamDestroy_v2" (Stream);
        stream_synchronize = "cuStreamSynchronize" (Stream);
        stream_query = "cuStreamQuery" (Stream);
        stream_context = "cuStreamGetCtx" (Stream, *mut Context);
        stream_wait = "cuStreamWaitEvent" (Stream, Event, c_uint);
        host_function = "cuLaunchHostFunc" (Stream, HostFunction, *mut c_void);
        event_create = "cuEventCreate" (*mut Event, c_uint);
        event_destroy = "cuEventDestroy_v2" (Event);
        event_record = "cuEventRecord" (Event, Stream);
        event_query = "cuEventQuery" (Event);
        event_synchronize = "cuEventSynchronize" (Event);
        event_elapsed = "cuEventElapsedTime" (*mut f32, Event, Event);
        module_load = "cuModuleLoadData" (*mut Module, *const c_void);
        module_unload = "cuModuleUnload" (Module);
        module_function = "cuModuleGetFunction" (*mut Function, Module, *const c_char);
        function_attribute = "cuFuncGetAttribute" (*mut c_int, c_int, Function);
        function_set = "cuFuncSetAttribute" (Function, c_int, c_int);
        link_create = "cuLinkCreate_v2" (c_uint, *mut c_int, *mut *mut c_void, *mut LinkState);
        link_add = "cuLinkAddData_v2" (LinkState, c_int, *mut c_void, usize, *const c_char, c_uint, *mut c_int, *mut *mut c_void);
        link_complete = "cuLinkComplete" (LinkState, *mut *mut c_void, *mut usize);
        link_destroy = "cuLinkDestroy" (LinkState);
        launch = "cuLaunchKernel" (Function, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Stream, *mut *mut c_void, *mut *mut c_void);
        // The functions for graphs have the forms of 11.4: newer headers give the names to functions with another
        // number behind.
        graph_create = "cuGraphCreate" (*mut Graph, c_uint);
        graph_destroy = "cuGraphDestroy" (Graph);
        add_kernel = "cuGraphAddKernelNode" (*mut GraphNode, Graph, *const GraphNode, usize, *const KernelNode);
        add_copy = "cuGraphAddMemcpyNode" (*mut GraphNode, Graph, *const GraphNode, usize, *const Copy3d, Context);
        add_fill = "cuGraphAddMemsetNode" (*mut GraphNode, Graph, *const GraphNode, usize, *const FillNode, Context);
        add_graph = "cuGraphAddChildGraphNode" (*mut GraphNode, Graph, *const GraphNode, usize, Graph);
        graph_instantiate = "cuGraphInstantiateWithFlags" (*mut GraphExec, Graph, u64);
        graph_exec_destroy = "cuGraphExecDestroy" (GraphExec);
        set_kernel = "cuGraphExecKernelNodeSetParams" (GraphExec, GraphNode, *const KernelNode);
        set_copy = "cuGraphExecMemcpyNodeSetParams" (GraphExec, GraphNode, *const Copy3d, Context);
        set_fill = "cuGraphExecMemsetNodeSetParams" (GraphExec, GraphNode, *const FillNode, Context);
        set_graph = "cuGraphExecChildGraphNodeSetParams" (GraphExec, GraphNode, Graph);
        capture_begin = "cuStreamBeginCapture_v2" (Stream, c_int);
        capture_end = "cuStreamEndCapture" (Stream, *mut Graph);
        graph_launch = "cuGraphLaunch" (GraphExec, Stream);
        granularity = "cuMemGetAllocationGranularity" (*mut usize, *const AllocationProperties, c_int);
        reserve = "cuMemAddressReserve" (*mut u64, usize, usize, u64, u64);
        release_range = "cuMemAddressFree" (u64, usize);
        create = "cuMemCreate" (*mut Physical, usize, *const AllocationProperties, u64);
        release = "cuMemRelease" (Physical);
        map = "cuMemMap" (u64, usize, usize, Physical, u64);
        unmap = "cuMemUnmap" (u64, usize);
        set_access = "cuMemSetAccess" (u64, usize, *const Access, usize);
    }
    optional {
        // From 11.7 on in this form.
        stream_wait_value = "cuStreamWaitValue32_v2" (Stream, u64, u32, c_uint);
        // From 12.4 on.
        module_function_count = "cuModuleGetFunctionCount" (*mut c_uint, Module);
        module_functions = "cuModuleEnumerateFunctions" (*mut Function, c_uint, Module);
    }
}

/// The name by which the system's loader finds the library, if no option names another.
pub(crate) const LIBRARY: &str = "libcuda.so.1";

/// Loads `libcuda`, once for each name. It stays loaded: its threads would not survive the unloading.
pub(crate) fn load(path: &str) -> Result<&'static Cuda> {
    static LOADED: Mutex<Option<HashMap<String, &'static Cuda>>> = Mutex::new(None);
    let mut loaded = LOADED.lock();
    let loaded = loaded.get_or_insert_default();
    if let Some(cuda) = loaded.get(path) {
        return Ok(cuda);
    }
    // SAFETY: this runs the initialisers of NVIDIA's library, or of what an option of `open` names in its place.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
    let library = library.map_err(|error| {
        let text = std::error::Error::source(&error)
            .map_or_else(|| error.to_string(), ToString::to_string);
        Fault::new(
            c::OTR_ERR_NOT_FOUND,
            format!(
                "{path} cannot be loaded, so there is no driver of NVIDIA's on this machine: {text}"
            ),
        )
    })?;
    let cuda: &'static Cuda = Box::leak(Box::new(Cuda::of(library, path)?));
    loaded.insert(path.to_owned(), cuda);
    Ok(cuda)
}

#[cold]
fn too_old(path: &str, symbol: &str) -> Fault {
    Fault::new(
        c::OTR_ERR_LOAD,
        format!(
            "{path} has no function {symbol}: the driver of NVIDIA's is too old; version 11.4 or later has it"
        ),
    )
}

/// Whether nothing works in a context any more after this error.
pub(crate) fn is_lost(status: Status) -> bool {
    matches!(
        status,
        ERROR_DEINITIALIZED
            | ERROR_ECC_UNCORRECTABLE
            | ERROR_NVLINK_UNCORRECTABLE
            | ERROR_CONTAINED
            | ERROR_ILLEGAL_ADDRESS
            | ERROR_LAUNCH_TIMEOUT
            | ERROR_CONTEXT_IS_DESTROYED
            | ERROR_ASSERT
            | ERROR_TENSOR_MEMORY_LEAK
            | ERROR_HARDWARE_STACK_ERROR..=ERROR_LAUNCH_FAILED
    )
}

impl Cuda {
    /// The answer of a function as a result; `what` is its name.
    #[inline]
    pub(crate) fn check(&self, status: Status, what: &str) -> Result {
        if status == SUCCESS {
            Ok(())
        } else {
            Err(self.fault(status, what))
        }
    }

    /// An error of CUDA as a fault.
    #[cold]
    pub(crate) fn fault(&self, status: Status, what: &str) -> Fault {
        let code = match status {
            ERROR_INVALID_VALUE
            | ERROR_INVALID_IMAGE
            | ERROR_NO_BINARY_FOR_GPU
            | ERROR_INVALID_PTX
            | ERROR_UNSUPPORTED_PTX_VERSION
            | ERROR_INVALID_SOURCE
            | ERROR_LAUNCH_OUT_OF_RESOURCES => c::OTR_ERR_INVALID_ARGUMENT,
            ERROR_OUT_OF_MEMORY => c::OTR_ERR_OUT_OF_MEMORY,
            ERROR_STUB_LIBRARY
            | ERROR_NO_DEVICE
            | ERROR_INVALID_DEVICE
            | ERROR_SYSTEM_DRIVER_MISMATCH => c::OTR_ERR_LOAD,
            ERROR_NOT_FOUND => c::OTR_ERR_NOT_FOUND,
            ERROR_NOT_SUPPORTED => c::OTR_ERR_UNSUPPORTED,
            status if is_lost(status) => c::OTR_ERR_DEVICE_LOST,
            _ => c::OTR_ERR_INTERNAL,
        };
        let lost = if is_lost(status) {
            "; the context is lost, for all of the process: only closing the driver is left, and CUDA works again in a new process"
        } else {
            ""
        };
        let (name, text) = (
            self.text(self.error_name, status),
            self.text(self.error_string, status),
        );
        Fault::new(
            code,
            format!("{what} answered {name} ({status}): {text}{lost}"),
        )
    }

    fn text(
        &self,
        tell: unsafe extern "C" fn(Status, *mut *const c_char) -> Status,
        status: Status,
    ) -> String {
        let mut text = std::ptr::null();
        // SAFETY: a place for the text, which is a constant of the library.
        let told = unsafe { tell(status, &mut text) };
        if told != SUCCESS || text.is_null() {
            return "an unknown error".to_owned();
        }
        // SAFETY: not NULL, so a NUL-terminated constant.
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned()
    }
}

/// A text for a C function, cut at its first NUL.
pub(crate) fn c_text(bytes: &[u8]) -> CString {
    let end = bytes
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(bytes.len());
    CString::new(&bytes[..end]).unwrap_or_default()
}
