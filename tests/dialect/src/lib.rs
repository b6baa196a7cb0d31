//! The driver `liboutrigger_dialect_driver.so`: the built-in driver `host` as a device that loads source. It takes texts
//! in the dialect (include/outrigger/dialect.h) under the number of OpenCL C, and compiles them as plain C with `cc`. So
//! kernels and what launches them are tested where there is no OpenCL. It takes the options of `host`, and six more:
//!
//! - `checked=1`: undefined behaviour in a kernel ends the process.
//! - `sub_group=N`: what the device says of itself; 1 is a device that runs a group on one thread (the default).
//! - `f64=0`: the device says that it has no f64.
//! - `threads=N`: how many threads run the groups of a grid, each some of them; 1 is the default.
//! - `units=N`: how many groups the device says it runs at a time; as many as threads by default.
//! - `keep=FOLDER`: each text is also written to a file there, for other compilers.
//!
//! A module has one kernel, which takes addresses, and then one struct `arguments_t`.

mod compiler;

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::path::PathBuf;
use std::ptr::null;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use compiler::{ADDRESSES, Loaded, RunFn};
use outrigger_device::{Code, Driver, Error, RawDriver, Result, sys};
use outrigger_layers::{Layer, LayerTable, Next, fail, open_with};

/// The compiler over the driver below.
#[derive(Debug)]
pub struct Dialect {
    checked: bool,
    sub_group: u32,
    threads: u32,
    units: u32,
    has_f64: bool,
    keep: Option<PathBuf>,
    code: Mutex<Texts>,
}

/// Texts by the module of the driver below that stands for each, and functions by kernel.
#[derive(Default)]
struct Texts {
    modules: HashMap<usize, Arc<Loaded>>,
    kernels: HashMap<usize, Function>,
}

impl std::fmt::Debug for Texts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Texts")
            .field("modules", &self.modules.len())
            .finish_non_exhaustive()
    }
}

/// A kernel: its module, its own address, and that of what calls it for a grid.
#[derive(Clone, Copy)]
struct Function {
    module: usize,
    kernel: usize,
    run: usize,
}

/// Words of an argument block in front of the kernel's own: `run`, the kernel, the grid in two, the number of addresses,
/// that of threads.
const HEAD: usize = 6;

/// Runs a grid. It is the host function that the driver below knows.
///
/// # Safety
/// The block is one of [`Dialect::kernel_launch`].
unsafe extern "C" fn run_grid(args: *const c_void, args_size: u32, _bias: i64) -> i32 {
    let mut block = vec![0_u64; args_size as usize / 8];
    // SAFETY: the block has as many bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(
            args.cast::<u8>(),
            block.as_mut_ptr().cast(),
            block.len() * 8,
        );
    }
    let grid = [block[2] as u32, (block[2] >> 32) as u32, block[3] as u32];
    // SAFETY: R30, R46: functions of a loaded module, and memory that is live until the launch has finished.
    unsafe {
        let run: RunFn = std::mem::transmute(block[0] as usize);
        let threads = block[5].min(grid.iter().map(|one| u64::from(*one)).product());
        let part = |first: u64| {
            let kernel = block[1] as usize as *const c_void;
            run(
                kernel,
                grid.as_ptr(),
                block[HEAD..].as_ptr(),
                block[4],
                first,
                threads,
            );
        };
        std::thread::scope(|scope| {
            for first in 1..threads {
                scope.spawn(move || part(first));
            }
            part(0);
        });
    }
    Code::OK.0
}

/// The value of an option that is a number.
fn number(key: &str, value: &str) -> Result<u32> {
    let wrong = |_| {
        Error::new(
            Code::INVALID_ARGUMENT,
            format!("{key}={value} is no number"),
        )
    };
    value.parse().map_err(wrong)
}

