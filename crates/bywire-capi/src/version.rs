//! Versions of the interface and of the library.

use std::ffi::{CStr, c_char};

/// The version of this interface. A library with another version has another file name (`libbywire.so.N`).
pub const BW_ABI_VERSION: u32 = 0;

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(text) => text,
    Err(_) => panic!("a version has no zero byte"),
};

/// The version of the interface that the library was built with, for comparison with BW_ABI_VERSION.
#[unsafe(no_mangle)]
pub extern "C" fn bw_abi_version() -> u32 {
    BW_ABI_VERSION
}

/// The library's own version as text, such as "0.1.0"; valid forever.
#[unsafe(no_mangle)]
pub extern "C" fn bw_version() -> *const c_char {
    VERSION.as_ptr()
}
