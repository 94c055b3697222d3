//! The service's UDP port, and the channels over it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use bywire_sys::poller::Poller;
use bywire_sys::udp::{self, Arrival, ReceiveError, UdpSocket};
use bywire_sys::{Errno, process};
use bywire_wire::channel::{Channels, Event, Options, SendError, Status, Strangers};
use bywire_wire::handshake::{Identity, InvitationId, KEY_BYTES, PublicKey};
use bywire_wire::path::Path;
use bywire_wire::service;
use bywire_wire::service::status::{Sockets, Unsent, UnsentReason};
use bywire_wire::service_message::ServiceMessage;

use crate::outbox::Outbox;

/// The most packets of one socket that are received before other work has its turn.
const PACKETS_PER_TURN: usize = 64;
/// The most nodes that have a socket of their own here, and the tag of the socket that all others have in common.
const OWN_SOCKETS_MAX: usize = 1024;
const COMMON: u64 = 0;
/// Wanted for the socket's queues: services say little, but strangers may say much.
const BUFFER_BYTES: usize = 1 << 20;
/// The payload that every IPv6 path carries, used if the kernel does not know the route.
const ROUTE_BYTES: u16 = 1232;

/// The socket for a node's packets. Those of strangers fill another queue.
struct OwnSocket {
    node: PublicKey,
    path: Path,
    socket: UdpSocket,
}

/// The sockets and the channels.
pub struct Link {
    socket: UdpSocket,
    /// By tag of the poller, which is readable if one of the sockets is.
    own_sockets: HashMap<u64, OwnSocket>,
    next_tag: u64,
    /// Packets that found no room in sockets that are closed by now.
    dropped_before: u64,
    poller: Poller,
    channels: Channels,
    addresses: HashMap<PublicKey, Vec<SocketAddr>>,
    /// Why the last packet to an address of a node could not leave.
    unsent: HashMap<SocketAddr, UnsentReason>,
    outbox: Outbox,
    buffer: Vec<u8>,
    batch: Vec<(Path, Vec<u8>)>,
}

impl Link {
    /// Binds to the port.
    ///
    /// # Errors
    /// The error of the kernel; [`Errno::ADDRINUSE`].
    pub fn open(port: u16, identity: Identity) -> Result<Self, Errno> {
        let socket = UdpSocket::bind_everywhere(port)?;
        // A machine may have several addresses, and a firewall of the other one lets only answers of the right one in.
        socket.report_local_addresses()?;
        let poller = Poller::new()?;
        poller.add(&socket, COMMON)?;
        // Less is enough, because packets without room are sent again.
        let _ = socket.request_buffers(BUFFER_BYTES);
        Ok(Self {
            socket,
            own_sockets: HashMap::new(),
            next_tag: COMMON + 1,
            dropped_before: 0,
            poller,
            channels: Channels::new(identity, Options { has_aes: has_aes() }),
            addresses: HashMap::new(),
            unsent: HashMap::new(),
            outbox: Outbox::default(),
            buffer: vec![0; udp::RECEIVE_BYTES],
            batch: Vec::new(),
        })
    }

    /// The socket of all nodes that have none of their own.
    pub fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    /// Its UDP port.
    pub fn port(&self) -> u16 {
        self.socket.local_address().map_or(0, |address| address.port())
    }

    /// Pins a node, or changes its addresses.
    pub fn add(&mut self, now_ns: u64, node: PublicKey, addresses: Vec<SocketAddr>) {
        self.channels.add(now_ns, node, addresses.clone());
        self.forget_unsent(&node);
        self.addresses.insert(node, addresses);
        self.follow_table(node);
    }

    /// Removes a node that is no longer in the fabric.
    pub fn remove(&mut self, now_ns: u64, node: &PublicKey) {
        self.channels.remove(now_ns, node);
        self.forget(node);
        self.forget_unsent(node);
        self.addresses.remove(node);
        self.close_own_socket(node);
    }

    fn forget_unsent(&mut self, node: &PublicKey) {
        for address in self.addresses.get(node).into_iter().flatten() {
            self.unsent.remove(address);
        }
    }

