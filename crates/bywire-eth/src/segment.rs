//! Cuts superframes in software: into the segments that the wire carries, or into smaller superframes.

use std::ops::Range;

use crate::checksum::{Sum, checksum};
use crate::frame::{
    ETHERNET_HEADER_BYTES, HEADER_BYTES_MAX, IPV6_HEADER_BYTES, Layout, Network, TCP_CWR, TCP_FIN, TCP_PSH,
    Transport,
};
use crate::offload::{Descriptor, Kind};
use crate::rejection::BadFrame;

/// Cuts a frame into the frames that the wire carries, each with a complete checksum.
///
/// ```
/// # use bywire_eth::{offload::Descriptor, segment::Segmenter};
/// # let frame = [0; 64];
/// let mut segments = Segmenter::new(Descriptor::PLAIN, &frame)?;
/// let mut buffer = [0; 1500];
/// while let Some(segment) = segments.next_segment() {
///     let length_bytes = segment.write(&mut buffer).expect("no segment is longer");
///     // send buffer[..length_bytes]
///     # assert_eq!(buffer[..length_bytes], frame);
/// }
/// # Ok::<(), bywire_eth::rejection::BadFrame>(())
/// ```
#[derive(Debug)]
pub struct Segmenter<'frame> {
    frame: &'frame [u8],
    template: Template,
    done_bytes: usize,
    ended: bool,
}

/// A frame for the wire, in two parts that follow each other.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'segmenter, 'frame> {
    /// All headers.
    pub headers: &'segmenter [u8],
    /// The bytes behind the headers, a slice of the superframe.
    pub payload: &'frame [u8],
}

impl Segment<'_, '_> {
    /// The length of the frame.
    pub fn length_bytes(&self) -> usize {
        self.headers.len() + self.payload.len()
    }

    /// Writes the frame to the start of `buffer` and returns its length. If it does not fit, writes nothing and
    /// returns `None`.
    pub fn write(&self, buffer: &mut [u8]) -> Option<usize> {
        let (headers, rest) = buffer.split_at_mut_checked(self.headers.len())?;
        rest.get_mut(..self.payload.len())?.copy_from_slice(self.payload);
        headers.copy_from_slice(self.headers);
        Some(self.length_bytes())
    }
}

impl<'frame> Segmenter<'frame> {
    /// Takes a whole frame in memory that no other process can change. A frame that is not a superframe becomes one
    /// segment.
    pub fn new(descriptor: Descriptor, frame: &'frame [u8]) -> Result<Segmenter<'frame>, BadFrame> {
        let template = Template::new(descriptor, frame, frame.len())?;
        Ok(Segmenter { frame, template, done_bytes: 0, ended: false })
    }

    /// The number of segments in all.
    pub fn count(&self) -> usize {
        self.template.pieces(self.template.segment_bytes)
    }

    /// The next segment, in order.
    pub fn next_segment(&mut self) -> Option<Segment<'_, 'frame>> {
        let payload =
            self.template.advance(&mut self.done_bytes, &mut self.ended, self.template.segment_bytes)?;
        let payload = self.frame.get(payload)?;
        self.template.complete(payload);
        Some(Segment { headers: self.template.headers(), payload })
    }
}

/// Cuts a superframe at the boundaries of its segments into smaller superframes of a bounded length. Each has its own
/// headers and descriptor. Checksums stay partial, so the payload is not read.
#[derive(Debug)]
pub struct Cutter {
    template: Template,
    piece_bytes: usize,
    done_bytes: usize,
    ended: bool,
}

/// A part of a superframe, which is a frame itself.
#[derive(Clone, Debug)]
pub struct Piece<'cutter> {
    /// All headers.
    pub headers: &'cutter [u8],
    /// The position of the payload in the superframe.
    pub payload: Range<usize>,
    /// The work that is left to do on the piece.
    pub descriptor: Descriptor,
}

