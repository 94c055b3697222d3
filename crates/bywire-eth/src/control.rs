//! The control socket, through which a running network is queried and stopped. It lies in a directory that only its
//! user can enter.
//!
//! All users share the runtime directory. Its subdirectory `eth` belongs to one user and holds the control sockets.
//! `eth/ports` holds the ports of the carrying processes, which see nothing else.

use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bywire_sys::Errno;
use bywire_sys::deferred::Deferred;
use bywire_sys::directory::{self, OwnName};
use bywire_sys::listener::Listener;
use bywire_sys::socket::{Socket, receive_first};
use serde::{Deserialize, Serialize};

/// The directory of control sockets, in the runtime directory.
const DIRECTORY: &str = "eth";
/// The directory of ports, in the directory of control sockets.
const PORTS: &str = "ports";
/// The socket of this node's service, in the runtime directory and in the directory of ports.
const NODE: &str = "node";
/// The extension of a control socket. Its name is `NETWORK.NODE.eth`.
const EXTENSION: &str = "eth";
/// How long one side waits for the other.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The longest answer: a thousand interfaces, each with all its causes of drops.
const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// The longest request, which is one word.
const REQUEST_BYTES_MAX: usize = 256;

/// The requests that a running network accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Request {
    /// Returns everything about the network, in JSON.
    Status,
    /// Ends the network. The answer comes when everything is removed.
    Down,
}

/// The control socket of a running network. Dropping it removes the socket.
#[derive(Debug)]
pub struct ControlSocket {
    listener: UnixListener,
    name: OwnName,
    capture_listener: Listener,
    capture_name: OwnName,
}

/// Why a control socket could not be opened or reached.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// No runtime directory is usable: neither the chosen one nor, if none was chosen, any of the default ones.
    #[error(
        "cannot use the runtime directory {0}: {1}; set BYWIRE_RUNTIME_DIR to one that you may write and others may not, \
         unless it is sticky"
    )]
    Directory(PathBuf, Errno),
    /// The directory belongs to another user.
    #[error(
        "{0} belongs to another user: run this as that user, or set BYWIRE_RUNTIME_DIR to a directory of your own"
    )]
    OtherUser(PathBuf),
    /// This node of the network runs already.
    #[error(
        "network {network} has a node {node} on this machine already: end it by `bywire eth down`, or give this one another --node"
    )]
    Running {
        /// The network.
        network: String,
        /// The node.
        node: String,
    },
    /// No process answers on the control socket.
    #[error("no `bywire eth up` runs here: start one, see `bywire eth --help`")]
    Nobody,
    /// The kernel reported this error.
    #[error("cannot use the socket {0}: {1}")]
    System(PathBuf, io::Error),
    /// The answer is not valid JSON.
    #[error("the answer of `bywire eth up` is not valid: {0}")]
    Unreadable(String),
}

impl ControlSocket {
    /// Opens the control socket of a node.
    ///
    /// # Errors
    /// [`ControlError::Running`] if the node has one already, or [`ControlError::Directory`].
    pub fn open(network: &str, node: &str) -> Result<Self, ControlError> {
        let directory = own_directory()?;
        let path = directory.join(format!("{network}.{node}.{EXTENSION}"));
        let system = |error| ControlError::System(path.clone(), error);
        // One process at a time: otherwise two could both find a third one's socket dead, and replace each other's.
        let _lock = lock(&directory).map_err(system)?;
        sweep(&directory).map_err(system)?;
        if path.exists() {
            return Err(ControlError::Running { network: network.to_owned(), node: node.to_owned() });
        }
        let listener = UnixListener::bind(&path).map_err(system)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).map_err(system)?;
        listener.set_nonblocking(true).map_err(system)?;
        let capture_path = capture_path_of(&path);
        let capture_listener = Listener::bind(&capture_path).map_err(|error| system(error.into()))?;
        directory::set_access(&capture_path, 0o600, None).map_err(|error| system(error.into()))?;
        let own = |path: &Path| OwnName::of(path).map_err(|error| system(error.into()));
        Ok(Self { listener, name: own(&path)?, capture_listener, capture_name: own(&capture_path)? })
    }

    /// The listener for requests, to be polled.
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// The listener for programs that capture frames.
    pub fn capture_listener(&self) -> &Listener {
        &self.capture_listener
    }

    /// The next caller with its request, if there is a request that can be understood.
    pub fn answer_next(&self) -> Option<(Request, Deferred<UnixStream>)> {
        let (caller, _) = self.listener.accept().ok()?;
        let caller = Deferred::new(caller);
        caller.set_nonblocking(false).ok()?;
        // A caller that sends nothing, or one letter at a time, must not hold up the others for long.
        caller.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
        caller.set_write_timeout(Some(Duration::from_secs(1))).ok()?;
        let mut word = [0; REQUEST_BYTES_MAX];
        let length = receive_first(&*caller, &mut word).ok()?;
        Some((serde_json::from_slice(&word[..length]).ok()?, caller))
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.name.remove();
        self.capture_name.remove();
    }
}

