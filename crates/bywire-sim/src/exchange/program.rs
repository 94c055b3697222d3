//! The program at one end: its random operations, and its handling of events.

use std::collections::BTreeMap;

use bywire::harness::End;
use bywire::{Confirm, DisconnectReason, Event, Key, Priority, Rights, SendError, TransferError};
use rand::Rng;
use rand::rngs::StdRng;

use super::expected::{Direction, Keys, Message, Put, REGION_BYTES, Transfer, Transfers, bytes, half};
use super::tally::Counts;

const PRIORITIES: [Priority; 2] = [Priority::Low, Priority::High];
const SHARED: Rights = Rights { read: true, write: true };
const CONSTANT: Rights = Rights { read: true, write: false };
/// The seed of the constant region of each end.
const CONSTANT_SALT: u64 = 77;
/// The bytes of the constant region and of the revocable one.
const SMALL_REGION_BYTES: usize = 100_000;

/// One end and its program.
pub struct Program {
    pub end: End,
    pub keys: Keys,
    transfers: Transfers,
    /// Operations and bytes that it has still to begin.
    operations: u32,
    bytes: usize,
    longest: usize,
    next_salt: u64,
    /// Buffers that it has to post, with their times.
    owed: Vec<(u64, Priority, usize)>,
    needs_room: [bool; 2],
    /// Sends that found no room, less the reports of room.
    asked_for_room: u32,
    pub gone: Option<DisconnectReason>,
    /// The longest delay before a buffer is posted.
    delay_ns: u64,
    is_fleeting_alive: bool,
    /// The sizes of small buffers posted, so that each need is met in the end.
    small_posts: BTreeMap<u64, u32>,
}

impl Program {
    pub fn new(index: usize, mut end: End, random: &mut StdRng) -> Self {
        let shared = end.register(vec![0; REGION_BYTES], SHARED);
        let constant = end.register(bytes(CONSTANT_SALT, SMALL_REGION_BYTES), CONSTANT);
        let fleeting = end.register(vec![0; SMALL_REGION_BYTES], SHARED);
        let is_busy = random.random_bool(0.8);
        Self {
            end,
            keys: Keys { shared, constant, fleeting },
            transfers: Transfers::default(),
            operations: if is_busy { random.random_range(1..120) } else { 0 },
            bytes: 1 << if random.random_bool(0.05) { 22 } else { random.random_range(10..20) },
            longest: 1 << random.random_range(6..20),
            next_salt: (index as u64) << 40,
            owed: Vec::new(),
            needs_room: [false; 2],
            asked_for_room: 0,
            gone: None,
            delay_ns: random.random_range(1..20_000_000),
            is_fleeting_alive: true,
            small_posts: BTreeMap::new(),
        }
    }

    /// Has it begun everything, has all of it ended, and has it been told of the room that it waits for?
    pub fn is_done(&self) -> bool {
        self.operations == 0 && self.transfers.is_empty() && self.needs_room == [false; 2]
    }

    /// Has everything ended that it has begun?
    pub fn is_ended(&self) -> bool {
        self.transfers.is_empty()
    }

    /// Does it still begin operations?
    pub fn is_busy(&self) -> bool {
        self.operations > 0 && !self.end.is_over()
    }

    /// Stops beginning operations.
    pub fn stop(&mut self) {
        self.operations = 0;
    }

    /// When it has to post its next buffer.
    pub fn next_post_ns(&self) -> Option<u64> {
        self.owed.iter().map(|(at_ns, ..)| *at_ns).min()
    }

    /// Posts the buffers that are due.
    pub fn post(&mut self, now_ns: u64, counts: &mut Counts) {
        let due = self.owed.extract_if(.., |(at_ns, ..)| *at_ns <= now_ns);
        for (_, priority, length) in due {
            self.end.post_receive(priority, vec![0; length]);
            counts.add("buffers posted late", 1);
        }
    }

    fn salt(&mut self) -> u64 {
        self.next_salt += 1;
        self.next_salt
    }

