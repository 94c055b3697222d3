//! Which node of the fabric has an address.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bywire_node::client;
use bywire_sys::wake::Eventfd;
use bywire_wire::service::status::{Node, State};

/// How often the service is asked at most. A node that was just added is unknown for so long.
const PAUSE: Duration = Duration::from_secs(2);
/// Times that it is asked at first.
const TRIES: u32 = 3;
/// How often it is asked for the sake of programs that require to know.
const WATCH: Duration = Duration::from_secs(5);

/// The nodes of the fabric, as this machine's service knows them.
#[derive(Debug)]
pub struct Nodes {
    shared: Arc<Shared>,
    /// Makes a thread ask the service, which may take long.
    ask: SyncSender<()>,
}

#[derive(Debug)]
struct Shared {
    known: Mutex<Known>,
    /// Signalled when something else is known than before.
    changed: Eventfd,
    /// Set once the service is to be asked again and again.
    is_watched: OnceLock<()>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Known {
    own: Option<String>,
    by_address: HashMap<IpAddr, String>,
}

impl Nodes {
    /// Asks the service, and is ready to ask it again. `None`: it does not answer.
    ///
    /// # Errors
    /// The error of the kernel, which has no thread or no descriptor.
    pub fn find() -> io::Result<Option<Self>> {
        let Some(found) = (0..TRIES).find_map(|_| Known::ask()) else { return Ok(None) };
        let shared = Arc::new(Shared {
            known: Mutex::new(found),
            changed: Eventfd::new()?,
            is_watched: OnceLock::new(),
        });
        let (ask, asked) = mpsc::sync_channel::<()>(1);
        let asking = Arc::clone(&shared);
        let look = move || {
            let pause = || asking.is_watched.get().map_or(Duration::MAX, |()| WATCH);
            while asked.recv_timeout(pause()) != Err(RecvTimeoutError::Disconnected) {
                let began = Instant::now();
                asking.ask();
                std::thread::sleep(PAUSE.saturating_sub(began.elapsed()));
            }
        };
        std::thread::Builder::new().name("nodes".to_owned()).spawn(look)?;
        Ok(Some(Self { shared, ask }))
    }

    /// From here on a node that is added or removed is noticed by itself.
    pub fn watch(&self) {
        if self.shared.is_watched.set(()).is_ok() {
            let _is_asking = self.ask.try_send(());
        }
    }

    /// The addresses of the other nodes. Its descriptor can be read once they may have changed since.
    pub fn others(&self) -> HashSet<IpAddr> {
        self.shared.changed.drain();
        let known = lock(&self.shared.known);
        let others = known.by_address.iter().filter(|(_, node)| Some(*node) != known.own.as_ref());
        others.map(|(address, _)| *address).collect()
    }

    /// The name of this machine's node, if its service was seen.
    pub fn own(&self) -> Option<String> {
        lock(&self.shared.known).own.clone()
    }

    /// The node with this address, which is not this machine's. One that is not known may be known at the next question.
    pub fn at(&self, address: IpAddr) -> Option<String> {
        if address.is_loopback() {
            return None;
        }
        let known = lock(&self.shared.known);
        let found = known.by_address.get(&address);
        // The fabric file may have changed.
        let _is_asking = self.ask.try_send(());
        found.filter(|node| Some(*node) != known.own.as_ref()).cloned()
    }
}

impl AsFd for Nodes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.changed.as_fd()
    }
}

impl Shared {
    fn ask(&self) {
        // A service that is away for a moment does not change which nodes there are.
        let Some(found) = Known::ask() else { return };
        let mut known = lock(&self.known);
        if *known != found {
            *known = found;
            self.changed.signal();
        }
    }
}

fn lock(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Known {
    fn ask() -> Option<Self> {
        client::nodes(None).ok().map(Self::of)
    }

    /// Only addresses that the fabric file names count: no node gets an address by its own word.
    fn of(nodes: Vec<Node>) -> Self {
        let own = nodes.iter().find(|node| matches!(node.state, State::Own)).map(|node| node.name.clone());
        let mut by_address = HashMap::new();
        for node in nodes {
            for address in node.addresses.iter().filter_map(|text| address_of(text)) {
                by_address.insert(address, node.name.clone());
            }
        }
        Self { own, by_address }
    }
}

/// The address of an entry of the fabric file that is no host name.
fn address_of(text: &str) -> Option<IpAddr> {
    let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
    text.parse().ok().or_else(with_port).map(|ip: IpAddr| ip.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_file_are_read_with_and_without_a_port() {
        assert_eq!(address_of("10.0.0.1:7248"), Some([10, 0, 0, 1].into()));
        assert_eq!(address_of("::ffff:10.0.0.1"), Some([10, 0, 0, 1].into()));
        assert_eq!(address_of("[fd00::1]:7248"), "fd00::1".parse().ok());
        assert_eq!(address_of("web1.example:7248"), None);
    }
}
