//! Commands that were recorded, and how they are submitted.

use std::ffi::{c_char, c_void};
use std::ptr::null;
use std::sync::Arc;

use outrigger_device::{Code, params, sys};

use crate::call::{Refusal, Result};
use crate::recording::Recorder;
use crate::unit::Unit;

/// A recorded command.
#[derive(Clone)]
pub(crate) enum Command {
    Launch(Arc<Stored>),
    /// Of so many bytes, with so many of the pattern.
    Fill {
        to: u64,
        size: u64,
        pattern: [u8; 16],
        length: u32,
    },
    Copy {
        to: u64,
        from: u64,
        size: u64,
        kind: u32,
    },
    Call {
        function: HostFn,
        user: *mut c_void,
        flags: u32,
    },
    /// The commands that a graph had when its launch was recorded.
    Graph(Arc<Body>),
}

type HostFn = unsafe extern "C" fn(*mut c_void, i32) -> i32;

/// A launch of a kernel with all that it was given (R30).
pub(crate) struct Stored {
    pub(crate) kernel: *mut sys::otr_drv_kernel,
    pub(crate) unit: Option<Arc<Unit>>,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    shared_bytes: u32,
    pub(crate) args_size: u32,
    /// The argument block, with zeros up to a whole word.
    args: Box<[u64]>,
    arguments: Option<Box<[sys::otr_argument]>>,
    cost_ns: u32,
    label: *const c_char,
}

// SAFETY: the pointers are the host's and the driver's, which are passed on: handles, data of host calls, and labels, which live
// as long as the process. R8, R27: they are used on any thread.
unsafe impl Send for Command {}
// SAFETY: as above; nothing in it is written after it was recorded.
unsafe impl Sync for Command {}
// SAFETY: as for `Command`.
unsafe impl Send for Stored {}
// SAFETY: as for `Command`.
unsafe impl Sync for Stored {}

/// A command, and the numbers of those that it waits for.
#[derive(Clone)]
pub(crate) struct Kept {
    pub(crate) command: Command,
    pub(crate) waits: Arc<[u32]>,
}

/// Commands in the order of their calls, which respects what each waits for.
#[derive(Clone, Default)]
pub(crate) struct Body {
    pub(crate) commands: Vec<Kept>,
}

/// A launch as a task: the words of its arguments, each of which begins at a word of its own.
pub(crate) struct Task {
    pub(crate) unit: Arc<Unit>,
    pub(crate) grid: [u32; 3],
    pub(crate) words: Vec<u64>,
}

impl Stored {
    /// Copies a launch.
    ///
    /// # Safety
    /// `launch` is NULL or a launch of the size that stands in it, whose lists are as long as it says (R10).
    pub(crate) unsafe fn of(
        kernel: *mut sys::otr_drv_kernel,
        unit: Option<Arc<Unit>>,
        launch: *const sys::otr_launch,
    ) -> Result<Self> {
        // SAFETY: this function's contract.
        let Some(launch) = (unsafe { launch.as_ref() }) else {
            return refuse("the launch is NULL");
        };
        if launch.struct_size < size_of::<sys::otr_launch>() {
            return refuse("the launch is shorter than that of version 1.0");
        }
        if launch.grid.contains(&0) || launch.block.contains(&0) {
            let (grid, block) = (launch.grid, launch.block);
            return refuse(format!(
                "a grid of {grid:?} groups of {block:?} work-items: each number is at least 1"
            ));
        }
        let size = launch.args_size as usize;
        if launch.args.is_null() && size > 0 {
            return refuse("the argument block is NULL");
        }
        let mut args = vec![0_u64; size.div_ceil(8)].into_boxed_slice();
        // SAFETY: `size` bytes on both sides.
        unsafe {
            std::ptr::copy_nonoverlapping(launch.args.cast::<u8>(), args.as_mut_ptr().cast(), size);
        }
        let arguments = (!launch.arguments.is_null()).then(|| {
            // SAFETY: not NULL, so as many as counted; this function's contract.
            let list = unsafe {
                std::slice::from_raw_parts(launch.arguments, launch.argument_count as usize)
            };
            Box::from(list)
        });
        let reaches = |one: &sys::otr_argument| u64::from(one.offset) + bytes_of(one);
        let mut all = arguments.iter().flatten();
        if let Some(one) = all.find(|one| reaches(one) > size as u64) {
            return refuse(format!(
                "an argument of {} bytes at offset {} reaches beyond the block of {size} bytes",
                one.size, one.offset
            ));
        }
        Ok(Self {
            kernel,
            unit,
            grid: launch.grid,
            block: launch.block,
            shared_bytes: launch.shared_bytes,
            args_size: launch.args_size,
            args,
            arguments,
            cost_ns: launch.cost_ns,
            label: launch.label,
        })
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: words are bytes, and `args` has at least as many.
        unsafe { std::slice::from_raw_parts(self.args.as_ptr().cast(), self.args_size as usize) }
    }

