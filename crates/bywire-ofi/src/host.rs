//! Functions of the libfabric that has loaded this library.
//!
//! They are looked up when they are needed. A link to `libfabric.so.1` would bind to the newest versions of its functions,
//! which an older libfabric lacks. It is in the process already, so it is never loaded.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

use crate::abi::{FI_LOG_EP_CTRL, FI_LOG_INFO, FI_LOG_WARN, fi_provider};

/// The provider, as libfabric knows it.
static PROVIDER: OnceLock<Provider> = OnceLock::new();

struct Provider(*const fi_provider);

// SAFETY: only libfabric looks at what is there.
unsafe impl Send for Provider {}
// SAFETY: only libfabric looks at what is there.
unsafe impl Sync for Provider {}

type LogEnabled = unsafe extern "C" fn(*const fi_provider, c_int, c_int) -> c_int;
type Log = unsafe extern "C" fn(*const fi_provider, c_int, c_int, *const c_char, c_int, *const c_char, ...);

struct Functions {
    log_enabled: LogEnabled,
    log: Log,
}

/// Tells which provider logs.
pub fn attach(provider: *mut fi_provider) {
    // It is a static, and the same one at every call.
    let _ = PROVIDER.set(Provider(provider));
}

fn functions() -> Option<&'static Functions> {
    static FUNCTIONS: OnceLock<Option<Functions>> = OnceLock::new();
    let find = || {
        // SAFETY: a valid name. The flags load nothing.
        let library =
            unsafe { libc::dlopen(c"libfabric.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        let symbol = |name: &CStr| {
            // SAFETY: valid names, and the handle of a library that stays, as it has loaded this one.
            let address = unsafe { libc::dlvsym(library, name.as_ptr(), c"FABRIC_1.0".as_ptr()) };
            (!library.is_null() && !address.is_null()).then_some(address)
        };
        let (log_enabled, log) = (symbol(c"fi_log_enabled")?, symbol(c"fi_log")?);
        // SAFETY: in version FABRIC_1.0 of libfabric the function of this name has this type.
        let log_enabled = unsafe { std::mem::transmute::<*mut c_void, LogEnabled>(log_enabled) };
        // SAFETY: in version FABRIC_1.0 of libfabric the function of this name has this type.
        let log = unsafe { std::mem::transmute::<*mut c_void, Log>(log) };
        Some(Functions { log_enabled, log })
    };
    FUNCTIONS.get_or_init(find).as_ref()
}

fn write(level: c_int, text: &str) {
    let (Some(Provider(provider)), Some(functions)) = (PROVIDER.get(), functions()) else { return };
    let provider = *provider;
    // SAFETY: the provider is the static that libfabric has been given.
    if unsafe { (functions.log_enabled)(provider, level, FI_LOG_EP_CTRL) } == 0 {
        return;
    }
    let Ok(text) = CString::new(text) else { return };
    let function = c"bywire";
    // SAFETY: the format takes one string.
    unsafe {
        (functions.log)(
            provider,
            level,
            FI_LOG_EP_CTRL,
            function.as_ptr(),
            0,
            c"%s\n".as_ptr(),
            text.as_ptr(),
        );
    }
}

/// Writes a warning to libfabric's log.
pub fn warn(text: &str) {
    write(FI_LOG_WARN, text);
}

/// Writes what happened to libfabric's log.
pub fn inform(text: &str) {
    write(FI_LOG_INFO, text);
}
