//! The runtime directory, in which ports of this node are found, each as a socket.
//!
//! All users share it like `/tmp`. It is sticky, so only a socket's owner can replace it. A process that dies leaves
//! at most its dead socket, which the next opener replaces.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bywire_sys::Errno;
use bywire_sys::credentials::Credentials;
use bywire_sys::directory::{self, OwnName};
use bywire_sys::listener::Listener;
use bywire_sys::socket::Socket;
use bywire_wire::service::SOCKET_NAME;

use crate::message::address::PortName;
use crate::message::error::{OpenError, is_want};
use crate::message::options::Admit;

/// How long a claim waits for the directory's lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
/// How many fresh sockets may vanish during a claim before it is an error.
const VANISHED_MAX: u32 = 8;
/// Entries of the directory that a sweep looks at. It tests only a few of them, so that opening a port takes no
/// noticeable time, however many ports are open.
const SWEEP_NAMES_MAX: usize = 4096;
/// See [`SWEEP_NAMES_MAX`].
const SWEEP_TESTS_MAX: usize = 4;
/// After this long, no process is about to give a nameless socket its name.
const NAMELESS_AGE: Duration = Duration::from_secs(10);
/// The numbers that unnamed ports get.
const EPHEMERAL: std::ops::Range<u32> = 1 << 30..1 << 31;

/// The directory in use.
#[derive(Clone, Debug)]
pub struct RuntimeDirectory {
    path: PathBuf,
}

/// A listening socket in the directory under a port's name, until [`Claim::release`].
#[derive(Debug)]
pub struct Claim {
    /// The listening socket.
    pub listener: Listener,
    /// The name that was claimed.
    pub name: PortName,
    file: OwnName,
}

impl RuntimeDirectory {
    /// The directory that the caller chose, or the first usable one.
    ///
    /// # Errors
    /// [`OpenError::RuntimeDirectory`] for the chosen one, or for the last one tried.
    pub fn open(chosen: Option<&Path>) -> Result<Self, OpenError> {
        let chosen =
            chosen.map(Path::to_owned).or_else(|| std::env::var_os("BYWIRE_RUNTIME_DIR").map(PathBuf::from));
        let candidates = match chosen {
            Some(path) => vec![path],
            None => default_candidates(),
        };
        let mut failure = OpenError::System(Errno::NOENT);
        for path in candidates {
            let candidate = Self { path };
            match directory::prepare(&candidate.path) {
                Ok(()) => return Ok(candidate),
                Err(cause) => failure = candidate.unusable(cause),
            }
        }
        Err(failure)
    }

    /// The error of an unusable directory: a system error if the missing resource is missing everywhere.
    fn unusable(&self, cause: Errno) -> OpenError {
        if is_want(cause) {
            OpenError::System(cause)
        } else {
            OpenError::RuntimeDirectory { path: self.path.clone(), cause }
        }
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The socket of a port.
    pub fn socket_path(&self, port: &PortName) -> PathBuf {
        self.path.join(format!("{port}.port"))
    }

    /// The socket of this node's service.
    pub fn service_path(&self) -> PathBuf {
        self.path.join(SOCKET_NAME)
    }

    /// Claims the socket of this node's service: root for all users, another user for itself alone. Root replaces what
    /// another user has put there.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn claim_service(&self) -> Result<Claim, OpenError> {
        let name = PortName::Name(SOCKET_NAME.to_owned());
        let path = self.service_path();
        let is_root = bywire_sys::process::user() == 0;
        if is_root && directory::entry(&path).is_ok_and(|entry| entry.owner != 0) {
            directory::remove(&path);
        }
        // Nobody who has a port here makes one, so an empty directory is in nobody's use. One that is not empty stays.
        directory::remove_empty(&path);
        self.claim_lasting(&name, &path, (if is_root { 0o666 } else { 0o600 }, None))
    }

