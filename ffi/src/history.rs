//! Records of a device's memory over time: events, labels, contexts of allocations, traces.

use std::ffi::{CStr, c_char, c_void};
use std::path::Path;
use std::sync::Arc;

use outrigger_device::foreign_call;
use outrigger_hooks as hooks;
use outrigger_hooks::{Code, ContextSource, Error, Frame, HistoryOptions, Result};

use crate::OTR_HOST_MEMORY;
use crate::guard::{Out, sized, string, text, unused};

/// Frees are given a context as well, not only allocations.
pub const OTR_HISTORY_CONTEXT_OF_FREES: u32 = 1;

/// Takes one frame of a context. otr_context_frames_fn calls it, for the innermost frame first. `file`
/// and `name` are copied; NULL is "". `line` counts from 1; 0 if unknown.
pub type otr_frame_fn = Option<
    unsafe extern "C" fn(frames: *mut c_void, file: *const c_char, line: u32, name: *const c_char),
>;

/// Captures the place of the calling thread, as a number of the host's choice. 0 means nothing, and is
/// not released.
pub type otr_context_capture_fn = Option<unsafe extern "C" fn(user: *mut c_void) -> u64>;

/// Releases a context to which nothing refers any more. Called once for each that was captured, from
/// any thread.
pub type otr_context_release_fn = Option<unsafe extern "C" fn(user: *mut c_void, context: u64)>;

/// Lists the frames of a context: calls `frame(frames, ...)` for each.
pub type otr_context_frames_fn = Option<
    unsafe extern "C" fn(user: *mut c_void, context: u64, frame: otr_frame_fn, frames: *mut c_void),
>;

/// The settings of otr_memory_history_start. The functions are called outside of all locks of the runtime, from any
/// thread, until `release` was called for each captured context. They must not throw. Memory that `capture` itself
/// allocates has no context.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct otr_history_options_t {
    /// sizeof(otr_history_options_t)
    pub struct_size: usize,
    /// The most events that are kept, the latest ones. 0 keeps labels and contexts of live blocks only.
    pub entries: u64,
    /// OTR_HISTORY_CONTEXT_OF_FREES, or 0.
    pub flags: u32,
    /// 0
    pub reserved: u32,
    /// NULL: allocations have no context.
    pub capture: otr_context_capture_fn,
    /// NULL: contexts need not be released.
    pub release: otr_context_release_fn,
    /// NULL: snapshots have no frames.
    pub frames: otr_context_frames_fn,
    /// Passed to the functions.
    pub user: *mut c_void,
}

/// A host's functions and its pointer.
struct Source {
    capture: unsafe extern "C" fn(*mut c_void) -> u64,
    release: otr_context_release_fn,
    frames: otr_context_frames_fn,
    user: *mut c_void,
}

// SAFETY: `otr_history_options_t` documents that the functions are called with `user` from any thread.
unsafe impl Send for Source {}
// SAFETY: as above.
unsafe impl Sync for Source {}

impl ContextSource for Source {
    fn capture(&self) -> u64 {
        // SAFETY: the host lets this be called from any thread until all contexts are released.
        unsafe { foreign_call!(self.capture, self.user) }
    }

    fn release(&self, token: u64) {
        if let Some(release) = self.release {
            // SAFETY: as above; the token came from `capture`, and is released once.
            unsafe { foreign_call!(release, self.user, token) }
        }
    }

