//! Which IP addresses a frame claims for its sender: those that it comes from, and those that other machines would send to its sender
//! from then on.
//!
//! A frame that could hide such a claim is unparsable: a header that is cut off, more headers than real frames have, or a
//! neighbour message in fragments (RFC 6980 forbids these). What Linux strips before it looks for IP and ARP is passed over here.

use std::net::{IpAddr, Ipv4Addr};

use crate::frame::{
    ETHERNET_HEADER_BYTES, EXTENSION_AUTHENTICATION, EXTENSION_DESTINATION, EXTENSION_FRAGMENT,
    EXTENSION_HOP_BY_HOP, EXTENSION_ROUTING, EXTENSIONS_MAX, IPV6_HEADER_BYTES, PROTOCOL_ICMPV6, TYPE_ARP,
    TYPE_IPV4, TYPE_IPV6, TYPE_RARP, TYPE_SERVICE_VLAN, TYPE_VLAN, word,
};

/// The most addresses that one frame claims: a redirect does.
pub const CLAIMS_MAX: usize = 3;
/// More tags than real frames have. Linux strips any number of them whose VLAN is 0.
const TAGS_MAX: usize = 8;

/// The types of tags, with those that switches used before 802.1ad.
const TYPES_OF_TAGS: [u16; 5] = [TYPE_VLAN, TYPE_SERVICE_VLAN, 0x9100, 0x9200, 0x9300];
/// A smaller type is the length of an 802.3 frame, whose LLC header follows.
const TYPE_MIN: u16 = 0x0600;

/// The LLC header before SNAP.
const LLC_SNAP: [u8; 3] = [0xAA, 0xAA, 0x03];
/// Codes of LLC for IP, ARP and SNAP. Nobody sends the first two, nor SNAP with another header.
const LLC_SUSPECTS: [u8; 3] = [0x06, 0x98, 0xAA];
/// Organisations whose SNAP codes are EtherTypes: RFC 1042 and 802.1H.
const SNAP_ETHERTYPES: [[u8; 3]; 2] = [[0; 3], [0, 0, 0xF8]];

const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;

/// A frame whose claims cannot be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unparsable;

/// The addresses that a frame claims.
#[derive(Clone, Copy, Debug)]
pub struct Claims {
    ips: [IpAddr; CLAIMS_MAX],
    count: usize,
}

impl Claims {
    const NONE: Claims = Claims { ips: [IpAddr::V4(Ipv4Addr::UNSPECIFIED); CLAIMS_MAX], count: 0 };

    /// The claims of a whole frame.
    ///
    /// # Errors
    /// [`Unparsable`].
    pub fn of(frame: &[u8]) -> Result<Claims, Unparsable> {
        let mut claims = Claims::NONE;
        claims.add_all(frame).ok_or(Unparsable)?;
        Ok(claims)
    }

    /// The addresses.
    pub fn ips(&self) -> &[IpAddr] {
        &self.ips[..self.count]
    }

    // `None` means that the frame is unparsable.
    fn add_all(&mut self, frame: &[u8]) -> Option<()> {
        let (kind, packet) = untagged(frame)?;
        match kind {
            TYPE_IPV4 => {
                let header: &[u8; 20] = packet.first_chunk()?;
                self.add(address::<4>(header, 12)?);
                (header[0] >> 4 == 4).then_some(())
            }
            TYPE_IPV6 => self.add_ipv6(packet),
            TYPE_ARP | TYPE_RARP => self.add_arp(packet),
            _ => Some(()),
        }
    }

    fn add_arp(&mut self, packet: &[u8]) -> Option<()> {
        // IPv4 over addresses of six bytes. Nobody resolves anything else by ARP.
        if packet.get(2..6)? != [8, 0, 6, 4] {
            return None;
        }
        let [sender, target] = [address::<4>(packet, 14)?, address::<4>(packet, 24)?];
        // A probe asks whether anybody has the target, which its sender is going to use.
        self.add(if sender.is_unspecified() { target } else { sender });
        Some(())
    }

