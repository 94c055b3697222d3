//! Resources that all connections of a port share: receive buffers, regions, tokens, events to report.

use std::collections::{HashMap, VecDeque};

use bywire_ring::geometry::INLINE_BYTES;

use crate::message::buffer::Buffer;
use crate::message::event::Event;
use crate::message::options::PortOptions;
use crate::message::peer::Priority;
use crate::message::region::Regions;
use crate::message::share::{OtherUser, is_within_share};

/// The most events that wait. Beyond it, nothing that makes more events is dealt with before the program has taken
/// some.
pub(crate) const EVENTS_MAX: usize = 4096;
/// The most memory of waiting messages, from peers that have ended. Beyond it, the same holds.
const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// Spare buffers kept for messages of one fragment.
const SPARE_MAX: usize = 256;
/// The longest of them has room for the longest fragment and a head.
const SPARE_BYTES_MAX: usize = (64 << 10) + INLINE_BYTES;

pub(crate) struct Resources {
    pub events: VecDeque<Event>,
    /// The memory of messages among the events.
    message_bytes: usize,
    pub regions: Regions,
    pub message_bytes_max: u64,
    /// Datagrams that were dropped because they were damaged.
    pub datagrams_dropped: u64,
    /// Asynchronous transfers outstanding, by priority.
    tokens_out: [u32; 2],
    tokens_max: u32,
    /// Posted receive buffers, by priority, shortest first.
    posted: [VecDeque<Buffer>; 2],
    /// Buffers for messages of one fragment, so that receiving them allocates nothing.
    spare: Vec<Vec<u8>>,
    /// Buffers ever posted, by priority.
    posts: [u64; 2],
    /// Posted buffers that other users' messages fill, by priority and user.
    held: [HashMap<OtherUser, usize>; 2],
    /// How often another user has given a posted buffer back, by priority.
    releases: [u64; 2],
}

/// The buffer for a long message.
pub(crate) enum Fitting {
    Buffer(Buffer),
    /// No posted buffer is large enough.
    Missing,
    /// Its user, or other users together, already have their share of the posted buffers.
    Shared,
}

impl Resources {
    pub fn new(options: &PortOptions) -> Self {
        Self {
            events: VecDeque::with_capacity(64),
            message_bytes: 0,
            regions: Regions::default(),
            message_bytes_max: options.message_bytes_max,
            datagrams_dropped: 0,
            tokens_out: [0; 2],
            tokens_max: options.send_tokens,
            posted: Default::default(),
            spare: Vec::with_capacity(SPARE_MAX),
            posts: [0; 2],
            held: Default::default(),
            releases: [0; 2],
        }
    }

    /// Keeps an event of a peer that has ended until the program takes it.
    pub fn put_by(&mut self, event: Event) {
        self.message_bytes += message_bytes(&event);
        self.events.push_back(event);
    }

    /// The next event that waits.
    pub fn next_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        self.message_bytes -= message_bytes(&event);
        Some(event)
    }

    /// Do so many events wait, or so much memory in them, that no peer may bring more?
    pub fn is_full(&self) -> bool {
        self.events.len() >= EVENTS_MAX || self.message_bytes >= MESSAGE_BYTES_MAX
    }

    /// Takes a send token. `false`: all are in use.
    pub fn take_token(&mut self, priority: Priority) -> bool {
        let out = &mut self.tokens_out[priority as usize];
        let free = *out < self.tokens_max;
        *out += u32::from(free);
        free
    }

    /// Reports a completion and takes its token back.
    pub fn complete(&mut self, event: Event, priority: Priority) {
        self.tokens_out[priority as usize] -= 1;
        self.events.push_back(event);
    }

    /// Receive buffers posted for a priority.
    pub fn posted(&self, priority: Priority) -> usize {
        self.posted[priority as usize].len()
    }

    pub fn post(&mut self, priority: Priority, buffer: Buffer) {
        self.posts[priority as usize] += 1;
        let queue = &mut self.posted[priority as usize];
        let length = buffer.as_ref().len();
        // Before those of its length: the one posted last is the likeliest to be in a cache still.
        let place = queue.partition_point(|other| other.as_ref().len() < length);
        queue.insert(place, buffer);
    }

    /// How many buffers were ever posted for a priority.
    pub fn posts(&self, priority: Priority) -> u64 {
        self.posts[priority as usize]
    }

    /// A count that changes when a message that found no buffer may find one.
    pub fn looks(&self, priority: Priority) -> u64 {
        self.posts[priority as usize] + self.releases[priority as usize]
    }

    /// The shortest posted buffer of at least `length` bytes. Another user has a share of the posted buffers at a
    /// time, until [`Self::release`].
    pub fn take_fitting(
        &mut self,
        priority: Priority,
        length: u64,
        other_user: Option<&OtherUser>,
    ) -> Fitting {
        let queue = &mut self.posted[priority as usize];
        let place = queue.partition_point(|buffer| (buffer.as_ref().len() as u64) < length);
        if place == queue.len() {
            return Fitting::Missing;
        }
        if let Some(user) = other_user {
            let held = &mut self.held[priority as usize];
            let all = held.values().sum::<usize>();
            let own = held.get(user).copied().unwrap_or_default();
            if !is_within_share(queue.len() + all, own, all) {
                return Fitting::Shared;
            }
            held.insert(user.clone(), own + 1);
        }
        queue.remove(place).map_or(Fitting::Missing, Fitting::Buffer)
    }

    /// Notes that a message no longer fills the posted buffer that it took.
    pub fn release(&mut self, priority: Priority, other_user: Option<&OtherUser>) {
        let Some(user) = other_user else { return };
        let held = &mut self.held[priority as usize];
        if let Some(own) = held.get_mut(user) {
            *own -= 1;
            if *own == 0 {
                held.remove(user);
            }
        }
        self.releases[priority as usize] += 1;
    }

    /// A buffer of at least `length` bytes for a message of one fragment.
    #[inline]
    pub fn spare(&mut self, length: usize) -> Vec<u8> {
        match self.spare.pop() {
            Some(buffer) if buffer.len() >= length => buffer,
            _ => vec![0; length.next_power_of_two().clamp(4096, SPARE_BYTES_MAX).max(length)],
        }
    }

    /// Keeps a buffer for later messages of one fragment.
    #[inline]
    pub fn keep(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < SPARE_MAX && (4096..=SPARE_BYTES_MAX).contains(&buffer.len()) {
            self.spare.push(buffer);
        }
    }
}

/// The memory of a waiting event. Only events of [`Resources::put_by`] have any.
fn message_bytes(event: &Event) -> usize {
    match event {
        Event::Message(message) | Event::Datagram(message) => message.payload.memory_bytes(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_recently_posted_buffer_of_a_length_is_filled_first() {
        let mut resources = Resources::new(&PortOptions::default());
        let lengths = [4, 8, 8, 16];
        for (mark, length) in lengths.into_iter().enumerate() {
            resources.post(Priority::Low, vec![mark as u8; length].into());
        }
        let filled: Vec<u8> = std::iter::from_fn(|| match resources.take_fitting(Priority::Low, 5, None) {
            Fitting::Buffer(buffer) => Some(buffer.as_ref()[0]),
            _ => None,
        })
        .collect();
        assert_eq!(filled, [2, 1, 3], "the smallest that fits, and of equal ones the newest");
    }
}
