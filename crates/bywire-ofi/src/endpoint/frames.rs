//! Frames of matchers on connections of a port.

use std::collections::HashMap;

use bywire::{Buffer, Key, Peer, Port, Priority, TransferId};
use bywire_match::head::EagerHead;
use bywire_match::{Frame, rma};

use super::message::{Channel, Put};
use crate::memory::{Memory, Short};
use crate::name::{EndpointName, NAME_BYTES, TICKET_BYTES};
use crate::operation::SendHandle;
use crate::regions::Regions;

/// Frames of untagged messages begin with this byte. Frames of tagged ones begin with their head, whose kinds are less.
const UNTAGGED: u8 = 0x80;
/// Notes for tagged messages begin with this byte.
const TAGGED: u8 = 0;
/// Frames and notes of RMA begin with this byte.
const RMA: u8 = 0x40;
/// What a slot of a ring holds. Longer messages take another way there.
const SLOT_BYTES: usize = 56;
/// The first message of a connection: this byte, the ticket of its target, and the name of its source.
const HELLO: u8 = 0x48;
const HELLO_BYTES: usize = 1 + TICKET_BYTES + NAME_BYTES;
/// The answer to it, before anything else is sent on the connection.
pub const WELCOME: [u8; 1] = [0x57];

/// The first message of a connection from `own` to `target`.
pub fn hello(target: &EndpointName, own: &EndpointName) -> [u8; HELLO_BYTES] {
    let mut bytes = [HELLO; HELLO_BYTES];
    bytes[1..=TICKET_BYTES].copy_from_slice(target.ticket());
    bytes[1 + TICKET_BYTES..].copy_from_slice(own.as_bytes());
    bytes
}

/// The name in the first message of a connection to `own`. `None`: it shows no ticket, or not ours.
pub fn greeted(own: &EndpointName, message: &[u8]) -> Option<EndpointName> {
    let message: &[u8; HELLO_BYTES] = message.try_into().ok()?;
    let (ticket, name) = message[1..].split_at(TICKET_BYTES);
    // All bytes are compared, so that the time tells nothing.
    let difference = ticket.iter().zip(own.ticket()).fold(0, |bits, (one, other)| bits | (one ^ other));
    if message[0] != HELLO || difference != 0 {
        return None;
    }
    EndpointName::parse(name)
}

/// What a message or a note of a connection is for, without the byte that says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried<'a> {
    Message(Channel, &'a [u8]),
    Rma(&'a [u8]),
}

/// What a message is for.
#[inline]
pub fn split(message: &[u8]) -> Carried<'_> {
    match message {
        [UNTAGGED, frame @ ..] => Carried::Message(Channel::Untagged, frame),
        [RMA, frame @ ..] => Carried::Rma(frame),
        frame => Carried::Message(Channel::Tagged, frame),
    }
}

/// What a note is for. `None`: it is none of an endpoint.
pub fn split_note(note: &[u8]) -> Option<Carried<'_>> {
    match note {
        [UNTAGGED, note @ ..] => Some(Carried::Message(Channel::Untagged, note)),
        [TAGGED, note @ ..] => Some(Carried::Message(Channel::Tagged, note)),
        [RMA, note @ ..] => Some(Carried::Rma(note)),
        _ => None,
    }
}

/// Joins a frame's head and payload. `None`: it is a put.
pub fn join(frame: &Frame<'_, SendHandle>, bytes: &mut Vec<u8>) -> Option<Priority> {
    match frame {
        Frame::Message { head, payload } => {
            bytes.extend_from_slice(head);
            if let Some(send) = payload {
                send.read(0, send.payload.length(), bytes);
            }
            Some(Priority::High)
        }
        Frame::Piece { head, payload, range } => {
            bytes.extend_from_slice(head);
            payload.read(range.start, range.end - range.start, bytes);
            Some(Priority::Low)
        }
        Frame::Put { .. } => None,
    }
}

/// The payload of a message that fits into a slot with any head: it is in one piece.
#[inline(always)]
pub fn short_payload(memory: &Memory) -> Option<Short<'_>> {
    memory.short(SLOT_BYTES - 1 - EagerHead::BYTES_MAX)
}

/// Gives such a message to a port. `false`: it has no room.
#[inline(always)]
pub fn carry_short(
    (port, peer): (&mut Port, Peer),
    channel: Channel,
    head: EagerHead,
    payload: Short<'_>,
) -> bool {
    let mut slot = [0; SLOT_BYTES];
    let kind = usize::from(channel == Channel::Untagged);
    if channel == Channel::Untagged {
        slot[0] = UNTAGGED;
    }
    let begin = kind + head.write(&mut slot[kind..]);
    let end = begin + payload.length();
    payload.copy_to(&mut slot[begin..end]);
    port.send(peer, Priority::High, &slot[..end]).is_ok()
}

/// The head of a frame with the byte before it, on its way to a port.
struct Begun {
    bytes: [u8; 1 + rma::head::HEAD_BYTES_MAX],
    length: usize,
}

