//! Completion queues.

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::AsFd;
use std::ptr;
use std::sync::{Mutex, TryLockError};
use std::time::{Duration, Instant};

use bywire_sys::clock;
use bywire_sys::poller::Poller;

use super::call::{
    bind_nothing, close_object, count, give, operations, shielded, status, tell_wait_object, write_text,
};
use super::object::{ENTRY_BYTES_MAX, QueueObject, domain_of, queue};
use crate::abi::{
    FI_CLASS_CQ, FI_CQ_FORMAT_CONTEXT, FI_CQ_FORMAT_DATA, FI_CQ_FORMAT_MSG, FI_CQ_FORMAT_TAGGED,
    FI_CQ_FORMAT_UNSPEC, FI_EAGAIN, FI_EAVAIL, FI_EINVAL, FI_EIO, FI_ENOSYS, FI_EOTHER, FI_WAIT_FD,
    FI_WAIT_NONE, FI_WAIT_UNSPEC, FI_WAIT_YIELD, fi_cq_attr, fi_cq_err_entry, fi_ops, fi_ops_cq, fid, fid_cq,
    fid_domain,
};
use crate::completion::{Completion, Queue};
use crate::domain::{Sleep, State};

/// The length of entries of a format.
fn entry_bytes(format: u32) -> Option<usize> {
    match format {
        FI_CQ_FORMAT_UNSPEC | FI_CQ_FORMAT_CONTEXT => Some(8),
        FI_CQ_FORMAT_MSG => Some(24),
        FI_CQ_FORMAT_DATA => Some(40),
        FI_CQ_FORMAT_TAGGED => Some(ENTRY_BYTES_MAX),
        _ => None,
    }
}

/// Writes an entry of a program's array.
///
/// # Safety
/// The array has more than `place` entries of the queue's format.
#[inline(always)]
unsafe fn write_entry(queue: &QueueObject, completion: &Completion, entries: *mut c_void, place: usize) {
    let Completion { context, flags, length, buffer, data, tag, .. } = completion;
    // In the order of `fi_cq_tagged_entry`, with which entries of all formats begin, without gaps.
    let words: [*const u64; ENTRY_BYTES_MAX / 8] =
        [ptr::from_ref(context).cast(), flags, length, ptr::from_ref(buffer).cast(), data, tag];
    // SAFETY: the caller's guarantee, and all fields are words. Volatile, so that they are loaded one by one: they may just have been
    // stored so, and a load of two at a time would wait for both stores.
    unsafe {
        let target = entries.cast::<u8>().add(place * queue.entry_bytes).cast::<u64>();
        for (index, word) in words.into_iter().enumerate().take(queue.entry_bytes / 8) {
            target.add(index).write_unaligned(word.read_volatile());
        }
    }
}

static OPERATIONS: fi_ops = operations(close, bind_nothing, control);
static QUEUE_OPERATIONS: fi_ops_cq =
    fi_ops_cq { size: size_of::<fi_ops_cq>(), read, readfrom, readerr, sread, sreadfrom, signal, strerror };

/// Answers `fi_cq_open`.
pub extern "C" fn open(
    domain: *mut fid_domain,
    attributes: *mut fi_cq_attr,
    place: *mut *mut fid_cq,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: the program gives valid attributes.
        let attributes = unsafe { attributes.as_ref() }.ok_or(FI_EINVAL)?;
        let entry_bytes = entry_bytes(attributes.format).ok_or(FI_EINVAL)?;
        let has_descriptor = match attributes.wait_obj {
            FI_WAIT_NONE => false,
            FI_WAIT_UNSPEC | FI_WAIT_FD | FI_WAIT_YIELD => true,
            _ => return Err(FI_ENOSYS),
        };
        let queue = Queue::new(has_descriptor).map_err(|error| error.raw_os_error())?;
        let share = |poller: &Poller| poller.share().map(Mutex::new).map_err(|error| error.raw_os_error());
        let sleep = queue.poller().map(share).transpose()?;
        let domain = domain_of(domain);
        let number = domain.state()?.outlets.add(queue);
        let head = fid { fclass: FI_CLASS_CQ, context, ops: &OPERATIONS };
        let head = fid_cq { fid: head, ops: &QUEUE_OPERATIONS };
        give(QueueObject { head, domain, number, entry_bytes, sleep }, place);
        Ok(())
    })
}

extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: the table with this function is that of queues, and the program uses none after its close.
    unsafe { close_object::<QueueObject>(fid, |queue| queue.domain.state()?.remove_queue(queue.number)) }
}

extern "C" fn control(fid: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    status(|| {
        let queue = queue(fid);
        let mut state = queue.domain.state()?;
        let poller = state.outlets.queue(queue.number).and_then(|queue| queue.poller());
        // SAFETY: the program gives room for what the command asks for.
        unsafe { tell_wait_object(command, argument, poller.map(|poller| poller.as_fd())) }
    })
}

/// Is there nothing to read, and nothing that could be done? Then the queue's descriptor tells of the next thing.
pub fn prepare_sleep(fid: *mut fid) -> Result<(), i32> {
    let queue = queue(fid);
    let mut state = queue.domain.state()?;
    let sleep = Sleep { queue: queue.number, is_within_call: false };
    state.wake_up(sleep);
    // The program's own sleep has no end that is known here.
    let is_ready = is_ready(&mut state, queue.number)? || state.due_ns(queue.number).is_some();
    if is_ready {
        return Err(FI_EAGAIN);
    }
    state.fall_asleep(sleep);
    Ok(())
}

fn is_ready(state: &mut State, number: usize) -> Result<bool, i32> {
    let waiting = state.outlets.queue(number).ok_or(FI_EINVAL)?;
    if waiting.poller().is_none() {
        return Err(FI_EINVAL);
    }
    if !waiting.is_empty() {
        return Ok(true);
    }
    waiting.drain();
    state.progress();
    let is_empty = state.outlets.queue(number).is_none_or(|waiting| waiting.is_empty());
    Ok(!is_empty || !state.arm(number))
}

/// Takes completions. The program learns their sources, if it gives room for them.
#[inline(always)]
fn take_some(
    queue: &QueueObject,
    state: &mut State,
    (entries, room): (*mut c_void, usize),
    sources: *mut u64,
) -> Result<usize, i32> {
    let waiting = state.outlets.queue(queue.number).ok_or(FI_EINVAL)?;
    let mut are_short = true;
    let taken = waiting.take(room, |place, completion| {
        // SAFETY: the program has given room for `room` entries, and for as many sources or none.
        unsafe {
            write_entry(queue, completion, entries, place);
            if !sources.is_null() {
                sources.add(place).write(completion.source);
            }
        }
        are_short &= completion.is_short_receive();
    });
    if taken > 0 && taken < room && are_short {
        waiting.emptied(clock::cycles());
    }
    let answer = match taken {
        0 if waiting.has_error() => Err(FI_EAVAIL),
        0 => return Err(FI_EAGAIN),
        _ => Ok(taken),
    };
    // The program is awake, until it asks again whether it may sleep.
    state.wake_up(Sleep { queue: queue.number, is_within_call: false });
    answer
}

#[inline(always)]
fn read_some(fid: *mut fid_cq, room: (*mut c_void, usize), sources: *mut u64) -> Result<usize, i32> {
    let queue = queue(fid);
    let mut state = queue.domain.state()?;
    let waiting = state.outlets.queue(queue.number).ok_or(FI_EINVAL)?;
    let is_empty = waiting.is_empty();
    if is_empty && let Some(now) = waiting.asks_for_more(clock::cycles) {
        state.answered_in_vain(now);
        return Err(FI_EAGAIN);
    }
    if is_empty {
        let is_ready =
            |state: &mut State| state.outlets.queue(queue.number).is_some_and(|waiting| !waiting.is_empty());
        state = queue.domain.poll(state, is_ready)?.ok_or(FI_EAGAIN)?;
    } else {
        state.found();
    }
    take_some(queue, &mut state, room, sources)
}

extern "C" fn read(fid: *mut fid_cq, entries: *mut c_void, room: usize) -> isize {
    readfrom(fid, entries, room, std::ptr::null_mut())
}

extern "C" fn readfrom(fid: *mut fid_cq, entries: *mut c_void, room: usize, sources: *mut u64) -> isize {
    count(|| read_some(fid, (entries, room), sources))
}

