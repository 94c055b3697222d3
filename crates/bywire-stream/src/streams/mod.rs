//! The machine: what the caller calls, and the state of all streams.

mod receiving;
mod transmitting;

use std::collections::VecDeque;

use crate::counts::Counts;
use crate::direction::Announce;
use crate::event::{CallError, OpenError};
use crate::id::{Lane, Side, StreamId};
use crate::limits::{DESCRIPTION_BYTES_MAX, HIGH_BYTES_MAX, Limits, Pool, SHORT_BYTES_MAX, TURN_BYTES};
use crate::planted::{self, Bug};
use crate::record::{Refusal, ResetReason};
use crate::stream::{Phase, Stream};

/// The streams between two engines, as one of them has them. The crate's documentation shows how to drive it.
#[derive(Debug)]
pub struct Streams {
    side: Side,
    limits: Limits,
    /// The bounds that the peer grants, once it has told them.
    peer: Option<PeerLimits>,
    /// By [`StreamId::slot`].
    slots: Vec<Stream>,
    /// Slots of this end's streams that may be used again.
    vacant: Vec<usize>,
    /// The number of slots that each end's streams have used so far.
    used: [usize; 2],
    /// Streams that each end has opened and the other has not answered.
    unanswered: [u32; 2],
    pool: Pool,
    /// Streams with records for the high lane.
    control: VecDeque<StreamId>,
    /// Streams whose credit leaves once something else does.
    lazy: VecDeque<StreamId>,
    /// Streams with bytes for each lane, and what was counted of them when they came here.
    data: [VecDeque<(StreamId, u64)>; 2],
    /// The counted bytes of the high lane.
    high_bytes: u64,
    /// Messages by lane: sent, processed by the peer, processed here.
    sent: [u64; 2],
    acknowledged: [u64; 2],
    processed: [u64; 2],
    /// Messages of the low lane that wait for one of the high lane, here.
    held: VecDeque<Box<[u8]>>,
    held_bytes: u64,
    /// The last message of the high lane for which one of the low lane may have to wait at the peer.
    awaited: u64,
    /// Bytes that were sent by the low lane since such a message may be waiting.
    early_bytes: u64,
    must_introduce: bool,
    must_acknowledge: bool,
    closing: Option<ResetReason>,
    is_over: bool,
    counts: Counts,
}

/// The bounds that the peer grants.
#[derive(Clone, Copy, Debug)]
struct PeerLimits {
    streams_max: u32,
    opens_max: u32,
    early_bytes_max: u32,
}

/// How far a stream has come. All are offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// All bytes before it have left.
    pub sent: u64,
    /// The peer has drained all bytes before it.
    pub drained: u64,
    /// All bytes before it have arrived.
    pub received: u64,
    /// The peer may send bytes before it.
    pub granted: u64,
    /// Whether nothing more of this end's direction will be sent.
    pub is_sent: bool,
    /// Whether both directions have ended, so that the caller may call [`Streams::close`].
    pub is_over: bool,
}

impl Streams {
    /// A new connection without streams.
    ///
    /// # Panics
    /// If the limits contradict each other: see [`Limits`].
    pub fn new(side: Side, limits: Limits) -> Self {
        assert!(limits.early_bytes_max >= crate::limits::EARLY_BYTES_MIN, "see Limits::early_bytes_max");
        assert!(limits.streams_max < 1 << 30, "Limits::streams_max is below 2^30");
        Self {
            side,
            limits,
            peer: None,
            slots: Vec::new(),
            vacant: Vec::new(),
            used: [0; 2],
            unanswered: [0; 2],
            pool: Pool::new(&limits),
            control: VecDeque::new(),
            lazy: VecDeque::new(),
            data: [VecDeque::new(), VecDeque::new()],
            high_bytes: 0,
            sent: [0; 2],
            acknowledged: [0; 2],
            processed: [0; 2],
            held: VecDeque::new(),
            held_bytes: 0,
            awaited: 0,
            early_bytes: 0,
            must_introduce: true,
            must_acknowledge: false,
            closing: None,
            is_over: false,
            counts: Counts::default(),
        }
    }

