//! The scenario of a seed.

use std::fmt;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

pub const SECOND_NS: u64 = 1_000_000_000;
pub const MINUTE_NS: u64 = 60 * SECOND_NS;

/// The most machines. Those beyond the first ones join later.
pub const MACHINES: usize = 7;
/// The phases of a day, and the length of each.
pub const PHASES: u64 = 12;
pub const PHASE_NS: u64 = 120 * MINUTE_NS;
/// When a phase heals.
pub const HEALED_NS: u64 = 110 * MINUTE_NS;
/// After this time in a healed fabric all members use one fabric file, and both ends of each connection exist. Ports register
/// with a service again after 64 s at most, and a service knows 90 s after its start which connections have ended. Retries
/// for a node that did not answer are 16 s apart.
pub const SETTLED_NS: u64 = 200 * SECOND_NS;
/// After this time each member has a connection with each other one. A request that fails takes 5 s.
pub const MET_NS: u64 = 30 * SECOND_NS;
/// After this time no channel is left that nobody needs. The last packet of one may be repeated for a second.
pub const IDLE_NS: u64 = 150 * SECOND_NS;

/// Everything that differs between seeds. Chances are per 1,000 packets.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The machines of the fabric at first.
    pub members: usize,
    /// The time from one fault to the next, on average.
    pub fault_ns: u64,
    /// The time from one call of a program to the next, on average.
    pub call_ns: u64,
    /// How long a connection is kept, on average.
    pub kept_ns: u64,
    /// The time from one message to the next on a connection, on average.
    pub message_ns: u64,
    /// After this silence a connection is given up, unless the service of the peer says that it lives. 0: never.
    pub unreachable_after_ns: u64,
    /// The shortest and the longest time that a packet takes.
    pub delay_ns: [u64; 2],
    /// Packets that are lost, doubled and damaged during a bad time.
    pub bad: [u32; 3],
    /// Machines whose processors have no instructions for AES, one bit each.
    pub without_aes: u8,
}

impl Scenario {
    /// Expands a seed.
    pub fn of(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed ^ 0xfab);
        let delay_ns = random.random_range(50_000..50_000_000);
        Self {
            members: random.random_range(2..MACHINES),
            fault_ns: random.random_range(2 * MINUTE_NS..12 * MINUTE_NS),
            call_ns: random.random_range(4 * MINUTE_NS..30 * MINUTE_NS),
            kept_ns: random.random_range(20 * SECOND_NS..10 * MINUTE_NS),
            message_ns: random.random_range(5 * SECOND_NS..60 * SECOND_NS),
            unreachable_after_ns: [0, 30 * SECOND_NS][random.random_range(0..2)],
            delay_ns: [delay_ns, 2 * delay_ns],
            bad: [400, 200, 50].map(|most| random.random_range(0..most)),
            without_aes: random.random(),
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        let s = |ns: u64| ns / SECOND_NS;
        writeln!(
            formatter,
            "{} machines at first; on average a fault each {} s, a call each {} s, kept for {} s, a message each {} s; \
             unreachable after {} s; {} to {} µs one way; lost, doubled, damaged of 1,000: {:?}",
            self.members,
            s(self.fault_ns),
            s(self.call_ns),
            s(self.kept_ns),
            s(self.message_ns),
            s(self.unreachable_after_ns),
            self.delay_ns[0] / 1000,
            self.delay_ns[1] / 1000,
            self.bad
        )
    }
}
