//! Returns a carried connection to the kernel, permanently.
//!
//! The writer of a direction ends its ring where the reader has stopped, and gives the kernel the bytes that nobody has
//! taken. Bytes that the kernel has no room for are *owed*. They go there as room becomes available, in every call and
//! every wait on the connection. Until then no other byte of that direction is sent.

use core::sync::atomic::Ordering;

use bywire_pairing::reason::Reason;
use bywire_ring::stream::{ASKS_BACK, HALF, News, Route, Sleep};

use crate::connection::sockets::{self, Connection, STREAM, Socket};
use crate::connection::source::Source;
use crate::connection::{owed, policy};
use crate::memory::arena::passed;
use crate::memory::descriptors::{self, DescriptorKind};
use crate::os::{errno, kernel};

/// How long a program that passes connections on waits for the bytes of their other ends. Bytes that come later go
/// through the kernel.
const BACK_TIMEOUT_NS: u64 = 1_000_000_000;
/// The same for a program with non-blocking sockets.
const QUICK_TIMEOUT_NS: u64 = 20_000_000;

/// Returns all connections of this program to the kernel. No connection is carried from here on.
pub fn all_to_kernel(reason: Reason) {
    policy::give_up(reason);
    errno::keep(|| hand_back(|_| true, reason));
}

/// Keeps this socket in the kernel, or returns it there.
pub fn to_kernel(fd: i32, reason: Reason) {
    let Some(socket) = sockets::socket(fd) else { return };
    socket.stay(reason);
    if let Ok(connection) = socket.carried() {
        errno::keep(|| connection.bring_back(reason));
    }
}

/// Returns these descriptors' sockets to the kernel. All are asked for before the first one is waited for.
pub fn hand_back(is_meant: impl Fn(i32) -> bool, reason: Reason) {
    hand_back_each(|visit| each_socket(&is_meant, visit), reason);
}

/// The same for the sockets that `each` visits. It is called twice.
pub fn hand_back_each(each: impl Fn(&mut dyn FnMut(Socket)), reason: Reason) {
    let mut timeout_ns = 0;
    each(&mut |socket| match socket.carried() {
        Ok(connection) => {
            if reason == Reason::Passed {
                connection.note_passed(passed::YES);
            }
            connection.begin_back(reason);
            timeout_ns = connection.timeout_ns().max(timeout_ns);
        }
        Err(plain) => plain.stay(reason),
    });
    if timeout_ns == 0 {
        return;
    }
    let end_ns = kernel::now_ns() + timeout_ns;
    each(&mut |socket| {
        if let Ok(connection) = socket.carried() {
            connection.finish_back(end_ns);
        }
    });
}

fn each_socket(is_meant: impl Fn(i32) -> bool, visit: &mut dyn FnMut(Socket)) {
    descriptors::each(|fd, kind| {
        if matches!(kind, DescriptorKind::Socket(_))
            && is_meant(fd)
            && let Some(socket) = sockets::socket(fd)
        {
            visit(socket);
        }
    });
}

impl Connection {
    /// Returns both directions to the kernel, permanently: the next operation is one that rings cannot do.
    ///
    /// A peer that makes no call of the library in time does its part later. Until then the bytes that it has sent
    /// wait. A connection that loses bytes in this way is reset.
    pub fn bring_back(&self, reason: Reason) {
        self.begin_back(reason);
        self.finish_back(kernel::now_ns() + self.timeout_ns());
    }

    /// How long this program may be kept waiting for the other end.
    pub fn timeout_ns(&self) -> u64 {
        // Bytes that are owed after a relay would be lost.
        let is_quick = self.is_nonblocking() && !self.has_engine();
        if is_quick { QUICK_TIMEOUT_NS } else { BACK_TIMEOUT_NS }
    }

    /// Ends this side's ring, and asks the other end to end its own. It does not wait.
    pub fn begin_back(&self, reason: Reason) {
        if self.refuse_kernel() {
            return;
        }
        self.stay(reason);
        {
            // Nobody takes any more bytes out of the peer's ring.
            let _receiving = self.shared.receiving.hold();
            let _sending = self.shared.sending.hold();
            STREAM.raise(&self.own, ASKS_BACK);
            if matches!(STREAM.route(&self.own), Ok(Route::Ring | Route::Ending)) {
                self.end_ring();
            }
        }
        self.tell(News::Route);
    }

    /// Waits for what [`Self::begin_back`] has asked for.
    fn finish_back(&self, end_ns: u64) {
        if self.is_required() {
            return;
        }
        let is_back = loop {
            self.serve();
            if let Some(is_back) = self.is_back() {
                break is_back;
            }
            if kernel::now_ns() > end_ns {
                // What the peer has not returned yet it returns later. Bytes that this side owes would be lost.
                break !self.owes();
            }
            owed::serve_all();
            self.sleep_through(Sleep::Bytes, || self.is_back().is_some());
        };
        if is_back {
            // The next holder may end the connection in any way.
            self.with_sending(|| self.unguard());
        } else if !self.is_unix() || self.shared.passed.load(Ordering::Relaxed) != passed::NOT {
            self.reset();
        }
        // A Unix connection that no other program has goes on: this process reads in the ring what cannot come back.
    }

    /// Whether everything has come back. `Some(false)`: not everything, and the rest never will.
    fn is_back(&self) -> Option<bool> {
        if self.is_dissolved() {
            return Some(true);
        }
        let Ok(route) = STREAM.route(&self.remote) else { return Some(true) };
        let unread = match route {
            // The peer asks for nothing before it has seen the flag.
            Route::Kernel => 0,
            Route::Pending | Route::Ending => 1,
            // An engine may have more than is in the ring.
            Route::Ring if self.awaits_engine() => 1,
            Route::Ring => STREAM.available(&self.own, &self.remote).unwrap_or(0) as u64,
            Route::Back(until) => until.wrapping_sub(STREAM.head(&self.own)),
        };
        match route {
            Route::Back(_) if unread > 0 => return Some(false),
            Route::Ring => {
                self.ask_kernel();
                // The last bytes of a stream that has ended can no longer be given to the kernel.
                let is_over = self.peer_is_gone() || STREAM.flags(&self.remote) & HALF != 0;
                if is_over {
                    return Some(unread == 0);
                }
            }
            _ => {}
        }
        // What the peer sends from now on goes through the kernel: it checks the flag before and after.
        (unread == 0 && (!self.owes() || self.peer_is_gone())).then_some(true)
    }

    /// Whether both directions have returned to the kernel for good. What has not come back yet will arrive there.
    pub fn is_kernels(&self) -> bool {
        self.shared.never.load(Ordering::Relaxed) != 0
            && !self.owes()
            && matches!(STREAM.route(&self.own), Ok(Route::Kernel | Route::Back(_)))
            && (self.is_dissolved() || matches!(self.source(), Ok(Source::Kernel | Source::Held)))
    }
}
