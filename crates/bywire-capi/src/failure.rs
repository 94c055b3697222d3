//! Turns Rust errors into codes, and stops errors and panics at the C boundary.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use bywire::{
    AddressError, ConnectError, DisconnectReason, Errno, LendError, NoFabric, OpenError, Refusal, SendError,
    TransferError, WaitError,
};

use crate::error::bw_error_t::{self, *};

/// Why a call failed: a code, and a sentence if there is more to say than the code's own.
#[derive(Debug)]
pub struct Failure {
    /// The code that C sees.
    pub code: bw_error_t,
    /// A sentence with the particulars.
    pub text: Option<String>,
}

thread_local! {
    static LAST: RefCell<(bw_error_t, Option<CString>)> = const { RefCell::new((BW_OK, None)) };
}

/// The sentence for the last call of this thread that failed, with particulars such as a path, a limit or the
/// kernel's error. Never null; valid until the next failing call of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn bw_last_error_text() -> *const c_char {
    let text = |last: &RefCell<(bw_error_t, Option<CString>)>| {
        let last = last.borrow();
        last.1.as_deref().unwrap_or_else(|| last.0.text()).as_ptr()
    };
    // While a thread ends, its last error may be gone.
    LAST.try_with(text).unwrap_or(c"".as_ptr())
}

/// Runs the body of a C function. A failure becomes a negative code, and so does a panic.
#[inline(always)]
pub fn answer(body: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    match stop_panics(body) {
        Some(Ok(value)) => value,
        Some(Err(failure)) => failure.record(),
        None => Failure::from(BW_ERROR_PANIC).record(),
    }
}

/// Runs the body of a C function that returns no code. Returns `otherwise` after a panic.
pub fn shielded<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    stop_panics(body).unwrap_or(otherwise)
}

/// Stops a panic. A panic can leave only the value half done that the body worked on: a port, which its wrapper then
/// refuses to use.
#[inline(always)]
fn stop_panics<T>(body: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(body)).map_err(forget).ok()
}

/// Forgets a panic's payload, because a panic in the payload's drop must not get out either.
#[cold]
fn forget(payload: Box<dyn std::any::Any + Send>) {
    std::mem::forget(payload);
}

impl Failure {
    /// A bad argument and what is wrong with it.
    #[cold]
    pub fn argument(what: impl Into<String>) -> Self {
        Self { code: BW_ERROR_ARGUMENT, text: Some(what.into()) }
    }

    /// Remembers the failure for this thread and returns its code.
    #[cold]
    fn record(self) -> c_int {
        let text = self.text.map(|text| CString::new(text.replace('\0', "?")).unwrap_or_default());
        // While a thread ends, no caller asks any more.
        let _ = LAST.try_with(|last| *last.borrow_mut() = (self.code, text));
        self.code.code()
    }
}

impl From<bw_error_t> for Failure {
    fn from(code: bw_error_t) -> Self {
        Self { code, text: None }
    }
}

/// Keeps the sentence of an error that carries particulars.
fn detailed(code: bw_error_t, error: &dyn std::error::Error) -> Failure {
    Failure { code, text: Some(error.to_string()) }
}

// The message layer may get more errors. An error that has no code of its own yet becomes BW_ERROR_UNKNOWN with its
// sentence. A test checks that there is none.

impl From<AddressError> for Failure {
    fn from(error: AddressError) -> Self {
        let code = match error {
            AddressError::Node(_) => BW_ERROR_ADDRESS_NODE,
            AddressError::Port(_) => BW_ERROR_ADDRESS_PORT,
        };
        detailed(code, &error)
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        let code = match error {
            OpenError::InUse(_) => BW_ERROR_IN_USE,
            OpenError::OtherUser(..) => BW_ERROR_OTHER_USER,
            OpenError::BadOption(_) => BW_ERROR_OPTION,
            OpenError::RuntimeDirectory { .. } => BW_ERROR_RUNTIME_DIRECTORY,
            OpenError::Locked => BW_ERROR_LOCKED,
            OpenError::Fabric(reason) => no_fabric(reason),
            OpenError::System(_) => BW_ERROR_SYSTEM,
            _ => BW_ERROR_UNKNOWN,
        };
        detailed(code, &error)
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        detailed(not_connected(error), &error)
    }
}

