//! The work that a frame's sender left undone: the kernel's description of it, the fabric's descriptor, and the
//! conversion between them.
//!
//! The rules are those of Linux's `virtio_net_hdr_to_skb` and `tun_get_user`, and stricter where Linux is lenient. A
//! frame and the work left on it have exactly one descriptor, and exactly one header.

use crate::frame::{
    ETHERNET_HEADER_BYTES, FRAME_BYTES_MAX, HEADER_BYTES_MAX, Layout, Network, TCP_CWR, Transport, word,
};
use crate::rejection::BadFrame;

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`: the checksum field holds only the sum of the pseudo-header.
pub const FLAG_NEEDS_CHECKSUM: u8 = 1;
/// `VIRTIO_NET_HDR_F_DATA_VALID`: the kernel has verified the checksum. This crate reads the flag and never sets it.
pub const FLAG_DATA_VALID: u8 = 2;

/// `VIRTIO_NET_HDR_GSO_NONE`.
pub const GSO_NONE: u8 = 0;
/// `VIRTIO_NET_HDR_GSO_TCPV4`.
pub const GSO_TCPV4: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_TCPV6`.
pub const GSO_TCPV6: u8 = 4;
/// `VIRTIO_NET_HDR_GSO_UDP_L4`.
pub const GSO_UDP_L4: u8 = 5;
/// `VIRTIO_NET_HDR_GSO_ECN`: the TCP header has CWR, which only the first segment may keep.
pub const GSO_ECN: u8 = 0x80;

/// The most datagrams in one superframe: `UDP_MAX_SEGMENTS` since Linux 6.9; it was 64 before.
pub const DATAGRAMS_MAX: usize = 128;
/// The shortest TCP segment: Linux's minimum MSS of 48 without 40 bytes of options. A superframe of shorter segments
/// would become a storm of packets at its receiver.
pub const TCP_SEGMENT_BYTES_MIN: u16 = 8;

/// The kernel's `virtio_net_hdr`: ten bytes before each frame that is read from or written to a TAP device. Numbers
/// are in the machine's byte order. `checksum_start` counts from the Ethernet header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VnetHeader {
    /// `VIRTIO_NET_HDR_F_*`.
    pub flags: u8,
    /// `VIRTIO_NET_HDR_GSO_*`.
    pub gso_type: u8,
    /// The length of the headers: a hint that is never trusted.
    pub header_bytes: u16,
    /// The payload bytes of each segment except the last.
    pub segment_bytes: u16,
    /// The start of the transport header, where the checksummed bytes begin.
    pub checksum_start: u16,
    /// The offset of the checksum field from `checksum_start`.
    pub checksum_offset: u16,
}

impl VnetHeader {
    /// The length of the header.
    pub const BYTES: usize = 10;

    /// Parses a header that the kernel wrote.
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> VnetHeader {
        let number = |offset: usize| u16::from_ne_bytes([bytes[offset], bytes[offset + 1]]);
        VnetHeader {
            flags: bytes[0],
            gso_type: bytes[1],
            header_bytes: number(2),
            segment_bytes: number(4),
            checksum_start: number(6),
            checksum_offset: number(8),
        }
    }

    /// The bytes for the kernel.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [self.flags, self.gso_type, 0, 0, 0, 0, 0, 0, 0, 0];
        let numbers = [self.header_bytes, self.segment_bytes, self.checksum_start, self.checksum_offset];
        for (place, number) in bytes[2..].chunks_exact_mut(2).zip(numbers) {
            place.copy_from_slice(&number.to_ne_bytes());
        }
        bytes
    }
}

/// The work that is left to do on a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// No work.
    Plain,
    /// Complete the checksum.
    Checksum,
    /// Cut into TCP segments over IPv4, and complete each one's checksum.
    TcpIpv4,
    /// The same over IPv6.
    TcpIpv6,
    /// Cut into UDP datagrams, and complete each one's checksum.
    Datagrams,
}

impl Kind {
    /// True if the frame is to be cut.
    pub const fn is_superframe(self) -> bool {
        matches!(self, Kind::TcpIpv4 | Kind::TcpIpv6 | Kind::Datagrams)
    }
}

/// The descriptor that crosses the fabric with each frame. It has eight bytes: `kind · congestion · segment size (2,
/// little-endian) · network offset · transport offset · 0 · 0`. The descriptor of a plain frame is all zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// The work that is left to do.
    pub kind: Kind,
    /// The TCP header has CWR, which only the first segment may keep.
    pub congestion: bool,
    /// The payload bytes of each segment except the last; 0 unless the frame is a superframe.
    pub segment_bytes: u16,
    /// The start of the packet; 0 if no work is left.
    pub network_offset: u8,
    /// The start of the transport header; 0 if no work is left.
    pub transport_offset: u8,
}

