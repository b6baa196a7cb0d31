//! The layer `record`: writes each call when it begins and when it returns, the host memory of copies
//! when they run, and the outcomes of host calls.

use std::ffi::{CString, c_char, c_void};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use outrigger_device::{Code, Driver, Error, Result, sys};
use parking_lot::Mutex;

use super::format::{Record, Value, Writer};
use super::function::Place;
use super::hooks::Hooks;
use super::names::Names;
use super::output::{CALL, Shared};
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
    let shared = Arc::new(Shared::new(writer));
    Ok(Recorder {
        inner: Hooks::new(&shared),
        names: Mutex::new(Names::new(handle.addr())),
        shared,
        order: Mutex::default(),
    })
}

struct Recorder {
    shared: Arc<Shared>,
    names: Mutex<Names>,
    inner: Hooks,
    /// Held while work is handed to the driver, and by whoever begins a call: what is written behind a
    /// submission takes effect behind it.
    order: Mutex<()>,
}

/// The names that were forgotten before a call that destroys their object.
enum Gone {
    Nothing,
    Object(usize, u32),
    Memory(u64, (u64, u32)),
}

impl Recorder {
    /// Forgets the object or memory that the call gives back: its handle or address may be used again
    /// at once.
    fn forget(&self, entry: Entry, words: &[u64]) -> Gone {
        let mut names = self.names.lock();
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
            | Entry::comm_destroy
            | Entry::external_semaphore_destroy => object(words[0]),
            Entry::virtual_destroy => object(words[1]),
            Entry::memory_free
            | Entry::pinned_free
            | Entry::virtual_release
            | Entry::ipc_memory_close
            | Entry::external_memory_close => match names.remove_memory(words[1]) {
                Some(what) => Gone::Memory(words[1], what),
                None => Gone::Nothing,
            },
            _ => Gone::Nothing,
        }
    }

    fn restore(&self, gone: Gone) {
        let mut names = self.names.lock();
        match gone {
            Gone::Nothing => {}
            Gone::Object(handle, id) => names.restore_object(handle, id),
            Gone::Memory(address, what) => names.restore_memory(address, what),
        }
    }
}

/// The bytes of memory that a call makes.
fn made(entry: Entry, arguments: &[Value]) -> u64 {
    let size = match (entry, arguments) {
        (Entry::memory_alloc | Entry::virtual_reserve, [_, _, Value::List(params), ..]) => {
            params.first()
        }
        (Entry::pinned_alloc, [_, size, ..]) => Some(size),
        (Entry::external_memory_import, [_, _, Value::List(fd), ..]) => fd.last(),
        _ => None,
    };
    match size {
        Some(Value::Number(size)) => *size,
        _ => 0,
    }
}

/// Fills in the code of a module, of which other arguments say how long it is, and of what kind.
///
/// # Safety
/// The contract's rules for the arguments.
unsafe fn complete(entry: Entry, pointers: &[*const c_void], values: &mut [Value]) {
    if entry != Entry::module_load || values[3] == Value::Null {
        return;
    }
    let number = |value: &Value| match value {
        Value::Number(number) => *number,
        _ => 0,
    };
    let code = pointers[3];
    values[3] = if number(&values[2]) == u64::from(sys::OTR_CODE_HOST_FUNCTION) {
        match Place::of(code) {
            Some(place) => place.to_value(),
            None => Value::Pointer(code.addr() as u64),
        }
    } else {
        let size = u32::try_from(number(&values[4])).unwrap_or(0);
        // SAFETY: as many bytes as another argument says.
        Value::Bytes(unsafe { slice(code.cast::<u8>(), size) }.to_vec())
    };
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
    u32 u64 usize *const c_char *const sys::otr_ipc_handle *const sys::otr_device_params
    *const sys::otr_queue_params
    *const sys::otr_event_params *const sys::otr_memory_params *const sys::otr_reserve_params
    *const sys::otr_map_params *const sys::otr_copy *const sys::otr_fill
    *const sys::otr_host_call *const sys::otr_launch *const sys::otr_operator_call
    *const sys::otr_comm_params *const sys::otr_exchange *const sys::otr_fd
    *const sys::otr_semaphore_params
}

impl<T> Pointer for *mut T {}

impl Pointer for *const c_void {
    fn pointer(&self) -> *const c_void {
        *self
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
                        let names = self.names.lock();
                        // SAFETY: R10: each pointer is NULL, or valid during the call.
                        let values = unsafe {
                            let mut values = vec![
                                $first.input(&names, stringify!($first))
                                $(, $arg.input(&names, stringify!($arg)))*
                                $(, $out.input(&names, stringify!($out)))?
                            ];
                            let pointers = [$first.pointer() $(, $arg.pointer())*];
                            complete(entry, &pointers, &mut values);
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
                        let mut names = self.names.lock();
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
