//! Which node of the fabric has an address.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bywire_node::client;
use bywire_wire::service::status::{Node, State};

/// How often the service is asked at most. A node that was just added is unknown for so long.
const PAUSE: Duration = Duration::from_secs(2);

/// The nodes of the fabric, as this machine's service knows them.
#[derive(Debug)]
pub struct Nodes {
    known: Arc<Mutex<Known>>,
    /// Makes a thread ask the service, which may take long.
    ask: SyncSender<()>,
}

#[derive(Debug, Default)]
struct Known {
    own: Option<String>,
    by_address: HashMap<IpAddr, String>,
}

impl Nodes {
    /// Asks the service, and is ready to ask it again.
    ///
    /// # Errors
    /// The error of the kernel, which has no thread.
    pub fn find() -> io::Result<Self> {
        let known = Arc::new(Mutex::new(Known::ask().unwrap_or_default()));
        let (ask, asked) = mpsc::sync_channel::<()>(1);
        let shared = Arc::clone(&known);
        let look = move || {
            while asked.recv().is_ok() {
                let began = Instant::now();
                // A service that is away for a moment does not change which nodes there are.
                if let Some(found) = Known::ask() {
                    *lock(&shared) = found;
                }
                std::thread::sleep(PAUSE.saturating_sub(began.elapsed()));
            }
        };
        std::thread::Builder::new().name("nodes".to_owned()).spawn(look)?;
        Ok(Self { known, ask })
    }

    /// The name of this machine's node, if its service was seen.
    pub fn own(&self) -> Option<String> {
        lock(&self.known).own.clone()
    }

    /// The node with this address, which is not this machine's. One that is not known may be known at the next question.
    pub fn at(&self, address: IpAddr) -> Option<String> {
        if address.is_loopback() {
            return None;
        }
        let known = lock(&self.known);
        let found = known.by_address.get(&address);
        // The fabric file may have changed.
        let _is_asking = self.ask.try_send(());
        found.filter(|node| Some(*node) != known.own.as_ref()).cloned()
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