    /// Makes an invitation with this secret. `None`: there are too many.
    pub fn invite(&mut self, secret: [u8; KEY_BYTES]) -> Option<InvitationId> {
        self.channels.invite(secret)
    }

    /// Forgets an invitation. The node that uses it goes.
    pub fn withdraw(&mut self, now_ns: u64, id: &InvitationId) {
        self.channels.withdraw(now_ns, id);
    }

    /// The invitation that a node uses which has not been added.
    pub fn invitation(&self, node: &PublicKey) -> Option<InvitationId> {
        self.channels.invitation(node)
    }

    /// Ends a channel, and begins a new one if this service needs it. Both services are told. A guest goes for good, as only
    /// the fabric file adds nodes.
    fn begin_anew(&mut self, now_ns: u64, node: &PublicKey) {
        let is_wanted = self.channels.status(node).is_some_and(|status| status.is_wanted);
        self.channels.remove(now_ns, node);
        let Some(addresses) = self.addresses.get(node).cloned() else { return };
        self.channels.add(now_ns, *node, addresses);
        if is_wanted {
            self.want(now_ns, node);
        }
    }

    /// Notes that a channel to this node is needed.
    pub fn want(&mut self, now_ns: u64, node: &PublicKey) {
        // An unknown node has been removed since, with everything that needed it.
        let _ = self.channels.connect(now_ns, node);
    }

    /// Notes that the channel is no longer needed.
    pub fn release(&mut self, node: &PublicKey) {
        self.channels.release(node);
    }

    /// Forgets waiting messages, which were for the channel that is down.
    pub fn forget(&mut self, node: &PublicKey) {
        self.outbox.forget(node);
    }

    /// May a user ask a node for something now?
    pub fn may_ask(&self, node: &PublicKey, user: u32) -> bool {
        self.outbox.may_ask(node, user)
    }

    /// Sends a message, now or once there is room. It is a request of `user` if one is given. If more than `owed_bytes_max`
    /// waits besides requests, the channel is begun anew, and both services compare their lists.
    pub fn send(
        &mut self,
        now_ns: u64,
        node: PublicKey,
        message: &ServiceMessage,
        user: Option<u32>,
        owed_bytes_max: usize,
    ) {
        // Each part of a message is bounded so that it fits. One that did not would be as lost as with its channel.
        let Ok(bytes) = service::to_bytes(message) else { return };
        if !self.outbox.push(node, bytes, user, owed_bytes_max) {
            self.forget(&node);
            self.begin_anew(now_ns, &node);
        }
    }

    /// Passes waiting messages to the channels, as far as they have room.
    fn drain(&mut self, now_ns: u64) {
        let Self { outbox, channels, .. } = self;
        outbox.drain(|node, bytes| match channels.send(now_ns, node, bytes) {
            // Without a channel its end has been reported, or will be.
            Ok(()) | Err(SendError::NotUp | SendError::Length) => true,
            Err(SendError::Full) => false,
        });
    }

    /// Receives some of the waiting packets, first those of nodes whose channels are up.
    pub fn receive(&mut self, now_ns: u64) {
        let Ok(ready) = self.poller.wait(Some(Duration::ZERO)) else { return };
        let mut ready = ready.to_vec();
        ready.sort_by_key(|tag| *tag == COMMON);
        for tag in ready {
            let socket = match self.own_sockets.get(&tag) {
                Some(own) => &own.socket,
                None => &self.socket,
            };
            for _ in 0..PACKETS_PER_TURN {
                match socket.receive_arrival(&mut self.buffer) {
                    Ok(Some(Arrival { bytes, from, local })) => {
                        let path = Path { peer: from, local };
                        self.channels.receive(now_ns, &mut random, path, &mut self.buffer[..bytes]);
                    }
                    // Errors that the network reports may be forged.
                    Err(ReceiveError::Reported(_) | ReceiveError::Truncated { .. }) => {}
                    Ok(None) | Err(ReceiveError::System(_)) => break,
                }
            }
        }
    }

