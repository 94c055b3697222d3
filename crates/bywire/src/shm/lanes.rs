//! The lanes of both directions to one peer of this machine, in shared memory, and how the peer is woken.

use bywire_ring::doorbell;
use bywire_ring::geometry::{Geometry, INLINE_BYTES, LANES, LaneName};
use bywire_ring::header::{CHECKED, Header};
use bywire_ring::lane::{Consumer, Corrupt, Horizon, Producer, PushError};
use bywire_ring::memory::Shared;
use bywire_sys::socket::Socket;
use bywire_sys::wake;

use crate::message::error::DisconnectReason;
use crate::message::peer::Priority;
use crate::shm::handshake::Packet;
use crate::shm::record::{HEADED, RunningChecksum, STEP_BYTES, checksum, headed_checksum};

/// Both directions towards one peer. Nothing that the peer writes is trusted.
pub(crate) struct Lanes {
    /// The segment that we write.
    outbound: Shared,
    /// The segment that the peer writes.
    inbound: Shared,
    producers: [Producer; 3],
    consumers: [Consumer; 3],
    fragment_bytes: usize,
    /// The peer's own, as announced. Every longer message of the peer takes a posted buffer, and no other message
    /// does.
    peer_fragment_bytes: usize,
    integrity: bool,
    /// By lane: the check of what has been staged of the next fragment.
    staged_sums: [RunningChecksum; 3],
    socket: Socket,
    /// Set when the peer has ended and its last records are being taken: the consumers' positions at that time.
    horizons: Option<[Horizon; 3]>,
    page: Shared,
    doorbell: wake::Ringer,
    /// Is the peer woken by its doorbell, or by its socket?
    has_safe_doorbell: bool,
    ringer: doorbell::Ringer,
}

/// Everything that both ends have exchanged when a connection begins.
pub(crate) struct Ends {
    pub socket: Socket,
    pub outbound: Shared,
    pub inbound: Shared,
    pub page: Shared,
    pub doorbell: wake::Ringer,
    pub own_geometry: Geometry,
    pub peer_geometry: Geometry,
    pub integrity: bool,
    /// The peer's user.
    pub uid: u32,
}

pub(crate) fn lane_of(priority: Priority) -> LaneName {
    match priority {
        Priority::Low => LaneName::Low,
        Priority::High => LaneName::High,
    }
}

impl From<Corrupt> for DisconnectReason {
    fn from(_: Corrupt) -> Self {
        Self::Broken
    }
}

/// Turns a push that found no room into `false`, and a broken ring into the end of the connection.
#[inline(always)]
fn pushed(result: Result<(), PushError>) -> Result<bool, DisconnectReason> {
    match result {
        Ok(()) => Ok(true),
        Err(PushError::Full) => Ok(false),
        Err(PushError::Corrupt) => Err(DisconnectReason::Broken),
    }
}

impl Lanes {
    pub fn new(ends: Ends) -> Self {
        let Ends { socket, outbound, inbound, page, doorbell, own_geometry, peer_geometry, integrity, uid } =
            ends;
        Self {
            outbound,
            inbound,
            producers: LANES.map(|lane| Producer::new(own_geometry.lane(lane))),
            consumers: LANES.map(|lane| Consumer::new(peer_geometry.lane(lane))),
            fragment_bytes: own_geometry.fragment_bytes as usize,
            peer_fragment_bytes: peer_geometry.fragment_bytes as usize,
            integrity,
            staged_sums: [RunningChecksum::new(); 3],
            socket,
            horizons: None,
            page,
            doorbell,
            // Asked once. If this process becomes another user later, the peer could have held it up just as well
            // before.
            has_safe_doorbell: uid == bywire_sys::process::user() && wake::Doorbell::is_safe(),
            ringer: doorbell::Ringer::default(),
        }
    }

    /// The socket that the connection began with. It carries memory, wakes the peer if its doorbell is not safe, and
    /// reports its end.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// The longest payload of one record.
    pub fn fragment_bytes(&self) -> usize {
        self.fragment_bytes
    }

    /// The longest payload of one record of the peer, before its window is large.
    pub fn peer_fragment_bytes(&self) -> usize {
        self.peer_fragment_bytes
    }

    /// Are payloads checked?
    #[inline(always)]
    pub fn has_integrity(&self) -> bool {
        self.integrity
    }

    /// Publishes one record with a payload of up to a fragment. The payload is inline if it fits and no words are
    /// given. `false`: there is no room.
    #[inline(always)]
    pub fn push(
        &mut self,
        lane: LaneName,
        kind: u8,
        bytes: &[u8],
        words: &[u64],
    ) -> Result<bool, DisconnectReason> {
        let producer = &mut self.producers[lane as usize];
        let is_inline = bytes.len() <= INLINE_BYTES && words.is_empty();
        let (mut kind, mut check) = (kind, 0);
        if self.integrity {
            let length = if is_inline { 0 } else { bytes.len() };
            // Asked first, so that a full ring does not cost a checksum at every try.
            if !producer.has_room(&self.inbound, length)? {
                return Ok(false);
            }
            (kind, check) = (kind | CHECKED, checksum(bytes));
        }
        let header = Header { kind, length: bytes.len() as u16, check };
        let result = if is_inline {
            producer.push_short(&self.outbound, &self.inbound, header, bytes)
        } else {
            producer.push_bulk(&self.outbound, &self.inbound, header, words, bytes)
        };
        let done = pushed(result)?;
        if done {
            self.ring_for_records();
            if is_inline {
                self.producers[lane as usize].claim_ahead(&self.outbound, &self.inbound);
            }
        }
        Ok(done)
    }