    fn length(&mut self, random: &mut StdRng) -> usize {
        let longest = if random.random_bool(0.5) { 100 } else { self.longest };
        let length = random.random_range(0..=longest.min(self.bytes));
        self.bytes -= length;
        length
    }

    /// Begins one operation.
    pub fn begin(
        &mut self,
        to: &mut Direction,
        peer: Keys,
        random: &mut StdRng,
        counts: &mut Counts,
    ) -> Result<(), String> {
        self.operations -= 1;
        let priority = PRIORITIES[random.random_range(0..2)];
        match random.random_range(0..100) {
            0..35 => self.send_now(to, priority, random, counts),
            35..60 => self.send_buffer(to, priority, random, counts),
            60..75 => self.put(to, peer, priority, random, counts),
            75..80 => self.put_in_vain(peer, priority, random, counts),
            80..90 => self.get(peer, priority, random, counts),
            90..92 => {
                if self.is_fleeting_alive {
                    self.is_fleeting_alive = false;
                    let revoked = self.end.revoke(self.keys.fleeting);
                    counts.add("regions revoked", 1);
                    return revoked.map(drop).ok_or_else(|| "a region was gone".to_owned());
                }
                Ok(())
            }
            _ => self.send_datagram(to, priority, random),
        }
    }

    fn send_now(
        &mut self,
        to: &mut Direction,
        priority: Priority,
        random: &mut StdRng,
        counts: &mut Counts,
    ) -> Result<(), String> {
        // A burst, as for a gathered send, or more than there is room for.
        let is_flood = random.random_bool(0.02);
        let most = if is_flood { usize::MAX } else { random.random_range(1..20) };
        for _ in 0..most {
            let longest = self.end.short_bytes();
            let length = if is_flood { longest } else { self.length(random).min(longest) };
            let message = Message { salt: self.salt(), length };
            to.send(priority, message);
            match self.end.send_headed(priority, &bytes(message.salt, length)) {
                Ok(()) => counts.add("messages sent at once", 1),
                Err(SendError::Full) => {
                    to.unsend(priority);
                    self.needs_room[priority as usize] = true;
                    self.asked_for_room += 1;
                    counts.add("sends that found no room", 1);
                    return Ok(());
                }
                Err(error) => return Err(format!("a send failed: {error}")),
            }
        }
        Ok(())
    }

    fn send_buffer(
        &mut self,
        to: &mut Direction,
        priority: Priority,
        random: &mut StdRng,
        counts: &mut Counts,
    ) -> Result<(), String> {
        let is_delivered = random.random_bool(0.3);
        let confirm = if is_delivered { Confirm::Delivered } else { Confirm::Copied };
        let message = Message { salt: self.salt(), length: self.length(random) };
        let number = to.send(priority, message);
        match self.end.send_buffer(priority, bytes(message.salt, message.length), confirm) {
            Ok(id) => self.transfers.begin(id, Transfer::Message { message, priority, number, is_delivered }),
            Err(unsent) => {
                to.unsend(priority);
                return no_token(&unsent.error, counts);
            }
        }
        Ok(())
    }

    fn put(
        &mut self,
        to: &mut Direction,
        peer: Keys,
        priority: Priority,
        random: &mut StdRng,
        counts: &mut Counts,
    ) -> Result<(), String> {
        let (salt, whole) = (self.salt(), half(priority as usize));
        let length = self.length(random).min(whole.len());
        let start = whole.start + random.random_range(0..=whole.len() - length);
        let is_noted = random.random_bool(0.5);
        let note = [&[priority as u8], &salt.to_le_bytes()[..]].concat();
        let note = is_noted.then_some(&note[..]);
        let target = (peer.shared, start as u64);
        match self.end.put(priority, target, bytes(salt, length), note) {
            Ok(id) => {
                self.transfers.begin(id, Transfer::Put { salt, length, allowed: vec![Ok(())] });
                to.put(priority, Put { salt, range: start..start + length, is_noted });
                Ok(())
            }
            Err(unsent) => no_token(&unsent.error, counts),
        }
    }

