//! Rings agree with a plain queue under any sequence of pushes and pops, over mapped memory, and any bytes at all
//! written by a hostile peer. They also agree when payloads are staged and read in steps, and when the bulk area moves.
//!
//! Random: `PROPTEST_CASES`, 64 by default, 4,096 in a soak.

use std::collections::VecDeque;

use bywire_ring::geometry::{
    Geometry, LANES, LARGE_WINDOW_BYTES, LARGE_WINDOW_FRAGMENT_BYTES, LaneGeometry, LaneName,
};
use bywire_ring::header::{BULK, Header, PROMPT};
use bywire_ring::lane::{Consumer, Corrupt, Producer, PushError};
use bywire_ring::memory::{Memory, Shared};
use bywire_sys::memory::Mapping;
use proptest::prelude::*;

const SMALL: Geometry =
    Geometry { lanes: [LaneGeometry { slots: 8, bulk_bytes: 4096 }; 3], fragment_bytes: 512 };

struct Ends {
    /// The producer's segment as its owner and as the consumer see it.
    forward: [Shared; 2],
    /// The consumer's segment as its owner and as the producer see it.
    back: [Shared; 2],
}

fn ends(geometry: &Geometry) -> Ends {
    let segment = || {
        let (own, file) = Mapping::create("oracle", geometry.segment_bytes()).expect("memfd");
        let read = Mapping::accept(&file, geometry.segment_bytes()).expect("sealed");
        [Shared::new(own), Shared::new(read)]
    };
    Ends { forward: segment(), back: segment() }
}

#[derive(Clone, Debug)]
enum Operation {
    Push { length: usize, prompt: bool },
    Pop,
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let push = (0..=512usize, any::<bool>()).prop_map(|(length, prompt)| Operation::Push { length, prompt });
    let short = (0..=56usize, any::<bool>()).prop_map(|(length, prompt)| Operation::Push { length, prompt });
    prop::collection::vec(prop_oneof![push, short, Just(Operation::Pop), Just(Operation::Pop)], 0..400)
}

/// Lays a payload into the words of a slot.
fn words(payload: &[u8]) -> Vec<u64> {
    payload
        .chunks(8)
        .map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_ne_bytes(word)
        })
        .collect()
}

/// What the two ends of a lane do by steps.
#[derive(Clone, Debug)]
enum Act {
    /// Goes on with the payload that is being staged, or begins one of this length (as far as allowed).
    Stage { length: usize, step_bytes: usize },
    /// A whole record comes between.
    Push { length: usize },
    /// Reads on in the record at the head, or begins.
    Read { step_bytes: usize },
    /// Announces the large window, and moves there; the second time nothing.
    Move,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let length = || prop_oneof![57..=512usize, 513..=LARGE_WINDOW_FRAGMENT_BYTES as usize, Just(1 << 20)];
    let stage =
        (length(), 64..20_000usize).prop_map(|(length, step_bytes)| Act::Stage { length, step_bytes });
    let push = prop_oneof![0..=56usize, 57..=512usize].prop_map(|length| Act::Push { length });
    let read = || prop_oneof![64..20_000usize, Just(1 << 20)].prop_map(|step_bytes| Act::Read { step_bytes });
    prop::collection::vec(prop_oneof![4 => stage, 2 => push, 4 => read(), 1 => Just(Act::Move)], 0..300)
}

const MOVE: u8 = 13;

/// Both ends of a lane, and what must be in it.
struct Steps {
    ends: Ends,
    producer: Producer,
    consumer: Consumer,
    /// The large window as its writer and as its reader see it, until each end moves there.
    areas: [Option<Shared>; 2],
    /// Payloads of the records in the lane; `None`: the move.
    oracle: VecDeque<Option<Vec<u8>>>,
    staged: Option<Vec<u8>>,
    /// Of the record at the head, what has been read.
    read: Vec<u8>,
    made: usize,
}

impl Steps {
    fn new() -> Self {
        let layout = SMALL.lane(LaneName::Low);
        let (own, file) = Mapping::create("oracle", LARGE_WINDOW_BYTES).expect("memfd");
        let read = Mapping::accept(&file, LARGE_WINDOW_BYTES).expect("sealed");
        Self {
            ends: ends(&SMALL),
            producer: Producer::new(layout),
            consumer: Consumer::new(layout),
            areas: [own, read].map(|mapping| Some(Shared::new(mapping))),
            oracle: VecDeque::new(),
            staged: None,
            read: Vec::new(),
            made: 0,
        }
    }

