//! Sending: short messages at once, and asynchronous transfers: long messages, puts and gets.

use bywire_ring::geometry::INLINE_BYTES;
use bywire_sys::Errno;

use super::Port;
use super::slots::Link;
use crate::message::buffer::{Buffer, Payload};
use crate::message::error::{SendError, Unsent};
use crate::message::options::HEAD_BYTES_MAX;
use crate::message::peer::{Confirm, Peer, Priority, TransferId};
use crate::message::region::{Key, Rights};
use crate::message::transfers::{NOTE_BYTES_MAX, Note, Transfers};

impl Port {
    /// Copies a message of up to one fragment ([`crate::FRAGMENT_BYTES`] by default) to a peer, at once. It needs no
    /// token and no completion. Longer messages need [`Self::send_buffer`].
    ///
    /// # Errors
    /// [`SendError`]; nothing was sent then. [`SendError::Full`] is back-pressure: poll and try again.
    #[inline(always)]
    pub fn send(&mut self, peer: Peer, priority: Priority, bytes: &[u8]) -> Result<(), SendError> {
        if !self.guard.is_owner() {
            return Err(SendError::Forked);
        }
        let Some(connection) = self.slots.ring(peer) else {
            return self.send_now_remote(peer, priority, [bytes, &[]]);
        };
        if bytes.len() > INLINE_BYTES {
            let max = (connection.fragment_bytes() as u64).min(connection.info.message_bytes_max);
            if bytes.len() as u64 > max {
                return Err(SendError::TooLong { max });
            }
        } else if bytes.len() as u64 > connection.info.message_bytes_max {
            return Err(SendError::TooLong { max: connection.info.message_bytes_max });
        }
        let Err(error) = connection.send_now(priority, bytes) else { return Ok(()) };
        Err(self.not_sent(peer, error))
    }

    /// Copies a message in two parts to a peer, at once, where it arrives as one: a head of up to [`crate::HEAD_BYTES_MAX`] bytes, and a
    /// payload of up to a fragment, or of up to [`crate::PortOptions::remote_fragment_bytes`] to another machine. The program need not
    /// join them.
    ///
    /// # Errors
    /// Those of [`Self::send`].
    pub fn send_headed(
        &mut self,
        peer: Peer,
        priority: Priority,
        head: &[u8],
        payload: &[u8],
    ) -> Result<(), SendError> {
        if !self.guard.is_owner() {
            return Err(SendError::Forked);
        }
        if head.len() > HEAD_BYTES_MAX {
            return Err(SendError::TooLong { max: HEAD_BYTES_MAX as u64 });
        }
        let Some(connection) = self.slots.ring(peer) else {
            return self.send_now_remote(peer, priority, [head, payload]);
        };
        let max = ((head.len() + connection.fragment_bytes()) as u64).min(connection.info.message_bytes_max);
        if (head.len() + payload.len()) as u64 > max {
            return Err(SendError::TooLong { max });
        }
        let Err(error) = connection.send_headed_now(priority, head, payload) else { return Ok(()) };
        Err(self.not_sent(peer, error))
    }

    /// Notes that a short message found no room, so that the program hears of room.
    #[cold]
    #[inline(never)]
    fn not_sent(&mut self, peer: Peer, error: SendError) -> SendError {
        if error == SendError::Full {
            self.mark_pending(peer.index);
            self.signal_if_armed();
        }
        error
    }

    /// Sends a datagram of up to one fragment. It arrives at most once, in no order, and never blocks anything.
    /// Returns `false` when it was dropped, and counted, for lack of room.
    ///
    /// # Errors
    /// [`SendError`], never [`SendError::Full`].
    pub fn send_datagram(&mut self, peer: Peer, priority: Priority, bytes: &[u8]) -> Result<bool, SendError> {
        self.send_one_datagram(peer, priority, bytes, false)
    }

    /// The same. `is_followed`: others to that peer follow at once.
    pub(super) fn send_one_datagram(
        &mut self,
        peer: Peer,
        priority: Priority,
        bytes: &[u8],
        is_followed: bool,
    ) -> Result<bool, SendError> {
        if !self.guard.is_owner() {
            return Err(SendError::Forked);
        }
        let Link::Ring(connection) = self.slots.link(peer)? else {
            return self.send_datagram_remote(peer, priority, bytes, is_followed);
        };
        let max = (connection.fragment_bytes() as u64).min(connection.info.message_bytes_max);
        if bytes.len() as u64 > max {
            return Err(SendError::TooLong { max });
        }
        let sent = connection.send_datagram(priority, bytes).map_err(SendError::Disconnected)?;
        self.statistics.datagrams_unsent += u64::from(!sent);
        Ok(sent)
    }

    /// Asks for [`crate::Event::Room`] as soon as a whole fragment fits into the lane to a peer. This is for programs
    /// that keep a datagram that was dropped for lack of room, and try again. The event comes once.
    ///
    /// # Errors
    /// [`SendError`], never [`SendError::Full`].
    pub fn await_room(&mut self, peer: Peer, priority: Priority) -> Result<(), SendError> {
        if !self.guard.is_owner() {
            return Err(SendError::Forked);
        }
        let mut link = self.slots.link(peer)?;
        link.transfers().starve(priority);
        if matches!(link, Link::Wire(_)) {
            self.advance_remote(peer);
            return Ok(());
        }
        self.mark_pending(peer.index);
        self.signal_if_armed();
        Ok(())
    }