impl Descriptor {
    /// The length of a descriptor.
    pub const BYTES: usize = 8;

    /// The descriptor of a frame on which no work is left.
    pub const PLAIN: Descriptor = Descriptor {
        kind: Kind::Plain,
        congestion: false,
        segment_bytes: 0,
        network_offset: 0,
        transport_offset: 0,
    };

    /// The bytes that cross the fabric.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let kind = match self.kind {
            Kind::Plain => 0,
            Kind::Checksum => 1,
            Kind::TcpIpv4 => 2,
            Kind::TcpIpv6 => 3,
            Kind::Datagrams => 4,
        };
        let [low, high] = self.segment_bytes.to_le_bytes();
        [kind, u8::from(self.congestion), low, high, self.network_offset, self.transport_offset, 0, 0]
    }

    /// Parses the bytes that crossed the fabric. The result is a descriptor that a sender could have made. Whether it
    /// fits its frame is for [`Descriptor::check`] to find out.
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Result<Descriptor, BadFrame> {
        let kind = match bytes[0] {
            0 => Kind::Plain,
            1 => Kind::Checksum,
            2 => Kind::TcpIpv4,
            3 => Kind::TcpIpv6,
            4 => Kind::Datagrams,
            _ => return Err(BadFrame::Descriptor),
        };
        let descriptor = Descriptor {
            kind,
            congestion: bytes[1] == 1,
            segment_bytes: u16::from_le_bytes([bytes[2], bytes[3]]),
            network_offset: bytes[4],
            transport_offset: bytes[5],
        };
        let canonical = descriptor.to_bytes() == bytes
            && (kind != Kind::Plain || descriptor == Descriptor::PLAIN)
            && (kind.is_superframe() || descriptor.segment_bytes == 0);
        canonical.then_some(descriptor).ok_or(BadFrame::Descriptor)
    }

    /// Checks the descriptor against its frame. `headers` is the frame or its first [`HEADER_BYTES_MAX`] bytes, in
    /// memory that no other process can change. Returns the parsed layout, or `None` for a plain frame, which is not
    /// parsed.
    pub fn check(self, headers: &[u8], frame_bytes: usize) -> Result<Option<Layout>, BadFrame> {
        check_length(headers, frame_bytes)?;
        if self.kind == Kind::Plain {
            return if self == Descriptor::PLAIN { Ok(None) } else { Err(BadFrame::Descriptor) };
        }
        let layout = Layout::parse(headers)?;
        let offsets = (usize::from(self.network_offset), usize::from(self.transport_offset));
        if layout.transport == Transport::Other {
            return Err(BadFrame::Transport);
        }
        if offsets != (layout.network_offset, layout.transport_offset) {
            return Err(BadFrame::Offsets);
        }
        self.check_protocol(headers, &layout)?;
        if self.kind.is_superframe() {
            self.check_lengths(headers, &layout, frame_bytes)?;
        } else if layout.packet_end > frame_bytes {
            return Err(BadFrame::Length);
        } else if self.segment_bytes != 0 {
            return Err(BadFrame::SegmentSize);
        }
        Ok(Some(layout))
    }

    fn check_protocol(self, headers: &[u8], layout: &Layout) -> Result<(), BadFrame> {
        let fits = match self.kind {
            Kind::Plain | Kind::Checksum => true,
            Kind::TcpIpv4 => (layout.network, layout.transport) == (Network::Ipv4, Transport::Tcp),
            Kind::TcpIpv6 => (layout.network, layout.transport) == (Network::Ipv6, Transport::Tcp),
            Kind::Datagrams => layout.transport == Transport::Udp,
        };
        if !fits {
            return Err(BadFrame::Protocol);
        }
        let possible = matches!(self.kind, Kind::TcpIpv4 | Kind::TcpIpv6) && has_cwr(headers, layout);
        if self.congestion && !possible { Err(BadFrame::Congestion) } else { Ok(()) }
    }

    fn check_lengths(self, headers: &[u8], layout: &Layout, frame_bytes: usize) -> Result<(), BadFrame> {
        if layout.packet_end != frame_bytes {
            return Err(BadFrame::Length);
        }
        let (payload, segment) = (frame_bytes - layout.payload_offset, usize::from(self.segment_bytes));
        let least = if self.kind == Kind::Datagrams { 1 } else { TCP_SEGMENT_BYTES_MIN };
        // This also refuses 0xFFFF, which has a special meaning for the kernel: no payload is longer.
        if self.segment_bytes < least || payload <= segment {
            return Err(BadFrame::SegmentSize);
        }
        if self.kind == Kind::Datagrams {
            let stated = word(headers, layout.transport_offset + 4).map(usize::from);
            if stated != Some(frame_bytes - layout.transport_offset) {
                return Err(BadFrame::Length);
            }
            if payload > segment * DATAGRAMS_MAX {
                return Err(BadFrame::SegmentCount);
            }
        }
        Ok(())
    }

    /// The kernel's header for a frame with this descriptor and the layout from [`Descriptor::check`].
    fn header(self, layout: Option<Layout>) -> VnetHeader {
        let Some((layout, offset)) =
            layout.and_then(|layout| Some((layout, layout.transport.checksum_offset()?)))
        else {
            return VnetHeader::default();
        };
        let kind = match self.kind {
            Kind::Plain | Kind::Checksum => GSO_NONE,
            Kind::TcpIpv4 => GSO_TCPV4,
            Kind::TcpIpv6 => GSO_TCPV6,
            Kind::Datagrams => GSO_UDP_L4,
        };
        VnetHeader {
            flags: FLAG_NEEDS_CHECKSUM,
            gso_type: if self.congestion { kind | GSO_ECN } else { kind },
            header_bytes: layout.payload_offset as u16,
            segment_bytes: self.segment_bytes,
            checksum_start: layout.transport_offset as u16,
            checksum_offset: offset as u16,
        }
    }
}

