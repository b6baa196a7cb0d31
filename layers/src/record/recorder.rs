//! The layer `record`: writes each call when it begins and when it returns, the host memory of copies
//! when they run, and the outcomes of host calls.

use std::cell::Cell;
use std::ffi::{CString, c_char, c_void};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use outrigger_device::{Code, Driver, Error, Result, sys};
use parking_lot::Mutex;

use super::format::{PIECE, Record, Value, Writer};
use super::function::Place;
use super::names::Names;
use super::values::{Argument, slice};
use crate::entries::entries;
use crate::{Entry, Layer, Next};

/// The layer that records a driver into a new file. An old file is replaced.
///
/// # Errors
/// `INVALID_ARGUMENT` if the file cannot be made.
pub fn record(path: &Path, driver: &Driver) -> Result<impl Layer + use<>> {
    let refuse = |error: std::io::Error| {
        Error::new(
            Code::INVALID_ARGUMENT,
            format!(
                "the recording {} cannot be written: {error}",
                path.display()
            ),
        )
    };
    let mut writer = Writer::new(File::create(path).map_err(refuse)?).map_err(refuse)?;
    let visible = |device| driver.properties(device).map(|p| p.host_visible());
    writer
        .write(&Record::Header {
            driver: driver.name().to_owned(),
            version: driver.version().to_owned(),
            visible: (0..driver.device_count())
                .map(visible)
                .collect::<Result<_>>()?,
        })
        .map_err(refuse)?;
    let (_, handle) = driver.raw();
    let shared = Arc::new(Shared {
        file: Mutex::new(Output {
            writer: Some(writer),
            calls: 0,
        }),
        names: Mutex::new(Names::new(handle.addr())),
    });
    Ok(Recorder {
        inner: Hooks {
            shared: Arc::clone(&shared),
            recordings: AtomicUsize::new(0),
            kept: Mutex::default(),
        },
        shared,
        order: Mutex::default(),
    })
}

/// What work that runs later writes to as well.
struct Shared {
    file: Mutex<Output>,
    names: Mutex<Names>,
}

struct Output {
    /// `None` after a write that failed: later records would have no beginning.
    writer: Option<Writer<File>>,
    calls: u64,
}

impl Shared {
    fn write(&self, record: &Record) {
        self.file.lock().write(record);
    }

    /// Writes that a call begins, and gives its number.
    fn begin(&self, entry: Entry, arguments: Vec<Value>) -> u64 {
        let mut file = self.file.lock();
        let number = file.calls;
        file.calls += 1;
        file.write(&Record::Call {
            number,
            entry,
            arguments,
        });
        number
    }

    /// Writes memory in pieces.
    ///
    /// # Safety
    /// So many bytes can be read there.
    unsafe fn data(&self, number: u64, destination: bool, start: u64, size: u64) {
        // SAFETY: so many bytes can be read there.
        let bytes = unsafe {
            std::slice::from_raw_parts(
                std::ptr::with_exposed_provenance::<u8>(start as usize),
                size as usize,
            )
        };
        for (piece, bytes) in bytes.chunks(PIECE).enumerate() {
            self.write(&Record::Data {
                number,
                destination,
                offset: (piece * PIECE) as u64,
                bytes: bytes.to_vec(),
            });
        }
    }
}

impl Output {
    fn write(&mut self, record: &Record) {
        let Some(writer) = &mut self.writer else {
            return;
        };
        if let Err(error) = writer.write(record) {
            tracing::error!(target: "outrigger::record", %error, "the recording ends here");
            self.writer = None;
        }
    }
}

struct Recorder {
    shared: Arc<Shared>,
    inner: Hooks,
    /// Held while work is handed to the driver, and by whoever begins a call: what is written behind a
    /// submission takes effect behind it.
    order: Mutex<()>,
}

thread_local! {
    /// The number of the call that this thread is in.
    static CALL: Cell<u64> = const { Cell::new(0) };
}

/// What was forgotten before a call that destroys it.
enum Gone {
    Nothing,
    Object(usize, u32),
    Memory(u64, (u64, u32)),
}

