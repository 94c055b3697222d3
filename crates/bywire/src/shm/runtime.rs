//! The runtime directory: where ports of this node are found, each as a socket.
//!
//! It is shared by all users like `/tmp` is: sticky, so that only a socket's owner can replace it.
//! A process that dies leaves at most its dead socket, which the next opener replaces.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bywire_sys::Errno;
use bywire_sys::credentials::Credentials;
use bywire_sys::directory;
use bywire_sys::listener::Listener;
use bywire_sys::socket::Socket;

use crate::message::address::PortName;
use crate::message::error::{OpenError, is_want};
use crate::message::options::Admit;

/// How long a claim waits for the directory's lock.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
/// Fresh sockets that may vanish from under a claim before it is an error.
const VANISHED_MAX: u32 = 8;
/// Entries of the directory that a sweep looks at, of which it tests a few, so that opening a port takes no time
/// that counts, however many are open.
const SWEEP_NAMES_MAX: usize = 4096;
/// See [`SWEEP_NAMES_MAX`].
const SWEEP_TESTS_MAX: usize = 4;
/// A socket without its name for so long belongs to nobody who is about to give it one.
const NAMELESS_AGE: Duration = Duration::from_secs(10);
/// The numbers that unnamed ports get.
const EPHEMERAL: std::ops::Range<u32> = 1 << 30..1 << 31;

/// The directory in use.
#[derive(Clone, Debug)]
pub struct RuntimeDirectory {
    path: PathBuf,
}

/// A socket that stands in the directory under a port's name until dropped.
#[derive(Debug)]
pub struct Claim {
    /// The listening socket.
    pub listener: Listener,
    /// The name that was claimed.
    pub name: PortName,
    path: PathBuf,
}

impl RuntimeDirectory {
    /// The directory that was asked for, or the first usable one.
    ///
    /// # Errors
    /// [`OpenError::RuntimeDirectory`] for the one asked for, or for the last one tried.
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

    /// It cannot be used, unless what is wanting is wanting anywhere.
    fn unusable(&self, cause: Errno) -> OpenError {
        if is_want(cause) {
            OpenError::System(cause)
        } else {
            OpenError::RuntimeDirectory { path: self.path.clone(), cause }
        }
    }

    /// The socket of a port.
    pub fn socket_path(&self, port: &PortName) -> PathBuf {
        self.path.join(format!("{port}.port"))
    }

