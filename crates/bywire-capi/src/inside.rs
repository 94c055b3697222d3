//! Is a call inside a port? A port belongs to one thread at a time, and a panic leaves it unusable.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::error::bw_error_t::{BW_ERROR_PANIC, BW_ERROR_THREADS};
use crate::failure::Failure;

/// No call works on the port.
const FREE: u8 = 0;
/// A call works on it.
const INSIDE: u8 = 1;
/// A call has panicked inside: nothing else is answered.
const BROKEN: u8 = 2;

/// What a port's calls are at; at first none is inside.
#[derive(Default)]
pub struct State(AtomicU8);

impl State {
    /// Does a call work on the port?
    pub fn is_inside(&self) -> bool {
        self.0.load(Ordering::Relaxed) == INSIDE
    }
}

/// A call that works on a port; dropped by a panic, it leaves the port broken.
pub struct Inside<'a>(&'a AtomicU8);

impl<'a> Inside<'a> {
    /// Begins a call, unless another one is under way. There are no call-backs, so that is another thread's: misuse, which
    /// a build with debug assertions always notices, and another one nearly always, as it spends no atomic exchange on it.
    ///
    /// # Errors
    /// `BW_ERROR_THREADS`, or `BW_ERROR_PANIC` after a panic.
    #[inline(always)]
    pub fn begin(State(state): &'a State) -> Result<Self, Failure> {
        let before = if cfg!(debug_assertions) {
            // Acquire: pairs with the release in `end`. A port is handed from thread to thread by the program's own means.
            match state.compare_exchange(FREE, INSIDE, Ordering::Acquire, Ordering::Relaxed) {
                Ok(before) | Err(before) => before,
            }
        } else {
            let before = state.load(Ordering::Relaxed);
            if before == FREE {
                state.store(INSIDE, Ordering::Relaxed);
            }
            before
        };
        match before {
            FREE => Ok(Self(state)),
            INSIDE => Err(BW_ERROR_THREADS.into()),
            _ => Err(BW_ERROR_PANIC.into()),
        }
    }

    /// Ends it in good order.
    #[inline(always)]
    pub fn end(self) {
        // Release: pairs with the acquire in `begin`.
        self.0.store(FREE, Ordering::Release);
        std::mem::forget(self);
    }
}

impl Drop for Inside<'_> {
    #[cold]
    fn drop(&mut self) {
        // Release: pairs with the acquire in `begin`.
        self.0.store(BROKEN, Ordering::Release);
    }
}
