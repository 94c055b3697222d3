//! One end without a port, a socket or a clock: for tests, simulations and fuzzing of what ships.

use bywire_wire::batch::Batch;
use bywire_wire::connection::{Counts, Options, Receipt};

use super::connection::{Connection, Setup, windows};
use crate::message::address::{Address, PortName};
use crate::message::buffer::{Buffer, Payload};
use crate::message::error::{DisconnectReason, SendError, Unsent};
use crate::message::event::Event;
use crate::message::options::PortOptions;
use crate::message::peer::{Confirm, Owner, Peer, PeerInfo, Priority, TransferId};
use crate::message::region::{Key, Rights};
use crate::message::resources::Resources;
use crate::message::transfers::{Note, Step, Transfers};

/// One end of a connection over packets, with what a port keeps for it.
pub struct End {
    connection: Connection,
    resources: Resources,
    polls: u32,
    next_transfer: u64,
    regions: u64,
    is_over: bool,
}

/// The memory of a connection, without what it has allocated.
pub const CONNECTION_BYTES: usize = size_of::<Connection>();

/// Bytes of each lane that may wait at an end with these options.
pub fn windows_of(options: &PortOptions) -> [u64; 3] {
    windows(options)
}

impl End {
    /// An end as a port with these options has it. The peer takes messages of up to `peer_message_bytes_max`.
    pub fn new(options: Options, port: &PortOptions, peer_message_bytes_max: u64) -> Self {
        let info = PeerInfo {
            address: Address { node: "other".to_owned(), port: PortName::Number(1) },
            owner: Owner::Remote { user: "other".to_owned() },
            incarnation: 1,
            message_bytes_max: peer_message_bytes_max,
            integrity: true,
        };
        let setup = Setup {
            info,
            other_user: None,
            options,
            fragment_bytes: port.geometry.fragment_bytes,
            remote_fragment_bytes: port.remote_fragment_bytes,
        };
        Self {
            connection: Connection::new(Peer { index: 0, generation: 1 }, setup),
            resources: Resources::new(port),
            polls: 0,
            next_transfer: 1,
            regions: 0,
            is_over: false,
        }
    }

    /// Takes in a packet. A connection that its packets end is drained and given up.
    pub fn receive_packet(&mut self, now_ns: u64, packet: &mut [u8]) -> Receipt {
        let receipt = self.connection.receive_packet(now_ns, packet, &mut self.resources);
        match self.connection.ended().filter(|_| !self.is_over) {
            Some(reason @ DisconnectReason::Closed) => self.drain_and_end(reason),
            Some(reason) => self.end(reason),
            None => {}
        }
        receipt
    }

    /// Takes what has arrived of a peer that has ended, and gives the connection up.
    pub fn drain_and_end(&mut self, reason: DisconnectReason) {
        self.connection.begin_draining();
        while let Ok(step) = self.step() {
            match step {
                Step::Nothing => break,
                Step::Progress => {}
                Step::Event(event) => self.resources.put_by(event),
            }
        }
        self.end(reason);
    }

    /// Gives the connection up.
    pub fn end(&mut self, reason: DisconnectReason) {
        if !std::mem::replace(&mut self.is_over, true) {
            self.connection.give_up(reason, &mut self.resources);
            let peer = self.connection.peer;
            self.resources.events.push_back(Event::Disconnected { peer, reason });
        }
    }

    /// Says good-bye; [`Self::is_drained`] tells when all has arrived, and [`Self::end`] follows.
    pub fn begin_close(&mut self) {
        self.connection.begin_close(&mut self.resources);
    }

    /// Has everything been acknowledged?
    pub fn is_drained(&self) -> bool {
        self.connection.is_drained()
    }

    /// Is the connection over?
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Adds to a batch what has to leave.
    pub fn transmit(&mut self, now_ns: u64, batch: &mut Batch) {
        self.connection.transmit(now_ns, batch);
        self.connection.settle();
    }

    /// Is there something to leave at once, after a call that sends?
    pub fn must_transmit(&mut self) -> bool {
        self.connection.must_transmit(self.polls)
    }

    /// When something has to leave.
    pub fn next_timeout_ns(&self) -> Option<u64> {
        self.connection.next_timeout_ns()
    }

    /// Since when the peer has been silent.
    pub fn unanswered_since_ns(&self) -> Option<u64> {
        self.connection.unanswered_since_ns()
    }

    /// The length of packets.
    pub fn packet_bytes(&self) -> u16 {
        self.connection.packet_bytes()
    }

    /// Bytes in flight, and those that may be.
    pub fn flight(&self) -> (u64, u64) {
        self.connection.flight()
    }

    /// What has happened.
    pub fn counts(&self) -> &Counts {
        self.connection.counts()
    }

    /// Bytes of memory that wait, of the peer's and for the peer; the program's own are not counted.
    pub fn memory_bytes(&self) -> usize {
        self.connection.memory_bytes()
    }

    /// Releases memory in which nothing waits, as a port does after a while without traffic.
    pub fn trim(&mut self) {
        self.connection.trim();
    }

    /// Lets the low lane grow, if that pays.
    pub fn open_large_window(&mut self) -> bool {
        let wants = self.connection.wants_large_window();
        if wants {
            self.connection.open_large_window();
        }
        wants
    }

    /// Acknowledges everything with the next packets.
    pub fn before_sleep(&mut self) {
        self.connection.before_sleep();
    }

