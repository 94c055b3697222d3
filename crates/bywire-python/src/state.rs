//! The state behind a port's lock: the port, and what has arrived and was not taken yet.
//!
//! No Python code runs under the lock, and nothing of Python is allocated or freed: a finalizer could call the port again.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use bywire::{
    Buffer, DisconnectReason, Event, Lent, Message, Payload, Peer, Port, Priority, SendError, TransferError,
    TransferId, spin,
};
use bywire_sys::wake::Eventfd;
use pyo3::prelude::*;

use crate::errors::Failure;
use crate::sleepers::{Ring, Sleepers};
use crate::view::View;

/// Arrivals that a port keeps while the program waits for others.
const KEPT_MAX: usize = 4096;
/// Ended connections whose reason is remembered.
const ENDED_MAX: usize = 1024;

impl Ring for Eventfd {
    fn ring(&self) {
        self.signal();
    }
}

/// Memory of Python that the library fills with a long message.
pub enum Posted {
    /// A new `bytearray` that no program has seen yet.
    Own(Py<PyAny>),
    /// The program's memory.
    Theirs(Py<PyAny>, View),
}

/// The bytes of a message.
pub enum Data {
    /// In the library's memory.
    Payload(Payload),
    /// At the beginning of memory that was posted.
    Posted(Posted, usize),
    /// In the memory of its sender.
    Lent(Lent),
}

/// Something that arrived for the program.
pub enum Arrival {
    /// A message or a datagram.
    Message { peer: Peer, priority: Priority, is_datagram: bool, data: Data },
    /// A peer has connected.
    Connected(Peer),
    /// A peer is gone. `is_ours`: this port had connected to it.
    Disconnected { peer: Peer, reason: DisconnectReason, is_ours: bool },
    /// A peer has put data into a region, with a note.
    Notified { peer: Peer, note: Payload },
}

impl Arrival {
    /// The peer that it is from.
    pub fn peer(&self) -> Peer {
        match self {
            Self::Message { peer, .. }
            | Self::Connected(peer)
            | Self::Disconnected { peer, .. }
            | Self::Notified { peer, .. } => *peer,
        }
    }
}

/// The outcome of a look at the port.
pub enum Look {
    /// An event.
    Event(Event),
    /// Something has moved on without an event, such as a part of a long message.
    Progress,
    Nothing,
}

/// The outcome of a transfer, shared with its `Transfer` object.
#[derive(Default)]
pub struct Outcome {
    /// `None` while it is under way.
    pub result: Option<Result<(), TransferError>>,
    /// The memory that it reads or fills.
    pub view: Option<View>,
}

/// The outcome of a transfer, which both its object and the port refer to.
pub type SharedOutcome = Arc<Mutex<Outcome>>;

/// Everything behind a port's lock.
pub struct State {
    /// `None` once the port is closed. Dropped first: the library uses memory of the other fields until then.
    pub port: Option<Port>,
    /// Arrivals in their order.
    pub kept: VecDeque<Arrival>,
    /// Long messages that wait for memory.
    pub needed: Vec<(Priority, u64)>,
    /// Transfers that are complete. They may own memory of Python, so the next thread without the lock drops them.
    pub finished: Vec<SharedOutcome>,
    /// The threads and event loops that sleep until something arrives.
    pub sleepers: Sleepers<Eventfd>,
    /// Peers that this port has connected to.
    pub ours: HashSet<Peer>,
    ended: VecDeque<(Peer, DisconnectReason)>,
    transfers: HashMap<TransferId, SharedOutcome>,
    posted: HashMap<usize, Posted>,
    /// Memory of regions, until they are revoked.
    pub regions: HashMap<u64, View>,
}

impl State {
    /// The state of a port that was opened just now.
    pub fn new(port: Port) -> Self {
        Self::empty(Some(port))
    }

    fn empty(port: Option<Port>) -> Self {
        Self {
            port,
            kept: VecDeque::new(),
            needed: Vec::new(),
            finished: Vec::new(),
            sleepers: Sleepers::new(),
            ours: HashSet::new(),
            ended: VecDeque::new(),
            transfers: HashMap::new(),
            posted: HashMap::new(),
            regions: HashMap::new(),
        }
    }

