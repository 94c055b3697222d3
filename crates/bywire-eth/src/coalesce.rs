//! Merges consecutive frames of one flow into superframes, like the GRO of a receiving kernel, without copying
//! payload.
//!
//! The caller passes in each frame with a number. A frame comes out whole or merged. A merged frame consists of new
//! headers and of references to payload in the frames that were passed in, so a frame must stay in place until it
//! comes out. Two frames of one flow never change their order.
//!
//! Merged frames have correct checksums, and segmentation of the superframe restores them to the bit. The one
//! exception are identifications without meaning (RFC 6864), which may have been constant.

use std::ops::Range;

use crate::checksum::{checksum, pseudo_header, verify};
use crate::frame::{
    HEADER_BYTES_MAX, Layout, Network, TCP_ACK, TCP_CWR, TCP_FIN, TCP_PSH, TCP_RST, TCP_SYN, TCP_URG,
    Transport,
};
use crate::offload::{DATAGRAMS_MAX, Descriptor, Kind, TCP_SEGMENT_BYTES_MIN};
use crate::segment::write_lengths;

/// Flows that are merged at a time. A frame of a further flow makes room by emitting one of them.
pub const FLOWS_MAX: usize = 16;
/// The most frames in one superframe.
pub const PARTS_MAX: usize = 64;
const _: () = assert!(PARTS_MAX <= DATAGRAMS_MAX, "what a kernel takes");
/// The longest packet that an IP header can state.
const PACKET_BYTES_MAX: usize = 65_535;
/// IPv4's "don't fragment", in the first byte of flags and fragment offset.
const DONT_FRAGMENT: u8 = 0x40;

/// A part of a merged frame's payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The number of the frame.
    pub frame: u32,
    /// Where the payload lies in that frame.
    pub payload: Range<usize>,
}

/// A frame that the coalescer emits.
#[derive(Clone, Copy, Debug)]
pub enum Ready<'a> {
    /// The frame of this number, with its original descriptor.
    Whole(u32, Descriptor),
    /// Several frames, merged into one.
    Merged {
        /// All headers of the merged frame.
        headers: &'a [u8],
        /// The payload behind the headers, in order: at least two parts.
        parts: &'a [Part],
        /// The work that is left to do on the merged frame.
        descriptor: Descriptor,
    },
}

/// Merges frames within bounds. See the module.
#[derive(Debug)]
pub struct Coalescer {
    bytes_max: usize,
    merges_datagrams: bool,
    /// The first `held` are in use.
    flows: Vec<Flow>,
    held: usize,
    /// The flow emitted last to make room. The next one in turn is emitted next.
    turn: usize,
}

impl Coalescer {
    /// Makes frames of at most `bytes_max` bytes, headers included. Allocates all the memory that is ever needed.
    pub fn new(bytes_max: usize) -> Coalescer {
        let flows = (0..FLOWS_MAX).map(|_| Flow::empty()).collect();
        Coalescer { bytes_max, merges_datagrams: true, flows, held: 0, turn: 0 }
    }

    /// Switches the merging of datagrams on or off.
    pub fn merge_datagrams(&mut self, is_wanted: bool) {
        self.merges_datagrams = is_wanted;
    }

    /// Takes frame `number` and emits every frame that can wait no longer: this frame, others, several, or none. The
    /// descriptor must have passed [`Descriptor::check`] against the frame.
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
            // It may be a fragment, or another part, of a flow that is held.
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

    /// Emits everything that is held. Call it whenever no further frame is available at once.
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

/// A frame that may begin or continue a superframe.
struct Candidate<'frame> {
    number: u32,
    descriptor: Descriptor,
    frame: &'frame [u8],
    layout: Layout,
    payload: Range<usize>,
}

impl<'frame> Candidate<'frame> {
    /// `None` if the frame is a superframe already, has no payload, must stay alone, or has a wrong checksum.
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
        // Merging would lose the bytes after the packet, such as padding or a trailer.
        let mergeable = mergeable && frame.len() == layout.packet_end && !descriptor.kind.is_superframe();
        let candidate = Candidate { number, descriptor, frame, layout, payload };
        (mergeable && !candidate.payload.is_empty() && candidate.is_right()).then_some(candidate)
    }

    /// True when all checksums, complete or partial, are correct. Merging rewrites them, and must not repair a wrong
    /// one.
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
        // Both zeros are correct.
        let difference = pseudo.minus_word(u16::from_be_bytes([frame[field], frame[field + 1]])).folded();
        matches!(difference, 0 | 0xFFFF) && self.descriptor.check(frame, frame.len()).is_ok()
    }

    /// True when another frame may follow in the same superframe, and segments of this size are legal.
    fn begins(&self) -> bool {
        let tcp = self.layout.transport == Transport::Tcp;
        let least = if tcp { usize::from(TCP_SEGMENT_BYTES_MIN) } else { 1 };
        self.payload.len() >= least && !self.closes(self.payload.len())
    }

    /// True when no other frame may follow in the same superframe.
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

/// A superframe that is being built.
#[derive(Debug)]
struct Flow {
    /// The headers of the first frame. The fields that depend on the length are written when the superframe is
    /// emitted.
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

    /// True when both belong to one flow, mergeable or not. Their order must not change.
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
        // Everything but lengths, identification and checksum must be equal, including the bytes before the network
        // header.
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
        // Only the first frame may carry CWR. Only the last one may carry PSH or FIN.
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

/// Both addresses of a sound packet, source and target.
fn addresses<'frame>(frame: &'frame [u8], layout: &Layout) -> &'frame [u8] {
    let packet = &frame[layout.network_offset..];
    if layout.network == Network::Ipv4 { &packet[12..20] } else { &packet[8..40] }
}
