//! A stand-in for a driver with a compiler, to test what is around one. Its language is any text: a line that contains
//! `wrong` does not compile. Its binaries are the text behind a mark. It runs nothing.

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use outrigger_device::{Driver, RawDriver, sys};

const MARK: &str = "compiled by the stand-in:";

/// The figures and switches of the stand-in that a test sees and sets.
#[derive(Default)]
pub(crate) struct Control {
    /// The number of times that the compiler ran.
    pub(crate) compiled: AtomicU32,
    /// The number of binaries that were loaded.
    pub(crate) loaded: AtomicU32,
    pub(crate) unloaded: AtomicU32,
    /// The number of compilers that run now.
    pub(crate) running: AtomicU32,
    /// And how many have run at one time.
    pub(crate) most: AtomicU32,
    /// The code with which the load of a binary fails; 0: the binary is loaded.
    pub(crate) refusal: AtomicU32,
    closed: Mutex<bool>,
    opened: Condvar,
}

impl Control {
    /// Lets compilers wait until [`open`](Self::open).
    pub(crate) fn close(&self) {
        *self.closed.lock().unwrap() = true;
    }

    pub(crate) fn open(&self) {
        *self.closed.lock().unwrap() = false;
        self.opened.notify_all();
    }

    pub(crate) fn compiled(&self) -> u32 {
        self.compiled.load(Ordering::SeqCst)
    }

