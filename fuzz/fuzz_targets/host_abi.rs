//! Random sequences of calls of the C ABI, with handles and addresses that are live, stale, of another
//! kind, and invented. Every call must answer: it writes nothing on failure, every failure has a code
//! and a text, no failure is a defect of the library, and nothing is in use when everything was given
//! back.
//!
//! The sequences keep what the contract leaves to the host: operands lie in live memory, work of other
//! streams on memory is waited for before the memory is freed, and loops in graphs end.

#![no_main]

mod calls;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| calls::run(data));
