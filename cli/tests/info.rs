//! `outrigger info` as a user runs it.
//!
//! These tests must never depend on hardware: the driver is the built-in one.

use std::process::{Command, Output};

fn info(driver: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_outrigger"))
        .args(["info", "--driver", driver])
        .output()
        .expect("the command line starts")
}

#[test]
fn devices_are_listed_and_refusals_explained() {
    let output = info("nobody,host?devices=3&memory=64M&virtual_memory=on");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    for part in [
        "host",
        "virtual memory",
        "device 2",
        "0.06 GiB",
        "liboutrigger_nobody.so",
    ] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
    assert!(!text.contains("device 3"), "{text}");
}

#[test]
fn without_a_driver_it_fails_and_says_why() {
    let output = info("nobody");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("liboutrigger_nobody.so"), "{text}");
}

#[test]
fn layers_are_named_and_nonsense_is_refused() {
    let with = |layers: &str| {
        Command::new(env!("CARGO_BIN_EXE_outrigger"))
            .args(["info", "--driver", "host?memory=64M"])
            .env("OUTRIGGER_LAYERS", layers)
            .output()
            .expect("the command line starts")
    };
    let output = with("validate,fault:above=1M");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("validate,fault:above=1M"), "{text}");
    let output = with("validat");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{text}");
    assert!(
        text.contains("OUTRIGGER_LAYERS") && text.contains("`validat`"),
        "{text}"
    );
}
