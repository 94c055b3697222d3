//! Locates the headers of a frame. A header that is not understood is `Other`, and the frame travels unchanged.

use crate::rejection::BadFrame;

/// The length of an Ethernet header: target, source, type.
pub const ETHERNET_HEADER_BYTES: usize = 14;

/// The longest frame: an IPv6 packet of full length behind two VLAN tags, rounded up. Buffers for reading frames have
/// this length. The kernel silently truncates a longer frame.
pub const FRAME_BYTES_MAX: usize = 65_600;

/// Headers that do not end within this many bytes are not understood. This leaves room for two VLAN tags, IPv6, about
/// a hundred bytes of extensions, and TCP with all its options. Offsets of the transport header fit into one byte.
pub const HEADER_BYTES_MAX: usize = 256;

/// 802.1ad allows a service tag and a customer tag.
const VLAN_TAGS_MAX: usize = 2;
/// More extension headers than real packets have. It bounds the cost of a chain of empty ones.
pub(crate) const EXTENSIONS_MAX: usize = 8;

pub(crate) const TYPE_IPV4: u16 = 0x0800;
pub(crate) const TYPE_ARP: u16 = 0x0806;
pub(crate) const TYPE_RARP: u16 = 0x8035;
pub(crate) const TYPE_IPV6: u16 = 0x86DD;
/// 802.1Q and 802.1ad.
pub(crate) const TYPE_VLAN: u16 = 0x8100;
pub(crate) const TYPE_SERVICE_VLAN: u16 = 0x88A8;

pub(crate) const IPV6_HEADER_BYTES: usize = 40;
const UDP_HEADER_BYTES: usize = 8;
const TCP_HEADER_BYTES: usize = 20;

pub(crate) const PROTOCOL_TCP: u8 = 6;
pub(crate) const PROTOCOL_UDP: u8 = 17;
pub(crate) const PROTOCOL_ICMPV6: u8 = 58;
/// Bits of the TCP header's byte 13.
pub(crate) const TCP_FIN: u8 = 0x01;
pub(crate) const TCP_SYN: u8 = 0x02;
pub(crate) const TCP_RST: u8 = 0x04;
pub(crate) const TCP_PSH: u8 = 0x08;
pub(crate) const TCP_ACK: u8 = 0x10;
pub(crate) const TCP_URG: u8 = 0x20;
pub(crate) const TCP_CWR: u8 = 0x80;

pub(crate) const EXTENSION_HOP_BY_HOP: u8 = 0;
pub(crate) const EXTENSION_ROUTING: u8 = 43;
pub(crate) const EXTENSION_FRAGMENT: u8 = 44;
pub(crate) const EXTENSION_AUTHENTICATION: u8 = 51;
pub(crate) const EXTENSION_DESTINATION: u8 = 60;

/// The protocol behind the Ethernet header and its tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// IPv4 with a valid header.
    Ipv4,
    /// IPv6 with a valid header.
    Ipv6,
    /// Anything else.
    Other,
}

/// The protocol behind the network header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Anything else, and all fragments, whose transport header is not parsed.
    Other,
    /// TCP with a valid header.
    Tcp,
    /// UDP.
    Udp,
}

impl Transport {
    /// The offset of the checksum from the start of the transport header.
    pub const fn checksum_offset(self) -> Option<usize> {
        match self {
            Transport::Other => None,
            Transport::Tcp => Some(16),
            Transport::Udp => Some(6),
        }
    }
}

/// The offsets of a frame's headers, in bytes from the frame's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The kind of packet.
    pub network: Network,
    /// The protocol that the packet carries.
    pub transport: Transport,
    /// The end of the Ethernet header and its VLAN tags: 14, 18 or 22.
    pub network_offset: usize,
    /// The end of the network header and its extensions; 0 if the transport is `Other`.
    pub transport_offset: usize,
    /// The end of the transport header, at most [`HEADER_BYTES_MAX`]; 0 if the transport is `Other`.
    pub payload_offset: usize,
    /// The end of the packet as its header states it; 0 if the network is `Other`. It may lie before the frame's end
    /// (padding) or beyond it (a wrong length).
    pub packet_end: usize,
    /// True if IPv4 has options or IPv6 has extension headers.
    pub extended: bool,
}

