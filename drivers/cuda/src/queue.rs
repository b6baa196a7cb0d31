//! Queues: the entries that make them and put commands into them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use outrigger_contract as c;
use outrigger_driver_kit::given::{self, Out, null};
use outrigger_driver_kit::handle::{self, Object};
use outrigger_driver_kit::origin::Label;
use outrigger_driver_kit::queue::{self as kit, HostCall};
use outrigger_driver_kit::recording::Recorder;
use outrigger_driver_kit::{Fault, Progress, Result, field};

use crate::body::{Leaf, Recorded};
use crate::commands::{Copy, Fill, Way};
use crate::cuda;
use crate::driver::{Open, get as get_driver, reaches};
use crate::lane::{Command, Lane};

/// The handle of a queue.
pub(crate) struct Queue {
    pub(crate) open: Arc<Open>,
    pub(crate) device: u32,
    pub(crate) ordered: Arc<kit::Queue<Lane>>,
    pub(crate) recorder: Arc<Recorder<Recorded>>,
}

impl Queue {
    /// A queue of the host's over a lane.
    fn over(lane: Lane) -> Self {
        let open = Arc::clone(&lane.open);
        let device = lane.device;
        let live = &lane.device().live;
        live.queues.fetch_add(1, Ordering::Relaxed);
        Self {
            ordered: kit::Queue::new(lane, &open.pool),
            recorder: Recorder::new(device),
            open,
            device,
        }
    }

    /// Keeps a command, if the queue records.
    #[inline]
    pub(crate) fn keeps(&self, command: impl FnOnce() -> Result<Recorded>) -> Result<bool> {
        if !self.recorder.is_active() {
            return Ok(false);
        }
        // If another thread has ended the recording meanwhile, the command is one as any other.
        Ok(self.recorder.keep(command()?).is_ok())
    }
}

impl Object for Queue {
    type Raw = c::otr_queue;
    const KIND: u64 = 0x6375_6461_7175_6575;
    const NAME: &'static str = "the queue";
}

/// The queue behind a handle.
///
/// # Safety
/// R8: the handle is NULL, or one of this driver's that no other call destroys.
#[inline]
pub(crate) unsafe fn get<'a>(handle: *mut c::otr_queue) -> Result<&'a Queue> {
    // SAFETY: this function's contract.
    unsafe { handle::get::<Queue>(handle) }
}

/// # Safety
/// R1, R8, R10.
pub(crate) unsafe fn create(
    handle: *mut c::otr_driver,
    device: u32,
    params: *const c::otr_queue_params,
    place: *mut *mut c::otr_queue,
) -> Result {
    // SAFETY: this function's contract.
    let open = unsafe { get_driver(handle)? };
    let of = open.device(device)?;
    let place = Out::new(place, "the place for the queue")?;
    let (mut priority, mut flags) = (0, 0);
    if !params.is_null() {
        // SAFETY: not NULL, so a struct of its size (R1).
        unsafe {
            priority = field!(params, c::otr_queue_params, priority).unwrap_or(0);
            flags = field!(params, c::otr_queue_params, flags).unwrap_or(0);
        }
    }
    if flags != 0 {
        let text = format!("queue flags {flags:#x} are unknown: pass 0");
        return Err(Fault::argument(text));
    }
    let (least, most) = of.priorities();
    let lane = Lane::new(open, device, priority.clamp(most, least))?;
    place.give(handle::give(Queue::over(lane)));
    Ok(())
}

/// # Safety
/// R8, R10.
pub(crate) unsafe fn native_handle(handle: *mut c::otr_queue, place: *mut u64) -> Result {
    // SAFETY: this function's contract.
    let queue = unsafe { get(handle)? };
    let place = Out::new(place, "the place for the native queue")?;
    queue.recorder.refuse("the native queue")?;
    queue.ordered.begin_sharing();
    queue.ordered.settle()?;
    place.give(queue.ordered.lane().raw as u64);
    Ok(())
}

/// # Safety
/// R8, R10, R56.
pub(crate) unsafe fn native_adopt(
    handle: *mut c::otr_driver,
    device: u32,
    native: u64,
    place: *mut *mut c::otr_queue,
) -> Result {
    // SAFETY: this function's contract.
    let open = unsafe { get_driver(handle)? };
    open.device(device)?;
    let place = Out::new(place, "the place for the queue")?;
    if native == 0 {
        // The default stream orders itself against all others (R17).
        return Err(null("the CUstream"));
    }
    // SAFETY: R56: a live stream.
    let lane = unsafe { Lane::over(open, device, native as cuda::Stream)? };
    let queue = Queue::over(lane);
    queue.ordered.begin_sharing();
    place.give(handle::give(queue));
    Ok(())
}