    fn frames(&self, token: u64, frame: &mut dyn FnMut(Frame<'_>)) {
        if let Some(frames) = self.frames {
            let mut frame = frame;
            let to = (&raw mut frame).cast::<c_void>();
            // SAFETY: as above; the token is not released yet. `take_frame` is called with `to` within
            // this call only, as the header says, while `frame` is borrowed by nobody else.
            unsafe { foreign_call!(frames, self.user, token, Some(take_frame), to) }
        }
    }
}

/// Passes a frame that the host tells on.
unsafe extern "C" fn take_frame(
    frames: *mut c_void,
    file: *const c_char,
    line: u32,
    name: *const c_char,
) {
    let lossy = |text: *const c_char| {
        if text.is_null() {
            return String::new();
        }
        // SAFETY: not NULL, so a NUL-terminated string (H7).
        let text = unsafe { CStr::from_ptr(text) };
        text.to_string_lossy().into_owned()
    };
    let (file, name) = (lossy(file), lossy(name));
    // SAFETY: the pointer that `Source::frames` passed, whose target is live and not used otherwise
    // during its call of the host.
    let frame = unsafe { &mut *frames.cast::<&mut dyn FnMut(Frame<'_>)>() };
    frame(Frame {
        file: &file,
        line,
        name: &name,
    });
}

/// The memory that a history is of.
enum Memory {
    Device(&'static hooks::Device),
    Host(&'static hooks::HostMemory),
}

impl Memory {
    fn of(device: u32) -> Result<Self> {
        if device == OTR_HOST_MEMORY {
            return hooks::host_memory().map(Self::Host);
        }
        hooks::runtime()?.device(device).map(Self::Device)
    }
}

fn checked(given: &otr_history_options_t) -> Result<HistoryOptions> {
    let unknown = given.flags & !OTR_HISTORY_CONTEXT_OF_FREES;
    if unknown != 0 {
        return Err(Error::new(
            Code::INVALID_ARGUMENT,
            format!("options->flags has unknown bits {unknown:#x}"),
        ));
    }
    unused(std::ptr::null(), given.reserved, "options")?;
    let source = given.capture.map(|capture| {
        Arc::new(Source {
            capture,
            release: given.release,
            frames: given.frames,
            user: given.user,
        }) as Arc<dyn ContextSource>
    });
    Ok(HistoryOptions {
        entries: usize::try_from(given.entries).unwrap_or(usize::MAX),
        source,
        context_of_frees: given.flags & OTR_HISTORY_CONTEXT_OF_FREES != 0,
    })
}

api! {
    /// Keeps the events of the memory of a device, or of OTR_HOST_MEMORY, from now on, for
    /// otr_memory_snapshot. If they are kept already, the options change. Blocks that are live already
    /// have neither label nor context.
    fn otr_memory_history_start(device: u32, options: *const otr_history_options_t) {
        let memory = Memory::of(device)?;
        let options = checked(sized(options, "options")?)?;
        match memory {
            Memory::Device(device) => device.start_memory_history(options),
            Memory::Host(host) => host.start_memory_history(options),
        }
        Ok(())
    }

    /// Stops to keep events and forgets all that were kept. Their contexts are released.
    fn otr_memory_history_stop(device: u32) {
        match Memory::of(device)? {
            Memory::Device(device) => device.stop_memory_history(),
            Memory::Host(host) => host.stop_memory_history(),
        }
        Ok(())
    }

    /// Forgets the events that were kept so far, and continues.
    fn otr_memory_history_clear(device: u32) {
        match Memory::of(device)? {
            Memory::Device(device) => device.clear_memory_history(),
            Memory::Host(host) => host.clear_memory_history(),
        }
        Ok(())
    }

    /// Labels what the calling thread allocates on any device, until otr_memory_label_pop. Labels nest.
    /// They appear in snapshots, in otr_memory_pointer_info, and in the text of OTR_ERR_OUT_OF_MEMORY.
    /// The name is kept for the life of the process.
    fn otr_memory_label_push(label: *const c_char) {
        hooks::push_label(text(label, "label")?);
        Ok(())
    }

    /// Goes back to the label before the last otr_memory_label_push of the calling thread.
    fn otr_memory_label_pop() {
        hooks::pop_label()
    }

    /// The labels that hold most memory in use of a device, or of OTR_HOST_MEMORY: at most `count`, the
    /// largest first, as a JSON list of {"label", "bytes", "blocks"}. The label null stands for memory
    /// without a label. The list covers memory that was allocated since the first label, the start of
    /// the history, or the start of a trace. Free it with otr_string_free.
    fn otr_memory_holders(device: u32, count: u32, json: *mut *mut c_char) {
        let out = Out::new(json, "json")?;
        let count = count as usize;
        let holders = match Memory::of(device)? {
            Memory::Device(device) => device.top_holders(count),
            Memory::Host(host) => host.top_holders(count),
        };
        let holders: Vec<_> = holders
            .into_iter()
            .map(|holder| {
                serde_json::json!({
                    "label": holder.label.as_deref(),
                    "bytes": holder.bytes,
                    "blocks": holder.blocks,
                })
            })
            .collect();
        out.set(string(serde_json::Value::from(holders).to_string()));
        Ok(())
    }

    /// Writes all allocations and frees of a device to a file from now on, in the text format that
    /// `outrigger memory` reads. Memory that is live already is not in it. If a trace of the device is
    /// being written already, it ends. OTR_ERR_INVALID_ARGUMENT if the file cannot be written.
    fn otr_memory_trace_start(device: u32, path: *const c_char) {
        let path = text(path, "path")?;
        hooks::runtime()?.device(device)?.start_memory_trace(Path::new(path))
    }

    /// Ends the trace of a device, if one is being written. Call it before the process ends.
    /// OTR_ERR_INVALID_ARGUMENT if a part could not be written; the file ends before this part.
    fn otr_memory_trace_stop(device: u32) {
        hooks::runtime()?.device(device)?.stop_memory_trace()
    }

    /// Notes in the trace that a step begins, under this name. Waits for the device, because a trace
    /// says that the device is idle there.
    fn otr_memory_trace_mark(device: u32, label: *const c_char) {
        let label = text(label, "label")?;
        hooks::runtime()?.device(device)?.mark_memory_trace(label)
    }
}