    /// The launch as a task, if it can be one.
    pub(crate) fn task(&self) -> Option<Task> {
        let (unit, arguments) = self.unit.as_ref().zip(self.arguments.as_ref())?;
        if self.block != [1; 3] || self.shared_bytes > 0 {
            return None;
        }
        let mut words = Vec::new();
        for one in arguments {
            if one.kind == sys::OTR_ARGUMENT_LOCAL {
                return None;
            }
            let bytes = self
                .bytes()
                .get(one.offset as usize..)?
                .get(..bytes_of(one) as usize)?;
            words.extend(bytes.chunks(8).map(|chunk| {
                let mut word = [0; 8];
                word[..chunk.len()].copy_from_slice(chunk);
                u64::from_ne_bytes(word)
            }));
        }
        let unit = Arc::clone(unit);
        Some(Task {
            unit,
            grid: self.grid,
            words,
        })
    }

    /// # Safety
    /// R31: the kernel and the memory of the arguments are live until the launch has finished.
    unsafe fn submit(&self, recorder: &Recorder, queue: *mut sys::otr_queue) -> i32 {
        let arguments = self.arguments.as_deref();
        let launch = sys::otr_launch {
            struct_size: size_of::<sys::otr_launch>(),
            next: null(),
            grid: self.grid,
            block: self.block,
            shared_bytes: self.shared_bytes,
            args_size: self.args_size,
            args: self.args.as_ptr().cast(),
            arguments: arguments.map_or(null(), <[_]>::as_ptr),
            argument_count: arguments.map_or(0, |list| list.len() as u32),
            cost_ns: self.cost_ns,
            label: self.label,
        };
        // SAFETY: this function's contract; R30: all of it is copied during the call.
        unsafe { (recorder.calls.launch)(queue, self.kernel, &launch) }
    }
}

/// The bytes of an argument in the block.
fn bytes_of(one: &sys::otr_argument) -> u64 {
    match one.kind {
        sys::OTR_ARGUMENT_ADDRESS => 8,
        sys::OTR_ARGUMENT_LOCAL => 0,
        _ => u64::from(one.size),
    }
}

impl Command {
    /// A fill, checked as a driver checks it (R7).
    ///
    /// # Safety
    /// The pattern is NULL, or has as many bytes as it says.
    pub(crate) unsafe fn fill(fill: Option<&sys::otr_fill>) -> Result<Self> {
        let Some(fill) = fill else {
            return refuse("the fill is NULL");
        };
        let (to, size) = (fill.dst, fill.size);
        let (pattern, length) = (fill.pattern, fill.pattern_size);
        if ![1, 2, 4, 8, 16].contains(&length) {
            return refuse(format!(
                "a pattern of {length} bytes: it has 1, 2, 4, 8 or 16"
            ));
        }
        if pattern.is_null() {
            return refuse("the pattern is NULL");
        }
        if !size.is_multiple_of(u64::from(length)) {
            return refuse(format!(
                "{size} bytes are no multiple of a pattern of {length} bytes"
            ));
        }
        if to == 0 && size > 0 {
            return refuse("the address of a fill is 0");
        }
        let mut whole = [0; 16];
        // SAFETY: not NULL, so `length` bytes, which are 16 at most.
        let given = unsafe { std::slice::from_raw_parts(pattern.cast::<u8>(), length as usize) };
        whole
            .chunks_mut(given.len())
            .for_each(|part| part.copy_from_slice(given));
        Ok(Self::Fill {
            to,
            size,
            pattern: whole,
            length,
        })
    }

