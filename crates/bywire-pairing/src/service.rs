//! The pairing service of one user, or of a machine.
//!
//! It believes nothing that a program says of a connection: a program passes the descriptor, and the kernel says
//! whose ends it joins. The descriptor is closed before the answer is given, so no end lives longer for it.
//!
//! Looking at descriptors of others, and closing them, may take as long as their sender likes. So each user has a thread
//! of its own, which hears its programs, and looks at nothing of other users. Who holds it up holds up itself.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bywire_sys::listener::Listener;
use bywire_sys::poller::Poller;
use bywire_sys::socket::Socket;
use bywire_sys::{Errno, directory, limits, process};

use crate::attendant;
use crate::registry::{Registry, Shared, lock};
use crate::space::Spaces;
use crate::user::Scope;

pub use crate::registry::FOREIGN_MAX;

/// Descriptors that a service wants to be allowed: so many offers wait at once, and so many programs.
const DESCRIPTORS: u64 = 1 << 19;
/// Programs that are let in before it is looked whether any are left.
const TURN: usize = 64;
/// How long new programs wait when there are no descriptors left, or when too many are being closed.
const PAUSE: Duration = Duration::from_millis(10);

/// Why there is no service.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another one listens there, and answers.
    #[error("a pairing service listens at {0} already")]
    Served(PathBuf),
    /// What is there is no socket that a service has left behind.
    #[error(
        "{0} is there already, and no socket that nobody serves any more: name another one, or remove it"
    )]
    Occupied(PathBuf),
    /// The socket cannot be made.
    #[error("cannot listen at {path}: {cause}")]
    Path {
        /// Where.
        path: PathBuf,
        /// What the kernel said.
        cause: Errno,
    },
    /// What was handed over is no socket for programs.
    #[error("the socket that was handed over cannot be used: {0}; it has to be a listening one of packets")]
    Socket(Errno),
}

/// A running service.
#[derive(Debug)]
pub struct Service {
    listener: Listener,
    /// Its name, as long as that is ours to remove.
    path: Option<PathBuf>,
    poller: Poller,
    shared: Arc<Shared>,
    lonely_since: Instant,
}

impl Service {
    /// Listens at `path`, in place of a dead one.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(path: &Path, scope: Scope) -> Result<Self, StartError> {
        let mode = if scope == Scope::Machine { 0o666 } else { 0o600 };
        let listener = listen(path, mode)?;
        let failed = |cause| StartError::Path { path: path.to_owned(), cause };
        let mut service = Self::new(listener, scope).map_err(failed)?;
        service.path = Some(path.to_owned());
        Ok(service)
    }

    /// Serves all users at a socket that somebody else keeps, as systemd does.
    ///
    /// # Errors
    /// [`StartError::Socket`].
    pub fn adopt(socket: OwnedFd) -> Result<Self, StartError> {
        let listener = Listener::from_descriptor(socket).map_err(StartError::Socket)?;
        Self::new(listener, Scope::Machine).map_err(StartError::Socket)
    }

    fn new(listener: Listener, scope: Scope) -> Result<Self, Errno> {
        // What cannot be had is done without: fewer programs are admitted.
        let _ = limits::raise_descriptor_limit(DESCRIPTORS);
        let poller = Poller::new()?;
        poller.add(&listener, 0)?;
        let mut random = [0; 4];
        process::random(&mut random)?;
        // Programs outlive their service, and are not to take a new peer for one of the old ones'.
        let registry = Registry::new(scope, u64::from(u32::from_ne_bytes(random)));
        let shared = Arc::new(Shared::new(registry));
        Ok(Self { listener, path: None, poller, shared, lonely_since: Instant::now() })
    }

    /// Joins namespaces.
    pub fn join(&mut self, spaces: Spaces) {
        lock(&self.shared).spaces = Arc::new(spaces);
    }

    /// Serves until nobody has been connected for `idle`.
    ///
    /// # Errors
    /// What the kernel said when it could not wait.
    pub fn serve(&mut self, idle: Duration) -> Result<(), Errno> {
        loop {
            self.poller.wait(Some(idle.min(Duration::from_secs(1))))?;
            self.admit();
            if !self.is_lonely() {
                self.lonely_since = Instant::now();
            } else if self.lonely_since.elapsed() >= idle {
                self.leave_name();
                // Whoever came while the name was being removed finds an open door once more.
                self.admit();
                if self.is_lonely() {
                    return Ok(());
                }
            }
        }
    }

    fn is_lonely(&self) -> bool {
        !lock(&self.shared).has_programs()
    }

    fn leave_name(&mut self) {
        if let Some(path) = self.path.take() {
            directory::remove(&path);
        }
    }

    fn admit(&mut self) {
        for _ in 0..TURN {
            match self.listener.accept() {
                Ok(Some(socket)) => {
                    self.lonely_since = Instant::now();
                    attendant::admit(&self.shared, socket);
                }
                Ok(None) => return,
                // Whoever waits there waits on; the others are served in between.
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

/// Makes the socket beside its name and moves it there: over another socket only if nobody serves that, and over nothing
/// else.
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
            // It may have been removed since.
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
