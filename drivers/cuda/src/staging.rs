//! Copies of host memory that is not pinned. CUDA's own way may wait for earlier work of the stream before the call
//! returns, and may read the source before its turn has come: the one is against R17, the other against R16. So a copy goes
//! through a block of pinned memory, piece by piece, and a host function of the stream carries each piece over. The stream
//! itself keeps the pieces apart, so that one block is enough and nothing ever waits.

use std::ffi::c_void;

use outrigger_driver_kit::{Result, Sequence};

use crate::cuda;
use crate::device::Device;
use crate::pinned::alloc_pinned;

/// Bytes of a piece: large enough that the host functions between them do not count.
const BLOCK: u64 = 1 << 20;

/// Bytes behind the block, for a word that the stream waits for: a line of a cache, which nobody else writes to.
const WORD: u64 = 64;

/// A block of pinned memory that belongs to a stream, and a word.
pub(crate) struct Staging(*mut c_void);

/// A piece of memory that a host function copies.
struct Piece {
    dst: *mut u8,
    src: *const u8,
    size: usize,
}

impl Staging {
    /// The block; the context of the device is entered.
    pub(crate) fn new(device: &Device) -> Result<Self> {
        alloc_pinned(device, BLOCK + WORD).map(Self)
    }

    /// A word of pinned memory that the block does not use.
    pub(crate) fn word(&self) -> *mut u32 {
        // SAFETY: behind the block, and within what was allocated.
        unsafe { self.0.byte_add(BLOCK as usize) }.cast()
    }

    /// All that used the block has finished; the context is entered.
    pub(crate) fn free(&self, device: &Device) {
        // SAFETY: made by `new`.
        unsafe { (device.cuda.host_free)(self.0) };
    }

    /// # Safety
    /// R26, for both ranges; the stream is live and its context entered.
    pub(crate) unsafe fn to_device(
        &self,
        device: &Device,
        stream: cuda::Stream,
        dst: u64,
        src: u64,
        size: u64,
    ) -> Result {
        let mut calls = Sequence::default();
        for (at, size) in pieces(size) {
            let piece = Piece {
                dst: self.0.cast(),
                src: (src + at) as *const u8,
                size,
            };
            // SAFETY: this function's contract; the block is as large as a piece.
            unsafe {
                calls.next(carry(device, stream, piece))?;
                let copied = (device.cuda.copy_to_device)(dst + at, self.0, size, stream);
                calls.next(device.check(copied, "cuMemcpyHtoDAsync"))?;
            }
        }
        Ok(())
    }

    /// # Safety
    /// As for `to_device`.
    pub(crate) unsafe fn to_host(
        &self,
        device: &Device,
        stream: cuda::Stream,
        dst: u64,
        src: u64,
        size: u64,
    ) -> Result {
        let mut calls = Sequence::default();
        for (at, size) in pieces(size) {
            let piece = Piece {
                dst: (dst + at) as *mut u8,
                src: self.0.cast(),
                size,
            };
            // SAFETY: this function's contract; the block is as large as a piece.
            unsafe {
                let copied = (device.cuda.copy_to_host)(self.0, src + at, size, stream);
                calls.next(device.check(copied, "cuMemcpyDtoHAsync"))?;
                calls.next(carry(device, stream, piece))?;
            }
        }
        Ok(())
    }

    /// A copy between two places of the host, in the order of the stream.
    ///
    /// # Safety
    /// As for `to_device`.
    pub(crate) unsafe fn on_host(
        &self,
        device: &Device,
        stream: cuda::Stream,
        dst: u64,
        src: u64,
        size: u64,
    ) -> Result {
        let piece = Piece {
            dst: dst as *mut u8,
            src: src as *const u8,
            size: size as usize,
        };
        // SAFETY: this function's contract.
        unsafe { carry(device, stream, piece) }
    }
}

/// Offsets and sizes of the pieces of a copy.
fn pieces(size: u64) -> impl Iterator<Item = (u64, usize)> {
    (0..size)
        .step_by(BLOCK as usize)
        .map(move |at| (at, (size - at).min(BLOCK) as usize))
}

/// Copies a piece when the stream has come to it.
///
/// # Safety
/// Both ends of the piece are live until then, and do not overlap; the stream is live and its context entered.
unsafe fn carry(device: &Device, stream: cuda::Stream, piece: Piece) -> Result {
    let piece = Box::into_raw(Box::new(piece));
    // SAFETY: a live stream; `copy_piece` takes the box. A context that is lost never calls it: then it stays.
    let launched = unsafe { (device.cuda.host_function)(stream, copy_piece, piece.cast()) };
    device.check(launched, "cuLaunchHostFunc").inspect_err(|_| {
        // SAFETY: made above, and nobody has taken it.
        drop(unsafe { Box::from_raw(piece) });
    })
}

unsafe extern "C" fn copy_piece(piece: *mut c_void) {
    // SAFETY: the box that `carry` gave; what that was promised.
    unsafe {
        let piece = Box::from_raw(piece.cast::<Piece>());
        std::ptr::copy_nonoverlapping(piece.src, piece.dst, piece.size);
    }
}
