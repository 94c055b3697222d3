//! The UDP sockets of a port: one for everybody, and connected ones for its most active peers.
//!
//! The kernel looks up the route of a connected socket once, and not for each packet.
//! All have one port, so a peer does not notice which one is in use, and a connection continues on the common one.

use std::net::SocketAddr;

use bywire_sys::Errno;
use bywire_sys::udp::{Datagrams, ReceiveError, SendError, UdpSocket};
use bywire_wire::batch::Batch;
use bywire_wire::path::Path;

use super::runs::Runs;

/// The requested size of a socket's buffers. The kernel grants less if its limits are lower.
const BUFFER_BYTES: usize = 4 << 20;
/// The most connected sockets of a port. Looks at many take longer than their routes.
const CONNECTED_MAX: usize = 8;
/// One look in this many is at another socket than the one that received something last.
const OTHER_EVERY: u32 = 8;
/// The same, if the only peer has a connected socket. The common socket then receives only packets of strangers, and those
/// that arrived before the other socket was connected.
const COMMON_EVERY: u32 = 64;
/// The most receives from the common socket, after a peer has got one of its own, before that one is read. Strangers could
/// fill the common socket without end.
const EARLIER_MAX: u32 = 64;

/// The sockets, and which one is looked at next.
pub(super) struct Sockets {
    common: UdpSocket,
    connected: Vec<Connected>,
    /// The place of the socket that brought something last: 0 is the common one, and the others follow.
    last: usize,
    /// The place of the other socket that was looked at last.
    other: usize,
    /// Looks since something came.
    looks: u32,
    /// The number of sockets that the next look includes, or 0 for one.
    sweep: usize,
    /// Receives from the common socket that come before all others. It may have earlier packets of a peer than that peer's
    /// new socket. TCP takes segments of Ethernet that overtake others for lost ones.
    earlier: u32,
    /// Calls of the kernel that have sent packets.
    calls: u64,
}

/// The socket of the peer in a slot.
struct Connected {
    index: u32,
    to: SocketAddr,
    socket: UdpSocket,
}

/// A batch for which a socket had no room.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stalled {
    pub index: u32,
    pub path: Path,
    /// The bytes of it that have left.
    pub sent: usize,
}

impl Sockets {
    /// The common socket, on a free port.
    pub fn new() -> Result<Self, Errno> {
        let common = UdpSocket::bind_everywhere(0)?;
        prepare(&common);
        Ok(Self {
            common,
            connected: Vec::new(),
            last: 0,
            other: 0,
            looks: 0,
            sweep: 0,
            earlier: 0,
            calls: 0,
        })
    }

    /// The socket that everybody can reach.
    pub fn common(&self) -> &UdpSocket {
        &self.common
    }

    /// Uses another common socket from now on, and returns the one before.
    pub fn replace_common(&mut self, common: UdpSocket) -> UdpSocket {
        self.disconnect_all();
        prepare(&common);
        std::mem::replace(&mut self.common, common)
    }

    /// Connects a socket for the peer in a slot. `None`: there are enough, or the kernel has none.
    pub fn connect(&mut self, index: u32, path: Path) -> Option<&UdpSocket> {
        if self.connected.len() == CONNECTED_MAX || self.has_connected(index) {
            return None;
        }
        let socket = self.common.connected_to(path.peer, path.local).ok()?;
        prepare(&socket);
        self.connected.push(Connected { index, to: path.peer, socket });
        self.earlier = EARLIER_MAX;
        self.connected.last().map(|connected| &connected.socket)
    }

    /// Closes the socket of the peer in a slot. Packets that wait there are lost.
    pub fn disconnect(&mut self, index: u32) {
        if let Some(place) = self.place_of(index) {
            let Connected { to, socket, .. } = self.connected.swap_remove(place);
            socket.retire(to);
            (self.last, self.other) = (0, 0);
        }
    }

    /// Closes all connected ones.
    pub fn disconnect_all(&mut self) {
        while let Some(index) = self.connected.last().map(|connected| connected.index) {
            self.disconnect(index);
        }
    }

    /// Has the peer in a slot a socket?
    pub fn has_connected(&self, index: u32) -> bool {
        self.place_of(index).is_some()
    }

    fn place_of(&self, index: u32) -> Option<usize> {
        self.connected.iter().position(|connected| connected.index == index)
    }

    fn at(&self, place: usize) -> &UdpSocket {
        place
            .checked_sub(1)
            .and_then(|place| self.connected.get(place))
            .map_or(&self.common, |own| &own.socket)
    }

