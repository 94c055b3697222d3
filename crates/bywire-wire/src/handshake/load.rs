//! How much work strangers can cause: handshakes are counted in buckets, whose number is constant.

use crate::planted::{self, Bug};

/// Handshakes that may follow each other at this interval without end: 500 in a second are a tenth of a core.
const INTERVAL_NS: u64 = 2_000_000;
/// Handshakes that may come at once.
const BURST: u64 = 64;
/// So many of them at once are load: from then on an address has to be proved.
const LOAD: u64 = 32;
/// Handshakes of one address under load, as WireGuard has them: 20 in a second, 5 at once.
const SOURCE_INTERVAL_NS: u64 = 50_000_000;
const SOURCE_BURST: u64 = 5;

/// A bucket that empties at a constant rate.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    empty_at_ns: u64,
}

impl Bucket {
    fn level(&self, now_ns: u64, interval_ns: u64) -> u64 {
        self.empty_at_ns.saturating_sub(now_ns).div_ceil(interval_ns)
    }

    /// Puts one in. `false`: it is full.
    fn put(&mut self, now_ns: u64, interval_ns: u64, burst: u64) -> bool {
        if self.level(now_ns, interval_ns) >= burst {
            return false;
        }
        self.empty_at_ns = self.empty_at_ns.max(now_ns).saturating_add(interval_ns);
        true
    }
}

/// The buckets.
#[derive(Debug)]
pub struct Load {
    all: Bucket,
    /// By the first byte of an address's cookie, which nobody can choose.
    sources: Box<[Bucket; 256]>,
}

impl Default for Load {
    fn default() -> Self {
        Self { all: Bucket::default(), sources: Box::new([Bucket::default(); 256]) }
    }
}

impl Load {
    /// Has an address to be proved first?
    pub fn is_high(&self, now_ns: u64) -> bool {
        self.all.level(now_ns, INTERVAL_NS) >= LOAD && !planted::is(Bug::LoadIgnored)
    }

    /// May the work of one handshake be done now?
    pub fn admit(&mut self, now_ns: u64) -> bool {
        self.all.put(now_ns, INTERVAL_NS, BURST) || planted::is(Bug::LoadIgnored)
    }

    /// May it, for a proved address whose cookie begins with this byte?
    pub fn admit_source(&mut self, now_ns: u64, source: u8) -> bool {
        self.sources[usize::from(source)].put(now_ns, SOURCE_INTERVAL_NS, SOURCE_BURST) && self.admit(now_ns)
    }
}
