//! One connection that is carried to another machine: the program's memory, the memory that stands for the other end, and the
//! socket.
//!
//! The program's ring keeps every byte until the program at the other end has taken it. So a direction can return to the kernel
//! exactly where its reader has stopped.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use bywire_ring::distance;
use bywire_ring::lane::Corrupt;
use bywire_ring::stream::{
    ASKS_BACK, FORKED, HALF, HEADER_BYTES, LEAVING, Mapped, News, RING_BYTES, Route, first_bytes, head_bytes,
    rest_bytes,
};
use bywire_stream::{CallError, OFFSET_MAX, ResetReason, StreamId, Streams};
use bywire_sys::memory::Mapping;
use bywire_sys::{Errno, deferred};

use super::link::MESSAGE_BYTES;
use crate::connection::{Program, STREAM, accept_segment, take_back_reset};

/// The bytes of a direction that its reader has not taken, in both engines and between them.
pub const WINDOW_BYTES: u64 = 1 << 20;
/// A direction that streams waits for this many bytes, so that they leave in whole messages with their heads,
const GATHERED_BYTES: u64 = MESSAGE_BYTES as u64 - 256;
/// as long as each look finds more of them, and for this many looks at most.
const GATHERING_LOOKS: u32 = 16;
/// A direction streams after this many bytes without any of the other direction.
const STREAMED_BYTES: u64 = 256 << 10;
/// Memory is added to a ring in pieces of this size.
const STEP_BYTES: usize = 64 << 10;

/// The outcome of a look at a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// There was nothing to do.
    Idle,
    /// Bytes wait for more of the same stream.
    Gathering,
    /// Something has moved.
    Moved,
    /// The program has ended the connection, and everything that it has sent was taken. The stream's other direction may go on.
    Released,
    /// Both directions are over.
    Over,
}

/// A connection cannot go on: a word of the program's memory is impossible, there is no memory, or the stream is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

impl From<Corrupt> for Broken {
    fn from(_: Corrupt) -> Self {
        Self
    }
}

impl From<CallError> for Broken {
    fn from(_: CallError) -> Self {
        Self
    }
}

/// The direction that the program writes.
#[derive(Debug, Default)]
struct Outgoing {
    phase: OutgoingPhase,
    /// The offset in the stream at which the ring begins.
    cut: u64,
    /// All bytes before this position of the ring were queued.
    queued: u64,
    /// The reader has asked for the direction before it has left the kernel.
    is_asked: bool,
    /// All bytes before this position of the ring were queued when the other direction had bytes last.
    one_way_from: u64,
    /// The end of what the ring had at the last look,
    seen: u64,
    /// and the looks in a row that have found more of it.
    looks: u32,
}

