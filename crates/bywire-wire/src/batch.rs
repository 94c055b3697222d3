//! Packets that leave together, one after the other in memory, as segmentation offload needs them.

/// A buffer of packets.
#[derive(Debug)]
pub struct Batch {
    pub(crate) bytes: Vec<u8>,
    ends: Vec<usize>,
    bytes_max: usize,
    packets_max: usize,
}

impl Batch {
    /// A buffer for this many bytes and packets. A packet always fits into an empty buffer.
    pub fn new(bytes_max: usize, packets_max: usize) -> Self {
        Self { bytes: Vec::new(), ends: Vec::new(), bytes_max, packets_max }
    }

    /// The packets, in the order in which they leave.
    pub fn packets(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.bytes[start..*end])
    }

    /// All of them, one after the other.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.finished_bytes()]
    }

    /// Is it empty?
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The number of packets.
    pub fn count(&self) -> usize {
        self.ends.len()
    }

    /// Makes it empty.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Is there room for a packet of this many bytes?
    pub fn has_room(&self, bytes: usize) -> bool {
        self.is_empty() || self.ends.len() < self.packets_max && self.bytes.len() + bytes <= self.bytes_max
    }

    /// For how many packets of this many bytes is there room?
    pub(crate) fn room(&self, bytes: usize) -> usize {
        let by_bytes = self.bytes_max.saturating_sub(self.bytes.len()) / bytes.max(1);
        by_bytes.min(self.packets_max.saturating_sub(self.ends.len()))
    }

    /// Bytes of the complete packets.
    pub(crate) fn finished_bytes(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Makes a packet of the bytes that were appended since the last one.
    pub(crate) fn finish(&mut self) {
        self.ends.push(self.bytes.len());
    }
}
