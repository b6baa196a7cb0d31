//! The kinds of commands, and how each of them runs. A command knows only its own operands; the queue
//! knows order, dependencies and failures.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::board::Board;
use super::collectives::Call;
use super::graph::Body;
use super::queue::Queue;
use super::semaphore::Semaphore;
use super::sync::per_thread;
use crate::{Code, HostFn, HostKernelFn, foreign_call};

/// One command of a queue. Addresses are host pointers: the bias was added when it was submitted.
#[derive(Clone)]
pub(super) enum Command {
    /// The argument block follows the record.
    Launch(Launch),
    Copy {
        dst: u64,
        src: u64,
        size: u64,
    },
    Fill {
        dst: u64,
        size: u64,
        pattern: Pattern,
    },
    HostCall {
        function: HostFn,
        user: *mut c_void,
        /// Whether what the function returns is the outcome.
        can_fail: bool,
    },
    /// Works together with the other ranks of a communicator.
    Collective {
        call: Arc<Call>,
    },
    /// Runs the commands of a graph.
    Graph {
        body: Arc<Body>,
    },
    /// Later commands start after this point of another queue.
    Wait {
        queue: &'static Queue,
        value: u64,
    },
    /// Notes the time for an event.
    Stamp {
        stamp: Arc<Stamp>,
    },
    /// Says to other processes that a point of an event has passed.
    Signal {
        board: Arc<Board>,
        number: u64,
    },
    /// Sets a semaphore.
    Reach {
        semaphore: Arc<Semaphore>,
        value: u64,
    },
    /// Takes a place in the order and does nothing.
    Nop,
    /// The commands go on in another segment. Not a command: the reader never hands it out.
    Jump {
        segment: NonNull<c_void>,
    },
}

/// A launch of a kernel.
#[derive(Clone, Copy)]
pub(super) struct Launch {
    pub(super) kernel: HostKernelFn,
    pub(super) bias: i64,
    /// NULL, or a string that lives as long as the process.
    pub(super) label: *const c_char,
    /// The host's estimate of the run time in nanoseconds; 0 if unknown.
    pub(super) estimate: u32,
}

impl Launch {
    /// As of [`Command::cost_ns`].
    #[inline]
    pub(super) fn cost_ns(&self) -> u64 {
        // Without an estimate it counts as one of about a microsecond.
        if self.estimate == 0 {
            1000
        } else {
            u64::from(self.estimate)
        }
    }
}

/// A copy of several rows, as the argument block of a kernel of this driver: it is too long for a command of its own.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Rows {
    pub(super) dst: u64,
    pub(super) src: u64,
    pub(super) size: u64,
    pub(super) count: u64,
    pub(super) dst_pitch: u64,
    pub(super) src_pitch: u64,
}

impl Rows {
    /// The launch that copies them, without a label, since none was given.
    pub(super) fn launch(&self) -> Launch {
        // Moved bytes count as in `Command::cost_ns`.
        let estimate = self.size.saturating_mul(self.count) / 10;
        Launch {
            kernel: copy_rows,
            bias: 0,
            label: std::ptr::null(),
            estimate: u32::try_from(estimate.max(1)).unwrap_or(u32::MAX),
        }
    }

