//! Prints the Rust bindings of `driver.h`, or of `table.h`, with all of the host contract, on top of those. It is a separate program behind the feature
//! `gen`, so that only those who regenerate build bindgen and need libclang. `cargo xtask gen` starts it, never a person.

// Standard output is this program's result, read by the process that started it.
#![allow(clippy::print_stdout)]

use anyhow::Context;
use bindgen::callbacks::{IntKind, ParseCallbacks};

/// Gives each constant the type that its values have in the contract.
#[derive(Debug)]
struct ConstantTypes;

impl ParseCallbacks for ConstantTypes {
    fn int_macro(&self, name: &str, _value: i64) -> Option<IntKind> {
        let signed = ["OTR_OK", "OTR_NOT_READY", "OTR_ERR_", "OTR_LOG_"];
        if signed.iter().any(|prefix| name.starts_with(prefix)) {
            return Some(IntKind::I32);
        }
        match name {
            _ if name.starts_with("OTR_DEVICE_") => Some(IntKind::U64),
            "OTR_IPC_HANDLE_BYTES" => Some(IntKind::Custom {
                name: "usize",
                is_signed: false,
            }),
            _ => Some(IntKind::U32),
        }
    }
}

fn main() -> anyhow::Result<()> {
    let header = std::env::args()
        .nth(1)
        .context("usage: bindings PATH-TO-HEADER")?;
    let target = bindgen::RustTarget::stable(85, 0).map_err(|error| anyhow::anyhow!("{error}"))?;
    let mut builder = bindgen::builder();
    if header.ends_with("table.h") {
        builder = builder
            .blocklist_file(".*/base[.]h")
            .raw_line("use outrigger_device::sys::*;");
    }
    let bindings = builder
        .header(&header)
        // Fixed, so that the output is the same wherever it is made.
        .clang_args(["-std=c11", "--target=x86_64-unknown-linux-gnu"])
        .parse_callbacks(Box::new(ConstantTypes))
        .allowlist_type("otr_.*")
        .allowlist_var("OTR_.*")
        // An import that nothing exports: drivers are loaded, not linked. Functions of the host contract are in its table.
        .blocklist_function("otr_.*")
        .blocklist_item("OTR_DRIVER_EXPORT")
        .layout_tests(true)
        .prepend_enum_name(false)
        .use_core()
        .disable_header_comment()
        .rust_target(target)
        .rust_edition(bindgen::RustEdition::Edition2024)
        .formatter(bindgen::Formatter::Prettyplease)
        .generate()
        .with_context(|| format!("bindgen could not read {header}"))?;
    print!("{bindings}");
    Ok(())
}
