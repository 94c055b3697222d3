//! The port of the switch that leads to one other process, and the machine of that process.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::Instant;

use bywire::{Peer, Port, PortName, Priority};

use crate::address::{MacAddress, PLACES};
use crate::announced::Announced;
use crate::backlog::Backlog;
use crate::drops::{Cause, Drops};
use crate::frame::{HEADER_BYTES_MAX, Layout};
use crate::offload::Descriptor;
use crate::order::{Node, Traffic};
use crate::reassembly::{self, Reassembler};
use crate::segment::Cutter;
use crate::switch::{Attachment, Switch, SwitchPortId};

/// The most processes that one process connects to.
pub const PEERS_MAX: usize = 256;
/// The longest datagram that fits into one encrypted packet on a path of 1500 bytes, beside an acknowledgement.
const PACKET_BYTES: usize = 1376;
/// Address conflicts of one peer that are kept for reports.
const CONFLICTS_MAX: usize = 16;

/// A connected peer process, or one that is being connected to.
#[derive(Debug)]
pub(crate) struct PeerPort {
    pub switch_port: SwitchPortId,
    pub began_here: bool,
    pub is_connected: bool,
    pub name: PortName,
    /// The other machine that it runs on.
    pub machine: Option<Machine>,
    pub node: String,
    pub interfaces: Vec<Announced>,
    /// The interfaces of its current introduction, until that is complete.
    pub introduced: Vec<Announced>,
    /// The next of our interfaces to introduce; `None` when the peer knows them all.
    pub next_to_introduce: Option<usize>,
    /// The longest datagram that both sides accept.
    pub datagram_bytes_max: usize,
    pub conflicts: Vec<String>,
    /// Datagrams to it that found no room.
    pub backlog: Backlog,
    /// A frame from it that comes in parts and is not complete.
    pub reassembler: Reassembler,
    pub sent: Traffic,
    pub received: Traffic,
    pub drops: Drops,
    pub held_back: u64,
}

/// A node of the fabric.
#[derive(Debug)]
pub(crate) struct Machine {
    /// Its name, for which the node service vouches.
    pub name: String,
    /// The addresses that its interfaces may have.
    pub addresses: Rc<HashSet<MacAddress>>,
}

/// The addresses of machines that were met. Each machine's take a thousand hashes, so one that connects again and again does not
/// have them computed every time.
#[derive(Debug, Default)]
pub(crate) struct Machines(HashMap<String, Rc<HashSet<MacAddress>>>);

impl Machines {
    /// The machine of a name, for which the node service vouches.
    pub fn machine(&mut self, network: &str, name: String) -> Machine {
        if self.0.len() >= PEERS_MAX {
            self.0.retain(|_, addresses| Rc::strong_count(addresses) > 1);
        }
        let compute = || (0..PLACES).map(|place| MacAddress::of_place(network, &name, place)).collect();
        let addresses = self.0.entry(name.clone()).or_insert_with(|| Rc::new(compute())).clone();
        Machine { name, addresses }
    }
}

impl PeerPort {
    /// The other machine that it runs on.
    pub fn machine_name(&self) -> Option<&String> {
        self.machine.as_ref().map(|machine| &machine.name)
    }

    /// The longest datagram for a packet. To another machine, a superframe goes in datagrams of one packet, or of one
    /// segment if that is longer.
    fn longest_datagram(&self, descriptor: Descriptor, packet: &[u8]) -> usize {
        if self.machine.is_none() || !descriptor.kind.is_superframe() {
            return self.datagram_bytes_max;
        }
        let headers = packet.get(Descriptor::BYTES..).unwrap_or_default();
        let headers_bytes = Layout::parse(headers).map_or(0, |layout| layout.payload_offset);
        let segment_bytes = Descriptor::BYTES + headers_bytes + usize::from(descriptor.segment_bytes);
        PACKET_BYTES.max(segment_bytes).min(self.datagram_bytes_max)
    }

    /// The hosts to which its switch port leads. Only the fabric's keeper decides who may have hosts behind bridges.
    pub fn attachment(&self, nodes: &[Node]) -> Attachment {
        match self.machine_name() {
            None => Attachment::Fabric,
            Some(name) => {
                Attachment::Node { is_bridge: nodes.iter().any(|node| node.name == *name && node.is_bridge) }
            }
        }
    }

    /// Makes the peer's interfaces reachable, and no others.
    pub fn make_reachable(&mut self, switch: &mut Switch, nodes: &[Node]) {
        switch.lead_to_fabric(self.switch_port, self.attachment(nodes));
        self.conflicts.clear();
        for interface in &self.interfaces {
            let mac = MacAddress(interface.mac);
            let is_foreign = self.machine.as_ref().is_some_and(|machine| !machine.addresses.contains(&mac));
            let is_refused = is_foreign || mac.is_multicast() || !switch.announce(self.switch_port, mac);
            let mut foreign = is_refused.then(|| mac.to_string());
            for ip in interface.addresses.iter().filter(|_| !is_refused) {
                if !switch.announce_ip(self.switch_port, *ip) {
                    foreign = Some(ip.to_string());
                }
            }
            if let Some(foreign) = foreign.filter(|_| self.conflicts.len() < CONFLICTS_MAX) {
                self.conflicts
                    .push(format!("{} has the address {foreign}, which is somebody else's", interface.label));
            }
        }
    }

