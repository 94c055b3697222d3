//! Asynchronous transfers: long messages, puts, gets, and lending.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

use crate::account::{Kind, NoMemory};
use crate::buffer::Buffer;
use crate::connection::{LentHeap, TransferKind, insert_waiting};
use crate::error::{LendError, SendError};
use crate::handshake::Packet;
use crate::heap::{BLOCK_BYTES, BLOCKS_MAX, HEAPS_MAX, Heap, LendBuffer, LenderHeap};
use crate::outgoing::{Note, Outgoing, Waiting, What};
use crate::peer::{Confirm, Peer, Priority, TransferId};
use crate::port::Port;
use crate::record::NOTE_BYTES_MAX;
use crate::region::{Key, Rights};

/// A transfer that did not begin, with its memory.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Unsent {
    /// Why.
    pub error: SendError,
    /// The memory that was to be sent.
    pub buffer: Buffer,
}

impl Port {
    /// Sends a message of any length from memory that the library keeps until [`crate::Event::Sent`].
    /// Takes a send token until that event is queued: from then on, whether it has been taken or not, the token is free.
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
        Ok(self.begin(peer, priority, buffer, |_, _| What::Message { confirm }))
    }

    /// Puts data into a peer's region, in order with messages of the same priority. With a note of up to
    /// 32 bytes the peer is told, after the data is visible. Takes a send token until [`crate::Event::Put`]
    /// is queued.
    ///
    /// # Errors
    /// [`Unsent`]; a note too long is [`SendError::TooLong`].
    pub fn put(
        &mut self,
        peer: Peer,
        priority: Priority,
        (key, offset): (Key, u64),
        buffer: impl Into<Buffer>,
        note: Option<&[u8]>,
    ) -> Result<TransferId, Unsent> {
        let buffer = buffer.into();
        let mut noted = Note::default();
        if let Some(note) = note {
            let Some(target) = noted.bytes.get_mut(..note.len()) else {
                return Err(Unsent { error: SendError::TooLong { max: NOTE_BYTES_MAX as u64 }, buffer });
            };
            target.copy_from_slice(note);
            noted.length = Some(note.len() as u8);
        }
        if let Err(error) = self.admit(peer, priority, 0) {
            return Err(Unsent { error, buffer });
        }
        Ok(self.begin(peer, priority, buffer, |id, waiting| {
            let entry = Waiting {
                id,
                kind: TransferKind::Put,
                priority,
                buffer: Buffer::default(),
                filled: 0,
                asked: false,
            };
            What::Put { key, offset, note: noted, transfer: insert_waiting(waiting, entry) }
        }))
    }

    /// Gets data from a peer's region, as much as fills `buffer`. Takes a send token until [`crate::Event::Got`] is
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
        Ok(self.begin(peer, priority, Buffer::default(), |id, waiting| {
            let length = buffer.as_ref().len() as u64;
            let entry = Waiting { id, kind: TransferKind::Get, priority, buffer, filled: 0, asked: false };
            What::Get { key, offset, length, transfer: insert_waiting(waiting, entry) }
        }))
    }

    /// Checks that a transfer may begin, with a message of this length, and takes its token last.
    fn admit(&mut self, peer: Peer, priority: Priority, message_bytes: u64) -> Result<(), SendError> {
        if !self.guard.is_owner() {
            return Err(SendError::Forked);
        }
        let max = self.slots.connection(peer)?.info.message_bytes_max;
        if message_bytes > max {
            return Err(SendError::TooLong { max });
        }
        if self.resources.take_token(priority) { Ok(()) } else { Err(SendError::NoToken) }
    }

    fn begin(
        &mut self,
        peer: Peer,
        priority: Priority,
        buffer: Buffer,
        what: impl FnOnce(TransferId, &mut Vec<Option<Waiting>>) -> What,
    ) -> TransferId {
        let id = TransferId(self.next_transfer);
        self.next_transfer += 1;
        let connection = self.slots.connection(peer).expect("admitted just now");
        let what = what(id, &mut connection.waiting);
        connection.outgoing[priority as usize].push_back(Outgoing {
            id,
            buffer,
            pushed: 0,
            is_open: false,
            is_put_aside: false,
            what,
        });
        // The first fragment goes at once; a broken ring is found again, and reported, by the next poll.
        let _ = connection.advance(&mut self.resources);
        self.warm(peer.index);
        self.keep_busy(peer.index);
        self.stir();
        id
    }

    /// Registers memory that peers with the key may reach with these rights. Meanwhile the program
    /// reaches it through [`Self::region`] and [`Self::region_mut`].
    ///
    /// # Errors
    /// What the kernel said when asked for random numbers.
    pub fn register(&mut self, memory: impl Into<Buffer>, rights: Rights) -> Result<Key, crate::Errno> {
        self.resources.regions.register(memory.into(), rights)
    }

    /// The memory of a region of ours.
    pub fn region(&self, key: Key) -> Option<&[u8]> {
        self.resources.regions.memory(key)
    }

    /// The memory of a region of ours, to change it between peers' accesses.
    pub fn region_mut(&mut self, key: Key) -> Option<&mut [u8]> {
        self.resources.regions.memory_mut(key)
    }

    /// Ends a region: from now on its key opens nothing. Returns its memory.
    pub fn revoke(&mut self, key: Key) -> Option<Buffer> {
        self.resources.regions.revoke(key)
    }

    /// Makes memory shared with one peer, from which messages can be lent to it instead of copied:
    /// `blocks` of `block_bytes` each (rounded up to whole cache lines).
    ///
    /// # Errors
    /// [`LendError`].
    pub fn heap(&mut self, peer: Peer, block_bytes: usize, blocks: u32) -> Result<Heap, LendError> {
        if !self.guard.is_owner() {
            return Err(SendError::Forked.into());
        }
        let connection = self.slots.connection(peer)?;
        let sizes_are_good = BLOCK_BYTES.contains(&block_bytes) && (1..=BLOCKS_MAX).contains(&blocks);
        if !sizes_are_good || connection.heaps_lent.len() >= HEAPS_MAX {
            return Err(LendError::BadSize);
        }
        let block_bytes = block_bytes.next_multiple_of(64);
        let length = heap_bytes(block_bytes, blocks).ok_or(LendError::BadSize)?;
        let made = self.resources.account.create(Kind::Heap, length, connection.foreign_user);
        let (memory, file) = made.map_err(|error| match error {
            NoMemory::Kept => LendError::MemoryKept,
            NoMemory::System(error) => LendError::System(error),
        })?;
        let id = connection.heaps_lent.len() as u32;
        let offer = Packet::Heap { id, block_bytes: block_bytes as u64, blocks };
        connection.socket.send(&offer.to_bytes(), &[file.as_fd()]).map_err(LendError::System)?;
        let shared = Arc::new(LenderHeap {
            peer,
            id,
            memory,
            block_bytes,
            guard: self.guard.clone(),
            free: Mutex::new((0..blocks).rev().collect()),
        });
        connection.heaps_lent.push(LentHeap { shared: shared.clone(), lent: vec![false; blocks as usize] });
        Ok(Heap { shared })
    }

    /// Lends the first `length` bytes of a block to the peer that its heap is shared with, as a message.
    /// The block comes back by itself when the peer is done with it.
    ///
    /// # Errors
    /// [`LendError`] with the block.
    pub fn send_lent(
        &mut self,
        priority: Priority,
        mut block: LendBuffer,
        length: usize,
    ) -> Result<(), (LendError, LendBuffer)> {
        match self.try_send_lent(priority, &block, length) {
            Ok(()) => {
                block.ours = false;
                Ok(())
            }
            Err(error) => Err((error, block)),
        }
    }

    fn try_send_lent(
        &mut self,
        priority: Priority,
        block: &LendBuffer,
        length: usize,
    ) -> Result<(), LendError> {
        if !self.guard.is_owner() {
            return Err(SendError::Forked.into());
        }
        let peer = block.heap.peer;
        let connection = self.slots.connection(peer)?;
        let max = (block.heap.block_bytes as u64).min(connection.info.message_bytes_max);
        if length as u64 > max {
            return Err(SendError::TooLong { max }.into());
        }
        let heap = block.heap.id;
        let is_ours =
            connection.heaps_lent.get(heap as usize).is_some_and(|own| Arc::ptr_eq(&own.shared, &block.heap));
        if !is_ours {
            return Err(LendError::OtherPeer);
        }
        let sent = connection.send_lent(priority, heap, block.block, length);
        if !sent.map_err(SendError::Disconnected)? {
            self.keep_busy(peer.index);
            self.stir();
            return Err(SendError::Full.into());
        }
        connection.heaps_lent[heap as usize].lent[block.block as usize] = true;
        connection.blocks_out += 1;
        self.warm(peer.index);
        Ok(())
    }
}

/// The length of a heap's memory, if it can exist.
pub(crate) fn heap_bytes(block_bytes: usize, blocks: u32) -> Option<usize> {
    // Checked first: these may be a peer's numbers.
    let length = block_bytes.checked_mul(blocks as usize).filter(|length| *length <= 1 << 36)?;
    Some(length.next_multiple_of(4096))
}