    /// From now on receives search all sockets, until they are empty. The one that brought something last comes first.
    pub fn look_everywhere(&mut self) {
        self.sweep = 1 + self.connected.len();
        self.other = self.last.checked_sub(1).unwrap_or(self.connected.len());
    }

    /// Does the next receive search all sockets?
    pub fn is_search_due(&self) -> bool {
        self.sweep > 0
    }

    /// Receives the next packets of one socket. `peers` is the number of all peers. `Ok(None)`: this socket is empty, but
    /// others may not be.
    ///
    /// # Errors
    /// Those of [`UdpSocket::receive_joined`].
    #[inline]
    pub fn receive(&mut self, peers: usize, buffer: &mut [u8]) -> Result<Option<Datagrams>, ReceiveError> {
        while self.earlier > 0 {
            self.earlier -= 1;
            match self.common.receive_joined(buffer) {
                Ok(None) => self.earlier = 0,
                received => return received,
            }
        }
        loop {
            let is_sweep = self.sweep > 0;
            let place = self.next_place(peers);
            let received = self.at(place).receive_joined(buffer);
            if !matches!(received, Ok(None)) {
                self.last = place;
                if self.has_others(peers) {
                    self.looks = 0;
                }
                if is_sweep {
                    self.look_everywhere();
                }
                return received;
            }
            if self.sweep == 0 {
                return received;
            }
        }
    }

    /// Can packets of a peer come to another socket than the only connected one?
    #[inline]
    fn has_others(&self, peers: usize) -> bool {
        self.connected.len() != 1 || peers > 1
    }

    /// The socket that brought something last is looked at most often, and after each time, another one.
    #[inline]
    fn next_place(&mut self, peers: usize) -> usize {
        if self.connected.is_empty() {
            self.sweep = 0;
            return 0;
        }
        let (most, every) = if self.has_others(peers) { (self.last, OTHER_EVERY) } else { (1, COMMON_EVERY) };
        let is_others_turn = self.looks.is_multiple_of(every);
        self.looks = self.looks.wrapping_add(1);
        if self.sweep == 0 && !is_others_turn {
            return most;
        }
        self.sweep = self.sweep.saturating_sub(1);
        self.other = if self.other < self.connected.len() { self.other + 1 } else { 0 };
        self.other
    }

    /// Calls of the kernel so far that have sent packets.
    pub fn calls(&self) -> u64 {
        self.calls
    }

    /// Sends a batch to the peer in a slot, from an offset on, in as few calls as the lengths of its packets permit.
    /// Packets that the network refuses are treated as lost.
    ///
    /// # Errors
    /// The socket has no room.
    pub fn send(&mut self, index: u32, path: Path, batch: &Batch, sent: usize) -> Result<(), Stalled> {
        let mut place = self.place_of(index);
        for (run, packet_bytes) in Runs::of(batch) {
            // The rest of a run that was cut short.
            let mut at = run.start.max(sent);
            while at < run.end {
                let packets = &batch.bytes()[at..run.end];
                self.calls += 1;
                let outcome = match place {
                    Some(place) => self.connected[place].socket.send_batch(None, packets, packet_bytes),
                    None => self.common.send_batch_from(path.local, path.peer, packets, packet_bytes),
                };
                match outcome {
                    Ok(count) => at += count,
                    Err(SendError::Full) => return Err(Stalled { index, path, sent: at }),
                    // Its route, or the address that it sends from, may be gone.
                    Err(SendError::Unreachable(_) | SendError::System(_)) if place.is_some() => {
                        self.disconnect(index);
                        place = None;
                    }
                    Err(_) => at = run.end,
                }
            }
        }
        Ok(())
    }
}

