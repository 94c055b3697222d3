//! A link between two machines that drops, duplicates, reorders, damages, replays and delays packets, by a seed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bywire_sys::poller::Poller;
use bywire_sys::tap::{HEADER_BYTES, Offloads, Queue, Tap};
use bywire_testing::draw::Random;
use bywire_testing::test_network::TestNetwork;

/// The longest frame, with its header.
const FRAME_BYTES_MAX: usize = HEADER_BYTES + 14 + 1500;
/// The offset of the UDP payload in a frame with its header, if the IP header has no options.
const PAYLOAD: usize = HEADER_BYTES + 14 + 20 + 8;
/// The UDP checksum. Zero means that there is none.
const CHECKSUM: std::ops::Range<usize> = PAYLOAD - 2..PAYLOAD;
/// Old frames that may be replayed, in each direction.
const KEPT_MAX: usize = 512;

/// What happens to a frame, with its share in thousandths.
const FAULTS: [(&str, u64); 6] =
    [("dropped", 15), ("repeated", 15), ("reordered", 30), ("damaged", 15), ("replayed", 15), ("delayed", 1)];

/// How often each of [`FAULTS`] was applied, and the frames that went through.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub frames: u64,
    pub faults: [u64; FAULTS.len()],
}

/// The link. It exists until it is dropped.
pub struct Mangler {
    /// Its thread ends when this is dropped.
    keep: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<Counts>>,
}

impl Mangler {
    /// Connects the two machines of a network whose services have not started.
    pub fn join(network: &TestNetwork, seed: u64) -> Self {
        let ends = [0, 1].map(|number| {
            let machine = &network.machines[number];
            machine.take_out_cable();
            let tap = machine.namespace.run(|| Tap::create("eth0", 1, Offloads::default()));
            let mut tap = tap.expect("inside").expect("a device: this needs /dev/net/tun");
            machine.configure_interface();
            tap.queues.pop().expect("one")
        });
        let (keep, kept) = mpsc::channel();
        let thread = std::thread::spawn(move || Wires::new(ends, seed).run(&kept));
        Self { keep: Some(keep), thread: Some(thread) }
    }

    /// Removes the link. Checks that each fault has happened.
    pub fn take_out(mut self) -> Counts {
        let counts = self.end().expect("it runs").expect("it mangled");
        println!("{} frames: {}", counts.frames, counts.text());
        assert!(counts.faults.iter().all(|count| *count > 0), "a fault has not happened");
        counts
    }

    fn end(&mut self) -> Option<std::thread::Result<Counts>> {
        self.keep.take();
        self.thread.take().map(JoinHandle::join)
    }
}

impl Drop for Mangler {
    fn drop(&mut self) {
        let _ended = self.end();
    }
}

impl Counts {
    fn text(&self) -> String {
        let each = FAULTS.iter().zip(self.faults).map(|((name, _), count)| format!("{count} {name}"));
        each.collect::<Vec<_>>().join(", ")
    }
}

/// When a frame is sent, in which order, and to which end.
type Later = (Instant, u64, usize, Vec<u8>);

/// Both directions.
struct Wires {
    ends: [Queue; 2],
    random: Random,
    counts: Counts,
    /// Delayed frames.
    later: BinaryHeap<Reverse<Later>>,
    sequence: u64,
    /// Old frames towards each end.
    kept: [Vec<Vec<u8>>; 2],
    /// The time until which all frames to an end wait.
    stands: [Instant; 2],
}

impl Wires {
    fn new(ends: [Queue; 2], seed: u64) -> Self {
        let (kept, stands) = (Default::default(), [Instant::now(); 2]);
        let (counts, later) = (Counts::default(), BinaryHeap::new());
        Self { ends, random: Random(seed), counts, later, sequence: 0, kept, stands }
    }

    fn run(mut self, kept: &mpsc::Receiver<()>) -> Counts {
        let mut poller = Poller::new().expect("a poller");
        self.ends.iter().for_each(|end| poller.add(end, 0).expect("watched"));
        while kept.try_recv() != Err(mpsc::TryRecvError::Disconnected) {
            let mut buffer = [0; FRAME_BYTES_MAX];
            for from in 0..2 {
                // At most this many, because frames of the other end wait.
                for _ in 0..64 {
                    let Ok(length) = self.ends[from].read(&mut buffer) else { break };
                    self.take(1 - from, &mut buffer[..length]);
                }
            }
            let now = Instant::now();
            while let Some(Reverse((at, ..))) = self.later.peek()
                && *at <= now
            {
                let Some(Reverse((_, _, to, frame))) = self.later.pop() else { break };
                self.write(to, &frame);
            }
            let next = self.later.peek().map(|Reverse((at, ..))| at.saturating_duration_since(now));
            let most = Duration::from_millis(20);
            poller.wait(Some(next.unwrap_or(most).min(most))).expect("waited");
        }
        self.counts
    }

    /// A frame that the kernel does not take is lost, as on any link.
    fn write(&self, to: usize, frame: &[u8]) {
        let _lost = self.ends[to].write(frame);
    }

    fn let_out(&mut self, to: usize, at: Instant, frame: &[u8]) {
        if at <= Instant::now() {
            return self.write(to, frame);
        }
        self.sequence += 1;
        self.later.push(Reverse((at, self.sequence, to, frame.to_vec())));
    }

    fn take(&mut self, to: usize, frame: &mut [u8]) {
        let is_udp = frame.len() > PAYLOAD
            && frame[HEADER_BYTES + 12..HEADER_BYTES + 15] == [0x08, 0x00, 0x45]
            && frame[HEADER_BYTES + 23] == 17;
        if !is_udp {
            return self.write(to, frame);
        }
        self.counts.frames += 1;
        self.keep(to, frame);
        let mut at = self.stands[to];
        match self.fault() {
            Some(0) => return,
            Some(1) => self.let_out(to, at, frame),
            Some(2) => at = at.max(Instant::now()) + Duration::from_micros(50 + self.random.next() % 3000),
            Some(3) => self.damage(frame),
            Some(4) => {
                let old = self.random.below(self.kept[to].len());
                let old = self.kept[to][old].clone();
                self.let_out(to, at, &old);
            }
            Some(_) => {
                at = Instant::now() + Duration::from_millis(5 + self.random.next() % 25);
                self.stands[to] = at;
            }
            None => {}
        }
        self.let_out(to, at, frame);
    }

    /// Draws the fault of a frame.
    fn fault(&mut self) -> Option<usize> {
        let mut drawn = self.random.next() % 1000;
        for (number, (_, share)) in FAULTS.iter().enumerate() {
            if drawn < *share {
                self.counts.faults[number] += 1;
                return Some(number);
            }
            drawn -= share;
        }
        None
    }

    /// Keeps frames for replays: the first ones, which open channels and connections, and each later one for a while.
    fn keep(&mut self, to: usize, frame: &[u8]) {
        if self.kept[to].len() < KEPT_MAX {
            self.kept[to].push(frame.to_vec());
        } else {
            let place = KEPT_MAX / 4 + self.random.below(KEPT_MAX - KEPT_MAX / 4);
            self.kept[to][place] = frame.to_vec();
        }
    }

    /// Flips up to three bits of the payload, and removes the checksum, so that the kernel does not drop the packet.
    fn damage(&mut self, frame: &mut [u8]) {
        frame[CHECKSUM].fill(0);
        for _ in 0..=self.random.below(3) {
            let place = PAYLOAD + self.random.below(frame.len() - PAYLOAD);
            frame[place] ^= 1 << self.random.below(8);
        }
    }
}
