//! Gives the shared library the name by which programs look for it when they start.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // As long as the ABI version stays, a program finds any build of the library.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libbywire.so.0");
}
