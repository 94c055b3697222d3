//! Reading and writing memory of other endpoints, and what they do with memory of this one.

use bywire::Rights;
use bywire_match::rma::{Access, AccessId, Denied, Event, Failure, Place};
use bywire_match::{PeerId, Refused};

use super::Endpoint;
use super::frames::{carry_rma, join_rma};
use super::progress::report_sent;
use super::remote::Link;
use crate::abi::{
    FI_EACCES, FI_EAGAIN, FI_EINVAL, FI_EIO, FI_EMSGSIZE, FI_ENOKEY, FI_READ, FI_REMOTE_CQ_DATA,
    FI_REMOTE_WRITE, FI_RMA,
};
use crate::addresses::Addresses;
use crate::completion::Completion;
use crate::host;
use crate::operation::{ReadHandle, SendHandle};
use crate::outlets::Outlets;
use crate::parameters::PAYLOAD_BYTES_HERE;

/// Frames to this endpoint itself that are under way at a time.
const OWN_FRAMES_MAX: usize = 16;

/// Places that a peer may put into at a time, so that it leaves room in the port for others. It sends further long writes in
/// pieces.
const EXPOSED_MAX: u32 = 1 << 10;

/// The error of an operation that its target does not permit.
fn error_of(denied: Denied) -> i32 {
    match denied {
        Denied::NoMemory => FI_ENOKEY,
        Denied::OutOfBounds | Denied::NoRight => FI_EACCES,
    }
}

impl Endpoint {
    /// Begins to write to memory of the endpoint with an index of the address vector.
    ///
    /// # Errors
    /// [`FI_EAGAIN`] if too much is under way; the error of the target's end; an address that is none.
    pub fn write(
        &mut self,
        (to, place): (u64, Place),
        data: Option<u64>,
        write: SendHandle,
        (outlets, addresses): (&mut Outlets, &Addresses),
    ) -> Result<(), i32> {
        let id = self.target(to, outlets, addresses)?;
        let copied = write.payload.copied_bytes();
        if copied > 0 && self.copied_bytes + copied > super::operations::COPIED_BYTES_MAX {
            return Err(FI_EAGAIN);
        }
        self.rma.write(id, place, data, write).map_err(|(refused, _)| self.rma_refusal(refused, id))?;
        self.copied_bytes += copied;
        self.settle(outlets);
        Ok(())
    }

    /// Begins to read memory of the endpoint with an index of the address vector.
    ///
    /// # Errors
    /// Those of [`Endpoint::write`].
    pub fn read(
        &mut self,
        (from, place): (u64, Place),
        mut read: ReadHandle,
        (outlets, addresses): (&mut Outlets, &Addresses),
    ) -> Result<(), i32> {
        let id = self.target(from, outlets, addresses)?;
        let is_own = self.remotes[id.index()].link == Link::Own;
        if place.length > PAYLOAD_BYTES_HERE as u64 && !is_own {
            let rights = Rights { read: false, write: true };
            read.key = read.buffer().and_then(|buffer| self.port.register(buffer, rights).ok());
        }
        let region = read.key.map(|key| key.0);
        if let Err((refused, read)) = self.rma.read(id, place, region, read) {
            self.withdraw_read(&read);
            return Err(self.rma_refusal(refused, id));
        }
        self.settle(outlets);
        Ok(())
    }

    /// The target of an operation, to which a connection begins if there is none yet.
    fn target(&mut self, to: u64, outlets: &mut Outlets, addresses: &Addresses) -> Result<PeerId, i32> {
        let remote = self.remote_at(to, addresses)?;
        if outlets.is_full(self.bindings.transmit_queue) {
            return Err(FI_EAGAIN);
        }
        match self.remotes[remote].link {
            Link::Idle => self.connect(remote),
            Link::Ending(error) | Link::Ended(error) => return Err(error),
            _ => {}
        }
        Ok(self.remotes[remote].id)
    }