impl Recorder {
    /// Forgets the object or memory that the call gives back: its handle or address may be used again
    /// at once.
    fn forget(&self, entry: Entry, words: &[u64]) -> Gone {
        let mut names = self.shared.names.lock();
        let mut object = |word: u64| match names.remove_object(word as usize) {
            Some(id) => Gone::Object(word as usize, id),
            None => Gone::Nothing,
        };
        match entry {
            Entry::queue_destroy
            | Entry::event_destroy
            | Entry::module_unload
            | Entry::operator_release
            | Entry::graph_destroy
            | Entry::comm_destroy => object(words[0]),
            Entry::virtual_destroy => object(words[1]),
            Entry::memory_free
            | Entry::pinned_free
            | Entry::virtual_release
            | Entry::ipc_memory_close => match names.remove_memory(words[1]) {
                Some(what) => Gone::Memory(words[1], what),
                None => Gone::Nothing,
            },
            _ => Gone::Nothing,
        }
    }

    fn restore(&self, gone: Gone) {
        let mut names = self.shared.names.lock();
        match gone {
            Gone::Nothing => {}
            Gone::Object(handle, id) => names.restore_object(handle, id),
            Gone::Memory(address, what) => names.restore_memory(address, what),
        }
    }
}

/// The bytes of memory that a call makes.
fn made(entry: Entry, arguments: &[Value]) -> u64 {
    let number = |at: usize| match arguments.get(at) {
        Some(Value::Number(number)) => *number,
        _ => 0,
    };
    match entry {
        Entry::memory_alloc | Entry::virtual_reserve => number(2),
        Entry::pinned_alloc => number(1),
        // Nobody says how large it is: up to where other memory begins.
        Entry::ipc_memory_import => u64::MAX,
        _ => 0,
    }
}

/// What an entry's arguments lead to, where it takes two of them to know.
///
/// # Safety
/// The contract's rules for the arguments.
unsafe fn complete(names: &Names, entry: Entry, pointers: &[*const c_void], values: &mut [Value]) {
    let number = |value: &Value| match value {
        Value::Number(number) => *number,
        _ => 0,
    };
    // SAFETY: as many bytes as another argument says.
    let bytes = |pointer: *const c_void, size: u64| unsafe {
        Value::Bytes(slice(pointer.cast::<u8>(), u32::try_from(size).unwrap_or(0)).to_vec())
    };
    match entry {
        Entry::fill if values[3] != Value::Null && number(&values[4]) <= 16 => {
            values[3] = bytes(pointers[3], number(&values[4]));
        }
        Entry::module_load if values[3] != Value::Null => {
            values[3] = if number(&values[2]) == u64::from(sys::OTR_CODE_HOST_FUNCTION) {
                match Place::of(pointers[3]) {
                    Some(place) => place.to_value(),
                    None => Value::Pointer(pointers[3].addr() as u64),
                }
            } else {
                bytes(pointers[3], number(&values[4]))
            };
        }
        Entry::virtual_map => {
            let count = u32::try_from(number(&values[3])).unwrap_or(0);
            // SAFETY: as many handles as are counted.
            let objects = unsafe { slice(pointers[2].cast::<*mut sys::otr_physical>(), count) };
            let objects = objects.iter().map(|object| names.object(object.addr()));
            values[2] = Value::List(objects.collect());
        }
        Entry::copy => {
            let (dst, src) = match number(&values[4]) as u32 {
                sys::OTR_COPY_HOST_TO_DEVICE => (false, true),
                sys::OTR_COPY_DEVICE_TO_HOST => (true, false),
                sys::OTR_COPY_HOST_TO_HOST => (true, true),
                _ => (false, false),
            };
            let size = number(&values[3]);
            for (at, host) in [(1, dst), (2, src)] {
                if host && values[at] != Value::Null {
                    values[at] = Value::Host(size);
                }
            }
        }
        _ => {}
    }
}

/// The pointer of an argument that is one.
trait Pointer {
    fn pointer(&self) -> *const c_void {
        std::ptr::null()
    }
}

macro_rules! no_pointers {
    ($($type:ty)*) => { $(impl Pointer for $type {})* };
}

no_pointers! {
    u32 u64 usize sys::otr_host_fn *const c_char *const sys::otr_ipc_handle
    *const sys::otr_queue_params *const sys::otr_launch *const sys::otr_operator_call
    *const sys::otr_comm_params *const sys::otr_exchange
}

