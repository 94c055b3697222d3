//! How often callers are refused. A refused caller costs the service time, whatever it has sent, and is on no user's account. So
//! only a bounded number is refused in a second. The others wait in the backlog, which is short.

use bywire_wire::bucket::Bucket;

/// The sustained interval of refusals: 8,000 in a second use a tenth of a core, and as much in threads that close sockets.
const INTERVAL_NS: u64 = 125_000;
/// The most refusals in a burst. After a burst, nobody is accepted until the bucket is half empty.
const BURST: u64 = 64;

/// The most callers that wait to be accepted. They are from all users, so each waits for the ones before it.
pub(super) const BACKLOG_MAX: i32 = 128;

/// The refusals of the last moments.
#[derive(Debug, Default)]
pub(super) struct Refusals(Bucket);

impl Refusals {
    /// Counts refused callers.
    pub(super) fn add(&mut self, now_ns: u64, count: u64) {
        self.0.add(now_ns, INTERVAL_NS, count);
    }

    /// How long nobody is accepted, after too many refusals.
    pub(super) fn pause_ns(&self, now_ns: u64) -> Option<u64> {
        let level = self.0.level(now_ns, INTERVAL_NS);
        (level >= BURST).then(|| (level - BURST / 2) * INTERVAL_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_without_a_pause_are_bounded_and_occasional_ones_cause_none() {
        const SECOND_NS: u64 = 1_000_000_000;
        let mut refusals = Refusals::default();
        let (mut now_ns, mut count) = (0, 0);
        while now_ns < SECOND_NS {
            match refusals.pause_ns(now_ns) {
                Some(pause_ns) => now_ns += pause_ns,
                None => {
                    refusals.add(now_ns, 1);
                    (now_ns, count) = (now_ns + 10_000, count + 1);
                }
            }
        }
        let most = SECOND_NS / INTERVAL_NS;
        assert!((most / 2..=most + BURST).contains(&count), "{count}");
        let mut refusals = Refusals::default();
        for number in 0..1000 {
            refusals.add(number * INTERVAL_NS, 1);
            assert_eq!(refusals.pause_ns(number * INTERVAL_NS), None);
        }
    }
}