    /// Claims a name, or a free number when none is asked for.
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
        let mut vanished = 0;
        loop {
            match self.try_claim_name(name, admit) {
                // Somebody took our fresh socket for what a dead process left: stopped for long, or a clock jumped.
                Err(
                    OpenError::RuntimeDirectory { cause: Errno::NOENT, .. } | OpenError::System(Errno::NOENT),
                ) if vanished < VANISHED_MAX => {
                    vanished += 1;
                }
                other => return other,
            }
        }
    }

    fn try_claim_name(&self, name: &PortName, admit: Admit) -> Result<Claim, OpenError> {
        let unusable = |cause| self.unusable(cause);
        let mut random = [0; 8];
        bywire_sys::process::random(&mut random).map_err(OpenError::System)?;
        let temporary = self.path.join(format!(".{:016x}.new", u64::from_ne_bytes(random)));
        let listener = Listener::bind(&temporary).map_err(unusable)?;
        let path = self.socket_path(name);
        let (mode, group) = match admit {
            Admit::SameUser => (0o600, None),
            Admit::Group(group) => (0o660, Some(group)),
            Admit::Everyone => (0o666, None),
        };
        let placed = directory::set_access(&temporary, mode, group)
            .map_err(OpenError::System)
            .and_then(|()| self.place(&temporary, &path, name));
        match placed {
            Ok(()) => Ok(Claim { listener, name: name.clone(), path }),
            Err(error) => {
                directory::remove(&temporary);
                Err(error)
            }
        }
    }

    /// Moves a fresh socket to its name: at once where the name is free, else under this user's lock of the directory
    /// when the socket there turns out to be dead.
    fn place(&self, temporary: &Path, path: &Path, name: &PortName) -> Result<(), OpenError> {
        let unusable = |cause| self.unusable(cause);
        let mut lock = None;
        loop {
            match directory::rename_if_free(temporary, path) {
                Ok(()) => return Ok(()),
                Err(Errno::EXIST) => {}
                Err(cause) => return Err(unusable(cause)),
            }
            // Judged and replaced under one lock: nobody replaces a living socket by mistake. Each user has one, for
            // nobody but root and a directory's owner could replace another's.
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
            Errno::PERM | Errno::ACCESS => OpenError::Foreign(name.clone(), path.to_owned()),
            cause => unusable(cause),
        })
    }

    /// Removes a few sockets that killed processes of this user left: under numbers, which seldom come again, or
    /// without a name yet. A name is left to its next opener.
    fn sweep(&self, own: &PortName) {
        // Another one sweeps, or will next time.
        let Ok(_lock) = directory::try_lock(&self.path) else { return };
        let Ok(names) = directory::names(&self.path, SWEEP_NAMES_MAX) else { return };
        let mut left: Vec<String> =
            names.into_iter().filter(|name| is_number(name) || is_nameless(name)).collect();
        let own = format!("{own}.port");
        left.retain(|name| *name != own);
        // From anywhere, so that living ones in front hide nothing: among the first SWEEP_NAMES_MAX names, that is. What
        // stands behind those waits until there are fewer.
        let mut random = [0; 8];
        if left.is_empty() || bywire_sys::process::random(&mut random).is_err() {
            return;
        }
        let start = u64::from_ne_bytes(random) as usize % left.len();
        left.rotate_left(start);
        for name in left.iter().take(SWEEP_TESTS_MAX) {
            let path = self.path.join(name);
            let Ok(entry) = directory::entry(&path) else { continue };
            // Whoever may remove it, root too, leaves alone what is another user's, or no socket at all.
            let is_ours = entry.is_socket && entry.owner == bywire_sys::process::user();
            let is_ripe = !is_nameless(name) || entry.age >= NAMELESS_AGE;
            // Found dead under the lock, it stays dead: its owner is gone, and another socket takes its place
            // only under the lock.
            if is_ours && is_ripe && matches!(state(&path), State::Dead) {
                directory::remove(&path);
            }
        }
    }

    fn lock(&self) -> Result<OwnedFd, OpenError> {
        let deadline = Instant::now() + LOCK_PATIENCE;
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

    /// Is the process at the other end of a connection the one that has opened `port`?
    ///
    /// The kernel remembers who called `listen`; a connection to that socket tells.
    pub fn is_owner(&self, port: &PortName, claimant: Credentials) -> bool {
        let path = self.socket_path(port);
        match Socket::connect_entry(&path).and_then(|socket| socket.credentials()) {
            Ok(owner) => owner.pid == claimant.pid && owner.uid == claimant.uid,
            // A port that does not admit us. In a sticky directory only its user can have put it there;
            // which of that user's processes did cannot be known.
            Err(Errno::ACCESS | Errno::PERM) => {
                directory::entry(&path).is_ok_and(|entry| entry.owner == claimant.uid)
            }
            Err(_) => false,
        }
    }
}

/// What stands at a socket's path.
enum State {
    /// Somebody listens.
    Alive,
    /// Its owner has ended.
    Dead,
    /// Nothing.
    Free,
}

fn state(path: &Path) -> State {
    match Socket::connect_entry(path) {
        // Nobody has it open.
        Err(Errno::CONNREFUSED) => State::Dead,
        // Its owner has just closed it: the name is free for whoever comes first.
        Err(Errno::NOENT) => State::Free,
        // Only a forked child of its dead owner has.
        Ok(socket) if socket.peer_has_ended() => State::Dead,
        _ => State::Alive,
    }
}

/// Is this a port's number?
fn is_number(name: &str) -> bool {
    let port = name.strip_suffix(".port").map(str::parse);
    matches!(port, Some(Ok(PortName::Number(_))))
}

/// Is this a socket's name before it has one?
fn is_nameless(name: &str) -> bool {
    let digits = name.strip_prefix('.').and_then(|rest| rest.strip_suffix(".new"));
    digits.is_some_and(|digits| digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

impl Claim {
    /// Gives the name back. (Not done by `Drop`: a forked child must not.)
    pub fn release(&self) {
        directory::remove(&self.path);
    }
}

fn default_candidates() -> Vec<PathBuf> {
    let shared = PathBuf::from("/run/bywire");
    let session = std::env::var_os("XDG_RUNTIME_DIR").map(|path| PathBuf::from(path).join("bywire"));
    let own = PathBuf::from(format!("/tmp/bywire-{}", bywire_sys::process::user()));
    [Some(shared), session, Some(own)].into_iter().flatten().collect()
}
