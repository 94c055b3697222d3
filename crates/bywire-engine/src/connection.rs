//! One connection that the engine serves: the program's memory, the memory that stands for the other end, and the socket.

use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::time::Duration;

use bywire_pairing::protocol::PAGE_BYTES;
use bywire_ring::distance;
use bywire_ring::hints;
use bywire_ring::lane::Corrupt;
use bywire_ring::program_doorbell as doorbell_rule;
use bywire_ring::stream::{
    ASKS_BACK, FORKED, HALF, LEAVING, Mapped, News, RING_BYTES, Route, SEGMENT_BYTES, Stream, head_bytes,
    rest_bytes,
};
use bywire_sys::Errno;
use bywire_sys::deferred;
use bywire_sys::interrupt::Interrupter;
use bywire_sys::life::Life;
use bywire_sys::memory::{Mapping, OfferError};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::relay::{self, Next, View};

/// The layout of the rings of all connections.
pub const STREAM: Stream = Stream::new(RING_BYTES);
/// The kernel gets at most so much by one call, so that a program that waits for room hears of it before all is sent.
const SEND_BYTES_MAX: usize = 256 << 10;
/// How long a peer may read nothing of a program that has gone: about as long as the kernel keeps such a connection.
const PATIENCE_MS: u32 = 120_000;
/// Calls for one connection before the others have their turn.
const CALLS_MAX: usize = 8;

/// A program whose connections are served, with the doorbell by which it is woken.
#[derive(Debug)]
pub struct Program {
    doorbell: OwnedFd,
    page: Mapping,
    /// The value of the page's word for which it was rung last.
    rung: Cell<u64>,
    /// The engine's page, which the program looks at.
    own: Weak<Life>,
    /// The sum of the program's counts of news, and each of them, as far as they were followed.
    followed: RefCell<(u64, Box<[u64; hints::NUMBERS]>)>,
    interrupter: Rc<Interrupter>,
}

impl Program {
    /// Takes over what the pairing service has passed on.
    ///
    /// # Errors
    /// [`OfferError`] if the page is none.
    pub fn new(
        doorbell: OwnedFd,
        page: &OwnedFd,
        own: Weak<Life>,
        interrupter: Rc<Interrupter>,
    ) -> Result<Self, OfferError> {
        let page = Mapping::accept_with_holes(page, PAGE_BYTES)?;
        let words = Mapped::new(&page);
        let sum = hints::sum(&words);
        let counts = Box::new(core::array::from_fn(|number| hints::counted(&words, number)));
        let followed = RefCell::new((sum, counts));
        Ok(Self { doorbell, page, rung: Cell::new(0), own, followed, interrupter })
    }

    /// Notes the numbers for which the program has counted news of quiet connections.
    pub fn note_hints(&self, numbers: &mut Vec<usize>) {
        let page = Mapped::new(&self.page);
        let (known_sum, counts) = &mut *self.followed.borrow_mut();
        let sum = hints::sum(&page);
        if sum == *known_sum {
            return;
        }
        for (number, known) in counts.iter_mut().enumerate() {
            let counted = hints::counted(&page, number);
            if std::mem::replace(known, counted) != counted {
                numbers.push(number);
            }
        }
        *known_sum = sum;
    }

    /// Wakes the program for this news, which was published in `own`. `woken` is the round of the last wake.
    pub fn wake(&self, own: &Mapped<'_>, remote: &Mapped<'_>, news: News, woken: &mut u32) {
        let wake = STREAM.wake(own, remote, news, *woken);
        if wake.futex {
            *woken = wake.round;
            own.wake_sleepers();
        }
        if let Some(number) = wake.hint
            && let Some(page) = self.own.upgrade()
        {
            hints::count(&Mapped::new(page.memory()), number);
        }
        if wake.doorbell {
            self.ring();
        }
    }

    fn ring(&self) {
        if let Some(rung) = doorbell_rule::must_ring(&Mapped::new(&self.page), self.rung.get()) {
            // An eventfd whose counter is full was rung already. A program that has made its own eventfd wait when it is full
            // does not hold up the others.
            self.interrupter.watch();
            let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
            self.rung.set(rung);
        }
    }
}

