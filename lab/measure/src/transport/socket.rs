//! The kernel's sockets as endpoints: options, waiting, and the count of system calls.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bywire_sys::preloadable::{self, Watch};
use rustix::event::PollFlags;
use rustix::event::epoll::EventFlags;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, sockopt};

use crate::endpoint::{Endpoint, Interest, Mark, NAP, Received, TIMEOUT, send_when_taken};
use crate::payload::{Reader, Writer};
use crate::plan::{Details, End, Level, Plan};

/// How messages are cut out of what a socket carries.
pub trait Framing: Sized {
    /// [`Endpoint::RELIABLE`].
    const RELIABLE: bool = true;

    /// Hands the rest of the outgoing message to the kernel. Returns true once all of it is sent.
    fn push(end: &mut SocketEnd<Self>, length: usize, flags: SendFlags) -> Result<bool>;

    /// Reads from the kernel until there is a whole message, or nothing more to read.
    fn pull(end: &mut SocketEnd<Self>, flags: RecvFlags) -> Result<Option<Received>>;

    /// The next whole message that has been read already.
    fn take(_end: &mut SocketEnd<Self>) -> Result<Option<Received>> {
        Ok(None)
    }

    /// [`Endpoint::send_errors`].
    fn send_errors(&self) -> u64 {
        0
    }
}

/// One end of a connected socket.
pub struct SocketEnd<F> {
    /// The epoll set, if the plan waits by one. It is closed before the socket.
    watch: Option<Watch>,
    pub(super) socket: OwnedFd,
    spin: bool,
    pub(super) calls: Calls,
    writer: Writer,
    pub(super) outgoing: Vec<u8>,
    /// Whether the outgoing message has been written and not been sent.
    pub(super) is_filled: bool,
    pub(super) reader: Reader,
    pub(super) incoming: Vec<u8>,
    pub(super) receive_length: usize,
    pub(super) framing: F,
}

impl<F: Framing> SocketEnd<F> {
    /// Makes an endpoint of a connected, blocking socket, for `end` of one of the plan's lanes. It receives through a
    /// buffer of `buffer_bytes` at least.
    pub(super) fn new(
        socket: OwnedFd,
        plan: &Plan,
        end: End,
        lane: usize,
        buffer_bytes: usize,
        framing: F,
    ) -> Result<Self> {
        let lengths = plan.lengths(lane);
        let receive_length = lengths.received_by(end);
        let watch = plan.request.epoll.then(|| Watch::new(&socket)).transpose();
        Ok(Self {
            watch: watch.context("cannot watch a socket")?,
            socket,
            spin: plan.spin,
            calls: Calls { intercepted: plan.level == Level::Sock, ..Calls::default() },
            writer: Writer::of(plan),
            outgoing: vec![0; lengths.sent_by(end)],
            is_filled: false,
            reader: Reader::of(plan, F::RELIABLE),
            incoming: vec![0; receive_length.max(buffer_bytes)],
            receive_length,
            framing,
        })
    }

    #[inline]
    fn fill(&mut self, length: usize, mark: Mark) {
        if !self.is_filled {
            self.writer.fill(&mut self.outgoing[..length], mark);
            self.is_filled = true;
        }
    }
}

impl<F: Framing> Endpoint for SocketEnd<F> {
    const RELIABLE: bool = F::RELIABLE;

    #[inline]
    fn try_send(&mut self, length: usize, mark: Mark) -> Result<bool> {
        self.fill(length, mark);
        F::push(self, length, SendFlags::DONTWAIT)
    }

    #[inline]
    fn try_receive(&mut self) -> Result<Option<Received>> {
        F::pull(self, RecvFlags::DONTWAIT)
    }