/// # Safety
/// R8: no other call uses the queue.
pub(crate) unsafe fn destroy(handle: *mut c::otr_queue) -> Result {
    // SAFETY: this function's contract.
    let queue = unsafe { handle::take::<Queue>(handle)? };
    queue.recorder.give_up();
    queue.ordered.retire();
    let live = &queue.open.devices[queue.device as usize].live;
    live.queues.fetch_sub(1, Ordering::Relaxed);
    Ok(())
}

/// # Safety
/// R8.
pub(crate) unsafe fn query(handle: *mut c::otr_queue) -> Result<Progress> {
    // SAFETY: this function's contract.
    let queue = unsafe { get(handle)? };
    queue.recorder.refuse("queue_query")?;
    queue.ordered.query()
}

/// # Safety
/// R8.
pub(crate) unsafe fn synchronize(handle: *mut c::otr_queue) -> Result {
    // SAFETY: this function's contract.
    let queue = unsafe { get(handle)? };
    queue.recorder.refuse("queue_synchronize")?;
    queue.ordered.synchronize()
}

/// # Safety
/// R8.
pub(crate) unsafe fn flush(handle: *mut c::otr_queue) -> Result {
    // SAFETY: this function's contract.
    let queue = unsafe { get(handle)? };
    if queue.recorder.is_active() {
        return Ok(());
    }
    queue.ordered.flush()
}

/// # Safety
/// R8, R26.
pub(crate) unsafe fn copy(handle: *mut c::otr_queue, copy: *const c::otr_copy) -> Result {
    // SAFETY: this function's contract.
    let (queue, copy) = unsafe { (get(handle)?, given::copy(copy)?) };
    let open = &queue.open;
    let (dst, src, size, kind) = (copy.dst, copy.src, copy.size, copy.kind);
    if !(c::OTR_COPY_HOST_TO_DEVICE..=c::OTR_COPY_HOST_TO_HOST).contains(&kind) {
        let text = format!("copy kind {kind} is unknown: they are 1 to 4");
        return Err(Fault::argument(text));
    }
    if size == 0 {
        return nothing(queue, Way::OnHost);
    }
    check_ends(dst, src, size)?;
    let way = match kind {
        c::OTR_COPY_HOST_TO_DEVICE => {
            open.check(queue.device, dst, size)?;
            let pinned = open.pinned.has(src, size);
            Way::ToDevice { pinned }
        }
        c::OTR_COPY_DEVICE_TO_HOST => {
            open.check(queue.device, src, size)?;
            let pinned = open.pinned.has(dst, size);
            Way::ToHost { pinned }
        }
        c::OTR_COPY_DEVICE_TO_DEVICE => {
            open.check(queue.device, dst, size)?;
            open.check(queue.device, src, size)?;
            Way::Within
        }
        _ => Way::OnHost,
    };
    submit_copy(
        queue,
        Copy {
            way,
            dst,
            src,
            size,
        },
    )
}

/// A copy of no bytes, which is a command of a recording all the same (R35).
fn nothing(queue: &Queue, way: Way) -> Result {
    let (dst, src, size) = (0, 0, 0);
    let copy = Copy {
        way,
        dst,
        src,
        size,
    };
    queue
        .keeps(|| Ok(Recorded::Leaf(Leaf::Copy(copy))))
        .map(|_| ())
}

/// Checks what every copy of some bytes has to keep to.
fn check_ends(dst: u64, src: u64, size: u64) -> Result {
    if dst == 0 || src == 0 {
        return Err(null("the source or the destination of a copy"));
    }
    // Devices and host share one range of addresses.
    if dst.wrapping_sub(src) < size || src.wrapping_sub(dst) < size {
        return Err(Fault::argument(format!(
            "the {size} bytes at {src:#x} and at {dst:#x} overlap"
        )));
    }
    Ok(())
}

fn submit_copy(queue: &Queue, copy: Copy) -> Result {
    if queue.keeps(|| Ok(Recorded::Leaf(Leaf::Copy(copy))))? {
        return Ok(());
    }
    queue.ordered.submit(
        Label::NONE,
        |lane, _| lane.copy(copy),
        |_| Ok(Command::Copy(copy)),
    )
}