    /// The argument block.
    pub(super) fn as_bytes(&self) -> &[u8] {
        // SAFETY: numbers alone, without gaps between them.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }
}

/// # Safety
/// `args` is to [`Rows`] whose memory is live (R26) and was checked against its device.
unsafe extern "C" fn copy_rows(args: *const c_void, _size: u32, _bias: i64) -> i32 {
    // SAFETY: this function's contract.
    let rows = unsafe { args.cast::<Rows>().read_unaligned() };
    for row in 0..rows.count {
        let src = (rows.src + row * rows.src_pitch) as *const u8;
        let dst = (rows.dst + row * rows.dst_pitch) as *mut u8;
        // SAFETY: live ranges that do not overlap (R26).
        unsafe { std::ptr::copy_nonoverlapping(src, dst, rows.size as usize) };
    }
    Code::OK.0
}

/// What became of a command: its code, and the label of the launch that it is of, or NULL.
#[derive(Clone, Copy)]
pub(super) struct Outcome {
    pub(super) code: Code,
    pub(super) label: *const c_char,
}

impl From<Code> for Outcome {
    #[inline]
    fn from(code: Code) -> Self {
        let label = std::ptr::null();
        Self { code, label }
    }
}

/// When an event's point passed.
#[derive(Debug, Default)]
pub(super) struct Stamp(AtomicU64);

impl Stamp {
    /// The time in nanoseconds; 0 before the point has passed.
    pub(super) fn time(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The pattern of a fill, repeated to 8 bytes; or one of 16.
#[derive(Clone, Copy)]
pub(super) enum Pattern {
    /// All bytes are the same.
    Byte(u8),
    /// 2, 4 or 8 bytes, repeated to 8.
    Word([u8; 8]),
    /// 16 bytes in two halves. Kept as arrays, so that a command stays within its line.
    Wide([u8; 8], [u8; 8]),
}

impl Pattern {
    /// The pattern of these bytes; `None` if there are not 1, 2, 4, 8 or 16.
    #[inline]
    pub(super) fn new(bytes: &[u8]) -> Option<Self> {
        if !matches!(bytes.len(), 1 | 2 | 4 | 8 | 16) {
            return None;
        }
        if bytes.iter().all(|byte| *byte == bytes[0]) {
            return Some(Self::Byte(bytes[0]));
        }
        let half = |start: usize| std::array::from_fn(|i| bytes[(start + i) % bytes.len()]);
        Some(if bytes.len() == 16 {
            Self::Wide(half(0), half(8))
        } else {
            Self::Word(half(0))
        })
    }
}

/// Nanoseconds of the monotonic clock, which all devices of this driver share.
pub(super) fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // The monotonic clock starts at 0 and never runs backwards.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl Command {
    /// What the command will cost at least, in nanoseconds; an estimate that only decides when a
    /// worker is woken and waiters are looked after.
    #[inline]
    pub(super) fn cost_ns(&self) -> u64 {
        match self {
            Self::Launch(launch) => launch.cost_ns(),
            // Moved bytes count as ten per nanosecond.
            Self::Copy { size, .. } | Self::Fill { size, .. } => size / 10,
            Self::HostCall { .. } | Self::Collective { .. } => u64::MAX,
            Self::Graph { body } => body.cost_ns(),
            Self::Wait { .. }
            | Self::Stamp { .. }
            | Self::Signal { .. }
            | Self::Reach { .. }
            | Self::Nop
            | Self::Jump { .. } => 0,
        }
    }

    /// Whether it lasts as long as somebody outside of this driver likes, as a host call does and work with
    /// other ranks; or has such a command in it.
    #[inline]
    pub(super) fn may_block(&self) -> bool {
        match self {
            Self::HostCall { .. } | Self::Collective { .. } => true,
            Self::Graph { body } => body.may_block(),
            _ => false,
        }
    }

    /// Whether the other command does the same with other arguments.
    pub(super) fn same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Launch(one), Self::Launch(other)) => {
                std::ptr::fn_addr_eq(one.kernel, other.kernel)
            }
            (
                Self::HostCall {
                    function: one,
                    can_fail: can,
                    ..
                },
                Self::HostCall {
                    function: other,
                    can_fail,
                    ..
                },
            ) => std::ptr::fn_addr_eq(*one, *other) && can == can_fail,
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }

    /// The name of the command in traces.
    pub(super) fn label(&self) -> &str {
        match self {
            Self::Launch(launch) if !launch.label.is_null() => {
                // SAFETY: the contract: NUL-terminated, and lives as long as the process.
                unsafe { CStr::from_ptr(launch.label) }
                    .to_str()
                    .unwrap_or("kernel")
            }
            Self::Launch(_) => "kernel",
            Self::Copy { .. } => "copy",
            Self::Fill { .. } => "fill",
            Self::HostCall { .. } => "host call",
            Self::Collective { .. } => "collective",
            Self::Graph { .. } => "graph",
            Self::Wait { .. } => "wait",
            Self::Reach { .. } => "signal",
            Self::Stamp { .. } | Self::Signal { .. } | Self::Nop | Self::Jump { .. } => "mark",
        }
    }

