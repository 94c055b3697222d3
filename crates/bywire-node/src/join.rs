//! Joins a fabric by an invitation, for `bywire join`.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use bywire_sys::poller::Poller;
use bywire_sys::{Errno, clock, process};
use bywire_wire::channel::Event;
use bywire_wire::handshake::{Identity, PrivateKey};
use bywire_wire::service;
use bywire_wire::service_message::{NotJoined, ServiceMessage};

use crate::broker::IncomingFile;
use crate::fabric::ServiceAddress;
use crate::invitation::Invitation;
use crate::link::Link;

/// The silence of the keeper after which the user is told that it is awaited.
const NOTICE_NS: u64 = 2_000_000_000;
/// How long the keeper may take.
pub const TIMEOUT: Duration = Duration::from_secs(15);

/// The machine that joins.
#[derive(Clone, Debug)]
pub struct Candidate<'candidate> {
    /// Its key.
    pub key: &'candidate PrivateKey,
    /// Its addresses. Without one, it has the one that the keeper sees.
    pub addresses: &'candidate [ServiceAddress],
    /// The UDP port of its service. It has to be free.
    pub udp_port: u16,
    /// Differs between starts of the machine.
    pub boot_id: [u8; 16],
}

/// Why a machine has not joined.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The keeper's host names are unknown here.
    #[error(
        "no address is known here of {0}: put an address of the keeper in place of the first word of the invitation"
    )]
    NoAddress(String),
    /// The UDP port is taken.
    #[error("another program has UDP port {0}: stop it, or choose another port by --port")]
    PortTaken(u16),
    /// The kernel refuses something.
    #[error(
        "cannot use UDP port {0}: {1}: correct that on this machine, or choose another port by --port, and use the same \
         invitation again"
    )]
    System(u16, Errno),
    /// Nothing came back.
    #[error(
        "no answer from {0}: check that `bywire up` runs there, of the same version, and that UDP passes. A keeper does not \
         answer invitations that it does not know, as after its restart: make a new one by `bywire invite {1}` there"
    )]
    NoAnswer(String, String),
    /// The keeper has answered once, and then no more.
    #[error("the keeper at {0} answers no more: try again with the same invitation")]
    Interrupted(String),
    /// The invitation was used.
    #[error(
        "the invitation has been used by another machine: make a new one by `bywire invite {0}` on the keeper"
    )]
    Used(String),
    /// The invitation is too old.
    #[error(
        "the invitation has expired, as it is good for ten minutes: make a new one by `bywire invite {0}` on the keeper"
    )]
    Expired(String),
    /// The keeper has another reason.
    #[error("the keeper has not added this machine: {0}")]
    Rejected(String),
    /// The file of the keeper is not a text.
    #[error("the keeper's fabric file is damaged: see `bywire status` there")]
    Damaged,
}

/// Uses an invitation. Returns the text of the fabric file. `on_silence` is called once if the keeper does not answer soon.
///
/// # Errors
/// [`JoinError`].
pub fn join(
    invitation: &Invitation,
    candidate: &Candidate,
    on_silence: impl FnOnce(),
) -> Result<String, JoinError> {
    let port = candidate.udp_port;
    let system = |error| match error {
        Errno::ADDRINUSE => JoinError::PortTaken(port),
        error => JoinError::System(port, error),
    };
    let mut incarnation = [0; 8];
    process::random(&mut incarnation).map_err(system)?;
    let identity = Identity {
        key: candidate.key.clone(),
        shared_secret: Some(*invitation.secret),
        boot_id: candidate.boot_id,
        incarnation: u64::from_ne_bytes(incarnation),
    };
    let addresses = resolved(&invitation.addresses);
    if addresses.is_empty() {
        return Err(JoinError::NoAddress(text_of(&invitation.addresses)));
    }
    let mut link = Link::open(port, identity).map_err(system)?;
    let now_ns = clock::nanoseconds();
    link.add(now_ns, invitation.keeper, addresses);
    link.want(now_ns, &invitation.keeper);
    let mut poller = Poller::new().map_err(system)?;
    poller.add(&link, 0).map_err(system)?;
    let mut conversation = Conversation { invitation, candidate, link, file: None, has_answered: false };
    let outcome = conversation.hold(&mut poller, now_ns, on_silence);
    conversation.link.close(clock::nanoseconds());
    outcome.unwrap_or_else(|error| Err(system(error)))
}

