//! Tests whether this kernel accepts superframes. Some released kernels refuse them. Each kind is tried once at the
//! start, on a device in an empty namespace, without effect on other programs.

use std::io::IoSlice;

use bywire_sys::Errno;
use bywire_sys::namespace::Namespace;
use bywire_sys::tap::{Offloads, Queue, Tap};

use crate::checksum::Sum;
use crate::offload::{self, VnetHeader};
use crate::rtnetlink::{Change, Links};

/// The payload of the tested superframes: three segments, the last one shorter.
const PAYLOAD_BYTES: usize = 2500;
const SEGMENT_BYTES: u16 = 1000;
/// The name of the tested device.
const DEVICE: &str = "probe";

/// The result of the test.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Probe {
    /// True if TCP superframes are accepted.
    pub takes_tcp: bool,
    /// True if UDP superframes are accepted.
    pub takes_udp: bool,
    /// The reason for each kind that is not accepted.
    pub reasons: Vec<String>,
}

/// Tests every kind of superframe on a device made in `workshop`.
pub fn probe(workshop: &Namespace) -> Probe {
    let tried = workshop.run(try_all).unwrap_or_else(|error| Err(error.into()));
    tried.unwrap_or_else(|error| Probe {
        reasons: vec![format!("superframes could not be tried: {error}")],
        ..Probe::default()
    })
}

fn try_all() -> std::io::Result<Probe> {
    let wanted = Offloads { checksum: true, tcp_segmentation: true, udp_segmentation: true };
    let tap = Tap::create(DEVICE, 1, wanted)?;
    let mut links = Links::open()?;
    let index = links.find(DEVICE)?.index;
    links.change(index, Change { up: Some(true), ..Change::default() })?;
    let mut probe = Probe::default();
    let kinds = [("TCP", false, tap.offloads.tcp_segmentation), ("UDP", true, tap.offloads.udp_segmentation)];
    for (name, is_udp, is_offered) in kinds {
        let taken = is_offered && {
            let refused =
                [false, true].iter().find_map(|is_ipv6| offer(&tap.queues[0], *is_ipv6, is_udp).err());
            let reason = refused.map(|error| format!("this kernel refuses {name} superframes: {error}"));
            let taken = reason.is_none();
            probe.reasons.extend(reason);
            taken
        };
        if !is_offered {
            probe.reasons.push(format!("this kernel's TAP does not offer {name} superframes"));
        }
        *(if is_udp { &mut probe.takes_udp } else { &mut probe.takes_tcp }) = taken;
    }
    Ok(probe)
}

/// Offers the kernel a superframe for a host that does not exist.
fn offer(queue: &Queue, is_ipv6: bool, is_udp: bool) -> Result<(), Errno> {
    let transport_bytes = if is_udp { 8 } else { 20 };
    let packet_bytes = (transport_bytes + PAYLOAD_BYTES) as u16;
    let protocol: u8 = if is_udp { 17 } else { 6 };
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    if is_ipv6 {
        frame.extend([0x86, 0xDD, 0x60, 0, 0, 0]);
        frame.extend(packet_bytes.to_be_bytes());
        frame.extend([protocol, 64]);
        frame.extend([0xFD, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        frame.extend([0xFD, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    } else {
        frame.extend([8, 0, 0x45, 0]);
        frame.extend((packet_bytes + 20).to_be_bytes());
        frame.extend([0, 1, 0x40, 0, 64, protocol, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2]);
        let sum = !Sum::of(&frame[14..34]).folded();
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    let checksum_start = frame.len();
    // The sum of the pseudo-header is used only when the frame is cut, and this frame is never cut.
    if is_udp {
        frame.extend([0, 9, 0, 9]);
        frame.extend(packet_bytes.to_be_bytes());
        frame.extend([0, 0]);
    } else {
        frame.extend([0, 9, 0, 9, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    }
    let header_bytes = frame.len();
    frame.resize(header_bytes + PAYLOAD_BYTES, 0);
    let header = VnetHeader {
        flags: offload::FLAG_NEEDS_CHECKSUM,
        gso_type: match (is_udp, is_ipv6) {
            (true, _) => offload::GSO_UDP_L4,
            (false, true) => offload::GSO_TCPV6,
            (false, false) => offload::GSO_TCPV4,
        },
        header_bytes: header_bytes as u16,
        segment_bytes: SEGMENT_BYTES,
        checksum_start: checksum_start as u16,
        checksum_offset: if is_udp { 6 } else { 16 },
    };
    queue.write_pieces(&[IoSlice::new(&header.to_bytes()), IoSlice::new(&frame)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_accepts_its_offloads_or_the_reason_is_reported() {
        if let Err(error) = std::fs::metadata("/dev/net/tun") {
            return println!(
                "not run: no TAP device can be made here (/dev/net/tun: {error}): `modprobe tun`"
            );
        }
        match Namespace::fresh() {
            Ok(workshop) => {
                let found = probe(&workshop);
                let refused = [found.takes_tcp, found.takes_udp].iter().filter(|taken| !**taken).count();
                assert_eq!(found.reasons.len(), refused, "{found:?}");
                assert!(
                    !found.reasons.iter().any(|reason| reason.contains("could not be tried")),
                    "{found:?}"
                );
            }
            Err(error) => println!("not run: no network namespace can be made here ({error}): run as root"),
        }
    }
}
