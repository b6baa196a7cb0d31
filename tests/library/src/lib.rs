//! The driver `liboutrigger_library_driver.so`: the built-in driver `host` as a device with an operator library. The
//! library has every operator for which Outrigger has a host kernel, so that a framework can be tested on a device that
//! does all of the work. It takes the options of `host`, and three more:
//!
//! - `offer=FILE`: names of further operators, one in a line. The driver says that it has them, and refuses each call.
//! - `only=FILE`: the only names that it has, one in a line, in place of all.
//! - `log=FILE`: the name of each operator that the driver is asked for is appended to the file, and the names of the
//!   framework's operators that it serves.

use std::collections::HashSet;
use std::ffi::{CStr, CString, c_char};
use std::fs::File;
use std::io::Write;
use std::sync::{Mutex, OnceLock, PoisonError};

use outrigger_device::{Code, Driver, Error, RawDriver, Result, sys};
use outrigger_layers::{Layer, LayerTable, Next, fail, open_with};
use outrigger_ops::{Call, KernelFn, OperatorId, Plan, Scalar, Tensor, Value};

/// The operator library over the driver below.
struct Library {
    names: Names,
    log: Option<Mutex<Log>>,
}

/// Names, and pointers to them.
struct Names {
    pointers: Vec<*const c_char>,
    _texts: Vec<CString>,
}

// SAFETY: the pointers lead to texts that never change, and go with them.
unsafe impl Send for Names {}
// SAFETY: as above.
unsafe impl Sync for Names {}

struct Log {
    file: File,
    known: HashSet<CString>,
}

/// An operator that was prepared. Which kernel it launches may depend on the scalars of a launch.
struct Operator {
    id: OperatorId,
    driver: *mut sys::otr_driver,
    device: u32,
    kernels: Mutex<Vec<Kernel>>,
}

/// A kernel of the driver below.
#[derive(Clone, Copy)]
struct Kernel {
    function: usize,
    module: *mut sys::otr_drv_module,
    kernel: *mut sys::otr_drv_kernel,
}

impl Operator {
    /// The kernel for a host function.
    ///
    /// # Safety
    /// The driver that the operator is of is open.
    unsafe fn kernel(&self, next: &Next, function: KernelFn) -> std::result::Result<Kernel, i32> {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = kernels.iter().find(|one| one.function == function as usize) {
            return Ok(*known);
        }
        let (mut module, mut kernel) = (std::ptr::null_mut(), std::ptr::null_mut());
        let (format, none) = (sys::OTR_CODE_HOST_FUNCTION, std::ptr::null());
        // SAFETY: this function's contract; the function is a host kernel, and both outputs are writable.
        unsafe {
            let code = function as *const std::ffi::c_void;
            let loaded =
                next.module_load(self.driver, self.device, format, code, 0, none, &mut module);
            if loaded != Code::OK.0 {
                return Err(loaded);
            }
            let found = next.kernel_get(module, none, &mut kernel);
            if found != Code::OK.0 {
                next.module_unload(module);
                return Err(found);
            }
        }
        let made = Kernel {
            function: function as usize,
            module,
            kernel,
        };
        kernels.push(made);
        Ok(made)
    }
}

fn file_error(path: &str, error: &std::io::Error) -> Error {
    Error::new(Code::INVALID_ARGUMENT, format!("{path}: {error}"))
}

impl Library {
    fn new(offer: Option<&str>, only: Option<&str>, log: Option<&str>) -> Result<Self> {
        let names = |path: &str| {
            let list = std::fs::read_to_string(path).map_err(|error| file_error(path, &error))?;
            let names = list.lines().filter(|line| !line.is_empty());
            Ok(names
                .filter_map(|line| CString::new(line).ok())
                .collect::<Vec<_>>())
        };
        let mut texts = match only {
            Some(path) => names(path)?,
            None => OperatorId::all().map(|id| id.name().to_owned()).collect(),
        };
        texts.extend(offer.map(names).transpose()?.into_iter().flatten());
        let open = |path: &str| {
            let file = File::options().create(true).append(true).open(path);
            let file = file.map_err(|error| file_error(path, &error))?;
            let known = HashSet::new();
            Ok(Mutex::new(Log { file, known }))
        };
        let pointers = texts.iter().map(|text| text.as_ptr()).collect();
        Ok(Self {
            names: Names {
                pointers,
                _texts: texts,
            },
            log: log.map(open).transpose()?,
        })
    }

