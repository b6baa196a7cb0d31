//! The layer `trace`: a timeline of calls, queues and memory that opens in ui.perfetto.dev.
//!
//! Calls are on the tracks of their threads. A host call behind each command shows the work of the
//! queues, on any driver: a command begins where the one before it ended, or when it was submitted.
//! Commands of graphs are not shown one by one: a launch of a graph is one piece of work.

mod writer;

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use outrigger_device::{Code, Driver, Error, Result, params, sys};
use outrigger_trace::Track;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::entries::entries;
use crate::entry::MaybeHandle;
use crate::{Entry, Layer, Next};
use writer::Timeline;

/// The kind of all slices of this layer.
const KIND: &str = "driver";

/// The layer that writes the timeline of a driver into a new file. An old file is replaced.
///
/// # Errors
/// `INVALID_ARGUMENT` if the file cannot be made.
pub fn trace(path: &Path, driver: &Driver) -> Result<impl Layer + use<>> {
    let timeline = Timeline::new(path, driver.name(), driver.device_count()).map_err(|error| {
        Error::new(
            Code::INVALID_ARGUMENT,
            format!("the timeline {} cannot be written: {error}", path.display()),
        )
    })?;
    let timeline = Arc::new(timeline);
    Ok(Calls {
        timeline: Arc::clone(&timeline),
        work: Work {
            timeline,
            state: Mutex::default(),
            recordings: AtomicUsize::new(0),
        },
    })
}

/// Calls of the host, each as a slice of its thread.
struct Calls {
    timeline: Arc<Timeline>,
    work: Work,
}

thread_local! {
    /// The arrow that leads from the call of this thread to its work; 0 for none.
    static ARROW: Cell<u64> = const { Cell::new(0) };
}

macro_rules! traced {
    ($($kind:ident $method:ident: $group:ident.$entry:ident($first:ident: $fty:ident
        $(, $arg:ident: $ty:ty)*) [$($out:ident: $oty:ident)?];)*) => {
        impl Layer for Calls {
            fn error_text(&self, next: &Next) -> Option<CString> {
                self.work.error_text(next)
            }

            $(
                unsafe fn $method(&self, next: &Next, $first: *mut sys::$fty $(, $arg: $ty)*
                    $(, $out: *mut *mut sys::$oty)?) -> i32 {
                    let entry = Entry::$method;
                    ARROW.set(0);
                    let from = self.timeline.now();
                    // SAFETY: R7: the host's own arguments, handed on.
                    let code = unsafe {
                        self.work.$method(next, $first $(, $arg)* $(, $out)?)
                    };
                    let to = self.timeline.now();
                    let track = self.timeline.this_thread();
                    let places = [$first.outcome() $(, $arg.outcome())*];
                    // SAFETY: where the call succeeded, the place for an outcome was written.
                    let args = unsafe { told(code, &places) };
                    self.timeline.write(&outrigger_trace::slice(track, KIND, entry.name(), (from, to), &args));
                    if ARROW.get() != 0 && code == Code::OK.0 {
                        let arrow = outrigger_trace::arrow_from(track, "submit", ARROW.get(), from);
                        self.timeline.write(&arrow);
                    }
                    code
                }
            )*
        }
    };
}

entries!(traced);

/// The text that a slice has for a call: its code or an outcome, unless that is no news.
///
/// # Safety
/// The call with this code has written its outcome, if it has a place for one.
unsafe fn told(code: i32, places: &[*mut sys::otr_outcome]) -> Value {
    if code != Code::OK.0 {
        return json!({"code": Code(code).name()});
    }
    let place = places.iter().find(|place| !place.is_null());
    // SAFETY: this function's contract.
    match place.map(|place| Code(unsafe { (**place).code })) {
        None | Some(Code::OK) => json!({}),
        Some(outcome) => json!({"outcome": outcome.name()}),
    }
}

/// Work of queues, and memory.
struct Work {
    timeline: Arc<Timeline>,
    state: Mutex<State>,
    /// The number of graphs that are being recorded: what is submitted meanwhile may be kept instead of
    /// run.
    recordings: AtomicUsize,
}

#[derive(Default)]
struct State {
    queues: HashMap<usize, Arc<QueueTrack>>,
    /// Of each event its number, and the arrow from its last record.
    events: HashMap<usize, (u32, u64)>,
    numbers: u32,
    /// Size and device of memory, by address or handle.
    memory: HashMap<u64, (u64, u32)>,
    used: HashMap<u32, u64>,
}

