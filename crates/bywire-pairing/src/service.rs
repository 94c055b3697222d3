//! The pairing service of one user, or of a machine.
//!
//! It does not trust a program's words about a connection. A program passes the descriptor, and the kernel names its
//! two ends. The descriptor is closed before the answer is given, so it keeps no end alive.
//!
//! Looking at descriptors of other processes, and closing them, may take as long as the sender likes. So each user
//! has a thread of its own, which serves only that user's programs. A user that delays the thread delays only itself.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bywire_sys::credentials::Credentials;
use bywire_sys::directory::{self, OwnName};
use bywire_sys::listener::Listener;
use bywire_sys::poller::Poller;
use bywire_sys::socket::Socket;
use bywire_sys::{Errno, limits, process};

use crate::registry::{Registry, Shared, lock};
use crate::space::Spaces;
use crate::user::Scope;
use crate::user_thread;

pub use crate::registry::OTHER_USERS_MAX;

/// The limit of descriptors that a service asks for, as many programs and offers hold descriptors at once.
const DESCRIPTORS: u64 = 1 << 19;
/// Programs that are let in before the service checks whether any are left.
const TURN: usize = 64;
/// How long new programs wait if no descriptors are left, or if too many wait to be closed.
const PAUSE: Duration = Duration::from_millis(10);

/// Processes that a user's service waits for after they have left, at most.
const VISITORS_MAX: usize = 256;
/// As many may have ended unnoticed.
const VISITORS_MIN: usize = 16;

/// Why the service does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another service listens there and answers.
    #[error("a pairing service listens at {0} already")]
    Served(PathBuf),
    /// The path exists, and is no socket that a service has left behind.
    #[error("{0} exists and is not the socket of an ended service: choose another path, or remove it")]
    Occupied(PathBuf),
    /// The socket cannot be made.
    #[error("cannot listen at {path}: {cause}")]
    Path {
        /// The path.
        path: PathBuf,
        /// The error of the kernel.
        cause: Errno,
    },
    /// The passed descriptor is no listening packet socket.
    #[error(
        "the socket that was handed over cannot be used: {0}; it must be a listening Unix socket of type SOCK_SEQPACKET"
    )]
    Socket(Errno),
}

/// A running service.
#[derive(Debug)]
pub struct Service {
    listener: Listener,
    /// The name of its socket, as long as this service has to remove it.
    name: Option<OwnName>,
    poller: Poller,
    shared: Arc<Shared>,
    scope: Scope,
    /// The processes that have connected to a user's own service, as far as they still run. `bywire run` asks for the
    /// status, becomes the program, and that may connect much later.
    visitors: Vec<OwnedFd>,
    /// The number of them at which those that have ended are looked for.
    visitors_checked_at: usize,
    lonely_since: Instant,
}