impl Cutter {
    /// Cuts a frame of `frame_bytes` into frames of at most `bytes_max`, headers included. `headers` is a private
    /// copy of the frame's first [`HEADER_BYTES_MAX`] bytes, or of all bytes if there are fewer. A frame that is not
    /// a superframe passes uncut if it is short enough.
    pub fn new(
        descriptor: Descriptor,
        headers: &[u8],
        frame_bytes: usize,
        bytes_max: usize,
    ) -> Result<Cutter, BadFrame> {
        let template = Template::new(descriptor, headers, frame_bytes)?;
        let room = bytes_max.checked_sub(template.headers_bytes).ok_or(BadFrame::Uncuttable)?;
        let piece_bytes = if template.payload_bytes <= room {
            template.payload_bytes.max(1)
        } else {
            room / template.segment_bytes * template.segment_bytes
        };
        if piece_bytes == 0 {
            return Err(BadFrame::Uncuttable);
        }
        Ok(Cutter { template, piece_bytes, done_bytes: 0, ended: false })
    }

    /// The number of pieces in all.
    pub fn count(&self) -> usize {
        self.template.pieces(self.piece_bytes)
    }

    /// The next piece, in order.
    pub fn next_piece(&mut self) -> Option<Piece<'_>> {
        let payload = self.template.advance(&mut self.done_bytes, &mut self.ended, self.piece_bytes)?;
        let descriptor = self.template.descriptor_of(payload.len());
        Some(Piece { headers: self.template.headers(), payload, descriptor })
    }
}

/// The headers of a superframe, rewritten in place for each piece.
#[derive(Debug)]
struct Template {
    descriptor: Descriptor,
    /// `None` for a plain frame, whose headers stay unchanged.
    layout: Option<Layout>,
    bytes: [u8; HEADER_BYTES_MAX],
    headers_bytes: usize,
    payload_bytes: usize,
    /// The whole payload if the frame is not a superframe.
    segment_bytes: usize,
    /// Fields of the superframe's headers that the pieces change.
    original: Original,
}

/// The fields that differ from piece to piece.
#[derive(Clone, Copy, Debug, Default)]
struct Original {
    identification: u16,
    sequence: u32,
    tcp_flags: u8,
    /// The sum of the pseudo-header without the length.
    partial: Sum,
}

impl Template {
    fn new(descriptor: Descriptor, headers: &[u8], frame_bytes: usize) -> Result<Template, BadFrame> {
        let layout = descriptor.check(headers, frame_bytes)?;
        let headers_bytes = layout.map_or(ETHERNET_HEADER_BYTES, |layout| layout.payload_offset);
        let payload_bytes = frame_bytes - headers_bytes;
        let superframe = descriptor.kind.is_superframe();
        let segment_bytes =
            if superframe { usize::from(descriptor.segment_bytes) } else { payload_bytes.max(1) };
        let mut bytes = [0; HEADER_BYTES_MAX];
        bytes[..headers_bytes].copy_from_slice(&headers[..headers_bytes]);
        let original =
            layout.map_or(Original::default(), |layout| Original::of(&layout, &bytes, frame_bytes));
        Ok(Template { descriptor, layout, bytes, headers_bytes, payload_bytes, segment_bytes, original })
    }

    fn headers(&self) -> &[u8] {
        &self.bytes[..self.headers_bytes]
    }

    fn pieces(&self, piece_bytes: usize) -> usize {
        self.payload_bytes.div_ceil(piece_bytes).max(1)
    }

    /// Writes the headers of the next piece, with a partial checksum, and returns the range of its payload.
    fn advance(
        &mut self,
        done_bytes: &mut usize,
        ended: &mut bool,
        piece_bytes: usize,
    ) -> Option<Range<usize>> {
        if *ended {
            return None;
        }
        let start = *done_bytes;
        let end = (start + piece_bytes).min(self.payload_bytes);
        (*done_bytes, *ended) = (end, end == self.payload_bytes);
        if self.descriptor.kind.is_superframe()
            && let Some(layout) = self.layout
        {
            self.rewrite(&layout, start, end);
        }
        Some(self.headers_bytes + start..self.headers_bytes + end)
    }

    fn rewrite(&mut self, layout: &Layout, start: usize, end: usize) {
        let original = self.original;
        if layout.network == Network::Ipv4 {
            let segments_before = (start / self.segment_bytes) as u16;
            let identification = original.identification.wrapping_add(segments_before);
            let at = layout.network_offset + 4;
            self.bytes[at..at + 2].copy_from_slice(&identification.to_be_bytes());
        }
        if layout.transport == Transport::Tcp {
            let mut flags = original.tcp_flags;
            flags &= if start > 0 { !TCP_CWR } else { 0xFF };
            flags &= if end < self.payload_bytes { !(TCP_FIN | TCP_PSH) } else { 0xFF };
            let header = &mut self.bytes[layout.transport_offset..];
            header[4..8].copy_from_slice(&original.sequence.wrapping_add(start as u32).to_be_bytes());
            header[13] = flags;
        }
        write_lengths(&mut self.bytes, layout, self.headers_bytes + end - start, original.partial);
    }

