//! Why a frame was refused. Refused frames are dropped and counted by cause.

/// What is wrong with a frame, its descriptor or its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum BadFrame {
    /// The frame is shorter than an Ethernet header.
    #[error("the frame is shorter than an Ethernet header: look at the program that sends it")]
    Runt,
    /// The frame is longer than [`FRAME_BYTES_MAX`](crate::frame::FRAME_BYTES_MAX).
    #[error("the frame is longer than any IP packet: lower the interface's GSO or MTU limit")]
    Oversize,
    /// No sender of this version makes such a descriptor.
    #[error("the frame's descriptor is malformed: look whether both nodes run the same version")]
    Descriptor,
    /// The kernel's header has flags that were never negotiated, or lacks a flag that its offload needs.
    #[error("the kernel's header has flags that make no sense here: switch the interface's offloads off")]
    Flags,
    /// The kernel's header names an offload that was never negotiated.
    #[error("the kernel's header names an unknown offload: switch the interface's offloads off")]
    Kind,
    /// An offload for a frame without complete TCP or UDP headers behind IPv4 or IPv6.
    #[error("the frame leaves work on TCP or UDP, and holds neither: switch its sender's offloads off")]
    Transport,
    /// An offload for another protocol than the frame's.
    #[error("the frame's protocol is not that of its offload: switch its sender's offloads off")]
    Protocol,
    /// Offsets that differ from those that parsing finds.
    #[error("the frame's headers are not where its sender says: switch its sender's offloads off")]
    Offsets,
    /// Lengths in the headers that contradict the length of the frame.
    #[error("the lengths in the frame's headers contradict its own: switch its sender's offloads off")]
    Length,
    /// An illegal segment size, or a superframe with only one segment.
    #[error("the frame's segment size is not a legal one: switch its sender's offloads off")]
    SegmentSize,
    /// More datagrams in one frame than kernels accept.
    #[error("the frame holds more datagrams than a kernel takes: lower its sender's GSO segment limit")]
    SegmentCount,
    /// A congestion mark that the TCP header does not have.
    #[error("the frame's congestion mark contradicts its TCP header: switch its sender's offloads off")]
    Congestion,
    /// A single segment is longer than the limit for a piece.
    #[error("one segment of the frame is longer than a piece may be: send the frame whole")]
    Uncuttable,
}

impl BadFrame {
    /// Every cause, in the order of [`BadFrame::index`].
    pub const ALL: [BadFrame; 13] = [
        BadFrame::Runt,
        BadFrame::Oversize,
        BadFrame::Descriptor,
        BadFrame::Flags,
        BadFrame::Kind,
        BadFrame::Transport,
        BadFrame::Protocol,
        BadFrame::Offsets,
        BadFrame::Length,
        BadFrame::SegmentSize,
        BadFrame::SegmentCount,
        BadFrame::Congestion,
        BadFrame::Uncuttable,
    ];

    /// The cause's place in an array of counters of [`BadFrame::ALL`]'s length.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The cause's name in metrics and JSON. It is the same in every version.
    pub const fn label(self) -> &'static str {
        match self {
            BadFrame::Runt => "runt",
            BadFrame::Oversize => "oversize",
            BadFrame::Descriptor => "descriptor",
            BadFrame::Flags => "flags",
            BadFrame::Kind => "kind",
            BadFrame::Transport => "transport",
            BadFrame::Protocol => "protocol",
            BadFrame::Offsets => "offsets",
            BadFrame::Length => "length",
            BadFrame::SegmentSize => "segment_size",
            BadFrame::SegmentCount => "segment_count",
            BadFrame::Congestion => "congestion",
            BadFrame::Uncuttable => "uncuttable",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_has_its_own_counter_and_label() {
        let labels: std::collections::BTreeSet<_> = BadFrame::ALL.iter().map(|cause| cause.label()).collect();
        assert_eq!(labels.len(), BadFrame::ALL.len());
        for (index, cause) in BadFrame::ALL.into_iter().enumerate() {
            assert_eq!(cause.index(), index, "{cause:?}");
        }
    }
}
