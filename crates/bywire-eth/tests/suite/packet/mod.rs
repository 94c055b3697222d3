//! Frames made by hand, byte by byte, with the checksum of RFC 1071. None of the crate's code is used for this.
use bywire_eth::offload::{
    Descriptor, GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, Kind, VnetHeader,
};
use proptest::prelude::*;

pub const FIN: u8 = 0x01;
pub const SYN: u8 = 0x02;
pub const PSH: u8 = 0x08;
pub const ACK: u8 = 0x10;
pub const CWR: u8 = 0x80;

/// All the values that determine a frame's bytes.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Tag protocol identifiers, the outer one first.
    pub tags: Vec<u16>,
    pub ipv6: bool,
    pub tcp: bool,
    pub source: u8,
    pub port: u16,
    pub service: u8,
    pub hops: u8,
    pub dont_fragment: bool,
    pub identification: u16,
    /// Words of four bytes behind IPv4's header, or words of eight bytes in one IPv6 destination-options header.
    pub extension_words: u8,
    pub sequence: u32,
    pub acknowledgement: u32,
    pub flags: u8,
    pub window: u16,
    /// Words of four bytes, at most 10.
    pub option_words: u8,
    /// The byte that fills the options.
    pub option: u8,
    pub payload: Vec<u8>,
}

impl Packet {
    pub fn tcp(payload: Vec<u8>) -> Packet {
        Packet {
            tags: Vec::new(),
            ipv6: false,
            tcp: true,
            source: 1,
            port: 40_000,
            service: 0,
            hops: 64,
            dont_fragment: true,
            identification: 0xFFF0,
            extension_words: 0,
            sequence: 0xFFFF_F000,
            acknowledgement: 0x0102_0304,
            flags: ACK,
            window: 501,
            option_words: 3,
            option: 1,
            payload,
        }
    }

    pub fn udp(payload: Vec<u8>) -> Packet {
        Packet { tcp: false, ..Packet::tcp(payload) }
    }

    pub fn network_offset(&self) -> usize {
        14 + 4 * self.tags.len()
    }

    pub fn transport_offset(&self) -> usize {
        let extension = usize::from(self.extension_words);
        let fixed = if self.ipv6 { 40 + extension * 8 } else { 20 + extension * 4 };
        self.network_offset() + fixed
    }

    pub fn payload_offset(&self) -> usize {
        self.transport_offset() + if self.tcp { 20 + usize::from(self.option_words) * 4 } else { 8 }
    }

    pub fn checksum_offset(&self) -> usize {
        if self.tcp { 16 } else { 6 }
    }

