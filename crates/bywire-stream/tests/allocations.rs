//! Streams that have warmed up allocate nothing: short writes, bulk, credit and acknowledgements. A program of its own, as its
//! allocator counts.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use bywire_stream::{Event, Lane, Limits, MESSAGE_BYTES_MAX, Side, StreamId, Streams};

/// Counts the allocations of a thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator. Counting touches no memory of the callers.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|allocations| allocations.set(allocations.get() + 1));
        // SAFETY: the caller upholds the contract of `alloc`, which is the same here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `dealloc`, which is the same here.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const ROOM: u64 = 1 << 18;
const SHORT_STREAMS: usize = 200;
const BULK_STREAMS: usize = 8;

/// Two machines, and how far the streams between them are.
struct Pair {
    machines: [Streams; 2],
    buffer: Vec<u8>,
    streams: Vec<StreamId>,
    /// By slot: what was queued and what has arrived.
    queued: Vec<u64>,
    received: Vec<u64>,
}

impl Pair {
    fn new() -> Self {
        let machines = [Side::First, Side::Second].map(|side| Streams::new(side, Limits::default()));
        let slots = 2 * (SHORT_STREAMS + BULK_STREAMS);
        let buffer = vec![0; MESSAGE_BYTES_MAX];
        let mut pair =
            Self { machines, buffer, streams: Vec::new(), queued: vec![0; slots], received: vec![0; slots] };
        pair.settle();
        for _ in 0..SHORT_STREAMS + BULK_STREAMS {
            let stream = pair.machines[0].open(b"a stream", ROOM).expect("room for a stream");
            pair.settle();
            pair.machines[1].accept(stream, ROOM).expect("it was opened");
            pair.settle();
            pair.machines[0].start(stream, 0).expect("it was accepted");
            pair.streams.push(stream);
        }
        pair.settle();
        pair
    }

    /// Carries everything, and drains what has arrived.
    fn settle(&mut self) {
        loop {
            let mut moved = false;
            for (from, lane) in [(0, Lane::High), (0, Lane::Low), (1, Lane::High), (1, Lane::Low)] {
                let [first, second] = &mut self.machines;
                let (source, target) = if from == 0 { (first, second) } else { (second, first) };
                loop {
                    let length = source.transmit(lane, &mut self.buffer, |_, _, target| target.fill(7));
                    if length == 0 {
                        break;
                    }
                    moved = true;
                    let received = &mut self.received;
                    let on_event = |event: Event| {
                        if let Event::Bytes { stream, offset, bytes } = event {
                            received[stream.slot()] = offset + bytes.len() as u64;
                        }
                    };
                    target.receive(lane, &self.buffer[..length], on_event).expect("an honest peer");
                }
            }
            if !moved {
                return;
            }
            for stream in &self.streams {
                self.machines[1].drain(*stream, self.received[stream.slot()], ROOM).expect("it has arrived");
            }
        }
    }

    /// Each stream sends a short piece or a long one.
    fn round(&mut self) {
        for (place, stream) in self.streams.iter().enumerate() {
            let queued = &mut self.queued[stream.slot()];
            *queued += if place < SHORT_STREAMS { 40 } else { 500_000 };
            self.machines[0].queue(*stream, *queued).expect("it has started");
        }
        self.settle();
        assert!(self.streams.iter().all(|stream| self.received[stream.slot()] == self.queued[stream.slot()]));
    }
}

#[test]
fn streams_that_have_warmed_up_allocate_nothing() {
    let mut pair = Pair::new();
    (0..20).for_each(|_| pair.round());
    let records = |pair: &Pair| pair.machines[0].counts().high_pieces + pair.machines[0].counts().low_pieces;
    let (before, records_before) = (ALLOCATIONS.get(), records(&pair));
    (0..100).for_each(|_| pair.round());
    let (allocations, sent) = (ALLOCATIONS.get() - before, records(&pair) - records_before);
    println!("{sent} records of bytes, {allocations} allocations");
    assert!(sent > 20_000, "{sent} records only");
    assert_eq!(allocations, 0);
}
