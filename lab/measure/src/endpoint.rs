//! The interface between tests and levels: one end of a connected pair that carries whole messages.
//!
//! Tests are generic over [`Endpoint`], so every level uses the same code without dynamic calls on its data path.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::plan::Details;

/// How long an end waits for its peer to make any progress before it gives up.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// The longest time that [`Endpoint::receive`] sleeps before it returns `None`.
pub const NAP: Duration = Duration::from_millis(500);

/// One end of a connected pair that carries whole messages in order.
///
/// An endpoint is opened for one length in each direction, so that levels that are byte streams find the ends of
/// messages.
pub trait Endpoint {
    /// False if messages may be lost or duplicated. Tests then repeat their requests and count at both ends.
    const RELIABLE: bool = true;

    /// Fills and submits the next message of `length` bytes, at least 1. `Ok(false)`: there is no room now, so call
    /// again with the same arguments. The message is not filled twice.
    ///
    /// [`crate::payload::Writer`] writes the payload before it is sent. Its first byte carries `mark`.
    fn try_send(&mut self, length: usize, mark: Mark) -> Result<bool>;

    /// Receives one whole message if there is one, after [`crate::payload::Reader`] has read every byte of it.
    fn try_receive(&mut self) -> Result<Option<Received>>;

    /// Waits until `interest` may make progress or `timeout` has passed. It spins or sleeps, as the endpoint was
    /// opened. May return early.
    fn wait(&mut self, interest: Interest, timeout: Duration) -> Result<()>;

    /// Returns whether [`Endpoint::wait`] returns at once.
    fn spins(&self) -> bool {
        false
    }

    /// Sends one message, and waits for room. Fails if the peer takes nothing for [`TIMEOUT`].
    #[inline]
    fn send(&mut self, length: usize, mark: Mark) -> Result<()>
    where
        Self: Sized,
    {
        if self.try_send(length, mark)? {
            Ok(())
        } else {
            send_when_taken(self, |end| end.try_send(length, mark))
        }
    }

    /// Receives one message, and waits up to about [`NAP`] for it. `None` if none came.
    #[inline]
    fn receive(&mut self) -> Result<Option<Received>> {
        if let Some(received) = self.try_receive()? {
            return Ok(Some(received));
        }
        // Reading the clock costs about as much as a message, so an end that spins does it seldom.
        let stride = if self.spins() { 1024 } else { 1 };
        let mut started = None;
        for attempt in 1u64.. {
            self.wait(Interest::Receive, NAP)?;
            let received = self.try_receive()?;
            if received.is_some() {
                return Ok(received);
            }
            if attempt.is_multiple_of(stride) && started.get_or_insert_with(Instant::now).elapsed() >= NAP {
                break;
            }
        }
        Ok(None)
    }

    /// The number of sends that the system refused for lack of memory (`ENOBUFS`), as netperf counts them. Each was
    /// repeated.
    fn send_errors(&self) -> u64 {
        0
    }

    /// The values that the system granted, for the cell's details (`send_socket_bytes`, …).
    fn details(&self) -> Details {
        Details::default()
    }
}

/// Receives one message. Fails if none comes for [`TIMEOUT`].
#[inline]
pub fn receive_in_time<E: Endpoint>(end: &mut E) -> Result<Received> {
    if let Some(received) = end.receive()? {
        return Ok(received);
    }
    let started = Instant::now();
    loop {
        if let Some(received) = end.receive()? {
            return Ok(received);
        }
        ensure!(started.elapsed() <= TIMEOUT, "the peer has sent nothing for {} s", TIMEOUT.as_secs());
    }
}

/// A message that has arrived and been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Its length in bytes.
    pub length: usize,
    /// The mark in its first byte.
    pub mark: Mark,
    /// A value that depends on every byte, so that reading them cannot be optimised away.
    pub sum: u64,
}

/// The event that an end is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Room for the next message.
    Send,
    /// A message.
    Receive,
    /// Either of them.
    Both,
}

/// Repeats `send` until it has sent, and waits for room in between. Fails if the peer takes nothing for [`TIMEOUT`].
#[inline]
pub fn send_when_taken<E: Endpoint>(end: &mut E, send: impl Fn(&mut E) -> Result<bool>) -> Result<()> {
    let started = Instant::now();
    while !send(end)? {
        ensure!(started.elapsed() <= TIMEOUT, "the peer has taken nothing for {} s", TIMEOUT.as_secs());
        end.wait(Interest::Send, NAP)?;
    }
    Ok(())
}

/// The first byte of every message: its meaning to the test, and a tag that tells neighbours apart.
///
/// It has the size of a word, so that structures with a mark are copied in whole words. A byte copied with its padding
/// stalls the processor for longer than a short message takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(u64);

/// The meaning of a message to the test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Payload.
    Data = 0,
    /// The source asks to begin a block.
    Begin = 1,
    /// The target is ready for the block.
    Begun = 2,
    /// The last message of a block.
    End = 3,
    /// Everything up to the end of the block has been received.
    Ended = 4,
    /// There are no more blocks.
    Finish = 5,
    /// The target has seen that there are no more blocks.
    Finished = 6,
}

impl Mark {
    const TAG_BITS: u32 = 5;

    /// A mark with the low five bits of `tag`.
    #[inline]
    pub const fn new(kind: Kind, tag: u32) -> Self {
        Self((kind as u64) << Self::TAG_BITS | (tag as u64 & 0x1f))
    }

    /// A payload message with tag 0.
    pub const DATA: Self = Self::new(Kind::Data, 0);

    /// The byte in the message.
    #[inline]
    pub const fn byte(self) -> u8 {
        self.0 as u8
    }

    /// Parses a message's first byte. Fails if it is not a mark.
    #[inline]
    pub fn from_byte(byte: u8) -> Result<Self> {
        let is_mark = byte >> Self::TAG_BITS <= Kind::Finished as u8;
        ensure!(is_mark, "payload corrupted: a message begins with {byte:#04x}, which is not a mark");
        Ok(Self(byte.into()))
    }

    /// The meaning of the message.
    #[inline]
    pub const fn kind(self) -> Kind {
        match self.0 >> Self::TAG_BITS {
            0 => Kind::Data,
            1 => Kind::Begin,
            2 => Kind::Begun,
            3 => Kind::End,
            4 => Kind::Ended,
            5 => Kind::Finish,
            _ => Kind::Finished,
        }
    }

    /// The low five bits of its tag.
    #[inline]
    pub const fn tag(self) -> u32 {
        (self.0 & 0x1f) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_decoded_as_encoded_and_others_are_refused() {
        for kind in [Kind::Data, Kind::Begin, Kind::End, Kind::Finished] {
            let mark = Mark::from_byte(Mark::new(kind, 37).byte()).unwrap();
            assert_eq!((mark.kind(), mark.tag()), (kind, 5));
        }
        assert!(Mark::from_byte(0xe0).is_err());
    }
}
