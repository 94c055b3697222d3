//! Limits the work that handshakes cause. Strangers have one budget, and the nodes of the table another one: whoever floods a node
//! does not keep the others out. Handshakes are counted in a constant number of buckets.

use std::net::IpAddr;

use crate::bucket::Bucket;
use crate::planted::{self, Bug};

use super::macs::MAC_BYTES;

/// The sustained interval of handshakes in each budget: 500 in a second use a tenth of a core.
const INTERVAL_NS: u64 = 2_000_000;
/// The most handshakes of a budget in a burst.
const BURST: u64 = 64;
/// The handshakes of strangers in a burst that count as load. From then on an address has to be proved.
const LOAD: u64 = 32;
/// The limits of one address under load, as in WireGuard: 20 in a second, 5 at once.
const SOURCE_INTERVAL_NS: u64 = 50_000_000;
const SOURCE_BURST: u64 = 5;
/// The limits of cookies: 20,000 in a second.
const COOKIE_INTERVAL_NS: u64 = 50_000;
const COOKIE_BURST: u64 = 1000;
/// The buckets of each level of sources. Each source has two of them, of which the emptier one counts. So some sources that have
/// filled theirs keep few others out.
const BUCKETS: usize = 4096;

/// A network whose addresses are counted together: somebody who has one of them may have all. A wider one has a larger limit.
struct Level {
    /// The bits of an address that name the network.
    v4_bits: u32,
    v6_bits: u32,
    /// How many times the limit of one address it has.
    factor: u64,
}

const LEVELS: [Level; 3] = [
    Level { v4_bits: 32, v6_bits: 64, factor: 1 },
    Level { v4_bits: 24, v6_bits: 56, factor: 2 },
    Level { v4_bits: 16, v6_bits: 48, factor: 4 },
];

/// Hashes of the networks of an address, from the narrowest to the widest. No sender can choose them.
pub type SourceHashes = [[u8; MAC_BYTES]; LEVELS.len()];

/// The networks of an address, as bytes that differ between levels and families.
pub fn networks(ip: IpAddr) -> [[u8; 18]; LEVELS.len()] {
    let (family, bits) = match ip.to_canonical() {
        IpAddr::V4(ip) => (4, u128::from(ip.to_bits()) << 96),
        IpAddr::V6(ip) => (6, ip.to_bits()),
    };
    std::array::from_fn(|at| {
        let count = if family == 4 { LEVELS[at].v4_bits } else { LEVELS[at].v6_bits };
        let network = bits & (u128::MAX << (128 - count));
        let mut bytes = [0; 18];
        (bytes[0], bytes[1]) = (at as u8, family);
        bytes[2..].copy_from_slice(&network.to_be_bytes());
        bytes
    })
}

/// The buckets.
#[derive(Default)]
pub struct Load {
    strangers: Bucket,
    nodes: Bucket,
    answers: Bucket,
    /// Cookies to strangers and to nodes.
    cookies: [Bucket; 2],
    /// One part for each level. They are made when a stranger has proved an address.
    sources: Vec<Bucket>,
}

impl Load {
    /// Does an address have to be proved first?
    pub fn is_high(&self, now_ns: u64) -> bool {
        self.strangers.level(now_ns, INTERVAL_NS) >= LOAD && !planted::is(Bug::LoadIgnored)
    }

    /// May the handshake of somebody be processed now who has proved nothing?
    pub fn admit(&mut self, now_ns: u64) -> bool {
        self.strangers.put(now_ns, INTERVAL_NS, BURST) || planted::is(Bug::LoadIgnored)
    }

    /// May that of a stranger be processed who has proved an address?
    pub fn admit_source(&mut self, now_ns: u64, hashes: &SourceHashes) -> bool {
        self.sources.resize(BUCKETS * LEVELS.len(), Bucket::default());
        let limits = |at: usize| {
            let factor = LEVELS[at].factor;
            (SOURCE_INTERVAL_NS / factor, SOURCE_BURST * factor)
        };
        let places: [[usize; 2]; LEVELS.len()] = std::array::from_fn(|at| {
            let [a, b, c, d, ..] = hashes[at];
            [[a, b], [c, d]].map(|hash| at * BUCKETS + usize::from(u16::from_le_bytes(hash)) % BUCKETS)
        });
        let levels: [[u64; 2]; LEVELS.len()] =
            std::array::from_fn(|at| places[at].map(|place| self.sources[place].level(now_ns, limits(at).0)));
        let least = levels.map(|[one, other]| one.min(other));
        let has_room = least.iter().enumerate().all(|(at, level)| *level < limits(at).1);
        if !has_room || !self.admit(now_ns) {
            return false;
        }
        for (at, [one, other]) in places.into_iter().enumerate() {
            // The fuller one of two counts others that are not in the emptier one.
            if levels[at][0] == least[at] {
                self.sources[one].add(now_ns, limits(at).0, 1);
            }
            if levels[at][1] == least[at] && one != other {
                self.sources[other].add(now_ns, limits(at).0, 1);
            }
        }
        true
    }

