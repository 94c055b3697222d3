//! Functions of the libfabric that has loaded this library.
//!
//! They are looked up when they are needed. A link to `libfabric.so.1` would bind to the newest versions of its functions,
//! which an older libfabric lacks. It is in the process already, so it is never loaded.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::Write as _;
use std::sync::OnceLock;

use crate::abi::{FI_LOG_EP_CTRL, FI_LOG_INFO, FI_LOG_WARN, FI_PARAM_STRING, fi_provider};

/// The provider, as libfabric knows it.
static PROVIDER: OnceLock<Provider> = OnceLock::new();

struct Provider(*const fi_provider);

// SAFETY: only libfabric looks at what is there.
unsafe impl Send for Provider {}
// SAFETY: only libfabric looks at what is there.
unsafe impl Sync for Provider {}

type LogEnabled = unsafe extern "C" fn(*const fi_provider, c_int, c_int) -> c_int;
type Log = unsafe extern "C" fn(*const fi_provider, c_int, c_int, *const c_char, c_int, *const c_char, ...);

type ParameterDefine =
    unsafe extern "C" fn(*const fi_provider, *const c_char, c_int, *const c_char, ...) -> c_int;
type ParameterGet = unsafe extern "C" fn(*const fi_provider, *const c_char, *mut c_void) -> c_int;

struct Functions {
    log_enabled: LogEnabled,
    log: Log,
    parameter_define: ParameterDefine,
    parameter_get: ParameterGet,
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
        let parameter_define = symbol(c"fi_param_define")?;
        // SAFETY: in version FABRIC_1.0 of libfabric the function of this name has this type.
        let parameter_define =
            unsafe { std::mem::transmute::<*mut c_void, ParameterDefine>(parameter_define) };
        let parameter_get = symbol(c"fi_param_get")?;
        // SAFETY: in version FABRIC_1.0 of libfabric the function of this name has this type.
        let parameter_get = unsafe { std::mem::transmute::<*mut c_void, ParameterGet>(parameter_get) };
        Some(Functions { log_enabled, log, parameter_define, parameter_get })
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

/// Makes a variable known to libfabric, whose program `fi_info -e` then explains it: `eager` is `FI_BYWIRE_EAGER`.
pub fn define(name: &CStr, help: &CStr) {
    let (Some(Provider(provider)), Some(functions)) = (PROVIDER.get(), functions()) else { return };
    // SAFETY: the provider is the static that libfabric has been given. The help is a format without arguments.
    unsafe { (functions.parameter_define)(*provider, name.as_ptr(), FI_PARAM_STRING, help.as_ptr()) };
}

/// The value of a variable that was made known, if it is set.
pub fn parameter(name: &CStr) -> Option<String> {
    let (Provider(provider), functions) = (PROVIDER.get()?, functions()?);
    let mut value: *const c_char = std::ptr::null();
    let place = (&raw mut value).cast::<c_void>();
    // SAFETY: the provider is the static that libfabric has been given, and the place one for the address of a string.
    let status = unsafe { (functions.parameter_get)(*provider, name.as_ptr(), place) };
    if status != 0 || value.is_null() {
        return None;
    }
    // SAFETY: libfabric gives a valid string, in the environment.
    Some(unsafe { CStr::from_ptr(value) }.to_string_lossy().into_owned())
}

/// Writes a warning to libfabric's log.
pub fn warn(text: &str) {
    write(FI_LOG_WARN, text);
}

/// Writes a warning to standard error, where users see it without asking for a log.
pub fn complain(text: &str) {
    // A closed standard error is no reason to fail.
    let _ = writeln!(std::io::stderr(), "bywire: {text}");
}

/// Writes what happened to libfabric's log.
pub fn inform(text: &str) {
    write(FI_LOG_INFO, text);
}