/// Maps a program's segment, which is in these files.
///
/// # Errors
/// [`OfferError`] if they are none.
pub fn accept_segment(files: &[OwnedFd]) -> Result<Mapping, OfferError> {
    match files {
        [whole] => Mapping::accept_with_holes(whole, SEGMENT_BYTES),
        [head, rest] => Mapping::accept_in_two(head, rest, [head_bytes(), rest_bytes()]),
        _ => Err(OfferError::WrongSize),
    }
}

/// Takes back the reset that a program has made of its own death because bytes may have been in its ring.
pub fn take_back_reset(socket: &OwnedFd) {
    if matches!(rustix::net::sockopt::socket_linger(socket), Ok(Some(Duration::ZERO))) {
        let _ = rustix::net::sockopt::set_socket_linger(socket, None);
    }
}

/// The outcome of a look at a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// There was nothing to do.
    Idle,
    /// The kernel got bytes, and there may be more.
    Moved,
    /// The kernel takes no more bytes now.
    Full,
    /// The connection is over for the engine.
    Over,
}

/// A connection that was asked for, and the memory that the engine offers for it.
#[derive(Debug)]
pub struct Asked {
    socket: OwnedFd,
    own: Mapping,
}

impl Asked {
    /// Makes the memory. Returns it with its file for the program.
    ///
    /// # Errors
    /// The socket, and the error of the kernel: no memory or no descriptors.
    pub fn new(socket: OwnedFd) -> Result<(Self, OwnedFd), (OwnedFd, Errno)> {
        let (own, file) = match Mapping::create("bywire-engine", head_bytes()) {
            Ok(made) => made,
            Err(error) => return Err((socket, error)),
        };
        let words = Mapped::new(&own);
        STREAM.found(&words);
        STREAM.prepare(&words);
        Ok((Self { socket, own }, file))
    }

    /// It is not served after all.
    pub fn release(self) {
        deferred::close_socket(self.socket);
    }

    /// The service has paired it with a program, whose segment is in these files.
    ///
    /// # Errors
    /// This value, if the files are no segment.
    pub fn paired(self, program: Rc<Program>, segment: &[OwnedFd]) -> Result<Served, Self> {
        let Ok(remote) = accept_segment(segment) else { return Err(self) };
        let Self { socket, own } = self;
        Ok(Served { socket, own, remote, program, woken: 0, has_gone: false, is_bounded: false, bytes: 0 })
    }
}

/// A connection that is relayed.
#[derive(Debug)]
pub struct Served {
    socket: OwnedFd,
    own: Mapping,
    remote: Mapping,
    program: Rc<Program>,
    woken: u32,
    has_gone: bool,
    /// See [`PATIENCE_MS`].
    is_bounded: bool,
    bytes: u64,
}

impl AsFd for Served {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Served {
    /// The program has closed the connection, or has ended.
    pub fn note_gone(&mut self) {
        self.has_gone = true;
        self.bound_patience();
    }

    /// Returns whether nobody sends on it any more, as far as is known.
    pub fn has_gone(&self) -> bool {
        self.has_gone || STREAM.flags(&Mapped::new(&self.remote)) & LEAVING != 0
    }

    /// From here on a peer that reads nothing ends the connection after a while, as it ends one that the kernel alone has.
    fn bound_patience(&mut self) {
        if !self.is_bounded && self.has_gone() {
            self.is_bounded = true;
            let _ = rustix::net::sockopt::set_tcp_user_timeout(&self.socket, PATIENCE_MS);
        }
    }

    /// Returns whether the kernel has ended the connection, or both of its directions.
    pub fn has_ended(&self) -> bool {
        let mut asked = [PollFd::new(&self.socket, PollFlags::empty())];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let found = rustix::event::poll(&mut asked, Some(&at_once));
        found.is_ok_and(|count| count > 0)
    }

    /// Bytes that the kernel was given.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether the program has sent something that the kernel was not given, or has done something else that the
    /// engine has to look at.
    pub fn has_news(&self) -> bool {
        !matches!(self.view().map(relay::next), Ok(Next::Nothing))
    }

