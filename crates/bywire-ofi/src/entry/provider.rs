//! The provider, as libfabric loads it.

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int};

use super::call::{shielded, status};
use super::{fabric, info};
use crate::abi::{VERSION, fi_info, fi_provider};
use crate::{host, parameters};

/// The provider lies in writable memory, as libfabric keeps something of its own there.
struct Provider(UnsafeCell<fi_provider>);

// SAFETY: this library gives libfabric the address and does not look at it again.
unsafe impl Sync for Provider {}

static PROVIDER: Provider = Provider(UnsafeCell::new(fi_provider {
    version: info::PROVIDER_VERSION,
    fi_version: VERSION,
    context: [std::ptr::null_mut(); 4],
    name: c"bywire".as_ptr(),
    getinfo,
    fabric: fabric::open,
    cleanup,
}));

/// The entry point of the library. It has no side effect but that libfabric knows the variables.
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut fi_provider {
    host::attach(PROVIDER.0.get());
    let _ = shielded(|| {
        parameters::define();
        Ok(())
    });
    PROVIDER.0.get()
}

extern "C" fn getinfo(
    version: u32,
    _node: *const c_char,
    _service: *const c_char,
    _flags: u64,
    hints: *const fi_info,
    found: *mut *mut fi_info,
) -> c_int {
    status(|| info::describe(version, hints, found))
}

extern "C" fn cleanup() {}
