//! A carried connection returns to the kernel, for good.
//!
//! The writer of a direction ends its ring where the reader has stopped, and gives the kernel what nobody has taken. What
//! the kernel has no room for is *owed*: it goes there as room comes, in every call and every wait on the connection, and
//! until then nothing else of that direction does.

use core::sync::atomic::Ordering;

use bywire_pairing::reason::Reason;
use bywire_ring::stream::{ASKS_BACK, HALF, News, Route, Sleep};

use crate::connection::sockets::{self, Connection, STREAM, Socket};
use crate::connection::source::Source;
use crate::connection::{owed, policy};
use crate::memory::descriptors::{self, DescriptorKind};
use crate::os::{errno, kernel};

/// How long a program that hands connections on waits for what their other ends have sent: those that come later give it
/// to the kernel then.
const BACK_TIMEOUT_NS: u64 = 1_000_000_000;
/// The same for one that does not wait for its sockets.
const QUICK_TIMEOUT_NS: u64 = 20_000_000;

/// Everything that this program has goes back to the kernel, and nothing of it is carried from here on.
pub fn all_to_kernel(reason: Reason) {
    policy::give_up(reason);
    errno::keep(|| hand_back(|_| true, reason));
}

/// This socket stays in the kernel, or goes back there.
pub fn to_kernel(fd: i32, reason: Reason) {
    let Some(socket) = sockets::socket(fd) else { return };
    socket.stay(reason);
    if let Ok(connection) = socket.carried() {
        errno::keep(|| connection.bring_back(reason));
    }
}

/// All of these descriptors' sockets go back to the kernel: each is asked for before the first one is waited for.
pub fn hand_back(is_meant: impl Fn(i32) -> bool, reason: Reason) {
    hand_back_each(|visit| each_socket(&is_meant, visit), reason);
}

/// The same for the sockets that `each` visits, which it does twice.
pub fn hand_back_each(each: impl Fn(&mut dyn FnMut(Socket)), reason: Reason) {
    let mut timeout_ns = 0;
    each(&mut |socket| match socket.carried() {
        Ok(connection) => {
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
    /// Returns both directions to the kernel, for good: what comes next is nothing that rings can do.
    ///
    /// A peer that does not come into a call of the library in time does its part when it comes: until then what it has
    /// sent waits. A connection of which bytes are lost by that is reset.
    pub fn bring_back(&self, reason: Reason) {
        self.begin_back(reason);
        self.finish_back(kernel::now_ns() + self.timeout_ns());
    }

    fn timeout_ns(&self) -> u64 {
        if self.is_nonblocking() { QUICK_TIMEOUT_NS } else { BACK_TIMEOUT_NS }
    }

    /// Ends our ring, and asks the other end for its own; nothing is waited for.
    pub fn begin_back(&self, reason: Reason) {
        self.stay(reason);
        {
            // Nobody takes anything more out of the peer's ring.
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
        let is_back = loop {
            self.serve();
            if let Some(is_back) = self.is_back() {
                break is_back;
            }
            if kernel::now_ns() > end_ns {
                // What it has not given back yet it gives later. What we owe nobody would.
                break !self.owes();
            }
            owed::serve_all();
            self.sleep_through(Sleep::Bytes, || self.is_back().is_some());
        };
        if is_back {
            // Its next holder may end as it likes.
            self.with_sending(|| self.unguard());
        } else {
            self.break_off();
        }
    }

    /// Has everything come back? `Some(false)`: not everything, and it never will.
    fn is_back(&self) -> Option<bool> {
        let Ok(route) = STREAM.route(&self.remote) else { return Some(true) };
        let unread = match route {
            // It asks for nothing before it has seen our flag.
            Route::Kernel => 0,
            Route::Pending | Route::Ending => 1,
            Route::Ring => STREAM.available(&self.own, &self.remote).unwrap_or(0) as u64,
            Route::Back(until) => until.wrapping_sub(STREAM.head(&self.own)),
        };
        match route {
            Route::Back(_) if unread > 0 => return Some(false),
            Route::Ring => {
                self.ask_kernel();
                // The last bytes of a stream that has ended cannot be given to the kernel any more.
                let is_over = self.peer_is_gone() || STREAM.flags(&self.remote) & HALF != 0;
                if is_over {
                    return Some(unread == 0);
                }
            }
            _ => {}
        }
        // What it sends from now on it gives to the kernel: it looks for our flag before and after.
        (unread == 0 && (!self.owes() || self.peer_is_gone())).then_some(true)
    }

    /// Is it the kernel's again, both ways and for good? What has not come back yet will come there.
    pub fn is_kernels(&self) -> bool {
        self.shared.never.load(Ordering::Relaxed) != 0
            && !self.owes()
            && matches!(STREAM.route(&self.own), Ok(Route::Kernel | Route::Back(_)))
            && matches!(self.source(), Ok(Source::Kernel | Source::Held))
    }
}
