//! Consecutive frames of one flow merged into superframes, as receiving kernels do it (GRO), without copying payload.
//!
//! Frames are given one by one with a number each. They come out whole or merged: new headers, and where the payload
//! lies in the frames that were given; so a frame stays where it is until it comes out. Two frames of a flow never
//! change their order. Only frames are merged that segmentation would make again out of the superframe, to the bit
//! (except that identifications which mean nothing, RFC 6864, may have stood still), and whose checksums are right.

use std::ops::Range;

use crate::checksum::{checksum, pseudo_header, verify};
use crate::frame::{
    HEADER_BYTES_MAX, Layout, Network, TCP_ACK, TCP_CWR, TCP_FIN, TCP_PSH, TCP_RST, TCP_SYN, TCP_URG,
    Transport,
};
use crate::offload::{DATAGRAMS_MAX, Descriptor, Kind, TCP_SEGMENT_BYTES_MIN};
use crate::segment::write_lengths;

/// Flows that are merged at a time; a frame of one more makes room by giving out another.
pub const FLOWS_MAX: usize = 16;
/// Frames in one superframe.
pub const PARTS_MAX: usize = 64;
const _: () = assert!(PARTS_MAX <= DATAGRAMS_MAX, "what a kernel takes");
/// What an IP header can state.
const PACKET_BYTES_MAX: usize = 65_535;
/// IPv4's "don't fragment", in the first byte of flags and fragment offset.
const DONT_FRAGMENT: u8 = 0x40;

/// A part of a merged frame's payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The number that the frame was given with.
    pub frame: u32,
    /// Where in that frame.
    pub payload: Range<usize>,
}

/// What comes out.
#[derive(Clone, Copy, Debug)]
pub enum Ready<'a> {
    /// The frame of this number, with the descriptor that it was given with.
    Whole(u32, Descriptor),
    /// Several frames, as one.
    Merged {
        /// All headers.
        headers: &'a [u8],
        /// What follows them, in order; two at least.
        parts: &'a [Part],
        /// What is left to do.
        descriptor: Descriptor,
    },
}

/// Merges what it can, within bounds. See the module.
#[derive(Debug)]
pub struct Coalescer {
    bytes_max: usize,
    merges_datagrams: bool,
    /// The first `held` are in use.
    flows: Vec<Flow>,
    held: usize,
    /// Who makes room next.
    turn: usize,
}

impl Coalescer {
    /// Makes frames of `bytes_max` at most, headers included. Allocates all that is ever needed.
    pub fn new(bytes_max: usize) -> Coalescer {
        let flows = (0..FLOWS_MAX).map(|_| Flow::empty()).collect();
        Coalescer { bytes_max, merges_datagrams: true, flows, held: 0, turn: 0 }
    }

    /// Merges datagrams too, or not.
    pub fn merge_datagrams(&mut self, is_wanted: bool) {
        self.merges_datagrams = is_wanted;
    }

