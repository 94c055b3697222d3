//! Packets: one datagram each on the network, or several of them joined by the kernel's receive offload (GRO).

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
        // Most packets have data.
        [Self::Data, Self::Hello, Self::Answer, Self::Cookie].into_iter().find(|kind| *kind as u8 == byte)
    }
}

impl Header {
    /// The header at the beginning of `bytes`. `None`: there is no valid header, or the packet is incomplete.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let ([head, number], _) = bytes.first_chunk::<HEADER_BYTES>()?.as_chunks::<8>() else { return None };
        let head = u64::from_le_bytes(*head);
        let kind = PacketKind::of(head as u8)?;
        let flags = (head >> 8) as u8;
        let length = (head >> 16) as u16;
        let header = Self {
            kind,
            key_phase: flags & KEY_PHASE != 0,
            length,
            connection: (head >> 32) as u32,
            number: u64::from_le_bytes(*number),
        };
        let is_valid = flags & !KEY_PHASE == 0 && (HEADER_BYTES..=bytes.len()).contains(&usize::from(length));
        is_valid.then_some(header)
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

/// The packets of a buffer in which the kernel has joined datagrams of `datagram_bytes` each; the last one may be shorter.
/// Anyone can forge the source address of a datagram, so each is looked at by itself: a forged one takes no other with it.
pub fn split_joined(buffer: &mut [u8], datagram_bytes: usize) -> impl Iterator<Item = (Header, &mut [u8])> {
    buffer.chunks_mut(datagram_bytes.max(1)).flat_map(split)
}

/// The packets of one datagram, each with its header. They end at the first bytes that are not a packet.
pub fn split(buffer: &mut [u8]) -> impl Iterator<Item = (Header, &mut [u8])> {
    let mut rest = buffer;
    std::iter::from_fn(move || {
        let header = Header::parse(rest)?;
        let (packet, behind) = std::mem::take(&mut rest).split_at_mut(header.length.into());
        rest = behind;
        Some((header, packet))
    })
}
