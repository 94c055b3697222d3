//! The minimum work of any message layer for a payload: one copy into shared memory and, for a long message, one out of
//! it.
//!
//! These loops do not use Bywire. Two threads on two cores share a ring of records and an area of payloads, in the
//! layout of a port's lane. The source writes each payload and the target reads it, by the laboratory's own [`Writer`]
//! and [`Reader`]. A message layer that copies cannot be faster than these loops.

use std::cell::UnsafeCell;
use std::hint;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use bywire_measure::endpoint::{Kind, Mark};
use bywire_measure::memory::{Source, Spec, Test};
use bywire_measure::payload::{Reader, Writer};
use bywire_measure::workload::nhalf;

use crate::bare_ring::on_two_cores;
use crate::contestant::{Contestant, Metric, Unit};

/// Records of the ring, as a port's lane has.
const RECORDS: u64 = 256;
/// The area of payloads, as long as a port's large window.
const AREA_BYTES: usize = 4 << 20;
/// The most payload of a record.
const RECORD_BYTES_MAX: usize = 32 << 10;
/// Longer messages are copied to private memory before they are read, as by a port.
const READ_IN_PLACE_MAX: usize = bywire::FRAGMENT_BYTES;
/// Messages that the source writes and the target receives in turn.
const BUFFERS: usize = 2;
const LONG_BYTES: usize = 1 << 20;
/// N½ is set against this share of `memcpy`, as that of Bywire.
const MEMCPY_SHARE: f64 = 0.4;
/// The bytes that the target frees at a time.
const FREED_AT_ONCE: u64 = RECORDS / 8;

#[repr(align(64))]
#[derive(Default)]
struct Record {
    /// The lap, counted from one.
    lap: AtomicU64,
    offset: AtomicU64,
    length: AtomicU64,
    /// Bytes of the message that follow in later records; [`LAST`] ends the stream.
    left: AtomicU64,
}

/// `left` of the last record.
const LAST: u64 = u64::MAX;

#[repr(align(64))]
#[derive(Default)]
struct Freed {
    records: AtomicU64,
    bytes: AtomicU64,
}

struct Lane {
    records: Vec<Record>,
    area: Area,
    freed: Freed,
}

/// Payload bytes: the source writes free bytes, and the target reads published ones.
struct Area(Box<[UnsafeCell<u8>]>);

// SAFETY: a byte is either free, and only the source touches it, or published, and only the target does; the records'
// laps and the freed counts hand it over in order.
unsafe impl Sync for Area {}

impl Area {
    /// Source only, of free bytes.
    fn write(&self, at: usize, payload: &[u8]) {
        let place = &self.0[at..at + payload.len()];
        // SAFETY: within the area by the line above, and free by the caller's count, so nobody else touches it.
        unsafe { std::ptr::copy_nonoverlapping(payload.as_ptr(), place.as_ptr() as *mut u8, payload.len()) };
    }

    /// Target only, of published bytes.
    fn read(&self, range: Range<usize>) -> &[u8] {
        let place = &self.0[range];
        // SAFETY: published and not yet freed, so the source does not touch it before the caller frees it.
        unsafe { std::slice::from_raw_parts(place.as_ptr().cast(), place.len()) }
    }
}

impl Lane {
    fn new() -> Arc<Self> {
        let records = (0..RECORDS).map(|_| Record::default()).collect();
        let area = Area((0..AREA_BYTES).map(|_| UnsafeCell::new(0)).collect());
        Arc::new(Self { records, area, freed: Freed::default() })
    }
}

/// An end of a lane, with what writes or reads payloads.
struct End<P> {
    lane: Arc<Lane>,
    payload: P,
    buffers: [Vec<u8>; BUFFERS],
    messages: u64,
    /// Bytes of the present message that are done.
    done: usize,
    records: u64,
    /// Bytes of the area that are used up.
    bytes: u64,
    sum: u64,
}

impl<P> End<P> {
    fn new(lane: &Arc<Lane>, length: usize, payload: P) -> Self {
        let buffers = std::array::from_fn(|_| vec![0; length]);
        let lane = Arc::clone(lane);
        Self { lane, payload, buffers, messages: 0, done: 0, records: 0, bytes: 0, sum: 0 }
    }
}

impl End<Writer> {
    /// Adds the next record to the lane, if there is room. With `is_over`, no further message begins and the last
    /// record ends the stream. `true`: the last record is in the lane.
    #[inline(always)]
    fn step(&mut self, is_over: bool) -> bool {
        let buffer = &mut self.buffers[self.messages as usize % BUFFERS];
        let is_last = is_over && self.done == 0;
        let length = if is_last { 0 } else { (buffer.len() - self.done).min(RECORD_BYTES_MAX) };
        let (start, end) = piece(self.bytes, length);
        // Acquire: pairs with the release stores in `End<Reader>::step`. The target has read what is overwritten.
        let freed_records = self.lane.freed.records.load(Ordering::Acquire);
        let freed_bytes = self.lane.freed.bytes.load(Ordering::Acquire);
        if self.records - freed_records >= RECORDS || end - freed_bytes > AREA_BYTES as u64 {
            return false;
        }
        self.bytes = end;
        let offset = (start % AREA_BYTES as u64) as usize;
        if self.done == 0 && !is_last {
            self.payload.fill(buffer, Mark::new(Kind::Data, 0));
        }
        self.lane.area.write(offset, &buffer[self.done..self.done + length]);
        self.done += length;
        let left = if is_last { LAST } else { (buffer.len() - self.done) as u64 };
        let record = &self.lane.records[(self.records % RECORDS) as usize];
        record.offset.store(offset as u64, Ordering::Relaxed);
        record.length.store(length as u64, Ordering::Relaxed);
        record.left.store(left, Ordering::Relaxed);
        // Release: pairs with the acquire load in `End<Reader>::step`. The payload and the record are written before.
        record.lap.store(self.records / RECORDS + 1, Ordering::Release);
        self.records += 1;
        if left == 0 {
            self.messages += 1;
            self.done = 0;
        }
        is_last
    }
}

