//! The service: one thread and one epoll instance between ports, other nodes and signals. It acts for the [`Broker`], which
//! decides.

mod caller;
mod callers;
mod echo;
mod invitations;
mod joins;
mod nodes;
mod outages;
mod pings;
mod refusals;
mod report;
mod throttled_callers;
mod unwritten;
mod users;

use std::collections::{BTreeSet, HashMap};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use bywire::OpenError;
use bywire::runtime::{Claim, RuntimeDirectory};
use bywire_sys::poller::Poller;
use bywire_sys::share::{Places, Shares};
use bywire_sys::{Errno, clock, directory, limits, process, tcp};
use bywire_wire::bucket::Bucket;
use bywire_wire::handshake::{CHALLENGE_BYTES, Identity, PrivateKey};
use bywire_wire::keys::Security;
use bywire_wire::service::{Notice, Unregistered};

use crate::broker::{Action, Broker, PortId, ThisNode};
use crate::fabric::{self, Fabric, FabricError};
use crate::key::{self, KeyError};
use crate::link::{self, Link};
use crate::lookup::Lookups;
use crate::settings::Settings;

use caller::Caller;
use invitations::Invitations;
use outages::Outages;
use pings::Pings;
use refusals::Refusals;
use throttled_callers::ThrottledCallers;
use unwritten::Unwritten;
use users::Users;

/// Tags of the poller. Callers have numbers from [`FIRST_CALLER`] on: an even one for the socket, and the next one for
/// the process.
const LISTENER: u64 = 0;
const NETWORK: u64 = 1;
const STOP: u64 = 2;
const RELOAD: u64 = 3;
const ANSWERS: u64 = 4;
const FIRST_CALLER: u64 = 16;

/// The most callers of each user, and of all users: ports, and programs that ask for the status. Twice as many come back after
/// a restart.
const CALLERS: Places = Places { own: 16, common: 4096 };
/// The descriptors that this takes: three for a port, and some more.
const DESCRIPTORS: u64 = 32_768;
/// How long the end of a service is repeated to a node that does not answer.
const LEAVE_NS: u64 = 1_000_000_000;
/// How soon something is tried again that the kernel could not do.
const RETRY_NS: u64 = 50_000_000;
/// Lines of the log that other nodes cause: one in a second, and so many at once. The others are left out.
const REMARK_NS: u64 = 1_000_000_000;
const REMARKS_MAX: u64 = 16;

/// The options of a service.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory with the fabric file and the key.
    pub configuration: PathBuf,
    /// The runtime directory; `None`: as ports choose it.
    pub runtime_directory: Option<PathBuf>,
    /// The UDP port; 0 takes a free one.
    pub udp_port: u16,
    /// Differs between starts of the machine.
    pub boot_id: [u8; 16],
}

/// Why a service did not begin, or why it ended.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The private key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The fabric file.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The runtime directory.
    #[error(transparent)]
    Runtime(OpenError),
    /// Another service is running.
    #[error("a service runs already and serves {}: stop it first, or set BYWIRE_RUNTIME_DIR to another directory", .0.display())]
    Running(PathBuf),
    /// Something else has the place of the socket.
    #[error(
        "{} is not a socket and has the name of the service's socket: remove it, as root if it belongs to another user", .0.display()
    )]
    Obstructed(PathBuf),
    /// Another program has the UDP port.
    #[error(
        "another program has UDP port {0}: stop it, or choose another port by --port and in this node's addresses in fabric.toml"
    )]
    PortTaken(u16),
    /// The UDP socket.
    #[error(
        "cannot use UDP port {0}: {1}: correct that on this machine, or choose another port by --port and in this node's \
         addresses in fabric.toml"
    )]
    Udp(u16, Errno),
    /// The kernel refused a resource that the service itself needs.
    #[error(
        "the service cannot continue: {0}: correct that on this machine, and run `bywire up` again; connections go on meanwhile"
    )]
    System(#[from] std::io::Error),
}

impl From<Errno> for ServiceError {
    fn from(error: Errno) -> Self {
        Self::System(error.into())
    }
}

