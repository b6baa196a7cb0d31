//! R45 to R47: the driver's own library of operators, without Outrigger's code above it. A driver
//! chooses which operators it has; only those are judged.

use std::cell::Cell;

use outrigger_device::sys::otr_operator_call_t;
use outrigger_device::{DType, Driver, Operator, Queue};

use super::operand::{GUARD, Runner, SENTINEL};
use super::{CAST_CASES, Case, FLOAT_CASES, INTEGER_CASES};
use crate::test::tests;
use crate::tests::kit::{Bench, read, write};
use crate::verdict::check;
use crate::{Context, Failure, Verdict};

// A driver may compile each operator, which takes minutes for all of them.
tests! { "ops.library":
    /// The operators that the library has of f32 give what references in f64 give, and write nothing else.
    results_of_f32: R45 R46 R47, needs Operators, limit 600, run |c| results(c, DType::F32);
    /// The operators that the library has of f64 give what references in f64 give, and write nothing else.
    results_of_f64: R45 R46 R47, needs Operators, limit 600, run |c| results(c, DType::F64);
    /// The operators that the library has of f16 give what references in f64 give, and write nothing else.
    results_of_f16: R45 R46 R47, needs Operators, limit 600, run |c| results(c, DType::F16);
    /// The operators that the library has of bf16 give what references in f64 give, and write nothing else.
    results_of_bf16: R45 R46 R47, needs Operators, limit 600, run |c| results(c, DType::BF16);
    /// The operators that the library has of integers and bool give what references in f64 give, and write nothing
    /// else.
    results_of_integers: R45 R46 R47, needs Operators, limit 600, run |c| {
        [DType::I64, DType::I32, DType::I16, DType::I8, DType::U8, DType::BOOL]
            .into_iter()
            .try_for_each(|dtype| results(c, dtype))
    };
}

/// All that the suite can judge of one dtype.
fn results(context: &Context, dtype: DType) -> Verdict {
    let cases = [FLOAT_CASES, INTEGER_CASES, CAST_CASES]
        .into_iter()
        .flatten();
    let mut taken = 0;
    for Case { judge, .. } in cases.filter(|case| case.dtype == dtype) {
        let library = Library::new(context, 0)?;
        judge(&library)?;
        taken += library.taken.get();
        library.bench.finish()?;
    }
    context.note(format!("{taken} calls of {} had an operator", dtype.name()));
    Ok(())
}

/// Asks for the operator of a call; `None` if there is none.
pub(super) fn prepare(
    driver: &Driver,
    device: u32,
    call: &otr_operator_call_t,
) -> Verdict<Option<(Operator, u64)>> {
    let group = driver.operators();
    let group = group.ok_or_else(|| Failure::new("the driver has the group operators"))?;
    // SAFETY: what the call points to lives as long as it.
    let answer = unsafe { group.prepare(device, call) }?;
    Ok(answer.map(|(operator, needs)| (operator, needs.workspace_bytes)))
}

/// The library as a runner of operators.
pub(super) struct Library {
    pub(super) bench: Bench,
    pub(super) queue: Queue,
    seed: u64,
    /// Calls for which there was an operator.
    taken: Cell<u32>,
}

impl Library {
    pub(super) fn new(context: &Context, device: u32) -> Verdict<Self> {
        let bench = Bench::new(context)?;
        Ok(Self {
            queue: bench.queue_on(device)?,
            bench,
            seed: context.seed(),
            taken: Cell::new(0),
        })
    }
}

impl Runner for Library {
    fn place(&self, bytes: &[u8]) -> Verdict<u64> {
        let device = self.queue.device();
        let address = self.bench.memory_on(device, bytes.len() as u64)?;
        write(&self.queue, address, bytes)?;
        Ok(address)
    }

    fn fetch(&self, address: u64, size: usize) -> Verdict<Vec<u8>> {
        read(&self.queue, address, size)
    }

    fn run(&self, call: &otr_operator_call_t) -> Verdict<bool> {
        let Some((operator, bytes)) = prepare(&self.bench, self.queue.device(), call)? else {
            return Ok(false);
        };
        self.taken.set(self.taken.get() + 1);
        let workspace = Workspace::new(self, bytes, 0xff)?;
        // SAFETY: the operator was prepared for this call; it is waited for before the memory goes.
        unsafe {
            self.queue
                .launch_operator(&operator, call, workspace.address)
        }?;
        self.queue.synchronize()?;
        workspace.is_kept(self)?;
        Ok(true)
    }

    fn seed(&self) -> u64 {
        self.seed
    }
}

/// A workspace with sentinels around it.
pub(super) struct Workspace {
    /// 0 where none is wanted.
    pub(super) address: u64,
    bytes: u64,
    guard: u64,
}

impl Workspace {
    /// Filled with one value.
    pub(super) fn new(library: &Library, bytes: u64, value: u8) -> Verdict<Self> {
        let device = library.queue.device();
        let alignment = library.bench.properties(device)?.address_alignment;
        let guard = u64::from(alignment).max(GUARD as u64);
        let mut address = 0;
        if bytes > 0 {
            let mut content = vec![SENTINEL; (2 * guard + bytes) as usize];
            content[guard as usize..][..bytes as usize].fill(value);
            address = library.place(&content)? + guard;
        }
        Ok(Self {
            address,
            bytes,
            guard,
        })
    }

    /// Checks that nothing around it was written.
    pub(super) fn is_kept(&self, library: &Library) -> Verdict {
        if self.bytes == 0 {
            return Ok(());
        }
        let size = (2 * self.guard + self.bytes) as usize;
        let content = library.fetch(self.address - self.guard, size)?;
        let (before, rest) = content.split_at(self.guard as usize);
        let behind = &rest[self.bytes as usize..];
        let kept = |bytes: &[u8]| bytes.iter().all(|byte| *byte == SENTINEL);
        let bytes = self.bytes;
        check!(
            kept(before),
            "R47: nothing in front of a workspace of {bytes} bytes is written"
        );
        check!(
            kept(behind),
            "R47: nothing behind a workspace of {bytes} bytes is written"
        );
        Ok(())
    }
}