    /// Takes frame `number`, and gives out what can wait no longer: this frame, others, several, none. The descriptor
    /// is one that the frame was held to already.
    pub fn push(
        &mut self,
        number: u32,
        descriptor: Descriptor,
        frame: &[u8],
        mut ready: impl FnMut(Ready<'_>),
    ) {
        let Ok(layout) = Layout::parse(frame) else { return ready(Ready::Whole(number, descriptor)) };
        if layout.network == Network::Other {
            return ready(Ready::Whole(number, descriptor));
        }
        if layout.transport == Transport::Other || layout.extended {
            // Perhaps a fragment, or the like, of a flow that is held.
            self.flush(&mut ready);
            return ready(Ready::Whole(number, descriptor));
        }
        let flow = (0..self.held).find(|&index| self.flows[index].is_flow_of(frame, &layout));
        let is_wanted = self.merges_datagrams || layout.transport != Transport::Udp;
        let candidate = is_wanted.then(|| Candidate::of(number, descriptor, frame, layout)).flatten();
        match (flow, candidate) {
            (Some(index), Some(candidate)) if self.flows[index].takes(&candidate, self.bytes_max) => {
                self.flows[index].append(&candidate);
                if candidate.closes(self.flows[index].segment_bytes) {
                    self.give_out(index, &mut ready);
                }
            }
            (flow, candidate) => {
                if let Some(index) = flow {
                    self.give_out(index, &mut ready);
                }
                match candidate {
                    Some(candidate) if candidate.begins() => self.hold(&candidate, &mut ready),
                    _ => ready(Ready::Whole(number, descriptor)),
                }
            }
        }
    }

    /// True when nothing is held.
    pub fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// Gives out everything that is held. Due whenever no further frame is there at once.
    pub fn flush(&mut self, mut ready: impl FnMut(Ready<'_>)) {
        for index in 0..self.held {
            self.flows[index].emit(&mut ready);
        }
        self.held = 0;
    }

    fn hold(&mut self, candidate: &Candidate<'_>, ready: &mut impl FnMut(Ready<'_>)) {
        if self.held == FLOWS_MAX {
            self.turn = (self.turn + 1) % FLOWS_MAX;
            self.give_out(self.turn, ready);
        }
        self.flows[self.held].begin(candidate);
        self.held += 1;
    }

    fn give_out(&mut self, index: usize, ready: &mut impl FnMut(Ready<'_>)) {
        self.flows[index].emit(ready);
        self.held -= 1;
        self.flows.swap(index, self.held);
    }
}

/// A frame that may begin a superframe or go on with one.
struct Candidate<'frame> {
    number: u32,
    descriptor: Descriptor,
    frame: &'frame [u8],
    layout: Layout,
    payload: Range<usize>,
}

impl<'frame> Candidate<'frame> {
    /// None where the frame is a superframe already, has nothing to merge, must stay by itself, or is not right.
    fn of(
        number: u32,
        descriptor: Descriptor,
        frame: &'frame [u8],
        layout: Layout,
    ) -> Option<Candidate<'frame>> {
        let payload = layout.payload_offset..layout.packet_end;
        let transport = frame.get(layout.transport_offset..layout.packet_end)?;
        let mergeable = match layout.transport {
            Transport::Tcp => transport[13] & (TCP_ACK | TCP_SYN | TCP_RST | TCP_URG) == TCP_ACK,
            Transport::Udp => transport[4..6] == (transport.len() as u16).to_be_bytes(),
            Transport::Other => false,
        };
        // What follows the packet, padding or a trailer, would be lost.
        let mergeable = mergeable && frame.len() == layout.packet_end && !descriptor.kind.is_superframe();
        let candidate = Candidate { number, descriptor, frame, layout, payload };
        (mergeable && !candidate.payload.is_empty() && candidate.is_right()).then_some(candidate)
    }

    /// True when all checksums are right, complete or partial: merging writes them anew, and must not mend any.
    fn is_right(&self) -> bool {
        let Candidate { frame, layout, .. } = self;
        let header = &frame[layout.network_offset..layout.transport_offset];
        if layout.network == Network::Ipv4 && checksum(header) != 0 {
            return false;
        }
        if self.descriptor.kind == Kind::Plain {
            return verify(frame, layout);
        }
        let field = layout.transport.checksum_offset().map(|offset| layout.transport_offset + offset);
        let pseudo = pseudo_header(frame, layout, layout.packet_end - layout.transport_offset);
        let (Some(field), Some(pseudo)) = (field, pseudo) else { return false };
        // Either zero will do.
        let difference = pseudo.minus_word(u16::from_be_bytes([frame[field], frame[field + 1]])).folded();
        matches!(difference, 0 | 0xFFFF) && self.descriptor.check(frame, frame.len()).is_ok()
    }

