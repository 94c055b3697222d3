//! Polling, waiting, and what they tell.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use bywire::{Buffer, DisconnectReason, Event, Message, Payload, TransferError, TransferId};

use crate::failure::{gone, outcome};
use crate::handle::{Handle, place};
use crate::heap::bw_lent_t;
use crate::held::Held;
use crate::message::bw_transfer_t;
use crate::port::{bw_peer_t, bw_port_t, peer_bits, with};

/// As a time-out of bw_wait: wait until something happens.
pub const BW_FOREVER: i64 = -1;
/// The longest note of a put.
pub const BW_NOTE_BYTES_MAX: u32 = 32;
const _: () = assert!(BW_NOTE_BYTES_MAX as usize == bywire::NOTE_BYTES_MAX);

/// What happened. Programs ignore numbers that they do not know.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum bw_event_kind_t {
    /// Nothing; the event is all zeros otherwise.
    BW_EVENT_NONE = 0,
    /// A message: `peer`, `priority`, `data`, `length_bytes`, and `buffer` if it lies in posted memory. A long one does,
    /// except of a peer that has ended: what was whole in its ring comes without a posted buffer as well, in memory of
    /// the library's own.
    BW_EVENT_MESSAGE = 1,
    /// A datagram: as for a message.
    BW_EVENT_DATAGRAM = 2,
    /// A message that the peer lent: `peer`, `priority`, `length_bytes`, and `lent`, which the program gives back by
    /// bw_lent_return.
    BW_EVENT_LENT = 3,
    /// A peer has connected, or the answer to bw_connect_start has come: `peer`.
    BW_EVENT_CONNECTED = 4,
    /// A peer is gone, and its handle dead: `peer`, and in `status` why.
    BW_EVENT_DISCONNECTED = 5,
    /// An asynchronous send is over: `transfer`, `buffer`, `status`.
    BW_EVENT_SENT = 6,
    /// A put is over, and the target has the data unless `status` is an error: `transfer`, `buffer`, `status`.
    BW_EVENT_PUT = 7,
    /// A get is over, and the buffer holds the data unless `status` is an error: `transfer`, `buffer`, `status`.
    BW_EVENT_GOT = 8,
    /// A peer has put data into a region of ours: `peer`, and its note in `data` and `length_bytes`.
    BW_EVENT_NOTIFIED = 9,
    /// There is room again after a send that was BW_ERROR_FULL: `peer`, `priority`.
    BW_EVENT_ROOM = 10,
    /// A long message waits for a posted buffer: `peer`, `priority`, `length_bytes`. Reported once.
    BW_EVENT_BUFFER_NEEDED = 11,
    /// Something that this version of the interface has no number for.
    BW_EVENT_OTHER = 12,
}

use bw_event_kind_t::*;

/// Something that happened at a port. `data` is valid until the next bw_poll, bw_wait or bw_event_release on the port,
/// except in posted memory, which is the program's again at once.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bw_event_t {
    /// A bw_event_kind_t.
    pub kind: u32,
    /// BW_OK, or the bw_error_t of a transfer that failed or a peer that has gone.
    pub status: i32,
    /// Which peer; 0 where none is meant.
    pub peer: bw_peer_t,
    /// Which transfer; 0 where none is meant.
    pub transfer: bw_transfer_t,
    /// A bw_priority_t.
    pub priority: u32,
    /// Zero.
    pub reserved: u32,
    /// The bytes of a message, a datagram or a note.
    pub data: *const c_void,
    /// How many they are.
    pub length_bytes: u64,
    /// The program's own memory, which it may use again; NULL where it was empty or none is meant.
    pub buffer: *mut c_void,
    /// Its whole length.
    pub buffer_bytes: u64,
    /// A lent message, which belongs to the program.
    pub lent: *mut bw_lent_t,
    /// Zero; room for later versions.
    pub reserved_words: [u64; 3],
}

impl bw_event_t {
    const NONE: Self = Self {
        kind: BW_EVENT_NONE as u32,
        status: 0,
        peer: 0,
        transfer: 0,
        priority: 0,
        reserved: 0,
        data: std::ptr::null(),
        length_bytes: 0,
        buffer: std::ptr::null_mut(),
        buffer_bytes: 0,
        lent: std::ptr::null_mut(),
        reserved_words: [0; 3],
    };
}

/// Takes the next event, if there is one: 1 when there was. Never waits, and makes no system call but once in about a
/// millisecond to look after sockets and peers that died.
///
/// # Safety
/// `port` is null or an open port, used by this thread alone; `event` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_poll(port: *mut bw_port_t, event: *mut bw_event_t) -> c_int {
    let poll = |port: &mut bw_port_t| {
        // SAFETY: the caller's promise.
        let target = unsafe { place(event, "event")? };
        port.release();
        let happened = port.port.poll();
        Ok(port.report(happened, target.write(bw_event_t::NONE)))
    };
    // SAFETY: the caller's promise.
    unsafe { with(port, poll) }
}

/// Waits for the next event, at most `timeout_us` microseconds (BW_FOREVER: without end): 1 when there was one, 0 when the
/// time is up. Spins a bounded time, then sleeps.
///
/// # Safety
/// As for bw_poll.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_wait(port: *mut bw_port_t, timeout_us: i64, event: *mut bw_event_t) -> c_int {
    let wait = |port: &mut bw_port_t| {
        // SAFETY: the caller's promise.
        let target = unsafe { place(event, "event")? };
        let event = target.write(bw_event_t::NONE);
        port.release();
        let timeout = u64::try_from(timeout_us).ok().map(Duration::from_micros);
        let happened = port.port.wait(timeout)?;
        Ok(port.report(happened, event))
    };
    // SAFETY: the caller's promise.
    unsafe { with(port, wait) }
}

