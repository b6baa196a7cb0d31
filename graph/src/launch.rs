//! Replays as one launch of a host kernel: the kernel, and the argument block that carries the patches of a replay.
//! `exec` decides when a replay runs.

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use outrigger_device::Code;
use outrigger_ops::FailedOperator;

use crate::program::{Patch, Program};

/// The most patches of a block that lies on the stack.
const PATCHES: usize = 16;

/// The first part of a replay's argument block. The patches follow it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Header {
    pub(super) program: *const Program,
    pub(super) report: *const FailedOperator,
    pub(super) number: u64,
    pub(super) patches: u64,
}

/// # Safety
/// - `args` is a block of [`LaunchBlock::finish`], whose program and report are alive.
/// - The contract of [`Program::run`] holds for the program.
pub(super) unsafe extern "C" fn replay(args: *const c_void, _size: u32, bias: i64) -> i32 {
    // SAFETY: this function's contract. A launch may have copied the block to any address (R30), so it is read
    // unaligned.
    unsafe {
        let header = args.cast::<Header>().read_unaligned();
        let program = &*header.program;
        let patches = args.byte_add(size_of::<Header>()).cast::<Patch>();
        for index in 0..header.patches as usize {
            program.patch(&[patches.add(index).read_unaligned()]);
        }
        program.applied.store(header.number, Ordering::Release);
        let code = program.run(bias);
        if code != Code::OK.0 {
            report(program, &*header.report);
        }
        code
    }
}

/// Notes the name of the node that failed for the stream's errors.
#[cold]
fn report(program: &Program, report: &FailedOperator) {
    if let Some(label) = program.take_failed_label() {
        report.set(label.into());
    }
}

/// The argument block of a replay. It lies on the stack if it is small.
pub(super) struct LaunchBlock {
    header: Header,
    few: arrayvec::ArrayVec<Patch, PATCHES>,
    many: Vec<Patch>,
}

impl LaunchBlock {
    pub(super) fn new(header: Header) -> Self {
        Self {
            header,
            few: arrayvec::ArrayVec::new(),
            many: Vec::new(),
        }
    }

    #[inline]
    pub(super) fn push(&mut self, patch: Patch) {
        if self.many.is_empty() {
            if self.few.try_push(patch).is_ok() {
                return;
            }
            self.many.extend_from_slice(&self.few);
        }
        self.many.push(patch);
    }

    pub(super) fn finish<R>(
        mut self,
        report: *const FailedOperator,
        with: impl FnOnce(&[u8]) -> R,
    ) -> R {
        let patches = if self.many.is_empty() {
            &self.few[..]
        } else {
            &self.many[..]
        };
        self.header.patches = patches.len() as u64;
        self.header.report = report;
        let header: [u64; HEADER_WORDS] = [
            self.header.program as u64,
            self.header.report as u64,
            self.header.number,
            self.header.patches,
        ];
        if patches.is_empty() {
            return with(bytemuck::cast_slice(&header));
        }
        let words = patches
            .iter()
            .flat_map(|one| [one.target, one.first, one.second]);
        if patches.len() <= PATCHES {
            let mut block = arrayvec::ArrayVec::<u64, { HEADER_WORDS + 3 * PATCHES }>::new();
            block.extend(header.into_iter().chain(words));
            return with(bytemuck::cast_slice(&block));
        }
        let block: Vec<u64> = header.into_iter().chain(words).collect();
        with(bytemuck::cast_slice(&block))
    }
}

const HEADER_WORDS: usize = size_of::<Header>() / 8;
const _: () = assert!(HEADER_WORDS == 4 && size_of::<Patch>() == 24);
