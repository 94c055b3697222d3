//! The names that this library takes over from the C library.
//!
//! Each hands what it was called with to where it is decided, and the C library's own function along with it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::errno;

mod data;
mod descriptor;
mod program;
mod standing;
mod waiting;

/// A panic of ours ends the call, and nothing of the program's.
#[inline(always)]
pub fn shield<T>(failed: T, work: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        errno::set(libc::EIO);
        failed
    })
}

/// Defines exported functions whose bodies are shielded.
macro_rules! take_over {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty, else $failed:expr; $body:block)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// As C's function of this name demands.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
                $crate::entry::shield($failed, || $body)
            }
        )*
    };
}
use take_over;
