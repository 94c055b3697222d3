//! RMA: reading and writing memory that other ends have registered, without I/O.
//!
//! ```text
//! short write   write with its payload ──►  checked, copied     ◄── acknowledgement of several writes
//! long write    request ──►  checked, exposed  ◄── grant; put or pieces ──►  (pieces: ◄── written)
//! read          read ──►  checked  ◄── data, in one frame, in pieces, or by a put
//! ```
//!
//! - The memory is the driver's: [`Memory`] checks each access, and writes. The bytes of reads are read by the driver, when
//!   it carries a frame whose source is [`Source::Registered`].
//! - An access that is not permitted is refused, and nothing else happens. A frame that breaks a rule is a [`Violation`],
//!   and the driver then ends the connection.
//! - Operations of one end have no order, neither among themselves nor with messages.
//! - Memory can be withdrawn at any time ([`Rma::withdraw`]). What is under way for it is refused, or dropped when it arrives. A put that
//!   reads it goes on until [`Rma::put_done`].
//!
//! [`Violation`]: crate::Violation

mod counts;
mod ending;
pub mod head;
mod incoming;
mod limits;
mod operation;
mod outgoing;
mod peer;

use std::collections::VecDeque;

use self::head::Head;
use self::peer::{Peer, Queued, Reply, State};
use crate::head::LENGTH_MAX;
use crate::operation::{Refused, Sink};
use crate::slab::{PeerId, Slab};

pub use counts::Counts;
pub use limits::Limits;
pub use operation::{Access, AccessId, Denied, Event, Failure, Frame, Memory, Note, Place, PutId, Source};

/// Notes of puts for writes begin with this byte, and those of puts for reads with the other one.
const NOTE_OF_WRITE: u8 = 1;
const NOTE_OF_READ: u8 = 2;