    /// Publishes a message in two parts: `words` for its slot, and bytes for the bulk area. `false`: there is no room.
    pub fn push_headed(
        &mut self,
        lane: LaneName,
        words: &[u64; INLINE_BYTES / 8],
        bytes: &[u8],
    ) -> Result<bool, DisconnectReason> {
        let producer = &mut self.producers[lane as usize];
        let (mut kind, mut check) = (HEADED, 0);
        if self.integrity {
            // Asked first, so that a full ring does not cost a checksum at every try.
            if !producer.has_room(&self.inbound, bytes.len())? {
                return Ok(false);
            }
            (kind, check) = (kind | CHECKED, headed_checksum(words, bytes));
        }
        let header = Header { kind, length: bytes.len() as u16, check };
        let done = pushed(producer.push_bulk(&self.outbound, &self.inbound, header, words, bytes))?;
        if done {
            self.ring_for_records();
        }
        Ok(done)
    }

    /// Publishes one record that consists of words only.
    pub fn push_words(&mut self, lane: LaneName, kind: u8, words: &[u64]) -> Result<bool, DisconnectReason> {
        let header = Header { kind, length: 8 * words.len() as u16, check: 0 };
        let result = self.producers[lane as usize].push_inline(&self.outbound, &self.inbound, header, words);
        let done = pushed(result)?;
        if done {
            self.ring_for_records();
        }
        Ok(done)
    }

    /// Publishes one fragment in steps. A message of high priority may come first between two steps. `false`: the
    /// next call goes on. Others may write `piece` meanwhile: the check is that of the bytes that cross.
    pub fn push_fragment(
        &mut self,
        lane: LaneName,
        kind: u8,
        piece: &[u8],
        words: &[u64],
        may_pause: bool,
    ) -> Result<bool, DisconnectReason> {
        let is_whole = if self.integrity {
            self.stage_checked(lane, piece, may_pause)
        } else {
            let goes_on = || !may_pause || !is_urgent(&self.consumers, &self.inbound);
            let producer = &mut self.producers[lane as usize];
            producer.stage(&self.outbound, &self.inbound, piece, STEP_BYTES, goes_on)
        };
        match is_whole {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(error) => return pushed(Err(error)),
        }
        let sum = self.staged_sums[lane as usize];
        let (kind, check) = if self.integrity { (kind | CHECKED, sum.finish()) } else { (kind, 0) };
        let header = Header { kind, length: piece.len() as u16, check };
        self.producers[lane as usize].push_staged(&self.outbound, header, words, piece.len());
        self.ring_for_records();
        Ok(true)
    }

    /// Stages a fragment, or a part of it, and adds what was staged to its check. Each step is read once, into a copy.
    fn stage_checked(&mut self, lane: LaneName, piece: &[u8], may_pause: bool) -> Result<bool, PushError> {
        let producer = &mut self.producers[lane as usize];
        let sum = &mut self.staged_sums[lane as usize];
        let mut step = [0; STEP_BYTES];
        loop {
            let staged = producer.staged();
            if staged == 0 {
                *sum = RunningChecksum::new();
            }
            let source = &piece[staged..piece.len().min(staged + STEP_BYTES)];
            let step = &mut step[..source.len()];
            step.copy_from_slice(source);
            let is_whole = producer.stage_part(&self.outbound, &self.inbound, step, piece.len())?;
            sum.add(step);
            if is_whole || may_pause && is_urgent(&self.consumers, &self.inbound) {
                return Ok(is_whole);
            }
        }
    }

    /// Bytes of the next fragment that have been staged while it waits for something urgent.
    pub fn staged(&self, lane: LaneName) -> usize {
        self.producers[lane as usize].staged()
    }

    /// Records published so far.
    pub fn position(&self, lane: LaneName) -> u64 {
        self.producers[lane as usize].position()
    }

    /// The longest fragment that a lane takes now. It is longer once the bulk area is large.
    pub fn longest_fragment(&self, lane: LaneName) -> usize {
        self.producers[lane as usize].fragment_bytes()
    }

    /// Is there room for a record with `length` bytes in the bulk area?
    pub fn has_room(&mut self, lane: LaneName, length: usize) -> Result<bool, DisconnectReason> {
        Ok(self.producers[lane as usize].has_room(&self.inbound, length)?)
    }

    /// Records that the peer has consumed.
    pub fn consumed(&mut self, lane: LaneName) -> Result<u64, DisconnectReason> {
        Ok(self.producers[lane as usize].freed(&self.inbound)?)
    }