impl Dialect {
    /// A layer with options (`key=value`), of which it takes its own ones.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for a value that makes no sense.
    pub fn new<'a>(options: &[(&'a str, &'a str)]) -> Result<(Self, Vec<(&'a str, &'a str)>)> {
        let (mut checked, mut sub_group, mut threads, mut units) = (false, 1, 1, 0);
        let (mut has_f64, mut keep) = (true, None);
        let mut rest = Vec::new();
        for (key, value) in options {
            match *key {
                "checked" => checked = *value != "0",
                "keep" => keep = Some(PathBuf::from(value)),
                "f64" => has_f64 = *value != "0",
                "sub_group" => sub_group = number(key, value)?,
                "threads" => threads = number(key, value)?,
                "units" => units = number(key, value)?,
                _ => rest.push((*key, *value)),
            }
        }
        let layer = Self {
            checked,
            sub_group,
            threads,
            units: units.max(threads),
            has_f64,
            keep,
            code: Mutex::default(),
        };
        Ok((layer, rest))
    }
}

impl Dialect {
    /// Writes a text to its file, if texts are kept.
    fn kept(&self, text: &CStr) -> std::result::Result<(), String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let Some(folder) = &self.keep else {
            return Ok(());
        };
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("{number}.c"));
        std::fs::write(path, text.to_bytes()).map_err(|error| error.to_string())
    }
}

impl Layer for Dialect {
    fn offers(&self, what: &str, below: bool) -> bool {
        offers(what, below)
    }

    unsafe fn device_properties(
        &self,
        next: &Next,
        driver: *mut sys::otr_driver,
        device: u32,
        properties: *mut sys::otr_device_properties,
    ) -> i32 {
        // SAFETY: the caller's arguments.
        unsafe {
            let code = next.device_properties(driver, device, properties);
            if code == Code::OK.0
                && (*properties).struct_size >= size_of::<sys::otr_device_properties>()
            {
                // A chip: what host kernels do is not its work.
                (*properties).flags &= !sys::OTR_DEVICE_CPU;
                (*properties).code_formats |= 1 << sys::OTR_CODE_OPENCL_C | 1 << sys::OTR_CODE_ELF;
                (*properties).features |=
                    sys::OTR_FEATURE_ATOMIC_ADD_F32 | sys::OTR_FEATURE_ATOMIC_64;
                if self.has_f64 {
                    (*properties).features |= sys::OTR_FEATURE_F64;
                }
                (*properties).sub_group = self.sub_group;
                (*properties).compute_units = self.units;
            }
            code
        }
    }

    unsafe fn module_load(
        &self,
        next: &Next,
        driver: *mut sys::otr_driver,
        device: u32,
        format: u32,
        code: *const c_void,
        size: usize,
        options: *const c_char,
        module: *mut *mut sys::otr_drv_module,
    ) -> i32 {
        let is_ours = [sys::OTR_CODE_OPENCL_C, sys::OTR_CODE_ELF].contains(&format);
        if !is_ours || code.is_null() {
            // SAFETY: the caller's arguments.
            return unsafe {
                next.module_load(driver, device, format, code, size, options, module)
            };
        }
        let loaded = if format == sys::OTR_CODE_ELF {
            // SAFETY: compiled code of `size` bytes.
            let binary = unsafe { std::slice::from_raw_parts(code.cast::<u8>(), size) };
            match self.keep {
                Some(_) => Err("texts are kept, so all of them are compiled".to_owned()),
                None => Loaded::restore(binary, self.checked),
            }
        } else {
            // SAFETY: source of `size` bytes with a NUL behind it.
            let text = unsafe { std::slice::from_raw_parts(code.cast::<u8>(), size + 1) };
            match CStr::from_bytes_until_nul(text) {
                Ok(text) => self
                    .kept(text)
                    .and_then(|()| Loaded::compile(text, self.checked)),
                Err(_) => Err("the source has no NUL behind it".to_owned()),
            }
        };
        let loaded = match loaded {
            Ok(loaded) => loaded,
            Err(log) => return fail(Code::INVALID_ARGUMENT, log),
        };
        let (host, function) = (sys::OTR_CODE_HOST_FUNCTION, run_grid as *const c_void);
        // SAFETY: the caller's driver, device and place; the code is a host kernel.
        let answer = unsafe { next.module_load(driver, device, host, function, 0, null(), module) };
        if answer == Code::OK.0 {
            let mut code = self.code.lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: written by the successful call.
            code.modules
                .insert(unsafe { *module } as usize, Arc::new(loaded));
        }
        answer
    }

