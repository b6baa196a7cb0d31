//! Builds the C++ side of the bridge in `src/bridge.rs`. The bindings of the two C contracts are
//! committed, so that nothing else is needed here; `cargo xtask gen` makes them anew.

fn main() {
    // Hosts that link with it look for it by this name, wherever it lies.
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,liboutrigger.so");
    }
    println!("cargo:rerun-if-changed=src/bridge.rs");
    println!("cargo:rerun-if-changed=build.rs");
    cxx_build::bridge("src/bridge.rs")
        .std("c++17")
        .compile("outrigger_bridge");
}