    /// Returns whether something has to be done without the lock, attached to the interpreter.
    pub fn needs_interpreter(&self) -> bool {
        !self.needed.is_empty() || !self.finished.is_empty()
    }

    /// Takes everything out of a port that closes. The parts may own memory of Python.
    pub fn take_all(&mut self) -> Self {
        let mut taken = std::mem::replace(self, Self::empty(None));
        std::mem::swap(&mut self.sleepers, &mut taken.sleepers);
        taken
    }

    /// The port.
    ///
    /// # Errors
    /// It is closed.
    pub fn port(&mut self) -> Result<&mut Port, Failure> {
        self.port.as_mut().ok_or_else(Failure::closed)
    }

    /// Looks once for an event of the port. Progress ends the look, as a long message would keep the interpreter for long.
    ///
    /// # Errors
    /// The port is closed.
    pub fn poll(&mut self) -> Result<Look, Failure> {
        let look = self.look(Port::poll)?;
        if matches!(look, Look::Progress) {
            self.sleepers.note_news();
            return Ok(Look::Nothing);
        }
        Ok(look)
    }

    /// Looks for an event as long as a wait spins before it sleeps, but not while a long message waits for memory.
    ///
    /// # Errors
    /// The port is closed.
    pub fn spin(&mut self) -> Result<Look, Failure> {
        if self.needed.is_empty() { self.look(spin) } else { Ok(Look::Nothing) }
    }

    fn look(&mut self, look: impl FnOnce(&mut Port) -> Option<Event>) -> Result<Look, Failure> {
        self.sleepers.note_poll();
        let port = self.port()?;
        Ok(match look(port) {
            Some(event) => Look::Event(event),
            None if port.has_progressed() => Look::Progress,
            None => Look::Nothing,
        })
    }

    /// Takes events by `next` until `attempt` yields something or there are no more. What `attempt` does not want is kept.
    ///
    /// # Errors
    /// Those of `next`.
    pub fn take_until<R>(
        &mut self,
        next: impl Fn(&mut Self) -> Result<Look, Failure>,
        attempt: &mut impl FnMut(&mut Self) -> Option<R>,
    ) -> Result<Option<R>, Failure> {
        let mut found = attempt(self);
        let mut is_over = false;
        while found.is_none() && !is_over && !self.is_full() {
            // An arrival is for one call. Others may wait for the consequence of anything else, such as room or a free block.
            let mut is_for_one = true;
            match next(self)? {
                Look::Event(event) => is_for_one = self.absorb(event),
                Look::Progress => is_for_one = false,
                Look::Nothing => is_over = true,
            }
            found = attempt(self);
            if !is_over && (found.is_none() || !is_for_one) {
                self.sleepers.note_news();
            }
        }
        Ok(found)
    }

    /// Prepares to sleep on the port's descriptor. `false`: there may be an event already.
    ///
    /// # Errors
    /// The port is closed.
    pub fn arm(&mut self) -> Result<bool, Failure> {
        let is_armed = self.port()?.arm();
        if is_armed {
            self.sleepers.note_arming();
        } else {
            self.sleepers.note_poll();
        }
        Ok(is_armed)
    }

    /// Keeps an event for the program, or notes the completion of a transfer. Returns whether it is kept.
    fn absorb(&mut self, event: Event) -> bool {
        let kept_before = self.kept.len();
        match event {
            Event::Message(message) => self.keep_message(message, false),
            Event::Datagram(message) => self.keep_message(message, true),
            Event::Lent(lent) => self.kept.push_back(Arrival::Message {
                peer: lent.peer,
                priority: lent.priority,
                is_datagram: false,
                data: Data::Lent(lent),
            }),
            Event::Connected(peer) => self.kept.push_back(Arrival::Connected(peer)),
            Event::Disconnected { peer, reason } => {
                // The program knows of an end that it has asked for.
                let is_ours = self.ours.remove(&peer) && reason != DisconnectReason::Here;
                if self.ended.len() == ENDED_MAX {
                    self.ended.pop_front();
                }
                self.ended.push_back((peer, reason));
                self.kept.push_back(Arrival::Disconnected { peer, reason, is_ours });
            }
            Event::Sent { id, result, .. }
            | Event::Put { id, result, .. }
            | Event::Got { id, result, .. } => {
                if let Some(outcome) = self.transfers.remove(&id) {
                    outcome.lock().unwrap_or_else(PoisonError::into_inner).result = Some(result);
                    self.finished.push(outcome);
                }
            }
            Event::Notified { peer, note } => self.kept.push_back(Arrival::Notified { peer, note }),
            Event::BufferNeeded { priority, length_bytes, .. } => self.needed.push((priority, length_bytes)),
            // Whoever waits for room tries again after each event.
            _ => {}
        }
        self.kept.len() > kept_before
    }