impl From<SendError> for Failure {
    #[inline]
    fn from(error: SendError) -> Self {
        match error {
            // Back-pressure must not allocate.
            SendError::Full => BW_ERROR_FULL.into(),
            SendError::NoToken => BW_ERROR_NO_TOKEN.into(),
            SendError::TooLong { .. } => detailed(BW_ERROR_TOO_LONG, &error),
            SendError::Disconnected(gone) => self::gone(gone).into(),
            SendError::NoPeer => BW_ERROR_NO_PEER.into(),
            SendError::Connecting => BW_ERROR_CONNECTING.into(),
            SendError::Forked => BW_ERROR_FORKED.into(),
            _ => detailed(BW_ERROR_UNKNOWN, &error),
        }
    }
}

impl From<LendError> for Failure {
    fn from(error: LendError) -> Self {
        match error {
            LendError::NoBlock => BW_ERROR_NO_BLOCK.into(),
            LendError::OtherMachine => BW_ERROR_OTHER_MACHINE.into(),
            LendError::OtherPeer => BW_ERROR_OTHER_PEER.into(),
            LendError::BadSize => BW_ERROR_HEAP_SIZE.into(),
            LendError::MemoryKept => BW_ERROR_MEMORY_KEPT.into(),
            LendError::Send(error) => error.into(),
            LendError::System(_) => detailed(BW_ERROR_SYSTEM, &error),
            _ => detailed(BW_ERROR_UNKNOWN, &error),
        }
    }
}

impl From<WaitError> for Failure {
    fn from(error: WaitError) -> Self {
        match error {
            WaitError::Forked => BW_ERROR_FORKED.into(),
            WaitError::System(_) => detailed(BW_ERROR_SYSTEM, &error),
            _ => detailed(BW_ERROR_UNKNOWN, &error),
        }
    }
}

impl From<Errno> for Failure {
    fn from(error: Errno) -> Self {
        Self { code: BW_ERROR_SYSTEM, text: Some(format!("the system refused: {error}")) }
    }
}

/// The outcome of a transfer, as a code.
pub fn outcome(result: Result<(), TransferError>) -> bw_error_t {
    match result {
        Ok(()) => BW_OK,
        Err(TransferError::Disconnected(gone)) => self::gone(gone),
        Err(TransferError::BadKey) => BW_ERROR_BAD_KEY,
        Err(TransferError::NoRight) => BW_ERROR_NO_RIGHT,
        Err(TransferError::OutOfRange) => BW_ERROR_OUT_OF_RANGE,
        Err(_) => BW_ERROR_UNKNOWN,
    }
}

/// Why a peer is gone, as a code.
pub fn gone(reason: DisconnectReason) -> bw_error_t {
    match reason {
        DisconnectReason::Closed => BW_ERROR_DISCONNECTED_CLOSED,
        DisconnectReason::Died => BW_ERROR_DISCONNECTED_DIED,
        DisconnectReason::Broken => BW_ERROR_DISCONNECTED_BROKEN,
        DisconnectReason::Corrupted => BW_ERROR_DISCONNECTED_CORRUPTED,
        DisconnectReason::Here => BW_ERROR_DISCONNECTED_HERE,
        DisconnectReason::Refused(refusal) => refused(refusal),
        DisconnectReason::NotConnected(error) => not_connected(error),
        DisconnectReason::Unreachable => BW_ERROR_DISCONNECTED_UNREACHABLE,
        DisconnectReason::Removed => BW_ERROR_DISCONNECTED_REMOVED,
        _ => BW_ERROR_UNKNOWN,
    }
}

fn not_connected(error: ConnectError) -> bw_error_t {
    match error {
        ConnectError::UnknownNode => BW_ERROR_UNKNOWN_NODE,
        ConnectError::NoFabric(reason) => no_fabric(reason),
        ConnectError::Unreachable => BW_ERROR_UNREACHABLE,
        ConnectError::Blocked { .. } => BW_ERROR_BLOCKED,
        ConnectError::NoPort => BW_ERROR_NO_PORT,
        ConnectError::NotAdmitted => BW_ERROR_NOT_ADMITTED,
        ConnectError::Refused(refusal) => refused(refusal),
        ConnectError::TimedOut => BW_ERROR_TIMED_OUT,
        ConnectError::OwnPort => BW_ERROR_OWN_PORT,
        ConnectError::TooManyPeers => BW_ERROR_TOO_MANY_PEERS,
        ConnectError::MemoryKept => BW_ERROR_MEMORY_KEPT,
        ConnectError::Forked => BW_ERROR_FORKED,
        ConnectError::System(_) => BW_ERROR_SYSTEM,
        _ => BW_ERROR_UNKNOWN,
    }
}