    /// Is there something for [`Self::poll`] to find?
    pub fn has_input(&self) -> bool {
        !self.resources.events.is_empty() || !self.is_over && self.connection.has_input(&self.resources)
    }

    /// Could transfers move on?
    pub fn can_advance(&self) -> bool {
        self.connection.can_advance()
    }

    /// The next event. Nothing behind it is taken yet.
    pub fn poll(&mut self) -> Option<Event> {
        self.polls = self.polls.wrapping_add(1);
        while self.resources.events.is_empty() && !self.is_over {
            if let Err(reason) = self.connection.advance(&mut self.resources) {
                self.end(reason);
                break;
            }
            match self.step() {
                Ok(Step::Nothing) => break,
                Ok(Step::Progress) => {}
                Ok(Step::Event(event)) => self.resources.put_by(event),
                Err(reason) => self.end(reason),
            }
        }
        self.resources.next_event()
    }

    fn step(&mut self) -> Result<Step, DisconnectReason> {
        for priority in [Priority::High, Priority::Low] {
            match self.connection.receive(priority, &mut self.resources)? {
                Step::Nothing => {}
                other => return Ok(other),
            }
        }
        self.connection.receive_reply(&mut self.resources)
    }

    /// Sends a short message.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send(&mut self, priority: Priority, bytes: &[u8]) -> Result<(), SendError> {
        self.connection.send_now(priority, bytes)
    }

    /// Sends a short message in two parts, the first of which is a head.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send_headed(&mut self, priority: Priority, bytes: &[u8]) -> Result<(), SendError> {
        let (head, payload) = bytes.split_at(bytes.len().min(16));
        self.connection.send_headed_now(priority, [head, payload])
    }

    /// The longest short message without a head.
    pub fn short_bytes(&self) -> usize {
        self.connection.short_bytes()
    }

    /// The longest transfer that is copied.
    pub fn fragment_bytes(&self) -> usize {
        self.connection.fragment_bytes()
    }

    /// Sends a datagram.
    ///
    /// # Errors
    /// [`DisconnectReason`].
    pub fn send_datagram(&mut self, priority: Priority, bytes: &[u8]) -> Result<bool, DisconnectReason> {
        self.connection.send_datagram(priority, bytes)
    }

    /// Sends a message from the program's memory.
    ///
    /// # Errors
    /// [`Unsent`].
    pub fn send_buffer(
        &mut self,
        priority: Priority,
        buffer: impl Into<Buffer>,
        confirm: Confirm,
    ) -> Result<TransferId, Unsent> {
        let buffer = buffer.into();
        self.begin(priority, buffer, |transfers, id, buffer| transfers.send(id, priority, buffer, confirm))
    }

    /// Puts data into the peer's region.
    ///
    /// # Errors
    /// [`Unsent`].
    ///
    /// # Panics
    /// On a note that is too long.
    pub fn put(
        &mut self,
        priority: Priority,
        target: (Key, u64),
        buffer: impl Into<Buffer>,
        note: Option<&[u8]>,
    ) -> Result<TransferId, Unsent> {
        let note = Note::new(note).expect("a note of at most 32 bytes");
        self.begin(priority, buffer.into(), |transfers, id, buffer| {
            transfers.put(id, priority, target, buffer, note);
        })
    }

    /// Gets data from the peer's region.
    ///
    /// # Errors
    /// [`Unsent`].
    pub fn get(
        &mut self,
        priority: Priority,
        source: (Key, u64),
        buffer: impl Into<Buffer>,
    ) -> Result<TransferId, Unsent> {
        self.begin(priority, buffer.into(), |transfers, id, buffer| {
            transfers.get(id, priority, source, buffer);
        })
    }

    fn begin(
        &mut self,
        priority: Priority,
        buffer: Buffer,
        queue: impl FnOnce(&mut Transfers, TransferId, Buffer),
    ) -> Result<TransferId, Unsent> {
        if self.is_over || !self.resources.take_token(priority) {
            let gone = SendError::Disconnected(DisconnectReason::Here);
            return Err(Unsent { error: if self.is_over { gone } else { SendError::NoToken }, buffer });
        }
        let id = TransferId(self.next_transfer);
        self.next_transfer += 1;
        queue(&mut self.connection.transfers, id, buffer);
        // The next poll finds an error again.
        let _ = self.connection.advance(&mut self.resources);
        Ok(id)
    }

    /// Posts a buffer.
    pub fn post_receive(&mut self, priority: Priority, buffer: impl Into<Buffer>) {
        self.resources.post(priority, buffer.into());
    }

    /// Takes back the memory of a payload, as [`crate::Port::recycle`] does.
    pub fn recycle(&mut self, payload: Payload) {
        if let Some(buffer) = payload.into_buffer() {
            self.resources.keep(buffer.into_vec());
        }
    }

    /// Registers a region.
    ///
    /// # Panics
    /// When there are too many.
    pub fn register(&mut self, memory: impl Into<Buffer>, rights: Rights) -> Key {
        // The same keys in every run.
        self.regions += 1;
        let random = self.regions.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.resources.regions.register(memory.into(), rights, random).expect("few regions")
    }

    /// The memory of a region.
    pub fn region(&self, key: Key) -> Option<&[u8]> {
        self.resources.regions.memory(key)
    }

    /// Ends a region.
    pub fn revoke(&mut self, key: Key) -> Option<Buffer> {
        self.resources.regions.revoke(key)
    }
}

impl std::fmt::Debug for End {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("End").field("is_over", &self.is_over).finish_non_exhaustive()
    }
}
