//! A ring whose peer changes every word between any two looks at it.
#![no_main]

use std::cell::Cell;
use std::sync::atomic::Ordering;

use bywire_ring::geometry::{Geometry, LANES, LaneGeometry};
use bywire_ring::header::{BULK, Header, lap};
use bywire_ring::lane::{Consumer, Producer};
use bywire_ring::memory::{Memory, SLOT_WORDS};
use libfuzzer_sys::fuzz_target;

const GEOMETRY: Geometry =
    Geometry { lanes: [LaneGeometry { slots: 8, bulk_bytes: 4096 }; 3], fragment_bytes: 512 };

/// Memory that never says the same twice: each load takes the next word of the input.
struct ChangingMemory<'a> {
    input: Cell<&'a [u8]>,
    /// The lap that the reader looks for, so that not every header is merely old.
    lap: Cell<Option<u8>>,
}

impl ChangingMemory<'_> {
    fn next(&self) -> u64 {
        let input = self.input.get();
        let (head, rest) = input.split_at(input.len().min(8));
        self.input.set(rest);
        let mut word = [0; 8];
        word[..head.len()].copy_from_slice(head);
        u64::from_ne_bytes(word)
    }

    fn bounds(offset: usize, length: usize) {
        assert!(offset + length <= GEOMETRY.segment_bytes(), "{length} bytes at {offset}");
    }
}

impl Memory for ChangingMemory<'_> {
    fn load(&self, offset: usize, _: Ordering) -> u64 {
        Self::bounds(offset, 8);
        let word = self.next();
        match self.lap.take() {
            // Half of the headers are of the lap in question.
            Some(lap) if word & 0x100_0000_0000_0000 != 0 => word & !0xff | u64::from(lap),
            _ => word,
        }
    }

    fn store(&self, offset: usize, _: u64, _: Ordering) {
        Self::bounds(offset, 8);
    }

    fn load_words(&self, offset: usize) -> [u64; SLOT_WORDS] {
        Self::bounds(offset, 64);
        std::array::from_fn(|_| self.next())
    }

    fn store_words(&self, offset: usize, _: &[u64]) {
        Self::bounds(offset, 64);
    }

    fn read(&self, offset: usize, target: &mut [u8]) {
        Self::bounds(offset, target.len());
        target.fill(self.next() as u8);
    }

    fn write(&self, offset: usize, source: &[u8]) {
        Self::bounds(offset, source.len());
    }

    fn expect(&self, offset: usize) {
        Self::bounds(offset, 1);
    }

    fn fence(&self) {}
}

fuzz_target!(|bytes: &[u8]| {
    let memory = ChangingMemory { input: Cell::new(bytes), lap: Cell::new(None) };
    let layout = GEOMETRY.lane(LANES[bytes.len() % 3]);
    let (mut consumer, mut producer) = (Consumer::new(layout), Producer::new(layout));
    let mut taken = 0;
    while !memory.input.get().is_empty() {
        memory.lap.set(Some(lap(taken, layout.slots_log2)));
        if let Ok(Some(header)) = consumer.peek(&memory) {
            let length = usize::from(header.length);
            let limit = if header.kind & BULK == 0 { 56 } else { 512 };
            assert!(length <= limit, "{header:?}");
            consumer.words(&memory);
            if header.kind & BULK != 0 {
                consumer.read_bulk(&memory, &mut vec![0; length]);
            }
            consumer.advance(&memory, header);
            taken += 1;
            assert_eq!(consumer.position(), taken);
        }
        memory.lap.set(None);
        let act = memory.next();
        let header = Header { kind: act as u8 & 0x1f, length: 0, check: 0 };
        let before = producer.position();
        let payload = vec![0; (act >> 8) as usize % 513];
        let pushed = match act % 3 {
            0 => producer.push_inline(&memory, &memory, header, &[act]).is_ok(),
            1 => producer.push_bulk(&memory, &memory, header, &[act], &payload).is_ok(),
            _ => producer.freed(&memory).is_ok_and(|freed| {
                assert!(freed <= before, "more freed than was pushed");
                false
            }),
        };
        assert_eq!(producer.position(), before + u64::from(pushed));
        producer.claim_ahead(&memory, &memory);
    }
});
