//! Peers on other machines: the port's UDP sockets, its registration with this machine's node, and when to read either.
//!
//! A port has none of this before it needs it. Packets of the node and of the network are processed in calls of the
//! program. There is no thread.

mod calls;
mod disconnect;
mod events;
#[cfg(test)]
mod fixture;
mod packets;
mod read_interval;
mod runs;
mod service;
mod sockets;
#[cfg(test)]
mod tests;
mod timers;

use std::collections::HashMap;
use std::time::Duration;

use bywire_sys::udp::{BATCH_BYTES_MAX, BATCH_PACKETS_MAX, RECEIVE_BYTES};
use bywire_sys::{Errno, clock, names, process, wake};
use bywire_wire::batch::Batch;

use crate::message::error::NoFabric;
use crate::shm::runtime::RuntimeDirectory;
use read_interval::ReadInterval;
use service::Service;
use sockets::{Sockets, Stalled};
use timers::Timers;

/// How long the answer to a registration may take while a port is opened.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(5);

/// A port's state for peers on other machines.
pub(super) struct Fabric {
    service: Service,
    sockets: Sockets,
    /// Wakes a program that sleeps on the port's descriptor when something is due.
    pub timer: wake::Timer,
    /// When that timer ends. It may be too early, but never too late.
    timer_ends_ns: Option<u64>,
    /// Why the node was last lost.
    refused: Option<NoFabric>,
    /// This machine's name in the fabric, once the node has reported it.
    pub node: Option<String>,
    names: Names,
    /// The slot of each connection, by this end's number, which is in the packets to this end.
    numbers: HashMap<u32, u32>,
    /// The number and the slot of the last packet.
    last_from: Option<(u32, u32)>,
    next_number: u32,
    timers: Timers,
    /// Peers from which something can be received, in turn.
    ready: std::collections::VecDeque<u32>,
    /// Peers with a message that waits for a buffer, and the count of changes that may help.
    held_up: Vec<u32>,
    looks: u64,
    /// Peers that have sent something since packets were last sent to them.
    touched: Vec<u32>,
    /// Peers that have sent something since the port last slept. They may wait for an acknowledgement.
    recent: Vec<u32>,
    /// Peers whose packets have ended or established their connection.
    news: Vec<u32>,
    buffer: Box<[u8]>,
    batch: Batch,
    stalled: Option<Stalled>,
    read_interval: ReadInterval,
}

/// The names of this process's user and of the admitted group. Other machines know these names only.
#[derive(Debug, Default)]
struct Names {
    user: Option<String>,
    group: Option<String>,
}

impl Fabric {
    pub fn new(directory: &RuntimeDirectory, admitted_group: Option<u32>) -> Result<Self, Errno> {
        let mut random = [0; 4];
        process::random(&mut random)?;
        Ok(Self {
            service: Service::new(directory),
            sockets: Sockets::new()?,
            timer: wake::Timer::new()?,
            timer_ends_ns: None,
            refused: None,
            node: None,
            names: Names {
                user: names::user_name(process::user()),
                group: admitted_group.and_then(names::group_name),
            },
            numbers: HashMap::new(),
            last_from: None,
            next_number: u32::from_ne_bytes(random),
            timers: Timers::default(),
            ready: std::collections::VecDeque::new(),
            held_up: Vec::new(),
            looks: 0,
            touched: Vec::new(),
            recent: Vec::new(),
            news: Vec::new(),
            buffer: vec![0; RECEIVE_BYTES].into(),
            batch: Batch::new(BATCH_BYTES_MAX, BATCH_PACKETS_MAX),
            stalled: None,
            read_interval: ReadInterval::default(),
        })
    }

    /// A number for the connection in a slot. Each number stays unused for as long as possible.
    fn take_number(&mut self, index: u32) -> u32 {
        loop {
            self.next_number = self.next_number.wrapping_add(1);
            if !self.numbers.contains_key(&self.next_number) {
                self.numbers.insert(self.next_number, index);
                return self.next_number;
            }
        }
    }

    /// The slot of the connection with this number.
    pub fn slot_of(&self, number: u32) -> Option<u32> {
        self.numbers.get(&number).copied()
    }

    /// Forgets a connection.
    fn forget(&mut self, number: u32, index: u32) {
        self.numbers.remove(&number);
        self.last_from = None;
        self.sockets.disconnect(index);
        self.timers.forget(index);
        self.ready.retain(|ready| *ready != index);
        self.held_up.retain(|held| *held != index);
        self.touched.retain(|touched| *touched != index);
        self.recent.retain(|recent| *recent != index);
        self.news.retain(|news| *news != index);
    }
}

impl Names {
    /// Is a user of another machine ours, or root, by name? User numbers of two machines are not comparable.
    fn is_own_or_root(&self, user: &str) -> bool {
        is_name(user) && (user == "root" || self.user.as_deref() == Some(user))
    }

    fn is_in_group(&self, groups: &[String]) -> bool {
        let is_it = |name: &String| is_name(name) && self.group.as_ref() == Some(name);
        groups.iter().any(is_it)
    }
}

/// Is it a name, and not the number of a user without one?
fn is_name(text: &str) -> bool {
    !text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The time of the clock for connections.
fn now_ns() -> u64 {
    clock::nanoseconds()
}