    fn note(&self, name: &CStr) {
        let Some(log) = &self.log else { return };
        let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
        if log.known.insert(name.to_owned()) {
            // A log that cannot be written is short, and the test that reads it fails.
            let _ = writeln!(log.file, "{}", name.to_string_lossy());
            let served = OperatorId::find(name).and_then(OperatorId::entry);
            for other in served.iter().flat_map(|entry| entry.serves) {
                let _ = writeln!(log.file, "{}", other.to_string_lossy());
            }
        }
    }
}

/// The plan of a call; of one that is only asked for, the addresses do not matter.
///
/// # Safety
/// `call` is as the contract has it (R10).
unsafe fn planned(call: *const sys::otr_operator_call, asked: bool) -> Option<(OperatorId, Plan)> {
    // SAFETY: this function's contract.
    let (call, inputs, outputs, scalars) = unsafe {
        let call = call.as_ref()?;
        let tensors = |first: *const sys::otr_tensor, count: u32| match count {
            0 => Some(&[][..]),
            _ if first.is_null() => None,
            count => Tensor::of_raw(std::slice::from_raw_parts(first, count as usize)),
        };
        let scalars: Vec<Scalar> = (0..call.scalar_count as usize)
            .map(|at| &*call.scalars.add(at))
            .map(|scalar| match scalar.dtype {
                sys::OTR_DTYPE_F64 => Scalar::F64(scalar.value.f64_),
                _ => Scalar::I64(scalar.value.i64_),
            })
            .collect();
        let inputs = tensors(call.inputs, call.input_count)?;
        (
            call,
            inputs,
            tensors(call.outputs, call.output_count)?,
            scalars,
        )
    };
    // SAFETY: this function's contract: a name, and a chain with at most one record, of this struct.
    let (name, args) = unsafe {
        let args = match call.next.cast::<sys::otr_operator_args>().as_ref() {
            Some(args) => {
                let values = std::slice::from_raw_parts(args.values, args.count as usize);
                Value::of_raw(values, call).ok()?
            }
            None => &[],
        };
        (CStr::from_ptr(call.name), args)
    };
    let id = OperatorId::find(name)?;
    // An address that suits every element type.
    fn moved<'a>(tensors: &[Tensor<'a>], asked: bool) -> Vec<Tensor<'a>> {
        let one = |tensor: &Tensor<'a>| if asked { tensor.at(1 << 20) } else { *tensor };
        tensors.iter().map(one).collect()
    }
    let (inputs, outputs) = (moved(inputs, asked), moved(outputs, asked));
    let call = Call {
        inputs: &inputs,
        outputs: &outputs,
        scalars: &scalars,
        args,
        device_only: false,
        whole: false,
    };
    Some((id, outrigger_ops::plan(id, &call).ok()?))
}

