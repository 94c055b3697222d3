//! Counters of completed operations.

use std::ffi::{c_int, c_void};
use std::time::{Duration, Instant};

use super::call::{bind_nothing, close_object, control_nothing, give, operations, shielded, status};
use super::object::{CounterObject, counter, domain_of};
use crate::abi::{
    FI_CLASS_CNTR, FI_EAVAIL, FI_EINVAL, FI_ETIMEDOUT, fi_ops, fi_ops_cntr, fid, fid_cntr, fid_domain,
};
use crate::outlets::Counter;

static OPERATIONS: fi_ops = operations(close, bind_nothing, control_nothing);
static COUNTER_OPERATIONS: fi_ops_cntr =
    fi_ops_cntr { size: size_of::<fi_ops_cntr>(), read, readerr, add, set, wait, adderr, seterr };

/// Answers `fi_cntr_open`. Waiting needs no object of its own.
pub extern "C" fn open(
    domain: *mut fid_domain,
    _: *mut c_void,
    place: *mut *mut fid_cntr,
    context: *mut c_void,
) -> c_int {
    status(|| {
        let domain = domain_of(domain);
        let number = domain.state()?.outlets.add_counter();
        let head = fid { fclass: FI_CLASS_CNTR, context, ops: &OPERATIONS };
        give(CounterObject { head: fid_cntr { fid: head, ops: &COUNTER_OPERATIONS }, domain, number }, place);
        Ok(())
    })
}

extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: the table with this function is that of counters, and the program uses none after its close.
    unsafe {
        close_object::<CounterObject>(fid, |counter| counter.domain.state()?.remove_counter(counter.number))
    }
}

fn with(fid: *mut fid_cntr, moves: bool, call: impl FnOnce(&mut Counter)) -> Result<(), i32> {
    let CounterObject { domain, number, .. } = counter(fid);
    let mut state = domain.state()?;
    if moves {
        state.progress();
    }
    call(state.outlets.counter(*number).ok_or(FI_EINVAL)?);
    Ok(())
}

extern "C" fn read(fid: *mut fid_cntr) -> u64 {
    let mut value = 0;
    let _ = shielded(|| with(fid, true, |counter| value = counter.value));
    value
}

extern "C" fn readerr(fid: *mut fid_cntr) -> u64 {
    let mut value = 0;
    let _ = shielded(|| with(fid, true, |counter| value = counter.errors));
    value
}

extern "C" fn add(fid: *mut fid_cntr, value: u64) -> c_int {
    status(|| with(fid, false, |counter| counter.value = counter.value.wrapping_add(value)))
}

extern "C" fn set(fid: *mut fid_cntr, value: u64) -> c_int {
    status(|| with(fid, false, |counter| counter.value = value))
}

extern "C" fn adderr(fid: *mut fid_cntr, value: u64) -> c_int {
    status(|| with(fid, false, |counter| counter.errors = counter.errors.wrapping_add(value)))
}

extern "C" fn seterr(fid: *mut fid_cntr, value: u64) -> c_int {
    status(|| with(fid, false, |counter| counter.errors = value))
}

/// Waits until the counter has reached a value, at most `timeout` milliseconds, or forever if it is negative. An operation
/// that fails meanwhile ends the wait.
extern "C" fn wait(fid: *mut fid_cntr, threshold: u64, timeout: c_int) -> c_int {
    status(|| {
        let timeout = u64::try_from(timeout).ok().map(Duration::from_millis);
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut errors_before = None;
        loop {
            let mut now = Counter::default();
            with(fid, true, |counter| now = *counter)?;
            if now.value >= threshold {
                return Ok(());
            }
            if *errors_before.get_or_insert(now.errors) != now.errors {
                return Err(FI_EAVAIL);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(FI_ETIMEDOUT);
            }
            let domain = &counter(fid).domain;
            drop(domain.poll(domain.state()?, |_| false)?);
        }
    })
}
