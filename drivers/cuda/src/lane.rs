//! Streams as lanes of the kit: what puts a command into a stream of CUDA's.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use outrigger_driver_kit::Result;
use outrigger_driver_kit::queue::{self as kit, HostFn};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::calls::Calls;
use crate::clock::{Base, Raw};
use crate::cuda;
use crate::device::Device;
use crate::driver::Open;
use crate::launch::{Function, Launch, Shape, launch_now};
use crate::staging::Staging;

/// A stream of CUDA's.
pub(crate) struct Lane {
    pub(crate) open: Arc<Open>,
    pub(crate) device: u32,
    pub(crate) raw: cuda::Stream,
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
}

/// A copy; the addresses are of the sides that the way says.
#[derive(Clone, Copy)]
pub(crate) struct Copy {
    pub(crate) way: Way,
    pub(crate) dst: u64,
    pub(crate) src: u64,
    pub(crate) size: u64,
}

/// From where to where a copy goes.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    /// From host memory, which is pinned or not.
    ToDevice {
        pinned: bool,
    },
    ToHost {
        pinned: bool,
    },
    Within,
    /// Between two devices, by their numbers.
    Peer {
        to: u32,
        from: u32,
    },
    OnHost,
}

/// A fill, with a pattern of `length` bytes.
#[derive(Clone, Copy)]
pub(crate) struct Fill {
    pub(crate) dst: u64,
    pub(crate) size: u64,
    pub(crate) pattern: [u8; 16],
    pub(crate) length: u64,
}

/// A place in a stream: an event of CUDA's.
pub(crate) struct Marker {
    /// What its timestamp is counted from. It stands before the driver that it needs to be dropped.
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

    /// When it was reached, on the clock of the device.
    pub(crate) fn time(&self) -> Result<Option<u64>> {
        let _entered = self.device().enter()?;
        self.base
            .as_ref()
            .map_or(Ok(None), |base| base.time_of(self.event))
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
        // It is over when the last host call has returned.
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

    fn issue(&self, command: Command) -> Result {
        match command {
            Command::Copy(copy) => self.copy(copy),
            Command::Fill(fill) => self.fill(&fill),
            Command::Launch(launch) => {
                let device = self.device();
                let _entered = device.enter()?;
                let _turn = self.turn(false);
                launch.issue(device, self.raw)
            }
        }
    }

    fn mark(&self, timed: bool) -> Result<Marker> {
        let device = self.device();
        let _entered = device.enter()?;
        let clock = &self.open.clocks[self.device as usize];
        let base = timed.then(|| clock.base(device)).transpose()?;
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
        let mut raw = std::ptr::null_mut();
        // SAFETY: a place for the stream. The default stream orders itself against all others (R17), so that these
        // must not look at it.
        let made =
            unsafe { (device.cuda.stream_create)(&mut raw, cuda::STREAM_NON_BLOCKING, priority) };
        if let Err(fault) = device.check(made, "cuStreamCreateWithPriority") {
            staging.free(device);
            return Err(fault);
        }
        Ok(Self {
            open: Arc::clone(open),
            device: index,
            raw,
            calls: Arc::new(Calls::new(device, raw, staging.word())),
            staging,
            turn: RwLock::new(()),
        })
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

    pub(crate) fn copy(&self, copy: Copy) -> Result {
        let device = self.device();
        let _entered = device.enter()?;
        let Copy {
            way,
            dst,
            src,
            size,
        } = copy;
        let (cuda, bytes, stream) = (device.cuda, size as usize, self.raw);
        let staged = matches!(
            way,
            Way::ToDevice { pinned: false } | Way::ToHost { pinned: false }
        );
        let _turn = self.turn(staged);
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
                    let context = |index: u32| self.open.devices[index as usize].context;
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

    /// CUDA fills with words of 1, 2 and 4 bytes, aligned as such. Any other pattern is some columns of words, each of
    /// which is filled with a stride.
    pub(crate) fn fill(&self, fill: &Fill) -> Result {
        let device = self.device();
        let _entered = device.enter()?;
        let (cuda, stream) = (device.cuda, self.raw);
        let &Fill { dst, size, .. } = fill;
        let mut length = fill.length as usize;
        // The shortest pattern that repeats to the same bytes.
        while length > 1 && fill.pattern[..length / 2] == fill.pattern[length / 2..length] {
            length /= 2;
        }
        let word = (length as u64).min(4).min(1 << dst.trailing_zeros().min(2)) as usize;
        let rows = size as usize / length;
        let _turn = self.turn(word < length);
        for at in (0..length).step_by(word) {
            let place = dst + at as u64;
            let mut bytes = [0; 4];
            bytes[..word].copy_from_slice(&fill.pattern[at..at + word]);
            let value = u32::from_le_bytes(bytes);
            // SAFETY: R12, for all calls of this block: the range is live until the fill has finished, and the words of
            // all rows lie in it.
            let filled = unsafe {
                match (word, word == length) {
                    (1, true) => (cuda.set_8)(place, value as u8, rows, stream),
                    (2, true) => (cuda.set_16)(place, value as u16, rows, stream),
                    (_, true) => (cuda.set_32)(place, value, rows, stream),
                    (1, false) => (cuda.set_rows_8)(place, length, value as u8, 1, rows, stream),
                    (2, false) => (cuda.set_rows_16)(place, length, value as u16, 1, rows, stream),
                    (_, false) => (cuda.set_rows_32)(place, length, value, 1, rows, stream),
                }
            };
            device.check(filled, "cuMemset")?;
        }
        Ok(())
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let device = self.device();
        let entered = device.enter();
        if entered.is_ok() {
            // The kit drops a lane when its work has finished. What is no work may not have: the first look at the word.
            // SAFETY: a live stream.
            unsafe { (device.cuda.stream_synchronize)(self.raw) };
        }
        if let Some(calls) = &*self.calls {
            calls.close(device);
        }
        if entered.is_ok() {
            // SAFETY: made by `new`, and idle.
            unsafe { (device.cuda.stream_destroy)(self.raw) };
            self.staging.free(device);
        }
    }
}

/// What has no outcome has to have been called all the same, also by a stream that is lost.
fn finish_calls(calls: &Option<Calls>, device: &Device) {
    if let Some(calls) = calls {
        calls.finish(device);
    }
}
