//! The pairing service's answers to offers of flows.

use bywire_pairing::protocol::{Packet, Verdict};
use bywire_ring::stream::{SEGMENT_BYTES, Window};

use crate::datagram::flow::{RULES, state};
use crate::datagram::sockets;
use crate::memory::segment::{self, Files};
use crate::os::real;

/// Handles the answer to an offer, and owns the descriptors. The caller has the lock of the service's connection.
pub fn answered(packet: &Packet, [head, doorbell, page, rest]: [i32; 4]) {
    let files = Files { head, rest };
    for unused in [doorbell, page] {
        // SAFETY: received for this process alone; closing -1 does nothing.
        unsafe { real::close(unused) };
    }
    let Some((socket, slot)) = sockets::of_token(packet.token) else { return };
    let allowance = socket.allowance();
    let both = socket.both();
    let Some(flow) = both.flow(slot) else { return };
    if !flow.is(state::WAITING) || sockets::token(socket.index, slot, flow) != packet.token {
        return;
    }
    match Verdict::of(packet.code) {
        Some(Verdict::Waiting) => {}
        Some(Verdict::Paired) => {
            let remote = segment::accept(&files);
            // SAFETY: mapped with this length, if it is not null.
            let is_sound = !remote.is_null() && RULES.is_ours(&unsafe { Window::new(remote, SEGMENT_BYTES) });
            match allowance.filter(|_| is_sound && !socket.is_left()) {
                Some(allowance) => flow.open(remote, allowance),
                None => {
                    if !remote.is_null() {
                        // SAFETY: mapped with this length above, and nobody else knows it.
                        unsafe { libc::munmap(remote.cast(), SEGMENT_BYTES) };
                    }
                    flow.end();
                }
            }
        }
        // The next datagrams offer it again.
        _ => flow.free(false),
    }
}
