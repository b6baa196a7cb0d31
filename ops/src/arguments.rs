//! Arguments of operators that have a schema: their types, and how a host kernel reads them.
//!
//! A type is one letter: `T` a tensor that is read, `W` one that is written in place, `n` a number, `i` an integer, `b`
//! a truth value, `d` an element type, `s` a string. `?` behind it: it may be left out; `[]`: a list.

use crate::call::{Argument, Call};
use crate::catalog::Entry;
use crate::error::{Result, invalid};

/// Whether an argument is of a type.
fn fits(argument: &Argument<'_>, kind: &str) -> bool {
    let (kind, optional) = match kind.strip_suffix('?') {
        Some(kind) => (kind, true),
        None => (kind, false),
    };
    match argument {
        Argument::None => optional,
        Argument::Input(_) => kind == "T",
        Argument::Inputs(_) => matches!(kind, "T[]" | "T?[]"),
        Argument::Output(_) => kind == "W",
        Argument::Outputs(_) => kind == "W[]",
        Argument::Scalar(_) => kind == "n",
        Argument::Scalars(_) => kind == "n[]",
        Argument::Int(_) => kind == "i",
        Argument::Bool(_) => kind == "b",
        Argument::DType(_) => kind == "d",
        Argument::String(_) => kind == "s",
        Argument::Ints(_) => kind == "i[]",
        Argument::Bools(_) => kind == "b[]",
    }
}

/// Checks the number and the types of a call's arguments.
pub(crate) fn check(entry: &Entry, call: &Call<'_>) -> Result<()> {
    let Some(arguments) = entry.arguments else {
        return Ok(());
    };
    let expected = arguments.split(", ").count();
    if call.args.len() != expected {
        return invalid(format!(
            "{} arguments were passed, {expected} are expected: {arguments}",
            call.args.len()
        ));
    }
    for (value, argument) in call.args.iter().zip(arguments.split(", ")) {
        let kind = argument.split_once(' ').map_or("", |(_, kind)| kind);
        let value = value.get();
        if !fits(&value, kind) {
            return invalid(format!(
                "`{argument}` was passed as {value:?}; the arguments are {arguments}"
            ));
        }
    }
    Ok(())
}
