//! The packets that two ports exchange over their Unix socket: introductions, memory, and good-bye. Every packet here
//! comes from a process that is not trusted.

use bywire_ring::geometry::{Geometry, LaneGeometry};

use crate::message::address::{NAME_BYTES_MAX, PortName};
use crate::message::error::Refusal;

/// The version of this protocol and of the segment's layout.
const VERSION: u16 = 3;
const MAGIC: [u8; 4] = *b"BYWR";
/// The maximum length of a packet.
pub const PACKET_BYTES_MAX: usize = 256;

/// One packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    /// The connecting port introduces itself. Its segment, its page and its doorbell come with this packet.
    Hello(Introduction),
    /// The accepting port introduces itself in the same way.
    Welcome(Introduction),
    /// The accepting port declines.
    Refuse(Refusal),
    /// A heap to lend from. Its memory comes with this packet.
    Heap {
        /// Counted from 0 by the lender.
        id: u32,
        /// Bytes per block.
        block_bytes: u64,
        /// The number of blocks.
        blocks: u32,
    },
    /// The port was closed in good order. Everything that it sent before is in the rings.
    Goodbye,
    /// A large window for the lane of low priority. Its memory comes with this packet.
    Bulk,
    /// A wake-up, for a peer whose doorbell cannot be rung safely.
    Wake,
}

/// A port's identity, and the sizes of its segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Introduction {
    /// The port's own name, which the receiver verifies.
    pub port: PortName,
    /// Its incarnation.
    pub incarnation: u64,
    /// The longest message that it takes.
    pub message_bytes_max: u64,
    /// Does it want payloads checked?
    pub integrity: bool,
    /// The sizes of the segment that it writes.
    pub geometry: Geometry,
}

/// Why a packet was not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketError {
    /// Not a packet of ours, or a malformed one.
    Malformed,
    /// A packet of another version.
    Version,
}

impl Packet {
    /// The packet's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(PACKET_BYTES_MAX);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        match self {
            Self::Hello(introduction) => put_introduction(&mut bytes, 1, introduction),
            Self::Welcome(introduction) => put_introduction(&mut bytes, 2, introduction),
            Self::Refuse(refusal) => {
                bytes.push(3);
                bytes.push(refusal_code(*refusal));
            }
            Self::Heap { id, block_bytes, blocks } => {
                bytes.push(4);
                bytes.extend_from_slice(&id.to_le_bytes());
                bytes.extend_from_slice(&block_bytes.to_le_bytes());
                bytes.extend_from_slice(&blocks.to_le_bytes());
            }
            Self::Goodbye => bytes.push(5),
            Self::Wake => bytes.push(6),
            Self::Bulk => bytes.push(7),
        }
        bytes
    }

    /// Reads one packet; nothing may follow it.
    ///
    /// # Errors
    /// [`PacketError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, PacketError> {
        let mut reader = Reader { bytes };
        if reader.array()? != MAGIC {
            return Err(PacketError::Malformed);
        }
        if u16::from_le_bytes(reader.array()?) != VERSION {
            return Err(PacketError::Version);
        }
        let packet = match reader.u8()? {
            1 => Self::Hello(reader.introduction()?),
            2 => Self::Welcome(reader.introduction()?),
            3 => Self::Refuse(refusal(reader.u8()?)),
            4 => Self::Heap { id: reader.u32()?, block_bytes: reader.u64()?, blocks: reader.u32()? },
            5 => Self::Goodbye,
            6 => Self::Wake,
            7 => Self::Bulk,
            _ => return Err(PacketError::Malformed),
        };
        if reader.bytes.is_empty() { Ok(packet) } else { Err(PacketError::Malformed) }
    }
}

