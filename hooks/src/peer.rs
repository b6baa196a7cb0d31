//! Copies between two devices. The driver copies if both devices are its own and it can. Otherwise the copy goes
//! through host memory, and the call waits.

use outrigger_device::{Code, CopyKind, Queue, profile};

use crate::{Device, Error, Result, Stream, runtime};

/// The bytes of one copy through the host.
const CHUNK: u64 = 16 << 20;

impl Device {
    /// Whether copies between this device and another go from one to the other, by the driver of both. Else they go
    /// through host memory.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn can_access(&self, peer: &Self) -> Result<bool> {
        match self.driver().peer() {
            Some(group) if self.driver().same_as(peer.driver()) => {
                Ok(group.can_access(self.ordinal(), peer.ordinal())?)
            }
            _ => Ok(self.index() == peer.index()),
        }
    }
}

impl Stream {
    /// Copies `size` bytes between live allocations of two devices, in order of this stream, which is of one of them.
    /// `to` and `from` are an address and its device before it. If no driver can copy, the call waits and copies through
    /// the host.
    ///
    /// # Safety
    /// The contract of [`Stream::fill`] for both ranges.
    ///
    /// # Errors
    /// `INVALID_DEVICE`; `INVALID_ARGUMENT` if a range is not in one live allocation of its device, or neither device is
    /// the stream's; `CAPTURE` between two devices while the stream captures; what the drivers report.
    pub unsafe fn copy_peer(&self, to: (u32, u64), from: (u32, u64), size: u64) -> Result<()> {
        // SAFETY: this function's contract is that of `copy_any`.
        let outcome = unsafe { self.copy_any(to, from, size) };
        outcome.map_err(|error| self.not_recorded(error))
    }

    /// # Safety
    /// The contract of [`copy_peer`](Self::copy_peer).
    unsafe fn copy_any(
        &self,
        (to, dst): (u32, u64),
        (from, src): (u32, u64),
        size: u64,
    ) -> Result<()> {
        let (to, from) = (runtime()?.device(to)?, runtime()?.device(from)?);
        if size == 0 {
            return Ok(());
        }
        to.check_range("destination", dst, size)?;
        from.check_range("source", src, size)?;
        if ![to.index(), from.index()].contains(&self.device().index()) {
            return Err(Error::new(
                Code::INVALID_ARGUMENT,
                format!(
                    "a copy from device {} to device {} on a stream of device {}: use a stream of \
                     one of the two",
                    from.index(),
                    to.index(),
                    self.device().index()
                ),
            )
            .on_stream(self.id()));
        }
        if to.index() == from.index() {
            // SAFETY: both ranges were checked. This function's contract: they stay live until the copy has run (H23).
            return unsafe { self.copy(dst, src, size, CopyKind::DeviceToDevice) };
        }
        if self.is_capturing() {
            return Err(Error::new(
                Code::CAPTURE,
                "a copy between two devices cannot be captured: a graph stays on one device",
            )
            .on_stream(self.id()));
        }
        if from.can_access(to)?
            && let Some(peer) = to.driver().peer()
        {
            // SAFETY: both ranges were checked. This function's contract: they stay live until the copy has run (H23).
            return unsafe {
                peer.copy(
                    self.queue(),
                    (to.ordinal(), dst),
                    (from.ordinal(), src),
                    size,
                )
            }
            .map_err(|error| self.failed(error));
        }
        // SAFETY: this function's contract is that of `copy_through_host`.
        unsafe { self.copy_through_host(to, dst, from, src, size) }
    }

    /// Waits for the work before the copy, and for the copy. The copies have queues of their own, because streams of the
    /// host may capture or have failed.
    ///
    /// # Safety
    /// The contract of [`copy_peer`](Self::copy_peer).
    unsafe fn copy_through_host(
        &self,
        to: &'static Device,
        dst: u64,
        from: &'static Device,
        src: u64,
        size: u64,
    ) -> Result<()> {
        self.synchronize_now()?;
        let queue = |device: &'static Device| -> Result<Queue> {
            let mut queue = device.driver().queue_create(device.ordinal(), 0)?;
            // In profiles the copies stand among the work of streams.
            let shown = if device.index() == self.device().index() {
                self
            } else {
                device.default_stream()
            };
            queue.profile_as(profile::Stream {
                device: device.index(),
                id: shown.id(),
            });
            Ok(queue)
        };
        let (reads, writes) = (queue(from)?, queue(to)?);
        let mut host = vec![0; size.min(CHUNK) as usize];
        let staging = host.as_mut_ptr() as u64;
        for done in (0..size).step_by(CHUNK as usize) {
            let part = (size - done).min(CHUNK);
            for (queue, dst, src, kind) in [
                (&reads, staging, src + done, CopyKind::DeviceToHost),
                (&writes, dst + done, staging, CopyKind::HostToDevice),
            ] {
                // SAFETY: the staging memory is leaked unless the copy is over (R26). This function's contract: the device
                // ranges are live.
                unsafe { queue.copy(dst, src, part, kind) }
                    .map_err(|error| Error::from(error).on_stream(self.id()))?;
                let (finished, over) = queue.finish();
                if !over {
                    std::mem::forget(std::mem::take(&mut host));
                }
                finished.map_err(|error| Error::from(error).on_stream(self.id()))?;
            }
        }
        Ok(())
    }
}