    fn payload(&mut self, length: usize) -> Vec<u8> {
        self.made += 1;
        (0..length).map(|index| (index * 7 + self.made * 31 + (index >> 8)) as u8).collect()
    }

    /// `false`: no room.
    fn stage(&mut self, length: usize, step_bytes: usize) -> bool {
        let length = length.min(self.producer.fragment_bytes());
        let payload = self.staged.take().unwrap_or_else(|| self.payload(length));
        let (own, remote) = (&self.ends.forward[0], &self.ends.back[1]);
        let staged = self.producer.staged();
        // Both ways to stage, in turn.
        let is_whole = if self.made.is_multiple_of(2) {
            self.producer.stage(own, remote, &payload, step_bytes, || false)
        } else {
            let part = &payload[staged..payload.len().min(staged + step_bytes)];
            self.producer.stage_part(own, remote, part, payload.len())
        };
        match is_whole {
            Ok(true) => {
                let header = Header { kind: 2, length: 0, check: 0 };
                self.producer.push_staged(&self.ends.forward[0], header, &[], payload.len());
                self.oracle.push_back(Some(payload));
            }
            Ok(false) => self.staged = Some(payload),
            Err(error) => {
                assert_eq!(error, PushError::Full, "an honest peer");
                self.staged = Some(payload);
                return false;
            }
        }
        true
    }

    fn push(&mut self, length: usize) -> bool {
        let payload = self.payload(length);
        let header = Header { kind: 1, length: length as u16, check: 0 };
        let (own, remote) = (&self.ends.forward[0], &self.ends.back[1]);
        let pushed = if length <= 56 {
            self.producer.push_short(own, remote, header, &payload)
        } else {
            self.producer.push_bulk(own, remote, header, &[], &payload)
        };
        self.producer.claim_ahead(own, remote);
        if pushed.is_ok() {
            self.oracle.push_back(Some(payload));
        }
        pushed.is_ok()
    }

    fn move_bulk(&mut self) {
        if self.areas[0].is_none() {
            return;
        }
        let header = Header { kind: MOVE | PROMPT, length: 0, check: 0 };
        if self.producer.push_inline(&self.ends.forward[0], &self.ends.back[1], header, &[]).is_ok()
            && let Some(area) = self.areas[0].take()
        {
            let offset = self.ends.forward[0].extend(area);
            self.producer.move_bulk(offset);
            self.oracle.push_back(None);
        }
    }

    fn read(&mut self, step_bytes: usize) {
        let header = self.consumer.peek(&self.ends.forward[1]).expect("an honest peer");
        assert_eq!(header.is_some(), !self.oracle.is_empty());
        let Some(header) = header else { return };
        if header.kind == MOVE | PROMPT {
            assert_eq!(self.oracle.pop_front(), Some(None));
            self.consumer.advance(&self.ends.back[0], header);
            let offset = self.ends.forward[1].extend(self.areas[1].take().expect("one move"));
            return self.consumer.move_bulk(offset);
        }
        let (length, begun) = (usize::from(header.length), self.read.len());
        if header.kind & BULK == 0 {
            let words = self.consumer.words(&self.ends.forward[1]);
            self.read = words.iter().flat_map(|word| word.to_ne_bytes()).take(length).collect();
        } else {
            self.read.resize(length.min(begun + step_bytes), 0);
            let part = &mut self.read[begun..];
            self.consumer.read_bulk_part(&self.ends.forward[1], length, begun, part);
        }
        if self.read.len() == length {
            assert_eq!(self.oracle.pop_front(), Some(Some(std::mem::take(&mut self.read))));
            self.consumer.advance(&self.ends.back[0], header);
        }
    }
}

/// How many sequences are drawn, unless `PROPTEST_CASES` says it. The fixtures that know of tiers are above this crate.
fn cases() -> ProptestConfig {
    let is_soak = std::env::var("BYWIRE_TESTS").is_ok_and(|tier| tier == "soak");
    let cases = std::env::var("PROPTEST_CASES")
        .map_or(if is_soak { 4096 } else { 64 }, |cases| cases.parse().expect("a number"));
    ProptestConfig::with_cases(cases)
}

