//! Lending between two ports of one machine: which side has which block.

use bywire_ring::geometry::LaneName;
use bywire_ring::header::Header;
use bywire_ring::memory::Shared;

use std::sync::Arc;

use super::{BorrowedHeap, Connection, LentHeap};
use crate::message::error::DisconnectReason;
use crate::message::event::Event;
use crate::message::lend::{HEAPS_MAX, LenderHeap, Lent, Return, Ticket};
use crate::message::peer::Priority;
use crate::message::resources::Resources;
use crate::message::transfers::Step;
use crate::shm::lanes::lane_of;
use crate::shm::record::{LENT, RETURN};

impl Connection {
    /// How many heaps of ours the peer has.
    pub fn heaps_lent(&self) -> usize {
        self.heaps_lent.len()
    }

    /// Notes that a heap of ours has been shared with the peer.
    pub fn lend_heap(&mut self, shared: Arc<LenderHeap>, blocks: u32) {
        self.heaps_lent.push(LentHeap { shared, lent: vec![false; blocks as usize] });
    }

    /// Does the peer have this heap?
    pub fn has_heap(&self, heap: &Arc<LenderHeap>) -> bool {
        self.heaps_lent.get(heap.id as usize).is_some_and(|own| Arc::ptr_eq(&own.shared, heap))
    }

    /// Announces a lent block. `false`: there is no room.
    pub fn send_lent(
        &mut self,
        priority: Priority,
        heap: u32,
        block: u32,
        length: usize,
    ) -> Result<bool, DisconnectReason> {
        let words = [heap.into(), block.into(), length as u64];
        let sent =
            self.transfers.is_idle(priority) && self.lanes.push_words(lane_of(priority), LENT, &words)?;
        if !sent {
            self.transfers.starve(priority);
            return Ok(false);
        }
        self.heaps_lent[heap as usize].lent[block as usize] = true;
        self.blocks_out += 1;
        Ok(true)
    }

    /// How many heaps the peer shares with us, and how many bytes.
    pub fn borrowed(&self) -> (usize, u64) {
        let bytes = self.heaps_borrowed.iter().map(|heap| heap.memory.length_bytes() as u64).sum();
        (self.heaps_borrowed.len(), bytes)
    }

    /// May this be the number of the peer's next heap?
    pub fn may_borrow_heap(&self, id: u32) -> bool {
        id as usize == self.heaps_borrowed.len() && self.heaps_borrowed.len() < HEAPS_MAX
    }

    /// Takes a heap of the peer's into use.
    pub fn borrow_heap(&mut self, memory: Shared, block_bytes: usize, blocks: u32) {
        self.heaps_borrowed.push(BorrowedHeap { memory, block_bytes, held: vec![false; blocks as usize] });
    }

    /// Does a heap's number refer to memory that has not been fetched from the socket yet?
    pub(super) fn lacks_heap(&self, heap: u64) -> bool {
        heap >= self.heaps_borrowed.len() as u64
    }

    pub(super) fn receive_lent(
        &mut self,
        priority: Priority,
        header: Header,
        [heap, block, length, ..]: [u64; 7],
        resources: &Resources,
    ) -> Result<Step, DisconnectReason> {
        let Some(place) = usize::try_from(heap).ok().filter(|heap| *heap < self.heaps_borrowed.len()) else {
            // The heap's memory was sent over the socket before this record. The port fetches it.
            return Err(DisconnectReason::Broken);
        };
        let heap = &mut self.heaps_borrowed[place];
        let block = usize::try_from(block).unwrap_or(usize::MAX);
        // A block that we hold already cannot be lent again. This is also the borrower's quota.
        let is_free = heap.held.get(block) == Some(&false);
        if !is_free || length > resources.message_bytes_max.min(heap.block_bytes as u64) {
            return Err(DisconnectReason::Broken);
        }
        heap.held[block] = true;
        let entry = Return { peer: self.peer, heap: place as u32, block: block as u32 };
        let lent = Lent {
            peer: self.peer,
            priority,
            memory: heap.memory.clone(),
            offset: block * heap.block_bytes,
            length: length as usize,
            guard: self.guard.clone(),
            _ticket: Ticket { returns: self.returns.clone(), entry },
        };
        self.lanes.free(lane_of(priority), header);
        Ok(Step::Event(Event::Lent(lent)))
    }

    /// Queues the return of a borrowed block that is done with.
    pub fn give_back(&mut self, entry: Return) {
        // The block counts as held until its return has been pushed, so that each block has at most one under way.
        self.blocks_to_return.push_back((entry.heap, entry.block));
    }

    /// Returns a block that is done with to its lender.
    pub(super) fn advance_returns(&mut self) -> Result<bool, DisconnectReason> {
        let Some((heap, block)) = self.blocks_to_return.front().copied() else { return Ok(false) };
        let done = self.lanes.push_words(LaneName::Reply, RETURN, &[heap.into(), block.into()])?;
        if done {
            self.heaps_borrowed[heap as usize].held[block as usize] = false;
            self.blocks_to_return.pop_front();
        }
        Ok(done)
    }

    pub(super) fn take_block_back(&mut self, heap: u64, block: u64) -> Result<(), DisconnectReason> {
        let heap = usize::try_from(heap)
            .ok()
            .and_then(|heap| self.heaps_lent.get_mut(heap))
            .ok_or(DisconnectReason::Broken)?;
        let lent = usize::try_from(block).ok().and_then(|block| heap.lent.get_mut(block));
        if !lent.is_some_and(std::mem::take) {
            return Err(DisconnectReason::Broken);
        }
        heap.shared.give_back(block as u32);
        self.blocks_out -= 1;
        Ok(())
    }

    /// Takes every block of ours back, as the peer has gone.
    pub(super) fn take_all_blocks_back(&mut self) {
        for heap in &mut self.heaps_lent {
            for (block, lent) in heap.lent.iter_mut().enumerate() {
                if std::mem::take(lent) {
                    heap.shared.give_back(block as u32);
                }
            }
        }
    }
}