/// Asks a running network for copies of its frames.
///
/// # Errors
/// [`ControlError::Nobody`], [`ControlError::System`].
pub fn connect_capture(control_socket: &Path) -> Result<Socket, ControlError> {
    let path = capture_path_of(control_socket);
    Socket::connect(&path).map_err(|error| match error {
        Errno::NOENT | Errno::CONNREFUSED => ControlError::Nobody,
        error => ControlError::System(path, error.into()),
    })
}

fn capture_path_of(control_socket: &Path) -> PathBuf {
    control_socket.with_extension("capture")
}

/// The control sockets of this user's networks, or those of one network or node. Some may be left over from processes
/// that have ended.
///
/// # Errors
/// [`ControlError::Directory`], [`ControlError::OtherUser`].
pub fn control_sockets(network: Option<&str>, node: Option<&str>) -> Result<Vec<PathBuf>, ControlError> {
    let directory = runtime_directory()?.join(DIRECTORY);
    match directory::entry(&directory).map(|entry| entry.owner) {
        // No network has run yet.
        Err(Errno::NOENT) => return Ok(Vec::new()),
        Ok(owner) if owner != bywire_sys::process::user() => return Err(ControlError::OtherUser(directory)),
        _ => {}
    }
    // Remove sockets of killed processes on the way. A failure here does no harm.
    let _ = lock(&directory).and_then(|_lock| sweep(&directory));
    let mut found = entries(&directory).map_err(|error| ControlError::System(directory, error))?;
    found.retain(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let parts: Vec<&str> = name.split('.').collect();
        let [its_network, its_node, EXTENSION] = parts[..] else { return false };
        network.is_none_or(|network| network == its_network) && node.is_none_or(|node| node == its_node)
    });
    found.sort();
    Ok(found)
}

/// Sends a request to a control socket. Returns `None` when no process listens there any more.
///
/// # Errors
/// [`ControlError::System`], [`ControlError::Unreadable`].
pub fn ask(control_socket: &Path, request: Request) -> Result<Option<serde_json::Value>, ControlError> {
    let word = serde_json::to_vec(&request).map_err(|error| ControlError::Unreadable(error.to_string()))?;
    let began = Instant::now();
    loop {
        let answer = call(control_socket, &word);
        // The service closes the connection to a caller that is held up before it has sent its request. Such a caller
        // may ask again.
        let is_unheard = match &answer {
            Ok(answer) => answer.as_ref().is_some_and(Vec::is_empty),
            Err(error) => matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset),
        };
        if is_unheard && request == Request::Status && began.elapsed() < TIMEOUT {
            continue;
        }
        let answer = answer.map_err(|error| ControlError::System(control_socket.to_owned(), error))?;
        let read = |answer: Vec<u8>| serde_json::from_slice(&answer);
        return answer.map(read).transpose().map_err(|error| ControlError::Unreadable(error.to_string()));
    }
}

/// The raw answer to a request, or `None` when no process listens there.
fn call(control_socket: &Path, word: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let mut stream = match UnixStream::connect(control_socket) {
        Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => {
            return Ok(None);
        }
        stream => stream?,
    };
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(word)?;
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    Ok(Some(answer))
}

/// The runtime directory, which ports of other programs use too.
///
/// # Errors
/// [`ControlError::Directory`].
pub fn runtime_directory() -> Result<PathBuf, ControlError> {
    let chosen = std::env::var_os("BYWIRE_RUNTIME_DIR").map(PathBuf::from);
    let candidates = match chosen {
        Some(path) => vec![path],
        None => {
            let session = std::env::var_os("XDG_RUNTIME_DIR").map(|path| PathBuf::from(path).join("bywire"));
            let own = PathBuf::from(format!("/tmp/bywire-{}", bywire_sys::process::user()));
            [Some(PathBuf::from("/run/bywire")), session, Some(own)].into_iter().flatten().collect()
        }
    };
    let mut failure = ControlError::Directory(PathBuf::new(), Errno::NOENT);
    for path in candidates {
        match directory::prepare(&path) {
            Ok(()) => return Ok(path),
            Err(cause) => failure = ControlError::Directory(path, cause),
        }
    }
    Err(failure)
}

