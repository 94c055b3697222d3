//! The control socket of an engine: by it `bywire engine status` and `bywire engine down` reach the engine of their user.

use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use bywire_sys::directory::{self, OwnName};

use crate::counts::Counts;

/// A caller that is silent is not waited for any longer: connections wait meanwhile.
const CALLER_TIMEOUT: Duration = Duration::from_millis(5);
/// How long a caller waits for an engine.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
const REQUEST_BYTES_MAX: usize = 64;
const ANSWER_BYTES_MAX: u64 = 4096;

/// A question to an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Request {
    /// Its counts.
    Status,
    /// Its counts, and then to end.
    Down,
}

/// The control socket of a running engine. Dropping it removes the socket.
#[derive(Debug)]
pub struct ControlSocket {
    listener: UnixListener,
    name: OwnName,
}

impl ControlSocket {
    /// Opens the control socket at `path`, in a directory of this user alone. It replaces one of an engine that was killed.
    ///
    /// # Errors
    /// The error of the kernel; [`io::ErrorKind::AddrInUse`] if an engine answers there.
    pub fn open(path: &Path) -> io::Result<Self> {
        match UnixStream::connect(path) {
            Ok(_) => return Err(io::ErrorKind::AddrInUse.into()),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => directory::remove(path),
            Err(_) => {}
        }
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, name: OwnName::of(path)? })
    }

    /// The listener, to be polled.
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Answers the next caller, and returns what it has asked.
    pub fn answer(&self, counts: impl FnOnce(Request) -> Counts) -> Option<Request> {
        let (mut caller, _) = self.listener.accept().ok()?;
        caller.set_read_timeout(Some(CALLER_TIMEOUT)).ok()?;
        caller.set_write_timeout(Some(CALLER_TIMEOUT)).ok()?;
        // A caller sends all of it at once.
        let mut word = [0; REQUEST_BYTES_MAX];
        let length = loop {
            match caller.read(&mut word) {
                // The engine's watch on its own waits.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other.ok()?,
            }
        };
        let request = serde_json::from_slice(word.get(..length)?).ok()?;
        let answer = serde_json::to_vec(&counts(request)).ok()?;
        caller.write_all(&answer).ok()?;
        Some(request)
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.name.remove();
    }
}

/// Asks the engine whose control socket is at `path`. `None`: no engine runs.
///
/// # Errors
/// The error of the kernel, or an answer that is none. [`io::ErrorKind::TimedOut`]: the engine does not answer.
pub fn ask(path: &Path, request: Request) -> io::Result<Option<Counts>> {
    let end = Instant::now() + ANSWER_TIMEOUT;
    loop {
        match ask_once(path, request) {
            // This process had no core while the engine waited for its request.
            Err(error) if is_unheard(&error) && Instant::now() < end => std::thread::sleep(CALLER_TIMEOUT),
            // A caller could take the kernel's own error for one of its output.
            Err(error) if is_unheard(&error) => return Err(io::ErrorKind::TimedOut.into()),
            answer => return answer,
        }
    }
}

fn is_unheard(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

fn ask_once(path: &Path, request: Request) -> io::Result<Option<Counts>> {
    let mut stream = match UnixStream::connect(path) {
        Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => {
            return Ok(None);
        }
        stream => stream?,
    };
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.write_all(&serde_json::to_vec(&request)?)?;
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    if answer.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(serde_json::from_slice(&answer)?))
}