    fn rma_refusal(&self, refused: Refused, id: PeerId) -> i32 {
        match refused {
            Refused::Full => FI_EAGAIN,
            Refused::Ended => self.error_with(id),
            Refused::TooLong => FI_EMSGSIZE,
            Refused::NoClaim | Refused::UnknownPeer => FI_EINVAL,
        }
    }

    /// Takes the memory of a read back.
    fn withdraw_read(&mut self, read: &ReadHandle) {
        if let Some(key) = read.key {
            drop(self.port.revoke(key));
        }
    }

    /// May something arrive for which the program has posted no operation of its own?
    #[inline]
    pub(super) fn has_room(&self, outlets: &mut Outlets) -> bool {
        !self.has_unbidden || !outlets.is_full(self.bindings.receive_queue)
    }

    pub(super) fn transmit_blocked_rma(&mut self) {
        if !self.blocked_rma.is_empty() {
            for id in std::mem::take(&mut self.blocked_rma) {
                self.transmit_rma(id);
            }
        }
    }

    /// Hands out what RMA has, and reports what has ended.
    pub(super) fn settle_rma(&mut self, outlets: &mut Outlets) {
        while !self.rma.is_quiet() {
            while let Some(id) = self.rma.next_ready() {
                self.transmit_rma(id);
            }
            while let Some(event) = self.rma.poll_event() {
                self.report_rma(event, outlets);
            }
        }
    }

    fn transmit_rma(&mut self, id: PeerId) {
        match self.remotes[id.index()].link {
            Link::Open(peer) => {
                let Self { port, rma, regions, scratch, puts, .. } = self;
                let is_all =
                    rma.transmit(id, |frame| carry_rma((&mut *port, peer), &frame, regions, scratch, puts));
                if !is_all && !self.blocked_rma.contains(&id) {
                    self.blocked_rma.push(id);
                }
            }
            Link::Own => self.loop_back_rma(id),
            _ => {}
        }
    }

    fn loop_back_rma(&mut self, id: PeerId) {
        let Self { rma, regions, .. } = self;
        let mut frames = Vec::new();
        loop {
            let is_all = rma.transmit(id, |frame| {
                let mut bytes = Vec::new();
                // Nothing is put: this endpoint exposes nothing to itself.
                let has_room =
                    frames.len() < OWN_FRAMES_MAX && join_rma(&frame, regions, &mut bytes).is_some();
                if has_room {
                    frames.push(bytes);
                }
                has_room
            });
            for frame in frames.drain(..) {
                // What is sent here breaks no rule of its own.
                let _ = rma.arrive(id, &frame, regions);
            }
            if is_all {
                break;
            }
        }
    }

    fn report_rma(&mut self, event: Event<SendHandle, ReadHandle>, outlets: &mut Outlets) {
        match event {
            Event::Written { write, .. } => self.report_write(&write, 0, outlets),
            Event::WriteFailed { write, peer, reason } => {
                let error = self.error_of_failure(reason, peer);
                self.report_write(&write, error, outlets);
            }
            Event::Read { read, .. } => self.report_read(&read, 0, outlets),
            Event::ReadFailed { read, peer, reason } => {
                let error = self.error_of_failure(reason, peer);
                self.report_read(&read, error, outlets);
            }
            Event::Expose { access, peer, place } => self.expose(access, peer, place),
            Event::Withdraw { access } => {
                self.hide(access);
            }
            Event::Accessed { peer, access, place, data } => {
                self.report_access(peer, (access, place), data, outlets);
            }
        }
    }

    fn error_of_failure(&self, reason: Failure, peer: PeerId) -> i32 {
        match reason {
            Failure::Ended => self.error_with(peer),
            Failure::Denied(denied) => error_of(denied),
            Failure::Withdrawn => FI_ENOKEY,
        }
    }