/// The directory of the ports of networks. Only their user can put a port there, and confined carriers find nothing
/// else in it.
///
/// # Errors
/// [`ControlError::Directory`], [`ControlError::OtherUser`].
pub fn ports_directory() -> Result<PathBuf, ControlError> {
    private(own_directory()?.join(PORTS))
}

/// Gives confined carriers the socket of this node's service: a second name of it in the directory of ports. A service
/// that was started again has another socket, so the name is checked from time to time. Returns `false` if no service has
/// a socket.
///
/// # Errors
/// [`ControlError::System`] and the errors of the directories.
pub fn link_node() -> Result<bool, ControlError> {
    let (theirs, ours) = (runtime_directory()?.join(NODE), ports_directory()?.join(NODE));
    let Ok(socket) = std::fs::symlink_metadata(&theirs) else { return Ok(false) };
    let trusted = [0, bywire_sys::process::user()];
    if !socket.file_type().is_socket() || !trusted.contains(&socket.uid()) {
        return Ok(false);
    }
    let identity = |entry: &std::fs::Metadata| (entry.dev(), entry.ino());
    let is_linked = std::fs::symlink_metadata(&ours).is_ok_and(|entry| identity(&entry) == identity(&socket));
    if !is_linked {
        directory::remove(&ours);
        match std::fs::hard_link(&theirs, &ours) {
            // Another process of this user has made it, or the service has just ended.
            Err(error) if matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound) => {}
            linked => linked.map_err(|error| ControlError::System(ours, error))?,
        }
    }
    Ok(true)
}

/// Second names of ports in the runtime directory, where the node's service looks for them. Dropping it removes them.
#[derive(Debug)]
pub struct PortLinks(Vec<OwnName>);

impl PortLinks {
    /// Gives these ports of the directory of ports a second name. What a process of this user has left under that name is
    /// replaced, and for root also what another user has put there.
    ///
    /// # Errors
    /// [`ControlError::System`] and the errors of the directories.
    pub fn make(names: &[String]) -> Result<Self, ControlError> {
        let (ports, runtime) = (ports_directory()?, runtime_directory()?);
        let mut links = Self(Vec::new());
        for name in names {
            let file = format!("{name}.port");
            let (ours, theirs) = (ports.join(&file), runtime.join(&file));
            directory::remove(&theirs);
            std::fs::hard_link(&ours, &theirs)
                .map_err(|error| ControlError::System(theirs.clone(), error))?;
            links.0.push(OwnName::of(&theirs).map_err(|error| ControlError::System(theirs, error.into()))?);
        }
        Ok(links)
    }
}

impl Drop for PortLinks {
    fn drop(&mut self) {
        self.0.iter().for_each(OwnName::remove);
    }
}

/// The directory of control sockets.
fn own_directory() -> Result<PathBuf, ControlError> {
    private(runtime_directory()?.join(DIRECTORY))
}

/// Makes sure that `path` is a directory that belongs to this user and that no other user can enter.
fn private(path: PathBuf) -> Result<PathBuf, ControlError> {
    match std::fs::DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(ControlError::System(path, error));
        }
        _ => {}
    }
    if directory::entry(&path).map(|entry| entry.owner) != Ok(bywire_sys::process::user()) {
        return Err(ControlError::OtherUser(path));
    }
    match directory::prepare(&path).and_then(|()| directory::set_access(&path, 0o700, None)) {
        Ok(()) => Ok(path),
        Err(error) => Err(ControlError::System(path, error.into())),
    }
}

fn entries(directory: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(std::fs::read_dir(directory)?.flatten().map(|entry| entry.path()).collect())
}

/// Removes what killed processes have left. The caller holds the lock for control sockets. Ports have their own lock,
/// which every process takes that replaces a port.
fn sweep(directory: &Path) -> io::Result<()> {
    let has_ending = |path: &Path, ending: &str| path.extension().is_some_and(|found| found == ending);
    let is_dead = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    for path in entries(directory)?.iter().filter(|path| has_ending(path, EXTENSION)) {
        if UnixStream::connect(path).is_err_and(is_dead) {
            directory::remove(path);
            directory::remove(&capture_path_of(path));
        }
    }
    let ports = directory.join(PORTS);
    if !ports.exists() {
        return Ok(());
    }
    let _lock = lock(&ports)?;
    for path in entries(&ports)?.iter().filter(|path| has_ending(path, "port")) {
        if Socket::connect(path).is_err_and(|error| error == Errno::CONNREFUSED) {
            directory::remove(path);
        }
    }
    Ok(())
}

fn lock(path: &Path) -> io::Result<std::os::fd::OwnedFd> {
    for _ in 0..2000 {
        match directory::try_lock(path) {
            Ok(lock) => return Ok(lock),
            Err(Errno::AGAIN) => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::other("another process has locked its directory for two seconds"))
}
