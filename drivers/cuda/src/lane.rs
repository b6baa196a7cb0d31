//! Streams as lanes of the kit: what puts a command into a stream of CUDA's.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::Arc;

use outrigger_contract as c;
use outrigger_driver_kit::origin::Origin;
use outrigger_driver_kit::queue::{self as kit, HostFn};
use outrigger_driver_kit::{Fault, Result, Sequence};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::body::{Body, Part};
use crate::calls::Calls;
use crate::clock::{Base, Raw};
use crate::commands::{Column, Copy, Fill, Way};
use crate::cuda;
use crate::device::Device;
use crate::driver::Open;
use crate::launch::{Function, Launch, Shape, launch_now};
use crate::product::{self, Product};
use crate::staging::Staging;

/// A stream of CUDA's.
pub(crate) struct Lane {
    pub(crate) open: Arc<Open>,
    pub(crate) device: u32,
    pub(crate) raw: cuda::Stream,
    /// Another library made the stream, and destroys it (R56).
    adopted: bool,
    /// Held to write while several calls of CUDA make up one command, and to read over a single one: commands that
    /// threads submit at the same time take effect one after the other (R16).
    turn: RwLock<()>,
    staging: Staging,
    calls: Arc<Option<Calls>>,
}

// SAFETY: CUDA's streams may be used by any thread.
unsafe impl Send for Lane {}
// SAFETY: as above.
unsafe impl Sync for Lane {}

