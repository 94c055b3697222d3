//! An oracle for what Linux 6.18 does with a header and a frame that are written to a TAP device. It shares no code
//! with the crate.
//!
//! Its conditions are those of `tun_get_user`, `tun_vnet_hdr_get` and `virtio_net_hdr_to_skb` in `drivers/net` and
//! `include/linux/virtio_net.h`. Superframes are also held to the conditions of segmentation (`inet_gso_segment`,
//! `ipv6_gso_segment`, `tcp_gso_segment`, `__udp_gso_segment`), which later drops some frames that the first
//! functions accept.

/// The fate of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Accepted as it is. A partial checksum is not verified.
    Plain,
    /// Accepted as a superframe of this many segments.
    Superframe(usize),
    /// Refused with `EINVAL` or dropped later, with the condition that failed.
    Refused(&'static str),
}

/// The verdict on a header of ten bytes and a frame.
pub fn verdict(header: [u8; 10], frame: &[u8]) -> Verdict {
    match judge(header, frame) {
        Ok(None) => Verdict::Plain,
        Ok(Some(segments)) => Verdict::Superframe(segments),
        Err(condition) => Verdict::Refused(condition),
    }
}

fn judge(header: [u8; 10], frame: &[u8]) -> Result<Option<usize>, &'static str> {
    let number = |at: usize| usize::from(u16::from_ne_bytes([header[at], header[at + 1]]));
    let (flags, gso_type) = (header[0], header[1]);
    let (header_bytes, gso_size, start, offset) = (number(2), number(4), number(6), number(8));
    let partial = flags & 1 != 0;
    // The kernel keeps this value in 16 bits. No honest sender makes it wrap.
    let linear = if partial { header_bytes.max(start + offset + 2) } else { header_bytes };
    hold(linear <= 0xFFFF, "header length wraps")?;
    hold(linear <= frame.len(), "header length beyond the frame")?;
    hold(frame.len() >= 14 && (linear == 0 || linear >= 14), "no Ethernet header")?;
    // Never negotiated: reports of hardware coalescing, tunnels, accurate ECN, datagrams cut into fragments.
    hold(flags & !3 == 0, "unknown flag")?;
    let ecn = gso_type & 0x80 != 0;
    let kind = gso_type & !0x80;
    let (least_network, least_transport) = match kind {
        0 => (20, 0),
        1 => (20, 20),
        4 => (40, 20),
        5 => (20, 8),
        _ => return Err("unknown kind"),
    };
    hold(!ecn || matches!(kind, 1 | 4), "congestion mark without TCP")?;
    hold(kind == 0 || gso_size != 0, "no segment size")?;
    if partial {
        hold(start + least_transport.max(offset + 2) <= frame.len(), "checksum beyond the frame")?;
        hold(start >= least_network, "transport within the network's header")?;
    }
    if kind == 0 {
        return Ok(None);
    }
    // Without a partial checksum, the kernel dissects the frame. The crate never asks for that.
    hold(partial, "superframe with a complete checksum")?;
    hold(offset == if kind == 5 { 6 } else { 16 }, "checksum at another place")?;
    hold(gso_size != 0xFFFF, "reserved segment size")?;
    let payload = frame.len() - start - least_transport;
    hold(kind != 5 || payload <= gso_size * 128, "too many datagrams")?;
    hold(payload > gso_size, "one segment only")?;
    segment(kind, gso_size, start, frame)
}

/// The conditions of segmentation: the protocols that the kind names follow each other, and end where the checksum
/// starts.
fn segment(kind: u8, gso_size: usize, start: usize, frame: &[u8]) -> Result<Option<usize>, &'static str> {
    let be =
        |at: usize| frame.get(at..at + 2).map_or(0, |pair| usize::from(pair[0]) << 8 | usize::from(pair[1]));
    let mut network = 14;
    let mut protocol = be(12);
    while matches!(protocol, 0x8100 | 0x88A8) {
        (protocol, network) = (be(network + 2), network + 4);
    }
    let (mut next, mut transport) = match protocol {
        0x0800 if kind != 4 => {
            let header = frame.get(network..network + 20).ok_or("short IPv4")?;
            hold(header[0] >> 4 == 4 && header[0] & 15 >= 5, "no IPv4 header")?;
            hold(be(network + 6) & 0x3FFF == 0, "a fragment")?;
            hold(be(network + 2) == frame.len() - network, "IPv4 length")?;
            (header[9], network + usize::from(header[0] & 15) * 4)
        }
        0x86DD if kind != 1 => {
            let header = frame.get(network..network + 40).ok_or("short IPv6")?;
            hold(header[0] >> 4 == 6, "no IPv6 header")?;
            hold(be(network + 4) == frame.len() - network - 40, "IPv6 length")?;
            (header[6], network + 40)
        }
        _ => return Err("not the protocol that the kind names"),
    };
    while protocol == 0x86DD && matches!(next, 0 | 43 | 60) {
        let extension = frame.get(transport..transport + 2).ok_or("short extension")?;
        (next, transport) = (extension[0], transport + 8 + usize::from(extension[1]) * 8);
    }
    hold(next == if kind == 5 { 17 } else { 6 }, "another transport")?;
    hold(transport == start, "checksum does not start at the transport")?;
    let header_bytes = if kind == 5 {
        hold(be(transport + 4) == frame.len() - transport, "UDP length")?;
        8
    } else {
        let words = frame.get(transport + 12).ok_or("short TCP")? >> 4;
        hold(words >= 5, "TCP data offset")?;
        // The kernel accepts smaller segments. No MSS is that small, and such a frame would become a storm of
        // packets.
        hold(gso_size >= 8, "tiny segments")?;
        usize::from(words) * 4
    };
    hold(transport + header_bytes + gso_size < frame.len(), "one segment only")?;
    Ok(Some((frame.len() - transport - header_bytes).div_ceil(gso_size)))
}

fn hold(condition: bool, name: &'static str) -> Result<(), &'static str> {
    if condition { Ok(()) } else { Err(name) }
}
