//! The port: everything that belongs to one endpoint.

mod establish;
mod fabric;
mod hot;
mod incoming;
mod lending;
mod peer_socket;
mod polling;
mod random_numbers;
mod remote_peer;
mod sending;
mod slots;
mod spin;
mod waiting;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use bywire_ring::doorbell::{self, DOORBELL_BYTES};
use bywire_ring::memory::Shared;
use bywire_sys::fork::ForkGuard;
use bywire_sys::memory::Mapping;
use bywire_sys::poller::Poller;
use bywire_sys::{clock, process, wake};

use crate::message::address::{Address, PortName};
use crate::message::error::{OpenError, SendError};
use crate::message::event::Event;
use crate::message::lend::Returns;
use crate::message::options::{PortOptions, REMOTE_FRAGMENT_BYTES_MAX, Reach, SEND_TOKENS_MAX};
use crate::message::peer::{Peer, PeerInfo, Priority};
use crate::message::resources::Resources;
use crate::shm::account::Account;
use crate::shm::runtime::{Claim, RuntimeDirectory};
use fabric::Fabric;
use hot::HotPeers;
use incoming::{Incoming, Tag};
use random_numbers::RandomNumbers;
use slots::{Slot, Slots};
use spin::Spin;

pub use remote_peer::PacketCounts;

/// A protected message endpoint. It belongs to one thread at a time and may move between threads.
///
/// In a forked child an inherited port is inert: it polls nothing, every call that can fail returns `Forked`, and
/// dropping it leaves the parent's port alone.
pub struct Port {
    guard: Arc<ForkGuard>,
    options: PortOptions,
    directory: RuntimeDirectory,
    claim: Claim,
    node: String,
    incarnation: u64,
    slots: Slots,
    resources: Resources,
    /// The memory made for peers of other users.
    account: Account,
    /// Borrowed blocks that the program is done with.
    returns: Arc<Returns>,
    /// Peers that may still get a large window.
    large_windows_left: u32,
    incoming: Incoming,
    /// The state for other machines, once it is needed.
    fabric: Option<Box<Fabric>>,
    poller: Poller,
    doorbell: wake::Doorbell,
    /// Our own page, which every peer may read. It says whether we sleep.
    page: Shared,
    page_file: OwnedFd,
    sleeper: doorbell::Sleeper,
    /// The program may be waiting on the descriptor. The next poll deals with the cause of its readiness.
    is_armed: bool,
    spin: Spin,
    hot: HotPeers,
    /// The next quiet peer to look at.
    scan_next: u32,
    /// Connections with something to push or to confirm.
    pending: Vec<u32>,
    polls: u32,
    /// Has the last poll moved something without reporting an event?
    progressed: bool,
    /// Did one of the hot peers owe an answer at the last look at their lanes?
    expects_replies: bool,
    housekeeping_due: u64,
    /// The option `housekeeping_interval`.
    housekeeping_cycles: u64,
    next_transfer: u64,
    random_numbers: RandomNumbers,
    statistics: Statistics,
}

/// Counters of a port, since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Datagrams that found no room and were dropped at this end.
    pub datagrams_unsent: u64,
    /// Datagrams that arrived damaged and were dropped.
    pub datagrams_damaged: u64,
    /// Incoming connections that were turned away.
    pub refused: u64,
    /// Times that the port slept.
    pub sleeps: u64,
}

impl Port {
    /// Opens a port on this node.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(options: PortOptions) -> Result<Self, OpenError> {
        check(&options)?;
        let directory = RuntimeDirectory::open(options.runtime_directory.as_deref())?;
        let system = OpenError::System;
        let (page, page_file) = Mapping::create("bywire-port", DOORBELL_BYTES).map_err(system)?;
        let doorbell = wake::Doorbell::new().map_err(system)?;
        let eventfd = wake::Eventfd::new().map_err(system)?;
        let poller = Poller::new().map_err(system)?;
        poller.add(&doorbell, Tag::Doorbell.bits()).map_err(system)?;
        poller.add(&eventfd, Tag::Wakeup.bits()).map_err(system)?;
        let guard = Arc::new(ForkGuard::new().map_err(system)?);
        let resources = Resources::new(&options);
        let incoming = Incoming::new().map_err(system)?;
        poller.add(&incoming.timer, Tag::Timer.bits()).map_err(system)?;
        let mut random = [0; 8];
        process::random(&mut random).map_err(system)?;
        // The name comes last: a failure before this leaves no name behind.
        let claim = directory.claim(options.name.as_ref(), options.admit)?;
        if let Err(error) = poller.add(&claim.listener, Tag::Listener.bits()) {
            claim.release();
            return Err(system(error));
        }
        let mut port = Self {
            guard,
            node: process::host_name(),
            incarnation: u64::from_ne_bytes(random),
            slots: Slots::default(),
            resources,
            account: Account::default(),
            returns: Arc::new(Returns::new(eventfd)),
            large_windows_left: options.large_window_peers_max,
            incoming,
            fabric: None,
            poller,
            doorbell,
            page: Shared::new(page),
            page_file,
            sleeper: doorbell::Sleeper::default(),
            is_armed: false,
            spin: Spin::new(options.spin),
            hot: HotPeers::new(),
            scan_next: 0,
            pending: Vec::new(),
            polls: 0,
            progressed: false,
            expects_replies: false,
            housekeeping_due: 0,
            housekeeping_cycles: clock::cycles_in(options.housekeeping_interval),
            next_transfer: 1,
            random_numbers: RandomNumbers::default(),
            statistics: Statistics::default(),
            directory,
            options,
            claim,
        };
        if port.options.reach == Reach::Fabric {
            port.join_fabric()?;
        }
        Ok(port)
    }

    /// This port's name.
    pub fn name(&self) -> &PortName {
        &self.claim.name
    }

    /// The address of this port for peers on this node, and for those on others if it was opened with
    /// [`crate::Reach::Fabric`].
    pub fn address(&self) -> Address {
        let of_fabric = self.fabric.as_deref().and_then(|fabric| fabric.node.as_ref());
        let node = of_fabric.filter(|_| self.options.reach == Reach::Fabric).unwrap_or(&self.node);
        Address { node: node.clone(), port: self.claim.name.clone() }
    }

    /// Information about a peer. `None` while it connects, and once its [`crate::Event::Disconnected`] has been
    /// taken.
    pub fn peer_info(&self, peer: Peer) -> Option<&PeerInfo> {
        self.slots.info(peer)
    }

    /// The connected peers.
    pub fn peers(&self) -> impl Iterator<Item = Peer> + '_ {
        self.slots
            .indices()
            .filter_map(|index| self.slots.peer_at(index))
            .filter(|peer| matches!(self.slots.peek(*peer), Some(Slot::Ring(_) | Slot::Wire(_))))
    }

    /// The port's counters.
    pub fn statistics(&self) -> Statistics {
        Statistics { datagrams_damaged: self.resources.datagrams_dropped, ..self.statistics }
    }

    /// The options that the port was opened with.
    pub fn options(&self) -> &PortOptions {
        &self.options
    }
}

