//! Packets: one datagram each on the network, or several of them joined by the kernel's receive offload.

use crate::reader::Reader;

/// Bytes before the frames.
pub const HEADER_BYTES: usize = 16;
/// The bytes of the tag after the frames of a sealed packet.
pub const SEAL_BYTES: usize = 16;
/// The bytes of the keyed check after the frames of a packet that is not sealed.
pub const CHECK_BYTES: usize = 4;

/// The kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PacketKind {
    /// The first message of a handshake.
    Hello = 0xb1,
    /// Its answer.
    Answer = 0xb2,
    /// A request to prove the address first.
    Cookie = 0xb3,
    /// Frames of a connection.
    Data = 0xb4,
}

/// The header of every packet. It is authenticated, but not encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the packet is.
    pub kind: PacketKind,
    /// Which of two keys sealed it.
    pub key_phase: bool,
    /// Bytes of the whole packet, including this header and the tag.
    pub length: u16,
    /// The receiver's number for the connection.
    pub connection: u32,
    /// The number of this transmission, never used twice with one key.
    pub number: u64,
}

const KEY_PHASE: u8 = 1;

impl PacketKind {
    fn of(byte: u8) -> Option<Self> {
        [Self::Hello, Self::Answer, Self::Cookie, Self::Data].into_iter().find(|kind| *kind as u8 == byte)
    }
}

impl Header {
    /// The header at the beginning of `bytes`. `None`: there is no valid header, or the packet is incomplete.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let kind = PacketKind::of(reader.u8()?)?;
        let flags = reader.u8().filter(|flags| flags & !KEY_PHASE == 0)?;
        let length = reader.u16()?;
        let header = Self {
            kind,
            key_phase: flags & KEY_PHASE != 0,
            length,
            connection: reader.u32()?,
            number: reader.u64()?,
        };
        (HEADER_BYTES..=bytes.len()).contains(&usize::from(length)).then_some(header)
    }

    /// The bytes of the header.
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.kind as u8;
        bytes[1] = if self.key_phase { KEY_PHASE } else { 0 };
        bytes[2..4].copy_from_slice(&self.length.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.connection.to_le_bytes());
        bytes[8..].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }
}

/// The packets of a buffer, in which the kernel may have joined several datagrams, each with its header. They end at
/// the first bytes that are not a packet.
pub fn split(buffer: &mut [u8]) -> impl Iterator<Item = (Header, &mut [u8])> {
    let mut rest = buffer;
    std::iter::from_fn(move || {
        let header = Header::parse(rest)?;
        let (packet, behind) = std::mem::take(&mut rest).split_at_mut(header.length.into());
        rest = behind;
        Some((header, packet))
    })
}