impl Outgoing {
    /// The position up to which the ring's bytes before `end` leave now. The others wait for more of them.
    fn gathered(&mut self, end: u64) -> u64 {
        let grows = std::mem::replace(&mut self.seen, end) != end;
        let streams = self.queued - self.one_way_from >= STREAMED_BYTES;
        let whole_bytes = (end - self.queued) / GATHERED_BYTES * GATHERED_BYTES;
        let waits = streams && whole_bytes == 0 && grows && self.looks < GATHERING_LOOKS;
        self.looks = if waits { self.looks + 1 } else { 0 };
        match streams && (waits || whole_bytes > 0) {
            true => self.queued + whole_bytes,
            false => end,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum OutgoingPhase {
    #[default]
    Kernel,
    Ring,
    /// The reader wants the rest through the kernel. The program gives it there.
    Returning,
    /// It ends behind what is queued.
    Half,
    /// It goes on in the kernel behind what is queued, or has never left it.
    Back,
}

/// The direction that the program reads.
#[derive(Debug, Default)]
struct Incoming {
    phase: IncomingPhase,
    /// The offset in the stream at which the ring begins.
    cut: u64,
    /// All bytes before this position of the ring were reported as drained.
    drained: u64,
    /// The writer ends the ring at this position. The program was not told yet,
    back: Option<u64>,
    /// or was.
    end: Option<u64>,
    /// The program wants the rest through the kernel, and the other engine was asked.
    has_asked: bool,
    /// The ring has memory up to here.
    backed: usize,
    /// See [`FarConnection::report_at`].
    reports_at: Option<usize>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum IncomingPhase {
    #[default]
    Kernel,
    /// The writer has left the kernel. The program was not told yet.
    Announced,
    Ring,
}

/// The memory that the engine offers for a connection.
#[derive(Debug)]
pub struct Offered {
    socket: OwnedFd,
    own: Mapping,
    is_required: bool,
}

impl AsFd for Offered {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Offered {
    /// Makes the memory. Returns it with its files for the program. `is_required`: no byte may go through the kernel.
    ///
    /// # Errors
    /// The socket, and the error of the kernel: no memory or no descriptors.
    pub fn new(socket: OwnedFd, is_required: bool) -> Result<(Self, [OwnedFd; 2]), (OwnedFd, Errno)> {
        let (own, files) = match Mapping::create_in_two("bywire-engine", [head_bytes(), rest_bytes()]) {
            Ok(made) => made,
            Err(error) => return Err((socket, error)),
        };
        STREAM.found(&Mapped::new(&own));
        if is_required {
            // The program's bytes wait in its ring from the beginning.
            STREAM.prepare(&Mapped::new(&own));
        }
        Ok((Self { socket, own, is_required }, files))
    }

    /// Returns whether no byte may go through the kernel.
    pub fn is_required(&self) -> bool {
        self.is_required
    }

    /// It is not served after all.
    pub fn release(self) {
        deferred::close_socket(self.socket);
    }

    /// The service has paired it with a program, whose segment is in these files.
    ///
    /// # Errors
    /// This value, if the files are no segment.
    pub fn paired(self, program: Rc<Program>, segment: &[OwnedFd]) -> Result<FarConnection, Self> {
        let Ok(remote) = accept_segment(segment) else { return Err(self) };
        let Self { socket, own, is_required } = self;
        let incoming = Incoming { backed: first_bytes(), ..Incoming::default() };
        let outgoing = Outgoing::default();
        Ok(FarConnection {
            socket,
            own,
            remote,
            program,
            woken: 0,
            outgoing,
            incoming,
            has_gone: false,
            is_shut: false,
            is_required,
            news: None,
        })
    }
}

/// A connection that is carried to another machine, or is about to be.
#[derive(Debug)]
pub struct FarConnection {
    socket: OwnedFd,
    own: Mapping,
    remote: Mapping,
    program: Rc<Program>,
    woken: u32,
    outgoing: Outgoing,
    incoming: Incoming,
    has_gone: bool,
    /// The kernel was told the end of the program's direction.
    is_shut: bool,
    /// No byte may go through the kernel.
    is_required: bool,
    /// Something that the program was not woken for.
    news: Option<News>,
}

impl AsFd for FarConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl FarConnection {
    /// Returns whether the program is ready to leave the kernel.
    pub fn is_prepared(&self) -> bool {
        STREAM.peer_is_prepared(&Mapped::new(&self.remote))
    }

    /// Returns whether no byte may go through the kernel.
    pub fn is_required(&self) -> bool {
        self.is_required
    }

    /// The other engine has the other end: the program may leave the kernel from here on.
    pub fn begin(&mut self) {
        self.report_at(WINDOW_BYTES as usize);
        if !self.is_required {
            STREAM.prepare(&Mapped::new(&self.own));
        }
        self.news = Some(News::Route);
    }

    /// The program rings once it has emptied half of this many bytes. 0: once it has taken the last one.
    fn report_at(&mut self, bytes: usize) {
        if self.incoming.reports_at != Some(bytes) {
            self.incoming.reports_at = Some(bytes);
            let own = Mapped::new(&self.own);
            STREAM.bound(&own, bytes);
            STREAM.want_room(&own);
        }
    }

    /// Has the program ring for what it takes, if the other engine has little credit left. A program that keeps up with its
    /// peer would otherwise never ring.
    fn report_in_time(&mut self, stream: StreamId, streams: &Streams) -> Result<(), Broken> {
        if self.incoming.phase == IncomingPhase::Kernel || self.incoming.reports_at == Some(0) {
            return Ok(());
        }
        let Some(progress) = streams.progress(stream) else { return Err(Broken) };
        let (taken, unread) = self.taken()?;
        let window = progress.granted.saturating_sub(self.incoming.cut + taken);
        let is_short = unread > 0 && progress.granted - progress.received < window / 2;
        self.report_at(if is_short { unread as usize } else { WINDOW_BYTES as usize });
        Ok(())
    }

    /// The program has closed the connection, or has ended.
    pub fn note_gone(&mut self) {
        self.has_gone = true;
    }

    /// Returns whether a child of the program may go on with it, although the program has gone. Nobody tells of the child's end.
    pub fn is_inherited(&self) -> bool {
        STREAM.flags(&Mapped::new(&self.remote)) & (LEAVING | FORKED) == FORKED
    }

    /// Returns whether nobody sends on it any more, as far as is known.
    fn has_gone(&self) -> bool {
        self.has_gone || STREAM.flags(&Mapped::new(&self.remote)) & LEAVING != 0
    }

    /// Returns whether there is something that [`Self::progress`] would do.
    pub fn has_news(&self) -> bool {
        let (own, remote) = (Mapped::new(&self.own), Mapped::new(&self.remote));
        let tail = || STREAM.available(&own, &remote).map(|available| STREAM.head(&own) + available as u64);
        let flags = STREAM.flags(&remote);
        let sends = match self.outgoing.phase {
            // A program rings once it has changed over.
            OutgoingPhase::Kernel if self.outgoing.is_asked => true,
            OutgoingPhase::Kernel => {
                !matches!(STREAM.route(&remote), Ok(Route::Kernel | Route::Pending)) || flags & LEAVING != 0
            }
            OutgoingPhase::Ring => {
                flags & (HALF | LEAVING) != 0
                    || matches!(STREAM.route(&remote), Ok(Route::Back(_)) | Err(Corrupt))
                    || tail() != Ok(self.outgoing.queued)
            }
            OutgoingPhase::Returning => {
                flags & LEAVING != 0 || matches!(STREAM.route(&remote), Ok(Route::Back(_)) | Err(Corrupt))
            }
            OutgoingPhase::Half | OutgoingPhase::Back => false,
        };
        let has_taken = || self.taken().is_ok_and(|(taken, _)| taken > self.incoming.drained);
        sends || !self.incoming.has_asked && (self.is_asked_back() || has_taken())
    }

    /// Nobody looks at the connection from here on: the program counts its news for this number. The caller looks once more.
    pub fn begin_quiet(&self, number: usize) {
        STREAM.begin_quiet(&Mapped::new(&self.own), number);
    }

    /// The connection is looked at again.
    pub fn end_quiet(&self) {
        STREAM.end_quiet(&Mapped::new(&self.own));
    }

    /// Returns whether nothing but what [`Self::has_news`] tells, or an event of its stream, makes progress possible.
    pub fn is_at_rest(&self) -> bool {
        let (outgoing, incoming) = (&self.outgoing, &self.incoming);
        let sends =
            matches!(outgoing.phase, OutgoingPhase::Kernel | OutgoingPhase::Ring) && !outgoing.is_asked;
        let reads = incoming.phase != IncomingPhase::Announced
            && !incoming.has_asked
            && incoming.back.is_none()
            && incoming.end.is_none();
        sends && reads && !self.has_gone && self.has_reported_all()
    }

    /// Passes on what the program has done.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn progress(&mut self, stream: StreamId, streams: &mut Streams) -> Result<Progress, Broken> {
        let has_received = self.begin_reading()? | self.report_drained(stream, streams)?;
        let has_sent = self.pass_on(stream, streams)?;
        self.report_in_time(stream, streams)?;
        self.wake();
        if let Some(progress) = self.end(stream, streams)? {
            return Ok(progress);
        }
        Ok(match has_received | has_sent {
            true => Progress::Moved,
            false if self.outgoing.looks > 0 => Progress::Gathering,
            false => Progress::Idle,
        })
    }

    /// Copies queued bytes of the program's, from an offset of the stream on.
    pub fn copy(&self, offset: u64, target: &mut [u8]) {
        STREAM.copy_out(&Mapped::new(&self.remote), offset.wrapping_sub(self.outgoing.cut), target);
    }

    /// Queues what the program has sent, and what it has ended.
    fn pass_on(&mut self, stream: StreamId, streams: &mut Streams) -> Result<bool, Broken> {
        let (own, remote) = (Mapped::new(&self.own), Mapped::new(&self.remote));
        // The flags come first: they were raised behind the last byte.
        let flags = STREAM.flags(&remote);
        let has_gone = self.has_gone();
        let route = STREAM.route(&remote)?;
        match (self.outgoing.phase, route) {
            // Nothing of its ring was taken, so the program gives all of it to the kernel.
            (OutgoingPhase::Kernel, _) if self.outgoing.is_asked => {
                streams.back(stream, 0)?;
                self.outgoing.phase = OutgoingPhase::Back;
                return Ok(true);
            }
            (OutgoingPhase::Kernel, Route::Kernel | Route::Pending) => {
                if has_gone {
                    streams.back(stream, 0)?;
                    self.outgoing.phase = OutgoingPhase::Back;
                }
                return Ok(has_gone);
            }
            (OutgoingPhase::Kernel, _) => {
                let cut = STREAM.cut_offset(&remote);
                if cut > OFFSET_MAX / 2 {
                    return Err(Broken);
                }
                streams.start(stream, cut)?;
                // From here on the program takes nothing back by itself.
                let _route = STREAM.begin_taking(&own, &remote);
                self.outgoing = Outgoing { phase: OutgoingPhase::Ring, cut, ..Outgoing::default() };
                return Ok(true);
            }
            (OutgoingPhase::Half | OutgoingPhase::Back, _) => return Ok(false),
            (_, Route::Kernel | Route::Pending) => return Err(Broken),
            (OutgoingPhase::Ring | OutgoingPhase::Returning, _) => {}
        }
        let head = STREAM.head(&own);
        let tail = head + STREAM.available(&own, &remote)? as u64;
        let is_returning = self.outgoing.phase == OutgoingPhase::Returning;
        let end = match route {
            Route::Back(_) if self.is_required => return Err(Broken),
            Route::Back(until) if !(head..=tail).contains(&until) => return Err(Broken),
            Route::Back(until) if until < self.outgoing.queued && !is_returning => return Err(Broken),
            Route::Back(until) => until,
            // It waits for the program to take its bytes back. One that has gone does not.
            _ if is_returning && !has_gone => return Ok(false),
            _ => tail,
        };
        let goes_on = self.outgoing.phase == OutgoingPhase::Ring
            && matches!(route, Route::Ring)
            && flags & HALF == 0
            && !has_gone;
        let end = if goes_on { self.outgoing.gathered(end) } else { end };
        let has_sent = end > self.outgoing.queued;
        if has_sent {
            streams.queue(stream, self.outgoing.cut + end)?;
            self.outgoing.queued = end;
        }
        let is_back = matches!(route, Route::Back(_)) || is_returning;
        if is_back {
            streams.back(stream, self.outgoing.cut + end)?;
            self.outgoing = Outgoing { phase: OutgoingPhase::Back, queued: end, ..self.outgoing };
        } else if flags & HALF != 0 || has_gone {
            streams.half(stream)?;
            self.outgoing.phase = OutgoingPhase::Half;
        }
        Ok(has_sent || self.outgoing.phase != OutgoingPhase::Ring)
    }

    /// The program at the other end has taken everything before this offset.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn drained(&mut self, offset: u64) -> Result<(), Broken> {
        let (own, remote) = (Mapped::new(&self.own), Mapped::new(&self.remote));
        let position = offset.checked_sub(self.outgoing.cut).ok_or(Broken)?;
        let taken = position.checked_sub(STREAM.head(&own)).ok_or(Broken)? as usize;
        if taken > STREAM.available(&own, &remote)? {
            return Err(Broken);
        }
        if taken > 0 {
            STREAM.consume(&own, taken);
            if STREAM.is_relieved(&own, &remote, taken) {
                STREAM.relieve(&own, distance::moment());
                self.note(News::Room);
            }
        }
        Ok(())
    }

    /// The program at the other end has stopped at this offset, and wants the rest through the kernel.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn back_asked(&mut self, offset: u64) -> Result<(), Broken> {
        if self.is_required {
            return Err(Broken);
        }
        match self.outgoing.phase {
            // This engine cannot give the kernel the bytes that were left to send.
            OutgoingPhase::Half => return Err(Broken),
            OutgoingPhase::Kernel => self.outgoing.is_asked = true,
            OutgoingPhase::Ring => {
                self.drained(offset)?;
                self.outgoing.phase = OutgoingPhase::Returning;
                STREAM.end_taking(&Mapped::new(&self.own));
            }
            OutgoingPhase::Returning | OutgoingPhase::Back => {}
        }
        STREAM.raise(&Mapped::new(&self.own), ASKS_BACK);
        self.note(News::Route);
        Ok(())
    }

    /// The writer's direction begins at this offset.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn started(&mut self, offset: u64) -> Result<(), Broken> {
        if self.incoming.phase != IncomingPhase::Kernel {
            return Err(Broken);
        }
        self.incoming.cut = offset;
        self.incoming.phase = IncomingPhase::Announced;
        Ok(())
    }

    /// Stores the next bytes for the program.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn received(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        let (own, remote) = (Mapped::new(&self.own), Mapped::new(&self.remote));
        if STREAM.room(&own, &remote, RING_BYTES)? < bytes.len() {
            return Err(Broken);
        }
        let reach = STREAM.reach(&own, bytes.len());
        if reach > self.incoming.backed {
            let end = (HEADER_BYTES + reach).next_multiple_of(STEP_BYTES);
            let until = (end - HEADER_BYTES).min(RING_BYTES);
            let from = HEADER_BYTES + self.incoming.backed;
            self.own.populate(from, HEADER_BYTES + until).map_err(|_| Broken)?;
            self.incoming.backed = until;
        }
        if STREAM.is_ordered(&remote) {
            STREAM.mark(&own, distance::moment());
        }
        STREAM.append(&own, bytes);
        self.outgoing.one_way_from = self.outgoing.queued;
        self.note(News::Bytes);
        Ok(())
    }

