//! The client of a node's service, for the commands: reads its state, and makes it act.

use std::path::Path;
use std::time::{Duration, Instant};

use bywire::OpenError;
use bywire::runtime::RuntimeDirectory;
use bywire_sys::poller::Poller;
use bywire_sys::socket::{Received, Socket};
use bywire_sys::{Errno, process};
use bywire_wire::handshake::{MAC_BYTES, PrivateKey};
use bywire_wire::service::status::{Entry, Node, Position};
use bywire_wire::service::{self, NotInvited, Notice, PACKET_BYTES_MAX, Request, Unregistered, VERSION};

use crate::invitation::Invitation;
use crate::key::{self, KeyError};

/// How long a service may take for each part of the answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How soon a service is called again that has many callers.
const PAUSE: Duration = Duration::from_millis(1);
/// The most entries of a service.
const ENTRIES_MAX: usize = 1 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
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
    #[error(
        "the service does not answer, or is of another version: end it and start it again by `bywire up`"
    )]
    Silent,
    /// It ended while it was asked.
    #[error("the service has ended meanwhile: start it again by `bywire up`")]
    Ended,
    /// It serves as many programs of this user as a user may have.
    #[error("the service has no place for one more program of this user: end some of them, and try again")]
    NoPlace,
    /// The service obeys only root and its own user.
    #[error("the service runs as another user: run this as that user or as root")]
    NotAllowed,
    /// Only a program that can read the node's private key makes invitations.
    #[error(
        "cannot read this node's key: the service says that its key is {key_file:?}, whose directory --config has to name"
    )]
    NoKey {
        /// What is wrong with the file that this program has read.
        source: KeyError,
        /// Where the service says that its key is.
        key_file: String,
    },
    /// The service has another private key than the program that asks for an invitation.
    #[error("the service has another key, which it says is {0:?}: name the directory of its key by --config")]
    OtherKey(String),
}

/// The state of this machine's service.
///
/// # Errors
/// [`ClientError`].
pub fn status(runtime_directory: Option<&Path>) -> Result<Vec<Entry>, ClientError> {
    entries(runtime_directory, |_| true)
}

/// The nodes of the fabric, as this machine's service knows them. That is less work for the service than its whole state, in which
/// ports and connections follow.
///
/// # Errors
/// [`ClientError`].
pub fn nodes(runtime_directory: Option<&Path>) -> Result<Vec<Node>, ClientError> {
    let entries = entries(runtime_directory, |next| matches!(next, Position::Node(_)))?;
    let nodes = entries.into_iter().filter_map(|entry| match entry {
        Entry::Node(node) => Some(node),
        _ => None,
    });
    Ok(nodes.collect())
}

/// The entries up to the first position that is not wanted.
fn entries(
    runtime_directory: Option<&Path>,
    is_wanted: impl Fn(&Position) -> bool,
) -> Result<Vec<Entry>, ClientError> {
    let mut service = ServiceConnection::open(runtime_directory)?;
    let (mut entries, mut from) = (Vec::new(), Position::Start);
    loop {
        let request = Request::Status { version: VERSION, from: from.clone() };
        let Notice::Status { entries: part, next } = service.request(&request)? else {
            return Err(ClientError::Silent);
        };
        entries.extend(part);
        match next {
            Some(next) if next > from && is_wanted(&next) && entries.len() < ENTRIES_MAX => from = next,
            _ => return Ok(entries),
        }
    }
}

/// Makes this machine's service read its fabric file again. Returns the error in the file; the service then uses the
/// previous one.
///
/// # Errors
/// [`ClientError`].
pub fn reload(runtime_directory: Option<&Path>) -> Result<Option<String>, ClientError> {
    match ServiceConnection::open(runtime_directory)?.request(&Request::Reload { version: VERSION })? {
        Notice::Reloaded { complaint } => Ok(complaint),
        _ => Err(ClientError::Silent),
    }
}

/// Makes an invitation for a node. This machine's private key, which the service has as well, is read from `key_file`. Returns
/// the invitation's line, or why there is none.
///
/// # Errors
/// [`ClientError`].
pub fn invite(
    runtime_directory: Option<&Path>,
    key_file: &Path,
    node: &str,
) -> Result<Result<String, NotInvited>, ClientError> {
    let mut service = ServiceConnection::open(runtime_directory)?;
    let (mut proof, mut key) = ([0; MAC_BYTES], None::<PrivateKey>);
    loop {
        let request = Request::Invite { version: VERSION, node: node.to_owned(), proof };
        match (service.request(&request)?, &key) {
            (Notice::Invited { salt, sealed }, Some(key)) => {
                // Nobody without the key can have made it, or read it on the way. The key is never read from a place that the
                // service names: root in a container can replace its socket.
                let is_it = |line: &String| {
                    let found = line.parse::<Invitation>();
                    found.is_ok_and(|found| found.node == node && found.keeper == key.public())
                };
                return key.open(&salt, sealed).filter(is_it).map(Ok).ok_or(ClientError::Silent);
            }
            (Notice::NotInvited(reason), _) => return Ok(Err(reason)),
            (Notice::Prove { challenge, key_file: place }, None) => {
                let read =
                    key::read(key_file).map_err(|source| ClientError::NoKey { source, key_file: place })?;
                proof = read.prove(&challenge, node);
                key = Some(read);
            }
            (Notice::Prove { key_file, .. }, Some(_)) => return Err(ClientError::OtherKey(key_file)),
            _ => return Err(ClientError::Silent),
        }
    }
}