/// Gives back early what the last event's `data` points to.
///
/// # Safety
/// `port` is null or an open port, used by this thread alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_event_release(port: *mut bw_port_t) -> c_int {
    let release = |port: &mut bw_port_t| {
        port.release();
        Ok(0)
    };
    // SAFETY: the caller's promise.
    unsafe { with(port, release) }
}

/// Prepares to sleep on the port's descriptor: 1 when there is nothing to do, and from then on the descriptor becomes
/// readable with the next event; 0: poll again instead. After waking, poll until nothing comes, then arm again.
///
/// # Safety
/// `port` is null or an open port, used by this thread alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_arm(port: *mut bw_port_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with(port, |port| Ok(c_int::from(port.port.arm()))) }
}

impl bw_port_t {
    /// Gives the memory behind the last event back to the port, for messages to come.
    #[inline(always)]
    fn release(&mut self) {
        if let Held::Payload(payload) = std::mem::replace(&mut self.held, Held::Nothing) {
            self.port.recycle(payload);
        }
    }

    /// Writes an event for C and keeps what it points to; 1 when there was one.
    #[inline(always)]
    fn report(&mut self, happened: Option<Event>, event: &mut bw_event_t) -> c_int {
        let Some(happened) = happened else { return 0 };
        match happened {
            Event::Message(message) => self.report_message(message, BW_EVENT_MESSAGE, event),
            Event::Datagram(message) => self.report_message(message, BW_EVENT_DATAGRAM, event),
            other => self.report_other(other, event),
        }
        1
    }

    #[inline(always)]
    fn report_message(&mut self, message: Message, kind: bw_event_kind_t, event: &mut bw_event_t) {
        event.kind = kind as u32;
        event.peer = peer_bits(message.peer);
        event.priority = message.priority as u32;
        self.hold(message.payload, event);
    }

    #[inline(never)]
    fn report_other(&mut self, happened: Event, event: &mut bw_event_t) {
        let kind = match happened {
            Event::Lent(lent) => {
                event.peer = peer_bits(lent.peer);
                event.priority = lent.priority as u32;
                event.length_bytes = lent.len() as u64;
                event.lent = bw_lent_t(lent).give();
                BW_EVENT_LENT
            }
            Event::Connected(peer) => {
                event.peer = peer_bits(peer);
                BW_EVENT_CONNECTED
            }
            Event::Disconnected { peer, reason } => report_gone(event, peer, reason),
            Event::Sent { id, buffer, result } => report_end(event, BW_EVENT_SENT, id, buffer, result),
            Event::Put { id, buffer, result } => report_end(event, BW_EVENT_PUT, id, buffer, result),
            Event::Got { id, buffer, result } => report_end(event, BW_EVENT_GOT, id, buffer, result),
            Event::Notified { peer, note } => {
                event.peer = peer_bits(peer);
                self.hold(note, event);
                BW_EVENT_NOTIFIED
            }
            Event::Room { peer, priority } => {
                event.peer = peer_bits(peer);
                event.priority = priority as u32;
                BW_EVENT_ROOM
            }
            Event::BufferNeeded { peer, priority, length_bytes } => {
                event.peer = peer_bits(peer);
                event.priority = priority as u32;
                event.length_bytes = length_bytes;
                BW_EVENT_BUFFER_NEEDED
            }
            _ => BW_EVENT_OTHER,
        };
        event.kind = kind as u32;
    }

    /// Points the event to the payload. The program's own memory goes back to it, ours is held until the next call.
    #[inline(always)]
    fn hold(&mut self, payload: Payload, event: &mut bw_event_t) {
        event.length_bytes = payload.len() as u64;
        // Where the bytes lie decides, never how many they are: that is for the peer to say.
        if payload.is_foreign() && self.posted.remove(&payload.as_ptr().addr()) {
            event.data = payload.as_ptr().cast();
            if let Some(buffer) = payload.into_buffer() {
                give_back(event, buffer);
            }
            return;
        }
        self.held = Held::Payload(payload);
        // Short payloads lie in the value itself, so they are pointed to where they stay.
        if let Held::Payload(payload) = &self.held {
            event.data = payload.as_ptr().cast();
        }
    }
}

fn report_gone(event: &mut bw_event_t, peer: bywire::Peer, reason: DisconnectReason) -> bw_event_kind_t {
    event.peer = peer_bits(peer);
    event.status = gone(reason).code();
    BW_EVENT_DISCONNECTED
}

fn report_end(
    event: &mut bw_event_t,
    kind: bw_event_kind_t,
    transfer: TransferId,
    buffer: Buffer,
    result: Result<(), TransferError>,
) -> bw_event_kind_t {
    event.transfer = transfer.0;
    event.status = outcome(result).code();
    give_back(event, buffer);
    kind
}

/// Names the program's memory that the library lets go of.
fn give_back(event: &mut bw_event_t, buffer: Buffer) {
    if !buffer.as_ref().is_empty() {
        event.buffer = buffer.as_ptr().cast_mut().cast();
        event.buffer_bytes = buffer.as_ref().len() as u64;
    }
}
