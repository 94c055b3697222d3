//! Event queues. Of endpoints that exchange messages without connecting nothing reports there; programs may write to them.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::AsFd;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bywire_sys::fork::ForkGuard;
use bywire_sys::wake::Eventfd;

use super::call::{
    bind_nothing, close_object, count, give, object, operations, shielded, status, tell_wait_object,
    write_text,
};
use crate::abi::{
    FI_CLASS_EQ, FI_EAGAIN, FI_EINVAL, FI_ENOSYS, FI_EOPBADSTATE, FI_EOTHER, FI_ETOOSMALL, FI_PEEK,
    FI_WAIT_FD, FI_WAIT_NONE, FI_WAIT_UNSPEC, FI_WAIT_YIELD, FI_WRITE, fi_eq_attr, fi_ops, fi_ops_eq, fid,
    fid_eq, fid_fabric,
};

/// The most events that wait, and the longest one in bytes.
const EVENTS_MAX: usize = 1 << 16;
const EVENT_BYTES_MAX: usize = 4096;

/// Kinds of events, and what they say.
type Events = VecDeque<(u32, Box<[u8]>)>;

#[repr(C)]
struct EventQueue {
    head: fid_eq,
    waiting: Mutex<Events>,
    has_more: Condvar,
    /// Ready when there is an event.
    signal: Option<Eventfd>,
    /// A forked child would take the parent's signal.
    guard: ForkGuard,
    may_be_written: bool,
}

static OPERATIONS: fi_ops = operations(close, bind_nothing, control);
static QUEUE_OPERATIONS: fi_ops_eq =
    fi_ops_eq { size: size_of::<fi_ops_eq>(), read, readerr: nothing_failed, write, sread, strerror };

/// The queue of whose tables a call is, or at whose class the caller has looked.
fn queue<'a, F>(queue: *mut F) -> &'a EventQueue {
    // SAFETY: it is the first field of such an object.
    unsafe { object(queue) }
}

impl EventQueue {
    fn waiting(&self) -> Result<MutexGuard<'_, Events>, i32> {
        if !self.guard.is_owner() {
            return Err(FI_EOPBADSTATE);
        }
        self.waiting.lock().map_err(|_| FI_EOTHER)
    }

    /// Takes the first event, or only looks at it.
    fn take(
        &self,
        waiting: &mut Events,
        (kind, target, room): (*mut u32, *mut c_void, usize),
        flags: u64,
    ) -> Result<usize, i32> {
        let (first, said) = waiting.front().ok_or(FI_EAGAIN)?;
        if said.len() > room {
            return Err(FI_ETOOSMALL);
        }
        let length = said.len();
        // SAFETY: the program gives a place for the kind, and room for as many bytes as it says.
        unsafe {
            kind.write(*first);
            std::ptr::copy_nonoverlapping(said.as_ptr(), target.cast(), length);
        }
        if flags & FI_PEEK == 0 {
            waiting.pop_front();
            if let Some(signal) = self.signal.as_ref().filter(|_| waiting.is_empty()) {
                signal.drain();
            }
        }
        Ok(length)
    }
}

/// Answers `fi_eq_open`.
pub extern "C" fn open(
    _: *mut fid_fabric,
    attributes: *mut fi_eq_attr,
    place: *mut *mut fid_eq,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: the program gives valid attributes, or none for the usual ones.
        let (flags, object) = unsafe { attributes.as_ref() }
            .map_or((0, FI_WAIT_UNSPEC), |attributes| (attributes.flags, attributes.wait_obj));
        let signal = match object {
            FI_WAIT_NONE | FI_WAIT_YIELD => None,
            FI_WAIT_UNSPEC | FI_WAIT_FD => Some(Eventfd::new().map_err(|error| error.raw_os_error())?),
            _ => return Err(FI_ENOSYS),
        };
        let head = fid { fclass: FI_CLASS_EQ, context, ops: &OPERATIONS };
        let queue = EventQueue {
            head: fid_eq { fid: head, ops: &QUEUE_OPERATIONS },
            waiting: Mutex::default(),
            has_more: Condvar::new(),
            signal,
            guard: ForkGuard::new().map_err(|error| error.raw_os_error())?,
            may_be_written: flags & FI_WRITE != 0,
        };
        give(queue, place);
        Ok(())
    })
}

extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: the table with this function is that of event queues, and the program uses none after its close.
    unsafe { close_object::<EventQueue>(fid, |_| Ok(())) }
}

extern "C" fn control(fid: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    status(|| {
        let signal = queue(fid).signal.as_ref();
        // SAFETY: the program gives room for what the command asks for.
        unsafe { tell_wait_object(command, argument, signal.map(|signal| signal.as_fd())) }
    })
}

/// Is there nothing to read? Then the queue's descriptor tells of the next event.
pub fn prepare_sleep(fid: *mut fid) -> Result<(), i32> {
    let queue = queue(fid);
    if queue.signal.is_none() {
        return Err(FI_EINVAL);
    }
    if queue.waiting()?.is_empty() { Ok(()) } else { Err(FI_EAGAIN) }
}

extern "C" fn read(fid: *mut fid_eq, kind: *mut u32, target: *mut c_void, room: usize, flags: u64) -> isize {
    count(|| {
        let queue = queue(fid);
        queue.take(&mut *queue.waiting()?, (kind, target, room), flags)
    })
}

/// Events of operations that have failed. There are none.
extern "C" fn nothing_failed() -> isize {
    -(FI_EAGAIN as isize)
}

extern "C" fn write(fid: *mut fid_eq, kind: u32, said: *const c_void, length: usize, _: u64) -> isize {
    count(|| {
        let queue = queue(fid);
        if !queue.may_be_written || length > EVENT_BYTES_MAX || said.is_null() && length > 0 {
            return Err(FI_EINVAL);
        }
        let said = match length {
            0 => &[],
            // SAFETY: the program gives as many bytes as it says.
            _ => unsafe { std::slice::from_raw_parts(said.cast::<u8>(), length) },
        };
        let mut waiting = queue.waiting()?;
        if waiting.len() >= EVENTS_MAX {
            return Err(FI_EAGAIN);
        }
        waiting.push_back((kind, said.into()));
        if let Some(signal) = &queue.signal {
            signal.signal();
        }
        queue.has_more.notify_one();
        Ok(length)
    })
}

/// Waits for an event, at most `timeout` milliseconds, or forever if it is negative.
extern "C" fn sread(
    fid: *mut fid_eq,
    kind: *mut u32,
    target: *mut c_void,
    room: usize,
    timeout: c_int,
    flags: u64,
) -> isize {
    count(|| {
        let queue = queue(fid);
        let timeout = u64::try_from(timeout).ok().map(Duration::from_millis);
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut waiting = queue.waiting()?;
        loop {
            match queue.take(&mut waiting, (kind, target, room), flags) {
                Err(FI_EAGAIN) => {}
                taken => return taken,
            }
            waiting = match deadline {
                None => queue.has_more.wait(waiting).map_err(|_| FI_EOTHER)?,
                Some(deadline) => {
                    let rest = deadline.saturating_duration_since(Instant::now());
                    if rest.is_zero() {
                        return Err(FI_EAGAIN);
                    }
                    queue.has_more.wait_timeout(waiting, rest).map_err(|_| FI_EOTHER)?.0
                }
            };
        }
    })
}

/// Errors of this provider are those of libfabric, whose texts the program has.
extern "C" fn strerror(
    _: *mut fid_eq,
    error: c_int,
    _: *const c_void,
    target: *mut c_char,
    length: usize,
) -> *const c_char {
    let written = shielded(|| {
        write_text(&std::io::Error::from_raw_os_error(error).to_string(), target, length);
        Ok(())
    });
    if written.is_ok() && !target.is_null() && length > 0 { target } else { c"".as_ptr() }
}