    /// A put that cannot succeed, or need not.
    fn put_in_vain(
        &mut self,
        peer: Keys,
        priority: Priority,
        random: &mut StdRng,
        counts: &mut Counts,
    ) -> Result<(), String> {
        let (salt, length) = (self.salt(), self.length(random).min(SMALL_REGION_BYTES));
        let beyond = (REGION_BYTES - length + 1) as u64;
        let (target, allowed) = match random.random_range(0..4) {
            0 => ((peer.shared, beyond), vec![Err(TransferError::OutOfRange)]),
            1 => ((peer.constant, 0), vec![Err(TransferError::NoRight)]),
            2 => ((Key(peer.shared.0 ^ 1 << 50), 0), vec![Err(TransferError::BadKey)]),
            _ => ((peer.fleeting, 0), vec![Ok(()), Err(TransferError::BadKey)]),
        };
        match self.end.put(priority, target, bytes(salt, length), None) {
            Ok(id) => self.transfers.begin(id, Transfer::Put { salt, length, allowed }),
            Err(unsent) => return no_token(&unsent.error, counts),
        }
        Ok(())
    }

    fn get(
        &mut self,
        peer: Keys,
        priority: Priority,
        random: &mut StdRng,
        counts: &mut Counts,
    ) -> Result<(), String> {
        let length = self.length(random).min(SMALL_REGION_BYTES);
        let start = random.random_range(0..=SMALL_REGION_BYTES - length);
        let is_beyond = random.random_bool(0.1);
        let (offset, wanted) = if is_beyond {
            ((SMALL_REGION_BYTES - length + 1) as u64, Err(TransferError::OutOfRange))
        } else {
            let whole = bytes(CONSTANT_SALT, SMALL_REGION_BYTES);
            (start as u64, Ok(whole[start..start + length].to_vec()))
        };
        match self.end.get(priority, (peer.constant, offset), vec![0; length]) {
            Ok(id) => self.transfers.begin(id, Transfer::Got { wanted }),
            Err(unsent) => return no_token(&unsent.error, counts),
        }
        Ok(())
    }

    fn send_datagram(
        &mut self,
        to: &mut Direction,
        priority: Priority,
        random: &mut StdRng,
    ) -> Result<(), String> {
        let (number, length) = (self.salt(), random.random_range(0..3000));
        to.send_datagram(number, length);
        let datagram = [&number.to_le_bytes()[..], &bytes(number, length)].concat();
        self.end.send_datagram(priority, &datagram).map(drop).map_err(|gone| format!("no datagram: {gone}"))
    }

