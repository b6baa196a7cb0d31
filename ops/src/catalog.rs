//! The list of all operators: names, operands, scalars or arguments, dtypes and definitions. `docs/operators.md` is made
//! of it, and the registry finds the host kernels of its rows by name.

#[rustfmt::skip] // a row is a line
mod rows;
pub mod samples;

use std::ffi::CStr;
use std::fmt::Write as _;

use outrigger_device::DType;
use rows::SECTIONS;

/// An operator as the documentation has it.
#[derive(Debug)]
pub struct Entry {
    /// The name.
    pub name: &'static CStr,
    /// The operators of frameworks that it serves, by their schema names.
    pub serves: &'static [&'static CStr],
    /// The operands that are read; empty if the operator has a schema.
    pub inputs: &'static str,
    /// The operands that are written.
    pub outputs: &'static str,
    /// The scalars; empty if the operator has a schema.
    pub scalars: &'static str,
    /// The arguments in schema order, each with its type; `None` for operators of operands and scalars alone.
    pub arguments: Option<&'static str>,
    /// Element types.
    pub dtypes: &'static str,
    /// The definition of the results.
    pub definition: &'static str,
}

impl Entry {
    /// Whether its results may have elements of a type.
    pub(crate) fn gives(&self, dtype: DType) -> bool {
        let is_float = matches!(dtype, DType::F32 | DType::F64 | DType::F16 | DType::BF16);
        let is_complex = matches!(dtype, DType::C64 | DType::C128);
        let is_integer = matches!(
            dtype,
            DType::I64
                | DType::I32
                | DType::I16
                | DType::I8
                | DType::U8
                | DType::U16
                | DType::U32
                | DType::U64
        );
        let mut kinds = self.dtypes.split([' ', ',']);
        kinds.any(|kind| match kind {
            "F" => is_float,
            "I" => is_integer,
            "B" => dtype == DType::BOOL,
            "all" => !is_complex,
            "any" => true,
            _ => false,
        })
    }
}

struct Section {
    title: &'static str,
    before: &'static str,
    operators: &'static [Entry],
    after: &'static str,
}

const fn native(
    name: &'static CStr,
    inputs: &'static str,
    outputs: &'static str,
    scalars: &'static str,
    dtypes: &'static str,
    definition: &'static str,
) -> Entry {
    let (serves, arguments) = (&[] as &[_], None);
    Entry {
        name,
        serves,
        inputs,
        outputs,
        scalars,
        arguments,
        dtypes,
        definition,
    }
}

const fn schema(
    name: &'static CStr,
    serves: &'static [&'static CStr],
    arguments: &'static str,
    outputs: &'static str,
    dtypes: &'static str,
    definition: &'static str,
) -> Entry {
    let (inputs, scalars, arguments) = ("", "", Some(arguments));
    Entry {
        name,
        serves,
        inputs,
        outputs,
        scalars,
        arguments,
        dtypes,
        definition,
    }
}

/// The number of operators.
pub(crate) const COUNT: usize = {
    let (mut count, mut section) = (0, 0);
    while section < SECTIONS.len() {
        count += SECTIONS[section].operators.len();
        section += 1;
    }
    count
};

/// All operators; the place of one is its number.
pub(crate) static ENTRIES: [&Entry; COUNT] = {
    let mut entries = [&SECTIONS[0].operators[0]; COUNT];
    let (mut at, mut section) = (0, 0);
    while section < SECTIONS.len() {
        let mut one = 0;
        while one < SECTIONS[section].operators.len() {
            entries[at] = &SECTIONS[section].operators[one];
            at += 1;
            one += 1;
        }
        section += 1;
    }
    entries
};

/// The page `docs/operators.md`.
pub fn page() -> String {
    let mut page = String::from(include_str!("catalog/head.md"));
    for section in SECTIONS {
        let _ = writeln!(page, "\n## {}\n", section.title);
        if !section.before.is_empty() {
            let _ = writeln!(page, "{}\n", section.before);
        }
        let with_schema = section.operators.iter().any(|one| one.arguments.is_some());
        page.push_str(if with_schema {
            "| name | arguments | outputs | dtypes | notes, definition |\n|---|---|---|---|---|\n"
        } else {
            "| name | inputs | outputs | scalars | dtypes | notes, definition |\n|---|---|---|---|---|---|\n"
        });
        for one in section.operators {
            let mark = if crate::registry::has_host_kernel(one.name) {
                ""
            } else {
                " †"
            };
            let name = one.name.to_string_lossy();
            let operands = match one.arguments {
                Some(arguments) => format!("{arguments} | {}", one.outputs),
                None => format!("{} | {} | {}", one.inputs, one.outputs, one.scalars),
            };
            let _ = writeln!(
                page,
                "| `{name}`{mark} | {operands} | {} | {} |",
                one.dtypes, one.definition
            );
        }
        if !section.after.is_empty() {
            let _ = writeln!(page, "\n{}", section.after);
        }
    }
    page
}