extern "C" fn readerr(fid: *mut fid_cq, entry: *mut fi_cq_err_entry, _: u64) -> isize {
    count(|| {
        let queue = queue(fid);
        let mut state = queue.domain.state()?;
        let waiting = state.outlets.queue(queue.number).ok_or(FI_EINVAL)?;
        let completion = waiting.pop_error().ok_or(FI_EAGAIN)?;
        // SAFETY: the program gives room for an entry, of version 1.17 or newer.
        let entry = unsafe { entry.as_mut() }.ok_or(FI_EINVAL)?;
        entry.op_context = completion.context as *mut c_void;
        entry.flags = completion.flags;
        entry.len = completion.length as usize;
        entry.buf = completion.buffer as *mut c_void;
        entry.data = completion.data;
        entry.tag = completion.tag;
        entry.olen = completion.overflow as usize;
        (entry.err, entry.prov_errno) = (completion.error, completion.error);
        // There is no more to say. What the program gives for that stays its own.
        entry.err_data_size = 0;
        Ok(1)
    })
}

extern "C" fn sread(
    fid: *mut fid_cq,
    entries: *mut c_void,
    room: usize,
    _: *const c_void,
    timeout: c_int,
) -> isize {
    sreadfrom(fid, entries, room, std::ptr::null_mut(), std::ptr::null(), timeout)
}

/// Waits for completions, at most `timeout` milliseconds, or forever if it is negative.
extern "C" fn sreadfrom(
    fid: *mut fid_cq,
    entries: *mut c_void,
    room: usize,
    sources: *mut u64,
    _: *const c_void,
    timeout: c_int,
) -> isize {
    count(|| {
        let queue = queue(fid);
        let sleep = queue.sleep.as_ref().ok_or(FI_EINVAL)?;
        let timeout = u64::try_from(timeout).ok().map(Duration::from_millis);
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let mut state = queue.domain.state()?;
            let is_ready = is_ready(&mut state, queue.number)?;
            match take_some(queue, &mut state, (entries, room), sources) {
                Err(FI_EAGAIN) => {}
                taken => return taken,
            }
            if state.outlets.queue(queue.number).is_some_and(|waiting| waiting.take_interrupt()) {
                return Err(FI_EAGAIN);
            }
            let due_ns = state.due_ns(queue.number);
            let rest = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if rest == Some(Duration::ZERO) {
                return Err(FI_EAGAIN);
            }
            if is_ready {
                continue;
            }
            let until_due = due_ns.map(|due| Duration::from_nanos(due.saturating_sub(clock::nanoseconds())));
            let rest = rest.into_iter().chain(until_due).min();
            let asleep = Sleep { queue: queue.number, is_within_call: true };
            state.fall_asleep(asleep);
            drop(state);
            let slept = sleep_on(queue, sleep, rest);
            queue.domain.state()?.wake_up(asleep);
            slept?;
        }
    })
}

/// Sleeps until the descriptor of a queue is ready, or for `rest`.
fn sleep_on(queue: &QueueObject, sleep: &Mutex<Poller>, rest: Option<Duration>) -> Result<(), i32> {
    match sleep.try_lock() {
        Ok(mut poller) => drop(poller.wait(rest).map_err(|_| FI_EIO)?),
        // Another thread sleeps with it, maybe longer.
        Err(TryLockError::WouldBlock) => {
            let mut state = queue.domain.state()?;
            let waiting = state.outlets.queue(queue.number).ok_or(FI_EINVAL)?;
            let own = waiting.poller().ok_or(FI_EINVAL)?.share();
            drop(state);
            let mut own = own.map_err(|error| error.raw_os_error())?;
            own.wait(rest).map_err(|_| FI_EIO)?;
        }
        Err(TryLockError::Poisoned(_)) => return Err(FI_EOTHER),
    }
    Ok(())
}

extern "C" fn signal(fid: *mut fid_cq) -> c_int {
    status(|| {
        let queue = queue(fid);
        let mut state = queue.domain.state()?;
        let waiting = state.outlets.queue(queue.number).ok_or(FI_EINVAL)?;
        if waiting.poller().is_none() {
            return Err(FI_ENOSYS);
        }
        waiting.interrupt();
        Ok(())
    })
}

/// Errors of this provider are those of libfabric, whose texts the program has.
extern "C" fn strerror(
    _: *mut fid_cq,
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