/// The beginning and the end of `length` bytes in one piece, on lines of their own, after `bytes` of the area. Both ends count alike.
#[inline(always)]
fn piece(bytes: u64, length: usize) -> (u64, u64) {
    let (area, needed) = (AREA_BYTES as u64, length.next_multiple_of(64) as u64);
    let start = if bytes % area + needed > area { bytes.next_multiple_of(area) } else { bytes };
    (start, start + needed)
}

impl End<Reader> {
    /// Takes the next record from the lane, if there is one. `true`: it ended the stream.
    #[inline(always)]
    fn step(&mut self) -> bool {
        let record = &self.lane.records[(self.records % RECORDS) as usize];
        // Acquire: pairs with the release store in `End<Writer>::step`.
        if record.lap.load(Ordering::Acquire) != self.records / RECORDS + 1 {
            hint::spin_loop();
            return false;
        }
        let offset = record.offset.load(Ordering::Relaxed) as usize;
        let length = record.length.load(Ordering::Relaxed) as usize;
        let left = record.left.load(Ordering::Relaxed);
        let payload = self.lane.area.read(offset..offset + length);
        let buffer = &mut self.buffers[self.messages as usize % BUFFERS];
        let message = if buffer.len() <= READ_IN_PLACE_MAX {
            payload
        } else {
            buffer[self.done..self.done + length].copy_from_slice(payload);
            &buffer[..]
        };
        self.done += length;
        if left == 0 {
            self.sum = self.sum.wrapping_add(self.payload.read(message).map_or(0, |received| received.sum));
            self.messages += 1;
            self.done = 0;
        }
        self.records += 1;
        (_, self.bytes) = piece(self.bytes, length);
        if self.records.is_multiple_of(FREED_AT_ONCE) || length > READ_IN_PLACE_MAX || left == LAST {
            // Release: pairs with the acquire loads in `End<Writer>::step`; everything before has been read.
            self.lane.freed.bytes.store(self.bytes, Ordering::Release);
            self.lane.freed.records.store(self.records, Ordering::Release);
        }
        left == LAST
    }
}

/// Bytes per second from one core to the other, by messages of `length`.
fn one_way(length: usize, duration: Duration) -> Result<f64> {
    let lane = Lane::new();
    let mut sender = End::new(&lane, length, Writer::default());
    let mut receiver = End::new(&lane, length, Reader::new(false, true));
    let send = move || {
        let started = Instant::now();
        // The clock is read once for some 64 KiB.
        let stride = (65_536 / length).max(1);
        while started.elapsed() < duration {
            for _ in 0..stride {
                sender.step(false);
            }
        }
        while !sender.step(true) {}
        started
    };
    let receive = move || {
        while !receiver.step() {}
        hint::black_box(receiver.sum);
        receiver.messages
    };
    let (started, messages) = on_two_cores(send, receive)?;
    Ok(messages as f64 * length as f64 / started.elapsed().as_secs_f64())
}

/// Bytes per second in both directions together, each core sending and receiving in turn.
fn two_way(length: usize, duration: Duration) -> Result<f64> {
    let (there, back) = (Lane::new(), Lane::new());
    let end = |out: &Arc<Lane>, inwards: &Arc<Lane>| {
        let mut sender = End::new(out, length, Writer::default());
        let mut receiver = End::new(inwards, length, Reader::new(false, true));
        move || {
            let started = Instant::now();
            let (mut is_sent, mut is_received) = (false, false);
            while !is_sent || !is_received {
                is_sent = is_sent || sender.step(started.elapsed() >= duration);
                is_received = is_received || receiver.step();
            }
            hint::black_box(receiver.sum);
            (started, receiver.messages)
        }
    };
    let ((started, there), (_, back)) = on_two_cores(end(&there, &back), end(&back, &there))?;
    Ok((there + back) as f64 * length as f64 / started.elapsed().as_secs_f64())
}

/// [`Metric::NHalf`], [`Metric::Long`] and [`Metric::TwoWay`].
pub fn contestant(seconds: f64) -> Contestant {
    let take = move || {
        let lengths = nhalf::sizes(LONG_BYTES as u64);
        let long = Duration::from_secs_f64(seconds);
        let short = long.div_f64(4.0);
        let one = |length: &u64| Ok((*length, one_way(*length as usize, short)?));
        let points = lengths.iter().map(one).collect::<Result<Vec<_>>>()?;
        let memcpy = Source::open(&Spec::new(Test::Memcpy), None)?.block(short)?.value;
        let (n_half, _) = nhalf::of_sweep(&points, MEMCPY_SHARE * memcpy);
        let rates =
            [(Metric::Long, one_way(LONG_BYTES, long)?), (Metric::TwoWay, two_way(LONG_BYTES, long)?)];
        Ok(rates.into_iter().chain(n_half.map(|bytes| (Metric::NHalf, bytes))).collect())
    };
    Contestant::adapter("./x figures messages (bare loops)", Unit::BytesPerSecond, take)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_arrives_in_either_direction() {
        for length in [8, 1000, READ_IN_PLACE_MAX, READ_IN_PLACE_MAX + 1, LONG_BYTES] {
            assert!(one_way(length, Duration::from_millis(20)).unwrap() > 0.0);
        }
        assert!(two_way(LONG_BYTES, Duration::from_millis(20)).unwrap() > 0.0);
    }
}
