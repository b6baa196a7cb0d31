//! Any bytes as a memory snapshot, pickled by PyTorch or as JSON: the reader of the command line answers
//! with the story of a device or says what is wrong; it never panics, and never runs what a pickle says.

#![no_main]

use libfuzzer_sys::fuzz_target;

mod memory;

fuzz_target!(|data: &[u8]| {
    memory::read(data);
});