    /// True when something may follow in the same superframe, and segments of this size are legal.
    fn begins(&self) -> bool {
        let tcp = self.layout.transport == Transport::Tcp;
        let least = if tcp { usize::from(TCP_SEGMENT_BYTES_MIN) } else { 1 };
        self.payload.len() >= least && !self.closes(self.payload.len())
    }

    /// True when nothing may follow in the same superframe.
    fn closes(&self, segment_bytes: usize) -> bool {
        let pushed = self.layout.transport == Transport::Tcp && self.tcp_flags() & (TCP_FIN | TCP_PSH) != 0;
        pushed || self.payload.len() != segment_bytes
    }

    fn tcp_flags(&self) -> u8 {
        self.frame[self.layout.transport_offset + 13]
    }

    fn sequence(&self) -> u32 {
        let at = self.layout.transport_offset + 4;
        u32::from_be_bytes([self.frame[at], self.frame[at + 1], self.frame[at + 2], self.frame[at + 3]])
    }

    fn identification(&self) -> u16 {
        let at = self.layout.network_offset + 4;
        u16::from_be_bytes([self.frame[at], self.frame[at + 1]])
    }
}

/// How the identifications of a flow's IPv4 packets follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Identification {
    Undecided,
    Rises,
    Stands,
}

/// A superframe in the making.
#[derive(Debug)]
struct Flow {
    /// Of the first frame; what depends on the length is written when it is given out.
    headers: [u8; HEADER_BYTES_MAX],
    layout: Layout,
    descriptor: Descriptor,
    parts: Vec<Part>,
    segment_bytes: usize,
    payload_bytes: usize,
    sequence: u32,
    first_identification: u16,
    identification: Identification,
}

impl Flow {
    fn empty() -> Flow {
        Flow {
            headers: [0; HEADER_BYTES_MAX],
            layout: Layout::EMPTY,
            descriptor: Descriptor::PLAIN,
            parts: Vec::with_capacity(PARTS_MAX),
            segment_bytes: 0,
            payload_bytes: 0,
            sequence: 0,
            first_identification: 0,
            identification: Identification::Undecided,
        }
    }

    fn begin(&mut self, candidate: &Candidate<'_>) {
        let headers_bytes = candidate.layout.payload_offset;
        self.headers[..headers_bytes].copy_from_slice(&candidate.frame[..headers_bytes]);
        self.layout = candidate.layout;
        self.descriptor = candidate.descriptor;
        self.parts.clear();
        self.segment_bytes = candidate.payload.len();
        self.payload_bytes = 0;
        self.sequence = candidate.sequence();
        self.first_identification = candidate.identification();
        self.identification = Identification::Undecided;
        self.add(candidate);
    }

    fn append(&mut self, candidate: &Candidate<'_>) {
        if self.layout.network == Network::Ipv4 && self.identification == Identification::Undecided {
            let stands = candidate.identification() == self.first_identification;
            self.identification = if stands { Identification::Stands } else { Identification::Rises };
        }
        if self.layout.transport == Transport::Tcp {
            self.headers[self.layout.transport_offset + 13] |= candidate.tcp_flags() & (TCP_FIN | TCP_PSH);
        }
        self.add(candidate);
    }

    fn add(&mut self, candidate: &Candidate<'_>) {
        self.parts.push(Part { frame: candidate.number, payload: candidate.payload.clone() });
        self.payload_bytes += candidate.payload.len();
    }

    /// True when both are of one flow, mergeable or not: their order matters.
    fn is_flow_of(&self, frame: &[u8], layout: &Layout) -> bool {
        let own = &self.layout;
        (own.network, own.transport) == (layout.network, layout.transport)
            && self.headers[own.transport_offset..][..4] == frame[layout.transport_offset..][..4]
            && addresses(&self.headers, own) == addresses(frame, layout)
    }

    fn takes(&self, candidate: &Candidate<'_>, bytes_max: usize) -> bool {
        self.takes_length(candidate, bytes_max)
            && self.takes_network(candidate)
            && self.takes_transport(candidate)
    }

