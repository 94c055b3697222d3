//! Messages of known length over a kernel byte stream, as a program with fixed records sends them: one call for each
//! send, and reads that take all available bytes.

use std::time::Duration;

use anyhow::{Context, Result};
use bywire_sys::preloadable::{self, Watch};
use rustix::event::epoll::EventFlags;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::gone;
use super::socket::{Calls, granted, greeting, prepare, receive_by, send_by, wait};
use crate::endpoint::{Endpoint, Interest, Mark, NAP, Received, send_when_taken};
use crate::payload::{Reader, Writer};
use crate::plan::{self, Details, End, Plan};

/// The buffer through which short messages are read.
const BUFFER_BYTES: usize = 128 << 10;

/// From this length on a read stops at the end of the message, so that no byte is copied twice.
const EXACT_BYTES_MIN: usize = 64 << 10;

/// With several lanes in one thread, a long message moves in pieces of this length, as in a program that serves several
/// connections.
const TURN_BYTES: usize = 64 << 10;

/// One end of a connected byte stream.
pub struct ByteStream {
    /// The epoll set, if the plan waits by one. It is closed before the socket.
    watch: Option<Watch>,
    socket: OwnedFd,
    spin: bool,
    calls: Calls,
    writer: Writer,
    outgoing: Vec<u8>,
    /// Bytes of the current message that are done. 0 if there is none.
    filled: usize,
    sent: usize,
    reader: Reader,
    incoming: Vec<u8>,
    /// The range of unread bytes in `incoming`.
    start: usize,
    end: usize,
    receive_length: usize,
    /// The most bytes that one call moves before other lanes have their turn.
    turn_bytes: usize,
}

impl ByteStream {
    /// Makes an endpoint of a connected, blocking socket, for `end` of one of the plan's lanes.
    ///
    /// # Errors
    /// The system has no epoll set left.
    pub fn new(socket: OwnedFd, plan: &Plan, end: End, lane: usize) -> Result<Self> {
        let lengths = plan.lengths(lane);
        let receive_length = lengths.received_by(end);
        let watch =
            plan.request.epoll.then(|| Watch::new(&socket)).transpose().context("cannot watch a socket")?;
        Ok(Self {
            watch,
            socket,
            spin: plan.spin,
            calls: Calls { intercepted: plan.level == plan::Level::Sock, ..Calls::default() },
            writer: Writer::of(plan),
            outgoing: vec![0; lengths.sent_by(end)],
            filled: 0,
            sent: 0,
            reader: Reader::of(plan, true),
            incoming: vec![0; receive_length.max(BUFFER_BYTES)],
            start: 0,
            end: 0,
            receive_length,
            turn_bytes: if plan.lanes() > 1 { TURN_BYTES } else { usize::MAX },
        })
    }

    fn fill(&mut self, length: usize, mark: Mark) {
        if self.filled == 0 {
            self.writer.fill(&mut self.outgoing[..length], mark);
            self.filled = length;
            self.sent = 0;
        }
    }

    /// Hands the rest of the current message to the kernel. Returns true once all of it is sent.
    #[inline]
    fn push(&mut self, flags: SendFlags) -> Result<bool> {
        while self.sent < self.filled {
            let until = self.filled.min(self.sent.saturating_add(self.turn_bytes));
            let part = &self.outgoing[self.sent..until];
            self.calls.made += 1;
            match preloadable::send(&self.socket, part, flags | SendFlags::NOSIGNAL) {
                Ok(count) => {
                    self.sent += count;
                    if self.sent < self.filled && self.is_turn_over(count) {
                        return Ok(false);
                    }
                }
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(gone()),
                Err(errno) => return Err(errno).context("send failed"),
            }
        }
        self.filled = 0;
        self.calls.sent += 1;
        Ok(true)
    }

    #[inline]
    fn pull(&mut self, flags: RecvFlags) -> Result<Option<Received>> {
        loop {
            if let Some(received) = self.take()? {
                return Ok(Some(received));
            }
            let limit = if self.receive_length >= EXACT_BYTES_MIN {
                self.start + self.receive_length
            } else {
                self.incoming.len()
            };
            let limit = limit.min(self.end.saturating_add(self.turn_bytes));
            self.calls.made += 1;
            match preloadable::receive(&self.socket, &mut self.incoming[self.end..limit], flags) {
                Ok(0) => return Err(gone()),
                Ok(count) => {
                    self.end += count;
                    if self.is_turn_over(count) {
                        return self.take();
                    }
                }
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => return Err(gone()),
                Err(errno) => return Err(errno).context("receive failed"),
            }
        }
    }

    /// True if a call moved all that it may.
    #[inline]
    fn is_turn_over(&self, count: usize) -> bool {
        count >= self.turn_bytes
    }

