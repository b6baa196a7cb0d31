//! Random sequences of calls of the C ABI, with handles and addresses that are live, stale, of another kind
//! and made up. Whatever comes, a call answers: nothing is written on failure, every failure has a code and
//! a text, none is a defect of the library, and when all has been given back nothing is in use.
//!
//! What the contract leaves to the host is kept to: operands lie in live memory, work of other streams on
//! memory is waited for before it is freed, and loops in graphs end.

#![no_main]

mod calls;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| calls::run(data));