/// A command is being put into a stream until this is dropped.
enum Turn<'a> {
    One(#[allow(dead_code, reason = "it is held")] RwLockReadGuard<'a, ()>),
    Several(#[allow(dead_code, reason = "it is held")] RwLockWriteGuard<'a, ()>),
}

/// A command that waits in a list.
pub(crate) enum Command {
    Copy(Copy),
    Fill(Fill),
    Launch(Box<Launch>),
    /// Parts of a graph, none of which is a host call.
    Parts(Arc<Body>, Range<usize>),
    Product(Arc<Product>, product::Launch),
}

/// A place in a stream: an event of CUDA's.
pub(crate) struct Marker {
    /// The base that the timestamp is counted from. It stands before the driver, which has to be there when it is
    /// dropped.
    base: Option<Arc<Base>>,
    open: Arc<Open>,
    device: u32,
    event: Raw,
    calls: Arc<Option<Calls>>,
}

impl Drop for Marker {
    fn drop(&mut self) {
        // Waits that were put into streams keep the point that they were for.
        self.open.free_events[self.device as usize].put(
            self.device(),
            self.event,
            self.base.is_some(),
        );
    }
}

impl Marker {
    fn device(&self) -> &Device {
        &self.open.devices[self.device as usize]
    }

    /// The time at which the place was reached, on the clock of the device.
    pub(crate) fn time(&self) -> Result<Option<u64>> {
        let _entered = self.device().enter()?;
        self.base
            .as_ref()
            .map_or(Ok(None), |base| base.time_of(self.device(), self.event))
    }
}

impl kit::Marker for Marker {
    fn is_done(&self) -> Result<bool> {
        let device = self.device();
        let _entered = device.enter()?;
        // SAFETY: a live event.
        let told = unsafe { (device.cuda.event_query)(self.event.0) };
        if told == cuda::ERROR_NOT_READY {
            return Ok(false);
        }
        let done = device.check(told, "cuEventQuery").map(|()| true);
        // The work is over when the last host call has returned.
        let called = |calls: &Calls| calls.settle(device);
        if self.calls.as_ref().as_ref().is_none_or(called) {
            done
        } else {
            Ok(false)
        }
    }

    fn wait(&self) -> Result {
        let device = self.device();
        let _entered = device.enter()?;
        // SAFETY: a live event.
        let told = unsafe { (device.cuda.event_synchronize)(self.event.0) };
        let done = device.check(told, "cuEventSynchronize");
        finish_calls(&self.calls, device);
        done
    }
}

impl kit::Lane for Lane {
    type Command = Command;
    type Marker = Marker;

    fn issue(&self, command: Command, _: Origin) -> Result {
        match command {
            Command::Copy(copy) => self.copy(copy),
            Command::Fill(fill) => self.fill(&fill),
            Command::Launch(launch) => {
                let device = self.device();
                let _entered = device.enter()?;
                let _turn = self.turn(false);
                launch.issue(device, self.raw)
            }
            Command::Product(product, launch) => self.product(&product, &launch),
            Command::Parts(body, parts) => self.parts(&body, parts),
        }
    }

    fn mark(&self, timed: bool) -> Result<Marker> {
        let device = self.device();
        let _entered = device.enter()?;
        let base = timed
            .then(|| self.open.clock(self.device)?.base(device))
            .transpose()?;
        let event = self.open.free_events[self.device as usize].take(device, timed)?;
        // From here on a failure gives the event back.
        let marker = Marker {
            open: Arc::clone(&self.open),
            device: self.device,
            event,
            base,
            calls: Arc::clone(&self.calls),
        };
        // SAFETY: a live event and a live stream of one context.
        let recorded = unsafe { (device.cuda.event_record)(event.0, self.raw) };
        device.check(recorded, "cuEventRecord")?;
        Ok(marker)
    }

    fn is_adopted(&self) -> bool {
        self.adopted
    }

    fn join(&self, marker: &Marker) -> Result<bool> {
        let device = self.device();
        let _entered = device.enter()?;
        // SAFETY: a live stream, and a live event of any device of the process.
        let waited = unsafe { (device.cuda.stream_wait)(self.raw, marker.event.0, 0) };
        device.check(waited, "cuStreamWaitEvent").map(|()| true)
    }

    fn flush(&self) -> Result {
        // Streams start by themselves.
        Ok(())
    }

    fn finish(&self) -> Result {
        let device = self.device();
        let _entered = device.enter()?;
        // SAFETY: a live stream.
        let finished = unsafe { (device.cuda.stream_synchronize)(self.raw) };
        let finished = device.check(finished, "cuStreamSynchronize");
        finish_calls(&self.calls, device);
        finished
    }
}

impl Lane {
    /// A stream with a priority that the device has.
    pub(crate) fn new(open: &Arc<Open>, index: u32, priority: c_int) -> Result<Self> {
        let device = open.device(index)?;
        let _entered = device.enter()?;
        let staging = Staging::new(device)?;
        match create(device, priority) {
            Ok(raw) => {
                let calls = Calls::new(device, raw, staging.word());
                Ok(Self::of(open, index, raw, staging, calls, false))
            }
            Err(fault) => {
                staging.free(device);
                Err(fault)
            }
        }
    }

    /// A lane over a stream that another library has made.
    ///
    /// # Safety
    /// R56: `raw` is a live stream.
    pub(crate) unsafe fn over(open: &Arc<Open>, index: u32, raw: cuda::Stream) -> Result<Self> {
        let device = open.device(index)?;
        let _entered = device.enter()?;
        let mut context = std::ptr::null_mut();
        // SAFETY: this function's contract, and a place for the context.
        let told = unsafe { (device.cuda.stream_context)(raw, &mut context) };
        device.check(told, "cuStreamGetCtx")?;
        if context != device.context() {
            return Err(Fault::new(
                c::OTR_ERR_INVALID_DEVICE,
                format!("the CUstream {raw:p} is not of the primary context of device {index}"),
            ));
        }
        let staging = Staging::new(device)?;
        // The first look at the word is no work of the queue, so that the stream may be gone before its turn comes (R56):
        // another one does it.
        let calls = create(device, 0).map(|own| {
            let calls = Calls::new(device, own, staging.word());
            // SAFETY: made above, and used by nobody else.
            unsafe {
                (device.cuda.stream_synchronize)(own);
                (device.cuda.stream_destroy)(own);
            }
            calls
        });
        match calls {
            Ok(calls) => Ok(Self::of(open, index, raw, staging, calls, true)),
            Err(fault) => {
                staging.free(device);
                Err(fault)
            }
        }
    }

    fn of(
        open: &Arc<Open>,
        index: u32,
        raw: cuda::Stream,
        staging: Staging,
        calls: Option<Calls>,
        adopted: bool,
    ) -> Self {
        open.devices[index as usize].live.lanes.begin();
        Self {
            open: Arc::clone(open),
            device: index,
            raw,
            adopted,
            calls: Arc::new(calls),
            staging,
            turn: RwLock::new(()),
        }
    }

    pub(crate) fn device(&self) -> &Device {
        &self.open.devices[self.device as usize]
    }

    /// The turn of a command, which takes several calls of CUDA or one.
    fn turn(&self, several: bool) -> Turn<'_> {
        if several {
            Turn::Several(self.turn.write())
        } else {
            Turn::One(self.turn.read())
        }
    }

    /// Calls a host function in the stream. It has no outcome (R27), so that nothing has to wait for it here. The answer
    /// is false if the stream cannot do that.
    pub(crate) fn host_call(&self, function: HostFn, user: *mut c_void) -> Result<bool> {
        let device = self.device();
        let _entered = device.enter()?;
        match &*self.calls {
            Some(calls) => calls.submit(device, self.raw, function, user),
            None => Ok(false),
        }
    }

    /// Puts a launch into the stream.
    ///
    /// # Safety
    /// That of `launch_now`, but for the stream.
    pub(crate) unsafe fn launch(
        &self,
        function: Function,
        shape: Shape,
        block: (*const u8, usize),
        offsets: Option<&[u32]>,
    ) -> Result {
        let device = self.device();
        let _entered = device.enter()?;
        let _turn = self.turn(false);
        // SAFETY: the stream lives; this function's contract.
        unsafe { launch_now(device, self.raw, function, shape, block, offsets) }
    }

    /// Puts parts of a graph into the stream. They are one command.
    pub(crate) fn parts(&self, body: &Body, parts: Range<usize>) -> Result {
        let device = self.device();
        let _entered = device.enter()?;
        let parts = &body.parts()[parts];
        let _turn = self.turn(!matches!(parts, [] | [Part::Nodes(_)]));
        let mut calls = Sequence::default();
        for part in parts {
            calls.next(match part {
                Part::Nodes(nodes) => nodes.launch(self.raw),
                Part::Copy(copy) => self.copy_in_turn(device, *copy),
                Part::Product(product, launch) => self.product_in_turn(device, product, launch),
                // The kit makes host calls.
                Part::HostCall(_) => continue,
            })?;
        }
        Ok(())
    }

    /// Puts a product of matrices into the stream.
    pub(crate) fn product(&self, product: &Product, launch: &product::Launch) -> Result {
        let device = self.device();
        let _entered = device.enter()?;
        let _turn = self.turn(product.is_several(launch));
        self.product_in_turn(device, product, launch)
    }

    fn product_in_turn(
        &self,
        device: &Device,
        product: &Product,
        launch: &product::Launch,
    ) -> Result {
        let handle = self.open.library.handle(device)?;
        product
            .issue(&handle, device, self.raw, launch)
            .map_err(|fault| {
                // cuBLASLt does not say that the context is lost, but CUDA does.
                // SAFETY: a live stream.
                let told = unsafe { (device.cuda.stream_query)(self.raw) };
                match device.check(told, "cuStreamQuery") {
                    Err(lost) if cuda::is_lost(told) && fault.is_begun() => lost.begun(),
                    Err(lost) if cuda::is_lost(told) => lost,
                    _ => fault,
                }
            })
    }

    pub(crate) fn copy(&self, copy: Copy) -> Result {
        let device = self.device();
        let _entered = device.enter()?;
        let staged = matches!(
            copy.way,
            Way::ToDevice { pinned: false } | Way::ToHost { pinned: false }
        );
        let _turn = self.turn(staged);
        self.copy_in_turn(device, copy)
    }

    /// Puts a copy into the stream. The context is entered, and it is the turn of the copy.
    fn copy_in_turn(&self, device: &Device, copy: Copy) -> Result {
        let Copy {
            way,
            dst,
            src,
            size,
        } = copy;
        let (cuda, bytes, stream) = (device.cuda, size as usize, self.raw);
        // SAFETY: R26, for all calls of this block: both ranges are live until the copy has finished, and do not overlap.
        unsafe {
            match way {
                Way::ToDevice { pinned: true } => {
                    let copied = (cuda.copy_to_device)(dst, src as *const c_void, bytes, stream);
                    device.check(copied, "cuMemcpyHtoDAsync")
                }
                Way::ToHost { pinned: true } => {
                    let copied = (cuda.copy_to_host)(dst as *mut c_void, src, bytes, stream);
                    device.check(copied, "cuMemcpyDtoHAsync")
                }
                Way::Within => {
                    let copied = (cuda.copy_within)(dst, src, bytes, stream);
                    device.check(copied, "cuMemcpyDtoDAsync")
                }
                Way::Peer { to, from } => {
                    let context = |index: u32| self.open.devices[index as usize].context();
                    let (to, from) = (context(to), context(from));
                    let copied = (cuda.copy_peer)(dst, to, src, from, bytes, stream);
                    device.check(copied, "cuMemcpyPeerAsync")
                }
                Way::ToDevice { pinned: false } => {
                    self.staging.to_device(device, stream, dst, src, size)
                }
                Way::ToHost { pinned: false } => {
                    self.staging.to_host(device, stream, dst, src, size)
                }
                Way::OnHost => self.staging.on_host(device, stream, dst, src, size),
            }
        }
    }

    pub(crate) fn fill(&self, fill: &Fill) -> Result {
        let device = self.device();
        let _entered = device.enter()?;
        let (cuda, stream) = (device.cuda, self.raw);
        let columns = fill.columns();
        let _turn = self.turn(columns.len() > 1);
        let mut calls = Sequence::default();
        for column in columns {
            let Column {
                dst,
                value,
                pitch,
                rows,
                ..
            } = column;
            // SAFETY: R12, for all calls of this block: the range is live until the fill has finished, and the words of
            // all rows lie in it.
            let filled = unsafe {
                match (column.word, column.is_dense()) {
                    (1, true) => (cuda.set_8)(dst, value as u8, rows, stream),
                    (2, true) => (cuda.set_16)(dst, value as u16, rows, stream),
                    (_, true) => (cuda.set_32)(dst, value, rows, stream),
                    (1, false) => (cuda.set_rows_8)(dst, pitch, value as u8, 1, rows, stream),
                    (2, false) => (cuda.set_rows_16)(dst, pitch, value as u16, 1, rows, stream),
                    (_, false) => (cuda.set_rows_32)(dst, pitch, value, 1, rows, stream),
                }
            };
            calls.next(device.check(filled, "cuMemset"))?;
        }
        Ok(())
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let device = self.device();
        let entered = device.enter();
        if entered.is_ok() && !self.adopted {
            // The kit drops a lane when its work has finished. What is no work may not have: the first look at the word.
            // SAFETY: a live stream.
            unsafe { (device.cuda.stream_synchronize)(self.raw) };
        }
        if let Some(calls) = &*self.calls {
            calls.close(device);
        }
        if entered.is_ok() {
            if !self.adopted {
                // SAFETY: made by `new`, and idle.
                unsafe { (device.cuda.stream_destroy)(self.raw) };
            }
            self.staging.free(device);
        }
        drop(entered);
        device.live.lanes.end();
    }
}

/// A stream of the device, whose context is entered.
fn create(device: &Device, priority: c_int) -> Result<cuda::Stream> {
    let mut raw = std::ptr::null_mut();
    // SAFETY: a place for the stream. The default stream orders itself against all others (R17), so that these must not
    // look at it.
    let made =
        unsafe { (device.cuda.stream_create)(&mut raw, cuda::STREAM_NON_BLOCKING, priority) };
    device.check(made, "cuStreamCreateWithPriority")?;
    Ok(raw)
}

/// Host calls that have no outcome have to be called all the same, also by a stream that is lost.
fn finish_calls(calls: &Option<Calls>, device: &Device) {
    if let Some(calls) = calls {
        calls.finish(device);
    }
}