    /// A copy, checked as a driver checks it (R7).
    pub(crate) fn copy(copy: Option<&sys::otr_copy>) -> Result<Self> {
        let Some(copy) = copy else {
            return refuse("the copy is NULL");
        };
        let (to, from, size, kind) = (copy.dst, copy.src, copy.size, copy.kind);
        if !(sys::OTR_COPY_HOST_TO_DEVICE..=sys::OTR_COPY_HOST_TO_HOST).contains(&kind) {
            return refuse(format!("{kind} is no kind of a copy"));
        }
        if size > 0 && (to == 0 || from == 0) {
            return refuse("an address of a copy is 0");
        }
        if copy.rows > 1 {
            return Err(Refusal::new(
                Code::UNSUPPORTED,
                format!("a graph keeps no copy of {} rows", copy.rows),
            ));
        }
        Ok(Self::Copy {
            to,
            from,
            size,
            kind,
        })
    }

    /// A host call, checked as a driver checks it (R7).
    pub(crate) fn call(call: Option<&sys::otr_host_call>) -> Result<Self> {
        let Some(&sys::otr_host_call {
            function,
            user,
            flags,
            ..
        }) = call
        else {
            return refuse("the host call is NULL");
        };
        if flags & !sys::OTR_HOST_CALL_CANNOT_FAIL != 0 {
            return refuse(format!("{flags:#x} has unknown flags of a host call"));
        }
        match function {
            Some(function) => Ok(Self::Call {
                function,
                user,
                flags,
            }),
            None => refuse("the function of a host call is NULL"),
        }
    }

    /// Submits it to a queue of the driver; a graph is none of the commands that are submitted.
    ///
    /// # Safety
    /// R31: all that the command names is live until it has finished.
    pub(crate) unsafe fn submit(&self, recorder: &Recorder, queue: *mut sys::otr_queue) -> i32 {
        let calls = &recorder.calls;
        // SAFETY: this function's contract; patterns and arguments are copied during the call.
        unsafe {
            match self {
                Self::Launch(launch) => launch.submit(recorder, queue),
                Self::Fill {
                    to,
                    size,
                    pattern,
                    length,
                } => {
                    let fill = params::fill(*to, *size, pattern.as_ptr().cast(), *length);
                    (calls.fill)(queue, &fill)
                }
                Self::Copy {
                    to,
                    from,
                    size,
                    kind,
                } => (calls.copy)(queue, &params::copy(*to, *from, *size, *kind)),
                Self::Call {
                    function,
                    user,
                    flags,
                } => {
                    let call = params::host_call(Some(*function), *user, *flags);
                    (calls.host_call)(queue, &call)
                }
                Self::Graph(_) => Code::INTERNAL.0,
            }
        }
    }

    /// Whether another one is of the same kind, with the same kernel or function and a block of the same size.
    fn same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Launch(one), Self::Launch(other)) => {
                one.kernel == other.kernel && one.args_size == other.args_size
            }
            (
                Self::Call {
                    function: one,
                    flags: own,
                    ..
                },
                Self::Call {
                    function: other,
                    flags,
                    ..
                },
            ) => std::ptr::fn_addr_eq(*one, *other) && own == flags,
            (Self::Graph(one), Self::Graph(other)) => one.check_same(0, other).is_ok(),
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}

impl Body {
    /// Refuses another one whose commands differ from these, from number `first` on, in more than their arguments (R35).
    pub(crate) fn check_same(&self, first: usize, other: &Self) -> Result<()> {
        let own = self.commands.get(first..).unwrap_or_default();
        let mut pairs = own.iter().zip(&other.commands);
        if let Some(at) = pairs.position(|(one, other)| !one.command.same(&other.command)) {
            return refuse(format!(
                "command {} (from 0) of the graph is not of the kind, the kernel or the size of command {at} of the other one",
                first + at
            ));
        }
        if own.len() < other.commands.len() {
            return refuse(format!(
                "the graph has {} commands from number {first} on, not {}",
                own.len(),
                other.commands.len()
            ));
        }
        Ok(())
    }

    /// Takes the arguments of another one's commands, from number `first` on. What each waits for stays.
    pub(crate) fn replace(&mut self, first: usize, other: &Self) {
        for (own, new) in self.commands[first..].iter_mut().zip(&other.commands) {
            own.command = new.command.clone();
        }
    }
}

#[cold]
fn refuse<T>(text: impl Into<String>) -> Result<T> {
    Err(Refusal::new(Code::INVALID_ARGUMENT, text))
}
