//! An interface as the carrying loop sees it: where frames come from and go to.

use std::io::IoSlice;
use std::rc::Rc;

use bywire_sys::Errno;
use bywire_sys::tap::Queue;

use crate::drops::Cause;
use crate::fabric::Announced;
use crate::offload::{self, VnetHeader};
use crate::order::{Adoption, Counts};
use crate::segment::Segmenter;

/// Superframes refused by the kernel before no more are offered: one may have been odd, several are a broken offload.
const REFUSALS_MAX: u32 = 3;

/// One queue of an interface's TAP.
#[derive(Debug)]
pub struct Lane {
    /// The kernel's end; shared with whoever takes frames from it while they are delivered elsewhere.
    pub queue: Rc<Queue>,
    /// What has happened here.
    pub counts: Counts,
    /// How it is told to others.
    pub announced: Announced,
    takes_tcp: bool,
    /// Its kernel takes superframes of datagrams; those of its neighbours here are the same kernel.
    pub takes_udp: bool,
    tcp_refusals: u32,
    udp_refusals: u32,
}

impl Lane {
    /// Of a queue that was given into our care.
    pub fn new(queue: Queue, adoption: &Adoption) -> Self {
        Self {
            queue: Rc::new(queue),
            announced: Announced {
                label: adoption.label.clone(),
                mac: adoption.mac,
                mtu_bytes: adoption.mtu_bytes,
            },
            counts: Counts { lane: adoption.lane, ..Counts::default() },
            takes_tcp: adoption.takes_tcp,
            takes_udp: adoption.takes_udp,
            tcp_refusals: 0,
            udp_refusals: 0,
        }
    }

    /// Counts a frame that came from the interface.
    #[inline]
    pub fn sends(&mut self, length_bytes: usize, is_superframe: bool) {
        self.counts.sent.frames += 1;
        self.counts.sent.superframes += u64::from(is_superframe);
        self.counts.sent.bytes += length_bytes as u64;
    }

    /// Hands a header and frame to the interface, both in memory of ours; whole where its kernel takes that, else in
    /// segments, for which `scratch` has room.
    #[inline]
    pub fn deliver(&mut self, header: [u8; VnetHeader::BYTES], frame: &[u8], scratch: &mut [u8]) {
        let gso_type = header[1] & !offload::GSO_ECN;
        if gso_type != offload::GSO_NONE && !self.takes(gso_type) {
            return self.deliver_cut(header, frame, scratch);
        }
        match self.queue.write_pieces(&[IoSlice::new(&header), IoSlice::new(frame)]) {
            Ok(()) => self.receives(frame.len(), gso_type != offload::GSO_NONE),
            Err(Errno::INVAL) if gso_type != offload::GSO_NONE => {
                self.note_refusal(gso_type);
                self.deliver_cut(header, frame, scratch);
            }
            Err(error) => self.counts.drops.count(cause_of(error)),
        }
    }

    fn takes(&self, gso_type: u8) -> bool {
        if gso_type == offload::GSO_UDP_L4 { self.takes_udp } else { self.takes_tcp }
    }

    fn receives(&mut self, length_bytes: usize, is_superframe: bool) {
        self.counts.received.frames += 1;
        self.counts.received.superframes += u64::from(is_superframe);
        self.counts.received.bytes += length_bytes as u64;
    }

    #[cold]
    fn note_refusal(&mut self, gso_type: u8) {
        let counts = &mut self.counts;
        let (refusals, takes, refused) = if gso_type == offload::GSO_UDP_L4 {
            (&mut self.udp_refusals, &mut self.takes_udp, &mut counts.refused_udp)
        } else {
            (&mut self.tcp_refusals, &mut self.takes_tcp, &mut counts.refused_tcp)
        };
        *refusals += 1;
        if *refusals >= REFUSALS_MAX {
            (*takes, *refused) = (false, true);
        }
    }

    /// Cuts a superframe into what a wire would carry.
    #[cold]
    fn deliver_cut(&mut self, header: [u8; VnetHeader::BYTES], frame: &[u8], scratch: &mut [u8]) {
        let described = offload::describe(VnetHeader::from_bytes(header), frame);
        let segments = described.and_then(|descriptor| Segmenter::new(descriptor, frame));
        let Ok(mut segments) = segments else { return self.counts.drops.count(Cause::TargetRefused) };
        self.counts.cut += 1;
        scratch[..VnetHeader::BYTES].fill(0);
        while let Some(segment) = segments.next_segment() {
            let Some(length) = segment.write(&mut scratch[VnetHeader::BYTES..]) else { return };
            match self.queue.write(&scratch[..VnetHeader::BYTES + length]) {
                Ok(()) => self.receives(length, false),
                Err(error) => self.counts.drops.count(cause_of(error)),
            }
        }
    }
}

/// Why a TAP did not take a frame.
fn cause_of(error: Errno) -> Cause {
    match error {
        Errno::AGAIN | Errno::NOMEM | Errno::NOBUFS | Errno::INTR => Cause::TargetFull,
        Errno::INVAL => Cause::TargetRefused,
        _ => Cause::TargetDown,
    }
}