    /// Receives from a node without a channel by a socket for its first address, so that its handshakes do not wait among those of
    /// strangers, nor find that these have taken all room.
    fn follow_table(&mut self, node: PublicKey) {
        if self.channels.status(&node).is_some_and(|status| status.channel.is_some()) {
            return;
        }
        match self.addresses.get(&node).and_then(|addresses| addresses.first()) {
            Some(address) => self.open_own_socket(node, (*address).into()),
            None => self.close_own_socket(&node),
        }
    }

    /// Receives from a node by a socket of its own, as long as it sends on this path.
    fn open_own_socket(&mut self, node: PublicKey, path: Path) {
        if self.own_sockets.values().any(|own| (own.node, own.path) == (node, path)) {
            return;
        }
        self.close_own_socket(&node);
        if self.own_sockets.len() >= OWN_SOCKETS_MAX {
            return;
        }
        // Without one, it has a part in the common socket.
        let Ok(socket) = self.socket.connected_to(path.peer, path.local) else { return };
        // Without the report, its answers leave from where the kernel chooses, as before.
        let _ = socket.report_local_addresses();
        if self.poller.add(&socket, self.next_tag).is_ok() {
            self.own_sockets.insert(self.next_tag, OwnSocket { node, path, socket });
            self.next_tag += 1;
        }
    }

    fn close_own_socket(&mut self, node: &PublicKey) {
        // Packets in it are lost, and sent again.
        let dropped = &mut self.dropped_before;
        self.own_sockets.retain(|_, own| {
            let is_kept = own.node != *node;
            if !is_kept {
                *dropped += own.socket.backlog().map_or(0, |backlog| u64::from(backlog.dropped));
            }
            is_kept
        });
    }

    /// Sends the packets that have to leave.
    pub fn flush(&mut self, now_ns: u64) {
        self.drain(now_ns);
        self.channels.transmit(now_ns, &mut random, &mut self.batch);
        for (Path { peer: to, local }, packet) in self.batch.drain(..) {
            // A packet that cannot leave counts as lost, and is sent again.
            match self.socket.send_from(local, to, &packet).map_err(unsent_reason) {
                Err(Some(reason)) => {
                    // Strangers cause packets to any address, so only those of nodes are remembered.
                    if self.addresses.values().flatten().any(|address| *address == to) {
                        self.unsent.insert(to, reason);
                    }
                }
                Ok(()) if !self.unsent.is_empty() => drop(self.unsent.remove(&to)),
                Ok(()) | Err(None) => {}
            }
        }
    }

    /// The first address of a node to which the last packet could not leave, and why.
    pub fn unsent(&self, node: &PublicKey) -> Option<Unsent> {
        let mut addresses = self.addresses.get(node).into_iter().flatten();
        addresses.find_map(|to| self.unsent.get(to).map(|reason| Unsent { to: *to, reason: *reason }))
    }

    /// Sends an echo request to a node whose channel is up.
    ///
    /// # Errors
    /// [`SendError`]: nothing was sent.
    pub fn send_echo(
        &mut self,
        now_ns: u64,
        node: &PublicKey,
        number: u64,
        bytes: usize,
    ) -> Result<(), SendError> {
        self.channels.send_echo(now_ns, node, number, bytes)
    }

    /// Has a wanted node without a channel asked again soon.
    pub fn hurry(&mut self, now_ns: u64, node: &PublicKey) {
        self.channels.hurry(now_ns, node);
    }

    /// The sizes of the socket's buffers, what is in all sockets, and what found no room since the start.
    pub fn sockets(&self) -> Sockets {
        let own = self.own_sockets.values().map(|own| &own.socket);
        let all = std::iter::once(&self.socket).chain(own);
        let now = sockets(BUFFER_BYTES, all.filter_map(|socket| socket.backlog().ok()));
        Sockets { dropped: now.dropped + self.dropped_before, ..now }
    }