    /// Handles an event.
    pub fn take(
        &mut self,
        now_ns: u64,
        event: Event,
        directions: (&mut Direction, &mut Direction),
        random: &mut StdRng,
        counts: &mut Counts,
    ) -> Result<(), String> {
        let (from, to) = directions;
        match event {
            Event::Message(message) => from.take(message.priority, &message.payload),
            Event::Datagram(message) => from.take_datagram(&message.payload),
            Event::Notified { note, .. } => {
                counts.add("notes received", 1);
                let region = self.end.region(self.keys.shared).ok_or("the region is gone")?;
                from.note(&note, Some(region).filter(|_| !self.end.is_over()))
            }
            Event::BufferNeeded { priority, length_bytes, .. } => {
                self.need(now_ns, priority, length_bytes as usize, random, counts);
                Ok(())
            }
            Event::Room { priority, .. } => {
                self.needs_room[priority as usize] = false;
                // Each at most once. A report of room may wait for the program while the next send again finds none.
                let asked =
                    self.asked_for_room.checked_sub(1).ok_or("room was told to nobody who had asked")?;
                self.asked_for_room = asked;
                Ok(())
            }
            Event::Disconnected { reason, .. } => {
                self.gone = Some(reason);
                Ok(())
            }
            Event::Sent { id, buffer, result } => {
                let Transfer::Message { message, priority, number, is_delivered } = self.transfers.end(id)?
                else {
                    return Err(format!("{id:?} was no message"));
                };
                check_memory(message.salt, message.length, buffer.as_ref())?;
                let is_long = message.length > self.end.fragment_bytes();
                self.check_end(result, &[Ok(())], counts)?;
                if result.is_ok() {
                    counts.add(name_of(is_delivered, is_long), 1);
                }
                if result.is_ok() && is_delivered && to.taken[priority as usize] < number {
                    return Err("a message counts as delivered that nobody has taken".to_owned());
                }
                Ok(())
            }
            Event::Put { id, buffer, result } => {
                let Transfer::Put { salt, length, allowed } = self.transfers.end(id)? else {
                    return Err(format!("{id:?} was no put"));
                };
                check_memory(salt, length, buffer.as_ref())?;
                let is_long = length > self.end.fragment_bytes();
                match result {
                    Ok(()) if is_long => counts.add("puts answered: long", 1),
                    Ok(()) => counts.add("puts answered: short", 1),
                    Err(TransferError::Disconnected(_)) => {}
                    Err(_) => counts.add("puts refused", 1),
                }
                self.check_end(result, &allowed, counts)
            }
            Event::Got { id, buffer, result } => {
                let Transfer::Got { wanted } = self.transfers.end(id)? else {
                    return Err(format!("{id:?} was no get"));
                };
                let name = if result.is_ok() { "gets answered" } else { "gets refused" };
                counts.add(name, 1);
                self.check_end(result, &[wanted.as_ref().map(drop).map_err(|error| *error)], counts)?;
                if result.is_ok() && wanted.is_ok_and(|wanted| wanted != buffer.as_ref()) {
                    return Err("a get brought other bytes".to_owned());
                }
                Ok(())
            }
            other => Err(format!("an event that nobody expects: {other:?}")),
        }
    }

    /// Posts a buffer later, and sometimes one that is too small.
    fn need(
        &mut self,
        now_ns: u64,
        priority: Priority,
        length: usize,
        random: &mut StdRng,
        counts: &mut Counts,
    ) {
        let small = self.small_posts.entry(length as u64).or_default();
        let at_ns = now_ns + random.random_range(0..self.delay_ns);
        if *small < 2 && length > 1 && random.random_bool(0.2) {
            *small += 1;
            self.owed.push((at_ns, priority, length / 2));
            counts.add("buffers posted too small", 1);
        } else {
            self.owed.push((at_ns, priority, length + random.random_range(0..100)));
        }
    }

    fn check_end(
        &mut self,
        result: Result<(), TransferError>,
        allowed: &[Result<(), TransferError>],
        counts: &mut Counts,
    ) -> Result<(), String> {
        if matches!(result, Err(TransferError::Disconnected(_))) {
            counts.add("transfers failed by the end", 1);
            // The report of the end comes after everything that it ends.
            return self.end.is_over().then_some(()).ok_or_else(|| "a transfer was given up".to_owned());
        }
        allowed.contains(&result).then_some(()).ok_or_else(|| format!("a transfer ended with {result:?}"))
    }
}

fn name_of(is_delivered: bool, is_long: bool) -> &'static str {
    match (is_delivered, is_long) {
        (false, false) => "messages copied: short",
        (false, true) => "messages copied: long",
        (true, false) => "messages delivered: short",
        (true, true) => "messages delivered: long",
    }
}

fn check_memory(salt: u64, length: usize, found: &[u8]) -> Result<(), String> {
    let is_intact = found.len() == length && found == bytes(salt, length);
    is_intact.then_some(()).ok_or_else(|| "memory came back changed".to_owned())
}

fn no_token(error: &SendError, counts: &mut Counts) -> Result<(), String> {
    counts.add("transfers that found no token", 1);
    (*error == SendError::NoToken).then_some(()).ok_or_else(|| format!("a transfer failed: {error}"))
}
