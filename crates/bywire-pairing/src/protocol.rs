//! The packets between programs and the service: all of one size, on a Unix socket.

use core::net::{IpAddr, SocketAddr};

/// The length of every packet.
pub const PACKET_BYTES: usize = 40;
/// The length of a program's page.
pub const PAGE_BYTES: usize = 4096;
/// By this mark on its open file a program knows a doorbell that the service has passed on: the signal that `O_ASYNC` would
/// send (`F_SETSIG`), which is never set.
pub const DOORBELL_MARK: i32 = 63;
/// In `Hello`: the version of this protocol and of the segments that are exchanged.
pub const VERSION: u64 = 0x6277_7000_0000_000b;
/// The variable with the path where the service listens.
pub const SERVICE_VARIABLE: &str = "BYWIRE_SOCKETS_SERVICE";
/// `0`: the library never spins before it sleeps.
pub const SPIN_VARIABLE: &str = "BYWIRE_SOCKETS_SPIN";
/// `1`: programs may use io_uring, and are not carried once they do.
pub const IO_URING_VARIABLE: &str = "BYWIRE_SOCKETS_IO_URING";
/// The number of data-moving calls after which a connection is offered.
pub const CALLS_VARIABLE: &str = "BYWIRE_SOCKETS_CALLS";
/// Whether an engine may serve a program's connections: one of [`ENGINE_WORDS`].
pub const ENGINE_VARIABLE: &str = "BYWIRE_SOCKETS_ENGINE";
/// Never; where it pays; whatever is sent; and nothing goes to a node of the fabric but through an engine.
pub const ENGINE_WORDS: [&str; 4] = ["off", "prefer", "always", "require"];
/// `1`: datagrams of UDP sockets are carried as well.
pub const UDP_VARIABLE: &str = "BYWIRE_SOCKETS_UDP";
/// The file with the tokens of spinning programs. All programs of one user share it.
pub const CORES_VARIABLE: &str = "BYWIRE_SOCKETS_CORES";
/// The file to which the library adds a line for the outcome of each connection.
pub const LOG_VARIABLE: &str = "BYWIRE_LOG";
/// The longest name of that file.
pub const LOG_PATH_BYTES_MAX: usize = 255;
/// A directory that the library makes as soon as it is loaded, to tell the process that started the program. It lies
/// in a directory of that process, which removes it at its end.
pub const LOADED_VARIABLE: &str = "BYWIRE_SOCKETS_LOADED";
/// How long a program waits for an answer before it does without the service.
pub const TIMEOUT_MS: i32 = 20;

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $number:literal,)*) => {
        /// The meaning of a packet.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Kind {
            $($(#[$doc])* $kind = $number,)*
        }

        impl Kind {
            fn of(number: u8) -> Option<Self> {
                match number {
                    $($number => Some(Self::$kind),)*
                    _ => None,
                }
            }
        }
    };
}