    fn add_ipv6(&mut self, packet: &[u8]) -> Option<()> {
        let header: &[u8; IPV6_HEADER_BYTES] = packet.first_chunk()?;
        if header[0] >> 4 != 6 {
            return None;
        }
        let source = address::<16>(header, 8)?;
        self.add(source);
        let (mut protocol, mut rest) = (header[6], &packet[IPV6_HEADER_BYTES..]);
        let mut is_fragment = false;
        for _ in 0..EXTENSIONS_MAX {
            let length = match protocol {
                EXTENSION_HOP_BY_HOP | EXTENSION_ROUTING | EXTENSION_DESTINATION => {
                    8 + 8 * usize::from(*rest.get(1)?)
                }
                EXTENSION_AUTHENTICATION => 8 + 4 * usize::from(*rest.get(1)?),
                EXTENSION_FRAGMENT => {
                    // A later fragment has no headers.
                    if word(rest, 2)? & 0xFFF8 != 0 {
                        return Some(());
                    }
                    is_fragment = true;
                    8
                }
                PROTOCOL_ICMPV6 => return self.add_neighbours(source, rest, is_fragment),
                _ => return Some(()),
            };
            (protocol, rest) = (*rest.first()?, rest.get(length..)?);
        }
        None
    }

    /// Adds the claims of messages of neighbour discovery. A link-layer address in their options belongs to the source of a
    /// solicitation, and to the target of others.
    fn add_neighbours(&mut self, source: IpAddr, message: &[u8], is_fragment: bool) -> Option<()> {
        let kind = *message.first()?;
        if !(SOLICITATION..=REDIRECT).contains(&kind) {
            return Some(());
        }
        if is_fragment {
            return None;
        }
        let target = address::<16>(message, 8)?;
        match kind {
            // Without a source it asks whether anybody has the target, which its sender is going to use.
            SOLICITATION if !source.is_unspecified() => {}
            SOLICITATION | ADVERTISEMENT => self.add(target),
            _ => {
                self.add(target);
                self.add(address::<16>(message, 24)?);
            }
        }
        Some(())
    }

    fn add(&mut self, ip: IpAddr) {
        if let Some(free) = self.ips.get_mut(self.count) {
            *free = ip.to_canonical();
            self.count += 1;
        }
    }
}

/// The type of a frame's packet and the packet, behind VLAN tags and LLC headers. `None`: they do not end.
fn untagged(frame: &[u8]) -> Option<(u16, &[u8])> {
    let (mut kind, mut rest) = (word(frame, 12)?, frame.get(ETHERNET_HEADER_BYTES..)?);
    for _ in 0..=TAGS_MAX {
        if TYPES_OF_TAGS.contains(&kind) {
            (kind, rest) = (word(rest, 2)?, rest.get(4..)?);
        } else if kind >= TYPE_MIN {
            return Some((kind, rest));
        } else {
            let llc: &[u8; 3] = rest.first_chunk()?;
            if *llc != LLC_SNAP {
                // Another protocol of LLC carries no IP addresses.
                return (!LLC_SUSPECTS.contains(&(llc[0] & !1))).then_some((kind, rest));
            }
            let organisation: &[u8; 3] = rest.get(3..)?.first_chunk()?;
            if !SNAP_ETHERTYPES.contains(organisation) {
                return Some((0, rest));
            }
            (kind, rest) = (word(rest, 6)?, rest.get(8..)?);
        }
    }
    None
}

