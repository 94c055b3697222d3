//! What a seed stands for.

use bywire_wire::keys::Security;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Everything that differs between seeds. Chances are of 1,000 packets.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The seed itself.
    pub seed: u64,
    /// How packets are protected.
    pub security: Security,
    /// Packets that one key seals.
    pub packets_per_key: u64,
    /// From one end to the other.
    pub latency_ns: u64,
    /// Bytes that the path carries in a millisecond.
    pub bytes_per_ms: u64,
    /// Bytes that wait before the path; more are dropped.
    pub queue_bytes: u64,
    /// Bytes that wait in the buffer of a socket.
    pub socket_bytes: usize,
    /// Packets that vanish.
    pub loss: u32,
    /// Packets with which a burst begins, in which all vanish.
    pub burst: u32,
    /// Packets that are overtaken.
    pub reorder: u32,
    /// Packets that come twice.
    pub duplicate: u32,
    /// Packets that come damaged.
    pub corrupt: u32,
    /// For how long nothing comes through, in one direction.
    pub partition_ns: u64,
    /// The longest packet that the path carries, before and after a change.
    pub path_bytes: [u16; 2],
    /// What the route says of it.
    pub route_bytes: u16,
    /// For how long one end does nothing.
    pub stall_ns: u64,
    /// Bytes that may wait, by lane.
    pub windows: [u64; 3],
    /// Bytes that each end sends, by lane.
    pub bytes: [[u64; 3]; 2],
    /// The longest piece that a program adds at once.
    pub piece_bytes_max: usize,
    /// Between two pieces.
    pub pause_ns: u64,
    /// Datagrams that each end sends.
    pub datagrams: u32,
    /// The program at the responder consumes no low bytes before all others have come.
    pub is_low_standing: bool,
}

/// When the world is healed.
pub const HEALED_AT_NS: u64 = 120_000_000;

impl Scenario {
    /// What a seed stands for.
    pub fn of(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let rarely = |random: &mut StdRng, max: u32| {
            if random.random_bool(0.4) { random.random_range(1..=max) } else { 0 }
        };
        let [loss, burst, reorder, duplicate, corrupt] =
            [200, 15, 150, 100, 60].map(|max| rarely(&mut random, max));
        let scale = 1u64 << random.random_range(8..19);
        let amount =
            |random: &mut StdRng| if random.random_bool(0.7) { random.random_range(0..=scale) } else { 0 };
        let bytes = std::array::from_fn(|_| std::array::from_fn(|_| amount(&mut random)));
        let window = 1u64 << random.random_range(11..18);
        let path_bytes = [1200, 1252, 1452, 4000, 8952, 1400];
        let path = |random: &mut StdRng| path_bytes[random.random_range(0..path_bytes.len())];
        let paths = [path(&mut random), path(&mut random)];
        Self {
            seed,
            security: [Security::Plain, Security::Aes256Gcm, Security::ChaCha20Poly1305]
                [random.random_range(0..3)],
            packets_per_key: if random.random_bool(0.5) { random.random_range(1..60) } else { u64::MAX },
            latency_ns: random.random_range(5_000..3_000_000),
            bytes_per_ms: random.random_range(2_000..2_000_000),
            queue_bytes: random.random_range(3_000..100_000),
            socket_bytes: random.random_range(9_000..65_000),
            loss,
            burst,
            reorder,
            duplicate,
            corrupt,
            partition_ns: if random.random_bool(0.3) {
                random.random_range(1_000_000..60_000_000)
            } else {
                0
            },
            path_bytes: paths,
            route_bytes: [paths[0], 9000, 1500][random.random_range(0..3)],
            stall_ns: if random.random_bool(0.3) { random.random_range(1_000_000..200_000_000) } else { 0 },
            windows: [window, window, window << random.random_range(0..4)],
            bytes,
            piece_bytes_max: 1 << random.random_range(3..15),
            pause_ns: random.random_range(0..600_000),
            datagrams: if random.random_bool(0.5) { random.random_range(1..100) } else { 0 },
            is_low_standing: random.random_bool(0.2),
        }
    }
}