    unsafe fn module_binary(
        &self,
        next: &Next,
        module: *mut sys::otr_drv_module,
        binary: *mut c_void,
        size: *mut u64,
    ) -> i32 {
        let loaded = {
            let code = self.code.lock().unwrap_or_else(PoisonError::into_inner);
            code.modules.get(&(module as usize)).cloned()
        };
        let Some(loaded) = loaded else {
            // SAFETY: the caller's arguments.
            return unsafe { next.module_binary(module, binary, size) };
        };
        let bytes = loaded.binary();
        // SAFETY: NULL, or the room that `binary` has.
        let Some(size) = (unsafe { size.as_mut() }) else {
            return fail(Code::INVALID_ARGUMENT, "the place for the size is NULL");
        };
        if !binary.is_null() {
            if *size < bytes.len() as u64 {
                return fail(
                    Code::INVALID_ARGUMENT,
                    "too little room for the compiled form",
                );
            }
            // SAFETY: not NULL, so there is room for as many bytes as `size` says.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), binary.cast(), bytes.len()) };
        }
        *size = bytes.len() as u64;
        Code::OK.0
    }

    unsafe fn module_unload(&self, next: &Next, module: *mut sys::otr_drv_module) -> i32 {
        let gone = {
            let mut code = self.code.lock().unwrap_or_else(PoisonError::into_inner);
            code.kernels
                .retain(|_, kernel| kernel.module != module as usize);
            code.modules.remove(&(module as usize))
        };
        drop(gone);
        // SAFETY: the caller's module, whose last launch has finished.
        unsafe { next.module_unload(module) }
    }

    unsafe fn kernel_get(
        &self,
        next: &Next,
        module: *mut sys::otr_drv_module,
        name: *const c_char,
        kernel: *mut *mut sys::otr_drv_kernel,
    ) -> i32 {
        let loaded = {
            let code = self.code.lock().unwrap_or_else(PoisonError::into_inner);
            code.modules.get(&(module as usize)).cloned()
        };
        let Some(loaded) = loaded else {
            // SAFETY: the caller's arguments.
            return unsafe { next.kernel_get(module, name, kernel) };
        };
        // SAFETY: NULL or a string.
        let function = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) });
        let function = function.and_then(|name| loaded.function(name));
        let Some((function, run)) = function.zip(loaded.function(c"otr_run")) else {
            return fail(Code::NOT_FOUND, "the module has no kernel of this name");
        };
        // SAFETY: the caller's module and place.
        let answer = unsafe { next.kernel_get(module, null(), kernel) };
        if answer == Code::OK.0 {
            let mut code = self.code.lock().unwrap_or_else(PoisonError::into_inner);
            let made = Function {
                module: module as usize,
                kernel: function,
                run,
            };
            // SAFETY: written by the successful call.
            code.kernels.insert(unsafe { *kernel } as usize, made);
        }
        answer
    }

    unsafe fn kernel_launch(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        kernel: *mut sys::otr_drv_kernel,
        launch: *const sys::otr_launch,
    ) -> i32 {
        let function = {
            let code = self.code.lock().unwrap_or_else(PoisonError::into_inner);
            code.kernels.get(&(kernel as usize)).copied()
        };
        // SAFETY: NULL or a launch.
        let (Some(function), Some(given)) = (function, unsafe { launch.as_ref() }) else {
            // SAFETY: the caller's arguments.
            return unsafe { next.kernel_launch(queue, kernel, launch) };
        };
        if given.arguments.is_null() || given.args.is_null() {
            return fail(
                Code::INVALID_ARGUMENT,
                "the launch does not say what its arguments are",
            );
        }
        // SAFETY: as many as counted (R30).
        let (arguments, bytes) = unsafe {
            (
                std::slice::from_raw_parts(given.arguments, given.argument_count as usize),
                std::slice::from_raw_parts(given.args.cast::<u8>(), given.args_size as usize),
            )
        };
        let is_address = |one: &&sys::otr_argument| one.kind == sys::OTR_ARGUMENT_ADDRESS;
        let addresses = arguments.iter().filter(is_address).count();
        let end = |one: &sys::otr_argument| u64::from(one.offset) + u64::from(one.size);
        if addresses > ADDRESSES || arguments.iter().any(|one| end(one) > bytes.len() as u64) {
            return fail(
                Code::INVALID_ARGUMENT,
                "an argument reaches beyond the block, or too many are addresses",
            );
        }
        let grid = given.grid.map(u64::from);
        let head = [
            function.run as u64,
            function.kernel as u64,
            grid[0] | grid[1] << 32,
            grid[2],
            addresses as u64,
            u64::from(self.threads),
        ];
        let mut block: Vec<u8> = head.iter().flat_map(|word| word.to_ne_bytes()).collect();
        block.extend_from_slice(bytes);
        let below = sys::otr_launch {
            grid: [1; 3],
            block: [1; 3],
            args_size: block.len() as u32,
            args: block.as_ptr().cast(),
            arguments: null(),
            argument_count: 0,
            ..*given
        };
        // SAFETY: the caller's queue and kernel; R30: the block is copied during the call.
        unsafe { next.kernel_launch(queue, kernel, &below) }
    }
}

