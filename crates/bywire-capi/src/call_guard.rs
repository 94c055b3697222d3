//! Whether a call works on a port. A port belongs to one thread at a time, and a panic leaves it unusable.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::error::bw_error_t::{BW_ERROR_PANIC, BW_ERROR_THREADS};
use crate::failure::Failure;

/// No call works on the port.
const FREE: u8 = 0;
/// A call works on it.
const BUSY: u8 = 1;
/// A call has panicked: all other calls fail.
const BROKEN: u8 = 2;

/// The state of a port's calls. At first no call works on it.
#[derive(Default)]
pub struct State(AtomicU8);

impl State {
    /// Does a call work on the port?
    pub fn is_busy(&self) -> bool {
        self.0.load(Ordering::Relaxed) == BUSY
    }
}

/// A call that works on a port. If a panic drops it, the port is broken.
pub struct CallGuard<'a>(&'a AtomicU8);

impl<'a> CallGuard<'a> {
    /// Begins a call, unless another one is under way. There are no call-backs, so that one is another thread's,
    /// which is misuse. A build with debug assertions always notices it. Other builds nearly always do, as they spend
    /// no atomic exchange on it.
    ///
    /// # Errors
    /// `BW_ERROR_THREADS`, or `BW_ERROR_PANIC` after a panic.
    #[inline(always)]
    pub fn begin(State(state): &'a State) -> Result<Self, Failure> {
        let before = if cfg!(debug_assertions) {
            // Acquire: pairs with the release in `end`. Programs hand a port from thread to thread by their own
            // means.
            match state.compare_exchange(FREE, BUSY, Ordering::Acquire, Ordering::Relaxed) {
                Ok(before) | Err(before) => before,
            }
        } else {
            let before = state.load(Ordering::Relaxed);
            if before == FREE {
                state.store(BUSY, Ordering::Relaxed);
            }
            before
        };
        match before {
            FREE => Ok(Self(state)),
            BUSY => Err(BW_ERROR_THREADS.into()),
            _ => Err(BW_ERROR_PANIC.into()),
        }
    }

    /// Ends the call in good order.
    #[inline(always)]
    pub fn end(self) {
        // Release: pairs with the acquire in `begin`.
        self.0.store(FREE, Ordering::Release);
        std::mem::forget(self);
    }
}

impl Drop for CallGuard<'_> {
    #[cold]
    fn drop(&mut self) {
        // Release: pairs with the acquire in `begin`.
        self.0.store(BROKEN, Ordering::Release);
    }
}