impl Begun {
    fn of(first: Option<u8>, head: &[u8]) -> Self {
        let mut begun = Self { bytes: [0; 1 + rma::head::HEAD_BYTES_MAX], length: 0 };
        begun.push(first.as_slice());
        begun.push(head);
        begun
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Gives it to a port, with what follows it. `false`: the port has no room. If the connection has ended, its event follows, and ends
    /// the operation.
    fn send(&self, (port, peer): (&mut Port, Peer), priority: Priority, payload: &[u8]) -> bool {
        match payload {
            [] => port.send(peer, priority, self.bytes()),
            payload => port.send_headed(peer, priority, self.bytes(), payload),
        }
        .is_ok()
    }
}
// The longest head with something behind it, and its byte.
const _: () = assert!(bywire_match::head::HEAD_BYTES_MAX < bywire::HEAD_BYTES_MAX);

/// The byte before the heads of a channel.
fn first_byte(channel: Channel) -> Option<u8> {
    (channel == Channel::Untagged).then_some(UNTAGGED)
}

/// Gives an eager message to a port. `false`: it has no room.
pub fn carry_eager(
    way: (&mut Port, Peer),
    channel: Channel,
    head: EagerHead,
    send: &SendHandle,
    scratch: &mut Vec<u8>,
) -> bool {
    let mut bytes = [0; EagerHead::BYTES_MAX];
    let length = head.write(&mut bytes);
    let payload = send.joined(0..send.payload.length(), scratch);
    Begun::of(first_byte(channel), &bytes[..length]).send(way, Priority::High, payload)
}

/// Gives a frame to a port. `false`: it has no room.
pub fn carry(
    (port, peer): (&mut Port, Peer),
    channel: Channel,
    frame: &Frame<'_, SendHandle>,
    scratch: &mut Vec<u8>,
    puts: &mut HashMap<TransferId, Put>,
) -> bool {
    let (send, buffer, key, note) = match frame {
        Frame::Message { head, payload } => {
            let payload = payload.map_or(&[][..], |send| send.joined(0..send.payload.length(), scratch));
            return Begun::of(first_byte(channel), head).send((port, peer), Priority::High, payload);
        }
        Frame::Piece { head, payload, range } => {
            let payload = payload.joined(range.clone(), scratch);
            return Begun::of(first_byte(channel), head).send((port, peer), Priority::Low, payload);
        }
        Frame::Put { send, payload, length, key, note } => (send, payload.buffer(*length), key, note),
    };
    let note = Begun::of(Some(first_byte(channel).unwrap_or(TAGGED)), note);
    // The matcher keeps the handle until `put_done`, which the put's event calls.
    match port.put(peer, Priority::Low, (Key(*key), 0), buffer, Some(note.bytes())) {
        Ok(id) => {
            puts.insert(id, Put::Message(channel, *send));
            true
        }
        Err(_) => false,
    }
}

/// Appends what follows a head of RMA.
fn read(source: &rma::Source<'_, SendHandle>, regions: &Regions, bytes: &mut Vec<u8>) {
    match source {
        rma::Source::Nothing => {}
        rma::Source::Write(send, range) => send.read(range.start, range.end - range.start, bytes),
        rma::Source::Registered(place) => regions.read(*place, bytes),
    }
}

/// The same memory for a port to put. The caller keeps the handle, or the region open, until the port has given it back.
/// `None`: the region was closed.
fn lend(source: &rma::Source<'_, SendHandle>, regions: &Regions) -> Option<Buffer> {
    match source {
        rma::Source::Write(send, range) => Some(send.buffer(range.end)),
        rma::Source::Registered(place) => regions.buffer(*place),
        rma::Source::Nothing => None,
    }
}

/// Joins a frame of RMA. `None`: it is a put.
pub fn join_rma(
    frame: &rma::Frame<'_, SendHandle>,
    regions: &Regions,
    bytes: &mut Vec<u8>,
) -> Option<Priority> {
    let (head, source, priority) = match frame {
        rma::Frame::Message { head, source } => (head, source, Priority::High),
        rma::Frame::Piece { head, source } => (head, source, Priority::Low),
        rma::Frame::Put { .. } => return None,
    };
    bytes.extend_from_slice(head);
    read(source, regions, bytes);
    Some(priority)
}

/// Gives a frame of RMA to a port. `false`: it has no room.
pub fn carry_rma(
    (port, peer): (&mut Port, Peer),
    frame: &rma::Frame<'_, SendHandle>,
    regions: &Regions,
    scratch: &mut Vec<u8>,
    puts: &mut HashMap<TransferId, Put>,
) -> bool {
    let (head, source, priority) = match frame {
        rma::Frame::Message { head, source } => (head, source, Priority::High),
        rma::Frame::Piece { head, source } => (head, source, Priority::Low),
        rma::Frame::Put { id, source, region, note } => {
            return put_rma((port, peer), (*id, source, *region, note), regions, puts);
        }
    };
    // A copy, as others may write registered memory meanwhile, and the port may read it twice.
    scratch.clear();
    read(source, regions, scratch);
    Begun::of(Some(RMA), head).send((port, peer), priority, scratch)
}

fn put_rma(
    (port, peer): (&mut Port, Peer),
    (id, source, region, note): (rma::PutId, &rma::Source<'_, SendHandle>, u64, &[u8]),
    regions: &Regions,
    puts: &mut HashMap<TransferId, Put>,
) -> bool {
    // What is under way for a region ends before the region is closed.
    let Some(buffer) = lend(source, regions) else { return false };
    let note = Begun::of(Some(RMA), note);
    match port.put(peer, Priority::Low, (Key(region), 0), buffer, Some(note.bytes())) {
        Ok(transfer) => {
            puts.insert(transfer, Put::Rma(id));
            true
        }
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_is_taken_only_with_the_ticket() {
        let [a, b] =
            [(1, [7; 16]), (2, [8; 16])].map(|(port, ticket)| EndpointName::new("n", port, 5, ticket));
        let good = hello(&b, &a);
        assert_eq!(greeted(&b, &good), Some(a));
        assert_eq!(greeted(&a, &good), None);
        for place in 0..=TICKET_BYTES {
            let mut bad = good;
            bad[place] ^= 1;
            assert_eq!(greeted(&b, &bad), None, "byte {place}");
        }
        assert_eq!(greeted(&b, &good[1..]), None);
        assert_eq!(greeted(&b, &[]), None);
    }
}
