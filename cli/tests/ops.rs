//! `outrigger ops` over the driver `host`, with operators of its own and without.

use std::process::Command;

use serde_json::Value;

/// The place of an operator of a type.
fn place(driver: &str, operator: &str, dtype: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_outrigger"))
        .args(["ops", "--json", "--driver", driver])
        .output()
        .expect("the command runs");
    assert!(output.status.success(), "{output:?}");
    let json: Value = serde_json::from_slice(&output.stdout).expect("it prints JSON");
    let operators = json["operators"].as_array().expect("a list");
    let found = operators.iter().find(|one| one["name"] == operator);
    let place = &found.expect("the operator is listed")["places"][dtype];
    place.as_str().expect("a word").to_owned()
}

#[test]
fn places_are_those_of_calls() {
    let native = "host?operators=native";
    for (driver, operator, dtype, right) in [
        ("host", "mm", "f32", "device"),
        ("host", "mm", "bool", "framework"),
        ("host", "sort", "bf16", "device"),
        ("host", "index_copy", "c64", "device"),
        (native, "add", "f32", "driver"),
        (native, "add", "i64", "device"),
        (native, "cumsum", "f32", "device"),
    ] {
        let found = place(driver, operator, dtype);
        assert_eq!(found, right, "{operator} of {dtype} on {driver}");
    }
}

#[test]
fn the_table_explains_its_letters() {
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_outrigger"))
            .args(arguments)
            .output()
            .expect("the command runs");
        (output.status.success(), output)
    };
    let (fine, output) = run(&["ops", "--driver", "host?operators=native"]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(fine && text.starts_with("operator "), "{text}");
    assert!(text.contains("D  an operator of the driver ("), "{text}");
    let (fine, output) = run(&["ops", "--driver", "nowhere"]);
    let text = String::from_utf8(output.stderr).expect("text");
    assert!(!fine && text.contains("nowhere"), "{text}");
    assert!(!run(&["ops", "--device", "99"]).0);
}

#[test]
fn a_log_that_makes_no_sense_is_refused() {
    let run = |directives: &str| {
        Command::new(env!("CARGO_BIN_EXE_outrigger"))
            .args(["ops", "--driver", "host"])
            .env("OUTRIGGER_LOG", directives)
            .output()
            .expect("the command runs")
    };
    let output = run("");
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    let output = run("a=b=c");
    let text = String::from_utf8(output.stderr).expect("text");
    assert!(
        !output.status.success() && text.contains("OUTRIGGER_LOG=a=b=c"),
        "{text}"
    );
}