impl<T> Pointer for *mut T {}

impl Pointer for *const c_void {
    fn pointer(&self) -> *const c_void {
        *self
    }
}

impl Pointer for *const *mut sys::otr_physical {
    fn pointer(&self) -> *const c_void {
        self.cast()
    }
}

macro_rules! recorded {
    ($($kind:ident $method:ident: $group:ident.$entry:ident($first:ident: $fty:ident
        $(, $arg:ident: $ty:ty)*) [$($out:ident: $oty:ident)?];)*) => {
        impl Layer for Recorder {
            fn error_text(&self, next: &Next) -> Option<CString> {
                self.inner.error_text(next)
            }

            $(
                unsafe fn $method(&self, next: &Next, $first: *mut sys::$fty $(, $arg: $ty)*
                    $(, $out: *mut *mut sys::$oty)?) -> i32 {
                    let entry = Entry::$method;
                    let words = [$first.word() $(, $arg.word())*];
                    let order = self.order.lock();
                    let (number, size) = {
                        let names = self.shared.names.lock();
                        // SAFETY: R10: each pointer is NULL, or valid during the call.
                        let values = unsafe {
                            let mut values = vec![
                                $first.input(&names, stringify!($first))
                                $(, $arg.input(&names, stringify!($arg)))*
                                $(, $out.input(&names, stringify!($out)))?
                            ];
                            let pointers = [$first.pointer() $(, $arg.pointer())*];
                            complete(&names, entry, &pointers, &mut values);
                            values
                        };
                        let size = made(entry, &values);
                        (self.shared.begin(entry, values), size)
                    };
                    let _order = entry.submits().then_some(order);
                    let gone = self.forget(entry, &words);
                    CALL.set(number);
                    // SAFETY: R7: the host's own arguments, handed on.
                    let code = unsafe {
                        self.inner.$method(next, $first $(, $arg)* $(, $out)?)
                    };
                    let mut outputs = Vec::new();
                    if code == Code::OK.0 {
                        let mut names = self.shared.names.lock();
                        // SAFETY: the call succeeded.
                        let written = unsafe {
                            [
                                $first.output(&mut names, stringify!($first), size)
                                $(, $arg.output(&mut names, stringify!($arg), size))*
                                $(, $out.output(&mut names, stringify!($out), size))?
                            ]
                        };
                        outputs.extend(written.into_iter().flatten());
                        if entry == Entry::kernel_get {
                            names.belongs(words[0] as usize, outputs.first());
                        }
                    } else {
                        self.restore(gone);
                    }
                    self.shared.write(&Record::Return { number, code, outputs });
                    code
                }
            )*
        }
    };
}

entries!(recorded);

/// Puts host calls around copies, and itself between the driver and the host's calls.
struct Hooks {
    shared: Arc<Shared>,
    /// How many graphs are being recorded.
    recordings: AtomicUsize,
    /// Hooks of work that is kept in a graph and may run again. They live until the driver is closed.
    kept: Mutex<Vec<Kept>>,
}

/// A host call of this layer.
struct Hook {
    shared: Arc<Shared>,
    number: u64,
    what: HookKind,
    once: bool,
}

/// A hook that the driver may call as long as it is open.
struct Kept(*mut Hook);