struct QueueTrack {
    track: Track,
    /// The time at which the last command of the queue ended.
    last: Mutex<u64>,
}

/// A host call behind a command, or around one of the host.
struct Marker {
    timeline: Arc<Timeline>,
    queue: Arc<QueueTrack>,
    name: String,
    args: Value,
    submitted: u64,
    /// The arrow from the call.
    arrow: u64,
    event: EventArrow,
    host: Option<(
        unsafe extern "C" fn(*mut c_void, i32) -> i32,
        *mut c_void,
        u32,
    )>,
}

enum EventArrow {
    None,
    From(u64),
    To(u64),
}

/// # Safety
/// `user` is a boxed [`Marker`], which is used up.
unsafe extern "C" fn mark(user: *mut c_void, upstream: i32) -> i32 {
    // SAFETY: `user` is a boxed `Marker`, which is used up here.
    let marker = *unsafe { Box::from_raw(user.cast::<Marker>()) };
    let timeline = &marker.timeline;
    let (code, from) = match marker.host {
        Some((function, user, _)) => {
            let from = timeline.now();
            // SAFETY: the host's function and its data, as the host asked for.
            (unsafe { function(user, upstream) }, Some(from))
        }
        None => (upstream, None),
    };
    let to = timeline.now();
    let from = {
        let mut last = marker.queue.last.lock();
        let from = from.unwrap_or_else(|| (*last).max(marker.submitted));
        *last = to;
        from
    };
    let mut args = marker.args;
    if code != Code::OK.0 {
        args["failure"] = Code(code).name().into();
    }
    let track = marker.queue.track;
    timeline.write(&outrigger_trace::slice(
        track,
        KIND,
        &marker.name,
        (from, to),
        &args,
    ));
    timeline.write(&outrigger_trace::arrow_to(
        track,
        "submit",
        marker.arrow,
        from,
    ));
    // A reader that cuts fractions off may have the slice begin a nanosecond early and be two shorter, and its end is
    // no part of it.
    let end = to.saturating_sub(4).max(from);
    match marker.event {
        EventArrow::None => {}
        EventArrow::From(arrow) => {
            timeline.write(&outrigger_trace::arrow_from(track, "event", arrow, end))
        }
        EventArrow::To(arrow) => {
            timeline.write(&outrigger_trace::arrow_to(track, "event", arrow, end))
        }
    }
    code
}

impl Work {
    fn marker(&self, queue: *mut sys::otr_queue, name: String, args: Value) -> Option<Marker> {
        if self.recordings.load(Ordering::Relaxed) != 0 {
            return None;
        }
        let queue = Arc::clone(self.state.lock().queues.get(&queue.addr())?);
        Some(Marker {
            timeline: Arc::clone(&self.timeline),
            queue,
            name,
            args,
            submitted: self.timeline.now(),
            arrow: self.timeline.flow(),
            event: EventArrow::None,
            host: None,
        })
    }

    /// Puts a marker into its queue. A command without one is only missing in the timeline.
    ///
    /// # Safety
    /// The queue is live.
    unsafe fn submit(&self, next: &Next, queue: *mut sys::otr_queue, marker: Marker) -> i32 {
        ARROW.set(marker.arrow);
        // A marker of the layer's own answers what it is called with.
        let flags = match &marker.host {
            Some((.., flags)) => *flags,
            None => sys::OTR_HOST_CALL_CANNOT_FAIL,
        };
        let pointer = Box::into_raw(Box::new(marker));
        // SAFETY: the marker is used up by its one call.
        let code =
            unsafe { next.host_call(queue, &params::host_call(Some(mark), pointer.cast(), flags)) };
        if code != Code::OK.0 {
            ARROW.set(0);
            // SAFETY: the driver did not take it (R4).
            drop(unsafe { Box::from_raw(pointer) });
        }
        code
    }

    /// A command, and the marker behind it.
    ///
    /// # Safety
    /// The queue is live.
    unsafe fn command(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        marker: Option<Marker>,
        command: impl FnOnce() -> i32,
    ) -> i32 {
        let code = command();
        if let (Code::OK, Some(marker)) = (Code(code), marker) {
            // SAFETY: the queue is live.
            let _ = unsafe { self.submit(next, queue, marker) };
        }
        code
    }

