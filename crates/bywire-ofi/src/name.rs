//! The name of an endpoint, as launchers carry it from process to process.

use bywire::{Address, Owner, PeerInfo, PortName};

/// The length of a name: the longest that MPI implementations have room for.
pub const NAME_BYTES: usize = 64;
/// The longest name of a node that a name has room for.
pub const NODE_BYTES: usize = 32;
/// A secret that the first message of a connection has to show.
pub const TICKET_BYTES: usize = 16;

/// Where the parts of a name begin.
const PORT: usize = NODE_BYTES;
const VERSION_AT: usize = PORT + 4;
const INCARNATION: usize = VERSION_AT + 4;
const TICKET: usize = INCARNATION + 8;
const _: () = assert!(TICKET + TICKET_BYTES == NAME_BYTES);

/// Changes with the name, and with what endpoints say to each other.
const VERSION: u32 = 3;

/// The name of an endpoint: its address, and what tells it from others at the same address.
///
/// ```text
/// node 32 · port 4 · version 4 · incarnation 8 · ticket 16
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointName([u8; NAME_BYTES]);

/// What others vouch for of a name: the service of another machine for its node, and the port for the rest.
pub type Vouched = (Option<[u8; NODE_BYTES]>, u32, u64);

/// A ticket stays out of logs.
impl std::fmt::Debug for EndpointName {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // It may come from a hostile process.
        write!(formatter, "{}/{}", self.node().escape_ascii(), self.port())
    }
}

impl EndpointName {
    /// A name for the port `port` of `node`. Of a longer name of a node it has the beginning.
    pub fn new(node: &str, port: u32, incarnation: u64, ticket: [u8; TICKET_BYTES]) -> Self {
        let mut bytes = [0; NAME_BYTES];
        let length = node.len().min(NODE_BYTES);
        bytes[..length].copy_from_slice(&node.as_bytes()[..length]);
        bytes[PORT..VERSION_AT].copy_from_slice(&port.to_le_bytes());
        bytes[VERSION_AT..INCARNATION].copy_from_slice(&VERSION.to_le_bytes());
        bytes[INCARNATION..TICKET].copy_from_slice(&incarnation.to_le_bytes());
        bytes[TICKET..].copy_from_slice(&ticket);
        Self(bytes)
    }

    /// A name as another process has sent it. `None`: it is of another version.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let name = Self(bytes.try_into().ok()?);
        (name.0[VERSION_AT..INCARNATION] == VERSION.to_le_bytes()).then_some(name)
    }

    pub fn as_bytes(&self) -> &[u8; NAME_BYTES] {
        &self.0
    }

    /// Is it on the node of another one, by what both say?
    pub fn is_on_node_of(&self, other: &Self) -> bool {
        self.node() == other.node()
    }

    fn node(&self) -> &[u8] {
        let length = self.0[..NODE_BYTES].iter().position(|byte| *byte == 0).unwrap_or(NODE_BYTES);
        &self.0[..length]
    }

    fn port(&self) -> u32 {
        let mut word = [0; 4];
        word.copy_from_slice(&self.0[PORT..VERSION_AT]);
        u32::from_le_bytes(word)
    }

    pub fn incarnation(&self) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(&self.0[INCARNATION..TICKET]);
        u64::from_le_bytes(word)
    }

    pub fn ticket(&self) -> &[u8] {
        &self.0[TICKET..]
    }

    /// Is this the name of an endpoint of that process? The service of another machine vouches for where its processes are. On
    /// one machine the node says nothing, since containers have names of their own for it.
    pub fn is_of(&self, info: &PeerInfo) -> bool {
        let is_there = match info.owner {
            Owner::Remote { .. } => info.address.node.as_bytes() == self.node(),
            _ => true,
        };
        is_there
            && info.address.port == PortName::Number(self.port())
            && info.incarnation == self.incarnation()
    }

    /// The part of it that the owner of a connection cannot choose.
    pub fn vouched_for(&self, owner: &Owner) -> Vouched {
        let mut node = [0; NODE_BYTES];
        node.copy_from_slice(&self.0[..NODE_BYTES]);
        (matches!(owner, Owner::Remote { .. }).then_some(node), self.port(), self.incarnation())
    }

    /// The address of the port, for an endpoint with the name `own`. `None`: no node has such a name.
    ///
    /// An endpoint that is in no fabric looks for all others on this machine: containers have names of their own for it.
    pub fn address(&self, own: &Self, is_in_fabric: bool) -> Option<Address> {
        if self.is_on_node_of(own) || !is_in_fabric {
            return Some(Address::local(self.port()));
        }
        let node = std::str::from_utf8(self.node()).ok()?;
        let address: Address = format!("{node}/{}", self.port()).parse().ok()?;
        (address.port == PortName::Number(self.port())).then_some(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_was_written() {
        let own = EndpointName::new("a", 7, 1, [9; 16]);
        let other = EndpointName::new("web2", 1 << 31, u64::MAX, [3; 16]);
        assert_eq!(EndpointName::parse(other.as_bytes()), Some(other));
        assert_eq!((other.incarnation(), other.ticket()), (u64::MAX, &[3; 16][..]));
        assert_eq!(other.address(&own, true), "web2/2147483648".parse().ok());
        assert_eq!(other.address(&own, false), "localhost/2147483648".parse().ok());
        assert_eq!(own.address(&own, true), "localhost/7".parse().ok());
        assert_eq!(format!("{other:?}"), "web2/2147483648");
        assert_eq!(format!("{:?}", EndpointName::new("\x1b[2J", 7, 1, [9; 16])), "\\x1b[2J/7");
        let longest = "n".repeat(NODE_BYTES);
        let there = EndpointName::new(&longest, 8, 1, [9; 16]);
        assert_eq!(there.address(&own, true), format!("{longest}/8").parse().ok());
    }

    #[test]
    fn a_greeting_with_the_name_of_another_process_is_seen() {
        let name = EndpointName::new("a", 7, 42, [9; 16]);
        let info = |node: &str, port: u32, incarnation, owner| PeerInfo {
            address: Address { node: node.to_owned(), port: PortName::Number(port) },
            owner,
            incarnation,
            message_bytes_max: 1 << 20,
            integrity: false,
        };
        let there = || Owner::Remote { user: "mel".to_owned() };
        assert!(name.is_of(&info("a", 7, 42, there())));
        for (node, port, incarnation) in
            [("b", 7, 42), ("", 7, 42), ("aa", 7, 42), ("a", 8, 42), ("a", 7, 41)]
        {
            assert!(!name.is_of(&info(node, port, incarnation, there())), "{node} {port} {incarnation}");
        }
        // Containers of one machine have names of their own for it.
        let here = || Owner::Local { uid: 1000, pid: 5 };
        assert!(name.is_of(&info("localhost", 7, 42, here())));
        assert!(!name.is_of(&info("localhost", 8, 42, here())) && !name.is_of(&info("a", 7, 41, here())));
    }

    #[test]
    fn bytes_that_are_no_name_give_no_address() {
        let own = EndpointName::new("a", 7, 1, [9; 16]);
        assert_eq!(EndpointName::parse(&[0; NAME_BYTES]), None);
        assert_eq!(EndpointName::parse(&own.as_bytes()[1..]), None);
        for node in ["../x", "a b", ""] {
            assert_eq!(EndpointName::new(node, 1, 1, [0; 16]).address(&own, true), None, "{node:?}");
        }
    }
}