    /// The next whole message that has been read already. Otherwise makes room for the rest of it.
    #[inline]
    fn take(&mut self) -> Result<Option<Received>> {
        let length = self.receive_length;
        if self.end - self.start >= length {
            let message = &self.incoming[self.start..self.start + length];
            let received = self.reader.read(message)?;
            self.calls.received += 1;
            self.start += length;
            if self.start == self.end {
                (self.start, self.end) = (0, 0);
            }
            return Ok(Some(received));
        }
        if self.start + length > self.incoming.len() {
            self.incoming.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        Ok(None)
    }
}

impl Endpoint for ByteStream {
    #[inline]
    fn try_send(&mut self, length: usize, mark: Mark) -> Result<bool> {
        self.fill(length, mark);
        self.push(SendFlags::DONTWAIT)
    }

    #[inline]
    fn try_receive(&mut self) -> Result<Option<Received>> {
        self.pull(RecvFlags::DONTWAIT)
    }

    fn wait(&mut self, interest: Interest, timeout: Duration) -> Result<()> {
        let Some(watch) = &mut self.watch else {
            return wait(&self.socket, self.spin, interest, timeout);
        };
        let events = match interest {
            Interest::Send => EventFlags::OUT,
            Interest::Receive => EventFlags::IN,
            Interest::Both => EventFlags::IN | EventFlags::OUT,
        };
        match watch.wait(events, timeout) {
            Ok(()) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno).context("epoll_wait failed"),
        }
    }

    #[inline]
    fn send(&mut self, length: usize, mark: Mark) -> Result<()> {
        self.fill(length, mark);
        if self.watch.is_none() {
            return send_by(self.spin, |flags| self.push(flags));
        }
        send_when_taken(self, |end| end.push(SendFlags::DONTWAIT))
    }

    #[inline]
    fn receive(&mut self) -> Result<Option<Received>> {
        if self.watch.is_none() {
            return receive_by(self.spin, |flags| self.pull(flags));
        }
        // As in a loop over many connections: epoll reports one, then it is read.
        if let Some(received) = self.take()? {
            return Ok(Some(received));
        }
        self.wait(Interest::Receive, NAP)?;
        self.pull(RecvFlags::DONTWAIT)
    }

    fn spins(&self) -> bool {
        self.spin
    }

    fn details(&self) -> Details {
        self.calls.add_to(granted(self.socket.as_fd()))
    }
}

/// How long a connection may take to say which pair it belongs to.
const GREETING_TIMEOUT: Duration = Duration::from_secs(2);

/// Accepts connections by `accept` until every lane of the plan has its greeting. Other connections are dropped.
pub(super) fn accept_lanes(
    plan: &Plan,
    mut accept: impl FnMut() -> Result<OwnedFd>,
) -> Result<Vec<ByteStream>> {
    let mut lanes: Vec<Option<ByteStream>> = (0..plan.lanes()).map(|_| None).collect();
    while lanes.iter().any(Option::is_none) {
        let socket = accept()?;
        let timeout = rustix::net::sockopt::Timeout::Recv;
        rustix::net::sockopt::set_socket_timeout(&socket, timeout, Some(GREETING_TIMEOUT))?;
        let Some(greeted) = read_greeting(&socket, greeting(plan, 0).len()) else {
            continue;
        };
        if let Some(lane) = (0..lanes.len()).find(|&lane| greeting(plan, lane) == greeted) {
            prepare(socket.as_fd(), plan)?;
            lanes[lane] = Some(ByteStream::new(socket, plan, End::Target, lane)?);
        }
    }
    Ok(lanes.into_iter().flatten().collect())
}

fn read_greeting(socket: &OwnedFd, length: usize) -> Option<Vec<u8>> {
    let mut greeting = vec![0; length];
    let mut filled = 0;
    while filled < length {
        match preloadable::receive(socket, &mut greeting[filled..], RecvFlags::empty()) {
            Ok(0) | Err(_) => return None,
            Ok(count) => filled += count,
        }
    }
    Some(greeting)
}

/// Sends the greeting on every lane over sockets that `connect` opens.
pub(super) fn connect_lanes(
    plan: &Plan,
    mut connect: impl FnMut() -> Result<OwnedFd>,
) -> Result<Vec<ByteStream>> {
    (0..plan.lanes())
        .map(|lane| {
            let socket = connect()?;
            prepare(socket.as_fd(), plan)?;
            preloadable::send(&socket, &greeting(plan, lane), SendFlags::NOSIGNAL)
                .context("cannot greet the target")?;
            ByteStream::new(socket, plan, End::Source, lane)
        })
        .collect()
}
