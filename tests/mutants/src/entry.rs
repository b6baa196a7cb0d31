//! Defects of `otr_driver_get_api`. It has no options, so the environment names the defect.

use outrigger_device::{Code, sys};
use outrigger_layers::fail;

use crate::{Faithful, Mutant};

/// The variable that names the mutant to a library or a program that is asked before any option is.
pub const VARIABLE: &str = "OUTRIGGER_MUTANT";

/// The mutants of this module.
pub(crate) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "another_major_taken",
        about: "A host of another major version is taken.",
        rules: &["R2"],
        make: || Box::new(Faithful),
    },
    Mutant {
        name: "newer_minor_refused",
        about: "A host of a newer minor version is refused.",
        rules: &["R2"],
        make: || Box::new(Faithful),
    },
    Mutant {
        name: "majors_unnamed",
        about: "The text for another major version has no number.",
        rules: &["R2"],
        make: || Box::new(Faithful),
    },
];

/// The answer to a host, by the defect that the environment names.
pub(crate) fn answer(host: &sys::otr_host_info) -> i32 {
    let defect = std::env::var(VARIABLE).unwrap_or_default();
    let (major, own) = (host.api_major, sys::OTR_DRIVER_API_MAJOR);
    match defect.as_str() {
        "newer_minor_refused" if host.api_minor > sys::OTR_DRIVER_API_MINOR => {
            fail(Code::VERSION, "the host is newer than this driver")
        }
        "majors_unnamed" if major != own => fail(Code::VERSION, "the host speaks another version"),
        "another_major_taken" => Code::OK.0,
        _ if major == own => Code::OK.0,
        _ => fail(
            Code::VERSION,
            format!("the host speaks version {major} of the contract, this driver {own}"),
        ),
    }
}
