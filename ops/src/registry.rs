//! The table of operators: their names, and how each is planned. The table is fixed at compile time, so an id is an
//! index, and finding a plan is one indirect call.

use std::ffi::CStr;

use crate::bounds;
use crate::call::Call;
use crate::error::Result;
use crate::plan::Plan;
use crate::{copy, elementwise, generate, index, loss, matmul, norm, optimizer, reduce, rows};

/// One operator. Each module of operators lists its own ones.
pub(crate) struct Definition {
    pub(crate) name: &'static CStr,
    /// Checks the call and fills the plan.
    pub(crate) plan: fn(&Call<'_>, &mut Plan) -> Result<()>,
}

/// All operators, grouped as in `docs/operators.md`.
const GROUPS: [&[Definition]; 14] = [
    elementwise::ARITHMETIC,
    elementwise::FUNCTIONS,
    elementwise::SELECTION,
    copy::OPERATORS,
    reduce::SUMS,
    reduce::EXTREMES,
    matmul::OPERATORS,
    rows::OPERATORS,
    norm::OPERATORS,
    index::OPERATORS,
    loss::OPERATORS,
    optimizer::OPERATORS,
    generate::SEQUENCES,
    generate::RANDOM,
];

const COUNT: usize = {
    let mut count = 0;
    let mut group = 0;
    while group < GROUPS.len() {
        count += GROUPS[group].len();
        group += 1;
    }
    count
};

static TABLE: [&Definition; COUNT] = {
    const NONE: Definition = Definition {
        name: c"",
        plan: |_, _| Ok(()),
    };
    let mut table = [&NONE; COUNT];
    let (mut at, mut group) = (0, 0);
    while group < GROUPS.len() {
        let mut one = 0;
        while one < GROUPS[group].len() {
            table[at] = &GROUPS[group][one];
            at += 1;
            one += 1;
        }
        group += 1;
    }
    table
};

/// An operator: its index in the table, valid for the life of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperatorId(u32);

impl OperatorId {
    /// The operator with this name, as in `docs/operators.md`. It compares strings: callers keep the id.
    pub fn find(name: &CStr) -> Option<Self> {
        let index = TABLE
            .iter()
            .position(|definition| definition.name == name)?;
        Some(Self(index as u32))
    }

    /// The operator with this index, if there is one.
    #[inline]
    pub fn from_index(index: u32) -> Option<Self> {
        ((index as usize) < COUNT).then_some(Self(index))
    }

    /// The index, less than the number of operators.
    #[inline]
    pub fn index(self) -> u32 {
        self.0
    }

    /// The name.
    #[inline]
    pub fn name(self) -> &'static CStr {
        TABLE[self.0 as usize].name
    }

    /// Whether the operator draws random numbers. Then its last two scalars are seed and offset.
    pub fn is_random(self) -> bool {
        let name = self.name();
        generate::RANDOM.iter().any(|one| one.name == name)
    }

    /// All operators.
    pub fn all() -> impl ExactSizeIterator<Item = Self> {
        (0..COUNT as u32).map(Self)
    }
}

/// Plans a call: checks it, chooses the kernel and packs the kernel's arguments. Touches no device memory.
///
/// # Errors
/// [`crate::PlanError::Unsupported`] if there is no host kernel for these dtypes and layouts;
/// [`crate::PlanError::Invalid`] if operands or scalars do not fit the operator.
#[inline]
pub fn plan(operator: OperatorId, call: &Call<'_>) -> Result<Plan> {
    bounds::check(call)?;
    let definition = TABLE[operator.0 as usize];
    let mut plan = Plan::new(definition.name);
    (definition.plan)(call, &mut plan)?;
    Ok(plan)
}