    /// The writer's direction has ended behind the last byte.
    ///
    /// # Errors
    /// [`Broken`]: the program wants bytes through the kernel that can no longer come there.
    pub fn half(&mut self) -> Result<(), Broken> {
        if self.incoming.has_asked && self.taken()?.1 > 0 {
            return Err(Broken);
        }
        // The other engine tells its kernel of the end once the program has taken all bytes.
        self.report_at(0);
        STREAM.raise(&Mapped::new(&self.own), HALF);
        self.note(News::Route);
        Ok(())
    }

    /// The writer's direction goes on in the kernel from this offset on.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn back(&mut self, offset: u64) -> Result<(), Broken> {
        if self.incoming.phase == IncomingPhase::Kernel {
            return if offset == 0 { Ok(()) } else { Err(Broken) };
        }
        let position = offset.checked_sub(self.incoming.cut).ok_or(Broken)?;
        if self.is_required {
            return Err(Broken);
        }
        if self.incoming.has_asked && position > self.taken()?.0 {
            return Err(Broken);
        }
        self.incoming.back = Some(position);
        Ok(())
    }

    /// Tells the program that its peer has left the kernel, or is back there.
    fn begin_reading(&mut self) -> Result<bool, Broken> {
        let (own, remote) = (Mapped::new(&self.own), Mapped::new(&self.remote));
        let mut has_changed = false;
        if self.is_about_to_read() {
            match (self.is_asked_back(), self.incoming.back) {
                // The program has taken nothing: all of it comes through the kernel.
                (true, Some(0)) => {
                    self.incoming =
                        Incoming { phase: IncomingPhase::Ring, back: None, end: Some(0), ..self.incoming };
                    return Ok(true);
                }
                (true, _) => has_changed = true,
                (false, _) => {
                    // Only a call that is in the kernel for a moment is counted there.
                    has_changed = STREAM.begin(&own, &remote) && STREAM.readers(&remote) == 0;
                    if !has_changed {
                        STREAM.abandon(&own);
                    }
                }
            }
            if has_changed {
                STREAM.cut(&own, self.incoming.cut);
                self.incoming.phase = IncomingPhase::Ring;
            }
        }
        if self.incoming.phase == IncomingPhase::Ring
            && let Some(position) = self.incoming.back.take()
        {
            STREAM.back(&own, position);
            self.report_at(0);
            self.incoming.end = Some(position);
            has_changed = true;
        }
        if has_changed {
            self.note(News::Route);
        }
        Ok(has_changed)
    }

    /// The offset at which the program has stopped to take the bytes of its peer, if it wants the rest through the kernel.
    pub fn stopped_at(&self) -> Option<u64> {
        self.incoming.has_asked.then_some(self.incoming.cut + self.incoming.drained)
    }

    /// Returns whether the program can be told now that its peer has left the kernel. A program that wants the rest
    /// through the kernel waits for the writer's answer.
    pub fn is_about_to_read(&self) -> bool {
        self.incoming.phase == IncomingPhase::Announced
            && !self.has_gone()
            && (self.incoming.back.is_some() || !self.is_asked_back())
    }

    /// Returns whether the program takes nothing more out of the ring, and wants it through the kernel.
    pub fn is_asked_back(&self) -> bool {
        STREAM.flags(&Mapped::new(&self.remote)) & ASKS_BACK != 0
    }

    /// The position up to which the program has taken the bytes of its peer, and the number of those that it has not taken.
    fn taken(&self) -> Result<(u64, u64), Broken> {
        let (own, remote) = (Mapped::new(&self.own), Mapped::new(&self.remote));
        let tail = STREAM.tail(&own);
        let taken = tail.checked_sub(STREAM.unread_by_peer(&own, &remote)? as u64).ok_or(Broken)?;
        // Bytes behind the end of the ring are void.
        let end = self.incoming.end.map_or(tail, |end| end.min(tail));
        Ok((taken, end.saturating_sub(taken)))
    }

    /// Reports what the program has taken, and asks for the return of the direction if the program does.
    fn report_drained(&mut self, stream: StreamId, streams: &mut Streams) -> Result<bool, Broken> {
        let is_asking = self.is_asked_back() && !self.incoming.has_asked;
        let mut has_moved = false;
        if self.incoming.phase != IncomingPhase::Kernel && !self.incoming.has_asked {
            let (taken, _) = self.taken()?;
            if taken < self.incoming.drained {
                return Err(Broken);
            }
            if taken > self.incoming.drained {
                streams.drain(stream, self.incoming.cut + taken, WINDOW_BYTES)?;
                self.incoming.drained = taken;
                has_moved = true;
            }
        }
        if is_asking {
            self.incoming.has_asked = true;
            // A direction that has ended by itself is on its way back, or has no more bytes.
            let _offset = streams.ask_back(stream);
            has_moved = true;
        }
        Ok(has_moved)
    }

    /// Returns whether the other engine knows that the program has taken everything.
    fn has_reported_all(&self) -> bool {
        let tail = STREAM.tail(&Mapped::new(&self.own));
        let end = self.incoming.end.map_or(tail, |end| end.min(tail));
        self.incoming.phase == IncomingPhase::Kernel || self.incoming.drained == end
    }

    /// Ends what is over, once the program at the other end has taken everything.
    fn end(&mut self, stream: StreamId, streams: &mut Streams) -> Result<Option<Progress>, Broken> {
        let Some(progress) = streams.progress(stream) else { return Err(Broken) };
        let has_gone = self.has_gone();
        // An end that closes with unread bytes resets the connection, as the kernel's would. Those that were asked back come
        // through the kernel.
        if has_gone && !self.is_asked_back() && self.taken()?.1 > 0 {
            return Err(Broken);
        }
        // A program that has gone gives nothing of its ring to the kernel any more.
        let (own, remote) = (Mapped::new(&self.own), Mapped::new(&self.remote));
        let keeps_bytes = matches!(STREAM.route(&remote)?, Route::Ring | Route::Ending)
            && STREAM.head(&own) + STREAM.available(&own, &remote)? as u64 > self.outgoing.queued;
        if has_gone && self.outgoing.phase == OutgoingPhase::Back && keeps_bytes {
            return Err(Broken);
        }
        let is_ended = matches!(self.outgoing.phase, OutgoingPhase::Half | OutgoingPhase::Back);
        let end = self.outgoing.cut + self.outgoing.queued;
        if !is_ended || progress.drained < end {
            return Ok(None);
        }
        if self.outgoing.phase == OutgoingPhase::Half && !self.is_shut {
            self.is_shut = true;
            self.let_end_in_order();
            // An error means that the connection has ended, of which the kernel tells the program.
            let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Write);
        }
        // The other engine waits for the report of the last byte that the program takes.
        if progress.is_over && (self.is_asked_back() || self.has_reported_all()) {
            return Ok(Some(Progress::Over));
        }
        // The end of this direction has to leave first: no event would tell that both are over.
        if has_gone && progress.is_sent {
            self.let_end_in_order();
            return Ok(Some(Progress::Released));
        }
        Ok(None)
    }

    /// The program has made its own death a reset, because bytes may have been in the ring. None are there any more.
    fn let_end_in_order(&self) {
        if !self.is_inherited() {
            take_back_reset(&self.socket);
        }
    }

    /// Notes something for which the program has to be woken.
    fn note(&mut self, news: News) {
        self.news = match (self.news, news) {
            (None, news) => Some(news),
            (Some(known), news) if known == news => Some(known),
            // Wakes both kinds of sleepers.
            _ => Some(News::Route),
        };
    }

    /// Wakes the program for what was noted.
    pub fn wake(&mut self) {
        let Some(news) = self.news.take() else { return };
        let (own, remote) = (Mapped::new(&self.own), Mapped::new(&self.remote));
        self.program.wake(&own, &remote, news, &mut self.woken);
    }

    /// Lets the connection go, which is over for the engine.
    pub fn release(self) {
        deferred::close_socket(self.socket);
    }

    /// The stream is lost. The connection goes on if no byte of it has left the kernel, and none must. Otherwise it is reset.
    pub fn lose(mut self) {
        let words = Mapped::new(&self.own);
        // From here on the program does not leave the kernel.
        STREAM.raise(&words, ASKS_BACK);
        let has_left = self.is_required
            || self.incoming.phase != IncomingPhase::Kernel
            || self.outgoing.cut > 0
            || !matches!(STREAM.route(&Mapped::new(&self.remote)), Ok(Route::Kernel));
        if has_left {
            STREAM.end_taking(&words);
            STREAM.fail(&words, Errno::CONNRESET.raw_os_error().unsigned_abs());
            let _ = rustix::net::sockopt::set_socket_linger(&self.socket, Some(Duration::ZERO));
            let _ = rustix::net::connect_unspec(&self.socket);
        }
        self.note(News::Route);
        self.wake();
        deferred::close_socket(self.socket);
    }

    /// The reason for the other engine when this one cannot go on.
    pub fn reset_reason(&self) -> ResetReason {
        if self.has_gone() { ResetReason::Aborted } else { ResetReason::Lost }
    }
}
