//! Operators by number: those of the catalog, and operators of frameworks that a host or a driver named.
//!
//! The number of an operator of the catalog is its place there, so finding a plan is one indirect call. Other names get
//! the numbers behind them, when they are first heard of.

use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::OnceLock;

use outrigger_locks::{Mutex, Rank};

use crate::arguments;
use crate::bounds;
use crate::call::Call;
use crate::catalog::{COUNT, ENTRIES, Entry};
use crate::error::{Result, unsupported};
use crate::plan::Plan;
use crate::{
    attention, cells, convolution, copy, divergence, elementwise, embedding, generate, index,
    linear, loss, matmul, norm, optimizer, pick, pooling, reduce, resampling, rows, sampling,
    scatter, sorting, statistics,
};

/// The host kernels of an operator. Each module of operators lists its own ones.
pub(crate) struct Definition {
    pub(crate) name: &'static CStr,
    /// Checks the call and fills the plan.
    pub(crate) plan: PlanFn,
}

type PlanFn = fn(&Call<'_>, &mut Plan) -> Result<()>;

/// All host kernels.
const GROUPS: [&[Definition]; 27] = [
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
    sampling::RANDOM,
    sorting::OPERATORS,
    convolution::OPERATORS,
    scatter::OPERATORS,
    pick::OPERATORS,
    pooling::OPERATORS,
    statistics::OPERATORS,
    resampling::OPERATORS,
    embedding::OPERATORS,
    cells::OPERATORS,
    attention::OPERATORS,
    divergence::OPERATORS,
    linear::OPERATORS,
];

/// The plans in the order of the catalog.
static PLANS: [PlanFn; COUNT] = {
    let mut plans: [PlanFn; COUNT] = [no_host_kernel; COUNT];
    let (mut group, mut found) = (0, 0);
    while group < GROUPS.len() {
        let mut one = 0;
        while one < GROUPS[group].len() {
            let mut at = 0;
            while at < COUNT {
                if same(ENTRIES[at].name, GROUPS[group][one].name) {
                    plans[at] = GROUPS[group][one].plan;
                    found += 1;
                }
                at += 1;
            }
            one += 1;
            found -= 1;
        }
        group += 1;
    }
    assert!(found == 0, "each host kernel has one row of the catalog");
    plans
};

const fn same(one: &CStr, other: &CStr) -> bool {
    let (one, other) = (one.to_bytes(), other.to_bytes());
    if one.len() != other.len() {
        return false;
    }
    let mut at = 0;
    while at < one.len() {
        if one[at] != other[at] {
            return false;
        }
        at += 1;
    }
    true
}

fn no_host_kernel(_: &Call<'_>, _: &mut Plan) -> Result<()> {
    unsupported("there is no host kernel for this operator")
}

/// The most operators beside those of the catalog.
const OTHERS: usize = 8192;

/// Names of operators of frameworks, by number less [`COUNT`].
static NAMES: [OnceLock<&'static CStr>; OTHERS] = [const { OnceLock::new() }; OTHERS];

/// The same by name; its size is the number of names.
static NUMBERS: Mutex<Option<HashMap<&'static CStr, u32>>> = Mutex::new(Rank::OperatorNames, None);

/// An operator: its number, valid for the life of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperatorId(u32);

impl OperatorId {
    /// No number of an operator is as large.
    pub const MOST: usize = COUNT + OTHERS;

    /// The operator with this name: one of `docs/operators.md`, or the schema name of a framework's operator, such as
    /// `aten::grid_sampler_2d`. A framework's operator that a row of the page serves is found as that. It compares
    /// strings: callers keep the id.
    pub fn find(name: &CStr) -> Option<Self> {
        let is = |entry: &&Entry| entry.name == name || entry.serves.contains(&name);
        if let Some(at) = ENTRIES.iter().position(is) {
            return Some(Self(at as u32));
        }
        let bytes = name.to_bytes();
        if !bytes.windows(2).any(|two| two == b"::") {
            return None;
        }
        let mut numbers = NUMBERS.lock();
        let numbers = numbers.get_or_insert_default();
        if let Some(&number) = numbers.get(name) {
            return Some(Self(number));
        }
        let at = numbers.len();
        // A name lives as long as the process, as its number does.
        let name = &*Box::leak(name.to_owned().into_boxed_c_str());
        NAMES.get(at)?.get_or_init(|| name);
        let number = (COUNT + at) as u32;
        numbers.insert(name, number);
        Some(Self(number))
    }

    /// The operator of the catalog with this name, which must be there.
    pub(crate) const fn named(name: &CStr) -> Self {
        let mut at = 0;
        while !same(ENTRIES[at].name, name) {
            at += 1;
        }
        Self(at as u32)
    }

    /// The operator with this number, if there is one.
    #[inline]
    pub fn from_index(index: u32) -> Option<Self> {
        let known =
            |at: usize| at < COUNT || NAMES.get(at - COUNT).is_some_and(|one| one.get().is_some());
        known(index as usize).then_some(Self(index))
    }

    /// The number.
    #[inline]
    pub fn index(self) -> u32 {
        self.0
    }

    /// The name.
    #[inline]
    pub fn name(self) -> &'static CStr {
        let at = self.0 as usize;
        match ENTRIES.get(at) {
            Some(entry) => entry.name,
            None => NAMES[at - COUNT].get().copied().unwrap_or(c""),
        }
    }

    /// The row of `docs/operators.md`; `None` for an operator of a framework that has none.
    pub fn entry(self) -> Option<&'static Entry> {
        ENTRIES.get(self.0 as usize).copied()
    }

    /// Whether the operator draws random numbers. Then its last two scalars are seed and offset.
    pub fn is_random(self) -> bool {
        let made = generate::RANDOM.iter().chain(sampling::RANDOM);
        let mut random = made.chain(attention::OPERATORS);
        random.any(|one| one.name == self.name())
    }

    /// All operators of `docs/operators.md`.
    pub fn all() -> impl ExactSizeIterator<Item = Self> {
        (0..COUNT as u32).map(Self)
    }
}

/// Whether there is a host kernel for an operator of the catalog.
pub(crate) fn has_host_kernel(name: &CStr) -> bool {
    let mut known = GROUPS.iter().copied().flatten();
    known.any(|definition| definition.name == name)
}

/// Plans a call: checks it, chooses the kernel and packs the kernel's arguments. Touches no device memory.
///
/// # Errors
/// [`crate::PlanError::Unsupported`] if there is no host kernel for these dtypes and layouts;
/// [`crate::PlanError::Invalid`] if operands, scalars or arguments do not fit the operator.
#[inline]
pub fn plan(operator: OperatorId, call: &Call<'_>) -> Result<Plan> {
    if call.device_only {
        return unsupported(
            "the driver has no operator for this call, and no host kernel was asked for",
        );
    }
    bounds::check(call)?;
    let mut plan = Plan::new(operator.name());
    match PLANS.get(operator.0 as usize) {
        Some(make) => make(call, &mut plan)?,
        None => no_host_kernel(call, &mut plan)?,
    }
    Ok(plan)
}

/// Checks a call before a driver sees it: sizes and strides of its operands, and the kinds of its arguments.
///
/// # Errors
/// [`crate::PlanError::Invalid`] that names the operand or the argument, and what is wrong with it.
pub fn check(operator: OperatorId, call: &Call<'_>) -> Result<()> {
    bounds::check(call)?;
    match operator.entry() {
        Some(entry) => arguments::check(entry, call),
        None => Ok(()),
    }
}