    /// Completes the checksum of the current piece, whose payload is `payload`.
    fn complete(&mut self, payload: &[u8]) {
        let Some(layout) = self.layout else { return };
        let Some(field) = layout.transport.checksum_offset() else { return };
        let header = &mut self.bytes[layout.transport_offset..layout.payload_offset];
        // Padding is not part of the packet. A superframe has no padding.
        let whole = if self.descriptor.kind.is_superframe() {
            payload.len()
        } else {
            layout.packet_end - layout.payload_offset
        };
        let payload = &payload[..whole];
        let sum = Sum::of(header).plus(Sum::of(payload));
        header[field..field + 2].copy_from_slice(&filled(layout.transport, sum).to_be_bytes());
    }

    fn descriptor_of(&self, payload_bytes: usize) -> Descriptor {
        let whole = self.descriptor;
        if !whole.kind.is_superframe() {
            return whole;
        }
        if payload_bytes <= self.segment_bytes {
            return Descriptor { kind: Kind::Checksum, congestion: false, segment_bytes: 0, ..whole };
        }
        let cwr = self.layout.is_some_and(|layout| tcp_flags(&self.bytes, &layout) & TCP_CWR != 0);
        Descriptor { congestion: whole.congestion && cwr, ..whole }
    }
}

impl Original {
    fn of(layout: &Layout, headers: &[u8; HEADER_BYTES_MAX], frame_bytes: usize) -> Original {
        let word = |offset: usize| u16::from_be_bytes([headers[offset], headers[offset + 1]]);
        let at = layout.transport_offset;
        let field = at + layout.transport.checksum_offset().unwrap_or(0);
        // From the checksum field, not from the addresses: behind a routing header, the last address is the one that
        // counts.
        let partial = Sum::default().plus_word(word(field)).minus_word((frame_bytes - at) as u16);
        Original {
            identification: word(layout.network_offset + 4),
            sequence: u32::from(word(at + 4)) << 16 | u32::from(word(at + 6)),
            tcp_flags: tcp_flags(headers, layout),
            partial,
        }
    }
}

fn tcp_flags(headers: &[u8; HEADER_BYTES_MAX], layout: &Layout) -> u8 {
    if layout.transport == Transport::Tcp { headers[layout.transport_offset + 13] } else { 0 }
}

/// The value of the checksum field for a sum. In UDP, zero would mean that there is no checksum.
fn filled(transport: Transport, sum: Sum) -> u16 {
    match !sum.folded() {
        0 if transport == Transport::Udp => 0xFFFF,
        checksum => checksum,
    }
}

/// Writes the header fields that depend on the frame's length: the lengths, IPv4's header checksum, and the partial
/// checksum. The headers must be valid. `partial` is the sum of the pseudo-header without its length.
pub(crate) fn write_lengths(headers: &mut [u8], layout: &Layout, frame_bytes: usize, partial: Sum) {
    let (packet, transport) = headers.split_at_mut(layout.transport_offset);
    let packet = &mut packet[layout.network_offset..];
    let packet_bytes = (frame_bytes - layout.network_offset) as u16;
    match layout.network {
        Network::Ipv4 => {
            packet[2..4].copy_from_slice(&packet_bytes.to_be_bytes());
            packet[10..12].fill(0);
            let checksum = checksum(packet);
            packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        Network::Ipv6 => {
            packet[4..6].copy_from_slice(&(packet_bytes - IPV6_HEADER_BYTES as u16).to_be_bytes())
        }
        Network::Other => {}
    }
    let transport_bytes = (frame_bytes - layout.transport_offset) as u16;
    if layout.transport == Transport::Udp {
        transport[4..6].copy_from_slice(&transport_bytes.to_be_bytes());
    }
    if let Some(field) = layout.transport.checksum_offset() {
        let partial = partial.plus_word(transport_bytes).folded();
        transport[field..field + 2].copy_from_slice(&partial.to_be_bytes());
    }
}