/// Whether the driver has this entry beyond those of `host`: it tells what it compiled.
fn offers(what: &str, below: bool) -> bool {
    below || what == "kernel.module_binary"
}

/// Opens `host`, and the layer for it.
fn make(options: &str) -> Result<(RawDriver, Box<dyn Layer>)> {
    let pairs: Vec<_> = options
        .split(',')
        .filter(|option| !option.is_empty())
        .map(|option| option.split_once('=').unwrap_or((option, "")))
        .collect();
    let (layer, rest) = Dialect::new(&pairs)?;
    Ok((below(&rest)?, Box::new(layer)))
}

fn below(options: &[(&str, &str)]) -> Result<RawDriver> {
    let words: Vec<_> = options
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let joint = if words.is_empty() { "" } else { "?" };
    let driver = Driver::open(&format!("host{joint}{}", words.join("&")).parse()?)?;
    let used = |_| {
        Error::new(
            Code::INTERNAL,
            "a driver that was just opened is used elsewhere",
        )
    };
    driver.into_raw().map_err(used)
}

/// The driver with these options (`key=value,key=value`), in this process.
///
/// # Errors
/// Those of `host`, and what [`Dialect::new`] says.
pub fn driver(options: &str) -> Result<Driver> {
    let pairs: Vec<_> = options
        .split(',')
        .filter_map(|option| option.split_once('='))
        .collect();
    let (layer, rest) = Dialect::new(&pairs)?;
    outrigger_layers::layered(Driver::from_raw(below(&rest)?)?, layer)
}

unsafe extern "C" fn open(
    params: *const sys::otr_open_params,
    driver: *mut *mut sys::otr_driver,
) -> i32 {
    // SAFETY: R1, R10: `params` is NULL or valid during the call, `driver` NULL or writable.
    unsafe { open_with(params, driver, make) }
}

/// The table, whose shape is that of a driver below.
fn table() -> Option<&'static LayerTable> {
    static TABLE: OnceLock<Option<LayerTable>> = OnceLock::new();
    // The driver is closed again at once: its strings are literals of this library.
    let made = || {
        below(&[])
            .ok()
            .map(|raw| LayerTable::over(&raw, offers, open))
    };
    TABLE.get_or_init(made).as_ref()
}

/// The entry of the contract.
///
/// # Safety
/// As in `driver.h`: `host` is NULL or a struct of the size that it states, `api` NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otr_driver_get_api(
    host: *const sys::otr_host_info,
    api: *mut *const sys::otr_driver_api,
) -> i32 {
    if host.is_null() || api.is_null() {
        return fail(Code::INVALID_ARGUMENT, "host or api is NULL");
    }
    let Some(table) = table() else {
        return fail(Code::INTERNAL, "the driver below cannot be opened");
    };
    // SAFETY: not NULL: `host` is valid, and `api` writable.
    unsafe {
        *api = table.as_ptr();
        if (*host).api_major != sys::OTR_DRIVER_API_MAJOR {
            let (theirs, ours) = ((*host).api_major, sys::OTR_DRIVER_API_MAJOR);
            let text = format!(
                "the host speaks version {theirs} of the contract, this driver version {ours}"
            );
            return fail(Code::VERSION, text);
        }
    }
    Code::OK.0
}