impl Layout {
    /// The layout of a frame about which nothing is known.
    pub(crate) const EMPTY: Layout = Layout {
        network: Network::Other,
        transport: Transport::Other,
        network_offset: ETHERNET_HEADER_BYTES,
        transport_offset: 0,
        payload_offset: 0,
        packet_end: 0,
        extended: false,
    };

    /// Parses the headers at the start of `headers`, which is a whole frame or at least its first
    /// [`HEADER_BYTES_MAX`] bytes. Later bytes are ignored. Fails only without an Ethernet header.
    pub fn parse(headers: &[u8]) -> Result<Layout, BadFrame> {
        let headers = &headers[..headers.len().min(HEADER_BYTES_MAX)];
        let mut layout = Layout::EMPTY;
        let mut kind = word(headers, 12).ok_or(BadFrame::Runt)?;
        for _ in 0..VLAN_TAGS_MAX {
            if kind != TYPE_VLAN && kind != TYPE_SERVICE_VLAN {
                break;
            }
            let Some(inner) = word(headers, layout.network_offset + 2) else { return Ok(layout) };
            (kind, layout.network_offset) = (inner, layout.network_offset + 4);
        }
        match kind {
            TYPE_IPV4 => layout.parse_ipv4(headers),
            TYPE_IPV6 => layout.parse_ipv6(headers),
            _ => None,
        };
        Ok(layout)
    }

    // `None` means that parsing ended early. The layout keeps the results up to that point.
    fn parse_ipv4(&mut self, headers: &[u8]) -> Option<()> {
        let start = self.network_offset;
        let fixed: &[u8; 20] = headers.get(start..)?.first_chunk()?;
        let header_bytes = usize::from(fixed[0] & 0x0F) * 4;
        let packet_bytes = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
        let whole = start + header_bytes <= headers.len() && header_bytes <= packet_bytes;
        if fixed[0] >> 4 != 4 || header_bytes < fixed.len() || !whole {
            return None;
        }
        self.network = Network::Ipv4;
        self.packet_end = start + packet_bytes;
        self.extended = header_bytes > fixed.len();
        // The "more fragments" flag, or a fragment offset.
        if u16::from_be_bytes([fixed[6], fixed[7]]) & 0x3FFF != 0 {
            return None;
        }
        self.parse_transport(headers, fixed[9], start + header_bytes)
    }

    fn parse_ipv6(&mut self, headers: &[u8]) -> Option<()> {
        let start = self.network_offset;
        let fixed: &[u8; IPV6_HEADER_BYTES] = headers.get(start..)?.first_chunk()?;
        if fixed[0] >> 4 != 6 {
            return None;
        }
        self.network = Network::Ipv6;
        self.packet_end = start + IPV6_HEADER_BYTES + usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
        let (mut protocol, mut offset) = (fixed[6], start + IPV6_HEADER_BYTES);
        for _ in 0..EXTENSIONS_MAX {
            if !matches!(protocol, EXTENSION_HOP_BY_HOP | EXTENSION_ROUTING | EXTENSION_DESTINATION) {
                break;
            }
            self.extended = true;
            let extension: &[u8; 2] = headers.get(offset..)?.first_chunk()?;
            protocol = extension[0];
            offset += 8 + usize::from(extension[1]) * 8;
        }
        self.parse_transport(headers, protocol, offset)
    }

    fn parse_transport(&mut self, headers: &[u8], protocol: u8, offset: usize) -> Option<()> {
        let rest = headers.get(offset..)?;
        let (transport, header_bytes) = match protocol {
            PROTOCOL_TCP => (Transport::Tcp, usize::from(*rest.get(12)? >> 4) * 4),
            PROTOCOL_UDP => (Transport::Udp, UDP_HEADER_BYTES),
            _ => return None,
        };
        let sound = transport != Transport::Tcp || header_bytes >= TCP_HEADER_BYTES;
        if !sound || header_bytes > rest.len() || offset + header_bytes > self.packet_end {
            return None;
        }
        self.transport = transport;
        self.transport_offset = offset;
        self.payload_offset = offset + header_bytes;
        Some(())
    }
}