/// The addresses of hosts, as far as they are known.
fn resolved(addresses: &[ServiceAddress]) -> Vec<SocketAddr> {
    let of = |address: &ServiceAddress| match address {
        ServiceAddress::Address(address) => vec![*address],
        ServiceAddress::Host(host, port) => {
            (host.as_str(), *port).to_socket_addrs().map(Iterator::collect).unwrap_or_default()
        }
    };
    addresses.iter().flat_map(of).collect()
}

/// The addresses in a sentence.
pub fn text_of(addresses: &[ServiceAddress]) -> String {
    addresses.iter().map(ServiceAddress::to_string).collect::<Vec<_>>().join(", ")
}

/// What is said with the keeper.
struct Conversation<'conversation> {
    invitation: &'conversation Invitation,
    candidate: &'conversation Candidate<'conversation>,
    link: Link,
    file: Option<IncomingFile>,
    has_answered: bool,
}

impl Conversation<'_> {
    /// Until the file is here, or the keeper refuses. `Err`: the kernel refuses.
    fn hold(
        &mut self,
        poller: &mut Poller,
        began_ns: u64,
        on_silence: impl FnOnce(),
    ) -> Result<Result<String, JoinError>, Errno> {
        let until_ns = began_ns.saturating_add(TIMEOUT.as_nanos() as u64);
        let notice_ns = began_ns.saturating_add(NOTICE_NS);
        let mut on_silence = Some(on_silence);
        loop {
            let now_ns = clock::nanoseconds();
            self.link.flush(now_ns);
            while let Some(event) = self.link.next_event(now_ns) {
                if let Some(outcome) = self.hear(now_ns, event) {
                    return Ok(outcome);
                }
            }
            self.link.flush(now_ns);
            let keeper = || text_of(&self.invitation.addresses);
            if now_ns >= until_ns {
                return Ok(Err(match self.has_answered {
                    true => JoinError::Interrupted(keeper()),
                    false => JoinError::NoAnswer(keeper(), self.invitation.node.clone()),
                }));
            }
            if now_ns >= notice_ns
                && !self.has_answered
                && let Some(on_silence) = on_silence.take()
            {
                on_silence();
            }
            let notice_ns = if on_silence.is_some() { notice_ns.max(now_ns) } else { until_ns };
            let next_ns = self.link.next_timeout_ns().unwrap_or(until_ns).min(until_ns).min(notice_ns);
            poller.wait(Some(Duration::from_nanos(next_ns.saturating_sub(now_ns))))?;
            self.link.receive(clock::nanoseconds());
        }
    }

    fn hear(&mut self, now_ns: u64, event: Event) -> Option<Result<String, JoinError>> {
        match event {
            Event::Up { .. } => {
                self.has_answered = true;
                self.file = None;
                let addresses = self.candidate.addresses.iter().map(ServiceAddress::to_string).collect();
                let (name, udp_port) = (self.invitation.node.clone(), self.candidate.udp_port);
                self.say(now_ns, &ServiceMessage::Join { name, addresses, udp_port });
                None
            }
            Event::Message { bytes, .. } => self.hear_message(now_ns, service::from_bytes(&bytes).ok()?),
            // A keeper of another version cannot read the invitation, and gives a stranger no answer.
            Event::Down { .. }
            | Event::Moved { .. }
            | Event::Unreachable { .. }
            | Event::OtherVersion { .. }
            | Event::Echo { .. } => None,
        }
    }

    fn hear_message(&mut self, now_ns: u64, message: ServiceMessage) -> Option<Result<String, JoinError>> {
        let node = || self.invitation.node.clone();
        match message {
            ServiceMessage::Joined => {}
            ServiceMessage::NotJoined(NotJoined::Used) => return Some(Err(JoinError::Used(node()))),
            ServiceMessage::NotJoined(NotJoined::Expired) => return Some(Err(JoinError::Expired(node()))),
            ServiceMessage::NotJoined(NotJoined::Rejected(reason)) => {
                return Some(Err(JoinError::Rejected(reason)));
            }
            ServiceMessage::FilePart(part) => {
                if !IncomingFile::add(&mut self.file, part) {
                    return None;
                }
                if let Some(text) = IncomingFile::take_whole(&mut self.file) {
                    return Some(text.map_err(|_| JoinError::Damaged));
                }
            }
            // As its service, the keeper tells of changes.
            _ => return None,
        }
        let next = IncomingFile::ask_next(self.file.as_ref(), 0);
        self.say(now_ns, &next);
        None
    }

    fn say(&mut self, now_ns: u64, message: &ServiceMessage) {
        // Each waits for an answer, so they are few.
        self.link.send(now_ns, self.invitation.keeper, message, None, usize::MAX);
    }
}
