//! Put and get, and the regions that they reach.

use std::ffi::{c_int, c_void};

use bywire::{Buffer, Errno, Key, Rights};

use crate::error::bw_error_t::BW_ERROR_BAD_KEY;
use crate::failure::Failure;
use crate::handle::{buffer, bytes, place};
use crate::message::{bw_transfer_t, name_transfer};
use crate::options;
use crate::port::{bw_peer_t, bw_port_t, peer_of, with};

/// The capability to reach a region: hand it to peers, in a message for example.
pub type bw_key_t = u64;

/// What peers may do with a region; or-ed together.
#[repr(C)]
pub enum bw_right_t {
    /// They may get.
    BW_RIGHT_READ = 1,
    /// They may put.
    BW_RIGHT_WRITE = 2,
}

/// Registers a region of `length_bytes` that peers with its key may access with `rights`. It is the program's
/// `memory`, or if that is NULL, zeroed memory of the library. Between calls on the port the program may read and
/// write there. During calls peers' data arrives.
///
/// # Safety
/// `port` is null or an open port, used by this thread alone; `key` is null or valid for a write. `memory` is null or
/// valid for reads and writes of `length_bytes`. Until bw_region_revoke or bw_port_close, no code touches it during a
/// call on the port.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_region_register(
    port: *mut bw_port_t,
    memory: *mut c_void,
    length_bytes: usize,
    rights: u32,
    key: *mut bw_key_t,
) -> c_int {
    let register = |port: &mut bw_port_t| {
        // SAFETY: the caller's promise.
        let target = unsafe { place(key, "key")? };
        if rights > 3 {
            return Err(Failure::argument(format!("rights are bw_right_t or-ed together, not {rights}")));
        }
        let rights = Rights { read: rights & 1 != 0, write: rights & 2 != 0 };
        let memory = if memory.is_null() {
            zeros(length_bytes)?
        } else {
            // SAFETY: lent by the caller's promise, during calls on the port.
            unsafe { buffer(memory, length_bytes)? }
        };
        target.write(port.port.register(memory, rights)?.0);
        Ok(0)
    };
    // SAFETY: the caller's promise.
    unsafe { with(port, register) }
}

/// Zeroed memory of the library. Too much of it is an error, not the end of the process.
fn zeros(length_bytes: usize) -> Result<Buffer, Failure> {
    let mut memory = Vec::new();
    memory.try_reserve_exact(length_bytes).map_err(|_| Errno::NOMEM)?;
    memory.resize(length_bytes, 0);
    Ok(memory.into())
}

/// Stores the address of a region of ours, and its length unless `length_bytes` is NULL.
///
/// # Safety
/// `port` is null or an open port, used by this thread alone; the others are null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_region_memory(
    port: *mut bw_port_t,
    key: bw_key_t,
    memory: *mut *mut c_void,
    length_bytes: *mut usize,
) -> c_int {
    let look = |port: &mut bw_port_t| {
        // SAFETY: the caller's promise.
        let target = unsafe { place(memory, "memory")? };
        let region = port.port.region_mut(Key(key)).ok_or(BW_ERROR_BAD_KEY)?;
        if !length_bytes.is_null() {
            // SAFETY: not null, so valid by the caller's promise.
            unsafe { length_bytes.write(region.len()) };
        }
        target.write(region.as_mut_ptr().cast());
        Ok(0)
    };
    // SAFETY: the caller's promise.
    unsafe { with(port, look) }
}

/// Ends a region: its key is invalid from now on. The program's memory is its own again, and the library's is freed.
///
/// # Safety
/// `port` is null or an open port, used by this thread alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_region_revoke(port: *mut bw_port_t, key: bw_key_t) -> c_int {
    let revoke = |port: &mut bw_port_t| match port.port.revoke(Key(key)) {
        Some(_) => Ok(0),
        None => Err(BW_ERROR_BAD_KEY.into()),
    };
    // SAFETY: the caller's promise.
    unsafe { with(port, revoke) }
}

/// Puts data into a peer's region at `offset`, in order with messages of the same priority. A note (not NULL) of up
/// to BW_NOTE_BYTES_MAX bytes notifies the peer after the data is visible. The data must stay unchanged until
/// BW_EVENT_PUT gives it back. Takes a send token until that event is queued. `transfer` may be NULL.
///
/// # Safety
/// As for bw_send_buffer; `note` is null or valid for reads of `note_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_put(
    port: *mut bw_port_t,
    peer: bw_peer_t,
    priority: u32,
    key: bw_key_t,
    offset: u64,
    data: *const c_void,
    length_bytes: usize,
    note: *const c_void,
    note_bytes: usize,
    transfer: *mut bw_transfer_t,
) -> c_int {
    let has_note = !note.is_null();
    let put = |port: &mut bw_port_t| {
        let priority = options::priority(priority)?;
        // SAFETY: the caller's promise.
        let note = unsafe { bytes(note, note_bytes)? };
        let note = has_note.then_some(note);
        // SAFETY: lent by the caller's promise; a buffer to put is only read.
        let data = unsafe { buffer(data.cast_mut(), length_bytes)? };
        let begun = port.port.put(peer_of(peer), priority, (Key(key), offset), data, note);
        // SAFETY: the caller's promise.
        unsafe { name_transfer(begun, transfer) }
    };
    // SAFETY: the caller's promise.
    unsafe { with(port, put) }
}

/// Gets `length_bytes` from a peer's region at `offset` into `data`, which belongs to the library until BW_EVENT_GOT.
/// Takes a send token until that event is queued. `transfer` may be NULL.
///
/// # Safety
/// As for bw_post_receive; `transfer` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_get(
    port: *mut bw_port_t,
    peer: bw_peer_t,
    priority: u32,
    key: bw_key_t,
    offset: u64,
    data: *mut c_void,
    length_bytes: usize,
    transfer: *mut bw_transfer_t,
) -> c_int {
    let get = |port: &mut bw_port_t| {
        let priority = options::priority(priority)?;
        // SAFETY: lent by the caller's promise.
        let data = unsafe { buffer(data, length_bytes)? };
        let begun = port.port.get(peer_of(peer), priority, (Key(key), offset), data);
        // SAFETY: the caller's promise.
        unsafe { name_transfer(begun, transfer) }
    };
    // SAFETY: the caller's promise.
    unsafe { with(port, get) }
}