    /// Claims a name, or a free number if no name is given.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn claim(&self, name: Option<&PortName>, admit: Admit) -> Result<Claim, OpenError> {
        let claim = self.claim_free(name, admit)?;
        self.sweep(&claim.name);
        Ok(claim)
    }

    fn claim_free(&self, name: Option<&PortName>, admit: Admit) -> Result<Claim, OpenError> {
        if let Some(name) = name {
            return self.claim_name(name, admit);
        }
        for _ in 0..64 {
            let mut bytes = [0; 4];
            bywire_sys::process::random(&mut bytes).map_err(OpenError::System)?;
            let number = EPHEMERAL.start + u32::from_ne_bytes(bytes) % (EPHEMERAL.end - EPHEMERAL.start);
            match self.claim_name(&PortName::Number(number), admit) {
                Err(OpenError::InUse(_)) => {}
                other => return other,
            }
        }
        Err(OpenError::System(Errno::ADDRINUSE))
    }

    fn claim_name(&self, name: &PortName, admit: Admit) -> Result<Claim, OpenError> {
        let access = match admit {
            Admit::SameUser => (0o600, None),
            Admit::Group(group) => (0o660, Some(group)),
            Admit::Everyone => (0o666, None),
        };
        self.claim_lasting(name, &self.socket_path(name), access)
    }

    fn claim_lasting(
        &self,
        name: &PortName,
        path: &Path,
        access: (u32, Option<u32>),
    ) -> Result<Claim, OpenError> {
        let mut vanished = 0;
        loop {
            match self.try_claim(name, path, access) {
                // Another process took our fresh socket for one of a dead process: ours was stopped for long, or a
                // clock jumped.
                Err(
                    OpenError::RuntimeDirectory { cause: Errno::NOENT, .. } | OpenError::System(Errno::NOENT),
                ) if vanished < VANISHED_MAX => {
                    vanished += 1;
                }
                other => return other,
            }
        }
    }

    fn try_claim(
        &self,
        name: &PortName,
        path: &Path,
        (mode, group): (u32, Option<u32>),
    ) -> Result<Claim, OpenError> {
        let unusable = |cause| self.unusable(cause);
        let mut random = [0; 8];
        bywire_sys::process::random(&mut random).map_err(OpenError::System)?;
        let temporary = self.path.join(format!(".{:016x}.new", u64::from_ne_bytes(random)));
        let listener = Listener::bind(&temporary).map_err(unusable)?;
        let placed = directory::set_access(&temporary, mode, group)
            .and_then(|()| OwnName::of(&temporary))
            .map_err(OpenError::System)
            .and_then(|file| self.place(&temporary, path, name).map(|()| file.renamed(path)));
        match placed {
            Ok(file) => Ok(Claim { listener, name: name.clone(), file }),
            Err(error) => {
                directory::remove(&temporary);
                Err(error)
            }
        }
    }

    /// Moves a fresh socket to its name. A free name is taken at once. A dead socket there is replaced under this
    /// user's lock of the directory.
    fn place(&self, temporary: &Path, path: &Path, name: &PortName) -> Result<(), OpenError> {
        let unusable = |cause| self.unusable(cause);
        let mut lock = None;
        loop {
            match directory::rename_if_free(temporary, path) {
                Ok(()) => return Ok(()),
                Err(Errno::EXIST) => {}
                Err(cause) => return Err(unusable(cause)),
            }
            // One lock covers test and replacement, so that no process replaces a living socket by mistake. Each user
            // has its own lock, because only root and the directory's owner could replace another user's socket.
            if lock.is_none() {
                lock = Some(self.lock()?);
            }
            match state(path) {
                State::Dead => break,
                State::Free => {}
                State::Alive => return Err(OpenError::InUse(name.clone())),
            }
        }
        directory::rename(temporary, path).map_err(|error| match error {
            Errno::PERM | Errno::ACCESS => OpenError::OtherUser(name.clone(), path.to_owned()),
            cause => unusable(cause),
        })
    }

    /// Removes a few sockets that killed processes of this user left: under numbers, which are seldom used again, or
    /// without a name yet. A name is left to its next opener.
    fn sweep(&self, own: &PortName) {
        // Another process is sweeping, or the next opener sweeps.
        let Ok(_lock) = directory::try_lock(&self.path) else { return };
        let Ok(names) = directory::names(&self.path, SWEEP_NAMES_MAX) else { return };
        let mut left: Vec<String> =
            names.into_iter().filter(|name| is_number(name) || is_nameless(name)).collect();
        let own = format!("{own}.port");
        left.retain(|name| *name != own);
        // Starts anywhere, so that living sockets in front hide no dead ones. This covers the first SWEEP_NAMES_MAX
        // names. Sockets behind them wait until there are fewer.
        let mut random = [0; 8];
        if left.is_empty() || bywire_sys::process::random(&mut random).is_err() {
            return;
        }
        let start = u64::from_ne_bytes(random) as usize % left.len();
        left.rotate_left(start);
        for name in left.iter().take(SWEEP_TESTS_MAX) {
            let path = self.path.join(name);
            let Ok(entry) = directory::entry(&path) else { continue };
            // Even a process that may remove everything, such as root's, leaves other users' sockets and other files
            // alone.
            let is_ours = entry.is_socket && entry.owner == bywire_sys::process::user();
            let is_ripe = !is_nameless(name) || entry.age >= NAMELESS_AGE;
            if is_ours && is_ripe && matches!(state(&path), State::Dead) {
                directory::remove(&path);
            }
        }
    }

    fn lock(&self) -> Result<OwnedFd, OpenError> {
        let deadline = Instant::now() + LOCK_TIMEOUT;
        loop {
            match directory::try_lock(&self.path) {
                Ok(lock) => return Ok(lock),
                Err(Errno::AGAIN) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(1))
                }
                Err(Errno::AGAIN) => return Err(OpenError::Locked),
                Err(cause) => return Err(self.unusable(cause)),
            }
        }
    }

    /// Has another process than the one at the other end of a connection opened `port`? It had opened it once. Where that
    /// cannot be known now, as the port has too many callers, it has not.
    pub fn has_other_owner(&self, port: &PortName, claimant: Credentials) -> bool {
        let path = self.socket_path(port);
        match Socket::connect_entry(&path).and_then(|socket| socket.credentials()) {
            Ok(owner) => owner.pid != claimant.pid || owner.uid != claimant.uid,
            Err(Errno::ACCESS | Errno::PERM) => {
                directory::entry(&path).is_ok_and(|entry| entry.owner != claimant.uid)
            }
            Err(_) => false,
        }
    }

    /// Did the process at the other end of a connection open `port`?
    ///
    /// The kernel remembers the process that called `listen`, and names it to a connection to that socket.
    pub fn is_owner(&self, port: &PortName, claimant: Credentials) -> bool {
        let path = self.socket_path(port);
        match Socket::connect_entry(&path).and_then(|socket| socket.credentials()) {
            Ok(owner) => owner.pid == claimant.pid && owner.uid == claimant.uid,
            // The port does not admit us, or has too many callers now. In a sticky directory only its user can have put it
            // there. Which process of that user did so cannot be known.
            Err(Errno::ACCESS | Errno::PERM | Errno::AGAIN) => {
                directory::entry(&path).is_ok_and(|entry| entry.owner == claimant.uid)
            }
            Err(_) => false,
        }
    }
}

