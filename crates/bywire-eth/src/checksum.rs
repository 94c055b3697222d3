//! The internet checksum (RFC 1071): over any bytes, over packets with their pseudo-header, partial and complete.

use crate::frame::{Layout, Network, PROTOCOL_TCP, PROTOCOL_UDP, Transport};
use crate::offload::{FLAG_NEEDS_CHECKSUM, GSO_NONE, VnetHeader};
use crate::rejection::BadFrame;

/// A ones' complement sum that is not yet folded. It is kept in the machine's byte order, which does not affect the
/// sum. Folding converts it to network order.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

/// Bytes summed at a time: enough to keep both halves of the processor's vectors busy.
const BLOCK_BYTES: usize = 64;

impl Sum {
    /// The sum of `bytes`, which must begin at an even offset. An odd last byte counts as if a zero byte followed it.
    pub fn of(bytes: &[u8]) -> Sum {
        // 32-bit words are added in 64-bit lanes. Up to 2^32 words cannot overflow a lane, so no carry is handled.
        let mut lanes = [0u64; BLOCK_BYTES / 4];
        let mut blocks = bytes.chunks_exact(BLOCK_BYTES);
        for block in &mut blocks {
            for (lane, word) in lanes.iter_mut().zip(block.chunks_exact(4)) {
                *lane += u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
            }
        }
        let mut total: u64 = lanes.iter().map(|lane| (lane & 0xFFFF_FFFF) + (lane >> 32)).sum();
        let mut words = blocks.remainder().chunks_exact(4);
        for word in &mut words {
            total += u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
        }
        let mut last = [0; 4];
        let rest = words.remainder();
        last[..rest.len()].copy_from_slice(rest);
        Sum(total + u64::from(u32::from_ne_bytes(last)))
    }

    /// The sum of both.
    pub fn plus(self, other: Sum) -> Sum {
        Sum(halved(self.0) + halved(other.0))
    }

    /// Adds a word, given as the number that its bytes on the wire mean.
    pub fn plus_word(self, word: u16) -> Sum {
        self.plus(Sum(u64::from(word.to_be())))
    }

    /// Subtracts a word that was added before.
    pub fn minus_word(self, word: u16) -> Sum {
        self.plus_word(!word)
    }

    /// The folded sum, 16 bits, not inverted, as a number: `to_be_bytes` gives the bytes on the wire.
    pub fn folded(self) -> u16 {
        let mut total = halved(self.0);
        while total > 0xFFFF {
            total = (total & 0xFFFF) + (total >> 16);
        }
        u16::from_be(total as u16)
    }
}

fn halved(total: u64) -> u64 {
    (total & 0xFFFF_FFFF) + (total >> 32)
}

/// The checksum of `bytes`: 0 if they contain their own correct checksum.
pub fn checksum(bytes: &[u8]) -> u16 {
    !Sum::of(bytes).folded()
}

/// The sum of the pseudo-header of a packet whose transport header and payload have `transport_bytes` bytes. `None`
/// unless the transport is TCP or UDP. An IPv6 routing header is not followed: see [`Layout::extended`].
pub fn pseudo_header(headers: &[u8], layout: &Layout, transport_bytes: usize) -> Option<Sum> {
    let packet = headers.get(layout.network_offset..)?;
    let addresses = match layout.network {
        Network::Ipv4 => packet.get(12..20)?,
        Network::Ipv6 => packet.get(8..40)?,
        Network::Other => return None,
    };
    let protocol = match layout.transport {
        Transport::Tcp => PROTOCOL_TCP,
        Transport::Udp => PROTOCOL_UDP,
        Transport::Other => return None,
    };
    let length = u16::try_from(transport_bytes).ok()?;
    Some(Sum::of(addresses).plus_word(u16::from(protocol)).plus_word(length))
}

/// True when the whole packet is present and its transport checksum is correct. False for a UDP packet without a
/// checksum, for a packet with extensions, and for a frame that [`Layout::parse`] does not understand.
pub fn verify(frame: &[u8], layout: &Layout) -> bool {
    let Some(offset) = layout.transport.checksum_offset() else { return false };
    let Some(segment) = frame.get(layout.transport_offset..layout.packet_end) else { return false };
    if layout.extended
        || (layout.transport == Transport::Udp && segment.get(offset..offset + 2) == Some(&[0, 0]))
    {
        return false;
    }
    pseudo_header(frame, layout, segment.len())
        .is_some_and(|pseudo| pseudo.plus(Sum::of(segment)).folded() == 0xFFFF)
}

/// Completes the checksum of a frame that is not a superframe, if the kernel left it incomplete. This works for any
/// protocol and leaves a plain frame. Complete frames stay unchanged.
pub fn complete(header: VnetHeader, frame: &mut [u8]) -> Result<(), BadFrame> {
    if header.gso_type != GSO_NONE {
        return Err(BadFrame::Kind);
    }
    if header.flags & FLAG_NEEDS_CHECKSUM == 0 {
        return Ok(());
    }
    let summed = frame.get_mut(usize::from(header.checksum_start)..).ok_or(BadFrame::Offsets)?;
    // In UDP, zero would mean that there is no checksum. In other protocols both zeros mean the same.
    let checksum = match checksum(summed) {
        0 => 0xFFFF,
        checksum => checksum,
    };
    let rest = summed.get_mut(usize::from(header.checksum_offset)..).ok_or(BadFrame::Offsets)?;
    *rest.first_chunk_mut().ok_or(BadFrame::Offsets)? = checksum.to_be_bytes();
    Ok(())
}
