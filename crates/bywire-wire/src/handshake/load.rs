//! Limits the work that strangers can cause: handshakes are counted in a constant number of buckets.

use crate::bucket::Bucket;
use crate::planted::{self, Bug};

/// The sustained interval of handshakes: 500 in a second use a tenth of a core.
const INTERVAL_NS: u64 = 2_000_000;
/// The most handshakes in a burst.
const BURST: u64 = 64;
/// The handshakes in a burst that count as load. From then on an address has to be proved.
const LOAD: u64 = 32;
/// The limits of one address under load, as in WireGuard: 20 in a second, 5 at once.
const SOURCE_INTERVAL_NS: u64 = 50_000_000;
const SOURCE_BURST: u64 = 5;

/// The buckets.
#[derive(Debug)]
pub struct Load {
    all: Bucket,
    /// By the first byte of an address's cookie, which no sender can choose.
    sources: Box<[Bucket; 256]>,
}

impl Default for Load {
    fn default() -> Self {
        Self { all: Bucket::default(), sources: Box::new([Bucket::default(); 256]) }
    }
}

impl Load {
    /// Does an address have to be proved first?
    pub fn is_high(&self, now_ns: u64) -> bool {
        self.all.level(now_ns, INTERVAL_NS) >= LOAD && !planted::is(Bug::LoadIgnored)
    }

    /// May one handshake be processed now?
    pub fn admit(&mut self, now_ns: u64) -> bool {
        self.all.put(now_ns, INTERVAL_NS, BURST) || planted::is(Bug::LoadIgnored)
    }

    /// May one be processed for a proved address whose cookie begins with this byte?
    pub fn admit_source(&mut self, now_ns: u64, source: u8) -> bool {
        self.sources[usize::from(source)].put(now_ns, SOURCE_INTERVAL_NS, SOURCE_BURST) && self.admit(now_ns)
    }
}