/// A running service.
pub struct Service<'a> {
    fabric: Fabric,
    configuration: PathBuf,
    key: PrivateKey,
    /// Differs between starts of the service.
    incarnation: u64,
    directory: RuntimeDirectory,
    claim: Claim,
    poller: Poller,
    link: Link,
    broker: Broker,
    lookups: Lookups,
    callers: HashMap<PortId, Caller>,
    places: Shares,
    users: Users,
    /// Callers that are not read from now.
    throttled: ThrottledCallers,
    /// When callers without a packet may have to go. What a caller has done since is looked up then.
    late: BTreeSet<(u64, PortId)>,
    /// Callers for which packets wait, and when it is tried again to send these.
    unread: BTreeSet<PortId>,
    unread_again_ns: u64,
    next_caller: PortId,
    /// The network namespace of the UDP socket. Ports have to be in it, or are lent a socket of it.
    namespace: u64,
    settings: Settings,
    began_ns: u64,
    refusals: Refusals,
    /// Nobody is accepted before then, because descriptors had run out or too many callers were refused.
    accept_again_ns: Option<u64>,
    /// Nodes that do not answer, and when their names are looked up again.
    outages: Outages,
    invitations: Invitations,
    pings: Pings,
    /// The error in the latest fabric file.
    complaint: Option<String>,
    /// The keeper's file that is in force, until it is written.
    unwritten: Option<Unwritten>,
    /// The lines of the log that other nodes have caused lately.
    remarks: Bucket,
    say: &'a dyn Fn(&str),
}

/// The identity of this start of the machine.
///
/// # Errors
/// `/proc` is absent.
pub fn boot_id() -> std::io::Result<[u8; 16]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let number = u128::from_str_radix(&digits, 16).map_err(std::io::Error::other)?;
    Ok(number.to_be_bytes())
}

impl<'a> Service<'a> {
    /// Begins. `say` gets each line of the log.
    ///
    /// # Errors
    /// [`ServiceError`].
    pub fn start(options: &Options, say: &'a dyn Fn(&str)) -> Result<Self, ServiceError> {
        let began_ns = clock::nanoseconds();
        let key = key::read(&options.configuration.join(key::FILE_NAME))?;
        let path = options.configuration.join(fabric::FILE_NAME);
        let mut text = fabric::read_text(&path).map_err(FabricError::from)?;
        let mut fabric = Fabric::of(&path, &text, &key.public())?;
        let settings = Settings::read(&options.configuration)?;
        let directory =
            RuntimeDirectory::open(options.runtime_directory.as_deref()).map_err(ServiceError::Runtime)?;
        // Fewer are enough, because a port without one is refused.
        let _ = limits::raise_descriptor_limit(DESCRIPTORS);
        let mut incarnation = [0; 8];
        process::random(&mut incarnation)?;
        let incarnation = u64::from_ne_bytes(incarnation);
        let identity =
            Identity { key: key.clone(), shared_secret: None, boot_id: options.boot_id, incarnation };
        let link = Link::open(options.udp_port, identity).map_err(|error| match error {
            Errno::ADDRINUSE => ServiceError::PortTaken(options.udp_port),
            error => ServiceError::Udp(options.udp_port, error),
        })?;
        let namespace = tcp::namespace(link.socket())?;
        let claim = directory.claim_service().map_err(|error| {
            let path = directory.service_path();
            match error {
                _ if directory::entry(&path).is_ok_and(|entry| !entry.is_socket) => {
                    ServiceError::Obstructed(path)
                }
                OpenError::InUse(_) => ServiceError::Running(path),
                error => ServiceError::Runtime(error),
            }
        })?;
        claim.listener.set_backlog(refusals::BACKLOG_MAX)?;
        // No other service can write the copy any more.
        let copy = unwritten::take_copy(&directory.path().join(unwritten::COPY_NAME), &fabric, &key.public());
        let unwritten = copy.map(|(copy, newer)| {
            say(&format!(
                "serial {} is in force, which could not be written before; fabric.toml has serial {}, and is written again: to \
                 replace it, raise its serial above that",
                copy.serial, fabric.serial
            ));
            (fabric, text) = (copy, newer);
            Unwritten::new(began_ns, text.clone())
        });
        let broker = Broker::new(began_ns, own(&fabric, &key));
        let service = Self {
            fabric,
            configuration: options.configuration.clone(),
            key,
            incarnation,
            directory,
            claim,
            poller: Poller::new()?,
            link,
            broker,
            lookups: Lookups::start()?,
            callers: HashMap::new(),
            places: Shares::new(CALLERS),
            users: Users::default(),
            throttled: ThrottledCallers::default(),
            late: BTreeSet::new(),
            unread: BTreeSet::new(),
            unread_again_ns: 0,
            next_caller: FIRST_CALLER,
            namespace,
            settings,
            began_ns,
            refusals: Refusals::default(),
            accept_again_ns: None,
            outages: Outages::default(),
            invitations: Invitations::default(),
            pings: Pings::default(),
            complaint: None,
            unwritten,
            remarks: Bucket::default(),
            say,
        };
        service.begun(text)
    }

