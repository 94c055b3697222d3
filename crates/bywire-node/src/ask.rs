//! Asks a node's service for its state, for `bywire status`.

use std::path::Path;
use std::time::{Duration, Instant};

use bywire::OpenError;
use bywire::runtime::RuntimeDirectory;
use bywire_sys::poller::Poller;
use bywire_sys::socket::{Received, Socket};
use bywire_sys::{Errno, process};
use bywire_wire::service::status::{Entry, Position};
use bywire_wire::service::{self, Notice, PACKET_BYTES_MAX, Request, VERSION};

/// How long a service may take for each part of the answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How soon a service is called again that has many callers.
const PAUSE: Duration = Duration::from_millis(1);
/// The most entries of a service.
const ENTRIES_MAX: usize = 1 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The runtime directory.
    #[error(transparent)]
    Runtime(#[from] OpenError),
    /// No service runs on this machine.
    #[error("no service runs here: start one by `bywire up`")]
    Absent,
    /// Another user's program serves the socket.
    #[error("the service belongs to user {0}, and only one of root or your own is asked")]
    OtherUser(u32),
    /// It does not answer, or has another version.
    #[error("the service does not answer as this version does: end it and start it again by `bywire up`")]
    Silent,
}

/// The state of this machine's service.
///
/// # Errors
/// [`AskError`].
pub fn status(runtime_directory: Option<&Path>) -> Result<Vec<Entry>, AskError> {
    let socket = open(runtime_directory)?;
    let mut poller = Poller::new().map_err(|_| AskError::Silent)?;
    poller.add(&socket, 0).map_err(|_| AskError::Silent)?;
    let (mut entries, mut from) = (Vec::new(), Position::Start);
    loop {
        let request = Request::Status { version: VERSION, from: from.clone() };
        let request = service::to_bytes(&request).map_err(|_| AskError::Silent)?;
        socket.send(&request, &[]).map_err(|_| AskError::Silent)?;
        let (part, next) = answer(&socket, &mut poller)?;
        entries.extend(part);
        match next {
            Some(next) if next > from && entries.len() < ENTRIES_MAX => from = next,
            _ => return Ok(entries),
        }
    }
}

/// A connection to this machine's service, which root or the own user runs.
pub(crate) fn open(runtime_directory: Option<&Path>) -> Result<Socket, AskError> {
    let directory = RuntimeDirectory::open(runtime_directory)?;
    let socket = call(&directory.service_path())?;
    let owner = socket.credentials().map_err(|_| AskError::Absent)?.uid;
    if owner != 0 && owner != process::user() {
        return Err(AskError::OtherUser(owner));
    }
    Ok(socket)
}

/// Calls the service. Where many others call it, they are served first.
fn call(path: &Path) -> Result<Socket, AskError> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match Socket::connect_entry(path) {
            Ok(socket) => return Ok(socket),
            Err(Errno::AGAIN) if Instant::now() < deadline => std::thread::sleep(PAUSE),
            Err(Errno::AGAIN) => return Err(AskError::Silent),
            Err(_) => return Err(AskError::Absent),
        }
    }
}

fn answer(socket: &Socket, poller: &mut Poller) -> Result<(Vec<Entry>, Option<Position>), AskError> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let mut packet = [0; PACKET_BYTES_MAX];
        match socket.receive_from_own(&mut packet) {
            Ok(Received::Packet(length, _)) => {
                return match service::from_bytes(&packet[..length]) {
                    Ok(Notice::Status { entries, next }) => Ok((entries, next)),
                    _ => Err(AskError::Silent),
                };
            }
            Ok(Received::Nothing) => {
                let left = deadline.checked_duration_since(Instant::now()).ok_or(AskError::Silent)?;
                poller.wait(Some(left)).map_err(|_| AskError::Silent)?;
            }
            _ => return Err(AskError::Silent),
        }
    }
}
