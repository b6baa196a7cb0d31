//! The driver over the stand-in, and what tests see and break of the stand-in.

use std::ffi::{CString, c_int};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use outrigger_device::{Code, CopyKind, Driver, Error, Queue, sys};

/// The control of the stand-in, which is one for the process: tests run one at a time.
pub(crate) struct Bench {
    standin: Library,
    path: PathBuf,
}

fn target() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.parent().unwrap().parent().unwrap().to_owned()
}

/// The library of the driver, as Cargo built it for the tests.
pub(crate) fn driver_path() -> PathBuf {
    let name = "liboutrigger_cuda.so";
    let built = target().join("deps").join(name);
    if built.exists() {
        built
    } else {
        target().join(name)
    }
}

impl Bench {
    pub(crate) fn new() -> Self {
        let path = target().join("examples").join("libcuda_standin.so");
        // SAFETY: the stand-in has no initialisers.
        let standin = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) }.unwrap();
        let bench = Self { standin, path };
        bench.lose(0, 0);
        bench.lose(1, 0);
        bench.version(13000);
        bench.calls();
        bench.misuse();
        bench
    }

    /// Opens the driver over the stand-in, with another compiler if one is named.
    pub(crate) fn try_open(&self, nvrtc: Option<&str>) -> Result<Driver, Error> {
        let standin = self.path.to_str().unwrap();
        let nvrtc = nvrtc.unwrap_or(standin);
        let driver = driver_path();
        let spec = format!(
            "{}?libcuda={standin}&nvrtc={nvrtc}&cublaslt={standin}",
            driver.display()
        );
        Driver::open(&spec.parse().unwrap())
    }

    /// Opens the driver, with its devices.
    pub(crate) fn open(&self) -> Driver {
        let driver = self.try_open(None).unwrap();
        (0..driver.device_count()).for_each(|device| driver.open_device(device).unwrap());
        driver
    }

    fn text(&self, name: &str) -> Vec<String> {
        type Tell = unsafe extern "C" fn(*mut u8, usize) -> usize;
        let mut bytes = vec![0; 1 << 20];
        // SAFETY: the stand-in declares the function so, and there is room for as many bytes.
        let size = unsafe {
            let tell = self.standin.get::<Tell>(name.as_bytes()).unwrap();
            tell(bytes.as_mut_ptr(), bytes.len())
        };
        bytes.truncate(size);
        let text = String::from_utf8(bytes).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// The calls since the last time, without those that say which context is current.
    pub(crate) fn calls(&self) -> Vec<String> {
        let mut calls = self.text("standin_calls");
        calls.retain(|call| !call.starts_with("cuCtx"));
        calls
    }

    pub(crate) fn misuse(&self) -> Vec<String> {
        self.text("standin_misuse")
    }

    /// Lets a call of a function fail, after so many that do not.
    pub(crate) fn fail(&self, name: &str, after: u32, code: c_int) {
        type Fail = unsafe extern "C" fn(*const std::ffi::c_char, u32, c_int);
        let name = CString::new(name).unwrap();
        // SAFETY: the stand-in declares the function so.
        unsafe { self.standin.get::<Fail>(b"standin_fail").unwrap()(name.as_ptr(), after, code) };
    }

    fn number<A>(&self, name: &str, call: impl FnOnce(A))
    where
        A: Copy,
    {
        // SAFETY: the stand-in declares the functions as their callers here say.
        call(unsafe { *self.standin.get::<A>(name.as_bytes()).unwrap() });
    }

    pub(crate) fn lose(&self, device: u32, code: c_int) {
        self.number("standin_lose", |lose: extern "C" fn(u32, c_int)| {
            lose(device, code)
        });
    }

    pub(crate) fn version(&self, version: c_int) {
        self.number("standin_version", |set: extern "C" fn(c_int)| set(version));
    }

    /// A function of the stand-in.
    ///
    /// # Safety
    /// The stand-in declares it of this type.
    pub(crate) unsafe fn function<F: Copy>(&self, name: &str) -> F {
        // SAFETY: this function's contract.
        unsafe { *self.standin.get::<F>(name.as_bytes()).unwrap() }
    }

    /// The compute capability of the first device.
    pub(crate) fn capability(&self, capability: c_int) {
        self.number("standin_capability", |set: extern "C" fn(c_int)| {
            set(capability)
        });
    }

    /// The current context of this thread.
    pub(crate) fn current(&self) -> usize {
        let mut context = std::ptr::null_mut();
        type Tell = unsafe extern "C" fn(*mut *mut std::ffi::c_void) -> c_int;
        // SAFETY: CUDA declares the function so; a place for the context.
        unsafe { self.standin.get::<Tell>(b"cuCtxGetCurrent").unwrap()(&mut context) };
        context.addr()
    }

    /// The number of times that contexts are retained, of all devices together.
    pub(crate) fn retained(&self) -> u32 {
        let mut retained = 0;
        self.number("standin_retained", |tell: extern "C" fn() -> u32| {
            retained = tell()
        });
        retained
    }

    /// Ends a test: the driver is closed, and nothing was done that CUDA would not bear.
    pub(crate) fn finish(self, driver: Driver) {
        drop(driver);
        assert_eq!(self.misuse(), Vec::<String>::new());
        assert_eq!(self.retained(), 0, "contexts are given back");
    }
}

/// A host call that waits waits for this.
#[derive(Default)]
pub(crate) struct Gate(Mutex<bool>, Condvar);

impl Gate {
    pub(crate) fn open(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }

    pub(crate) fn wait(&self) {
        let mut open = self.0.lock().unwrap();
        while !*open {
            open = self.1.wait(open).unwrap();
        }
    }
}

/// Blocks a queue until the gate is opened.
pub(crate) fn block(queue: &Queue) -> Arc<Gate> {
    let gate = Arc::new(Gate::default());
    let own = gate.clone();
    queue.callback(move |_| own.wait()).unwrap();
    gate
}

/// Bytes of device memory, when all work before has finished.
pub(crate) fn read(queue: &Queue, address: u64, size: usize) -> Vec<u8> {
    let mut bytes = vec![0_u8; size];
    // SAFETY: as many bytes on both sides, which live until the queue has finished.
    unsafe {
        let to = bytes.as_mut_ptr() as u64;
        queue
            .copy(to, address, size as u64, CopyKind::DeviceToHost)
            .unwrap();
    }
    queue.synchronize().unwrap();
    bytes
}

/// Writes bytes to device memory, and waits for it.
pub(crate) fn write(queue: &Queue, address: u64, bytes: &[u8]) {
    // SAFETY: as for `read`.
    unsafe {
        let (from, size) = (bytes.as_ptr() as u64, bytes.len() as u64);
        queue
            .copy(address, from, size, CopyKind::HostToDevice)
            .unwrap();
    }
    queue.synchronize().unwrap();
}

/// Frees memory that no work uses.
pub(crate) fn free(driver: &Driver, address: u64) {
    // SAFETY: the tests wait for their queues first.
    unsafe { driver.memory_free(address) }.unwrap();
}

/// The code and the text of a refusal.
pub(crate) fn refusal<T>(result: Result<T, Error>) -> (Code, String) {
    match result {
        Ok(_) => panic!("it was not refused"),
        Err(error) => (error.code(), error.message().to_owned()),
    }
}

/// Some library that is no driver of NVIDIA's.
pub(crate) fn other_library() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let libc = maps
        .split_whitespace()
        .find(|word| word.contains("/libc.so"));
    Path::new(libc.unwrap()).to_owned()
}