    fn begun(mut self, text: String) -> Result<Self, ServiceError> {
        self.poller.add(&self.claim.listener, LISTENER)?;
        self.poller.add(&self.link, NETWORK)?;
        self.poller.add(&self.lookups, ANSWERS)?;
        self.follow(self.began_ns, None, text);
        Ok(self)
    }

    /// This node's name.
    pub fn node(&self) -> &str {
        self.fabric.named(&self.key.public()).map_or("", |node| &node.name)
    }

    /// The fabric.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// What a caller's proofs of the private key have to be made for. No other caller has the same.
    fn challenge(&self, caller: PortId) -> [u8; CHALLENGE_BYTES] {
        (u128::from(self.incarnation) << 64 | u128::from(caller)).to_le_bytes()
    }

    /// Writes a line to the log that another node has caused, unless there were many of them.
    fn remark(&mut self, now_ns: u64, line: impl FnOnce() -> String) {
        if self.remarks.put(now_ns, REMARK_NS, REMARKS_MAX) {
            (self.say)(&line());
        }
    }

    /// Its UDP port.
    pub fn udp_port(&self) -> u16 {
        self.link.port()
    }

    /// The path of the socket that it serves.
    pub fn socket_path(&self) -> PathBuf {
        self.directory.service_path()
    }

    /// Serves until `stop` is readable. Whenever `reload` is readable, the fabric file is read again.
    ///
    /// # Errors
    /// [`ServiceError::System`].
    pub fn run(mut self, stop: &UnixStream, reload: &UnixStream) -> Result<(), ServiceError> {
        self.poller.add(stop, STOP)?;
        self.poller.add(reload, RELOAD)?;
        let outcome = self.serve(reload);
        // Connections continue without a service, and ports register with the next one.
        self.claim.release();
        self.callers.clear();
        self.announce_end()?;
        outcome
    }

    /// Tells the other services that this one ends, until they have answered, for at most a second.
    fn announce_end(&mut self) -> Result<(), ServiceError> {
        let mut poller = Poller::new()?;
        poller.add(&self.link, NETWORK)?;
        let until_ns = clock::nanoseconds().saturating_add(LEAVE_NS);
        self.link.close(clock::nanoseconds());
        loop {
            let now_ns = clock::nanoseconds();
            let Some(next_ns) = self.link.next_timeout_ns().filter(|_| now_ns < until_ns) else {
                return Ok(());
            };
            let timeout = Duration::from_nanos(next_ns.min(until_ns).saturating_sub(now_ns));
            poller.wait(Some(timeout))?;
            let now_ns = clock::nanoseconds();
            self.link.receive(now_ns);
            self.link.flush(now_ns);
            while self.link.next_event(now_ns).is_some() {}
        }
    }

