//! How the library is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // At its end libfabric unloads its providers, while a thread that closes a descriptor may still run here.
    println!("cargo::rustc-link-arg-cdylib=-Wl,-z,nodelete");
}
