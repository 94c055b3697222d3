//! The scenario of a seed.

use std::fmt;

use bywire_wire::keys::Security;
use bywire_wire::size::BASE_BYTES;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Everything that differs between seeds. Chances are per 1,000 packets.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The seed itself.
    pub seed: u64,
    /// The protection of packets.
    pub security: Security,
    /// Packets that one key seals.
    pub packets_per_key: u64,
    /// The delay from one end to the other.
    pub latency_ns: u64,
    /// The bytes that the path carries in a millisecond.
    pub bytes_per_ms: u64,
    /// The bytes that wait before the path. Further ones are dropped.
    pub queue_bytes: u64,
    /// The bytes that wait in the buffer of a socket.
    pub socket_bytes: usize,
    /// Packets that are lost.
    pub loss: u32,
    /// Packets that begin a burst of losses.
    pub burst: u32,
    /// Packets that are overtaken.
    pub reorder: u32,
    /// Packets that are duplicated.
    pub duplicate: u32,
    /// Packets that are damaged.
    pub corrupt: u32,
    /// How long one direction is interrupted.
    pub partition_ns: u64,
    /// The longest packet that the path carries, before and after a change.
    pub path_bytes: [u16; 2],
    /// The route's limit, as the kernel reports it.
    pub route_bytes: u16,
    /// How long one end stalls.
    pub stall_ns: u64,
    /// How much later one end exists than the other. Packets to it are lost until then.
    pub late_ns: u64,
    /// When one end crashes. `None`: it does not.
    pub crash_ns: Option<u64>,
    /// The time after which it is back, and the time after which its peer is told.
    pub back_ns: [u64; 2],
    /// Bytes that may wait, by lane.
    pub windows: [u64; 3],
    /// Bytes that each end sends, by lane.
    pub bytes: [[u64; 3]; 2],
    /// The longest piece that a program adds at once.
    pub piece_bytes_max: usize,
    /// The time between two pieces.
    pub pause_ns: u64,
    /// Datagrams that each end sends.
    pub datagrams: u32,
    /// True if the program at the responder consumes no low bytes before all others have arrived.
    pub is_low_standing: bool,
}

/// When faults stop.
pub const HEALED_AT_NS: u64 = 120_000_000;

/// One seed in this many has a long fat path, which costs as much as many others.
const LONG_FAT_EVERY: u64 = 400;

impl Scenario {
    /// Expands a seed.
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
        let scenario = Self {
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
            datagrams: if random.random_bool(0.5) { random.random_range(1..300) } else { 0 },
            is_low_standing: random.random_bool(0.2),
            late_ns: if random.random_bool(0.3) { random.random_range(0..40_000_000) } else { 0 },
            crash_ns: random.random_bool(0.2).then(|| random.random_range(0..HEALED_AT_NS / 2)),
            back_ns: [0; 2].map(|_: u64| random.random_range(0..HEALED_AT_NS / 3)),
        };
        if seed % LONG_FAT_EVERY == 1 { scenario.into_long_fat() } else { scenario }
    }

    /// A path with more packets under way than a peer remembers, so that both ends reach the limit of numbers.
    fn into_long_fat(self) -> Self {
        Self {
            security: Security::Aes256Gcm,
            latency_ns: 4_000_000,
            bytes_per_ms: 2_000_000,
            queue_bytes: 64 << 20,
            socket_bytes: 64 << 20,
            loss: 0,
            burst: 0,
            reorder: 0,
            duplicate: 0,
            corrupt: 0,
            partition_ns: 0,
            path_bytes: [1200; 2],
            route_bytes: 1200,
            stall_ns: 0,
            late_ns: 0,
            crash_ns: None,
            windows: [1 << 16, 1 << 16, 1 << 24],
            bytes: [[0, 0, 24 << 20], [0; 3]],
            pause_ns: 1000,
            datagrams: 0,
            is_low_standing: false,
            ..self
        }
    }

    /// The most time that everything may take after faults have stopped, as far as the scenario determines it.
    pub fn bound_ns(&self) -> u64 {
        let packets_ns = |bytes: u64| bytes * 1_000_000 / self.bytes_per_ms;
        let queue_ns = packets_ns(self.queue_bytes + u64::from(LONGEST_BYTES));
        // A round trip with full queues, with the delays of acknowledgements and of programs that look at intervals.
        let round_ns = 2 * (self.latency_ns + queue_ns) + ROUND_DELAY_NS;
        let directions = self.bytes.map(|lanes| {
            let datagrams = u64::from(self.datagrams) * DATAGRAM_BYTES;
            let bytes = lanes.iter().sum::<u64>() + datagrams;
            // A lane moves at least a quarter of its window in a round, because credit is sent then.
            let by_credit: u64 =
                lanes.iter().zip(self.windows).map(|(bytes, window)| 4 * bytes / window).sum();
            // The congestion window begins at two packets, and grows by half a packet in a round.
            let by_window = (4 * bytes / u64::from(BASE_BYTES)).isqrt();
            (bytes, by_credit + by_window)
        });
        let bytes: u64 = directions.iter().map(|(bytes, _)| bytes).sum();
        let rounds: u64 = directions.iter().map(|(_, rounds)| rounds).sum();
        let steps = STEPS + u64::from(self.datagrams);
        self.stall_ns + SILENCE_NS + packets_ns(bytes) + (ROUNDS + rounds) * round_ns + steps * self.pause_ns
    }
}