    fn serve(&mut self, mut reload: &UnixStream) -> Result<(), ServiceError> {
        loop {
            self.settle(clock::nanoseconds());
            // Everybody has been told what a new file changes.
            self.write_file(clock::nanoseconds());
            let timeout = self.timeout(clock::nanoseconds());
            let ready = self.poller.wait(timeout)?.to_vec();
            let now_ns = clock::nanoseconds();
            if ready.contains(&STOP) {
                return Ok(());
            }
            // Short work first: ends, and packets of ports. Strangers may fill the network's queue.
            for tag in ready.iter().copied().filter(|tag| *tag >= FIRST_CALLER) {
                self.attend(now_ns, tag);
            }
            if ready.contains(&LISTENER) || self.accept_again_ns.is_some() {
                self.accept(now_ns);
            }
            if ready.contains(&ANSWERS) {
                self.take_answers(now_ns);
            }
            if ready.contains(&RELOAD) {
                let mut bytes = [0; 64];
                // One byte for each signal. The stream may block, but has at least one byte.
                let _ = reload.read(&mut bytes);
                self.reload(now_ns);
            }
            if ready.contains(&NETWORK) {
                self.link.receive(now_ns);
            }
            self.broker.tick(now_ns);
            self.forget_invitations(now_ns);
            self.dismiss_late(now_ns);
            self.read_again(now_ns);
            self.look_up_again(now_ns);
        }
    }

    /// Carries out the broker's actions and reports their results to it, until there is nothing left to do.
    fn settle(&mut self, now_ns: u64) {
        loop {
            self.carry_out(now_ns, None);
            self.link.flush(now_ns);
            let mut is_quiet = true;
            while let Some(event) = self.link.next_event(now_ns) {
                is_quiet = false;
                self.happened(now_ns, event);
            }
            if is_quiet {
                break;
            }
        }
        self.flush_callers(now_ns);
    }

    /// Carries out the actions of the broker. Messages to other nodes are on the account of `user`, if they are its requests.
    fn carry_out(&mut self, now_ns: u64, user: Option<u32>) {
        while let Some(order) = self.broker.next_action() {
            match order {
                Action::Tell(port, Notice::Offer { .. }) if self.has_lost_its_name(port) => {
                    self.refuse(port, Unregistered::Unverified);
                }
                Action::Tell(port, Notice::Offer { offer, .. }) if self.is_behind(port) => {
                    self.broker.turn_away(offer);
                }
                Action::Tell(port, notice) => self.tell(port, &notice),
                Action::Send(node, message) => {
                    let owed_bytes_max = self.broker.owed_bytes_max(&node);
                    self.link.send(now_ns, node, &message, user, owed_bytes_max);
                }
                Action::Want(node) => self.link.want(now_ns, &node),
                Action::Release(node) => self.link.release(&node),
                Action::Adopt(text) => self.adopt(now_ns, text),
                Action::ReportAhead(node, serial) => self.report_ahead(now_ns, &node, serial),
            }
        }
    }

    fn timeout(&mut self, now_ns: u64) -> Option<Duration> {
        let next = [
            self.link.next_timeout_ns(),
            self.broker.next_timeout_ns(),
            self.first_late_ns(),
            self.outages.next_ns(),
            self.accept_again_ns,
            (!self.unread.is_empty()).then_some(self.unread_again_ns),
            self.throttled.next_ns(),
            self.unwritten.as_ref().map(Unwritten::next_ns),
        ];
        let next = next.into_iter().flatten().min();
        next.map(|at_ns| Duration::from_nanos(at_ns.saturating_sub(now_ns)))
    }
}

/// The properties of this node in a fabric that it belongs to.
fn own(fabric: &Fabric, key: &PrivateKey) -> ThisNode {
    let security = match (fabric.is_encrypted, link::has_aes()) {
        (false, _) => Security::Plain,
        (true, true) => Security::Aes256Gcm,
        (true, false) => Security::ChaCha20Poly1305,
    };
    let name = fabric.named(&key.public()).map(|node| node.name.clone()).unwrap_or_default();
    ThisNode { name, key: key.public(), security }
}

const _: () = assert!(FIRST_CALLER.is_multiple_of(2), "a caller's socket has an even tag");

/// Two streams. The first becomes readable when this process has to end, and the second when it has to read its files
/// again.
///
/// # Errors
/// No descriptors are left.
pub fn watch_signals() -> std::io::Result<(UnixStream, UnixStream)> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let (stop, stopped) = UnixStream::pair()?;
    let (reload, reloaded) = UnixStream::pair()?;
    for signal in [SIGINT, SIGTERM] {
        signal_hook::low_level::pipe::register(signal, stopped.try_clone()?)?;
    }
    signal_hook::low_level::pipe::register(SIGHUP, reloaded)?;
    reload.set_nonblocking(true)?;
    Ok((stop, reload))
}