    /// May that of somebody be processed who has proved an address of a node? `of_address` counts those of this address.
    pub fn admit_node(&mut self, now_ns: u64, of_address: &mut Bucket) -> bool {
        of_address.put(now_ns, SOURCE_INTERVAL_NS, SOURCE_BURST) && self.nodes.put(now_ns, INTERVAL_NS, BURST)
    }

    /// May an answer to a hello of this node be processed? It bears the number of that hello, which strangers do not know.
    pub fn admit_answer(&mut self, now_ns: u64) -> bool {
        self.answers.put(now_ns, INTERVAL_NS, BURST)
    }

    /// May a cookie be sent to a stranger, or to an address of a node?
    pub fn may_send_cookie(&mut self, now_ns: u64, is_node: bool) -> bool {
        self.cookies[usize::from(is_node)].put(now_ns, COOKIE_INTERVAL_NS, COOKIE_BURST)
    }
}

impl std::fmt::Debug for Load {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The many buckets of sources are always as many.
        formatter.debug_struct("Load").field("strangers", &self.strangers).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handshake::macs::MacKey;

    fn hashes(ip: IpAddr) -> SourceHashes {
        networks(ip).map(|network| MacKey::new(b"secret").mac(&network))
    }

    /// How many handshakes are admitted in ten seconds, of all and of the last address, if these addresses take turns.
    fn admitted(addresses: &[IpAddr], in_a_second: u64) -> [usize; 2] {
        let mut load = Load::default();
        let mut counts = [0, 0];
        for turn in 0..10 * in_a_second {
            let now_ns = 1_000_000_000 + turn * 1_000_000_000 / in_a_second;
            let place = turn as usize % addresses.len();
            if load.admit_source(now_ns, &hashes(addresses[place])) {
                counts[0] += 1;
                counts[1] += usize::from(place + 1 == addresses.len());
            }
        }
        counts
    }

    fn v6(front: u64) -> IpAddr {
        std::net::Ipv6Addr::from_bits(u128::from(front) << 64 | 7).into()
    }

    #[test]
    fn a_network_has_no_more_than_its_share_however_many_addresses_it_has() {
        let [all, _] = admitted(&[IpAddr::from([198, 51, 100, 1])], 1000);
        assert!((195..=206).contains(&all), "20 in a second: {all}");
        // As many addresses as there are in a /64, a /56 and a /48 are one, two and four sources.
        for (networks, limit) in [(0..1, 20), (0..256, 40), (0..65_536, 80)] {
            let addresses: Vec<_> = networks.map(|network| v6(0x2001_0db8_0001_0000 | network)).collect();
            let [all, _] = admitted(&addresses, 1000);
            assert!(all <= 11 * limit, "{limit} in a second: {all}");
        }
        let addresses: Vec<_> = (0..=255).map(|host| IpAddr::from([198, 51, 100, host])).collect();
        let [all, _] = admitted(&addresses, 1000);
        assert!(all <= 11 * 40, "{all}");
    }

    #[test]
    fn sources_that_fill_their_buckets_keep_few_others_out() {
        let flooding = (0..200).map(|at| IpAddr::from([10, at, 0, 1]));
        let mut load = Load::default();
        let flooding: Vec<_> = flooding.map(hashes).collect();
        for hashes in flooding.iter().cycle().take(200 * 20) {
            // The budget of all is another bound.
            load.strangers = Bucket::default();
            load.admit_source(1_000_000_000, hashes);
        }
        let others = (0..1000u32).filter(|at| {
            load.strangers = Bucket::default();
            let [.., a, b] = at.to_be_bytes();
            load.admit_source(1_000_000_000, &hashes(IpAddr::from([192, a, b, 1])))
        });
        let count = others.count();
        // All of them are in a few networks of 16 bits, which are counted together.
        assert!(count > 4 * 15, "{count}");
        let far = (0..200).filter(|at| {
            load.strangers = Bucket::default();
            load.admit_source(1_000_000_000, &hashes(IpAddr::from([11, *at, 0, 1])))
        });
        let count = far.count();
        assert!(count >= 195, "of 200 networks {count} get in");
    }
}