/// The longest packet of this path.
const LONGEST_BYTES: u16 = 9000;
/// The mean length.
const DATAGRAM_BYTES: u64 = 1500;
/// An acknowledgement waits for a millisecond, and a program looks within some microseconds.
const ROUND_DELAY_NS: u64 = 1_200_000;
/// Rounds in which only probes, lost packets and credit move.
const ROUNDS: u64 = 40;
/// The steps in which a program adds its bytes.
const STEPS: u64 = 1000;
/// A silent peer is probed once a second: with the probe, two that are too long for the path, and incomplete datagrams
/// that are dropped.
const SILENCE_NS: u64 = 4_000_000_000;

impl fmt::Display for Scenario {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        let us = |ns: u64| format!("{} µs", ns / 1000);
        let [first, second] = self.path_bytes;
        writeln!(
            formatter,
            "path: {} one way, {} MB/s, queue of {} bytes, socket of {} bytes; packets of {first} and then {second} bytes, \
             {} as the route says",
            us(self.latency_ns),
            self.bytes_per_ms / 1000,
            self.queue_bytes,
            self.socket_bytes,
            self.route_bytes
        )?;
        let chances = [
            ("lost", self.loss),
            ("beginning a burst", self.burst),
            ("overtaken", self.reorder),
            ("doubled", self.duplicate),
            ("damaged", self.corrupt),
        ];
        let chances = chances.iter().filter(|(_, chance)| *chance > 0);
        let chances: Vec<_> = chances.map(|(name, chance)| format!("{chance} {name}")).collect();
        writeln!(formatter, "of 1,000 packets before {}: {}", us(HEALED_AT_NS), chances.join(", "))?;
        let spans =
            [("partition", self.partition_ns), ("stall", self.stall_ns), ("late start", self.late_ns)];
        for (name, ns) in spans.iter().filter(|(_, ns)| *ns > 0) {
            writeln!(formatter, "{name}: {}", us(*ns))?;
        }
        if let Some(at_ns) = self.crash_ns {
            let [back, told] = self.back_ns.map(us);
            writeln!(formatter, "crash: at {}, back after {back}, told after {told}", us(at_ns))?;
        }
        writeln!(
            formatter,
            "ends: {:?}, {} packets a key, windows {:?}, bytes by lane {:?}, pieces up to {}, pauses up to {}, {} datagrams{}",
            self.security,
            self.packets_per_key,
            self.windows,
            self.bytes,
            self.piece_bytes_max,
            us(self.pause_ns),
            self.datagrams,
            if self.is_low_standing { ", the low lane stands" } else { "" }
        )
    }
}
