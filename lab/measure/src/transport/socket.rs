//! The common part of the kernel's sockets: options, waiting, and the count of system calls.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use bywire_sys::preloadable;
use rustix::event::PollFlags;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::net::{RecvFlags, SendFlags, sockopt};

use crate::endpoint::{Interest, NAP, Received, TIMEOUT};
use crate::plan::{Details, Plan};

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

/// The values that the kernel granted: buffers, and over TCP the congestion control algorithm.
pub(super) fn granted(socket: BorrowedFd) -> Details {
    let mut details = Details::default();
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

/// The system calls that move messages, and the number of messages. In a ping-pong as many are received as sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Calls {
    pub(super) made: u64,
    pub(super) sent: u64,
    pub(super) received: u64,
    /// True if a library takes the calls before the kernel does.
    pub(super) intercepted: bool,
}

impl Calls {
    /// `details`, and the system calls for each message sent or received, whichever is more.
    pub(super) fn add_to(self, mut details: Details) -> Details {
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

/// Waits for a socket by poll(2), unless the plan spins.
pub(super) fn wait(socket: impl AsFd, spin: bool, interest: Interest, timeout: Duration) -> Result<()> {
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

/// Sends by `push`, which returns false until the whole message is sent. Makes one blocking call, as a program that
/// sleeps does, or non-blocking calls if the plan is to `spin`.
#[inline]
pub(super) fn send_by(spin: bool, mut push: impl FnMut(SendFlags) -> Result<bool>) -> Result<()> {
    let flags = if spin { SendFlags::DONTWAIT } else { SendFlags::empty() };
    if push(flags)? {
        return Ok(());
    }
    let started = Instant::now();
    while !push(flags)? {
        if started.elapsed() > TIMEOUT {
            bail!("the peer has taken nothing for {} s", TIMEOUT.as_secs());
        }
    }
    Ok(())
}

/// Receives by `pull`, for about [`NAP`] at most. Makes one blocking call, which the socket's time-out ends, or
/// non-blocking calls if the plan is to `spin`.
#[inline]
pub(super) fn receive_by(
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