    /// Opens a stream. `description` is for the peer's caller, and `room` says how many bytes of the peer's direction this
    /// caller can store.
    ///
    /// # Errors
    /// [`OpenError`]. After [`OpenError::Pending`] and [`OpenError::Full`] a later attempt may succeed.
    pub fn open(&mut self, description: &[u8], room: u64) -> Result<StreamId, OpenError> {
        if self.is_over() {
            return Err(OpenError::Ended);
        }
        let peer = self.peer.ok_or(OpenError::NotReady)?;
        if description.len() > DESCRIPTION_BYTES_MAX {
            return Err(OpenError::TooLong);
        }
        if self.unanswered[self.side as usize] >= peer.opens_max {
            return Err(OpenError::Pending);
        }
        let slot = self.vacate(peer).ok_or(OpenError::Full)?;
        self.counts.opened += 1;
        self.unanswered[self.side as usize] += 1;
        let stream = &mut self.slots[slot];
        stream.phase = Phase::Opening;
        stream.incoming.open(&mut self.pool, room);
        stream.control.open = Some(description.into());
        let id = stream.id;
        self.list_control(slot);
        Ok(id)
    }

    /// Accepts a stream of the peer. `room` says how many bytes of the peer's direction this caller can store.
    ///
    /// # Errors
    /// [`CallError`], also if the stream has been answered.
    pub fn accept(&mut self, stream: StreamId, room: u64) -> Result<(), CallError> {
        let slot = self.offered(stream)?;
        self.unanswered[self.side.other() as usize] -= 1;
        let state = &mut self.slots[slot];
        state.phase = Phase::Open;
        state.incoming.open(&mut self.pool, room);
        state.control.answer = Some(Ok(()));
        self.list_control(slot);
        Ok(())
    }

    /// Refuses a stream of the peer, which is gone then.
    ///
    /// # Errors
    /// [`CallError`], also if the stream has been answered.
    pub fn refuse(&mut self, stream: StreamId, reason: Refusal) -> Result<(), CallError> {
        let slot = self.offered(stream)?;
        self.slots[slot].control.answer = Some(Err(reason));
        self.finish(slot);
        self.list_control(slot);
        Ok(())
    }

    /// This end's direction leaves the kernel at an offset. From there on its bytes are queued here.
    ///
    /// # Errors
    /// [`CallError`]: a direction starts once, and not after it was given back.
    pub fn start(&mut self, stream: StreamId, offset: u64) -> Result<(), CallError> {
        let slot = self.opened(stream)?;
        let state = &mut self.slots[slot];
        state.outgoing.start(offset)?;
        state.control.start = true;
        self.list_control(slot);
        Ok(())
    }

    /// The caller has all bytes of this end's direction before an offset. It keeps those that have not been sent where the
    /// closure of [`Streams::transmit`] finds them.
    ///
    /// # Errors
    /// [`CallError`], if the direction has not started or has ended, or the offset is lower than an earlier one.
    pub fn queue(&mut self, stream: StreamId, end: u64) -> Result<(), CallError> {
        let slot = self.opened(stream)?;
        self.slots[slot].outgoing.queue(end)?;
        self.list_data(slot);
        Ok(())
    }

    /// This end's direction ends behind what is queued.
    ///
    /// # Errors
    /// [`CallError`], if the direction has not started, has ended, or the peer has asked for its return.
    pub fn half(&mut self, stream: StreamId) -> Result<(), CallError> {
        let slot = self.opened(stream)?;
        self.slots[slot].outgoing.half()?;
        self.list_data(slot);
        Ok(())
    }

