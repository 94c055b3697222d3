//! Keys that `bywire serve` gives to members of its fabric, in place of a file at both ends.
//!
//! A client connects to a port of the server over the fabric and gets a key there. Each node vouches for the name and the
//! user at its end, and the fabric's encryption keeps the key secret. A key is good for one control connection, within a
//! few seconds, so a node that is removed from the fabric has none.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use bywire::{Address, Event, Port, PortOptions, Priority, Reach};
use bywire_node::client;
use bywire_wire::service::status::{Entry, Node, State};
use serde::{Deserialize, Serialize};

use bywire_command::exit_status::Misuse;

const PORT: &str = "bywire-serve";
const VALID: Duration = Duration::from_secs(10);
/// The most keys that have not been used. The oldest are forgotten first.
const KEYS_MAX: usize = 64;
/// The most clients that are being given a key.
const PEERS_MAX: u32 = 64;
const KEY_BYTES: usize = 32;
/// The longest message between both ports.
const MESSAGE_BYTES_MAX: u64 = 256;
const TIMEOUT: Duration = Duration::from_secs(5);

/// Keys that clients have and that have not been used, with the times when they were given.
#[derive(Debug, Default)]
pub struct IssuedKeys(Mutex<VecDeque<(Instant, [u8; KEY_BYTES])>>);

/// The message to a client.
#[derive(Serialize, Deserialize)]
struct Grant {
    /// The port for control connections.
    tcp_port: u16,
    key: [u8; KEY_BYTES],
}

impl IssuedKeys {
    fn issue(&self, now: Instant) -> [u8; KEY_BYTES] {
        let key = rand::random();
        let mut keys = self.valid(now);
        if keys.len() == KEYS_MAX {
            keys.pop_front();
        }
        keys.push_back((now, key));
        key
    }

    /// Takes the key that a client has proved, so that nobody can use it again.
    pub(crate) fn take(&self, now: Instant, is_proved: impl Fn(&[u8]) -> bool) -> Option<Vec<u8>> {
        let mut keys = self.valid(now);
        let place = keys.iter().position(|(_, key)| is_proved(key))?;
        keys.remove(place).map(|(_, key)| key.to_vec())
    }

    fn valid(&self, now: Instant) -> MutexGuard<'_, VecDeque<(Instant, [u8; KEY_BYTES])>> {
        let mut keys = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        keys.retain(|(issued, _)| now.saturating_duration_since(*issued) < VALID);
        keys
    }
}

/// Gives a key for the control port `tcp_port` to each member of the fabric that connects from now on, if it is the same
/// user or root. Fails if no node runs here, if its fabric is not encrypted, or if another server gives keys already.
pub fn issue(tcp_port: u16) -> Result<Arc<IssuedKeys>> {
    nodes()?;
    let options = PortOptions {
        reach: Reach::Fabric,
        peers_max: PEERS_MAX,
        message_bytes_max: MESSAGE_BYTES_MAX,
        ..PortOptions::named(PORT)
    };
    let mut port = Port::open(options).context("cannot open the port that gives keys")?;
    let keys = Arc::new(IssuedKeys::default());
    let issued = Arc::clone(&keys);
    std::thread::spawn(move || {
        while let Ok(event) = port.wait(None) {
            let Some(Event::Connected(peer)) = event else { continue };
            let grant = Grant { tcp_port, key: issued.issue(Instant::now()) };
            if let Ok(grant) = serde_json::to_vec(&grant) {
                // A client that has gone needs no key.
                let _gone = port.send(peer, Priority::Low, &grant);
            }
        }
    });
    Ok(keys)
}

/// Asks the server on a node for a key. Returns the address of its control port, and the key. Fails if no node runs here,
/// if there is no such node, or if nobody gives keys there.
pub(crate) fn ask(node: &str) -> Result<(SocketAddr, Vec<u8>)> {
    find(&nodes()?, node)?;
    let address: Address = format!("{node}/{PORT}").parse().map_err(Misuse::of)?;
    let options = PortOptions { message_bytes_max: MESSAGE_BYTES_MAX, ..PortOptions::default() };
    let mut port = Port::open(options).context("cannot open a port")?;
    port.connect(&address, TIMEOUT).with_context(|| {
        format!("{node} gives no key: is `bywire serve --fabric` running there, as the same user?")
    })?;
    let until = Instant::now() + TIMEOUT;
    let grant: Grant = loop {
        let left = until.saturating_duration_since(Instant::now());
        match port.wait(Some(left))?.with_context(|| format!("{node} has given no key in time"))? {
            Event::Message(message) => {
                break serde_json::from_slice(&message.payload)
                    .map_err(|_| anyhow!("{node} gives no valid key: install the same version there"))?;
            }
            Event::Disconnected { reason, .. } => bail!("{node} gives no key: {reason}"),
            _ => {}
        }
    };
    // The node's address is known now, as both services have a channel.
    let ip = reached_at(find(&nodes()?, node)?)?;
    Ok(((ip, grant.tcp_port).into(), grant.key.to_vec()))
}

fn nodes() -> Result<Vec<Node>> {
    let entries = client::status(None).context("--fabric needs the service of this machine's node")?;
    let is_encrypted =
        entries.iter().any(|entry| matches!(entry, Entry::Service(service) if service.is_encrypted));
    ensure!(
        is_encrypted,
        Misuse(
            "this fabric does not encrypt, so everybody in the network could read the key: use --key FILE"
                .into()
        )
    );
    let nodes = entries.into_iter().filter_map(|entry| match entry {
        Entry::Node(node) => Some(node),
        _ => None,
    });
    Ok(nodes.collect())
}

fn find<'a>(nodes: &'a [Node], name: &str) -> Result<&'a Node> {
    let names = || nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>().join(", ");
    let found = nodes.iter().find(|node| node.name == name);
    found.ok_or_else(|| Misuse(format!("no node is called `{name}`: choose one of {}", names())).into())
}

/// The address of a node that has a channel, and otherwise that of the fabric file.
fn reached_at(node: &Node) -> Result<IpAddr> {
    if node.state == State::Own {
        return Ok(Ipv4Addr::LOCALHOST.into());
    }
    let of_file = || node.addresses.iter().find_map(|address| address.to_socket_addrs().ok()?.next());
    let address = node.address.or_else(of_file);
    let address = address.with_context(|| format!("the address of {} is not known", node.name))?;
    Ok(address.ip().to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_good_once_and_for_a_short_time() {
        let (keys, now) = (IssuedKeys::default(), Instant::now());
        let (first, second) = (keys.issue(now), keys.issue(now));
        assert_ne!(first, second);
        let take = |wanted: [u8; KEY_BYTES], now| keys.take(now, |key| key == wanted);
        assert_eq!(take([0; KEY_BYTES], now), None);
        assert_eq!(take(first, now), Some(first.to_vec()));
        assert_eq!(take(first, now), None);
        assert_eq!(take(second, now + VALID), None);
    }

    #[test]
    fn the_oldest_of_too_many_keys_is_forgotten() {
        let (keys, now) = (IssuedKeys::default(), Instant::now());
        let issued: Vec<_> = (0..=KEYS_MAX).map(|_| keys.issue(now)).collect();
        let take = |wanted: [u8; KEY_BYTES]| keys.take(now, |key| key == wanted);
        assert_eq!(take(issued[0]), None);
        assert_eq!(take(issued[1]), Some(issued[1].to_vec()));
        assert_eq!(keys.valid(now).len(), KEYS_MAX - 1);
    }
}