kinds! {
    /// The first packet of a program: `number` is its process, `first` the [`VERSION`]. It brings the program's
    /// doorbell, and the page that says whether the program sleeps on it.
    Hello = 1,
    /// May an offer follow? No offer is sent before the answer, so none waits in the queue of a sleeping service.
    Ask = 2,
    /// An offer may follow now: `token` as in the question. `code` is the [`link`]s that an engine serves for the
    /// program's user.
    Go = 3,
    /// An offer that `token` names, with the descriptors of the connection and of the program's segment. The segment is
    /// two memory files: its head, and the rest, which its maker can empty again. A program that cannot make the
    /// second one offers a single file of the whole length. A UDP socket is offered for one other end, which the packet
    /// names: see [`Packet::other_end`].
    Offer = 4,
    /// The answer to an offer: `code` is a [`Verdict`], `number` the peer. If paired, it brings the peer's segment,
    /// doorbell and page. With a peer of another user, the brought doorbell is one of [`Kind::Doorbell`], and `first`
    /// names the one that this peer rings here; else `first` is 0. The rest of the segment comes last, if there is one.
    Answer = 5,
    /// The offer or its connection is over: `first` bytes were sent and `second` received in memory.
    End = 6,
    /// `first` connections were not carried for the reason `code`.
    Note = 7,
    /// Asks for the status: of all programs of the caller's user, or of the process `number`, if that is not 0. Each packet
    /// of the answer repeats `number`.
    Status = 8,
    /// Part of the status: `code` is a [`crate::reason::Reason`], or names a count of [`crate::status`].
    Count = 9,
    /// After the last count.
    Done = 10,
    /// A doorbell that `token` names. Programs of one other user ring it, and no other program has it.
    Doorbell = 11,
    /// The program ends in order, or executes another program. The carried connections of a program that ends without
    /// this packet are cut. `first` bytes were sent in memory over the connections that it had not ended. `second` of
    /// their ends have sent or received bytes.
    Leave = 12,
    /// The doorbell `token` is withdrawn: no connection with programs of that user is left.
    Withdraw = 13,
    /// The program has closed the doorbell `token`. The service keeps its own copy until then, so no user can delay
    /// the program's close.
    Withdrawn = 14,
    /// The rings of the program have `first` bytes of memory.
    Memory = 15,
    /// The program is an engine, which stands in for ends that are not in this machine's memory: it serves the
    /// [`link`]s `code` for its user. `first` [`Kind::Node`]s follow.
    Serve = 16,
    /// An engine may serve the offer `token`, which waits, by the [`link`] `code`. It brings the descriptor of the
    /// connection once more. `first` is 1 if the program sends nothing otherwise: then an engine that does not serve it is
    /// answered for by [`Verdict::Refused`].
    Seek = 17,
    /// To an engine: it may serve a connection by the [`link`] `code`, under the name `token`. It brings the descriptor of
    /// the connection. `first` as in [`Kind::Seek`].
    Take = 18,
    /// The engine's answer to [`Kind::Take`]: it brings the segment that stands for the other end. Without descriptors it
    /// refuses. Both programs get [`Kind::Answer`], in which `second` is the link.
    Taken = 19,
    /// To an engine: the program of the connection `token` has ended it, or has ended itself. It may be one that the engine has
    /// not answered for yet. The engine says it as well, so that the service knows how many it has heard. [`Kind::End`] follows once the kernel has the last bytes.
    Gone = 20,
    /// From an engine: another machine of the fabric has an address, or has it no more if `code` is 0. `first` and `second` are
    /// its bytes, as [`address_words`] has them.
    Node = 21,
    /// Does a machine of the fabric have this address? `first` and `second` as in [`Kind::Node`].
    Locate = 22,
    /// The answer to [`Kind::Locate`]: `token` as in the question, `code` is a [`place`]. To an engine: somebody has asked.
    Located = 23,
}

/// The place of an address, as far as a user's engine knows.
pub mod place {
    /// On no machine of the fabric but this one.
    pub const ELSEWHERE: u8 = 0;
    /// On another machine of the fabric.
    pub const NODE: u8 = 1;
    /// No engine serves connections with other machines for this user, or it does not know its nodes yet.
    pub const UNKNOWN: u8 = 2;
}

/// An address in two words, one of IPv4 as IPv6 maps it.
pub fn address_words(address: IpAddr) -> [u64; 2] {
    let bits = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    };
    [(bits >> 64) as u64, bits as u64]
}

/// Links: the things that an engine does with the bytes of a connection, as bits of one number.
pub mod link {
    /// It gives the kernel what the program sends, in batches. The other end is any TCP peer.
    pub const RELAY: u8 = 1;
    /// It passes what the program sends to the engine of another machine, at which the program's peer is. The bytes that the
    /// program receives come from there.
    pub const FABRIC: u8 = 2;
}

/// The outcome of an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Verdict {
    /// The other end has not been offered yet.
    Waiting = 0,
    /// The other end comes with this answer.
    Paired = 1,
    /// Never: it is not an established TCP or Unix connection.
    Refused = 2,
    /// Never: it is bound to an interface.
    Device = 3,
    /// Never: the same addresses were offered from two namespaces, or it is a Unix socket of another one than the
    /// service's.
    Namespace = 4,
    /// Not now: too many offers wait.
    Full = 5,
    /// The other end has been offered meanwhile. Offer this one once more, so that each end was seen while the other
    /// existed.
    Again = 6,
    /// Never: the other end belongs to another user, and the two programs have no doorbell.
    OtherUser = 7,
    /// Never: the rings of this user's programs have as much memory as they may.
    Memory = 8,
}