impl Service {
    /// Listens at `path`, and replaces a socket that is no longer served.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(path: &Path, scope: Scope) -> Result<Self, StartError> {
        let mode = if scope == Scope::Machine { 0o666 } else { 0o600 };
        let listener = listen(path, mode)?;
        let failed = |cause| StartError::Path { path: path.to_owned(), cause };
        let mut service = Self::new(listener, scope).map_err(failed)?;
        service.name = Some(OwnName::of(path).map_err(failed)?);
        Ok(service)
    }

    /// Serves all users at a socket that another process keeps, as systemd does.
    ///
    /// # Errors
    /// [`StartError::Socket`].
    pub fn adopt(socket: OwnedFd) -> Result<Self, StartError> {
        let listener = Listener::from_descriptor(socket).map_err(StartError::Socket)?;
        Self::new(listener, Scope::Machine).map_err(StartError::Socket)
    }

    fn new(listener: Listener, scope: Scope) -> Result<Self, Errno> {
        // With fewer descriptors, fewer programs are admitted.
        let _ = limits::raise_descriptor_limit(DESCRIPTORS);
        let poller = Poller::new()?;
        poller.add(&listener, 0)?;
        let mut random = [0; 4];
        process::random(&mut random)?;
        // Programs outlive their service. A random first number keeps them from taking a new peer for an old one.
        let registry = Registry::new(scope, u64::from(u32::from_ne_bytes(random)));
        let shared = Arc::new(Shared::new(registry));
        Ok(Self {
            listener,
            name: None,
            poller,
            shared,
            scope,
            visitors: Vec::new(),
            visitors_checked_at: VISITORS_MIN,
            lonely_since: Instant::now(),
        })
    }

    /// Sets the namespaces that are joined.
    pub fn join(&mut self, spaces: Spaces) {
        lock(&self.shared).spaces = Arc::new(spaces);
    }

    /// Serves until no program has been connected for `idle`. A user's own service goes on while a process runs that has
    /// connected before.
    ///
    /// # Errors
    /// The error of the kernel if it cannot wait.
    pub fn serve(&mut self, idle: Duration) -> Result<(), Errno> {
        loop {
            self.poller.wait(Some(idle.min(Duration::from_secs(1))))?;
            self.admit();
            if !self.is_lonely() {
                self.lonely_since = Instant::now();
            } else if self.lonely_since.elapsed() >= idle {
                self.leave_name();
                // A program may have connected while the name was being removed.
                self.admit();
                if self.is_lonely() {
                    return Ok(());
                }
            }
        }
    }

    fn is_lonely(&mut self) -> bool {
        if lock(&self.shared).has_programs() {
            return false;
        }
        self.forget_ended_visitors();
        self.visitors.is_empty()
    }

    fn forget_ended_visitors(&mut self) {
        self.visitors.retain(|visitor| !process::has_ended(visitor));
    }

    /// Notes the process that connects, unless it is this one. Without a descriptor for it, the service does not wait.
    fn note(&mut self, socket: &Socket) {
        let is_other = |found: Credentials| u32::try_from(found.pid) != Ok(std::process::id());
        if self.scope != Scope::User || !socket.credentials().is_ok_and(is_other) {
            return;
        }
        if self.visitors.len() >= self.visitors_checked_at {
            self.forget_ended_visitors();
            self.visitors_checked_at = (2 * self.visitors.len()).clamp(VISITORS_MIN, VISITORS_MAX);
        }
        if self.visitors.len() < VISITORS_MAX {
            self.visitors.extend(socket.watch_process());
        }
    }

    fn leave_name(&mut self) {
        if let Some(name) = self.name.take() {
            name.remove();
        }
    }

    fn admit(&mut self) {
        for _ in 0..TURN {
            match self.listener.accept() {
                Ok(Some(socket)) => {
                    self.lonely_since = Instant::now();
                    self.note(&socket);
                    user_thread::admit(&self.shared, socket);
                }
                Ok(None) => return,
                // These clients go on waiting. Other programs are served meanwhile.
                Err(_) => return std::thread::sleep(PAUSE),
            }
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.leave_name();
    }
}

/// Makes the socket under a temporary name and renames it to `path`. It replaces a socket only if no process serves
/// that, and replaces nothing else.
fn listen(path: &Path, mode: u32) -> Result<Listener, StartError> {
    let failed = |cause| StartError::Path { path: path.to_owned(), cause };
    let mut random = [0; 8];
    bywire_sys::process::random(&mut random).map_err(failed)?;
    let temporary = path.with_extension(format!("{:016x}", u64::from_ne_bytes(random)));
    let listener = Listener::bind(&temporary).map_err(failed)?;
    let place = || {
        directory::set_access(&temporary, mode, None).map_err(failed)?;
        match directory::rename_if_free(&temporary, path) {
            Err(Errno::EXIST) => {}
            other => return other.map_err(failed),
        }
        let directory = path.parent().unwrap_or(Path::new("."));
        let _lock = loop {
            match directory::try_lock(directory) {
                Ok(lock) => break lock,
                Err(Errno::AGAIN) => std::thread::sleep(Duration::from_millis(1)),
                Err(cause) => return Err(failed(cause)),
            }
        };
        match Socket::connect(path) {
            Ok(_) | Err(Errno::AGAIN) => return Err(StartError::Served(path.to_owned())),
            // The path may have been removed meanwhile.
            Err(Errno::NOENT) if directory::entry(path).is_err() => {}
            Err(Errno::CONNREFUSED) if directory::entry(path).is_ok_and(|entry| entry.is_socket) => {}
            Err(_) => return Err(StartError::Occupied(path.to_owned())),
        }
        directory::rename(&temporary, path).map_err(failed)
    };
    let placed = place();
    if placed.is_err() {
        directory::remove(&temporary);
    }
    placed.map(|()| listener)
}