/// The state of a socket's path.
enum State {
    /// A process listens.
    Alive,
    /// Its owner has ended.
    Dead,
    /// There is no socket, or another one by now.
    Free,
}

/// Under this user's lock, a dead socket of this user stays at its path.
fn state(path: &Path) -> State {
    // While it is open, no other file gets its identity.
    let entry = match directory::open_entry(path) {
        Ok(entry) => entry,
        Err(Errno::NOENT) => return State::Free,
        Err(_) => return State::Alive,
    };
    let is_dead = match Socket::connect_entry(path) {
        // No process has it open.
        Err(Errno::CONNREFUSED) => true,
        Err(Errno::NOENT) => return State::Free,
        // Only a forked child of its dead owner has it open.
        Ok(socket) => socket.peer_has_ended(),
        Err(_) => false,
    };
    if !is_dead {
        return State::Alive;
    }
    // An owner that closes its port gives the name back first. If this one did, another opener may have taken it already.
    if directory::leads_to(path, &entry) { State::Dead } else { State::Free }
}

/// Is this the socket of a port with a number?
fn is_number(name: &str) -> bool {
    let port = name.strip_suffix(".port").map(str::parse);
    matches!(port, Some(Ok(PortName::Number(_))))
}

/// Is this a socket that has no port's name yet?
fn is_nameless(name: &str) -> bool {
    let digits = name.strip_prefix('.').and_then(|rest| rest.strip_suffix(".new"));
    digits.is_some_and(|digits| digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

impl Claim {
    /// Gives the name back. (`Drop` does not, because a forked child must not.)
    pub fn release(&self) {
        self.file.remove();
    }
}

fn default_candidates() -> Vec<PathBuf> {
    let shared = PathBuf::from("/run/bywire");
    let session = std::env::var_os("XDG_RUNTIME_DIR").map(|path| PathBuf::from(path).join("bywire"));
    let own = PathBuf::from(format!("/tmp/bywire-{}", bywire_sys::process::user()));
    [Some(shared), session, Some(own)].into_iter().flatten().collect()
}
