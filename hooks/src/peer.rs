//! Copies between two devices: by the driver where both are its own and it can, else through host
//! memory, which waits.

use outrigger_device::{Code, CopyKind};

use crate::{Device, Error, Result, Stream, runtime};

/// Bytes that are copied at a time through the host.
const CHUNK: u64 = 16 << 20;

/// The device that has a range in one live allocation.
fn of_range(what: &str, address: u64, size: u64) -> Result<&'static Device> {
    let runtime = runtime()?;
    let known = runtime.pointer_info(address).map_err(|error| {
        let text = format!("the {what} of a copy: {}", error.message());
        Error::new(Code::INVALID_ARGUMENT, text)
    })?;
    let device = runtime.device(known.device)?;
    device.check_range(what, address, size)?;
    Ok(device)
}

impl Stream {
    /// Copies `size` bytes between live allocations of two devices, of which this stream's is one.
    /// In order of this stream; where no driver can copy, the call waits and copies through the host.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if a range is not in one live allocation or neither device is the stream's;
    /// `CAPTURE` between two devices while the stream captures; what the drivers report.
    pub fn copy_peer(&self, dst: u64, src: u64, size: u64) -> Result<()> {
        if size == 0 {
            return Ok(());
        }
        let outcome = self.copy_any(dst, src, size);
        outcome.map_err(|error| self.not_recorded(error))
    }

    fn copy_any(&self, dst: u64, src: u64, size: u64) -> Result<()> {
        let to = of_range("destination", dst, size)?;
        let from = of_range("source", src, size)?;
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
            // SAFETY: both ranges are live device memory, reused in stream order only.
            return unsafe { self.copy(dst, src, size, CopyKind::DeviceToDevice) };
        }
        if self.is_capturing() {
            return Err(Error::new(
                Code::CAPTURE,
                "a copy between two devices cannot be captured: a graph stays on one device",
            )
            .on_stream(self.id()));
        }
        if to.driver().same_as(from.driver())
            && let Some(peer) = to.driver().peer()
            && peer.can_access(from.ordinal(), to.ordinal())?
        {
            // SAFETY: both ranges are live device memory, reused in stream order only.
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
        self.copy_through_host(to, dst, from, src, size)
    }

    fn copy_through_host(
        &self,
        to: &'static Device,
        dst: u64,
        from: &'static Device,
        src: u64,
        size: u64,
    ) -> Result<()> {
        self.synchronize()?;
        let mut staging = Staging::new(size.min(CHUNK));
        let host = staging.address();
        for done in (0..size).step_by(CHUNK as usize) {
            let part = (size - done).min(CHUNK);
            for (device, dst, src, kind) in [
                (from, host, src + done, CopyKind::DeviceToHost),
                (to, dst + done, host, CopyKind::HostToDevice),
            ] {
                let stream = if device.index() == self.device().index() {
                    self
                } else {
                    device.default_stream()
                };
                // SAFETY: the staging memory is there until the copy has finished, or for good.
                unsafe { stream.copy(dst, src, part, kind) }?;
                staging.settle(stream)?;
            }
        }
        Ok(())
    }
}

/// Host memory that copies go through.
struct Staging(Vec<u8>);

impl Staging {
    fn new(size: u64) -> Self {
        Self(vec![0; size as usize])
    }

    fn address(&mut self) -> u64 {
        self.0.as_mut_ptr() as u64
    }

    /// Waits for the copies of a stream. Where that fails and a copy may still be running, the memory stays its
    /// own: better lost than written to when it is another's.
    fn settle(&mut self, stream: &Stream) -> Result<()> {
        let outcome = stream.synchronize();
        if outcome.is_err() && !matches!(stream.queue().query(), Ok(true)) {
            std::mem::forget(std::mem::take(&mut self.0));
        }
        outcome
    }
}