impl Layer for Library {
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
            if code == Code::OK.0 {
                // A chip: what host kernels do is not its work.
                (*properties).flags &= !sys::OTR_DEVICE_CPU;
            }
            code
        }
    }

    unsafe fn operator_names(
        &self,
        next: &Next,
        driver: *mut sys::otr_driver,
        device: u32,
        names: *mut *const *const c_char,
        count: *mut u32,
    ) -> i32 {
        // SAFETY: the caller's arguments. The driver below checks them.
        unsafe {
            let code = next.operator_names(driver, device, names, count);
            if code == Code::OK.0 {
                *names = self.names.pointers.as_ptr();
                *count = self.names.pointers.len() as u32;
            }
            code
        }
    }

    unsafe fn operator_prepare(
        &self,
        next: &Next,
        driver: *mut sys::otr_driver,
        device: u32,
        call: *const sys::otr_operator_call,
        answer: *mut sys::otr_operator_answer,
        operator: *mut *mut sys::otr_operator,
    ) -> i32 {
        let (mut names, mut count) = (std::ptr::null(), 0);
        // SAFETY: the caller's driver and device, which the driver below checks.
        let known = unsafe { next.operator_names(driver, device, &mut names, &mut count) };
        if known != Code::OK.0 {
            return known;
        }
        // SAFETY: R1: NULL, or structs of the sizes that stand in them.
        let whole = unsafe {
            call.as_ref()
                .is_some_and(|call| call.struct_size >= size_of_val(call) && !call.name.is_null())
                && answer
                    .as_ref()
                    .is_some_and(|answer| answer.struct_size >= size_of_val(answer))
        };
        if !whole || operator.is_null() {
            return fail(
                Code::INVALID_ARGUMENT,
                "call, answer or operator is NULL or cut off",
            );
        }
        // SAFETY: R10: NULL or a call, whose name is NULL or a text.
        unsafe {
            if let Some(call) = call.as_ref()
                && !call.name.is_null()
            {
                self.note(CStr::from_ptr(call.name));
            }
        }
        // SAFETY: as above.
        let listed = unsafe {
            let absent = |first: *const sys::otr_tensor, count: u32| count > 0 && first.is_null();
            !absent((*call).inputs, (*call).input_count)
                && !absent((*call).outputs, (*call).output_count)
        };
        if !listed {
            return fail(
                Code::INVALID_ARGUMENT,
                "inputs or outputs are NULL, and some are counted",
            );
        }
        // SAFETY: as above.
        let Some((id, plan)) = (unsafe { planned(call, true) }) else {
            return fail(Code::UNSUPPORTED, "there is no host kernel for this call");
        };
        let made = Operator {
            id,
            driver,
            device,
            kernels: Mutex::default(),
        };
        // SAFETY: the driver is open, as its answer above shows; `answer` and `operator` were checked.
        unsafe {
            if let Err(code) = made.kernel(next, plan.kernel) {
                return code;
            }
            (*answer).workspace_bytes = 0;
            *operator = Box::into_raw(Box::new(made)).cast();
        }
        Code::OK.0
    }

    unsafe fn operator_release(&self, next: &Next, operator: *mut sys::otr_operator) -> i32 {
        if operator.is_null() {
            return fail(Code::INVALID_HANDLE, "the operator is NULL");
        }
        // SAFETY: made by `operator_prepare`, and given back by the host after its last launch (R47).
        let operator = unsafe { Box::from_raw(operator.cast::<Operator>()) };
        let kernels = operator.kernels.into_inner();
        let kernels = kernels.unwrap_or_else(PoisonError::into_inner);
        // SAFETY: as above.
        let codes = kernels
            .iter()
            .map(|one| unsafe { next.module_unload(one.module) });
        codes.fold(
            Code::OK.0,
            |first, code| if first == Code::OK.0 { code } else { first },
        )
    }

    unsafe fn operator_launch(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        operator: *mut sys::otr_operator,
        call: *const sys::otr_operator_call,
        _workspace: u64,
    ) -> i32 {
        // SAFETY: NULL, or made by `operator_prepare` and not released.
        let Some(operator) = (unsafe { operator.cast::<Operator>().as_ref() }) else {
            return fail(Code::INVALID_HANDLE, "the operator is NULL");
        };
        // SAFETY: R46: a call of the operator's signature.
        let plan = unsafe { planned(call, false) };
        let Some((_, plan)) = plan.filter(|(id, _)| *id == operator.id) else {
            return fail(
                Code::INVALID_ARGUMENT,
                "the call is not of the operator's signature",
            );
        };
        // SAFETY: the operator was not released, so its driver is open.
        let kernel = match unsafe { operator.kernel(next, plan.kernel) } {
            Ok(kernel) => kernel.kernel,
            Err(code) => return code,
        };
        let args = plan.args();
        let launch = sys::otr_launch {
            struct_size: size_of::<sys::otr_launch>(),
            next: std::ptr::null(),
            grid: [1; 3],
            block: [1; 3],
            shared_bytes: 0,
            args_size: args.len() as u32,
            args: args.as_ptr().cast(),
            arguments: std::ptr::null(),
            argument_count: 0,
            cost_ns: plan.cost_ns,
            label: plan.label.as_ptr(),
        };
        // SAFETY: the kernel lives as long as the operator; R30: the block is copied during the call.
        unsafe { next.kernel_launch(queue, kernel, &launch) }
    }
}

fn below(options: &[(&str, &str)]) -> Result<RawDriver> {
    let words: Vec<_> = [("operators", "native")]
        .iter()
        .chain(options)
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let driver = Driver::open(&format!("host?{}", words.join("&")).parse()?)?;
    let used = |_| {
        Error::new(
            Code::INTERNAL,
            "a driver that was just opened is used elsewhere",
        )
    };
    driver.into_raw().map_err(used)
}

fn make(options: &str) -> Result<(RawDriver, Box<dyn Layer>)> {
    let (mut rest, mut offer, mut only, mut log) = (Vec::new(), None, None, None);
    for option in options.split(',').filter(|option| !option.is_empty()) {
        match option.split_once('=').unwrap_or((option, "")) {
            ("offer", path) => offer = Some(path),
            ("only", path) => only = Some(path),
            ("log", path) => log = Some(path),
            pair => rest.push(pair),
        }
    }
    Ok((below(&rest)?, Box::new(Library::new(offer, only, log)?)))
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
            .map(|raw| LayerTable::over(&raw, |_, below| below, open))
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