    /// The next record on a lane. After the peer's end, only a record that it had published by then.
    pub fn next_record(&self, lane: LaneName) -> Result<Option<Header>, DisconnectReason> {
        let consumer = &self.consumers[lane as usize];
        let is_in_time = |header: &Header| {
            self.horizons.is_none_or(|horizons| consumer.was_published(horizons[lane as usize], *header))
        };
        Ok(consumer.peek(&self.inbound)?.filter(is_in_time))
    }

    /// The next record on a lane, for use while the peer lives.
    #[inline(always)]
    pub fn peek(&self, lane: LaneName) -> Result<Option<Header>, Corrupt> {
        self.consumers[lane as usize].peek(&self.inbound)
    }

    /// Has a record been published on a lane? A broken lane counts: taking the record finds out.
    #[inline(always)]
    pub fn has_record(&self, lane: LaneName) -> bool {
        !matches!(self.consumers[lane as usize].peek(&self.inbound), Ok(None))
    }

    /// The words of the next record.
    #[inline(always)]
    pub fn words(&self, lane: LaneName) -> [u64; 7] {
        self.consumers[lane as usize].words(&self.inbound)
    }

    /// Copies a part of the next record's payload, which has `length` bytes, from `offset` on.
    pub fn read_part(&self, lane: LaneName, length: usize, offset: usize, target: &mut [u8]) {
        self.consumers[lane as usize].read_bulk_part(&self.inbound, length, offset, target);
    }

    /// The same for a payload with a check, to which the copied bytes are added. Others may write `target` meanwhile.
    pub fn read_checked_part(
        &self,
        lane: LaneName,
        length: usize,
        offset: usize,
        target: &mut [u8],
        sum: &mut RunningChecksum,
    ) {
        let mut step = [0; STEP_BYTES];
        let mut at = offset;
        for target in target.chunks_mut(STEP_BYTES) {
            let step = &mut step[..target.len()];
            self.read_part(lane, length, at, step);
            sum.add(step);
            target.copy_from_slice(step);
            at += step.len();
        }
    }

    /// Frees the record at the head of a lane.
    #[inline(always)]
    pub fn free(&mut self, lane: LaneName, header: Header) {
        if self.consumers[lane as usize].advance(&self.outbound, header) {
            self.ring_for_credit();
        }
    }

    /// Notes that the lane was found empty.
    #[inline(always)]
    pub fn pause(&mut self, lane: LaneName) {
        self.consumers[lane as usize].pause();
    }

    /// Prefetches the lines of later records.
    #[inline(always)]
    pub fn look_ahead(&self, lane: LaneName) {
        self.consumers[lane as usize].look_ahead(&self.inbound);
    }

    /// How often the bulk area of the low lane that we write has been filled.
    pub fn laps(&self) -> u64 {
        self.producers[LaneName::Low as usize].laps()
    }

    /// Moves the payloads of the low lane that we write to `memory`, from the next record on.
    pub fn move_outbound(&mut self, memory: Shared) {
        let offset = self.outbound.extend(memory);
        self.producers[LaneName::Low as usize].move_bulk(offset);
    }

    /// The same for the low lane that the peer writes.
    pub fn move_inbound(&mut self, memory: Shared) {
        let offset = self.inbound.extend(memory);
        self.consumers[LaneName::Low as usize].move_bulk(offset);
    }

    /// Has the peer's low lane moved?
    pub fn has_moved_inbound(&self) -> bool {
        self.inbound.is_extended()
    }

    /// All memory that the peer writes, in bytes.
    pub fn inbound_bytes(&self) -> usize {
        self.inbound.extended_bytes()
    }

    /// Is there a message of high priority?
    #[inline(always)]
    pub fn is_urgent(&self) -> bool {
        is_urgent(&self.consumers, &self.inbound)
    }

    /// Notes that the peer has ended: from now on, only records that it had published are taken.
    pub fn begin_draining(&mut self) {
        self.horizons = Some(std::array::from_fn(|lane| self.consumers[lane].horizon()));
    }

    /// Has the peer ended, with its last records being taken?
    pub fn is_draining(&self) -> bool {
        self.horizons.is_some()
    }

    #[inline(always)]
    fn ring_for_records(&mut self) {
        if self.ringer.must_ring_for_records(&self.page) {
            self.ring();
        }
    }

    #[inline(always)]
    fn ring_for_credit(&mut self) {
        if self.ringer.must_ring_for_credit(&self.page) {
            self.ring();
        }
    }

    #[cold]
    fn ring(&self) {
        // A doorbell is faster, but its owner can hold up the process that rings it, by a write from memory whose page
        // fault never ends. If the owner is our own user, that is no worse than what a debugger could do.
        if self.has_safe_doorbell {
            self.doorbell.ring();
        } else {
            // A full socket means that the peer has been woken often enough.
            let _ = self.socket.send(&Packet::Wake.to_bytes(), &[]);
        }
    }
}

/// Is there a message of high priority?
#[inline(always)]
fn is_urgent(consumers: &[Consumer; 3], inbound: &Shared) -> bool {
    !matches!(consumers[LaneName::High as usize].peek(inbound), Ok(None))
}