/// A connection on which the service answers requests.
struct ServiceConnection {
    socket: Socket,
    poller: Poller,
}

impl ServiceConnection {
    fn open(runtime_directory: Option<&Path>) -> Result<Self, ClientError> {
        let socket = open(runtime_directory)?;
        let poller = Poller::new().map_err(|_| ClientError::Silent)?;
        poller.add(&socket, 0).map_err(|_| ClientError::Silent)?;
        Ok(Self { socket, poller })
    }

    fn request(&mut self, request: &Request) -> Result<Notice, ClientError> {
        let request = service::to_bytes(request).map_err(|_| ClientError::Silent)?;
        match self.socket.send(&request, &[]) {
            // A service that turns callers away says so before they have asked.
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => {}
            Err(_) => return Err(ClientError::Silent),
        }
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let mut packet = [0; PACKET_BYTES_MAX];
            match self.socket.receive_from_own(&mut packet) {
                Ok(Received::Packet(length, _)) => match service::from_bytes(&packet[..length]) {
                    Ok(Notice::Refused(reason)) => return Err(refusal(reason)),
                    Ok(notice) => return Ok(notice),
                    Err(_) => return Err(ClientError::Silent),
                },
                Ok(Received::Nothing) => {
                    let left = deadline.checked_duration_since(Instant::now()).ok_or(ClientError::Silent)?;
                    self.poller.wait(Some(left)).map_err(|_| ClientError::Silent)?;
                }
                Ok(Received::Closed) => return Err(ClientError::Ended),
                // It closed the connection before it had read the request. The kernel reports that first, and once.
                Err(Errno::CONNRESET) if Instant::now() < deadline => {}
                Err(_) => return Err(ClientError::Silent),
            }
        }
    }
}

/// Why the service sends a program away.
pub(crate) fn refusal(reason: Unregistered) -> ClientError {
    match reason {
        Unregistered::Unverified => ClientError::NotAllowed,
        Unregistered::NoResources => ClientError::NoPlace,
        _ => ClientError::Silent,
    }
}

/// A connection to this machine's service, which root or the own user runs.
pub(crate) fn open(runtime_directory: Option<&Path>) -> Result<Socket, ClientError> {
    let directory = RuntimeDirectory::open(runtime_directory)?;
    let socket = call(&directory.service_path())?;
    let owner = socket.credentials().map_err(|_| ClientError::Absent)?.uid;
    if owner != 0 && owner != process::user() {
        return Err(ClientError::OtherUser(owner));
    }
    Ok(socket)
}

/// Calls the service. Where many others call it, they are served first.
fn call(path: &Path) -> Result<Socket, ClientError> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match Socket::connect_entry(path) {
            Ok(socket) => return Ok(socket),
            Err(Errno::AGAIN) if Instant::now() < deadline => std::thread::sleep(PAUSE),
            Err(Errno::AGAIN) => return Err(ClientError::Silent),
            Err(_) => return Err(ClientError::Absent),
        }
    }
}

#[cfg(test)]
mod tests {
    use bywire_sys::listener::Listener;

    use super::*;

    #[test]
    fn who_wants_the_nodes_asks_for_no_ports_and_connections() {
        let directory = tempfile::tempdir().expect("a directory");
        let listener = Listener::bind(&directory.path().join(service::SOCKET_NAME)).expect("bound");
        let answers = [
            (Position::Start, Position::Node(1)),
            (Position::Node(1), Position::Node(2)),
            (Position::Node(2), Position::Port("render".to_owned())),
        ];
        let serve = || {
            let deadline = Instant::now() + TIMEOUT;
            let mut caller = None;
            let mut asked = Vec::new();
            while Instant::now() < deadline {
                caller = caller.or_else(|| listener.accept().expect("it listens"));
                let mut packet = [0; PACKET_BYTES_MAX];
                let request = match caller.as_ref().map(|caller| caller.receive(&mut packet)) {
                    Some(Ok(Received::Packet(length, _))) => service::from_bytes(&packet[..length]),
                    Some(Ok(Received::Closed)) => break,
                    _ => {
                        std::thread::sleep(PAUSE);
                        continue;
                    }
                };
                let Ok(Request::Status { from, .. }) = request else { panic!("{request:?}") };
                let next = answers.iter().find(|(at, _)| *at == from).map(|(_, next)| next.clone());
                let notice = Notice::Status { entries: Vec::new(), next };
                let packet = service::to_bytes(&notice).expect("it fits");
                caller.as_ref().expect("it asks").send(&packet, &[]).expect("sent");
                asked.push(from);
            }
            asked
        };
        let asked = std::thread::scope(|scope| {
            let served = scope.spawn(serve);
            assert!(nodes(Some(directory.path())).expect("an answer").is_empty());
            served.join().expect("it served")
        });
        assert_eq!(asked, answers.map(|(from, _)| from));
    }
}