    /// A command of a communicator.
    ///
    /// # Safety
    /// The queue is live.
    unsafe fn with_ranks(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        name: &str,
        _addresses: &[u64],
        command: impl FnOnce() -> i32,
    ) -> i32 {
        let marker = self.marker(queue, name.to_owned(), json!({}));
        // SAFETY: the queue is live.
        unsafe { self.command(next, queue, marker, command) }
    }

    fn memory(&self, key: u64, change: Option<(u64, u32)>) {
        let mut state = self.state.lock();
        let (size, device) = match change {
            Some(made) => {
                state.memory.insert(key, made);
                made
            }
            None => match state.memory.remove(&key) {
                Some(gone) => gone,
                None => return,
            },
        };
        let used = state.used.entry(device).or_insert(0);
        *used = match change {
            Some(_) => *used + size,
            None => used.saturating_sub(size),
        };
        let used = *used;
        drop(state);
        self.timeline.counter(device, "memory", used);
    }

    /// Gives a new queue a track of its own.
    fn add_queue(&self, device: u32, handle: usize) {
        let mut state = self.state.lock();
        state.numbers += 1;
        let track = Track {
            thread: self.timeline.thread(),
            process: Timeline::device(device),
        };
        let known = QueueTrack {
            track,
            last: Mutex::new(0),
        };
        state.queues.insert(handle, Arc::new(known));
        let name = format!("queue {}", state.numbers);
        drop(state);
        self.timeline.name_thread(track, &name);
    }
}

/// The kind of a copy, and how many bytes it moves.
///
/// # Safety
/// NULL, or readable.
unsafe fn copied(copy: *const sys::otr_copy) -> (u32, u64) {
    // SAFETY: this function's contract.
    unsafe { copy.as_ref() }.map_or((0, 0), |copy| {
        (copy.kind, copy.size.saturating_mul(copy.rows.max(1).into()))
    })
}

impl Layer for Work {
    unsafe fn native_adopt(
        &self,
        next: &Next,
        driver: *mut sys::otr_driver,
        device: u32,
        native: u64,
        queue: *mut *mut sys::otr_queue,
    ) -> i32 {
        // SAFETY: R7, R56: the host's own arguments, handed on; the output is written on success.
        unsafe {
            let code = next.native_adopt(driver, device, native, queue);
            if let (Code::OK, Some(handle)) = (Code(code), queue.as_ref()) {
                self.add_queue(device, handle.addr());
            }
            code
        }
    }

    unsafe fn queue_create(
        &self,
        next: &Next,
        driver: *mut sys::otr_driver,
        device: u32,
        params: *const sys::otr_queue_params,
        queue: *mut *mut sys::otr_queue,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on; the output is written on success.
        unsafe {
            let code = next.queue_create(driver, device, params, queue);
            if let (Code::OK, Some(handle)) = (Code(code), queue.as_ref()) {
                self.add_queue(device, handle.addr());
            }
            code
        }
    }

    unsafe fn queue_destroy(&self, next: &Next, queue: *mut sys::otr_queue) -> i32 {
        let known = self.state.lock().queues.remove(&queue.addr());
        // SAFETY: R8: the host destroys what no other call uses; the call is handed on.
        let code = unsafe { next.queue_destroy(queue) };
        if let (true, Some(known)) = (code != Code::OK.0, known) {
            self.state.lock().queues.insert(queue.addr(), known);
        }
        code
    }

    unsafe fn copy(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        copy: *const sys::otr_copy,
    ) -> i32 {
        // SAFETY: R10: NULL, or a struct that is valid during the call.
        let (kind, size) = unsafe { copied(copy) };
        let name = match kind {
            sys::OTR_COPY_HOST_TO_DEVICE => "copy host to device",
            sys::OTR_COPY_DEVICE_TO_HOST => "copy device to host",
            sys::OTR_COPY_DEVICE_TO_DEVICE => "copy",
            _ => "copy host to host",
        };
        let marker = self.marker(queue, name.to_owned(), json!({"bytes": size}));
        // SAFETY: R26: both ranges stay valid until the copy has finished.
        unsafe { self.command(next, queue, marker, || next.copy(queue, copy)) }
    }