    /// Runs the command and gives its outcome. `upstream` is the failure of the work before it, for
    /// which only host calls and marks are run.
    ///
    /// # Safety
    /// It is the command's turn, its memory is live (R12, R26), and `args` is its argument block.
    #[inline]
    pub(super) unsafe fn run(self, args: (*const u8, u32), upstream: Code) -> Outcome {
        let failed = upstream != Code::OK;
        match self {
            Self::Launch(launch) if !failed => Outcome {
                // SAFETY: the host launched this kernel with these arguments.
                code: Code(unsafe { (launch.kernel)(args.0.cast(), args.1, launch.bias) }),
                label: launch.label,
            },
            Self::Copy { dst, src, size } if !failed => {
                // SAFETY: live ranges that do not overlap (R26), checked against their device.
                unsafe {
                    std::ptr::copy_nonoverlapping(src as *const u8, dst as *mut u8, size as usize);
                }
                Code::OK.into()
            }
            Self::Fill { dst, size, pattern } if !failed => {
                // SAFETY: a live range, checked against its device.
                unsafe { fill(dst as *mut u8, size as usize, pattern) };
                Code::OK.into()
            }
            Self::HostCall {
                function,
                user,
                can_fail,
            } => {
                // SAFETY: called once, in order, with what the host gave (R27).
                let code = Code(unsafe { foreign_call!(function, user, upstream.0) });
                if can_fail { code } else { Code::OK }.into()
            }
            // SAFETY: it is the command's turn, and the memory of the call is live.
            Self::Collective { call } => unsafe { call.run(upstream) },
            // SAFETY: a graph is run in its turn; R31: all that it names is valid until its last launch
            // has finished.
            Self::Graph { body } => unsafe { body.run(upstream) },
            Self::Stamp { stamp } => {
                stamp.0.store(now(), Ordering::Relaxed);
                Code::OK.into()
            }
            Self::Signal { board, number } => {
                board.pass(number, upstream);
                Code::OK.into()
            }
            Self::Reach { semaphore, value } => {
                semaphore.reach(value, upstream);
                Code::OK.into()
            }
            Self::Launch(_)
            | Self::Copy { .. }
            | Self::Fill { .. }
            | Self::Wait { .. }
            | Self::Nop
            | Self::Jump { .. } => Code::OK.into(),
        }
    }
}

/// Repeats a pattern.
///
/// # Safety
/// `size` bytes from `dst` may be written, and the size is a multiple of the pattern.
unsafe fn fill(dst: *mut u8, size: usize, pattern: Pattern) {
    let (first, second) = match pattern {
        // SAFETY: `size` bytes from `dst` may be written.
        Pattern::Byte(byte) => return unsafe { dst.write_bytes(byte, size) },
        Pattern::Word(word) => (word, word),
        Pattern::Wide(first, second) => (first, second),
    };
    let mut bytes = [0u8; 16];
    bytes[..8].copy_from_slice(&first);
    bytes[8..].copy_from_slice(&second);
    let wide = u128::from_ne_bytes(bytes);
    for index in 0..size / 16 {
        // SAFETY: within the range; no alignment is assumed.
        unsafe { dst.cast::<u128>().add(index).write_unaligned(wide) };
    }
    let rest = size % 16;
    // SAFETY: the last bytes of the range, which continue the pattern as 16 is a multiple of it.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), dst.add(size - rest), rest) };
}

per_thread! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is executing commands: a wait would be for work behind the one that waits.
pub(super) fn inside() -> bool {
    INSIDE.with(Cell::get)
}

/// Marks this thread as executing commands, until it is dropped.
pub(super) struct Inside {
    before: bool,
}

impl Inside {
    #[inline]
    pub(super) fn enter() -> Self {
        Self {
            before: INSIDE.with(|inside| inside.replace(true)),
        }
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        INSIDE.with(|inside| inside.set(self.before));
    }
}

#[cfg(test)]
mod tests {
    use super::{Pattern, fill};

    #[test]
    fn patterns_of_every_length_repeat_to_the_last_byte() {
        for length in [1usize, 2, 4, 8, 16] {
            let pattern: Vec<u8> = (1..=length as u8).collect();
            for count in [0, 1, 2, 3, 7, 33] {
                let size = count * length;
                let mut bytes = vec![0xee; size + 3];
                // SAFETY: `size` bytes behind the first lie within the vector.
                unsafe {
                    fill(
                        bytes.as_mut_ptr().add(1),
                        size,
                        Pattern::new(&pattern).unwrap(),
                    )
                };
                assert!(
                    bytes[1..=size]
                        .iter()
                        .enumerate()
                        .all(|(i, b)| *b == pattern[i % length])
                );
                assert_eq!((bytes[0], &bytes[size + 1..]), (0xee, &[0xee, 0xee][..]));
            }
        }
        assert!(Pattern::new(&[]).is_none() && Pattern::new(&[0; 3]).is_none());
    }
}