// SAFETY: a hook may be freed on any thread.
unsafe impl Send for Kept {}

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw`, and the driver, which is closed, calls it no more.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

enum HookKind {
    /// The host's own.
    Call(HostFn, *mut c_void, u32),
    /// The source of a copy, before it, or the destination, after it.
    Memory {
        start: u64,
        size: u64,
        destination: bool,
    },
}

type HostFn = unsafe extern "C" fn(*mut c_void, i32) -> i32;

// SAFETY: R27: a host call may run on any thread with its pointer.
unsafe impl Send for Hook {}
// SAFETY: as above; it is not changed.
unsafe impl Sync for Hook {}

/// # Safety
/// `user` is a [`Hook`], which is freed here if it runs once.
unsafe extern "C" fn run(user: *mut c_void, upstream: i32) -> i32 {
    let pointer = user.cast::<Hook>();
    // SAFETY: `user` is a live `Hook`.
    let hook = unsafe { &*pointer };
    let code = match hook.what {
        HookKind::Call(function, user, _) => {
            // SAFETY: the host's function and its data, which are called as the host asked for.
            let code = unsafe { function(user, upstream) };
            hook.shared.write(&Record::Ran {
                number: hook.number,
                upstream,
                code,
            });
            code
        }
        HookKind::Memory {
            start,
            size,
            destination,
        } => {
            if upstream == Code::OK.0 {
                // SAFETY: host memory of a copy, which the host leaves alone until it finished (R26).
                unsafe { hook.shared.data(hook.number, destination, start, size) };
            }
            upstream
        }
    };
    if hook.once {
        // SAFETY: made by `Box::into_raw`, and called once.
        drop(unsafe { Box::from_raw(pointer) });
    }
    code
}

impl Hooks {
    /// # Safety
    /// The queue is live, and what the hook names lives until it has run.
    unsafe fn submit(&self, next: &Next, queue: *mut sys::otr_queue, what: HookKind) -> i32 {
        let flags = match what {
            HookKind::Call(.., flags) => flags,
            HookKind::Memory { .. } => sys::OTR_HOST_CALL_CANNOT_FAIL,
        };
        let once = self.recordings.load(Ordering::Relaxed) == 0;
        let hook = Box::new(Hook {
            shared: Arc::clone(&self.shared),
            number: CALL.get(),
            what,
            once,
        });
        let pointer = Box::into_raw(hook);
        // SAFETY: `run` is called with it, once unless it is kept.
        let code = unsafe { next.host_call(queue, Some(run), pointer.cast(), flags) };
        if code != Code::OK.0 {
            // SAFETY: the driver did not take it (R4).
            drop(unsafe { Box::from_raw(pointer) });
        } else if !once {
            self.kept.lock().push(Kept(pointer));
        }
        code
    }
}

impl Layer for Hooks {
    unsafe fn host_call(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        function: sys::otr_host_fn,
        user: *mut c_void,
        flags: u32,
    ) -> i32 {
        let Some(function) = function else {
            // SAFETY: R27: the function is called exactly once, with what was given for it.
            return unsafe { next.host_call(queue, function, user, flags) };
        };
        // SAFETY: R27: the function is called exactly once, with what was given for it.
        unsafe { self.submit(next, queue, HookKind::Call(function, user, flags)) }
    }

    unsafe fn copy(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        dst: u64,
        src: u64,
        size: u64,
        kind: u32,
    ) -> i32 {
        let host =
            |address: u64, kinds: [u32; 2]| size > 0 && address != 0 && kinds.contains(&kind);
        let memory = |start, destination| HookKind::Memory {
            start,
            size,
            destination,
        };
        // SAFETY: R26: both ranges stay valid until the copy has finished; the hooks around it run
        // within this time.
        unsafe {
            if host(
                src,
                [sys::OTR_COPY_HOST_TO_DEVICE, sys::OTR_COPY_HOST_TO_HOST],
            ) {
                // Without its data the copy is recorded all the same.
                let _ = self.submit(next, queue, memory(src, false));
            }
            let code = next.copy(queue, dst, src, size, kind);
            if code == Code::OK.0
                && host(
                    dst,
                    [sys::OTR_COPY_DEVICE_TO_HOST, sys::OTR_COPY_HOST_TO_HOST],
                )
            {
                let _ = self.submit(next, queue, memory(dst, true));
            }
            code
        }
    }

    unsafe fn graph_record_begin(&self, next: &Next, queue: *mut sys::otr_queue) -> i32 {
        self.recordings.fetch_add(1, Ordering::Relaxed);
        // SAFETY: R7: the host's own arguments, handed on.
        let code = unsafe { next.graph_record_begin(queue) };
        if code != Code::OK.0 {
            self.recordings.fetch_sub(1, Ordering::Relaxed);
        }
        code
    }

    unsafe fn graph_record_end(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        graph: *mut *mut sys::otr_drv_graph,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on.
        let code = unsafe { next.graph_record_end(queue, graph) };
        // A recording that was given up otherwise leaves hooks kept longer than they must be.
        if code == Code::OK.0 {
            self.recordings.fetch_sub(1, Ordering::Relaxed);
        }
        code
    }
}
