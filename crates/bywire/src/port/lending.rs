//! Lending: memory shared with one peer, and messages that are read in place.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

use super::Port;
use super::slots::Link;
use crate::message::error::{LendError, SendError};
use crate::message::lend::{BLOCK_BYTES, BLOCKS_MAX, HEAPS_MAX, Heap, LendBuffer, LenderHeap, heap_bytes};
use crate::message::peer::{Peer, Priority};
use crate::shm::account::{Kind, NoMemory};
use crate::shm::handshake::Packet;

impl Port {
    /// Makes memory shared with one peer, from which messages can be lent to it instead of copied:
    /// `blocks` of `block_bytes` each (rounded up to whole cache lines).
    ///
    /// # Errors
    /// [`LendError`].
    pub fn heap(&mut self, peer: Peer, block_bytes: usize, blocks: u32) -> Result<Heap, LendError> {
        if !self.guard.is_owner() {
            return Err(SendError::Forked.into());
        }
        let Link::Ring(connection) = self.slots.link(peer)? else { return Err(LendError::OtherMachine) };
        let sizes_are_good = BLOCK_BYTES.contains(&block_bytes) && (1..=BLOCKS_MAX).contains(&blocks);
        if !sizes_are_good || connection.heaps_lent() >= HEAPS_MAX {
            return Err(LendError::BadSize);
        }
        let block_bytes = block_bytes.next_multiple_of(64);
        let length = heap_bytes(block_bytes, blocks).ok_or(LendError::BadSize)?;
        let made = self.account.create(Kind::Heap, length, connection.other_user);
        let (memory, file) = made.map_err(|error| match error {
            NoMemory::Kept => LendError::MemoryKept,
            NoMemory::System(error) => LendError::System(error),
        })?;
        let id = connection.heaps_lent() as u32;
        let offer = Packet::Heap { id, block_bytes: block_bytes as u64, blocks };
        connection.socket().send(&offer.to_bytes(), &[file.as_fd()]).map_err(LendError::System)?;
        let shared = Arc::new(LenderHeap {
            peer,
            id,
            memory,
            block_bytes,
            guard: self.guard.clone(),
            free: Mutex::new((0..blocks).rev().collect()),
        });
        connection.lend_heap(shared.clone(), blocks);
        Ok(Heap { shared })
    }

    /// Lends the first `length` bytes of a block, as a message, to the peer that its heap is shared with. The block
    /// comes back by itself when the peer is done with it.
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
        let Link::Ring(connection) = self.slots.link(peer)? else { return Err(LendError::OtherMachine) };
        let max = (block.heap.block_bytes as u64).min(connection.info.message_bytes_max);
        if length as u64 > max {
            return Err(SendError::TooLong { max }.into());
        }
        if !connection.has_heap(&block.heap) {
            return Err(LendError::OtherPeer);
        }
        let sent = connection.send_lent(priority, block.heap.id, block.block, length);
        if !sent.map_err(SendError::Disconnected)? {
            self.mark_pending(peer.index);
            self.signal_if_armed();
            return Err(SendError::Full.into());
        }
        self.warm(peer.index);
        Ok(())
    }
}