/// One code for all: what to do is in the sentence of the failure.
fn no_fabric(reason: NoFabric) -> bw_error_t {
    match reason {
        NoFabric::NotRunning => BW_ERROR_NO_FABRIC,
        NoFabric::OtherUser => BW_ERROR_NO_FABRIC,
        NoFabric::Silent => BW_ERROR_NO_FABRIC,
        NoFabric::Version => BW_ERROR_NO_FABRIC,
        NoFabric::Unverified => BW_ERROR_NO_FABRIC,
        NoFabric::OtherNetwork => BW_ERROR_NO_FABRIC,
        NoFabric::NoResources => BW_ERROR_NO_FABRIC,
        NoFabric::Malformed => BW_ERROR_NO_FABRIC,
        _ => BW_ERROR_UNKNOWN,
    }
}

fn refused(refusal: Refusal) -> bw_error_t {
    match refusal {
        Refusal::Version => BW_ERROR_REFUSED_VERSION,
        Refusal::NotAdmitted => BW_ERROR_NOT_ADMITTED,
        Refusal::TooManyPeers => BW_ERROR_REFUSED_TOO_MANY_PEERS,
        Refusal::Unverified => BW_ERROR_REFUSED_UNVERIFIED,
        Refusal::BadOffer => BW_ERROR_REFUSED_BAD_OFFER,
        Refusal::NoResources => BW_ERROR_REFUSED_NO_RESOURCES,
        Refusal::MemoryKept => BW_ERROR_REFUSED_MEMORY_KEPT,
        Refusal::Closed => BW_ERROR_REFUSED_CLOSED,
    }
}

/// The text at `text`.
///
/// # Safety
/// `text` is null or points to a text that ends with a zero byte and does not change during `'a`.
///
/// # Errors
/// Null or not UTF-8.
pub unsafe fn text_at<'a>(text: *const c_char, what: &str) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::argument(format!("{what} is null")));
    }
    // SAFETY: not null, and the caller promises a zero byte at its end and no change.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::argument(format!("{what} is not UTF-8")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last() -> String {
        // SAFETY: never null, ends with a zero byte, valid until this thread fails again.
        unsafe { CStr::from_ptr(bw_last_error_text()) }.to_str().expect("UTF-8").to_owned()
    }

    #[test]
    fn panics_end_at_the_c_boundary() {
        assert_eq!(answer(|| panic!("on purpose")), BW_ERROR_PANIC.code());
        assert_eq!(last(), BW_ERROR_PANIC.text().to_str().expect("UTF-8"));
        assert_eq!(shielded(7, || panic!("on purpose")), 7);
    }

    #[test]
    fn the_last_error_keeps_its_details_until_the_next() {
        assert_eq!(answer(|| Err(SendError::TooLong { max: 4096 }.into())), BW_ERROR_TOO_LONG.code());
        assert!(last().contains("4096"));
        assert_eq!(answer(|| Err(SendError::Full.into())), BW_ERROR_FULL.code());
        assert_eq!(last(), BW_ERROR_FULL.text().to_str().expect("UTF-8"));
    }

    /// The errors of the message layer are open enums, so the compiler cannot tell when one lacks a code.
    #[test]
    fn every_error_of_the_message_layer_has_its_code() {
        let matched = include_str!("failure.rs");
        let errors = include_str!("../../bywire/src/message/error.rs");
        let mut count = 0;
        for definition in errors.split("pub enum ").skip(1) {
            let (name, rest) = definition.split_once(" {").expect("a body");
            let body = rest.split("\n}").next().expect("an end");
            let variants = body.lines().filter_map(|line| line.strip_prefix("    "));
            let variants = variants.filter(|line| line.starts_with(|first: char| first.is_ascii_uppercase()));
            for variant in variants {
                let variant = variant.split(|letter: char| !letter.is_alphanumeric()).next().expect("a name");
                let arm = matched.lines().any(|line| {
                    let line = line.trim_start().trim_start_matches("Err(");
                    line.strip_prefix(&format!("{name}::{variant}"))
                        .is_some_and(|rest| !rest.starts_with(char::is_alphanumeric) && rest.contains("=>"))
                });
                assert!(arm, "{name}::{variant} has no code");
                count += 1;
            }
        }
        assert!(count > 40, "only {count} found: the file looks different now");
    }
}
