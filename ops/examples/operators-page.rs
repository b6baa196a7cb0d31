//! Prints `docs/operators.md`. `cargo xtask gen` starts it.

// Standard output is this program's result, read by the process that started it.
#![allow(clippy::print_stdout)]

fn main() {
    print!("{}", outrigger_ops::catalog::page());
}
