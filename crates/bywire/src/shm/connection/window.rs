//! A large window: a separate bulk area for the low lane to a peer that is sent much.

use std::os::fd::AsFd;

use bywire_ring::geometry::{LARGE_WINDOW_BYTES, LaneName};
use bywire_ring::header::{BULK, Header, PROMPT};
use bywire_ring::memory::Shared;

use super::{Connection, Window};
use crate::message::error::DisconnectReason;
use crate::message::peer::Priority;
use crate::message::transfers::Step;
use crate::shm::account::{Account, Kind};
use crate::shm::handshake::Packet;
use crate::shm::record::MOVE_BULK;

/// How often the small bulk area was filled before a large one pays.
const LARGE_WINDOW_LAPS: u64 = 8;

impl Connection {
    /// Would a large window pay?
    pub fn wants_large_window(&self) -> bool {
        let low = Priority::Low;
        matches!(self.window, Window::Small)
            && (self.transfers.is_starved(low) || !self.transfers.is_idle(low))
            && self.lanes.laps() >= LARGE_WINDOW_LAPS
    }

    /// Shares the memory of a large window with the peer. `false`: that was not possible, and the small one stays for
    /// good.
    pub fn offer_large_window(&mut self, account: &mut Account, total: u32) -> bool {
        let offered = self.make_window(account, total);
        self.window = offered.map_or(Window::SmallForGood, Window::Offered);
        self.has_large_window()
    }

    fn make_window(&self, account: &mut Account, total: u32) -> Option<Shared> {
        if self.other_user.is_some_and(|user| !account.may_have_bulk(user, total as usize)) {
            return None;
        }
        let (memory, file) = account.create(Kind::Bulk, LARGE_WINDOW_BYTES, self.other_user).ok()?;
        self.socket().send(&Packet::Bulk.to_bytes(), &[file.as_fd()]).ok()?;
        Some(memory)
    }

    /// Does this peer count among those that have a large window?
    pub fn has_large_window(&self) -> bool {
        matches!(self.window, Window::Offered(_) | Window::Large)
    }

    /// Moves to the large window whose memory the peer has been sent.
    pub(super) fn move_to_large_window(&mut self) -> Result<bool, DisconnectReason> {
        let Window::Offered(memory) = &self.window else { return Ok(false) };
        let memory = memory.clone();
        if !self.lanes.push_words(LaneName::Low, MOVE_BULK | PROMPT, &[])? {
            return Ok(false);
        }
        self.lanes.move_outbound(memory);
        self.window = Window::Large;
        Ok(true)
    }

    /// Keeps the memory of a peer's large window until the record that moves there arrives.
    pub fn accept_large_window(&mut self, memory: Shared) {
        self.window_offered = Some(memory);
    }

    /// May the peer still offer a large window?
    pub fn may_be_offered_window(&self) -> bool {
        self.window_offered.is_none() && !self.lanes.has_moved_inbound()
    }

    /// Follows the peer to its large window, where its payloads are from the next record on.
    pub(super) fn follow_to_large_window(
        &mut self,
        priority: Priority,
        header: Header,
    ) -> Result<Step, DisconnectReason> {
        let memory =
            self.window_offered.take_if(|_| priority == Priority::Low).ok_or(DisconnectReason::Broken)?;
        if header.kind & BULK != 0 {
            return Err(DisconnectReason::Broken);
        }
        self.lanes.free(LaneName::Low, header);
        self.lanes.move_inbound(memory);
        Ok(Step::Progress)
    }
}