    /// The next event of the channels.
    pub fn next_event(&mut self, now_ns: u64) -> Option<Event> {
        let event = self.channels.next_event(now_ns)?;
        match event {
            Event::Up { node, path, .. } | Event::Moved { node, path } => {
                self.open_own_socket(node, path);
                self.channels.forget_strangers_at(path.peer.ip());
                self.channels.set_route_bytes(&node, route_bytes(path.peer));
            }
            Event::Down { node, .. } => self.follow_table(node),
            _ => {}
        }
        Some(event)
    }

    /// When [`Self::flush`] has work to do.
    pub fn next_timeout_ns(&self) -> Option<u64> {
        self.channels.next_timeout_ns()
    }

    /// Tells every peer of the end.
    pub fn close(&mut self, now_ns: u64) {
        self.channels.close(now_ns);
        self.flush(now_ns);
    }

    /// The state of a node's channel.
    pub fn status(&self, node: &PublicKey) -> Option<Status> {
        self.channels.status(node)
    }

    /// The counts of strangers.
    pub fn strangers(&self) -> &Strangers {
        self.channels.strangers()
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}

/// What sockets hold, and the sizes of the first one's buffers. The kernel doubles a requested size.
pub fn sockets(wanted_bytes: usize, backlogs: impl Iterator<Item = udp::Backlog>) -> Sockets {
    let mut all = Sockets { wanted_bytes: wanted_bytes as u32, ..Sockets::default() };
    for (place, backlog) in backlogs.enumerate() {
        if place == 0 {
            (all.receive_bytes, all.send_bytes) = (backlog.limit_bytes / 2, backlog.send_limit_bytes / 2);
        }
        all.waiting_bytes += u64::from(backlog.waiting_bytes);
        all.dropped += u64::from(backlog.dropped);
    }
    all
}

/// Why a packet could not leave. `None`: for want of room, which passes.
fn unsent_reason(error: udp::SendError) -> Option<UnsentReason> {
    match error {
        udp::SendError::Full | udp::SendError::Dropped => None,
        udp::SendError::Denied => Some(UnsentReason::Denied),
        udp::SendError::TooLong => Some(UnsentReason::TooLong),
        udp::SendError::Unreachable(Errno::NETUNREACH | Errno::HOSTUNREACH) => Some(UnsentReason::NoRoute),
        udp::SendError::Unreachable(error) | udp::SendError::System(error) => {
            Some(UnsentReason::Other(error.raw_os_error()))
        }
    }
}

/// The longest UDP payload that the route to an address carries.
pub fn route_bytes(address: SocketAddr) -> u16 {
    udp::route(address).map_or(ROUTE_BYTES, |route| route.payload_bytes)
}

/// Fills `bytes` with random bytes. The service has checked at its start that the kernel has them.
pub fn random(bytes: &mut [u8]) {
    process::random(bytes).expect("the kernel had random numbers at the start, and does not run out of them");
}

/// Has this processor instructions for AES?
pub fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes")
        && std::arch::is_aarch64_feature_detected!("pmull");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    false
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::time::Instant;

    use bywire_sys::clock;
    use bywire_wire::channel::{DownReason, QUEUE_MESSAGES_MAX};
    use bywire_wire::handshake::PrivateKey;

    use super::*;

    fn is_up(link: &Link, node: &PublicKey) -> bool {
        link.status(node).is_some_and(|status| status.channel.is_some())
    }

