//! What programs and the service say to each other: packets of one size on a Unix socket.

/// The length of every packet.
pub const PACKET_BYTES: usize = 40;
/// The length of a program's page.
pub const PAGE_BYTES: usize = 4096;
/// In `Hello`: the version of all that is said here, and of the segments that are exchanged.
pub const VERSION: u64 = 0x6277_7000_0000_0005;
/// The variable that tells programs where the service listens.
pub const SERVICE_VARIABLE: &str = "BYWIRE_SOCKETS_SERVICE";
/// `0`: the library never spins before it sleeps.
pub const SPIN_VARIABLE: &str = "BYWIRE_SOCKETS_SPIN";
/// `1`: programs may use io_uring, and are not carried once they do.
pub const IO_URING_VARIABLE: &str = "BYWIRE_SOCKETS_IO_URING";
/// After how many calls that move data a connection is worth an offer.
pub const CALLS_VARIABLE: &str = "BYWIRE_SOCKETS_CALLS";
/// The file with the tokens of those who spin, which all programs of one user share.
pub const CORES_VARIABLE: &str = "BYWIRE_SOCKETS_CORES";
/// The file that the library adds a line to for whatever becomes of a connection.
pub const LOG_VARIABLE: &str = "BYWIRE_LOG";
/// The longest name of that file.
pub const LOG_PATH_BYTES_MAX: usize = 255;
/// A directory that the library makes as soon as it is loaded, so that whoever has started the program knows. It stands in
/// one of theirs, which goes when they do.
pub const LOADED_VARIABLE: &str = "BYWIRE_SOCKETS_LOADED";
/// How long a program waits for an answer before it does without.
pub const PATIENCE_MS: i32 = 20;

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $number:literal,)*) => {
        /// What a packet is about.
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
    /// A program's first: `number` its process, `first` the [`VERSION`]; with its bell and the page that says whether
    /// it sleeps on it.
    Hello = 1,
    /// May an offer follow? No offer is sent before the answer, so that none waits in a queue for a service that sleeps.
    Ask = 2,
    /// It may, now: `token` as in the question.
    Go = 3,
    /// `token` names it; with the descriptors of the connection and of the program's segment.
    Offer = 4,
    /// To an offer: `code` is a [`Verdict`]; `number` the peer. When paired, with the peer's segment,
    /// bell and page. With a peer of another user, `first` names the [`Kind::Bell`] that it rings here, and its own bell is
    /// of that kind; else 0.
    Answer = 5,
    /// The offer, or what became of it, is over: `first` bytes were sent and `second` received in memory.
    End = 6,
    /// `first` connections were not carried for the reason `code`.
    Note = 7,
    /// From whoever wants to know.
    Status = 8,
    /// To that: `code` is a [`crate::reason::Reason`], or names a count of [`crate::status`].
    Count = 9,
    /// After the last count.
    Done = 10,
    /// `token` names a bell that comes with this: programs of some other user ring it, and nobody else has it.
    Bell = 11,
    /// The program ends in order, or becomes another one. Of one that goes without this word, whatever was carried is cut.
    /// Over what it had not ended, `first` bytes were sent in memory; `second` ends of that have sent or received some.
    Leave = 12,
    /// The bell `token` is withdrawn: no connection with programs of that user is left.
    Withdraw = 13,
    /// The program has closed the bell `token`. The service keeps its own copy until then, so that nobody can hold the
    /// program up as it closes it.
    Withdrawn = 14,
}

/// What became of an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Verdict {
    /// The other end has not been offered yet.
    Waiting = 0,
    /// Here it is.
    Paired = 1,
    /// Never: not an established TCP connection.
    Refused = 2,
    /// Never: bound to an interface.
    Device = 3,
    /// Never: the same addresses were offered from two namespaces.
    Namespace = 4,
    /// Not now: too many offers wait.
    Full = 5,
    /// The other end was offered meanwhile: offer this one once more, so that each was seen while the other one was there.
    Again = 6,
    /// Never: the other end is another user's, and there is no bell between them.
    Foreign = 7,
}

impl Verdict {
    /// The one with this number.
    pub fn of(number: u8) -> Option<Self> {
        let first = [Self::Waiting, Self::Paired, Self::Refused, Self::Device];
        let rest = [Self::Namespace, Self::Full, Self::Again, Self::Foreign];
        first.into_iter().chain(rest).find(|verdict| *verdict as u8 == number)
    }
}

/// A packet; what its fields mean depends on [`Kind`].
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
    /// With noughts in all other fields.
    pub const fn new(kind: Kind, token: u64) -> Self {
        Self { kind, code: 0, number: 0, token, first: 0, second: 0 }
    }

    /// Its bytes.
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

    /// Out of what has been received.
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
    fn packets_survive_their_bytes_and_garbage_does_not_become_one() {
        let packet =
            Packet { kind: Kind::Answer, code: 1, number: 7, token: u64::MAX, first: 2, second: 1 << 40 };
        assert_eq!(Packet::decode(&packet.encode()), Some(packet));
        assert_eq!(Packet::decode(&packet.encode()[1..]), None);
        assert_eq!(Packet::decode(&[0; PACKET_BYTES]), None);
        assert_eq!(Packet::decode(&[15; PACKET_BYTES]), None);
    }
}