    /// This end's direction returns to the kernel at an offset, for good. What is queued behind it is not sent. A direction
    /// that has not started stays in the kernel: its offset is 0.
    ///
    /// If the peer has asked for the return ([`crate::Event::BackAsked`]), the offset is at least the one that it has named, and
    /// at most what is queued: the peer takes the bytes up to there. A [`Streams::half`] that has not left before is void.
    /// Unasked, the offset is at least what has been sent.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn back(&mut self, stream: StreamId, offset: u64) -> Result<(), CallError> {
        let slot = self.opened(stream)?;
        self.slots[slot].outgoing.back(offset)?;
        self.list_data(slot);
        Ok(())
    }

    /// The caller has drained all bytes of the peer's direction before an offset, and can store `room` bytes from there on,
    /// including those that have arrived.
    ///
    /// # Errors
    /// [`CallError`], if the direction has not started, or the offset is lower than an earlier one or higher than what may be
    /// drained: between [`Streams::ask_back`] and the answer nothing may.
    pub fn drain(&mut self, stream: StreamId, offset: u64, room: u64) -> Result<(), CallError> {
        let slot = self.opened(stream)?;
        let state = &mut self.slots[slot];
        match state.incoming.drain(offset, room, &mut self.pool)? {
            Announce::Never => {}
            Announce::Lazily if state.is_lazy => {}
            Announce::Lazily => {
                state.is_lazy = true;
                self.lazy.push_back(stream);
            }
            Announce::Now => {
                state.control.credit = true;
                self.list_control(slot);
            }
        }
        Ok(())
    }

    /// The caller reads no more, and wants the peer's direction to return to the kernel. [`crate::Event::Back`] or
    /// [`crate::Event::Half`] answers. The result is the offset up to which bytes were drained.
    ///
    /// # Errors
    /// [`CallError`], if the direction has ended or was asked for before.
    pub fn ask_back(&mut self, stream: StreamId) -> Result<u64, CallError> {
        let slot = self.opened(stream)?;
        let state = &mut self.slots[slot];
        let offset = state.incoming.ask_back()?;
        state.control.return_from = Some(offset);
        self.list_control(slot);
        Ok(offset)
    }

    /// Ends a stream at once, in any state. What is queued is not sent, and nothing more of it is reported.
    ///
    /// # Errors
    /// [`CallError::Gone`].
    pub fn reset(&mut self, stream: StreamId, reason: ResetReason) -> Result<(), CallError> {
        let slot = self.known(stream)?;
        let control = &mut self.slots[slot].control;
        (control.answer, control.start, control.credit, control.return_from) = (None, false, false, None);
        control.reset = Some(reason);
        self.finish(slot);
        self.list_control(slot);
        Ok(())
    }

    /// The caller is done with a stream whose directions have both ended. Nothing more of it is reported.
    ///
    /// # Errors
    /// [`CallError::State`], if a direction has not ended: reset the stream, or wait.
    pub fn close(&mut self, stream: StreamId) -> Result<(), CallError> {
        let slot = self.opened(stream)?;
        let state = &mut self.slots[slot];
        if !state.is_over() {
            return Err(CallError::State);
        }
        state.control.credit |= state.incoming.has_news();
        self.finish(slot);
        self.list_control(slot);
        self.list_data(slot);
        Ok(())
    }

    /// Ends the whole connection: all streams are lost. The next message of the high lane is the last, and tells the peer.
    pub fn shut_down(&mut self, reason: ResetReason) {
        self.closing.get_or_insert(reason);
    }

    /// Lets the next message of the high lane announce everything that readers have drained. Otherwise the last bytes of a
    /// burst, less than half a window, are announced only with a message that leaves anyway. Call it before a sleep, where the
    /// peer's writers keep bytes until they are drained: with less room than half a window they wait for it.
    pub fn flush(&mut self) {
        while let Some(id) = self.lazy.pop_front() {
            let Some(slot) = self.find(id) else { continue };
            self.slots[slot].is_lazy = false;
            if self.slots[slot].phase == Phase::Open {
                self.slots[slot].control.credit = true;
                self.list_control(slot);
            }
        }
    }

    /// Returns whether the connection has ended: by a violation, by the peer, or by [`Streams::shut_down`]. Every call is
    /// refused then. The last message may still have to leave.
    pub fn is_over(&self) -> bool {
        self.is_over || self.closing.is_some()
    }

    /// The streams that the caller has to know of: neither closed nor reset nor refused. They are lost when the connection is.
    /// It looks at every slot.
    pub fn live(&self) -> impl Iterator<Item = StreamId> {
        let is_live = |stream: &&Stream| !matches!(stream.phase, Phase::Vacant | Phase::Finished);
        self.slots.iter().filter(is_live).map(|stream| stream.id)
    }

    /// How far a stream has come, or `None` if it is gone.
    pub fn progress(&self, stream: StreamId) -> Option<Progress> {
        let state = &self.slots[self.find(stream)?];
        (state.phase != Phase::Finished).then(|| Progress {
            sent: state.outgoing.sent(),
            drained: state.outgoing.drained(),
            received: state.incoming.received(),
            granted: state.incoming.granted(),
            is_sent: state.outgoing.is_over(),
            is_over: state.is_over(),
        })
    }

    /// Slots that have a stream, also one that is closed here while the peer is not done with it. It looks at every slot.
    pub fn occupied(&self) -> usize {
        self.slots.iter().filter(|stream| stream.phase != Phase::Vacant).count()
    }

    /// Credit of all streams beyond what each of them can always have, in bytes. At most half of [`Limits::bytes_max`].
    pub fn shared_credit(&self) -> u64 {
        self.pool.used()
    }

    /// The transitions so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// A slot for a stream of this end.
    fn vacate(&mut self, peer: PeerLimits) -> Option<usize> {
        if let Some(slot) = self.vacant.pop() {
            self.counts.reused += 1;
            self.slots[slot].renew();
            return Some(slot);
        }
        let index = self.used[self.side as usize];
        if index >= peer.streams_max.min(self.limits.streams_max) as usize {
            return None;
        }
        self.used[self.side as usize] += 1;
        let slot = index * 2 + self.side as usize;
        self.extend(slot);
        Some(slot)
    }

    /// There are slots up to this one.
    fn extend(&mut self, slot: usize) {
        let first = self.slots.len();
        self.slots.extend((first..=slot).map(|slot| Stream::vacant(StreamId::new(slot, 0))));
    }

    fn find(&self, id: StreamId) -> Option<usize> {
        let stream = self.slots.get(id.slot())?;
        (stream.id == id && stream.phase != Phase::Vacant).then_some(id.slot())
    }

    /// The slot of a stream that the caller may name.
    fn known(&self, id: StreamId) -> Result<usize, CallError> {
        let slot = self.find(id).filter(|_| !self.is_over()).ok_or(CallError::Gone)?;
        if self.slots[slot].phase == Phase::Finished { Err(CallError::Gone) } else { Ok(slot) }
    }

    fn opened(&self, id: StreamId) -> Result<usize, CallError> {
        let slot = self.known(id)?;
        if self.slots[slot].phase == Phase::Open { Ok(slot) } else { Err(CallError::State) }
    }

    /// The slot of a stream that the caller answers now.
    fn offered(&self, id: StreamId) -> Result<usize, CallError> {
        let slot = self.known(id)?;
        if self.slots[slot].phase == Phase::Offered { Ok(slot) } else { Err(CallError::State) }
    }

    /// The caller has nothing more to do with a stream.
    fn finish(&mut self, slot: usize) {
        let stream = &mut self.slots[slot];
        if matches!(stream.phase, Phase::Opening | Phase::Offered) {
            self.unanswered[stream.id.opener() as usize] -= 1;
        }
        stream.phase = Phase::Finished;
        if !planted::is(Bug::PoolLeaks) {
            self.pool.release(stream.incoming.window(), 0);
        }
    }

    /// Both ends are done with a stream.
    fn free(&mut self, slot: usize) {
        let id = self.slots[slot].id;
        self.slots[slot].phase = Phase::Vacant;
        // A slot whose generations are used up stays empty.
        if id.opener() == self.side && id.generation() < u32::MAX {
            self.vacant.push(slot);
        }
    }

    /// The stream has a record for the high lane.
    fn list_control(&mut self, slot: usize) {
        let stream = &mut self.slots[slot];
        if !stream.is_controlled && !stream.control.is_empty() {
            stream.is_controlled = true;
            self.control.push_back(stream.id);
        }
    }

    /// The stream goes to the queue of a lane if it has bytes, an end or its last record to send.
    fn list_data(&mut self, slot: usize) {
        let stream = &mut self.slots[slot];
        if stream.lane.is_some() || !stream.has_data(stream.id.opener() == self.side) {
            return;
        }
        let unsent = if stream.phase == Phase::Open { stream.outgoing.unsent() } else { 0 };
        let is_idle = stream.last[Lane::Low as usize] <= self.acknowledged[Lane::Low as usize]
            || planted::is(Bug::LaneChangedEarly);
        let is_short = unsent <= SHORT_BYTES_MAX && self.high_bytes + unsent <= HIGH_BYTES_MAX;
        // Bytes that follow others of the low lane would overtake them on the high one.
        let (lane, counted) = if is_idle && is_short { (Lane::High, unsent) } else { (Lane::Low, 0) };
        self.high_bytes += counted;
        stream.lane = Some(lane);
        stream.turn_bytes = TURN_BYTES;
        self.data[lane as usize].push_back((stream.id, counted));
    }
}
