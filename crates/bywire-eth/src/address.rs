//! Hardware addresses. A node's address follows from its name: no switch has to learn it, and no other node can claim
//! it.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

/// The number of addresses of a node of the fabric in a network.
pub const PLACES: u16 = 1024;

/// The address of an Ethernet interface, in the order of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// The broadcast address, `ff:ff:ff:ff:ff:ff`.
    pub const BROADCAST: MacAddress = MacAddress([0xFF; 6]);

    /// The address of the node called `name`: the byte `02` and the first 40 bits of the name's SHA-256. `02` marks a
    /// unicast, locally administered address. Among a thousand nodes, the chance that two share an address is 1 in 2
    /// million.
    pub fn of_node(name: &str) -> MacAddress {
        let hash = Sha256::digest(name.as_bytes());
        MacAddress([0x02, hash[0], hash[1], hash[2], hash[3], hash[4]])
    }

    /// The address at one of [`PLACES`] places of a node of the fabric. The fabric vouches for the node's name, so other
    /// nodes know all addresses that a node may have, and none of them belongs to another node by more than chance.
    pub fn of_place(network: &str, node: &str, place: u16) -> MacAddress {
        // No name has a slash.
        MacAddress::of_node(&format!("fabric/{network}/{node}/{place}"))
    }

    /// The target address of a frame; `None` for fewer than six bytes.
    pub fn target_of(frame: &[u8]) -> Option<MacAddress> {
        frame.first_chunk().copied().map(MacAddress)
    }

    /// The source address that a frame states; `None` for fewer than twelve bytes.
    pub fn source_of(frame: &[u8]) -> Option<MacAddress> {
        frame.get(6..)?.first_chunk().copied().map(MacAddress)
    }

    /// True for group addresses, broadcast included. A frame's source must not be such an address.
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// True for `ff:ff:ff:ff:ff:ff`.
    pub fn is_broadcast(self) -> bool {
        self == MacAddress::BROADCAST
    }

    /// True for a locally administered address, false for one that a manufacturer assigned.
    pub const fn is_local(self) -> bool {
        self.0[0] & 2 != 0
    }

    /// True for `01-80-C2-00-00-00` to `-0F`, which bridges must not forward (IEEE 802.1Q, table 8-1). Spanning
    /// trees, pause frames, link aggregation and LLDP use them between the two ends of one wire.
    pub const fn is_link_local_control(self) -> bool {
        matches!(self.0, [0x01, 0x80, 0xC2, 0, 0, 0..=0x0F])
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, f] = self.0;
        write!(out, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
    }
}

/// A text that is not a hardware address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a hardware address: write six pairs of hexadecimal digits, as in 02:1f:3a:00:5b:c7")]
pub struct MacAddressError(String);

impl FromStr for MacAddress {
    type Err = MacAddressError;

    /// Parses six pairs of hexadecimal digits, separated by `:` throughout or by `-` throughout.
    fn from_str(text: &str) -> Result<MacAddress, MacAddressError> {
        let wrong = || MacAddressError(text.chars().take(40).collect());
        let separator = if text.contains('-') { '-' } else { ':' };
        let mut address = [0; 6];
        let mut pairs = text.split(separator);
        for byte in &mut address {
            let pair = pairs.next().filter(|pair| pair.len() == 2).ok_or_else(wrong)?;
            if !pair.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(wrong());
            }
            *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
        }
        pairs.next().is_none().then_some(MacAddress(address)).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_nodes_are_unicast_local_and_unique() {
        let one = MacAddress::of_node("one");
        // printf one | sha256sum
        assert_eq!(one.to_string(), "02:76:92:c3:ad:35");
        assert!(one.is_local() && !one.is_multicast() && !one.is_link_local_control());
        assert_ne!(one, MacAddress::of_node("two"));
    }

    #[test]
    fn addresses_are_parsed_and_printed() {
        let address = MacAddress([0x02, 0xAB, 0, 9, 0xFF, 0x10]);
        assert_eq!(address.to_string().parse(), Ok(address));
        assert_eq!("02-ab-00-09-FF-10".parse(), Ok(address));
        let wrong = ["", "02:ab:00:09:ff", "02:ab:00:09:ff:10:00", "2:ab:00:09:ff:10", "02:ab:00:09:ff:1g"];
        let wronger = ["02:ab-00:09:ff:10", "+2:ab:00:09:ff:10", "é:ab:00:09:ff:10", "02ab0009ff10"];
        for text in wrong.into_iter().chain(wronger) {
            assert!(text.parse::<MacAddress>().is_err(), "{text}");
        }
    }

    #[test]
    fn multicast_and_link_local_addresses_are_recognised() {
        assert!(MacAddress::BROADCAST.is_multicast() && MacAddress::BROADCAST.is_broadcast());
        let control = |last| MacAddress([0x01, 0x80, 0xC2, 0, 0, last]);
        assert!(control(0).is_link_local_control() && control(0x0F).is_link_local_control());
        assert!(!control(0x10).is_link_local_control() && control(0x10).is_multicast());
    }

    #[test]
    fn addresses_of_a_frame_are_read_or_missing() {
        let frame: Vec<u8> = (0..14).collect();
        assert_eq!(MacAddress::target_of(&frame), Some(MacAddress([0, 1, 2, 3, 4, 5])));
        assert_eq!(MacAddress::source_of(&frame), Some(MacAddress([6, 7, 8, 9, 10, 11])));
        assert_eq!((MacAddress::target_of(&frame[..5]), MacAddress::source_of(&frame[..11])), (None, None));
    }
}
