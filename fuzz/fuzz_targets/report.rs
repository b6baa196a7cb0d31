//! Any text as a report of the conformance suite: the verifier accepts it or says why not; it never
//! panics. If it accepts a report, it also accepts the same report written again. Because of the
//! hashes, random input reaches only the first checks, so a forged report is tried as well.

#![no_main]

use libfuzzer_sys::fuzz_target;
use outrigger_conformance::verify;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let forged = verify::forge(text);
    for text in std::iter::once(text).chain(forged.as_deref()) {
        if let Ok(report) = verify::verify(text) {
            let again = report.to_json();
            assert!(
                verify::verify(&again).is_ok(),
                "an accepted report, written again, is refused"
            );
        }
    }
});