    /// Gives the kernel what there is, and ends what has ended.
    pub fn progress(&mut self) -> Progress {
        let mut moved = Progress::Idle;
        for _ in 0..CALLS_MAX {
            let Ok(view) = self.view() else { return self.give_up() };
            match relay::next(view) {
                Next::Nothing => return moved,
                Next::Abandon => return Progress::Over,
                Next::Release => {
                    self.end_in_order();
                    return Progress::Over;
                }
                Next::ShutDown => {
                    // An error means that the connection has ended, of which the kernel tells the program.
                    let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Write);
                    self.end_in_order();
                    return Progress::Over;
                }
                Next::Send => match self.send() {
                    Ok(0) => return moved,
                    Ok(_) => moved = Progress::Moved,
                    Err(Errno::AGAIN) => {
                        self.bound_patience();
                        return Progress::Full;
                    }
                    Err(error) => return self.fail(error),
                },
            }
        }
        moved
    }

    fn view(&self) -> Result<View, Corrupt> {
        let (own, remote) = (Mapped::new(&self.own), Mapped::new(&self.remote));
        // The flags come first: they were raised behind the last byte.
        let flags = STREAM.flags(&remote);
        let is_half = flags & HALF != 0;
        let route = STREAM.route(&remote)?;
        let unread = STREAM.available(&own, &remote)?;
        Ok(View { route, unread, is_half, has_gone: self.has_gone() })
    }

    /// Gives the kernel one piece. `Ok(0)`: the program takes its bytes back just now.
    fn send(&mut self) -> Result<usize, Errno> {
        let (own, remote) = (Mapped::new(&self.own), Mapped::new(&self.remote));
        let may_take = STREAM.begin_taking(&own, &remote) == Ok(Route::Ring);
        let available = if may_take { STREAM.available(&own, &remote).unwrap_or(0) } else { 0 };
        let parts = STREAM.places(&remote, STREAM.head(&own), available.min(SEND_BYTES_MAX));
        let sent = if available > 0 { self.remote.send(&self.socket, parts) } else { Ok(0) };
        if let Ok(sent) = sent {
            // If the engine dies before this, the kernel's own count tells the program.
            STREAM.consume(&own, sent);
        }
        STREAM.end_taking(&own);
        let sent = sent?;
        self.bytes += sent as u64;
        if sent > 0 && STREAM.is_relieved(&own, &remote, sent) {
            STREAM.relieve(&own, distance::moment());
            self.notify(News::Room);
        }
        Ok(sent)
    }

    /// The kernel has ended the connection. The error is the program's.
    fn fail(&mut self, error: Errno) -> Progress {
        STREAM.fail(&Mapped::new(&self.own), error.raw_os_error().unsigned_abs());
        self.notify(News::Route);
        Progress::Over
    }

    /// The program's memory holds impossible words: its connection is reset, and nothing else.
    fn give_up(&mut self) -> Progress {
        let _ = rustix::net::sockopt::set_socket_linger(&self.socket, Some(Duration::ZERO));
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        Progress::Over
    }

    /// Lets the connection end in order: the kernel has everything that the program has sent. The program has made its own
    /// death a reset, because bytes may have been in the ring.
    fn end_in_order(&mut self) {
        self.return_direction();
        // A program that still sends has only lost the pairing service, and goes on by itself. A child of a program that was
        // killed may go on, too, and its own death must be a reset while it owes bytes.
        let is_over = STREAM.flags(&Mapped::new(&self.remote)) & (LEAVING | FORKED) != FORKED;
        let is_empty = self.view().is_ok_and(|view| view.unread == 0);
        if is_over && is_empty {
            take_back_reset(&self.socket);
        }
    }

    fn notify(&mut self, news: News) {
        let (own, remote) = (Mapped::new(&self.own), Mapped::new(&self.remote));
        self.program.wake(&own, &remote, news, &mut self.woken);
    }

    /// Gives the direction back: the engine takes nothing more out of the ring. What the program sends from now on, it
    /// gives to the kernel itself.
    fn return_direction(&mut self) {
        STREAM.raise(&Mapped::new(&self.own), ASKS_BACK);
        self.notify(News::Route);
    }

    /// Lets the connection go. The close may take long, if the program has made it so.
    pub fn release(mut self) {
        self.return_direction();
        deferred::close_socket(self.socket);
    }
}