    /// The frame with a complete checksum.
    pub fn whole(&self) -> Vec<u8> {
        let mut frame = self.partial();
        let (start, field) = (self.transport_offset(), self.transport_offset() + self.checksum_offset());
        let checksum = match !naive_sum(&frame[start..]) {
            0 if !self.tcp => 0xFFFF,
            checksum => checksum,
        };
        frame[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
        frame
    }

    /// The frame with the sum of the pseudo-header in the checksum field.
    pub fn partial(&self) -> Vec<u8> {
        let mut frame = vec![0x02, 0, 0, 0, 0, 9, 0x02, 0, 0, 0, 0, self.source];
        for (index, tag) in self.tags.iter().enumerate() {
            frame.extend(tag.to_be_bytes());
            frame.extend([0x20, index as u8 + 1]);
        }
        frame.extend(if self.ipv6 { [0x86, 0xDD] } else { [8, 0] });
        let transport = self.transport();
        let protocol = if self.tcp { 6 } else { 17 };
        let addresses = if self.ipv6 {
            self.ipv6(&mut frame, protocol, transport.len())
        } else {
            self.ipv4(&mut frame, protocol, transport.len())
        };
        let mut pseudo = addresses;
        pseudo.extend([0, protocol]);
        pseudo.extend((transport.len() as u16).to_be_bytes());
        let field = frame.len() + self.checksum_offset();
        frame.extend(transport);
        frame[field..field + 2].copy_from_slice(&naive_sum(&pseudo).to_be_bytes());
        frame
    }

    fn ipv4(&self, frame: &mut Vec<u8>, protocol: u8, transport_bytes: usize) -> Vec<u8> {
        let start = frame.len();
        let header_bytes = 20 + usize::from(self.extension_words) * 4;
        frame.extend([0x40 | (header_bytes / 4) as u8, self.service]);
        frame.extend(((header_bytes + transport_bytes) as u16).to_be_bytes());
        frame.extend(self.identification.to_be_bytes());
        frame.extend([if self.dont_fragment { 0x40 } else { 0 }, 0, self.hops, protocol, 0, 0]);
        let addresses = [10, 77, 0, self.source, 10, 77, 0, 9];
        frame.extend(addresses);
        frame.resize(start + header_bytes, 1);
        let checksum = !naive_sum(&frame[start..]);
        frame[start + 10..start + 12].copy_from_slice(&checksum.to_be_bytes());
        addresses.to_vec()
    }

    fn ipv6(&self, frame: &mut Vec<u8>, protocol: u8, transport_bytes: usize) -> Vec<u8> {
        let extension_bytes = usize::from(self.extension_words) * 8;
        frame.extend([0x60 | self.service >> 4, self.service << 4, 0x12, 0x34]);
        frame.extend(((extension_bytes + transport_bytes) as u16).to_be_bytes());
        frame.extend([if extension_bytes > 0 { 60 } else { protocol }, self.hops]);
        let mut addresses = vec![0xFD; 32];
        (addresses[15], addresses[31]) = (self.source, 9);
        frame.extend(&addresses);
        if extension_bytes > 0 {
            let start = frame.len();
            frame.extend([protocol, self.extension_words - 1, 1, 4]);
            frame.resize(start + extension_bytes, 0);
        }
        addresses
    }

    fn transport(&self) -> Vec<u8> {
        let mut bytes = [self.port.to_be_bytes(), 443u16.to_be_bytes()].concat();
        if self.tcp {
            bytes.extend(self.sequence.to_be_bytes());
            bytes.extend(self.acknowledgement.to_be_bytes());
            bytes.extend([(5 + self.option_words) << 4, self.flags]);
            bytes.extend(self.window.to_be_bytes());
            bytes.extend([0; 4]);
            bytes.resize(20 + usize::from(self.option_words) * 4, self.option);
        } else {
            bytes.extend((8 + self.payload.len() as u16).to_be_bytes());
            bytes.extend([0; 2]);
        }
        bytes.extend(&self.payload);
        bytes
    }

    /// The kernel's header for the frame: as a superframe of segments of `segment_bytes`, or, for 0, as a plain frame
    /// with a partial checksum.
    pub fn vnet(&self, segment_bytes: u16) -> VnetHeader {
        let kind = match (segment_bytes, self.tcp, self.ipv6) {
            (0, ..) => GSO_NONE,
            (_, false, _) => GSO_UDP_L4,
            (_, true, false) => GSO_TCPV4,
            (_, true, true) => GSO_TCPV6,
        };
        let marked = segment_bytes > 0 && self.tcp && self.flags & CWR != 0;
        VnetHeader {
            flags: 1,
            gso_type: if marked { kind | GSO_ECN } else { kind },
            header_bytes: self.payload_offset() as u16,
            segment_bytes,
            checksum_start: self.transport_offset() as u16,
            checksum_offset: self.checksum_offset() as u16,
        }
    }

    pub fn descriptor(&self, segment_bytes: u16) -> Descriptor {
        let kind = match (segment_bytes, self.tcp, self.ipv6) {
            (0, ..) => Kind::Checksum,
            (_, false, _) => Kind::Datagrams,
            (_, true, false) => Kind::TcpIpv4,
            (_, true, true) => Kind::TcpIpv6,
        };
        Descriptor {
            kind,
            congestion: segment_bytes > 0 && self.tcp && self.flags & CWR != 0,
            segment_bytes,
            network_offset: self.network_offset() as u8,
            transport_offset: self.transport_offset() as u8,
        }
    }

    /// The packets of a superframe of segments of `segment_bytes`, as their sender would send them by RFC 9293 and
    /// RFC 768.
    pub fn segments(&self, segment_bytes: usize) -> Vec<Packet> {
        let last = self.payload.len().div_ceil(segment_bytes).max(1) - 1;
        let chunks = self.payload.chunks(segment_bytes).enumerate();
        let cut = chunks.map(|(index, payload)| Packet {
            identification: self.identification.wrapping_add(index as u16),
            sequence: self.sequence.wrapping_add((index * segment_bytes) as u32),
            flags: self.flags
                & if index == 0 { 0xFF } else { !CWR }
                & if index == last { 0xFF } else { !(FIN | PSH) },
            payload: payload.to_vec(),
            ..self.clone()
        });
        cut.collect()
    }
}

/// The checksum as defined: one word at a time, each carry added at once.
pub fn naive_sum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        if sum > 0xFFFF {
            sum -= 0xFFFF;
        }
    }
    sum as u16
}

/// Packets of every shape that can be segmented, each with the length of its segments.
pub fn superframes() -> impl Strategy<Value = (Packet, u16)> {
    let shape =
        (prop::collection::vec(prop_oneof![Just(0x8100u16), Just(0x88A8u16)], 0..=2), any::<[bool; 3]>());
    let network = (any::<u8>(), any::<u16>(), prop_oneof![3 => Just(0u8), 1 => 1..=8u8]);
    let transport = (any::<u32>(), any::<u8>(), 0..=10u8);
    let payload = (1..=1500u16, 2..=40usize, any::<u8>(), any::<prop::sample::Index>());
    (shape, network, transport, payload).prop_map(|(shape, network, transport, payload)| {
        let (segment_bytes, segments, seed, last) = payload;
        let segment_bytes = segment_bytes.max(8);
        let full = usize::from(segment_bytes) * (segments - 1);
        let length = (full + 1 + last.index(usize::from(segment_bytes))).min(60_000);
        let length = length.max(usize::from(segment_bytes) + 1);
        let payload = (0..length).map(|index| (index * 7 + index / 256) as u8 ^ seed).collect();
        let packet = Packet {
            tags: shape.0,
            ipv6: shape.1[0],
            tcp: shape.1[1],
            dont_fragment: shape.1[2],
            service: network.0,
            identification: network.1,
            extension_words: network.2,
            sequence: transport.0,
            flags: transport.1 & (ACK | PSH | FIN | CWR | 0x40) | ACK,
            option_words: transport.2,
            ..Packet::tcp(payload)
        };
        (packet, segment_bytes)
    })
}
