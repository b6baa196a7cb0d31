//! Builds the C++ side of the bridge in `src/bridge.rs`. The bindings of the two C contracts are
//! committed, so that nothing else is needed here; `cargo xtask gen` makes them anew.

fn main() {
    println!("cargo:rerun-if-changed=src/bridge.rs");
    println!("cargo:rerun-if-changed=build.rs");
    cxx_build::bridge("src/bridge.rs")
        .std("c++17")
        .compile("outrigger_bridge");
}