/// The address of `BYTES` bytes at an offset.
fn address<const BYTES: usize>(bytes: &[u8], offset: usize) -> Option<IpAddr>
where
    IpAddr: From<[u8; BYTES]>,
{
    bytes.get(offset..)?.first_chunk::<BYTES>().copied().map(IpAddr::from)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    const HOST: [u8; 4] = [10, 77, 0, 2];
    const HOST_V6: Ipv6Addr = Ipv6Addr::new(0xFD77, 0, 0, 0, 0, 0, 0, 2);
    const TARGET: Ipv6Addr = Ipv6Addr::new(0xFD77, 0, 0, 0, 0, 0, 0, 3);
    const OTHER: Ipv6Addr = Ipv6Addr::new(0xFD77, 0, 0, 0, 0, 0, 0, 4);

    /// A frame whose type and what follows are these.
    fn frame(rest: &[&[u8]]) -> Vec<u8> {
        [&[2; 12][..], &rest.concat()].concat()
    }

    fn ipv4() -> Vec<u8> {
        [&[8, 0, 0x45, 0, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0][..], &HOST, &[255; 4]].concat()
    }

    fn arp(operation: u8, sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
        let start = [8, 6, 0, 1, 8, 0, 6, 4, 0, operation, 2, 2, 2, 2, 2, 2];
        [&start[..], &sender, &[0; 6], &target].concat()
    }

    fn ipv6(source: Ipv6Addr, next: u8, rest: &[&[u8]]) -> Vec<u8> {
        let start = [0x86, 0xDD, 0x60, 0, 0, 0, 0, 0, next, 255];
        [&start[..], &source.octets(), &[0xFF; 16], &rest.concat()].concat()
    }

    fn message(kind: u8) -> Vec<u8> {
        [&[kind, 0, 0, 0, 0x20, 0, 0, 0][..], &TARGET.octets(), &OTHER.octets()].concat()
    }

    fn claims(frame: &[u8]) -> Result<Vec<IpAddr>, Unparsable> {
        Claims::of(frame).map(|claims| claims.ips().to_vec())
    }

    #[test]
    fn the_source_of_a_packet_and_the_sender_of_arp_are_claimed() {
        assert_eq!(claims(&frame(&[&ipv4()])), Ok(vec![HOST.into()]));
        assert_eq!(claims(&frame(&[&ipv6(HOST_V6, 17, &[])])), Ok(vec![HOST_V6.into()]));
        for operation in [1, 2, 8] {
            assert_eq!(claims(&frame(&[&arp(operation, HOST, [9; 4])])), Ok(vec![HOST.into()]));
        }
        let probe = arp(1, [0; 4], HOST);
        assert_eq!(claims(&frame(&[&probe])), Ok(vec![HOST.into()]), "it is going to use it");
        let mapped = Ipv6Addr::from_bits(0xFFFF << 32 | u128::from(u32::from_be_bytes(HOST)));
        assert_eq!(claims(&frame(&[&ipv6(mapped, 17, &[])])), Ok(vec![HOST.into()]));
        assert_eq!(claims(&frame(&[&[0x88, 0xB5], &[7; 50]])), Ok(Vec::new()), "neither IP nor ARP");
    }

    #[test]
    fn neighbour_messages_claim_what_they_say_the_link_address_of() {
        let claimed = |source, kind| claims(&frame(&[&ipv6(source, 58, &[&message(kind)])]));
        let [host, target, other] = [HOST_V6, TARGET, OTHER].map(IpAddr::from);
        let none = IpAddr::from(Ipv6Addr::UNSPECIFIED);
        assert_eq!(claimed(HOST_V6, SOLICITATION), Ok(vec![host]), "it asks for another's");
        assert_eq!(claimed(Ipv6Addr::UNSPECIFIED, SOLICITATION), Ok(vec![none, target]));
        assert_eq!(claimed(HOST_V6, ADVERTISEMENT), Ok(vec![host, target]));
        assert_eq!(claimed(HOST_V6, REDIRECT), Ok(vec![host, target, other]));
        assert_eq!(claimed(HOST_V6, 128), Ok(vec![host]));
    }

    #[test]
    fn claims_are_found_behind_tags_snap_and_extensions() {
        let tags = |kind: [u8; 2], count: usize| [&kind[..], &[0, 0]].concat().repeat(count);
        for kind in [[0x81, 0], [0x88, 0xA8], [0x91, 0]] {
            for count in 1..=TAGS_MAX {
                let tagged = frame(&[&tags(kind, count), &arp(2, HOST, [9; 4])]);
                assert_eq!(claims(&tagged), Ok(vec![HOST.into()]), "{count}");
            }
            assert_eq!(claims(&frame(&[&tags(kind, TAGS_MAX + 1), &ipv4()])), Err(Unparsable));
            assert_eq!(claims(&frame(&[&kind, &[0; 3]])), Err(Unparsable));
        }
        for organisation in SNAP_ETHERTYPES {
            let llc = [&[0, 50][..], &LLC_SNAP, &organisation].concat();
            assert_eq!(claims(&frame(&[&llc, &ipv4()])), Ok(vec![HOST.into()]));
            assert_eq!(claims(&frame(&[&tags([0x81, 0], 2), &llc, &ipv4()])), Ok(vec![HOST.into()]));
            assert_eq!(claims(&frame(&[&llc, &[8]])), Err(Unparsable));
        }
        let extensions = [[43, 0, 0, 0, 0, 0, 0, 0], [60, 0, 0, 0, 0, 0, 0, 0], [58, 0, 0, 0, 0, 0, 0, 0]];
        let advertised = ipv6(HOST_V6, 0, &[&extensions.concat(), &message(ADVERTISEMENT)]);
        assert_eq!(claims(&frame(&[&advertised])), Ok(vec![HOST_V6.into(), TARGET.into()]));
        // The length of an authentication header is in other units.
        let advertised =
            ipv6(HOST_V6, 51, &[&[58, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &message(ADVERTISEMENT)]);
        assert_eq!(claims(&frame(&[&advertised])), Ok(vec![HOST_V6.into(), TARGET.into()]));
    }

    #[test]
    fn whatever_could_hide_a_claim_is_unparsable() {
        let advertisement = message(ADVERTISEMENT);
        let fragment = |offset: u8| [58, 0, 0, offset, 0, 0, 0, 1];
        let hidden = [
            vec![8, 0, 0x45],
            [&[8, 0, 0x65][..], &[0; 40]].concat(),
            arp(2, HOST, [9; 4])[..29].to_vec(),
            [&[8, 6, 0, 1, 8, 0, 8, 4][..], &[0; 40]].concat(),
            vec![0x86, 0xDD, 0x60],
            ipv6(HOST_V6, 58, &[]),
            ipv6(HOST_V6, 58, &[&advertisement[..23]]),
            ipv6(HOST_V6, 58, &[&message(REDIRECT)[..39]]),
            ipv6(HOST_V6, 60, &[&[58, 9, 0, 0, 0, 0, 0, 0], &advertisement]),
            ipv6(HOST_V6, 44, &[&fragment(1), &advertisement]),
            ipv6(HOST_V6, 44, &[&fragment(0), &advertisement]),
            ipv6(HOST_V6, 44, &[&fragment(1)]),
            ipv6(HOST_V6, 60, &[&[60, 0, 0, 0, 0, 0, 0, 0].repeat(9), &advertisement]),
            [&[0, 50, 0x06, 0x06, 0x03][..], &ipv4()[2..]].concat(),
            vec![0, 1, 0xAA],
            Vec::new(),
        ];
        for rest in hidden {
            assert_eq!(claims(&frame(&[&rest])), Err(Unparsable), "{rest:02x?}");
        }
        // Later fragments and long echoes are honest, and so are other protocols of LLC.
        for rest in
            [ipv6(HOST_V6, 44, &[&fragment(8), &[0; 50]]), ipv6(HOST_V6, 44, &[&fragment(1), &message(128)])]
        {
            assert_eq!(claims(&frame(&[&rest])), Ok(vec![HOST_V6.into()]));
        }
        assert_eq!(claims(&frame(&[&[0, 38, 0x42, 0x42, 0x03], &[0; 35]])), Ok(Vec::new()));
    }
}