proptest! {
    #![proptest_config(cases())]

    /// Payloads that are written and read in steps, with whole records between, before and after the move.
    #[test]
    fn payloads_arrive_unchanged_in_steps_and_across_a_move(acts in acts()) {
        let mut steps = Steps::new();
        for act in acts {
            match act {
                Act::Stage { length, step_bytes } => {
                    let was_empty = steps.oracle.is_empty();
                    prop_assert!(steps.stage(length, step_bytes) || !was_empty, "no room in an empty lane");
                }
                Act::Push { length } => {
                    let was_empty = steps.oracle.is_empty();
                    prop_assert!(steps.push(length) || !was_empty, "no room in an empty lane");
                }
                Act::Read { step_bytes } => steps.read(step_bytes),
                Act::Move => {
                    // What was staged was of the old area's size.
                    steps.move_bulk();
                }
            }
        }
        // However it came: once all is read, there is room for the longest payload, again and again.
        for _ in 0..40 {
            while !steps.oracle.is_empty() {
                steps.read(1 << 20);
            }
            prop_assert!(steps.stage(1 << 20, 1 << 20), "no room in an empty lane");
        }
    }

    #[test]
    fn a_lane_behaves_as_a_bounded_queue(operations in operations()) {
        let ends = ends(&SMALL);
        let layout = SMALL.lane(LaneName::High);
        let (mut producer, mut consumer) = (Producer::new(layout), Consumer::new(layout));
        let mut oracle: VecDeque<Vec<u8>> = VecDeque::new();
        for (step, operation) in operations.into_iter().enumerate() {
            match operation {
                Operation::Push { length, prompt } => {
                    let payload: Vec<u8> = (0..length).map(|index| (index + step) as u8).collect();
                    let header = Header { kind: if prompt { PROMPT } else { 0 }, length: length as u16, check: step as u32 };
                    let pushed = if length <= 56 {
                        producer.push_inline(&ends.forward[0], &ends.back[1], header, &words(&payload))
                    } else {
                        producer.push_bulk(&ends.forward[0], &ends.back[1], header, &[], &payload)
                    };
                    producer.claim_ahead(&ends.forward[0], &ends.back[1]);
                    match pushed {
                        Ok(()) => oracle.push_back(payload),
                        // Full only when a quarter of the slots or of the bulk area may be taken.
                        Err(PushError::Full) => prop_assert!(oracle.len() >= 5 || oracle.iter().map(Vec::len).sum::<usize>() >= 1024),
                        Err(PushError::Corrupt) => prop_assert!(false, "an honest peer"),
                    }
                }
                Operation::Pop => {
                    let header = consumer.peek(&ends.forward[1]).expect("an honest peer");
                    prop_assert_eq!(header.is_some(), !oracle.is_empty());
                    let Some(header) = header else { continue };
                    let mut payload = vec![0; header.length.into()];
                    if header.kind & BULK == 0 {
                        let words = consumer.words(&ends.forward[1]);
                        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
                        payload.copy_from_slice(&bytes[..header.length.into()]);
                    } else {
                        consumer.read_bulk(&ends.forward[1], &mut payload);
                    }
                    prop_assert_eq!(Some(payload), oracle.pop_front());
                    consumer.advance(&ends.back[0], header);
                }
            }
        }
    }

    /// Whatever a peer writes into its segment, the consumer neither panics nor leaves its bounds.
    #[test]
    fn any_bytes_in_a_ring_are_handled_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 8 * 64), credit in any::<u64>()) {
        let ends = ends(&SMALL);
        for name in LANES {
            let layout = SMALL.lane(name);
            ends.forward[0].write(layout.slots_offset, &bytes);
            let mut consumer = Consumer::new(layout);
            for _ in 0..32 {
                match consumer.peek(&ends.forward[1]) {
                    Ok(Some(header)) => {
                        let mut payload = vec![0; header.length.into()];
                        if header.kind & BULK != 0 {
                            consumer.read_bulk(&ends.forward[1], &mut payload);
                        }
                        consumer.advance(&ends.back[0], header);
                    }
                    Ok(None) | Err(Corrupt) => break,
                }
            }
            // And whatever it claims to have freed, the producer believes only the possible.
            ends.back[0].store(layout.credit_offset, credit, std::sync::atomic::Ordering::Release);
            let mut producer = Producer::new(layout);
            prop_assert_eq!(producer.freed(&ends.back[1]).is_ok(), credit == 0);
        }
    }
}
