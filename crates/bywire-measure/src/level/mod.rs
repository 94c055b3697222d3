//! What is under test: one module per level, and the seam for those that carry messages between two ends.

pub mod byte_stream;
pub mod memory;
pub mod msg;
pub mod tcp;
pub mod udp;
pub mod unix;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use bywire_sys::preloadable;
use rustix::event::PollFlags;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::net::{RecvFlags, SendFlags, sockopt};

use crate::endpoint::{Endpoint, Interest, NAP, PATIENCE, Received};
use crate::plan::{Details, Plan};

/// A way to join two ends.
pub trait Level {
    /// What waits for the source.
    type Listener;
    /// One end of one lane.
    type Endpoint: Endpoint;

    /// Opens the target's side; with its address, in the level's own form, for [`Level::connect`].
    fn listen(plan: &Plan) -> Result<(Self::Listener, String)>;

    /// Waits for the source that knows the plan's cookie; one endpoint for each of the plan's lanes.
    fn accept(listener: Self::Listener, plan: &Plan) -> Result<Vec<Self::Endpoint>>;

    /// Opens the source's side towards a listening target; one endpoint for each of the plan's lanes.
    fn connect(plan: &Plan, address: &str) -> Result<Vec<Self::Endpoint>>;
}

/// Proves to the target which lane of which pair this is.
fn greeting(plan: &Plan, lane: usize) -> Vec<u8> {
    format!("{}{lane}", plan.cookie).into_bytes()
}

/// Sets what every kind of socket is asked for.
fn prepare(socket: BorrowedFd, plan: &Plan) -> Result<()> {
    if let Some(bytes) = plan.socket_buffer_bytes {
        let bytes = bytes as usize;
        sockopt::set_socket_send_buffer_size(socket, bytes)
            .and_then(|()| sockopt::set_socket_recv_buffer_size(socket, bytes))
            .with_context(|| format!("the kernel refuses socket buffers of {bytes} bytes"))?;
    }
    // Blocking calls return now and then, so that a dead peer is noticed.
    sockopt::set_socket_timeout(socket, sockopt::Timeout::Recv, Some(NAP))?;
    sockopt::set_socket_timeout(socket, sockopt::Timeout::Send, Some(NAP))?;
    Ok(())
}

/// What the kernel granted: buffers, and over TCP the algorithm of congestion control.
fn granted(socket: BorrowedFd) -> Details {
    let mut details = Details::new();
    if let Ok(bytes) = sockopt::socket_send_buffer_size(socket) {
        details.insert("send_socket_bytes".into(), bytes.into());
    }
    if let Ok(bytes) = sockopt::socket_recv_buffer_size(socket) {
        details.insert("receive_socket_bytes".into(), bytes.into());
    }
    if let Ok(name) = sockopt::tcp_congestion(socket) {
        details.insert("congestion".into(), name.into());
    }
    details
}

/// System calls that move messages, beside the messages: in a ping-pong as many are received as sent.
#[derive(Clone, Copy, Debug, Default)]
struct Calls {
    made: u64,
    sent: u64,
    received: u64,
    /// A library takes them before the kernel does.
    intercepted: bool,
}

impl Calls {
    /// `details`, and the calls for each message that was sent, or received where those are more.
    fn add_to(self, mut details: Details) -> Details {
        // The target of a stream sends next to nothing.
        let (messages, direction) =
            if self.received > self.sent + 1 { (self.received, "received") } else { (self.sent, "sent") };
        if messages > 0 {
            let kind = if self.intercepted { "calls" } else { "system_calls" };
            let calls = self.made as f64 / messages as f64;
            details.insert(format!("{kind}_per_message_{direction}"), calls.into());
        }
        details
    }
}

/// Waits for a socket by poll(2), or not at all when the plan is to spin.
fn wait(socket: impl AsFd, spin: bool, interest: Interest, timeout: Duration) -> Result<()> {
    if spin {
        std::hint::spin_loop();
        return Ok(());
    }
    let events = match interest {
        Interest::Send => PollFlags::OUT,
        Interest::Receive => PollFlags::IN,
        Interest::Both => PollFlags::IN | PollFlags::OUT,
    };
    match preloadable::poll(socket, events, timeout) {
        Ok(()) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(anyhow!(errno).context("poll failed")),
    }
}

/// Sends by `push`, which returns false while the message is not all gone: one blocking call, as a program that sleeps
/// would make, or calls that do not block where the plan is to `spin`.
#[inline]
fn send_by(spin: bool, mut push: impl FnMut(SendFlags) -> Result<bool>) -> Result<()> {
    let flags = if spin { SendFlags::DONTWAIT } else { SendFlags::empty() };
    if push(flags)? {
        return Ok(());
    }
    let started = Instant::now();
    while !push(flags)? {
        if started.elapsed() > PATIENCE {
            bail!("the peer has taken nothing for {} s", PATIENCE.as_secs());
        }
    }
    Ok(())
}

/// Receives by `pull`, for about [`NAP`] at most: one blocking call, which the socket's time-out ends, or calls that do
/// not block where the plan is to `spin`.
#[inline]
fn receive_by(
    spin: bool,
    mut pull: impl FnMut(RecvFlags) -> Result<Option<Received>>,
) -> Result<Option<Received>> {
    if !spin {
        return pull(RecvFlags::empty());
    }
    let started = Instant::now();
    loop {
        let received = pull(RecvFlags::DONTWAIT)?;
        if received.is_some() || started.elapsed() >= NAP {
            return Ok(received);
        }
    }
}

/// One line for a peer that has gone away.
fn gone() -> anyhow::Error {
    anyhow!("the peer closed the connection in the middle of the test")
}
