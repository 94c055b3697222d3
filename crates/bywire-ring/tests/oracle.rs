//! The ring against a plain queue: any sequence of pushes and pops, over mapped memory, and any
//! bytes at all written by a hostile peer.

use std::collections::VecDeque;

use bywire_ring::geometry::{Geometry, LANES, LaneGeometry, LaneName};
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

proptest! {
    #[test]
    fn behaves_as_a_bounded_queue(operations in operations()) {
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
    fn any_bytes_at_all_are_taken_calmly(bytes in prop::collection::vec(any::<u8>(), 8 * 64), credit in any::<u64>()) {
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