    fn takes_length(&self, candidate: &Candidate<'_>, bytes_max: usize) -> bool {
        let frame_bytes = self.layout.payload_offset + self.payload_bytes + candidate.payload.len();
        candidate.payload.len() <= self.segment_bytes
            && frame_bytes <= bytes_max
            && frame_bytes - self.layout.network_offset <= PACKET_BYTES_MAX
            && self.parts.len() < PARTS_MAX
    }

    fn takes_network(&self, candidate: &Candidate<'_>) -> bool {
        let at = self.layout.network_offset;
        // All but lengths, identification and checksum, addresses in front included.
        let same = |range: Range<usize>| self.headers[range.clone()] == candidate.frame[range];
        if self.layout != (Layout { packet_end: self.layout.packet_end, ..candidate.layout }) {
            return false;
        }
        match self.layout.network {
            Network::Ipv4 => {
                same(0..at + 2)
                    && same(at + 6..at + 10)
                    && same(at + 12..at + 20)
                    && self.takes_identification(candidate)
            }
            Network::Ipv6 => same(0..at + 4) && same(at + 6..at + 40),
            Network::Other => false,
        }
    }

    fn takes_identification(&self, candidate: &Candidate<'_>) -> bool {
        let segments = (self.payload_bytes / self.segment_bytes) as u16;
        let rises = candidate.identification() == self.first_identification.wrapping_add(segments);
        let stands = candidate.identification() == self.first_identification
            && self.headers[self.layout.network_offset + 6] & DONT_FRAGMENT != 0;
        match self.identification {
            Identification::Undecided => rises || stands,
            Identification::Rises => rises,
            Identification::Stands => stands,
        }
    }

    fn takes_transport(&self, candidate: &Candidate<'_>) -> bool {
        if self.layout.transport == Transport::Udp {
            return true;
        }
        let (own, at) =
            (&self.headers[self.layout.transport_offset..self.layout.payload_offset], candidate.layout);
        let other = &candidate.frame[at.transport_offset..at.payload_offset];
        // The first may have been asked to slow down, others not; the last alone may push or end.
        let flags = (own[13] & !TCP_CWR) ^ (other[13] & !(TCP_FIN | TCP_PSH));
        candidate.sequence() == self.sequence.wrapping_add(self.payload_bytes as u32)
            && flags == 0
            && own[8..13] == other[8..13]
            && own[14..16] == other[14..16]
            && own[18..] == other[18..]
    }

    fn emit(&mut self, ready: &mut impl FnMut(Ready<'_>)) {
        if let [only] = &self.parts[..] {
            return ready(Ready::Whole(only.frame, self.descriptor));
        }
        let layout = &self.layout;
        let pseudo = pseudo_header(&self.headers, layout, 0).unwrap_or_default();
        write_lengths(&mut self.headers, layout, layout.payload_offset + self.payload_bytes, pseudo);
        ready(Ready::Merged {
            headers: &self.headers[..layout.payload_offset],
            parts: &self.parts,
            descriptor: self.merged(),
        });
    }

    fn merged(&self) -> Descriptor {
        let kind = match (self.layout.transport, self.layout.network) {
            (Transport::Tcp, Network::Ipv4) => Kind::TcpIpv4,
            (Transport::Tcp, _) => Kind::TcpIpv6,
            _ => Kind::Datagrams,
        };
        let cwr = kind != Kind::Datagrams && self.headers[self.layout.transport_offset + 13] & TCP_CWR != 0;
        Descriptor {
            kind,
            congestion: cwr,
            segment_bytes: self.segment_bytes as u16,
            network_offset: self.layout.network_offset as u8,
            transport_offset: self.layout.transport_offset as u8,
        }
    }
}

/// Both addresses of a sound packet.
fn addresses<'frame>(frame: &'frame [u8], layout: &Layout) -> &'frame [u8] {
    let packet = &frame[layout.network_offset..];
    if layout.network == Network::Ipv4 { &packet[12..20] } else { &packet[8..40] }
}
