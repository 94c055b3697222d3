//! The state that is shared by the state machines of all other nodes.

use std::collections::{BTreeMap, VecDeque};

use crate::connection::State;
use crate::handshake::{Identity, PublicKey};
use crate::random::{Random, draw};

use super::established::Channel;
use super::out::Out;
use super::status::Event;

/// The most closed channels whose other ends may not know it yet.
const CLOSING_MAX: usize = 64;
/// How long these are kept.
const CLOSING_NS: u64 = 1_000_000_000;

/// The settings.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Has the processor instructions for AES? If both have them, packets are sealed with AES-256-GCM.
    pub has_aes: bool,
}

/// The state that is shared by all nodes.
#[derive(Debug)]
pub(super) struct Shared {
    pub identity: Identity,
    pub options: Options,
    /// Hellos that this incarnation has sent.
    pub hellos: u64,
    /// Sessions that this incarnation has numbered.
    sessions: u32,
    /// The node of each channel number, both of channels that exist and of those under way.
    pub numbers: BTreeMap<u32, PublicKey>,
    pub events: VecDeque<Event>,
    pub out: Out,
    /// Closed channels by their numbers, with the time at which they are forgotten.
    pub closing: BTreeMap<u32, (Channel, u64)>,
}

impl Shared {
    pub fn new(identity: Identity, options: Options) -> Self {
        Self {
            identity,
            options,
            hellos: 0,
            sessions: 0,
            numbers: BTreeMap::new(),
            events: VecDeque::new(),
            out: Out::default(),
            closing: BTreeMap::new(),
        }
    }

    /// Tells the other end of a closed channel repeatedly, until it answers.
    pub fn keep_closing(&mut self, now_ns: u64, channel: Channel) {
        let is_own = matches!(channel.connection.state(), State::ClosedHere(_) | State::Broken(_));
        if is_own && self.closing.len() < CLOSING_MAX {
            self.closing.insert(channel.number, (channel, now_ns.saturating_add(CLOSING_NS)));
        }
    }

    /// When a closed channel has work to do.
    pub fn closing_timeout_ns(&self) -> Option<u64> {
        let timeouts = self
            .closing
            .values()
            .map(|(channel, until_ns)| channel.connection.next_timeout_ns().unwrap_or(0).min(*until_ns));
        timeouts.min()
    }

    /// Does the work of closed channels. Those that are known to be closed, or that were kept long enough, are
    /// forgotten.
    pub fn transmit_closing(&mut self, now_ns: u64) {
        let Self { closing, out, .. } = self;
        closing.retain(|_, (channel, until_ns)| {
            channel.flush(now_ns, out);
            now_ns < *until_ns && channel.connection.next_timeout_ns().is_some()
        });
    }

    /// A number that no session of this incarnation has had with any node. So a node that is removed and added again
    /// does not continue an old session.
    pub fn next_session(&mut self) -> u32 {
        self.sessions = self.sessions.wrapping_add(1);
        self.sessions
    }

    /// A number that no channel has.
    pub fn draw_number(&mut self, random: Random, node: PublicKey) -> u32 {
        let mut number = u32::from_le_bytes(draw(random));
        while number == 0 || self.numbers.contains_key(&number) || self.closing.contains_key(&number) {
            number = number.wrapping_add(1);
        }
        self.numbers.insert(number, node);
        number
    }
}
