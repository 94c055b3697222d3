//! Sending and posting memory to receive into.

use std::ffi::{c_int, c_void};

use crate::error::bw_error_t::{BW_ERROR_DROPPED, BW_ERROR_NO_RECEIVE_TOKEN};
use crate::failure::Failure;
use crate::handle::{buffer, bytes};
use crate::options;
use crate::port::{bw_peer_t, bw_port_t, peer_of, with};

/// Identifies an asynchronous transfer until its completion.
pub type bw_transfer_t = u64;

/// Copies a message of up to one fragment (BW_FRAGMENT_BYTES by default) to a peer, at once. It needs no token and
/// no completion. BW_ERROR_FULL is back-pressure: try again after BW_EVENT_ROOM.
///
/// # Safety
/// `port` is null or an open port, used by this thread alone; `data` is valid for reads of `length_bytes`, or
/// null when that is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_send(
    port: *mut bw_port_t,
    peer: bw_peer_t,
    priority: u32,
    data: *const c_void,
    length_bytes: usize,
) -> c_int {
    let send = |port: &mut bw_port_t| {
        // SAFETY: the caller's promise.
        let data = unsafe { bytes(data, length_bytes)? };
        port.port.send(peer_of(peer), options::priority(priority)?, data)?;
        Ok(0)
    };
    // SAFETY: the caller's promise.
    unsafe { with(port, send) }
}

/// Sends a datagram of up to one fragment. It arrives at most once, in no order, and never blocks anything.
/// A datagram without room is dropped and counted: BW_ERROR_DROPPED.
///
/// # Safety
/// As for bw_send.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_send_datagram(
    port: *mut bw_port_t,
    peer: bw_peer_t,
    priority: u32,
    data: *const c_void,
    length_bytes: usize,
) -> c_int {
    let send = |port: &mut bw_port_t| {
        // SAFETY: the caller's promise.
        let data = unsafe { bytes(data, length_bytes)? };
        let sent = port.port.send_datagram(peer_of(peer), options::priority(priority)?, data)?;
        if sent { Ok(0) } else { Err(BW_ERROR_DROPPED.into()) }
    };
    // SAFETY: the caller's promise.
    unsafe { with(port, send) }
}

/// Asks for BW_EVENT_ROOM as soon as a whole fragment fits into the lane to a peer. This is for programs that keep a
/// datagram that was dropped for lack of room, and try again. The event comes once.
///
/// # Safety
/// `port` is null or an open port, used by this thread alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_await_room(port: *mut bw_port_t, peer: bw_peer_t, priority: u32) -> c_int {
    let ask = |port: &mut bw_port_t| {
        port.port.await_room(peer_of(peer), options::priority(priority)?)?;
        Ok(0)
    };
    // SAFETY: the caller's promise.
    unsafe { with(port, ask) }
}

/// Lets everything leave at once that was gathered for peers on other machines. Without this it leaves with the next
/// bw_poll, bw_wait or bw_arm, or as soon as packets are full. Within one machine nothing is gathered.
///
/// # Safety
/// `port` is null or an open port, used by this thread alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_flush(port: *mut bw_port_t) -> c_int {
    let flush = |port: &mut bw_port_t| {
        port.port.flush();
        Ok(0)
    };
    // SAFETY: the caller's promise.
    unsafe { with(port, flush) }
}

/// Sends a message of any length from the program's own memory, which must stay unchanged until BW_EVENT_SENT gives
/// it back. `confirm` is a bw_confirm_t. `transfer` may be NULL. Takes a send token, which is free again as soon as
/// that event is queued, whether or not the program has taken it.
///
/// # Safety
/// `port` is null or an open port, used by this thread alone. `data` is valid for reads of `length_bytes`, from any
/// thread, and not written until its event or until the port is closed. On failure this promise ends at once.
/// `transfer` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_send_buffer(
    port: *mut bw_port_t,
    peer: bw_peer_t,
    priority: u32,
    data: *const c_void,
    length_bytes: usize,
    confirm: u32,
    transfer: *mut bw_transfer_t,
) -> c_int {
    let send = |port: &mut bw_port_t| {
        let (priority, confirm) = (options::priority(priority)?, options::confirm(confirm)?);
        // SAFETY: lent by the caller's promise; a buffer to send is only read.
        let data = unsafe { buffer(data.cast_mut(), length_bytes)? };
        let begun = port.port.send_buffer(peer_of(peer), priority, data, confirm);
        // SAFETY: the caller's promise.
        unsafe { name_transfer(begun, transfer) }
    };
    // SAFETY: the caller's promise.
    unsafe { with(port, send) }
}

/// Tells C the number of a transfer that has begun.
///
/// # Safety
/// `target` is null or valid for a write.
///
/// # Errors
/// The transfer's error. Its memory is the program's again.
pub unsafe fn name_transfer(
    begun: Result<bywire::TransferId, bywire::Unsent>,
    target: *mut bw_transfer_t,
) -> Result<c_int, Failure> {
    let transfer = begun.map_err(|unsent| unsent.error)?;
    if !target.is_null() {
        // SAFETY: not null, so valid by the caller's promise.
        unsafe { target.write(transfer.0) };
    }
    Ok(0)
}

/// Posts memory to receive one long message of this priority. The message's event gives the memory back. A message
/// takes the smallest buffer that it fits into, and of equal ones the last posted. Messages of one fragment need none,
/// nor do long ones of a peer that has ended.
///
/// # Safety
/// `port` is null or an open port, used by this thread alone. `data` is valid for reads and writes of `length_bytes`,
/// from any thread, and not touched until its event or until the port is closed. On failure this promise ends at
/// once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_post_receive(
    port: *mut bw_port_t,
    priority: u32,
    data: *mut c_void,
    length_bytes: usize,
) -> c_int {
    let post = |port: &mut bw_port_t| {
        let priority = options::priority(priority)?;
        if length_bytes == 0 {
            return Err(Failure::argument("an empty buffer holds no message"));
        }
        if port.posted.contains(&data.addr()) {
            return Err(Failure::argument("this memory is posted already"));
        }
        // SAFETY: memory that C calls valid for reads is initialised. The rest is the caller's promise.
        let memory = unsafe { buffer(data, length_bytes)? };
        port.port.post_receive(priority, memory).map_err(|_| BW_ERROR_NO_RECEIVE_TOKEN)?;
        port.posted.insert(data.addr());
        Ok(0)
    };
    // SAFETY: the caller's promise.
    unsafe { with(port, post) }
}