/// Smaller buffers than wanted hold less, and `bywire status` reports that.
fn prepare(socket: &UdpSocket) {
    let _ = socket.request_buffers(BUFFER_BYTES);
    socket.enable_gro();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    const ONE_BYTE: Datagrams = Datagrams { bytes: 1, bytes_each: 1 };

    fn address(socket: &UdpSocket) -> SocketAddr {
        ([127, 0, 0, 1], socket.local_address().expect("bound").port()).into()
    }

    /// Sockets of a port, and so many peers at loopback, the first of which have a connected socket each.
    fn connected<const PEERS: usize>(connected: usize) -> (Sockets, SocketAddr, [UdpSocket; PEERS]) {
        let mut sockets = Sockets::new().expect("bound");
        let to = address(sockets.common());
        let peers = [(); PEERS].map(|()| UdpSocket::bind(([127, 0, 0, 1], 0).into()).expect("bound"));
        for (index, peer) in (0..).zip(&peers[..connected]) {
            assert!(sockets.connect(index, address(peer).into()).is_some());
        }
        (sockets, to, peers)
    }

    /// Everything that comes within a moment.
    fn receive_all(sockets: &mut Sockets, count: usize) -> Vec<Vec<u8>> {
        let (mut all, started) = (Vec::new(), Instant::now());
        while all.len() < count && started.elapsed() < Duration::from_secs(5) {
            let mut buffer = vec![0; 1 << 16];
            if let Ok(Some(datagrams)) = sockets.receive(3, &mut buffer) {
                buffer.truncate(datagrams.bytes);
                all.push(buffer);
            }
        }
        all.sort();
        all
    }

    #[test]
    fn packets_of_connected_peers_and_of_others_are_all_received() {
        let (mut sockets, to, peers) = connected::<3>(2);
        for round in 0..100u8 {
            for (number, peer) in (0..).zip(&peers) {
                peer.send(Some(to), &[number, round]).expect("sent");
            }
            let expected: Vec<_> = (0..3).map(|number| vec![number, round]).collect();
            assert_eq!(receive_all(&mut sockets, 3), expected);
        }
    }

    #[test]
    fn a_search_of_all_sockets_finds_every_waiting_packet() {
        let (mut sockets, to, peers) = connected::<CONNECTED_MAX>(CONNECTED_MAX);
        for peer in peers.iter().cycle().take(100) {
            peer.send(Some(to), b"!").expect("sent");
            sockets.look_everywhere();
            assert_eq!(sockets.receive(8, &mut [0; 8]), Ok(Some(ONE_BYTE)));
        }
        assert!(sockets.connect(CONNECTED_MAX as u32, to.into()).is_none(), "there are enough");
    }

    #[test]
    fn packets_from_before_a_peer_had_its_own_socket_are_received_before_later_ones() {
        for round in 0..20u8 {
            let (mut sockets, to, [peer]) = connected(0);
            (0..5).for_each(|number| peer.send(Some(to), &[round, number]).expect("sent"));
            assert!(sockets.connect(0, address(&peer).into()).is_some());
            (5..10).for_each(|number| peer.send(Some(to), &[round, number]).expect("sent"));
            let (mut received, started) = (Vec::new(), Instant::now());
            while received.len() < 10 && started.elapsed() < Duration::from_secs(5) {
                let mut buffer = [0; 8];
                if let Ok(Some(_)) = sockets.receive(1, &mut buffer) {
                    received.push(buffer[1]);
                }
            }
            assert_eq!(received, (0..10).collect::<Vec<_>>());
        }
    }

    #[test]
    fn strangers_who_fill_the_common_socket_do_not_keep_a_peer_from_its_own() {
        let (mut sockets, to, [peer, stranger]) = connected(1);
        peer.send(Some(to), b"!").expect("sent");
        let mut buffer = [0; 8];
        let found = (0..4 * EARLIER_MAX).any(|_| {
            stranger.send(Some(to), b"stranger").expect("sent");
            sockets.receive(1, &mut buffer) == Ok(Some(ONE_BYTE))
        });
        assert!(found, "its packet is still in its socket");
    }

    #[test]
    fn the_only_peer_is_found_at_once_and_strangers_make_the_port_look_elsewhere_for_no_longer() {
        let (mut sockets, to, [peer, stranger]) = connected(1);
        let mut looks_until = |from: &UdpSocket| {
            from.send(Some(to), b"!").expect("sent");
            let mut looks = 1;
            while sockets.receive(1, &mut [0; 8]) == Ok(None) {
                looks += 1;
                assert!(looks < 1000, "it is not found");
            }
            looks
        };
        for _ in 0..200 {
            assert!(looks_until(&stranger) <= 2 * COMMON_EVERY);
            assert!(looks_until(&peer) <= 2);
        }
    }

    #[test]
    fn after_its_socket_is_closed_a_peer_reaches_the_common_one_also_beside_a_copy_in_a_child() {
        let (mut sockets, to, [peer]) = connected(0);
        let copy = {
            use std::os::fd::AsFd;
            let socket = sockets.connect(0, address(&peer).into()).expect("connected");
            socket.as_fd().try_clone_to_owned().expect("a copy, as a fork makes it")
        };
        sockets.disconnect(0);
        peer.send(Some(to), b"!").expect("sent");
        assert_eq!(receive_all(&mut sockets, 1), [b"!"]);
        drop(copy);
    }
}