    /// Lets a peer put into a place of a region.
    fn expose(&mut self, access: AccessId, peer: PeerId, place: Place) {
        let remote = &self.remotes[peer.index()];
        let may_put = remote.link != Link::Own && remote.exposed < EXPOSED_MAX;
        let buffer = if may_put { self.regions.buffer(place) } else { None };
        let rights = Rights { read: false, write: true };
        let key = buffer.and_then(|buffer| self.port.register(buffer, rights).ok());
        if let Some(key) = key {
            self.exposures.insert(access, (key, peer));
            let remote = &mut self.remotes[peer.index()];
            remote.exposed += 1;
            if remote.exposed == EXPOSED_MAX {
                host::inform(&format!("{:?} sends further writes in pieces for now", remote.name));
            }
        }
        if !self.rma.grant(access, key.map(|key| key.0)) {
            self.hide(access);
        }
    }

    /// Takes a place back.
    fn hide(&mut self, access: AccessId) {
        if let Some((key, peer)) = self.exposures.remove(&access) {
            drop(self.port.revoke(key));
            self.remotes[peer.index()].exposed -= 1;
        }
    }

    fn report_write(&mut self, write: &SendHandle, error: i32, outlets: &mut Outlets) {
        self.copied_bytes -= write.payload.copied_bytes();
        report_sent(&self.bindings, self.bindings.write_counter, write.report, error, outlets);
    }

    fn report_read(&mut self, read: &ReadHandle, error: i32, outlets: &mut Outlets) {
        self.withdraw_read(read);
        outlets.count(self.bindings.read_counter, error);
        if error == 0 && !read.is_reported {
            return;
        }
        let flags = FI_RMA | FI_READ;
        let completion = Completion { context: read.context, flags, error, ..Completion::default() };
        outlets.report(self.bindings.transmit_queue, completion);
    }

    /// Tells the program what a peer has done with its memory, as far as it wants to know.
    fn report_access(
        &mut self,
        peer: PeerId,
        (access, place): (Access, Place),
        data: Option<u64>,
        outlets: &mut Outlets,
    ) {
        let region = self.regions.region(place.key);
        let counters = match access {
            Access::Read => {
                [self.bindings.remote_read_counter, region.and_then(|region| region.read_counter)]
            }
            Access::Write => {
                [self.bindings.remote_write_counter, region.and_then(|region| region.write_counter)]
            }
        };
        counters.into_iter().for_each(|counter| outlets.count(counter, 0));
        if let Some(data) = data {
            self.has_unbidden = true;
            let flags = FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA;
            let (length, source) = (place.length, self.address_of(peer));
            let completion = Completion { flags, length, data, source, ..Completion::default() };
            outlets.report(self.bindings.receive_queue, completion);
        }
    }

    /// A region of the domain is closed: from now on nobody writes to its memory, and only puts that are under way read it.
    pub fn withdraw_region(&mut self, key: u64, outlets: &mut Outlets) {
        self.rma.withdraw(key);
        self.settle(outlets);
    }

    /// Do puts read the memory of a region that was closed?
    pub fn puts_region(&self, key: u64) -> bool {
        self.rma.is_being_put(key)
    }

    /// Ends the connections over which such puts go.
    pub fn end_puts_of_region(&mut self, key: u64) {
        for id in self.rma.peers_that_read(key) {
            self.end(id.index(), FI_EIO);
        }
    }

    /// Drops an endpoint that cannot be ended in order. What is under way fails.
    pub fn abandon(mut self, outlets: &mut Outlets) {
        host::warn(&format!("endpoint {:?} is given up: its port keeps memory", self.name));
        for remote in &mut self.remotes {
            remote.link = Link::Ended(FI_EIO);
            self.matchers.iter_mut().for_each(|matcher| matcher.disconnected(remote.id));
            self.rma.disconnected(remote.id);
        }
        // The program does not see that before the port is gone: the domain's lock is held.
        self.settle(outlets);
    }
}
