//! Prints `outrigger.h`, made from ffi/ as ffi/cbindgen.toml says. A program of its own, behind the
//! feature `gen`, so that only those who regenerate build cbindgen. Started by `cargo xtask gen`; never
//! by a person.

use std::path::Path;

use anyhow::Context;

fn main() -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("xtask lies in the workspace")?;
    let ffi = root.join("ffi");
    // The exports are declared by a macro, which only the compiler expands, and only when it is told
    // that unstable output is welcome.
    // SAFETY: this program has one thread.
    unsafe { std::env::set_var("RUSTC_BOOTSTRAP", "1") };
    let config = cbindgen::Config::from_file(ffi.join("cbindgen.toml"))
        .map_err(anyhow::Error::msg)
        .context("ffi/cbindgen.toml")?;
    let header = cbindgen::Builder::new()
        .with_crate(&ffi)
        .with_config(config)
        .generate()?;
    header.write(std::io::stdout().lock());
    Ok(())
}
