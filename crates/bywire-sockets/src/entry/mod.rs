//! The names that this library takes over from the C library.
//!
//! Each passes its arguments on to the room that decides, with the C library's own function.
//!
//! A thread that is cancelled in one is unwound by the C library, through these functions and whatever they hold: so none
//! catches anything, and nothing of ours may panic.

mod credentials;
mod data;
mod descriptor;
mod files;
mod io_uring;
mod jumps;
mod polling;
mod process;
mod signals;
mod stdio;

/// Defines exported functions, which a cancelled thread may be unwound through.
macro_rules! take_over {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty $body:block)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// As C's function of this name demands.
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $result {
                $body
            }
        )*
    };
}
use take_over;
