//! Kernels of modules, and how they are launched.

use std::ffi::CStr;

use outrigger_device::{Arguments, Code, Grid, Kernel, sys};

use crate::{Error, Result};

/// A launch of a kernel of a module.
#[derive(Clone, Copy, Debug)]
pub struct DeviceCall<'a> {
    /// The kernel.
    pub kernel: &'a Kernel,
    /// The groups and work items of the launch.
    pub grid: Grid,
    /// The argument block, and the kind of each of its parts. Both are copied.
    pub args: Arguments<'a>,
    /// Estimated time in nanoseconds; 0 if unknown.
    pub cost_ns: u32,
    /// The name of the kernel, for failures and pictures.
    pub label: &'static CStr,
}

impl DeviceCall<'_> {
    /// The device addresses in the block that are not 0, each with the number of its word.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for an address at an offset that is no multiple of 8 or beyond the block.
    pub fn addresses(&self) -> Result<Vec<(u32, u64)>> {
        let mut found = Vec::new();
        for (index, part) in self.args.parts.iter().enumerate() {
            if part.kind != sys::OTR_ARGUMENT_ADDRESS {
                continue;
            }
            let at = part.offset as usize;
            let word = self.args.block.get(at..).and_then(<[u8]>::first_chunk);
            let Some(word) = word.filter(|_| at.is_multiple_of(8)) else {
                let text = format!(
                    "argument {index} is an address at byte {at} of an argument block of {} bytes: its offset must be a \
                     multiple of 8 within the block",
                    self.args.block.len()
                );
                return Err(Error::new(Code::INVALID_ARGUMENT, text));
            };
            let address = u64::from_ne_bytes(*word);
            if address != 0 {
                found.push((part.offset / 8, address));
            }
        }
        Ok(found)
    }

    pub(crate) fn stored(&self) -> DeviceKernel {
        DeviceKernel {
            kernel: self.kernel.clone(),
            grid: self.grid,
            parts: self.args.parts.into(),
        }
    }
}

/// The parts of a launch that a node keeps besides the argument block.
#[derive(Debug)]
pub(crate) struct DeviceKernel {
    pub(crate) kernel: Kernel,
    pub(crate) grid: Grid,
    pub(crate) parts: Box<[sys::otr_argument]>,
}

impl PartialEq for DeviceKernel {
    fn eq(&self, other: &Self) -> bool {
        let part = |one: &sys::otr_argument| (one.offset, one.size, one.kind);
        self.kernel == other.kernel
            && self.grid == other.grid
            && self.parts.iter().map(part).eq(other.parts.iter().map(part))
    }
}
