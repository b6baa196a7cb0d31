//! Any text as a report of the conformance suite: the verifier accepts it or says why not; it never panics.
//! A report that it accepts is refused when anything in it is changed.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(report) = outrigger_conformance::verify::verify(text) {
        let again = report.to_json();
        assert!(
            outrigger_conformance::verify::verify(&again).is_ok(),
            "an accepted report, written again, is refused"
        );
    }
});