    unsafe fn fill(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        fill: *const sys::otr_fill,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on. R10: NULL, or a struct that is valid during the call.
        unsafe {
            let size = fill.as_ref().map_or(0, |fill| fill.size);
            let marker = self.marker(queue, "fill".to_owned(), json!({"bytes": size}));
            self.command(next, queue, marker, || next.fill(queue, fill))
        }
    }

    unsafe fn peer_copy(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        copy: *const sys::otr_copy,
    ) -> i32 {
        // SAFETY: R26: both ranges stay valid until the copy has finished. R10: NULL, or a struct that is valid during the
        // call.
        unsafe {
            let (_, size) = copied(copy);
            let args = copy.as_ref().map_or(
                json!({}),
                |copy| json!({"bytes": size, "from": copy.src_device, "to": copy.dst_device}),
            );
            let marker = self.marker(queue, "copy between devices".to_owned(), args);
            self.command(next, queue, marker, || next.peer_copy(queue, copy))
        }
    }

    unsafe fn host_call(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        host_call: *const sys::otr_host_call,
    ) -> i32 {
        let marker = self.marker(queue, "host call".to_owned(), json!({}));
        // SAFETY: R27: the function is called exactly once, by the marker or by the driver below.
        unsafe {
            let call = host_call.as_ref();
            let call = call.and_then(|call| Some((call.function?, call.user, call.flags)));
            match (marker, call) {
                (Some(mut marker), Some(call)) => {
                    marker.host = Some(call);
                    self.submit(next, queue, marker)
                }
                _ => next.host_call(queue, host_call),
            }
        }
    }

    unsafe fn kernel_launch(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        kernel: *mut sys::otr_drv_kernel,
        launch: *const sys::otr_launch,
    ) -> i32 {
        // SAFETY: NULL or the struct, whose label is NULL or a string.
        let name = unsafe {
            match launch.as_ref() {
                Some(launch) if !launch.label.is_null() => {
                    CStr::from_ptr(launch.label).to_string_lossy().into_owned()
                }
                _ => "kernel".to_owned(),
            }
        };
        // SAFETY: R10: NULL, or a struct that is valid during the call.
        unsafe {
            let args = launch.as_ref().map_or(json!({}), |launch| {
                json!({"grid": launch.grid, "block": launch.block, "argument bytes": launch.args_size})
            });
            let marker = self.marker(queue, name, args);
            self.command(next, queue, marker, || {
                next.kernel_launch(queue, kernel, launch)
            })
        }
    }

    unsafe fn operator_launch(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        operator: *mut sys::otr_operator,
        call: *const sys::otr_operator_call,
        workspace: u64,
    ) -> i32 {
        // SAFETY: NULL or the struct, whose name is a string.
        let name = unsafe {
            match call.as_ref() {
                Some(call) if !call.name.is_null() => {
                    CStr::from_ptr(call.name).to_string_lossy().into_owned()
                }
                _ => "operator".to_owned(),
            }
        };
        let marker = self.marker(queue, name, json!({}));
        // SAFETY: R7: the operands are the host's to keep live; the call is handed on.
        unsafe {
            self.command(next, queue, marker, || {
                next.operator_launch(queue, operator, call, workspace)
            })
        }
    }

    crate::collective::commands! {}

    unsafe fn external_signal(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        semaphore: *mut sys::otr_drv_semaphore,
        value: u64,
    ) -> i32 {
        let marker = self.marker(queue, "signal".to_owned(), json!({ "value": value }));
        // SAFETY: the queue is live; the call is handed on.
        unsafe {
            self.command(next, queue, marker, || {
                next.external_signal(queue, semaphore, value)
            })
        }
    }

    unsafe fn external_wait(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        semaphore: *mut sys::otr_drv_semaphore,
        value: u64,
    ) -> i32 {
        let marker = self.marker(queue, "wait".to_owned(), json!({ "value": value }));
        // SAFETY: the queue is live; the call is handed on.
        unsafe {
            self.command(next, queue, marker, || {
                next.external_wait(queue, semaphore, value)
            })
        }
    }

