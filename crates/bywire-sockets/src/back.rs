//! The way back: what makes a carried connection the kernel's again, for good.

use core::sync::atomic::Ordering;

use bywire_pairing::reason::Reason;
use bywire_ring::stream::{ASKS_BACK, Course, HALF, News, OFFERS_BACK, Sleep};

use crate::carry::SHUT_SENDING;
use crate::table::{self, Connection, Meaning, STREAM, Socket};
use crate::{errno, kernel, offer, real};

/// How long a program that has to leave the rings waits for the other end.
const BACK_PATIENCE_NS: u64 = 1_000_000_000;
/// How long the kernel may take for what is given back to it.
const KERNEL_PATIENCE_NS: u64 = 10_000_000_000;

/// Everything that this program has goes back to the kernel, and nothing of it is carried from here on.
pub fn all_to_kernel(reason: Reason) {
    offer::give_up(reason);
    errno::keep(|| {
        table::each(|fd, meaning| {
            if matches!(meaning, Meaning::Socket(_)) {
                to_kernel(fd, reason);
            }
        });
    });
}

/// This socket stays in the kernel, or goes back there.
pub fn to_kernel(fd: i32, reason: Reason) {
    let Some(socket) = table::socket(fd) else { return };
    socket.stay(reason);
    if let Ok(connection) = socket.carried() {
        errno::keep(|| connection.bring_back_or_break(reason));
    }
}

impl Connection {
    #[inline(never)]
    pub fn serve_now(&self) {
        let asked = STREAM.flags(&self.remote);
        if asked & OFFERS_BACK != 0 && STREAM.flags(&self.own) & ASKS_BACK == 0 {
            self.ask_back();
            self.tell(News::Course);
        }
        if asked & ASKS_BACK != 0 && STREAM.course(&self.own) == Ok(Course::Ring) {
            let _held = self.record.sending.hold();
            if STREAM.course(&self.own) == Ok(Course::Ring) {
                self.send_back();
            }
        }
    }

    /// Nobody takes anything more out of the peer's ring.
    fn ask_back(&self) {
        let _receiving = self.record.receiving.hold();
        let _sending = self.record.sending.hold();
        STREAM.raise(&self.own, ASKS_BACK);
    }

    /// Ends our ring where the reader has stopped, and gives the rest of it to the kernel.
    fn send_back(&self) {
        let Ok(unread) = STREAM.unread_by_peer(&self.own, &self.remote) else {
            return self.break_off();
        };
        if unread > 0 && self.record.ended.load(Ordering::Acquire) & SHUT_SENDING != 0 {
            // The kernel takes nothing behind the end that it has been told: they stay where they are.
            return;
        }
        let tail = STREAM.tail(&self.own);
        let mut position = tail.wrapping_sub(unread as u64);
        STREAM.back(&self.own, position);
        // A death in the middle of it must not look like an end.
        if unread > 0 {
            self.guard();
        }
        let end_ns = kernel::now_ns() + KERNEL_PATIENCE_NS;
        let mut buffer = [0u8; 8192];
        while position != tail {
            let length = tail.wrapping_sub(position).min(buffer.len() as u64) as usize;
            // SAFETY: a live buffer; what is recalled lies before the tail.
            let sent = unsafe {
                STREAM.recall(&self.own, position, buffer.as_mut_ptr(), length);
                real::send(self.fd, buffer.as_ptr().cast(), length, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
            };
            match sent {
                1.. => position = position.wrapping_add(sent as u64),
                _ if errno::last() == libc::EAGAIN && kernel::now_ns() < end_ns => {
                    let _ = kernel::wait(self.fd, libc::POLLOUT, 100);
                }
                _ => return self.break_off(),
            }
        }
        self.unguard();
        self.tell(News::Course);
    }

    /// Returns both directions to the kernel, for good: what comes next is nothing that rings can do.
    ///
    /// A peer that does not come into a call of the library in time does its part when it comes: until then what it has
    /// sent waits. `false`: bytes lie in a ring that has ended, and the kernel will never have them.
    pub fn bring_back(&self, reason: Reason, end_ns: u64) -> bool {
        self.stay(reason);
        self.ask_back();
        {
            let _held = self.record.sending.hold();
            if STREAM.course(&self.own) == Ok(Course::Ring) {
                if STREAM.unread_by_peer(&self.own, &self.remote) == Ok(0) {
                    STREAM.back(&self.own, STREAM.tail(&self.own));
                } else {
                    STREAM.raise(&self.own, OFFERS_BACK);
                }
            }
        }
        self.tell(News::Course);
        let is_back = loop {
            self.serve();
            if let Some(is_back) = self.is_back() {
                break is_back;
            }
            if kernel::now_ns() > end_ns {
                break true;
            }
            // The other end may be in this very program.
            table::each_held(|socket, fd| {
                if let Some(Ok(other)) = table::by_index(fd, socket.index).map(Socket::mapped) {
                    other.serve();
                }
            });
            self.sleep(Sleep::Bytes, 0, None, || self.is_back().is_some());
        };
        let _held = self.record.sending.hold();
        if STREAM.course(&self.own) == Ok(Course::Ring) {
            // Nobody has agreed: what is in the ring is read there before the kernel's.
            STREAM.back(&self.own, STREAM.tail(&self.own));
            self.tell(News::Course);
        }
        // Whoever has it next may end as it likes.
        self.unguard();
        is_back
    }

    /// Has everything come back? `Some(false)`: not everything, and it never will.
    fn is_back(&self) -> Option<bool> {
        let is_sent_back = STREAM.course(&self.own) != Ok(Course::Ring);
        let Ok(course) = STREAM.course(&self.remote) else { return Some(true) };
        let unread = match course {
            // It asks for nothing before it has seen our flag.
            Course::Kernel => 0,
            Course::Pending => 1,
            Course::Ring => STREAM.available(&self.own, &self.remote).unwrap_or(0) as u64,
            Course::Back(until) => until.wrapping_sub(STREAM.head(&self.own)),
        };
        match course {
            Course::Back(_) if unread > 0 => return Some(false),
            Course::Ring => {
                self.ask_kernel();
                // The last bytes of a stream that has ended cannot be given to the kernel any more.
                let is_over = self.peer_is_gone() || STREAM.flags(&self.remote) & HALF != 0;
                if is_over {
                    return Some(unread == 0);
                }
                // What it sends from now on it gives to the kernel: it looks for our flag before and after.
                return (unread == 0 && is_sent_back).then_some(true);
            }
            _ => {}
        }
        (unread == 0 && (is_sent_back || self.peer_is_gone())).then_some(true)
    }

    /// The same within the patience that there is for one connection; one that cannot come back whole is reset.
    pub fn bring_back_or_break(&self, reason: Reason) {
        if !self.bring_back(reason, kernel::now_ns() + BACK_PATIENCE_NS) {
            self.break_off();
        }
    }
}
