//! A port of the switch that is an interface: a TAP device, as a source and target of frames.

use std::io::IoSlice;
use std::rc::Rc;

use bywire_sys::Errno;
use bywire_sys::tap::Queue;

use crate::announced::Announced;
use crate::drops::Cause;
use crate::offload::{self, VnetHeader};
use crate::order::{Counts, NewInterface};
use crate::segment::Segmenter;
use crate::switch::SwitchPortId;

/// Refusals by the kernel after which superframes of that kind are no longer offered. A single refusal may be due to
/// an odd frame; several mean a broken offload.
const REFUSALS_MAX: u32 = 3;

/// One queue of a TAP device.
#[derive(Debug)]
pub struct PortQueue {
    /// The queue. The loop holds a second reference while it reads frames from the queue and delivers them elsewhere.
    pub queue: Rc<Queue>,
    /// The switch port without room that holds this queue back. No frames are read from the queue until it is `None` again.
    pub held_back_by: Option<SwitchPortId>,
}

/// An interface, with the queues of its TAP device that this loop serves.
#[derive(Debug)]
pub struct TapPort {
    /// The queues, at least one.
    pub queues: Vec<PortQueue>,
    /// Its counters.
    pub counts: Counts,
    /// The announcement to other processes.
    pub announced: Announced,
    takes_tcp: bool,
    /// True when the kernel accepts UDP superframes for it. The other interfaces here have the same kernel.
    pub takes_udp: bool,
    tcp_refusals: u32,
    udp_refusals: u32,
}

impl TapPort {
    /// An interface with its first queue.
    pub fn new(queue: Queue, new: &NewInterface) -> Self {
        Self {
            queues: vec![PortQueue { queue: Rc::new(queue), held_back_by: None }],
            announced: Announced {
                label: new.label.clone(),
                mac: new.mac,
                mtu_bytes: new.mtu_bytes,
                addresses: Vec::new(),
            },
            counts: Counts { interface: new.interface, ..Counts::default() },
            takes_tcp: new.takes_tcp,
            takes_udp: new.takes_udp,
            tcp_refusals: 0,
            udp_refusals: 0,
        }
    }

    /// Adds a queue.
    pub fn add_queue(&mut self, queue: Queue) {
        self.queues.push(PortQueue { queue: Rc::new(queue), held_back_by: None });
    }

    /// The queue for frames from and to that switch port. The first queue serves interfaces of this process. The others serve the
    /// ports to other processes in turn. The kernel sends a flow by the queue on which it last received an answer.
    #[inline]
    pub fn queue_for(&self, port: SwitchPortId) -> usize {
        match self.queues.len() {
            0 | 1 => 0,
            _ if port.is_multiple_of(2) => 0,
            count => 1 + port / 2 % (count - 1),
        }
    }

    /// Counts a frame from the interface.
    #[inline]
    pub fn sends(&mut self, length_bytes: usize, is_superframe: bool) {
        self.counts.sent.count(length_bytes, is_superframe);
    }

    /// Delivers a header and frame from another port to the interface. Both must be in private memory. A superframe
    /// that the interface's kernel does not accept is cut into segments in `scratch`.
    #[inline]
    pub fn deliver(
        &mut self,
        from: SwitchPortId,
        header: [u8; VnetHeader::BYTES],
        frame: &[u8],
        scratch: &mut [u8],
    ) {
        let gso_type = header[1] & !offload::GSO_ECN;
        let queue_index = self.queue_for(from);
        if gso_type != offload::GSO_NONE && !self.takes(gso_type) {
            return self.deliver_cut(queue_index, header, frame, scratch);
        }
        match self.queues[queue_index].queue.write_pieces(&[IoSlice::new(&header), IoSlice::new(frame)]) {
            Ok(()) => self.receives(frame.len(), gso_type != offload::GSO_NONE),
            Err(Errno::INVAL) if gso_type != offload::GSO_NONE => {
                self.note_refusal(gso_type);
                self.deliver_cut(queue_index, header, frame, scratch);
            }
            Err(error) => self.counts.drops.count(cause_of(error)),
        }
    }

    fn takes(&self, gso_type: u8) -> bool {
        if gso_type == offload::GSO_UDP_L4 { self.takes_udp } else { self.takes_tcp }
    }

    fn receives(&mut self, length_bytes: usize, is_superframe: bool) {
        self.counts.received.count(length_bytes, is_superframe);
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

    /// Cuts a superframe into the frames that a wire would carry, and delivers those.
    #[cold]
    fn deliver_cut(
        &mut self,
        queue_index: usize,
        header: [u8; VnetHeader::BYTES],
        frame: &[u8],
        scratch: &mut [u8],
    ) {
        let described = offload::describe(VnetHeader::from_bytes(header), frame);
        let segments = described.and_then(|descriptor| Segmenter::new(descriptor, frame));
        let Ok(mut segments) = segments else { return self.counts.drops.count(Cause::TargetRefused) };
        self.counts.cut += 1;
        scratch[..VnetHeader::BYTES].fill(0);
        while let Some(segment) = segments.next_segment() {
            let Some(length) = segment.write(&mut scratch[VnetHeader::BYTES..]) else { return };
            match self.queues[queue_index].queue.write(&scratch[..VnetHeader::BYTES + length]) {
                Ok(()) => self.receives(length, false),
                Err(error) => self.counts.drops.count(cause_of(error)),
            }
        }
    }
}

/// Why a TAP device did not accept a frame.
fn cause_of(error: Errno) -> Cause {
    match error {
        Errno::AGAIN | Errno::NOMEM | Errno::NOBUFS | Errno::INTR => Cause::TargetFull,
        Errno::INVAL => Cause::TargetRefused,
        _ => Cause::TargetDown,
    }
}
