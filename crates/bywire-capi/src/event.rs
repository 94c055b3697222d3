//! Polling, waiting, and the events that they report.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use bywire::{Buffer, DisconnectReason, Event, Message, Payload, Port, TransferError, TransferId};

use crate::event_memory::EventMemory;
use crate::failure::{gone, outcome};
use crate::handle::{Handle, place};
use crate::heap::bw_lent_t;
use crate::message::bw_transfer_t;
use crate::port::{bw_peer_t, bw_port_t, peer_bits, with};

/// A timeout of bw_wait or bw_connect that never ends.
pub const BW_FOREVER: i64 = -1;
/// The longest note of a put, in bytes.
pub const BW_NOTE_BYTES_MAX: u32 = 32;
const _: () = assert!(BW_NOTE_BYTES_MAX as usize == bywire::NOTE_BYTES_MAX);

/// The kind of an event. Programs ignore numbers that they do not know.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum bw_event_kind_t {
    /// No event; all other fields are zero.
    BW_EVENT_NONE = 0,
    /// A message: `peer`, `priority`, `data`, `length_bytes`, and `buffer` if it is in posted memory. A long one is.
    /// After the end of a peer, a message that was whole in its ring comes without a posted buffer too, in memory of
    /// the library.
    BW_EVENT_MESSAGE = 1,
    /// A datagram, with the fields of a message.
    BW_EVENT_DATAGRAM = 2,
    /// A message that the peer lent: `peer`, `priority`, `length_bytes`, and `lent`, which the program gives back
    /// with bw_lent_return.
    BW_EVENT_LENT = 3,
    /// A peer has connected, or has accepted our bw_connect_start: `peer`.
    BW_EVENT_CONNECTED = 4,
    /// A peer is gone, and its handle is dead: `peer`, and the reason in `status`.
    BW_EVENT_DISCONNECTED = 5,
    /// An asynchronous send is over: `transfer`, `buffer`, `status`.
    BW_EVENT_SENT = 6,
    /// A put is over. The target has the data unless `status` is an error: `transfer`, `buffer`, `status`.
    BW_EVENT_PUT = 7,
    /// A get is over. The buffer holds the data unless `status` is an error: `transfer`, `buffer`, `status`.
    BW_EVENT_GOT = 8,
    /// A peer has put data into a region of ours: `peer`, and its note in `data` and `length_bytes`.
    BW_EVENT_NOTIFIED = 9,
    /// There is room again after a send that was BW_ERROR_FULL: `peer`, `priority`.
    BW_EVENT_ROOM = 10,
    /// A long message waits for a posted buffer: `peer`, `priority`, `length_bytes`. Reported once, and again if a
    /// buffer posted since is too small.
    BW_EVENT_BUFFER_NEEDED = 11,
    /// An event that this version of the interface has no number for.
    BW_EVENT_OTHER = 12,
}

use bw_event_kind_t::*;

/// An event of a port. `data` is valid until the next bw_poll, bw_wait or bw_event_release on the port. Data in
/// posted memory is an exception: it is the program's again at once.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bw_event_t {
    /// A bw_event_kind_t.
    pub kind: u32,
    /// BW_OK, or the bw_error_t of a transfer that failed or a peer that has gone.
    pub status: i32,
    /// The peer, or 0.
    pub peer: bw_peer_t,
    /// The transfer, or 0.
    pub transfer: bw_transfer_t,
    /// A bw_priority_t.
    pub priority: u32,
    /// Zero.
    pub reserved: u32,
    /// The bytes of a message, a datagram or a note.
    pub data: *const c_void,
    /// The length of a message, a datagram or a note.
    pub length_bytes: u64,
    /// The program's own memory, which it may use again; NULL if there is none or it was empty.
    pub buffer: *mut c_void,
    /// The whole length of `buffer`.
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

/// Reports what a poll has found.
///
/// # Safety
/// As for [`bw_poll`].
unsafe fn take(
    port: *mut bw_port_t,
    event: *mut bw_event_t,
    poll: impl FnOnce(&mut Port) -> Option<Event>,
) -> c_int {
    let report = |port: &mut bw_port_t| {
        // SAFETY: the caller's promise.
        let target = unsafe { place(event, "event")? };
        port.release();
        let happened = poll(&mut port.port);
        Ok(port.report(happened, target.write(bw_event_t::NONE)))
    };
    // SAFETY: the caller's promise.
    unsafe { with(port, report) }
}

/// Takes the next event. Returns 1 if there was one, otherwise 0. Never waits. Makes no system call, except about
/// once in a millisecond to check sockets and to notice dead peers.
///
/// # Safety
/// `port` is null or an open port, used by this thread alone; `event` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_poll(port: *mut bw_port_t, event: *mut bw_event_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { take(port, event, |port| port.poll()) }
}

/// Takes the next event that has arrived already. Returns 1 if there was one, otherwise 0. Looks neither at sockets nor at quiet peers,
/// and makes no system call: for a program that takes several events at a time. bw_poll has to be called as well.
///
/// # Safety
/// As for bw_poll.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_poll_arrived(port: *mut bw_port_t, event: *mut bw_event_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { take(port, event, |port| port.poll_arrived()) }
}

/// Returns 1 if the last bw_poll has moved something on without an event, such as a part of a long message, otherwise 0.
///
/// # Safety
/// `port` is null or an open port, used by this thread alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_has_progressed(port: *mut bw_port_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with(port, |port| Ok(port.port.has_progressed().into())) }
}

/// Waits for the next event, at most `timeout_us` microseconds (BW_FOREVER: without end). Returns 1 if there was one,
/// 0 when the time is up. Spins for a bounded time, then sleeps.
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

/// Gives back early the memory that the last event's `data` points to.
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

/// Prepares to sleep on the port's descriptor. 1: there is nothing to do, and the descriptor becomes readable with
/// the next event. 0: poll again instead. After waking, poll until there is no event, then arm again.
///
/// # Safety
/// `port` is null or an open port, used by this thread alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_arm(port: *mut bw_port_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with(port, |port| Ok(c_int::from(port.port.arm()))) }
}

impl bw_port_t {
    /// Gives the memory behind the last event back to the port, for later messages.
    #[inline(always)]
    fn release(&mut self) {
        if let EventMemory::Payload(payload) = std::mem::replace(&mut self.held, EventMemory::Nothing) {
            self.port.recycle(payload);
        }
    }

    /// Writes an event for C and keeps the memory that it points to. Returns 1 if there was an event.
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

    /// Points the event to the payload. The program's own memory goes back to the program. Ours is held until the
    /// next call.
    #[inline(always)]
    fn hold(&mut self, payload: Payload, event: &mut bw_event_t) {
        event.length_bytes = payload.len() as u64;
        // The address of the bytes decides, never their number, which the peer chooses.
        if payload.is_borrowed() && self.posted.remove(&payload.as_ptr().addr()) {
            event.data = payload.as_ptr().cast();
            if let Some(buffer) = payload.into_buffer() {
                give_back(event, buffer);
            }
            return;
        }
        self.held = EventMemory::Payload(payload);
        // Short payloads are in the value itself, so the event points to where the value stays.
        if let EventMemory::Payload(payload) = &self.held {
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

/// Names the program's memory that the library no longer uses.
fn give_back(event: &mut bw_event_t, buffer: Buffer) {
    if !buffer.as_ref().is_empty() {
        event.buffer = buffer.as_ptr().cast_mut().cast();
        event.buffer_bytes = buffer.as_ref().len() as u64;
    }
}