    /// Sends `packet`, a descriptor and a frame, to the process. If a superframe is too long for one datagram, it is cut at the ends
    /// of its segments and goes in several. Any other frame that is too long goes in parts. The packet serves as scratch memory
    /// and is restored afterwards.
    pub fn send(&mut self, port: &mut Port, peer: Peer, descriptor: Descriptor, packet: &mut [u8]) {
        let longest = self.longest_datagram(descriptor, packet);
        if packet.len() <= longest {
            return match self.send_or_queue(port, peer, packet, false) {
                Ok(()) => self.sent.count(packet.len(), descriptor.kind.is_superframe()),
                Err(cause) => self.drops.count(cause),
            };
        }
        let frame = &packet[Descriptor::BYTES..];
        let headers = &frame[..frame.len().min(HEADER_BYTES_MAX)];
        let room = longest.saturating_sub(Descriptor::BYTES);
        let Ok(mut pieces) = Cutter::new(descriptor, headers, frame.len(), room) else {
            return match self.send_parts(port, peer, packet) {
                Ok(()) => self.sent.count(packet.len(), descriptor.kind.is_superframe()),
                Err(cause) => self.drops.count(cause),
            };
        };
        while let Some(piece) = pieces.next_piece() {
            // A piece's headers go right before its payload, over the end of the previous piece, which has been sent.
            let payload = piece.payload.start + Descriptor::BYTES..piece.payload.end + Descriptor::BYTES;
            let start = payload.start - piece.headers.len() - Descriptor::BYTES;
            let mut kept = [0; HEADER_BYTES_MAX + Descriptor::BYTES];
            let kept = &mut kept[..payload.start - start];
            kept.copy_from_slice(&packet[start..payload.start]);
            packet[start..start + Descriptor::BYTES].copy_from_slice(&piece.descriptor.to_bytes());
            packet[start + Descriptor::BYTES..payload.start].copy_from_slice(piece.headers);
            let is_superframe = piece.descriptor.kind.is_superframe();
            let is_followed = payload.end < packet.len();
            match self.send_or_queue(port, peer, &packet[start..payload.end], is_followed) {
                Ok(()) => self.sent.count(payload.end - start, is_superframe),
                Err(cause) => self.drops.count(cause),
            }
            packet[start..payload.start].copy_from_slice(kept);
        }
    }

    /// Sends the waiting datagrams after the peer has made room.
    pub fn drain_backlog(&mut self, port: &mut Port, peer: Peer) {
        let drops = &mut self.drops;
        let is_all = self.backlog.drain(|datagram| {
            match bywire::send_followed_datagram(port, peer, Priority::Low, datagram) {
                Ok(has_gone) => has_gone,
                Err(_) => {
                    drops.count(Cause::TargetDown);
                    true
                }
            }
        });
        if !is_all {
            self.await_room(port, peer);
        }
    }

    /// Sends a datagram, or keeps it until there is room. `is_followed`: the next one follows at once.
    fn send_or_queue(
        &mut self,
        port: &mut Port,
        peer: Peer,
        datagram: &[u8],
        is_followed: bool,
    ) -> Result<(), Cause> {
        if self.backlog.is_empty() {
            let sent = match is_followed {
                true => bywire::send_followed_datagram(port, peer, Priority::Low, datagram),
                false => port.send_datagram(peer, Priority::Low, datagram),
            };
            match sent {
                Ok(true) => {
                    self.backlog.note_taken(datagram.len());
                    return Ok(());
                }
                Ok(false) => self.await_room(port, peer),
                Err(_) => return Err(Cause::TargetDown),
            }
        }
        if self.backlog.push(datagram) { Ok(()) } else { Err(Cause::TargetFull) }
    }

    /// Sends a descriptor and a frame in as many datagrams as needed.
    fn send_parts(&mut self, port: &mut Port, peer: Peer, packet: &[u8]) -> Result<(), Cause> {
        let part_bytes = self.datagram_bytes_max.saturating_sub(reassembly::HEADER_BYTES).max(1);
        for (number, part) in packet.chunks(part_bytes).enumerate() {
            let header = reassembly::header(number * part_bytes, packet.len());
            let is_followed = (number + 1) * part_bytes < packet.len();
            self.send_or_queue(port, peer, &[&header[..], part].concat(), is_followed)?;
        }
        Ok(())
    }

    /// Notes that the peer has no room, and asks the port to report new room.
    fn await_room(&mut self, port: &mut Port, peer: Peer) {
        self.backlog.note_full(Instant::now());
        // An error means that the peer has ended. The port reports that next.
        let _ = port.await_room(peer, Priority::Low);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_a_machine_are_computed_once_and_kept_for_a_bounded_number() {
        let mut machines = Machines::default();
        let first = machines.machine("default", "web1".to_owned());
        assert!(first.addresses.contains(&MacAddress::of_place("default", "web1", PLACES - 1)));
        for number in 0..PEERS_MAX + 10 {
            let _gone = machines.machine("default", format!("gone{number}"));
        }
        assert!(machines.0.len() <= PEERS_MAX);
        let again = machines.machine("default", "web1".to_owned());
        assert!(Rc::ptr_eq(&first.addresses, &again.addresses), "one that is met is kept");
    }
}