/// Lets other machines reach a port that was opened for its own machine. This is for a confined program, whose port has
/// to get its name in the runtime directory of the node's service from another program first.
///
/// # Errors
/// [`OpenError::Fabric`]. The port stays open for its own machine.
pub fn reach_fabric(port: &mut Port) -> Result<(), OpenError> {
    port.options.reach = Reach::Fabric;
    let joined = port.join_fabric();
    if joined.is_err() {
        port.options.reach = Reach::Machine;
    }
    joined
}

/// Sends a datagram that others to the same peer follow at once. Between machines it leaves with the last of them, which
/// [`Port::send_datagram`] sends, and at the latest with the next poll. So they fill batches. Bywire's own Ethernet uses it.
///
/// # Errors
/// Those of [`Port::send_datagram`].
pub fn send_followed_datagram(
    port: &mut Port,
    peer: Peer,
    priority: Priority,
    bytes: &[u8],
) -> Result<bool, SendError> {
    port.send_one_datagram(peer, priority, bytes, true)
}

/// The counts of packets to a peer. `None`: it is not connected, or is on this machine. Bywire's own Ethernet reports them.
pub fn packet_counts(port: &Port, peer: Peer) -> Option<PacketCounts> {
    match port.slots.peek(peer) {
        Some(Slot::Wire(remote)) => Some(remote.packet_counts()),
        _ => None,
    }
}

/// Looks for an event as long as [`Port::wait`] spins before it sleeps. Ends early if something has moved on without an event, as
/// [`Port::has_progressed`] then says. This is for a program that shares a port between threads, and so sleeps on the descriptor
/// without the port.
pub fn spin(port: &mut Port) -> Option<Event> {
    port.guard.is_owner().then(|| port.spin_once()).flatten()
}

/// Notes how long such a program has slept, by which the port decides how long to spin.
pub fn sleep_ended(port: &mut Port, slept: Duration) {
    port.spin.woken_after(clock::cycles_in(slept));
}

/// The number that tells this port from earlier ones of its name, which peers find in [`PeerInfo::incarnation`]. This is for
/// a program that tells others its address by means of its own, so that they recognise this very port.
pub fn incarnation(port: &Port) -> u64 {
    port.incarnation
}

impl AsFd for Port {
    /// After [`Port::arm`], readable as soon as there may be an event.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        if !self.guard.is_owner() {
            return;
        }
        // First the name, then the listener: a name in the directory always has a listener.
        self.claim.release();
        for index in self.slots.indices() {
            if let Some(connection) = self.slots.ring_at(index) {
                connection.begin_close(&mut self.resources);
                connection.socket().shut_down();
            }
        }
        self.leave_all();
    }
}

impl std::fmt::Debug for Port {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Port")
            .field("name", &self.claim.name)
            .field("peers", &self.slots.len())
            .finish()
    }
}

fn check(options: &PortOptions) -> Result<(), OpenError> {
    let bad = |what: &str| Err(OpenError::BadOption(what.to_owned()));
    if options.geometry.check().is_err() {
        return bad(
            "geometry: slots are a power of two from 8 to 8192, bulk_bytes one from 4 KiB to 8 MiB that holds four fragments, and fragments 512 to 65472 bytes in steps of 64",
        );
    }
    if options.remote_fragment_bytes > REMOTE_FRAGMENT_BYTES_MAX {
        return bad("remote_fragment_bytes is at most 65536");
    }
    if !(1..=SEND_TOKENS_MAX).contains(&options.send_tokens) {
        return bad("send_tokens is 1 to 256");
    }
    if options.message_bytes_max > 1 << 40 {
        return bad("message_bytes_max is at most 2^40");
    }
    if let Some(PortName::Name(name)) = &options.name {
        // A name that was made by hand may be invalid.
        name.parse::<PortName>().map_err(|error| OpenError::BadOption(error.to_string()))?;
    }
    Ok(())
}