/// The descriptor of a frame that the kernel delivered with `header`. If this fails for a frame that is not a
/// superframe, [`complete`](crate::checksum::complete) can make it a plain frame.
pub fn describe(header: VnetHeader, frame: &[u8]) -> Result<Descriptor, BadFrame> {
    check_length(frame, frame.len())?;
    if header.flags & !(FLAG_NEEDS_CHECKSUM | FLAG_DATA_VALID) != 0 {
        return Err(BadFrame::Flags);
    }
    let kind = match header.gso_type & !GSO_ECN {
        GSO_NONE if header.flags & FLAG_NEEDS_CHECKSUM == 0 => return Ok(Descriptor::PLAIN),
        _ if header.flags & FLAG_NEEDS_CHECKSUM == 0 => return Err(BadFrame::Flags),
        GSO_NONE => Kind::Checksum,
        GSO_TCPV4 => Kind::TcpIpv4,
        GSO_TCPV6 => Kind::TcpIpv6,
        GSO_UDP_L4 => Kind::Datagrams,
        _ => return Err(BadFrame::Kind),
    };
    let layout = Layout::parse(frame)?;
    let checksum_offset = layout.transport.checksum_offset().ok_or(BadFrame::Transport)?;
    let stated = (usize::from(header.checksum_start), usize::from(header.checksum_offset));
    if stated != (layout.transport_offset, checksum_offset) {
        return Err(BadFrame::Offsets);
    }
    // The kernel, too, treats a superframe of one segment as a plain frame.
    let single = frame.len() - layout.payload_offset <= usize::from(header.segment_bytes);
    let kind = if single { Kind::Checksum } else { kind };
    let descriptor = Descriptor {
        kind,
        congestion: kind.is_superframe() && header.gso_type & GSO_ECN != 0 && has_cwr(frame, &layout),
        segment_bytes: if kind.is_superframe() { header.segment_bytes } else { 0 },
        network_offset: layout.network_offset as u8,
        transport_offset: layout.transport_offset as u8,
    };
    descriptor.check(frame, frame.len())?;
    Ok(descriptor)
}

/// Derives a header that makes a peer's frame safe for the kernel, from the frame itself. `headers` is a private copy
/// of the frame's first [`HEADER_BYTES_MAX`] bytes, or of all `frame_bytes` if there are fewer. The kernel must be
/// given exactly these bytes.
pub fn derive(
    descriptor: [u8; Descriptor::BYTES],
    headers: &[u8],
    frame_bytes: usize,
) -> Result<VnetHeader, BadFrame> {
    let descriptor = Descriptor::from_bytes(descriptor)?;
    Ok(descriptor.header(descriptor.check(headers, frame_bytes)?))
}

fn check_length(headers: &[u8], frame_bytes: usize) -> Result<(), BadFrame> {
    if frame_bytes < ETHERNET_HEADER_BYTES {
        return Err(BadFrame::Runt);
    }
    if frame_bytes > FRAME_BYTES_MAX {
        return Err(BadFrame::Oversize);
    }
    // Bytes outside the frame must not be parsed as a part of it.
    let whole = headers.len() <= frame_bytes && headers.len() >= frame_bytes.min(HEADER_BYTES_MAX);
    if whole { Ok(()) } else { Err(BadFrame::Length) }
}

fn has_cwr(headers: &[u8], layout: &Layout) -> bool {
    layout.transport == Transport::Tcp
        && headers.get(layout.transport_offset + 13).is_some_and(|flags| flags & TCP_CWR != 0)
}