    /// Lets two services go on until both have a channel to the other. Returns the events of the first.
    fn await_channel(links: [&mut Link; 2], keys: [PublicKey; 2]) -> Vec<Event> {
        let deadline = Instant::now() + Duration::from_secs(30);
        let [here, there] = links;
        let mut events = Vec::new();
        loop {
            for link in [&mut *here, &mut *there] {
                let now_ns = clock::nanoseconds();
                link.receive(now_ns);
                link.flush(now_ns);
            }
            let now_ns = clock::nanoseconds();
            events.extend(std::iter::from_fn(|| here.next_event(now_ns)));
            while there.next_event(now_ns).is_some() {}
            if is_up(here, &keys[1]) && is_up(there, &keys[0]) {
                return events;
            }
            assert!(Instant::now() < deadline, "no channel: {events:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Two services on this machine, which are not connected yet, and their keys. The second one uses an invitation if there is
    /// a secret.
    fn two_links(secret: Option<[u8; KEY_BYTES]>) -> ([Link; 2], [PublicKey; 2]) {
        let key = |byte| PrivateKey::new([byte; 32]);
        let links = [(1, None), (2, secret)].map(|(byte, shared_secret)| {
            let identity = Identity { key: key(byte), shared_secret, boot_id: [byte; 16], incarnation: 1 };
            Link::open(0, identity).expect("bound")
        });
        (links, [1, 2].map(|byte| key(byte).public()))
    }

    fn at(link: &Link) -> Vec<SocketAddr> {
        vec![([127, 0, 0, 1], link.port()).into()]
    }

    /// Sends to a node that acknowledges nothing, until its channel ends.
    fn overfill(link: &mut Link, node: PublicKey) {
        const OWED_BYTES_MAX: usize = 64 << 10;
        let mut count = 0;
        while is_up(link, &node) {
            let now_ns = clock::nanoseconds();
            link.send(now_ns, node, &ServiceMessage::Cancel { request: count }, None, OWED_BYTES_MAX);
            link.flush(now_ns);
            count += 1;
            let most = QUEUE_MESSAGES_MAX + OWED_BYTES_MAX / 64 + 1;
            assert!(count as usize <= most, "{count} messages wait");
        }
    }

    #[test]
    fn a_node_that_takes_nothing_loses_its_channel_and_gets_another() {
        let ([mut here, mut there], keys) = two_links(None);
        let now_ns = clock::nanoseconds();
        here.add(now_ns, keys[1], at(&there));
        there.add(now_ns, keys[0], at(&here));
        here.want(now_ns, &keys[1]);
        await_channel([&mut here, &mut there], keys);
        overfill(&mut here, keys[1]);
        let events = await_channel([&mut here, &mut there], keys);
        let is_down = |event: &Event| matches!(event, Event::Down { reason: DownReason::Removed, .. });
        assert!(events.iter().any(is_down), "both are told: {events:?}");
    }

    #[test]
    fn a_node_is_answered_from_the_address_to_which_it_sends() {
        let ([mut here, mut there], keys) = two_links(None);
        let now_ns = clock::nanoseconds();
        here.add(now_ns, keys[1], at(&there));
        let second = IpAddr::from([127, 0, 0, 2]);
        there.add(now_ns, keys[0], vec![SocketAddr::new(second, here.port())]);
        there.want(now_ns, &keys[0]);
        await_channel([&mut here, &mut there], keys);
        let channel = here.status(&keys[1]).and_then(|status| status.channel).expect("it is up");
        assert_eq!(channel.path.local, Some(second));
        // The socket for this node alone is connected to that address, so it gets nothing from another one.
        let sent = || there.status(&keys[0]).map_or(0, |status| status.counts.packets_received);
        let own: Vec<_> = there.own_sockets.values().map(|own| own.path).collect();
        let first = Some(IpAddr::from([127, 0, 0, 1]));
        assert_eq!(own, [Path { peer: SocketAddr::new(second, here.port()), local: first }]);
        assert!(sent() > 0);
        assert!(here.own_sockets.values().all(|own| own.path.local == Some(second)));
    }

    #[test]
    fn a_guest_that_takes_nothing_goes_and_is_not_added() {
        const SECRET: [u8; KEY_BYTES] = [9; KEY_BYTES];
        let ([mut here, mut there], keys) = two_links(Some(SECRET));
        assert!(here.invite(SECRET).is_some());
        let now_ns = clock::nanoseconds();
        there.add(now_ns, keys[0], at(&here));
        there.want(now_ns, &keys[0]);
        await_channel([&mut here, &mut there], keys);
        overfill(&mut here, keys[1]);
        assert!(here.status(&keys[1]).is_none(), "its key has a place without an invitation");
    }
}