/// An operation of this end whose target sends an answer: every one except short writes, which are acknowledged together.
#[derive(Debug)]
enum Operation<W, R> {
    Write { peer: PeerId, write: W, length: u64, state: WriteState },
    Read { peer: PeerId, read: R, state: ReadState },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteState {
    /// The request has left.
    Requested,
    /// The payload may leave: by a put into this region, or in pieces.
    Granted { access: u64, region: Option<u64>, done: u64 },
    /// The link puts.
    Putting,
    /// All pieces have left.
    Sent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadState {
    /// A put is expected.
    Put,
    /// Pieces are expected. `rest` bytes have not arrived yet.
    Pieces { rest: u64 },
}

/// An operation of a peer that is under way.
#[derive(Debug)]
struct Served {
    peer: PeerId,
    /// The peer's number for it.
    operation: u64,
    place: Place,
    data: Option<u64>,
    state: ServedState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServedState {
    /// A write: the driver has to expose the place.
    Exposing,
    /// A write: a put is expected.
    Put,
    /// A write: pieces are expected. The first `done` bytes have arrived.
    Pieces { done: u64 },
    /// A read: the data are to leave, by a put into this region or in pieces.
    Answering { region: Option<u64>, done: u64 },
    /// A read: the link puts.
    Putting,
}

/// One end of RMA. `W` and `R` are the program's handles of writes and reads.
#[derive(Debug)]
pub struct Rma<W, R> {
    limits: Limits,
    peers: Slab<Peer<W, R>>,
    /// Peers that have something to transmit.
    ready: VecDeque<PeerId>,
    operations: Slab<Operation<W, R>>,
    served: Slab<Served>,
    /// Reads of peers that the link puts.
    puts_of_reads: u32,
    /// Peers whose reads wait until the link may put one more.
    waiting: VecDeque<PeerId>,
    events: VecDeque<Event<W, R>>,
    /// Operations whose events have not been taken.
    begun: usize,
    counts: Counts,
}

impl<W, R: Sink> Rma<W, R> {
    /// An end without peers.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            peers: Slab::new(),
            ready: VecDeque::new(),
            operations: Slab::new(),
            served: Slab::new(),
            puts_of_reads: 0,
            waiting: VecDeque::new(),
            events: VecDeque::new(),
            begun: 0,
            counts: Counts::default(),
        }
    }

    /// Adds a peer without a connection. Operations with it wait until [`Rma::connected`].
    ///
    /// # Errors
    /// [`Refused::Full`].
    pub fn add_peer(&mut self) -> Result<PeerId, Refused> {
        if self.peers.len() >= self.limits.peers {
            return Err(Refused::Full);
        }
        Ok(PeerId(self.peers.insert(Peer::new())))
    }

    /// The connection to a peer is there. Its frames have at most `fragment_bytes`, heads included, and payloads of at most that
    /// less [`head::HEAD_BYTES_MAX`].
    ///
    /// # Panics
    /// If frames have no room for a head and a byte.
    pub fn connected(&mut self, peer: PeerId, fragment_bytes: usize) {
        assert!(fragment_bytes > head::HEAD_BYTES_MAX, "frames of {fragment_bytes} bytes are too short");
        let Some(state) = self.peers.value_mut(peer.0).filter(|known| known.state == State::Connecting)
        else {
            return;
        };
        state.state = State::Connected { fragment_bytes };
        self.make_ready(peer);
    }

    /// Begins to write to memory of a peer. The payload is as long as the place.
    ///
    /// # Errors
    /// The reason, with the handle.
    pub fn write(
        &mut self,
        peer: PeerId,
        place: Place,
        data: Option<u64>,
        write: W,
    ) -> Result<(), (Refused, W)> {
        if let Some(reason) = self.refusal(peer, place) {
            return Err((reason, write));
        }
        self.begin(peer, Queued::Write { place, data, write });
        Ok(())
    }

    /// Begins to read memory of a peer. With `region`, the peer puts into this region of the link, from its beginning on.
    /// Without one, it sends what is written into the handle.
    ///
    /// # Errors
    /// The reason, with the handle.
    pub fn read(
        &mut self,
        peer: PeerId,
        place: Place,
        region: Option<u64>,
        read: R,
    ) -> Result<(), (Refused, R)> {
        if let Some(reason) = self.refusal(peer, place) {
            return Err((reason, read));
        }
        self.begin(peer, Queued::Read { place, region, read });
        Ok(())
    }

    fn refusal(&self, peer: PeerId, place: Place) -> Option<Refused> {
        let Some(target) = self.peers.value(peer.0) else { return Some(Refused::UnknownPeer) };
        match target.state {
            State::Ended => Some(Refused::Ended),
            _ if place.length > LENGTH_MAX => Some(Refused::TooLong),
            _ if self.begun >= self.limits.operations => Some(Refused::Full),
            _ => None,
        }
    }

    fn begin(&mut self, peer: PeerId, queued: Queued<W, R>) {
        self.begun += 1;
        if let Some(target) = self.peers.value_mut(peer.0) {
            target.queued.push_back(queued);
        }
        self.make_ready(peer);
    }

    /// Answers [`Event::Expose`], with the region of the link that is the place, or `None` to get pieces. The result says
    /// whether the write still waits for it.
    pub fn grant(&mut self, access: AccessId, region: Option<u64>) -> bool {
        let waits = |served: &&mut Served| served.state == ServedState::Exposing;
        let Some(served) = self.served.value_mut(access.0).filter(waits) else { return false };
        served.state = match region {
            Some(_) => ServedState::Put,
            None => ServedState::Pieces { done: 0 },
        };
        let (peer, operation) = (served.peer, served.operation);
        self.counts.grants_of_puts += u64::from(region.is_some());
        self.counts.grants_of_pieces += u64::from(region.is_none());
        self.reply(peer, Reply::Head(Head::Grant { operation, access: access.0, region }));
        true
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event<W, R>> {
        let event = self.events.pop_front()?;
        match event {
            Event::Written { .. }
            | Event::WriteFailed { .. }
            | Event::Read { .. }
            | Event::ReadFailed { .. } => self.begun -= 1,
            Event::Expose { .. } | Event::Withdraw { .. } | Event::Accessed { .. } => {}
        }
        Some(event)
    }

    /// A peer that has something to transmit. It is named once, until it has something more.
    pub fn next_ready(&mut self) -> Option<PeerId> {
        while let Some(peer) = self.ready.pop_front() {
            if let Some(state) = self.peers.value_mut(peer.0) {
                state.is_ready = false;
                return Some(peer);
            }
        }
        None
    }

    /// Is there neither an event nor a peer to transmit to?
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.events.is_empty() && self.ready.is_empty()
    }

    /// The number of operations whose events have not been taken.
    pub fn under_way(&self) -> usize {
        self.begun
    }

    /// Does a put of the link read the memory with this key?
    pub fn is_being_put(&self, key: u64) -> bool {
        !self.served.keys(|served| served.place.key == key && served.state == ServedState::Putting).is_empty()
    }

    /// The peers to which a put of the link sends the memory with this key.
    pub fn peers_that_read(&self, key: u64) -> Vec<PeerId> {
        let puts = |served: &Served| served.place.key == key && served.state == ServedState::Putting;
        let served = self.served.keys(puts).into_iter().filter_map(|key| self.served.value(key));
        served.map(|served| served.peer).collect()
    }

    /// The transitions so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    fn reply(&mut self, peer: PeerId, reply: Reply) {
        if let Some(state) = self.peers.value_mut(peer.0).filter(|state| state.is_connected()) {
            state.replies.push_back(reply);
            self.make_ready(peer);
        }
    }

    /// A peer waits until the link may put one more for its reads.
    fn wait_for_put(&mut self, peer: PeerId) {
        let waits = |state: &&mut Peer<W, R>| !state.is_waiting && !state.answering.is_empty();
        if let Some(state) = self.peers.value_mut(peer.0).filter(waits) {
            state.is_waiting = true;
            self.waiting.push_back(peer);
        }
    }

    /// If the link may put one more, the next peer that waits for it is ready. If that one does not use it, its
    /// transmission calls this again.
    fn wake_waiting(&mut self) {
        while self.puts_of_reads < self.limits.puts_of_reads
            && let Some(peer) = self.waiting.pop_front()
        {
            let Some(state) = self.peers.value_mut(peer.0) else { continue };
            state.is_waiting = false;
            let has_room = state.puts_of_reads < self.limits.puts_of_reads_of_peer;
            if state.is_connected() && has_room && !state.answering.is_empty() {
                self.make_ready(peer);
                break;
            }
        }
    }

    fn make_ready(&mut self, peer: PeerId) {
        let waits = |state: &&mut Peer<W, R>| state.is_connected() && !state.is_ready;
        if let Some(state) = self.peers.value_mut(peer.0).filter(waits) {
            state.is_ready = true;
            self.ready.push_back(peer);
        }
    }
}