/// # Safety
/// R8, R10.
pub(crate) unsafe fn fill(handle: *mut c::otr_queue, fill: *const c::otr_fill) -> Result {
    // SAFETY: this function's contract.
    let (queue, given) = unsafe { (get(handle)?, given::params(fill, "the fill")?) };
    let (dst, size) = (given.dst, given.size);
    let (pattern, length) = (given.pattern, given.pattern_size);
    if !matches!(length, 1 | 2 | 4 | 8 | 16) {
        return Err(Fault::argument(format!(
            "a pattern has 1, 2, 4, 8 or 16 bytes, not {length}"
        )));
    }
    if !size.is_multiple_of(u64::from(length)) {
        return Err(Fault::argument(format!(
            "the size, {size}, is not a multiple of the {length} bytes of the pattern"
        )));
    }
    let mut bytes = [0; 16];
    if size > 0 {
        if pattern.is_null() {
            return Err(null("the pattern"));
        }
        queue.open.check(queue.device, dst, size)?;
        // SAFETY: R10: not NULL, so as many bytes, of which there are at most 16.
        unsafe {
            std::ptr::copy_nonoverlapping(pattern.cast(), bytes.as_mut_ptr(), length as usize);
        }
    }
    let fill = Fill {
        dst,
        size,
        pattern: bytes,
        length: u64::from(length),
    };
    if queue.keeps(|| Ok(Recorded::Leaf(Leaf::Fill(fill))))? || size == 0 {
        return Ok(());
    }
    queue.ordered.submit(
        Label::NONE,
        |lane, _| lane.fill(&fill),
        |_| Ok(Command::Fill(fill)),
    )
}

/// # Safety
/// R8, R27.
pub(crate) unsafe fn host_call(handle: *mut c::otr_queue, call: *const c::otr_host_call) -> Result {
    /// No code of the contract.
    const LATER: i32 = i32::MIN;
    // SAFETY: this function's contract.
    let (queue, given) = unsafe { (get(handle)?, given::params(call, "the host call")?) };
    let (function, user, flags) = (given.function, given.user, given.flags);
    let call =
        || HostCall::new(function, user, flags).map(|call| Recorded::Leaf(Leaf::HostCall(call)));
    if queue.keeps(call)? {
        return Ok(());
    }
    if let (Some(function), c::OTR_HOST_CALL_CANNOT_FAIL) = (function, flags) {
        // Without an outcome it may go into the stream, and what comes behind it as well.
        let later = || Fault::new(LATER, "");
        let submitted = queue.ordered.submit(
            Label::NONE,
            |lane, _| match lane.host_call(function, user)? {
                true => Ok(()),
                false => Err(later()),
            },
            |_| Err(later()),
        );
        match submitted {
            Err(fault) if fault.code() == LATER => {}
            other => return other,
        }
    }
    queue.ordered.host_call(function, user, flags)
}

/// # Safety
/// R8, R10.
pub(crate) unsafe fn can_access(
    handle: *mut c::otr_driver,
    device: u32,
    peer: u32,
    yes: *mut u32,
) -> Result {
    // SAFETY: this function's contract.
    let open = unsafe { get_driver(handle)? };
    let (device, peer) = (open.device(device)?, open.device(peer)?);
    let yes = Out::new(yes, "the place for the answer")?;
    yes.give(u32::from(reaches(device, peer)?));
    Ok(())
}

/// # Safety
/// R8, R26.
pub(crate) unsafe fn peer_copy(handle: *mut c::otr_queue, copy: *const c::otr_copy) -> Result {
    // SAFETY: this function's contract.
    let (queue, copy) = unsafe { (get(handle)?, given::peer_copy(copy)?) };
    let (to, dst) = (copy.dst_device, copy.dst);
    let (from, src) = (copy.src_device, copy.src);
    let size = copy.size;
    queue.open.device(to)?;
    queue.open.device(from)?;
    if queue.device != to && queue.device != from {
        return Err(Fault::new(
            c::OTR_ERR_INVALID_DEVICE,
            format!(
                "a copy from device {from} to device {to} on a queue of device {}",
                queue.device
            ),
        ));
    }
    // CUDA takes another way where one device does not reach the other.
    let way = Way::Peer { to, from };
    if size == 0 {
        return nothing(queue, way);
    }
    check_ends(dst, src, size)?;
    queue.open.check(to, dst, size)?;
    queue.open.check(from, src, size)?;
    submit_copy(
        queue,
        Copy {
            way,
            dst,
            src,
            size,
        },
    )
}