/// The 16-bit word at `offset`, in network byte order.
pub(crate) fn word(bytes: &[u8], offset: usize) -> Option<u16> {
    bytes.get(offset..)?.first_chunk().copied().map(u16::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A TCP segment of four bytes over IPv4, 58 bytes in all.
    fn ipv4() -> Vec<u8> {
        let ethernet = [&[2; 12][..], &[8, 0]].concat();
        let network = [0x45, 0, 0, 44, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        let mut transport = [0; 24];
        transport[12] = 0x50;
        [&ethernet[..], &network, &transport].concat()
    }

    fn parsed(change: impl Fn(&mut Vec<u8>)) -> Layout {
        let mut frame = ipv4();
        change(&mut frame);
        Layout::parse(&frame).expect("an Ethernet header")
    }

    #[test]
    fn nested_headers_are_found() {
        let expected = Layout {
            network: Network::Ipv4,
            transport: Transport::Tcp,
            network_offset: 14,
            transport_offset: 34,
            payload_offset: 54,
            packet_end: 58,
            extended: false,
        };
        assert_eq!(parsed(|_| ()), expected);
        let tagged = parsed(|frame| drop(frame.splice(12..12, [0x88, 0xA8, 0, 1, 0x81, 0, 0, 2])));
        assert_eq!((tagged.network_offset, tagged.transport_offset, tagged.packet_end), (22, 42, 66));
        // Padding does not belong to the packet.
        assert_eq!(parsed(|frame| frame.resize(64, 0)), expected);
        // Three tags are more than two.
        let thrice =
            parsed(|frame| drop(frame.splice(12..12, [0x81, 0, 0, 1, 0x81, 0, 0, 2, 0x81, 0, 0, 3])));
        assert_eq!((thrice.network, thrice.network_offset), (Network::Other, 22));
    }

    #[test]
    fn invalid_network_headers_count_as_unknown() {
        let other = |change: &dyn Fn(&mut Vec<u8>)| assert_eq!(parsed(change).network, Network::Other);
        other(&|frame| frame[12..14].copy_from_slice(&[8, 6]));
        other(&|frame| frame[12..14].copy_from_slice(&[0, 46]));
        other(&|frame| frame[14] = 0x65);
        other(&|frame| frame[14] = 0x44);
        other(&|frame| frame[17] = 19);
        other(&|frame| frame.truncate(33));
        other(&|frame| frame[12..14].copy_from_slice(&[0x86, 0xDD]));
    }

    #[test]
    fn invalid_transport_headers_count_as_unknown() {
        let other = |change: &dyn Fn(&mut Vec<u8>)| {
            let layout = parsed(change);
            let offsets = (layout.transport_offset, layout.payload_offset);
            assert_eq!(
                (layout.network, layout.transport, offsets),
                (Network::Ipv4, Transport::Other, (0, 0))
            );
        };
        other(&|frame| frame[23] = 1);
        other(&|frame| frame[46] = 0x40);
        other(&|frame| frame[46] = 0x70);
        other(&|frame| frame[17] = 39);
        other(&|frame| frame[21] = 1);
        other(&|frame| frame[20] = 0x20);
        other(&|frame| frame.truncate(53));
    }

    #[test]
    fn only_extension_headers_before_a_transport_are_skipped() {
        let frame = |extensions: &[[u8; 8]], first: u8| {
            let mut frame = [&[2; 12][..], &[0x86, 0xDD, 0x60, 0, 0, 0, 1, 0, first, 64]].concat();
            frame.extend([0xFD; 32]);
            frame.extend(extensions.concat());
            frame.extend([0; 200]);
            Layout::parse(&frame).expect("an Ethernet header")
        };
        assert_eq!((frame(&[], 17).transport_offset, frame(&[], 17).extended), (54, false));
        let three =
            frame(&[[43, 0, 0, 0, 0, 0, 0, 0], [60, 0, 0, 0, 0, 0, 0, 0], [17, 0, 0, 0, 0, 0, 0, 0]], 0);
        assert_eq!((three.transport, three.transport_offset, three.extended), (Transport::Udp, 78, true));
        assert_eq!(frame(&[[17, 4, 0, 0, 0, 0, 0, 0]], 60).transport_offset, 54 + 40);
        // The extension of a fragment, an extension that ends behind the headers, and a chain without end.
        for (extension, first) in
            [([17, 0, 0, 0, 0, 0, 0, 0], 44), ([17, 255, 0, 0, 0, 0, 0, 0], 60), ([0; 8], 0)]
        {
            assert_eq!(frame(&[extension; 12], first).transport, Transport::Other);
        }
    }
}
