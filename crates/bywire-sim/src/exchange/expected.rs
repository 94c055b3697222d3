//! The expected state: what the program of each end has sent and the other has not received yet.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use bywire::{Key, Priority, TransferError, TransferId};

/// The region of puts. Each priority has a half, so that the order of its puts determines the contents.
pub const REGION_BYTES: usize = 256 * 1024;

/// The bytes of a region or a message, of which each has a known origin.
pub fn bytes(salt: u64, length: usize) -> Vec<u8> {
    let salt = salt.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..length as u64).map(|at| ((at ^ salt).wrapping_mul(0xff51_afd7_ed55_8ccd) >> 56) as u8).collect()
}

/// A message under way: the seed of its bytes, and its length.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    pub salt: u64,
    pub length: usize,
}

/// A put under way that must succeed.
#[derive(Clone, Debug)]
pub struct Put {
    pub salt: u64,
    pub range: Range<usize>,
    pub is_noted: bool,
}

/// A transfer that must end exactly once.
#[derive(Clone, Debug)]
pub enum Transfer {
    /// It is in the lane as the message with this number, and its memory must come back unchanged.
    Message { message: Message, priority: Priority, number: u64, is_delivered: bool },
    /// Its memory must come back, with one of these results.
    Put { salt: u64, length: usize, allowed: Vec<Result<(), TransferError>> },
    /// These bytes or this error must come.
    Got { wanted: Result<Vec<u8>, TransferError> },
}

/// One direction: from one program to the other.
#[derive(Debug, Default)]
pub struct Direction {
    /// By priority.
    messages: [VecDeque<Message>; 2],
    /// Messages that were received, by priority.
    pub taken: [u64; 2],
    /// Messages that were sent in all, by priority.
    pub sent: [u64; 2],
    puts: [VecDeque<Put>; 2],
    /// The contents of the target's region.
    pub shadow: Vec<u8>,
    datagrams: BTreeMap<u64, usize>,
    datagrams_taken: BTreeSet<u64>,
}

impl Direction {
    pub fn new(shadow: Vec<u8>) -> Self {
        Self { shadow, ..Self::default() }
    }

    /// Notes that a message was sent, and returns its number.
    pub fn send(&mut self, priority: Priority, message: Message) -> u64 {
        self.messages[priority as usize].push_back(message);
        self.sent[priority as usize] += 1;
        self.sent[priority as usize]
    }

    /// Removes a message for which there was no room.
    pub fn unsend(&mut self, priority: Priority) {
        self.messages[priority as usize].pop_back();
        self.sent[priority as usize] -= 1;
    }

    /// Checks that a received message is the next one.
    pub fn take(&mut self, priority: Priority, found: &[u8]) -> Result<(), String> {
        let message = self.messages[priority as usize]
            .pop_front()
            .ok_or_else(|| format!("a {priority:?} message of {} bytes came from nowhere", found.len()))?;
        self.taken[priority as usize] += 1;
        if found.len() != message.length {
            return Err(format!(
                "a {priority:?} message of {} came with {} bytes",
                message.length,
                found.len()
            ));
        }
        if found != bytes(message.salt, message.length) {
            return Err(format!("a {priority:?} message of {} bytes came with others", message.length));
        }
        Ok(())
    }

    pub fn put(&mut self, priority: Priority, put: Put) {
        self.puts[priority as usize].push_back(put);
    }

    /// Checks a note: its put and all before it are in the region, and no later one is. `None`: later ones are there
    /// too, because the connection had ended when the note was received.
    pub fn note(&mut self, note: &[u8], region: Option<&[u8]>) -> Result<(), String> {
        let (priority, salt) = note.split_first().ok_or("an empty note came")?;
        let salt = u64::from_le_bytes(salt.try_into().map_err(|_| "a note of another length came")?);
        let priority = usize::from(*priority);
        let mut found = false;
        while let Some(put) = self.puts[priority].pop_front() {
            self.shadow[put.range.clone()].copy_from_slice(&bytes(put.salt, put.range.len()));
            if put.is_noted {
                found = put.salt == salt;
                break;
            }
        }
        if !found {
            return Err("a note came out of order".to_owned());
        }
        let half = half(priority);
        if region.is_some_and(|region| self.shadow[half.clone()] != region[half]) {
            return Err("a note came, and its region is not what the puts before it make".to_owned());
        }
        Ok(())
    }

    /// Checks that all ended puts are in the region.
    pub fn settle(&mut self, region: &[u8]) -> Result<(), String> {
        for puts in &mut self.puts {
            for put in puts.drain(..) {
                if put.is_noted {
                    return Err("a put has ended, and its note never came".to_owned());
                }
                self.shadow[put.range.clone()].copy_from_slice(&bytes(put.salt, put.range.len()));
            }
        }
        if self.shadow != region { Err("a region is not what its puts make".to_owned()) } else { Ok(()) }
    }

    pub fn send_datagram(&mut self, number: u64, length: usize) {
        self.datagrams.insert(number, length);
    }

    pub fn take_datagram(&mut self, found: &[u8]) -> Result<(), String> {
        let (number, rest) = found.split_first_chunk().ok_or("a datagram came without its number")?;
        let number = u64::from_le_bytes(*number);
        let length = *self.datagrams.get(&number).ok_or("a datagram came that nobody sent")?;
        if rest != bytes(number, length) {
            return Err("a datagram came with other bytes".to_owned());
        }
        if !self.datagrams_taken.insert(number) {
            return Err("a datagram came twice".to_owned());
        }
        Ok(())
    }

    /// Datagrams that arrived, and those that were lost.
    pub fn datagrams(&self) -> (u64, u64) {
        let (sent, taken) = (self.datagrams.len() as u64, self.datagrams_taken.len() as u64);
        (taken, sent - taken)
    }

    /// Messages under way.
    pub fn messages_left(&self) -> usize {
        self.messages.iter().map(VecDeque::len).sum()
    }
}

/// The half of a region into which puts of a priority go.
pub fn half(priority: usize) -> Range<usize> {
    priority * REGION_BYTES / 2..(priority + 1) * REGION_BYTES / 2
}

/// The transfers that an end has begun, each of which must end exactly once.
#[derive(Debug, Default)]
pub struct Transfers {
    under_way: BTreeMap<u64, Transfer>,
}

impl Transfers {
    pub fn begin(&mut self, id: TransferId, transfer: Transfer) {
        self.under_way.insert(id.0, transfer);
    }

    pub fn end(&mut self, id: TransferId) -> Result<Transfer, String> {
        self.under_way.remove(&id.0).ok_or_else(|| format!("{id:?} ended twice, or never began"))
    }

    pub fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }
}

/// The keys of an end for the regions of the other one.
#[derive(Clone, Copy, Debug)]
pub struct Keys {
    /// Read and write: the region whose contents are compared.
    pub shared: Key,
    /// Read only, with constant contents.
    pub constant: Key,
    /// A region that may be revoked at any time, or already is.
    pub fleeting: Key,
}