    /// Posts memory to receive one long message of this priority. A message takes the smallest buffer that it fits
    /// into, and of equal ones the last posted. Messages of one fragment need none. Where other users are admitted,
    /// post several: each of them fills at most one in eight at a time, but always one.
    ///
    /// # Errors
    /// Returns the buffer when all receive tokens of this priority are in use.
    pub fn post_receive(&mut self, priority: Priority, buffer: impl Into<Buffer>) -> Result<(), Buffer> {
        let buffer = buffer.into();
        if self.resources.posted(priority) >= self.options.receive_tokens as usize {
            return Err(buffer);
        }
        self.resources.post(priority, buffer);
        self.signal_if_armed();
        Ok(())
    }

    /// Takes back the memory of a payload that the program is done with, for later messages.
    #[inline]
    pub fn recycle(&mut self, payload: Payload) {
        if let Some(buffer) = payload.into_buffer() {
            self.resources.keep(buffer.into_vec());
        }
    }

    /// Sends a message of any length from memory that the library keeps until [`crate::Event::Sent`]. Takes a send
    /// token until that event is queued. The token is then free, whether or not the program has taken the event.
    ///
    /// # Errors
    /// [`Unsent`] with the reason and the memory.
    pub fn send_buffer(
        &mut self,
        peer: Peer,
        priority: Priority,
        buffer: impl Into<Buffer>,
        confirm: Confirm,
    ) -> Result<TransferId, Unsent> {
        let buffer = buffer.into();
        let length = buffer.as_ref().len() as u64;
        if let Err(error) = self.admit(peer, priority, length) {
            return Err(Unsent { error, buffer });
        }
        Ok(self.begin(peer, |transfers, id| transfers.send(id, priority, buffer, confirm)))
    }

    /// Puts data into a peer's region, in order with messages of the same priority. A note of up to 32 bytes notifies
    /// the peer after the data is visible. Takes a send token until [`crate::Event::Put`] is queued.
    ///
    /// # Errors
    /// [`Unsent`]. A note that is too long is [`SendError::TooLong`].
    pub fn put(
        &mut self,
        peer: Peer,
        priority: Priority,
        (key, offset): (Key, u64),
        buffer: impl Into<Buffer>,
        note: Option<&[u8]>,
    ) -> Result<TransferId, Unsent> {
        let buffer = buffer.into();
        let Some(note) = Note::new(note) else {
            return Err(Unsent { error: SendError::TooLong { max: NOTE_BYTES_MAX as u64 }, buffer });
        };
        if let Err(error) = self.admit(peer, priority, 0) {
            return Err(Unsent { error, buffer });
        }
        Ok(self.begin(peer, |transfers, id| transfers.put(id, priority, (key, offset), buffer, note)))
    }

    /// Gets data from a peer's region until `buffer` is full. Takes a send token until [`crate::Event::Got`] is
    /// queued.
    ///
    /// # Errors
    /// [`Unsent`].
    pub fn get(
        &mut self,
        peer: Peer,
        priority: Priority,
        (key, offset): (Key, u64),
        buffer: impl Into<Buffer>,
    ) -> Result<TransferId, Unsent> {
        let buffer = buffer.into();
        if let Err(error) = self.admit(peer, priority, 0) {
            return Err(Unsent { error, buffer });
        }
        Ok(self.begin(peer, |transfers, id| transfers.get(id, priority, (key, offset), buffer)))
    }

    /// Checks that a transfer may begin, with a message of this length. Takes its token last.
    fn admit(&mut self, peer: Peer, priority: Priority, message_bytes: u64) -> Result<(), SendError> {
        if !self.guard.is_owner() {
            return Err(SendError::Forked);
        }
        let max = self.slots.link(peer)?.info().message_bytes_max;
        if message_bytes > max {
            return Err(SendError::TooLong { max });
        }
        if self.resources.take_token(priority) { Ok(()) } else { Err(SendError::NoToken) }
    }

    fn begin(&mut self, peer: Peer, queue: impl FnOnce(&mut Transfers, TransferId)) -> TransferId {
        let id = TransferId(self.next_transfer);
        self.next_transfer += 1;
        let mut link = self.slots.link(peer).expect("admitted just now");
        queue(link.transfers(), id);
        let Link::Ring(connection) = link else {
            self.advance_remote(peer);
            return id;
        };
        // The first fragment goes at once. The next poll finds a broken ring again, and reports it.
        let _ = connection.advance(&mut self.resources);
        self.warm(peer.index);
        self.mark_pending(peer.index);
        self.signal_if_armed();
        id
    }

    /// Registers memory that peers with the key may access with these rights. The program accesses it meanwhile
    /// through [`Self::region`] and [`Self::region_mut`].
    ///
    /// # Errors
    /// [`Errno::NOSPC`] when the port has 65,536 regions, or the kernel's error on a request for random numbers.
    pub fn register(&mut self, memory: impl Into<Buffer>, rights: Rights) -> Result<Key, Errno> {
        let random = self.random_numbers.take()?;
        let key = self.resources.regions.register(memory.into(), rights, random);
        key.ok_or(Errno::NOSPC)
    }

    /// The memory of a region of ours.
    pub fn region(&self, key: Key) -> Option<&[u8]> {
        self.resources.regions.memory(key)
    }

    /// The memory of a region of ours, to change it between peers' accesses.
    pub fn region_mut(&mut self, key: Key) -> Option<&mut [u8]> {
        self.resources.regions.memory_mut(key)
    }

    /// Ends a region: its key is invalid from now on. Returns its memory.
    pub fn revoke(&mut self, key: Key) -> Option<Buffer> {
        self.resources.regions.revoke(key)
    }
}
