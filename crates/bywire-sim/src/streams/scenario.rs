//! The scenario of a seed.

use bywire_stream::{EARLY_BYTES_MIN, Lane, Limits, MESSAGE_BYTES_MAX};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// When faults stop, and no more streams are opened.
pub const HEALED_AT_NS: u64 = 100_000_000;
/// One seed in this many has thousands of streams.
const CROWD_EVERY: u64 = 100;
/// One seed in this many has few streams, large windows, and a high lane that stands still.
const BULK_EVERY: u64 = 8;

/// Everything that differs between seeds. Chances are per 1,000.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub engines: usize,
    pub limits: Limits,
    /// The longest message that an engine makes.
    pub message_bytes: usize,
    /// Bytes that may be under way on a lane.
    pub lane_bytes: usize,
    pub latency_ns: u64,
    /// Messages whose lane stands still until they have been sent again, by lane.
    pub lost: [u32; 2],
    pub resend_ns: u64,
    /// When nothing arrives, by lane.
    pub outages: [Option<(u64, u64)>; 2],
    /// When an engine is killed, and when it is back.
    pub kill: Option<(u64, u64)>,
    /// When an engine ends a connection.
    pub shut_down: Option<u64>,
    /// Streams that each end opens.
    pub streams: usize,
    /// The most bytes of a direction.
    pub bytes_max: u64,
    /// The most bytes that a program writes at once.
    pub piece_bytes_max: u64,
    pub pause_ns: u64,
    /// The room of a reader.
    pub room_bytes: u64,
    /// Readers that stand still until the faults stop.
    pub standing: u32,
    pub refused: u32,
    pub reset: u32,
    /// Readers that ask for the return of their direction, and writers that return it unasked.
    pub returned: u32,
    /// Directions that never leave the kernel.
    pub kept: u32,
    /// Whether engines announce what was drained before they sleep. Only then do writers keep bytes until they are drained.
    pub flushes: bool,
}

impl Scenario {
    pub fn of(seed: u64) -> Self {
        let scenario = Self::any(seed);
        if seed % BULK_EVERY == 7 { scenario.with_bulk() } else { scenario }
    }

    fn with_bulk(mut self) -> Self {
        self.engines = 2;
        self.limits.window_bytes_max = 1 << 21;
        self.limits.bytes_max = 1 << 24;
        self.limits.streams_max = 16;
        self.limits.early_bytes_max = EARLY_BYTES_MIN;
        (self.bytes_max, self.piece_bytes_max, self.room_bytes) = (1 << 21, 1 << 18, 1 << 21);
        (self.lane_bytes, self.latency_ns, self.resend_ns) = (1 << 21, 10_000, 1_000_000);
        self.lost = [300, 0];
        self.outages[Lane::High as usize] = Some((1_000_000, 20_000_000));
        self.outages[Lane::Low as usize] = None;
        (self.kill, self.shut_down, self.flushes, self.kept) = (None, None, false, 500);
        self.streams = 1 + self.streams % 3;
        if self.streams == 1 {
            // Nothing else moves while the low lane waits.
            (self.standing, self.reset, self.returned) = (0, 0, 0);
        }
        self
    }

    fn any(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed ^ 0x57e4);
        let is_crowd = seed.is_multiple_of(CROWD_EVERY);
        let mut rarely = |max: u32| if random.random_bool(0.4) { random.random_range(1..=max) } else { 0 };
        let lost = [rarely(300), rarely(300)];
        let [standing, refused, reset, returned] = [300, 200, 200, 600].map(&mut rarely);
        let mut outage = |chance| {
            let begins_ns = random.random_range(0..HEALED_AT_NS / 2);
            random
                .random_bool(chance)
                .then_some((begins_ns, begins_ns + random.random_range(1_000_000..40_000_000)))
        };
        let both = outage(0.2);
        let outages = [outage(0.3).or(both), both];
        let bytes_max = if is_crowd { 300 } else { 1 << random.random_range(4..18) };
        let streams_max = if is_crowd { 4096 } else { [1, 3, 16, 200][random.random_range(0..4)] };
        let window_bytes_max = 1u32 << random.random_range(9..22);
        let floor = 1u64 << random.random_range(6..15);
        let piece_bytes_max = 1u64 << random.random_range(3..17);
        // A direction takes at most a hundred pieces and windows.
        let bytes_max = bytes_max.min(100 * piece_bytes_max).min(100 * floor.min(window_bytes_max.into()));
        Self {
            engines: random.random_range(1..=3),
            limits: Limits {
                streams_max,
                opens_max: [1, 8, 256][random.random_range(0..3)],
                window_bytes_max,
                bytes_max: 4 * u64::from(streams_max) * floor + [0, 1 << 21][random.random_range(0..2)],
                early_bytes_max: EARLY_BYTES_MIN * [1, 4][random.random_range(0..2)],
            },
            message_bytes: [1024, 4096, MESSAGE_BYTES_MAX, 2 * MESSAGE_BYTES_MAX][random.random_range(0..4)],
            lane_bytes: 1 << random.random_range(12..22),
            latency_ns: random.random_range(1_000..2_000_000),
            lost,
            resend_ns: random.random_range(10_000..10_000_000),
            outages,
            kill: random.random_bool(0.3).then(|| {
                let at_ns = random.random_range(0..HEALED_AT_NS / 2);
                (at_ns, at_ns + random.random_range(0..HEALED_AT_NS / 4))
            }),
            shut_down: random.random_bool(0.15).then(|| random.random_range(0..HEALED_AT_NS / 2)),
            streams: if is_crowd { 2000 } else { random.random_range(0..12) },
            bytes_max,
            piece_bytes_max,
            pause_ns: random.random_range(20_000..1_000_000),
            room_bytes: 1 << random.random_range(7..22),
            standing,
            refused,
            reset,
            returned,
            kept: 100,
            flushes: random.random_bool(0.5),
        }
    }
}