    fn compile(&self) {
        self.compiled.fetch_add(1, Ordering::SeqCst);
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(running, Ordering::SeqCst);
        let mut closed = self.closed.lock().unwrap();
        while *closed {
            closed = self.opened.wait(closed).unwrap();
        }
        drop(closed);
        self.running.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The properties of a stand-in.
pub(crate) struct Make {
    pub(crate) version: &'static CStr,
    pub(crate) devices: u32,
    /// Whether it tells compiled forms.
    pub(crate) binaries: bool,
}

impl Default for Make {
    fn default() -> Self {
        Self {
            version: c"1.0",
            devices: 3,
            binaries: true,
        }
    }
}

struct StandIn {
    control: Arc<Control>,
    devices: u32,
    binaries: bool,
}

struct Table {
    kernel: sys::otr_kernel_api,
    api: sys::otr_driver_api,
}

// SAFETY: never written after it was made; its pointers are to constants and to itself.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

struct Module {
    driver: *const StandIn,
    binary: Vec<u8>,
}

/// An open stand-in, and what controls it.
pub(crate) fn driver(make: Make) -> (Driver, Arc<Control>) {
    let control = Arc::new(Control::default());
    let stand_in = Box::new(StandIn {
        control: control.clone(),
        devices: make.devices,
        binaries: make.binaries,
    });
    let mut table = Box::new(Table {
        kernel: kernel_api(),
        api: api(make.version),
    });
    table.api.kernel = &raw const table.kernel;
    let handle = NonNull::new(Box::into_raw(stand_in).cast()).unwrap();
    // SAFETY: the table is whole and lives in the owner; the handle is that of an open stand-in.
    let raw = unsafe { RawDriver::from_parts(&raw const table.api, handle, Some(table)) };
    (Driver::from_raw(raw.unwrap()).unwrap(), control)
}

thread_local! {
    static TEXT: std::cell::RefCell<CString> = std::cell::RefCell::default();
}

fn fail(code: i32, text: &str) -> i32 {
    TEXT.set(CString::new(text).unwrap());
    code
}

unsafe extern "C" fn last_error() -> *const c_char {
    TEXT.with_borrow(|text| text.as_ptr())
}

/// # Safety
/// The handle is that of an open stand-in.
unsafe fn stand_in<'a>(driver: *mut sys::otr_driver) -> &'a StandIn {
    // SAFETY: this function's contract.
    unsafe { &*driver.cast::<StandIn>() }
}

unsafe extern "C" fn close(driver: *mut sys::otr_driver) -> i32 {
    // SAFETY: it came from a box, and is closed once.
    drop(unsafe { Box::from_raw(driver.cast::<StandIn>()) });
    sys::OTR_OK
}

unsafe extern "C" fn device_count(driver: *mut sys::otr_driver, count: *mut u32) -> i32 {
    // SAFETY: the caller keeps the contract of `device_count`.
    unsafe { *count = stand_in(driver).devices };
    sys::OTR_OK
}

unsafe extern "C" fn device_properties(
    _: *mut sys::otr_driver,
    device: u32,
    properties: *mut sys::otr_device_properties,
) -> i32 {
    // SAFETY: the caller keeps the contract of `device_properties`.
    let properties = unsafe { &mut *properties };
    properties.address_alignment = 64;
    // Of the first three, the second differs from the first in its name alone, and the third in its number.
    properties.name[0] = (b'A' + device as u8 % 2) as c_char;
    properties.uuid[0] = device as u8 / 2 + 1;
    properties.code_formats = 1 << sys::OTR_CODE_OPENCL_C | 1 << sys::OTR_CODE_ELF;
    sys::OTR_OK
}

unsafe extern "C" fn device_open(
    _: *mut sys::otr_driver,
    _: u32,
    _: *const sys::otr_device_params,
) -> i32 {
    sys::OTR_OK
}

unsafe extern "C" fn module_load(
    driver: *mut sys::otr_driver,
    _: u32,
    format: u32,
    code: *const c_void,
    size: usize,
    options: *const c_char,
    module: *mut *mut sys::otr_drv_module,
) -> i32 {
    // SAFETY: the caller keeps the contract of `module_load`.
    let (this, code, options) = unsafe {
        let code = std::slice::from_raw_parts(code.cast::<u8>(), size);
        let options = (!options.is_null()).then(|| CStr::from_ptr(options));
        (stand_in(driver), code, options)
    };
    let text = String::from_utf8_lossy(code);
    let binary = match format {
        sys::OTR_CODE_OPENCL_C | sys::OTR_CODE_CUDA_C => {
            this.control.compile();
            let mut log = String::new();
            for (at, line) in text.lines().enumerate() {
                if let Some(column) = line.find("wrong") {
                    log += &format!("<kernel>:{}:{}: error: it is wrong\n", at + 1, column + 1);
                }
            }
            if !log.is_empty() {
                return fail(sys::OTR_ERR_INVALID_ARGUMENT, &log);
            }
            format!("{MARK}{text}{options:?}").into_bytes()
        }
        sys::OTR_CODE_ELF => {
            let refusal = this.control.refusal.load(Ordering::SeqCst);
            if refusal != 0 {
                return fail(refusal as i32, "the stand-in refuses this binary");
            }
            if !text.starts_with(MARK) {
                return fail(sys::OTR_ERR_INVALID_ARGUMENT, "no binary of the stand-in");
            }
            this.control.loaded.fetch_add(1, Ordering::SeqCst);
            code.to_vec()
        }
        _ => {
            return fail(
                sys::OTR_ERR_UNSUPPORTED,
                "the stand-in takes OpenCL C and CUDA C",
            );
        }
    };
    let loaded = Box::new(Module {
        driver: this,
        binary,
    });
    // SAFETY: the caller keeps the contract of `module_load`.
    unsafe { *module = Box::into_raw(loaded).cast() };
    sys::OTR_OK
}

unsafe extern "C" fn module_unload(module: *mut sys::otr_drv_module) -> i32 {
    // SAFETY: it came from a box, and is unloaded once, while its driver is open.
    unsafe {
        let module = Box::from_raw(module.cast::<Module>());
        let driver = &*module.driver;
        driver.control.unloaded.fetch_add(1, Ordering::SeqCst);
    }
    sys::OTR_OK
}

unsafe extern "C" fn module_binary(
    module: *mut sys::otr_drv_module,
    binary: *mut c_void,
    size: *mut u64,
) -> i32 {
    // SAFETY: the caller keeps the contract of `module_binary`.
    unsafe {
        let module = &*module.cast::<Module>();
        let driver = &*module.driver;
        if !driver.binaries {
            return fail(sys::OTR_ERR_UNSUPPORTED, "this stand-in tells no binary");
        }
        let bytes = &module.binary;
        if !binary.is_null() {
            if *size < bytes.len() as u64 {
                return fail(sys::OTR_ERR_INVALID_ARGUMENT, "too little room");
            }
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), binary.cast(), bytes.len());
        }
        *size = bytes.len() as u64;
    }
    sys::OTR_OK
}