    unsafe fn graph_launch(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        graph: *mut sys::otr_drv_graph,
    ) -> i32 {
        let marker = self.marker(queue, "graph".to_owned(), json!({}));
        // SAFETY: R31: the host keeps what the commands name valid; the call is handed on.
        unsafe { self.command(next, queue, marker, || next.graph_launch(queue, graph)) }
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
        if code == Code::OK.0 {
            self.recordings.fetch_sub(1, Ordering::Relaxed);
        }
        code
    }

    unsafe fn event_create(
        &self,
        next: &Next,
        driver: *mut sys::otr_driver,
        device: u32,
        params: *const sys::otr_event_params,
        event: *mut *mut sys::otr_drv_event,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on; the output is written on success.
        unsafe {
            let code = next.event_create(driver, device, params, event);
            if let (Code::OK, Some(handle)) = (Code(code), event.as_ref()) {
                let mut state = self.state.lock();
                state.numbers += 1;
                let number = state.numbers;
                state.events.insert(handle.addr(), (number, 0));
            }
            code
        }
    }

    unsafe fn event_record(
        &self,
        next: &Next,
        event: *mut sys::otr_drv_event,
        queue: *mut sys::otr_queue,
    ) -> i32 {
        let number = self
            .state
            .lock()
            .events
            .get(&event.addr())
            .map(|(number, _)| *number);
        let name = format!("record event {}", number.unwrap_or(0));
        let mut marker = self.marker(queue, name, json!({}));
        let arrow = self.timeline.flow();
        // In front of the event: who waits for it begins after it.
        if let Some(mut marker) = marker.take() {
            marker.event = EventArrow::From(arrow);
            // SAFETY: R7: the host's own arguments, handed on.
            let _ = unsafe { self.submit(next, queue, marker) };
        }
        // SAFETY: R7: the host's own arguments, handed on.
        let code = unsafe { next.event_record(event, queue) };
        if let (Code::OK, Some(known)) =
            (Code(code), self.state.lock().events.get_mut(&event.addr()))
        {
            known.1 = arrow;
        }
        code
    }

    unsafe fn queue_wait_event(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        event: *mut sys::otr_drv_event,
    ) -> i32 {
        let known = self.state.lock().events.get(&event.addr()).copied();
        let (number, arrow) = known.unwrap_or((0, 0));
        let mut marker = self.marker(queue, format!("wait for event {number}"), json!({}));
        if let Some(marker) = &mut marker
            && arrow != 0
        {
            marker.event = EventArrow::To(arrow);
        }
        // SAFETY: R7: the host's own arguments, handed on.
        unsafe { self.command(next, queue, marker, || next.queue_wait_event(queue, event)) }
    }

    unsafe fn memory_alloc(
        &self,
        next: &Next,
        driver: *mut sys::otr_driver,
        device: u32,
        params: *const sys::otr_memory_params,
        address: *mut u64,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on; the output is written on success.
        unsafe {
            let code = next.memory_alloc(driver, device, params, address);
            if let (Code::OK, Some(address), Some(params)) =
                (Code(code), address.as_ref(), params.as_ref())
            {
                self.memory(*address, Some((params.size, device)));
            }
            code
        }
    }

    unsafe fn memory_free(&self, next: &Next, driver: *mut sys::otr_driver, address: u64) -> i32 {
        // SAFETY: R12: the host frees memory only after its work; the call is handed on.
        let code = unsafe { next.memory_free(driver, address) };
        if code == Code::OK.0 {
            self.memory(address, None);
        }
        code
    }

    unsafe fn virtual_create(
        &self,
        next: &Next,
        driver: *mut sys::otr_driver,
        device: u32,
        params: *const sys::otr_memory_params,
        physical: *mut *mut sys::otr_physical,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on; the output is written on success.
        unsafe {
            let code = next.virtual_create(driver, device, params, physical);
            if let (Code::OK, Some(handle), Some(params)) =
                (Code(code), physical.as_ref(), params.as_ref())
            {
                self.memory(handle.addr() as u64, Some((params.size, device)));
            }
            code
        }
    }

    unsafe fn virtual_destroy(
        &self,
        next: &Next,
        driver: *mut sys::otr_driver,
        physical: *mut sys::otr_physical,
    ) -> i32 {
        // SAFETY: R8: the host destroys what no other call uses; the call is handed on.
        let code = unsafe { next.virtual_destroy(driver, physical) };
        if code == Code::OK.0 {
            self.memory(physical.addr() as u64, None);
        }
        code
    }
}