    fn wait(&mut self, interest: Interest, timeout: Duration) -> Result<()> {
        if self.watch.is_none() && self.spin {
            std::hint::spin_loop();
            return Ok(());
        }
        let events = match interest {
            Interest::Send => EventFlags::OUT,
            Interest::Receive => EventFlags::IN,
            Interest::Both => EventFlags::IN | EventFlags::OUT,
        };
        let (waited, call) = match &mut self.watch {
            Some(watch) => (watch.wait(events, timeout), "epoll_wait"),
            // Both calls have one set of flags.
            None => {
                let events = PollFlags::from_bits_truncate(events.bits() as _);
                (preloadable::poll(&self.socket, events, timeout), "poll")
            }
        };
        match waited {
            Ok(()) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno).with_context(|| format!("{call} failed")),
        }
    }

    /// Makes one blocking call, as a program that sleeps does, or non-blocking calls if the plan is to spin.
    #[inline]
    fn send(&mut self, length: usize, mark: Mark) -> Result<()> {
        self.fill(length, mark);
        if self.watch.is_some() {
            return send_when_taken(self, |end| F::push(end, length, SendFlags::DONTWAIT));
        }
        let flags = if self.spin { SendFlags::DONTWAIT } else { SendFlags::empty() };
        if F::push(self, length, flags)? {
            return Ok(());
        }
        let started = Instant::now();
        while !F::push(self, length, flags)? {
            ensure!(started.elapsed() <= TIMEOUT, "the peer has taken nothing for {} s", TIMEOUT.as_secs());
        }
        Ok(())
    }

    /// Makes one blocking call, which the socket's time-out ends, or non-blocking calls if the plan is to spin.
    #[inline]
    fn receive(&mut self) -> Result<Option<Received>> {
        if self.watch.is_some() {
            // As in a loop over many connections: epoll reports one, then it is read.
            if let Some(received) = F::take(self)? {
                return Ok(Some(received));
            }
            self.wait(Interest::Receive, NAP)?;
            return F::pull(self, RecvFlags::DONTWAIT);
        }
        if !self.spin {
            return F::pull(self, RecvFlags::empty());
        }
        let started = Instant::now();
        loop {
            let received = F::pull(self, RecvFlags::DONTWAIT)?;
            if received.is_some() || started.elapsed() >= NAP {
                return Ok(received);
            }
        }
    }

    fn spins(&self) -> bool {
        self.spin
    }

    fn send_errors(&self) -> u64 {
        self.framing.send_errors()
    }

    /// The values that the kernel granted (buffers, and over TCP the congestion control algorithm), and the calls.
    fn details(&self) -> Details {
        let mut details = Details::default();
        let mut set = |name: &str, value: serde_json::Value| details.insert(name.to_owned(), value);
        if let Ok(bytes) = sockopt::socket_send_buffer_size(&self.socket) {
            set("send_socket_bytes", bytes.into());
        }
        if let Ok(bytes) = sockopt::socket_recv_buffer_size(&self.socket) {
            set("receive_socket_bytes", bytes.into());
        }
        if let Ok(name) = sockopt::tcp_congestion(&self.socket) {
            set("congestion", name.into());
        }
        let Calls { made, sent, received, intercepted } = self.calls;
        // The target of a stream sends next to nothing. In a ping-pong as many messages are received as sent.
        let (messages, direction) = if received > sent + 1 { (received, "received") } else { (sent, "sent") };
        if messages > 0 {
            let kind = if intercepted { "calls" } else { "system_calls" };
            set(&format!("{kind}_per_message_{direction}"), (made as f64 / messages as f64).into());
        }
        details
    }
}

/// The system calls that move messages, and the number of messages.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Calls {
    pub(super) made: u64,
    pub(super) sent: u64,
    pub(super) received: u64,
    /// Whether a library takes the calls before the kernel does.
    intercepted: bool,
}

/// The greeting that tells the target which lane of which pair this is.
pub(super) fn greeting(plan: &Plan, lane: usize) -> Vec<u8> {
    format!("{}{lane}", plan.cookie).into_bytes()
}

/// Sets the options that every kind of socket has.
pub(super) fn prepare(socket: BorrowedFd, plan: &Plan) -> Result<()> {
    if let Some(bytes) = plan.request.socket_buffer_bytes {
        let bytes = bytes as usize;
        sockopt::set_socket_send_buffer_size(socket, bytes)
            .and_then(|()| sockopt::set_socket_recv_buffer_size(socket, bytes))
            .with_context(|| format!("the kernel refuses socket buffers of {bytes} bytes"))?;
    }
    // Blocking calls return now and then, so that the end of the peer is noticed.
    sockopt::set_socket_timeout(socket, sockopt::Timeout::Recv, Some(NAP))?;
    sockopt::set_socket_timeout(socket, sockopt::Timeout::Send, Some(NAP))?;
    Ok(())
}