fn put_introduction(bytes: &mut Vec<u8>, kind: u8, introduction: &Introduction) {
    bytes.push(kind);
    bytes.extend_from_slice(&introduction.incarnation.to_le_bytes());
    bytes.extend_from_slice(&introduction.message_bytes_max.to_le_bytes());
    bytes.push(introduction.integrity.into());
    bytes.extend_from_slice(&introduction.geometry.fragment_bytes.to_le_bytes());
    for lane in introduction.geometry.lanes {
        bytes.extend_from_slice(&lane.slots.to_le_bytes());
        bytes.extend_from_slice(&lane.bulk_bytes.to_le_bytes());
    }
    let name = introduction.port.to_string();
    bytes.push(name.len() as u8);
    bytes.extend_from_slice(name.as_bytes());
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], PacketError> {
        let (head, rest) = self.bytes.split_first_chunk().ok_or(PacketError::Malformed)?;
        self.bytes = rest;
        Ok(*head)
    }

    fn u8(&mut self) -> Result<u8, PacketError> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, PacketError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, PacketError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn introduction(&mut self) -> Result<Introduction, PacketError> {
        let (incarnation, message_bytes_max, integrity) = (self.u64()?, self.u64()?, self.u8()?);
        let fragment_bytes = self.u32()?;
        let mut lanes = [LaneGeometry { slots: 0, bulk_bytes: 0 }; 3];
        for lane in &mut lanes {
            *lane = LaneGeometry { slots: self.u32()?, bulk_bytes: self.u32()? };
        }
        let geometry = Geometry { lanes, fragment_bytes };
        geometry.check().map_err(|_| PacketError::Malformed)?;
        Ok(Introduction {
            port: self.name()?,
            incarnation,
            message_bytes_max,
            integrity: integrity != 0,
            geometry,
        })
    }

    fn name(&mut self) -> Result<PortName, PacketError> {
        let length = usize::from(self.u8()?);
        if length > NAME_BYTES_MAX {
            return Err(PacketError::Malformed);
        }
        let (name, rest) = self.bytes.split_at_checked(length).ok_or(PacketError::Malformed)?;
        self.bytes = rest;
        std::str::from_utf8(name).ok().and_then(|name| name.parse().ok()).ok_or(PacketError::Malformed)
    }
}

/// The codes are part of the protocol. They are written out so that a new variant cannot shift them.
fn refusal_code(refusal: Refusal) -> u8 {
    match refusal {
        Refusal::Closed => 0,
        Refusal::Version => 1,
        Refusal::NotAdmitted => 2,
        Refusal::TooManyPeers => 3,
        Refusal::Unverified => 4,
        Refusal::BadOffer => 5,
        Refusal::NoResources => 6,
        Refusal::MemoryKept => 7,
    }
}

fn refusal(code: u8) -> Refusal {
    match code {
        1 => Refusal::Version,
        2 => Refusal::NotAdmitted,
        3 => Refusal::TooManyPeers,
        4 => Refusal::Unverified,
        5 => Refusal::BadOffer,
        6 => Refusal::NoResources,
        7 => Refusal::MemoryKept,
        _ => Refusal::Closed,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn introduction() -> Introduction {
        Introduction {
            port: PortName::Name("render".to_owned()),
            incarnation: 7,
            message_bytes_max: 1 << 40,
            integrity: true,
            geometry: Geometry::default(),
        }
    }

    #[test]
    fn packets_are_decoded_as_encoded() {
        let refusals = (0..=7).map(|code| Packet::Refuse(refusal(code)));
        let heap = Packet::Heap { id: 1, block_bytes: 65536, blocks: 8 };
        let others = [
            Packet::Hello(introduction()),
            Packet::Welcome(introduction()),
            heap,
            Packet::Goodbye,
            Packet::Wake,
        ];
        for packet in refusals.chain(others) {
            let bytes = packet.to_bytes();
            assert!(bytes.len() <= PACKET_BYTES_MAX);
            assert_eq!(Packet::parse(&bytes), Ok(packet));
            assert_eq!(Packet::parse(&bytes[..bytes.len() - 1]), Err(PacketError::Malformed));
            assert_eq!(Packet::parse(&[&bytes[..], &[0]].concat()), Err(PacketError::Malformed));
        }
    }

    #[test]
    fn another_version_is_recognised() {
        let mut bytes = Packet::Goodbye.to_bytes();
        bytes[4] = 99;
        assert_eq!(Packet::parse(&bytes), Err(PacketError::Version));
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_a_panic(position in 0..100usize, value in any::<u8>(), tail in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Packet::parse(&tail);
            let mut bytes = Packet::Hello(introduction()).to_bytes();
            let index = position % bytes.len();
            bytes[index] = value;
            if let Ok(Packet::Hello(read)) = Packet::parse(&bytes) {
                prop_assert!(read.geometry.check().is_ok());
            }
        }
    }
}