impl Verdict {
    /// The verdict with this number.
    pub fn of(number: u8) -> Option<Self> {
        let first = [Self::Waiting, Self::Paired, Self::Refused, Self::Device];
        let rest = [Self::Namespace, Self::Full, Self::Again, Self::OtherUser];
        first.into_iter().chain(rest).chain([Self::Memory]).find(|verdict| *verdict as u8 == number)
    }
}

/// In the offer of a UDP socket, `code`: the family of the other end's address.
const IP_V4: u8 = 4;
const IP_V6: u8 = 6;

/// A packet. The meaning of its fields depends on [`Kind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Packet {
    pub kind: Kind,
    pub code: u8,
    pub number: u32,
    pub token: u64,
    pub first: u64,
    pub second: u64,
}

impl Packet {
    /// A packet with zeroes in all other fields.
    pub const fn new(kind: Kind, token: u64) -> Self {
        Self { kind, code: 0, number: 0, token, first: 0, second: 0 }
    }

    /// The offer of a UDP socket for this other end.
    pub const fn offering_datagrams(token: u64, other_end: SocketAddr) -> Self {
        let (code, first, second) = match other_end.ip() {
            IpAddr::V4(ip) => (IP_V4, ip.to_bits() as u64, 0),
            IpAddr::V6(ip) => (IP_V6, (ip.to_bits() >> 64) as u64, ip.to_bits() as u64),
        };
        Self { code, number: other_end.port() as u32, first, second, ..Self::new(Kind::Offer, token) }
    }

    /// The other end that the offer of a UDP socket names. IPv4 in IPv6 is given as IPv4.
    pub fn other_end(&self) -> Option<SocketAddr> {
        let ip = match self.code {
            IP_V4 => IpAddr::from((self.first as u32).to_be_bytes()),
            IP_V6 => IpAddr::from((u128::from(self.first) << 64 | u128::from(self.second)).to_be_bytes())
                .to_canonical(),
            _ => return None,
        };
        Some(SocketAddr::new(ip, self.number as u16))
    }

    /// The packet's bytes.
    pub fn encode(&self) -> [u8; PACKET_BYTES] {
        let mut bytes = [0; PACKET_BYTES];
        bytes[0] = self.kind as u8;
        bytes[1] = self.code;
        bytes[4..8].copy_from_slice(&self.number.to_ne_bytes());
        for (at, word) in [(8, self.token), (16, self.first), (24, self.second)] {
            bytes[at..at + 8].copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// The packet of these bytes, if it is valid.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; PACKET_BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| u64::from_ne_bytes(core::array::from_fn(|index| bytes[at + index]));
        Some(Self {
            kind: Kind::of(bytes[0])?,
            code: bytes[1],
            number: u32::from_ne_bytes(core::array::from_fn(|index| bytes[4 + index])),
            token: word(8),
            first: word(16),
            second: word(24),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_ipv4_and_its_mapped_form_are_the_same_words() {
        let words = |text: &str| address_words(text.parse().unwrap());
        assert_eq!(words("10.0.0.1"), words("::ffff:10.0.0.1"));
        assert_eq!(words("fd00::1"), [0xfd00 << 48, 1]);
    }

    #[test]
    fn the_other_end_of_a_udp_socket_is_named_in_both_families() {
        for text in ["127.0.0.1:53", "[::1]:65535", "[2001:db8::7]:1"] {
            let other_end: SocketAddr = text.parse().expect("an address");
            let packet = Packet::offering_datagrams(7, other_end);
            assert_eq!(Packet::decode(&packet.encode()).expect("a packet").other_end(), Some(other_end));
        }
        let mapped = Packet::offering_datagrams(7, "[::ffff:127.0.0.1]:53".parse().expect("an address"));
        assert_eq!(mapped.other_end(), "127.0.0.1:53".parse().ok());
        assert_eq!(Packet::new(Kind::Offer, 7).other_end(), None);
    }

    #[test]
    fn packets_are_decoded_as_encoded_and_invalid_bytes_are_refused() {
        let packet =
            Packet { kind: Kind::Answer, code: 1, number: 7, token: u64::MAX, first: 2, second: 1 << 40 };
        assert_eq!(Packet::decode(&packet.encode()), Some(packet));
        assert_eq!(Packet::decode(&packet.encode()[1..]), None);
        assert_eq!(Packet::decode(&[0; PACKET_BYTES]), None);
        assert_eq!(Packet::decode(&[24; PACKET_BYTES]), None);
    }
}