    fn keep_message(&mut self, Message { peer, priority, payload }: Message, is_datagram: bool) {
        let length = payload.len();
        let posted =
            if payload.is_borrowed() { self.posted.remove(&(payload.as_ptr() as usize)) } else { None };
        let data = match posted {
            Some(posted) => Data::Posted(posted, length),
            None => Data::Payload(payload),
        };
        self.kept.push_back(Arrival::Message { peer, priority, is_datagram, data });
    }

    /// Posts memory for a long message.
    ///
    /// # Errors
    /// Returns the memory if all receive tokens are in use.
    pub fn post(
        &mut self,
        priority: Priority,
        buffer: Buffer,
        posted: Posted,
    ) -> Result<(), (Failure, Option<Posted>)> {
        let address = buffer.as_ptr() as usize;
        let port = match self.port() {
            Ok(port) => port,
            Err(failure) => return Err((failure, Some(posted))),
        };
        match port.post_receive(priority, buffer) {
            Ok(()) => {
                // Two postings of one address would be two messages in one memory.
                self.posted.insert(address, posted);
                Ok(())
            }
            Err(_) => Err((
                Failure::new(
                    "NoToken",
                    "all receive tokens of this priority are in use: take messages first",
                ),
                Some(posted),
            )),
        }
    }

    /// Returns whether memory at this address is posted already.
    pub fn is_posted(&self, address: usize) -> bool {
        self.posted.contains_key(&address)
    }

    /// Notes a transfer that was started, and keeps its memory.
    ///
    /// # Errors
    /// It was not started. The view stays where it is.
    pub fn note_transfer(
        &mut self,
        started: Result<TransferId, SendError>,
        view: &mut Option<View>,
    ) -> Result<SharedOutcome, SendError> {
        let id = started?;
        let outcome = SharedOutcome::new(Mutex::new(Outcome { result: None, view: view.take() }));
        self.transfers.insert(id, outcome.clone());
        Ok(outcome)
    }

    /// Returns whether the port keeps as many arrivals as it may.
    pub fn is_full(&self) -> bool {
        self.kept.len() >= KEPT_MAX
    }

    /// The error of a peer that is not connected, if it is not.
    pub fn require_connected(&mut self, peer: Peer) -> Result<(), Failure> {
        if self.port()?.peer_info(peer).is_some() {
            return Ok(());
        }
        let reason = self.ended.iter().rev().find(|(ended, _)| *ended == peer);
        Err(Failure::disconnected(reason.map(|(_, reason)| *reason)))
    }

    /// Takes the next message of anybody. Connections that come are skipped. An end of one that this port has made is an error.
    pub fn take_message(&mut self) -> Option<Result<Arrival, Failure>> {
        let mut place = 0;
        while place < self.kept.len() {
            match &self.kept[place] {
                Arrival::Message { .. } => return self.kept.remove(place).map(Ok),
                Arrival::Disconnected { is_ours: true, reason, .. } => {
                    let reason = *reason;
                    self.kept.remove(place);
                    return Some(Err(Failure::disconnected(Some(reason))));
                }
                Arrival::Connected(_) | Arrival::Disconnected { .. } => drop(self.kept.remove(place)),
                Arrival::Notified { .. } => place += 1,
            }
        }
        None
    }

    /// Takes the next arrival that `is_wanted`.
    pub fn take_where(&mut self, is_wanted: impl Fn(&Arrival) -> bool) -> Option<Arrival> {
        let place = self.kept.iter().position(is_wanted)?;
        self.kept.remove(place)
    }
}