/// Entries that the stand-in has only because they are mandatory.
macro_rules! refuse {
    ($($name:ident($($type:ty),*))*) => {$(
        unsafe extern "C" fn $name($(_: $type),*) -> i32 {
            fail(sys::OTR_ERR_UNSUPPORTED, concat!("the stand-in has no ", stringify!($name)))
        }
    )*};
}

refuse! {
    open(*const sys::otr_open_params, *mut *mut sys::otr_driver)
    device_close(*mut sys::otr_driver, u32)
    memory_alloc(*mut sys::otr_driver, u32, *const sys::otr_memory_params, *mut u64)
    memory_free(*mut sys::otr_driver, u64)
    queue_create(*mut sys::otr_driver, u32, *const sys::otr_queue_params, *mut *mut sys::otr_queue)
    queue_destroy(*mut sys::otr_queue)
    queue_query(*mut sys::otr_queue, *mut sys::otr_outcome)
    queue_synchronize(*mut sys::otr_queue, *mut sys::otr_outcome)
    queue_wait_event(*mut sys::otr_queue, *mut sys::otr_drv_event)
    event_create(*mut sys::otr_driver, u32, *const sys::otr_event_params, *mut *mut sys::otr_drv_event)
    event_destroy(*mut sys::otr_drv_event)
    event_record(*mut sys::otr_drv_event, *mut sys::otr_queue)
    event_query(*mut sys::otr_drv_event, *mut sys::otr_outcome)
    event_synchronize(*mut sys::otr_drv_event, *mut sys::otr_outcome)
    copy(*mut sys::otr_queue, *const sys::otr_copy)
    fill(*mut sys::otr_queue, *const sys::otr_fill)
    host_call(*mut sys::otr_queue, *const sys::otr_host_call)
    kernel_get(*mut sys::otr_drv_module, *const c_char, *mut *mut sys::otr_drv_kernel)
    launch(*mut sys::otr_queue, *mut sys::otr_drv_kernel, *const sys::otr_launch)
}

fn kernel_api() -> sys::otr_kernel_api {
    sys::otr_kernel_api {
        struct_size: size_of::<sys::otr_kernel_api>(),
        module_load: Some(module_load),
        module_unload: Some(module_unload),
        kernel_get: Some(kernel_get),
        launch: Some(launch),
        module_binary: Some(module_binary),
    }
}

fn api(version: &'static CStr) -> sys::otr_driver_api {
    sys::otr_driver_api {
        struct_size: size_of::<sys::otr_driver_api>(),
        next: std::ptr::null(),
        api_major: sys::OTR_DRIVER_API_MAJOR,
        api_minor: sys::OTR_DRIVER_API_MINOR,
        name: c"stand-in".as_ptr(),
        vendor: c"Outrigger's tests".as_ptr(),
        version: version.as_ptr(),
        open: Some(open),
        close: Some(close),
        last_error: Some(last_error),
        device_count: Some(device_count),
        device_properties: Some(device_properties),
        device_open: Some(device_open),
        device_close: Some(device_close),
        memory_alloc: Some(memory_alloc),
        memory_free: Some(memory_free),
        queue_create: Some(queue_create),
        queue_destroy: Some(queue_destroy),
        queue_query: Some(queue_query),
        queue_synchronize: Some(queue_synchronize),
        queue_wait_event: Some(queue_wait_event),
        event_create: Some(event_create),
        event_destroy: Some(event_destroy),
        event_record: Some(event_record),
        event_query: Some(event_query),
        event_synchronize: Some(event_synchronize),
        copy: Some(copy),
        fill: Some(fill),
        host_call: Some(host_call),
        queue_flush: None,
        memory_info: std::ptr::null(),
        virtual_memory: std::ptr::null(),
        pinned_memory: std::ptr::null(),
        peer: std::ptr::null(),
        timing: std::ptr::null(),
        kernel: std::ptr::null(),
        operators: std::ptr::null(),
        graph: std::ptr::null(),
        ipc: std::ptr::null(),
    }
}
