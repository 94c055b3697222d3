//! The calls that load libraries, and those that look symbols up.
//!
//! The C library's functions find out by their caller's address which object calls them: its search path applies, and
//! `RTLD_NEXT` means what comes behind it. So these hooks jump to them wherever that matters.

use crate::process::loading;

/// Defines functions that `$choose` answers, or else says where to continue with the same arguments and the same
/// caller.
macro_rules! take_lookups_over {
    ($($(#[$doc:meta])* fn $name:ident => $choose:path;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// The requirements of C's function of this name.
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name() {
                crate::os::arch::answer_or_continue!($choose)
            }
        )*
    };
}

take_lookups_over! {
    /// Loads a library.
    fn dlopen => loading::open;

    /// Loads a library into a namespace.
    fn dlmopen => loading::open_in_namespace;

    /// Looks a symbol up.
    fn dlsym => loading::symbol;

    /// Looks a version of a symbol up.
    fn dlvsym => loading::versioned_symbol;
}
