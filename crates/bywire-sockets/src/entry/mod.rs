//! The names that this library hooks in the C library.
//!
//! Each hook passes its arguments, and the C library's own function, to the module that decides.
//!
//! The C library unwinds a cancelled thread through these functions and whatever they hold. So none of them catches a
//! panic, and nothing in this library may panic.

mod by_number;
mod credentials;
mod data;
mod descriptor;
mod files;
mod io_uring;
mod jumps;
mod loading;
mod older_calls;
mod polling;
mod process;
mod signals;
mod socket;
mod stdio;

/// Defines exported functions. A cancelled thread may be unwound through them.
macro_rules! take_over {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty $body:block)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// The requirements of C's function of this name.
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $result {
                $body
            }
        )*
    };
}
use take_over;
